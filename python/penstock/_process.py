"""A data process of our own: the penstock binary as a child, which ends with us."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock._errors import Error, Invalid, NotFound, Unavailable, error
from penstock._folder import NAME, Folder

_MOST = 103  # bytes that a socket's address has room for


def binary(path: bool = True) -> str:
    """The path of the penstock binary: $PENSTOCK_BINARY, else that of the wheel, else (with ``path``) the first in $PATH."""
    named = os.environ.get("PENSTOCK_BINARY")
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise NotFound(f"PENSTOCK_BINARY is {named}, which is no program: set it to the path of the penstock binary")
        return named
    own = Path(__file__).parent / "_bin" / "penstock"
    if os.access(own, os.X_OK):
        return str(own)
    found = shutil.which("penstock") if path else None
    if found is None:
        raise NotFound("the penstock binary is not there: install the wheel that contains it, put it in PATH, or set PENSTOCK_BINARY to its path")
    return found


def main() -> None:
    """The command ``penstock`` of the wheel: the binary in it."""
    try:
        program = binary(path=False)  # what PATH has may be this very command
    except NotFound as e:
        sys.exit(f"penstock: {e}")
    os.environ.update(_environment())
    os.execv(program, [program, *sys.argv[1:]])


def _environment() -> dict[str, str]:
    """That of the binary: steps in Python run with this interpreter, unless another is named."""
    return {"PENSTOCK_PYTHON": sys.executable, **os.environ}


def settings(overrides: Mapping[str, Any]) -> list[str]:
    """``key=value`` of nested mappings, keys joined by dots: what --set takes. Values are JSON, which YAML reads as it is."""
    out = []
    for key, v in overrides.items():
        if isinstance(v, Mapping) and v:
            out += [f"{key}.{rest}" for rest in settings(v)]
            continue
        try:
            out.append(f"{key}={json.dumps(v)}")
        except (TypeError, ValueError) as e:
            raise Invalid(f"{key}: {v!r} is no value of a spec: take text, numbers, booleans, lists and mappings") from e
    return out


class Server:
    """A child that serves the shards of ``spec`` on :attr:`socket` until :meth:`close`, or until this process ends."""

    def __init__(self, spec: str | os.PathLike[str], sets: Iterable[str], ranks: int, rank: int, allowed: Iterable[str] = ()) -> None:
        program = binary()
        spec = os.fspath(spec)
        if not os.path.exists(spec):
            raise NotFound(f"{spec}: no such spec")
        folder = _folder()
        self.socket = os.path.join(folder.path, "s")
        argv = [program, "data", "--child", *allowed]  # what goes wrong is an exception here, and not printed besides
        for s in sets:
            argv += ["--set", s]
        argv += ["--ranks", str(ranks), "--rank", str(rank), "--socket", self.socket, "--", spec]
        try:
            # A session of its own: an interrupt at the terminal is for this process, which ends the child by closing its input.
            self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=_environment())
        except OSError as e:
            folder.close()
            raise Unavailable(f"{program} cannot be started: {e.strerror or e}") from e
        self._end = weakref.finalize(self, _end, self._child, folder, os.getpid())
        _servers.add(self)
        try:
            self._ready()
        except BaseException:
            self.close()
            raise

    def _ready(self) -> None:
        """Waits for the line that says so."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline(1 << 20)
        try:
            said = json.loads(line)
            if said.get("ready") is True:
                return
            said = said["error"]
            raise error(str(said.get("code")), str(said["text"]))
        except Error:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        if not line:
            raise Unavailable(f"the data process did not start: {self.explain()}")
        raise Unavailable(f"the data process did not start: it says {line[:200].decode('utf-8', 'replace').strip()!r}; is {self._child.args[0]!s} a penstock of this release?")  # type: ignore[index]

    def explain(self) -> str:
        """How the child ended; it is given a moment to do so."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        pid, code = self._child.pid, self._child.returncode
        if code is None:
            return f"process {pid} has ended the connection, but runs"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return f"process {pid} was ended by {name}" + (": out of memory, perhaps" if code == -signal.SIGKILL else "")
        return f"process {pid} ended with exit code {code}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def close(self) -> None:
        """Ends the child, and waits for its end. Idempotent."""
        self._end()


def _folder() -> Folder:
    most = _MOST - len(f"/{NAME}12345678/s.lock")
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) <= most and os.access(base, os.W_OK):
            return Folder(base)
    raise Invalid(f"no folder for a socket: set TMPDIR to one that this user may write, with a path of at most {most} bytes")


def _end(child: subprocess.Popen[bytes], folder: Folder, owner: int) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if os.getpid() != owner:
        folder.close(remove=False)
        return  # a fork's: the child is its parent's
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    folder.close()


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _in_child() -> None:
    """A fork lets go of the child's input, so that the child ends with its parent."""
    for s in list(_servers):
        s._end()


os.register_at_fork(after_in_child=_in_child)
