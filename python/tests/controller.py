"""A controller for tests: it follows trainer/internal/wire for one group of workers, and records what they say.

It keeps no files and restarts nobody: what to answer is the test's decision.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).resolve().parents[1]


class Controller:
    """Listens on a socket for the workers of a run. ``heard`` has what they said, in order, as (rank, kind, value)."""

    def __init__(self, world: int = 1, **welcome: Any) -> None:
        self.world = world
        self.welcome: dict[str, Any] = {
            "run": "test", "attempt": 1, "storage": "file:///runs/test", "world": world, "local_world": world, "node": 0, "nodes": 1,
            "config": {}, "reports": 0, **welcome,
        }  # fmt: skip
        self.heard: list[tuple[int, str, Any]] = []
        #: (rank, report) to the answer; None for none yet.
        self.on_report: Callable[[int, dict[str, Any]], dict[str, Any] | None] = lambda rank, m: {"n": m["n"]}
        self.on_restore: Callable[[int], dict[str, Any]] = lambda rank: {"dir": "/nowhere"}
        #: (rank, hello) to a refusal, or None.
        self.refuse: Callable[[int, dict[str, Any]], dict[str, Any] | None] = lambda rank, hello: None
        self.changed = threading.Condition()
        self.dir = tempfile.mkdtemp(prefix="ps-")
        self.path = f"{self.dir}/control"
        self.connections: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def env(self, rank: int = 0) -> dict[str, str]:
        """That of a worker."""
        return {
            "PENSTOCK_CONTROL": self.path, "PENSTOCK_RUN": "test", "PENSTOCK_ATTEMPT": "1", "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world), "LOCAL_WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(PYTHON),
        }  # fmt: skip

    def start(self, script: str, rank: int = 0, **env: str) -> subprocess.Popen[str]:
        """A worker that runs ``script``."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**inherited, "OMP_NUM_THREADS": "1", **self.env(rank), **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def said(self, kind: str, rank: int | None = None) -> list[Any]:
        with self.changed:
            return [v for r, k, v in self.heard if k == kind and rank in (None, r)]

    def wait(self, ready: Callable[[], bool], timeout: float = 60) -> None:
        with self.changed:
            assert self.changed.wait_for(ready, timeout), f"not heard: {self.heard}"

    def send(self, rank: int, m: dict[str, Any]) -> None:
        self.connections[rank].sendall(json.dumps(m).encode() + b"\n")

    def close(self) -> None:
        for c in (self._listener, *self.connections.values()):
            with contextlib.suppress(OSError):
                c.shutdown(socket.SHUT_RDWR)
        for t in self._threads:
            t.join()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    c, _ = self._listener.accept()
                except OSError:
                    return
                self._threads.append(threading.Thread(target=self._serve, args=(c,), daemon=True))
                self._threads[-1].start()

    def _serve(self, c: socket.socket) -> None:
        rank = -1
        ear = _Ear(c)
        try:
            for kind, value in ear:
                if kind == "hello":
                    rank = value["rank"]
                    refusal = self.refuse(rank, value)
                    if refusal is not None:
                        c.sendall(json.dumps({"refused": refusal}).encode() + b"\n")
                        return
                    self.connections[rank] = c
                    self.send(rank, {"welcome": {**self.welcome, "rank": rank, "local_rank": rank}})
                with self.changed:
                    self.heard.append((rank, kind, value))
                    self.changed.notify_all()
                if kind == "report":
                    a = self.on_report(rank, value)
                    if a is not None:
                        self.send(rank, {"reported": a})
                if kind == "restore":
                    self.send(rank, {"restored": self.on_restore(rank)})
        except OSError:
            pass
        finally:
            ear.close()
            c.close()
            with self.changed:
                self.heard.append((rank, "eof", None))
                self.changed.notify_all()


class _Ear:
    """What a worker says, in its order: its lines, and the reports that it leaves in a pipe (``wire.Ear``)."""

    def __init__(self, c: socket.socket) -> None:
        self._c, self._pipe = c, -1
        self._left = b""
        self._next, self._names, self._data = 0, [""], ""  # of reports in the pipe

    def close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        buf, fds, _, _ = socket.recv_fds(self._c, 1 << 16, 1)
        if fds:
            self._pipe = fds[0]
            os.set_blocking(self._pipe, False)
        more = buf
        while more:
            while b"\n" in buf:
                line, _, buf = buf.partition(b"\n")
                ((kind, value),) = json.loads(line).items()
                if kind == "report":
                    yield from self._reports(value["n"])
                    self._next, self._names = value["n"] + 1, sorted(value["metrics"])
                    self._data = next(iter(value.get("data") or {}), "")
                yield kind, value
            while not select.select([self._c], [], [], 0.01)[0]:
                yield from self._reports()
            more = self._c.recv(1 << 16)
            buf += more
        yield from self._reports()

    def _reports(self, until: int | None = None) -> Iterator[tuple[str, Any]]:
        """Those in the pipe, before number ``until``."""
        with contextlib.suppress(BlockingIOError):
            while self._pipe >= 0 and (b := os.read(self._pipe, 1 << 16)):
                self._left += b
        form = struct.Struct(f"<4Q{len(self._names)}d")
        while len(self._left) >= form.size and self._next != until:
            n, epoch, step, at, *values = form.unpack_from(self._left)
            if n != self._next:
                return
            self._left = self._left[form.size :]
            self._next += 1
            metrics = {k: v if math.isfinite(v) else {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(v), "NaN") for k, v in zip(self._names, values)}
            yield "report", {"n": n, "at": at, "quiet": True, "metrics": metrics, "data": {self._data: {"epoch": epoch, "step": step}}}
