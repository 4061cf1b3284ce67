"""A worker's connection to the controller of its run: lines of JSON over a unix socket, and a pipe for reports (``trainer/internal/wire``).

:func:`session` connects, once per process; outside of a run it is None. Every report says where the training data sets stand
that :func:`penstock.shard` has opened; whoever gives batches calls :meth:`Session.alive`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Mapping

from penstock import _metrics
from penstock._errors import Corrupt, Error, Invalid, Unavailable, Unsupported, error
from penstock._state import Place, summed
from penstock._version import __version__

if TYPE_CHECKING:
    from penstock._shard import Shard

VERSION = 2  # of the protocol: both sides have the same
#: Reports that may be unanswered.
AHEAD = 64
_UNREAD = 48  # reports whose answers are not looked for, for up to a second
MAX_LINE = 16 << 20  # bytes
_MAX_QUIET = 512  # bytes of a report in the pipe

ENV_SOCKET = "PENSTOCK_CONTROL"
ENV_RUN = "PENSTOCK_RUN"
ENV_ATTEMPT = "PENSTOCK_ATTEMPT"
_ENV_OWNER = "PENSTOCK_CONTROL_OWNER"  # process id of the worker that has connected, for processes that it starts

#: Writes the stacks of all threads to stderr, where nobody else handles it: what trainer/launch sends to workers that hang.
STACKS_SIGNAL = signal.SIGQUIT


@dataclass(frozen=True)
class Welcome:
    """What the controller says of the run; see ``wire.Welcome``."""

    run: str
    attempt: int
    storage: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    node: int
    nodes: int
    devices: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    #: Data sets by name: ``{"socket": path, "eval": bool}``.
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoint: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    reports: int = 0

    @staticmethod
    def of(m: Mapping[str, Any]) -> Welcome:
        try:
            return Welcome(
                run=str(m["run"]), attempt=int(m["attempt"]), storage=str(m["storage"]),
                rank=int(m["rank"]), world=int(m["world"]), local_rank=int(m["local_rank"]), local_world=int(m["local_world"]),
                node=int(m["node"]), nodes=int(m["nodes"]), devices=tuple(m.get("devices") or ()), config=dict(m["config"] or {}),
                data={k: dict(v) for k, v in (m.get("data") or {}).items()}, checkpoint=int(m.get("checkpoint") or 0),
                metrics=_metrics.decode(m.get("metrics") or {}), reports=int(m["reports"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise Corrupt(f"the controller of this run does not say what it should ({e!r}): use one release for both sides") from e


@dataclass(frozen=True)
class Preempt:
    """The machine will be taken away. Without training data sets the notice counts once ``report`` has been made."""

    reason: str
    grace: float  # seconds, from its arrival
    report: int


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _line(m: dict[str, Any]) -> bytes:
    return (_encode(m) + "\n").encode()


@lru_cache(maxsize=16)
def _form(names: tuple[str, ...], where: tuple[str, ...]) -> str:
    """A report, with places for its number and time, the value of each metric, its folder, and of each data set epoch, step and state."""
    data = ",".join([_encode(name).replace("%", "%%") + ':{"epoch":%d,"step":%d%s}' for name in where])
    if data:
        data = f',"data":{{{data}}}'
    return f'{{"report":{{"n":%d,"at":%d,"metrics":{{{_metrics.form(names)}}}%s{data}}}}}\n'


class Session:
    """The connection. Requests of several threads follow each other; answers are awaited without a limit, as the controller ends what hangs.

    No thread of ours listens: what the controller says is read by the calls that need it, so that none of it competes with the loop.
    """

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self.preempt: Preempt | None = None
        self._alive_at = self._looked_at = -math.inf
        self._asking = threading.Lock()  # one request at a time
        self._sending = threading.Lock()
        self._reading = threading.Lock()  # guards what follows: what the controller has said
        self._buf = bytearray()  # the beginning of a line
        self._answered = 0  # reports
        self._failed: Error | None = None  # of the first that was not kept, until it is raised
        self._number = 0  # checkpoint of the report answered last
        self._answer: dict[str, Any] | None = None  # to restore
        self._lost: tuple[str, str] | None = None  # code and text
        self._like: tuple[list[str], int, Shard, Callable[..., bytes]] | None = None  # see again()
        self._quiet = False  # reports are in the pipe that came after the last line
        #: Where a data set stands, for loops that take batches ahead; else it is the shard's own place.
        self.positions: dict[str, Callable[[], Place]] = {}
        self._restored: Path | None = None
        self._restoring = False  # it was asked for
        self._done = False
        self.failed = False  # with an exception that nobody caught

        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(path)
        except OSError as e:
            self._sock.close()
            raise Unavailable(f"the controller of this run does not answer ({path}: {e.strerror or e}): the run is over, or {ENV_SOCKET} was inherited from one; unset it to run without") from e
        there, self._pipe = socket.socketpair()
        try:
            self._pipe.setblocking(False)
            hello = {
                "version": VERSION, "run": os.environ.get(ENV_RUN, ""), "attempt": _number(ENV_ATTEMPT, 1), "rank": _number("RANK", 0),
                "pid": self.pid, "client": f"python {__version__}",
            }  # fmt: skip
            with contextlib.suppress(OSError):  # it hung up: the answer says why
                socket.send_fds(self._sock, [_line({"hello": hello})], [there.fileno()])  # all of it: the socket is new
            self.welcome = self._hello()
        except BaseException:
            self._sock.close()
            self._pipe.close()
            raise
        finally:
            there.close()
        self.reports = self.welcome.reports  # made so far

    def _hello(self) -> Welcome:
        lines: list[bytes] = []
        while not lines and self._lost is None:
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                data = b""
            lines = self._lines(data)
        first = _message(lines[0]) if lines else {}
        if "refused" in first:
            raise _fault(first["refused"], "the controller of this run refuses this worker")
        if "welcome" not in first:
            raise Unavailable("the controller of this run is gone: it ended, or was killed, before it took this worker")
        welcome = Welcome.of(first["welcome"])
        self._answered = welcome.reports
        for line in lines[1:]:
            self._take(line)
        return welcome

    # The loop's side.

    @property
    def rank(self) -> int:
        return self.welcome.rank

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """Data sets of the run by name: ``{"socket": path, "eval": bool}``."""
        return self.welcome.data

    def noticed(self) -> bool:
        """The machine will be taken away: true from the same step on, on every rank."""
        training = [s for s in opened.values() if not s.eval]
        if training:
            self.check()
            return any(s.noticed for s in training)
        self._look()
        self.check()
        notice = self.preempt
        return notice is not None and self.reports >= notice.report

    def alive(self, step: int | None = None) -> None:
        """The loop gets somewhere. Says so, and looks whether the controller is there, at most once a second; between is the cost of reading a clock. Raises as :meth:`check` does."""
        now = time.monotonic()
        if now - self._alive_at >= 1:
            self._alive_at = now
            self._look()
            self.check()
            self._send({"alive": {"step": step} if step else {}})
        elif self._lost is not None:
            self.check()

    def again(self, metrics: Mapping[str, Any]) -> bool:
        """Makes a report like the last line of one: of the same metrics, floats and ints, without files, in an epoch of the one training data set. False: it is not like that, and is not made.

        Nearly all are. It is left in the pipe, for the controller to find soon: a line would wake that, which takes longer than all else. And after a step of the user's whatever runs is slow, so a report is made by few functions.
        """
        like = self._like
        if like is None or type(metrics) is not dict:
            return False
        names, count, shard, pack = like
        last = shard.given
        if last is None or count != len(opened) or len(metrics) != len(names):
            return False
        try:
            values = [metrics[k] for k in names]
        except KeyError:
            return False
        for v in values:
            if type(v) is not float and type(v) is not int:
                return False
        with self._asking:
            now = time.monotonic()
            if self.reports - self._answered >= _UNREAD or now - self._looked_at >= 1 or self._failed is not None or self._lost is not None or self.positions or self._like is not like:
                return False
            try:
                self._pipe.send(pack(self.reports + 1, last.epoch, last.step + 1, time.time_ns(), *values))
            except (OSError, struct.error, OverflowError):  # it is full, or nobody's; a number is too large: a line says so
                return False
            self.reports += 1
            self._quiet = True
            self._alive_at = now
        return True

    def report(self, names: tuple[str, ...], values: tuple[float | str, ...], directory: str) -> int:
        """Makes the next report. ``names`` and ``values`` of its metrics: see ``_metrics``. ``directory``: "", or an absolute path. Returns the checkpoint's number, 0 where this rank gave no files.

        With files it waits until they are kept, and where there are no training data sets until the report is; else it returns when that is sent: an error
        of it is raised by a later one, at most 64 reports or a second on. It says where every training data set stands, and with files the state there.
        """
        with self._asking:
            now = time.monotonic()
            if self.reports - self._answered >= _UNREAD or now - self._looked_at >= 1:
                self._looked_at = now
                self._look()
            if self._failed is not None or self._lost is not None:
                self._settle(0)
                self.check()
            n = self.reports + 1
            where: tuple[str, ...] = ()
            items: list[Any] = [n, time.time_ns(), *values, f',"dir":{_encode(directory)}' if directory else ""]
            for name, s in opened.items():
                if s.eval:
                    continue
                place = self.positions[name]() if name in self.positions else s.place()
                where += (name,)
                items += place.at()
                items.append(f',"state":{_encode(summed(place.state()))}' if directory else "")
            self._say((_form(names, where) % tuple(items)).encode())
            self.reports = n
            self._alive_at = now
            self._like = None
            if len(where) == 1 and 8 * (4 + len(names)) <= _MAX_QUIET and all(map(str.isascii, names)):
                self._like = sorted(names), len(opened), opened[where[0]], struct.Struct(f"<4Q{len(names)}d").pack
            if directory or not where:  # without data a notice counts from a report on, which is the controller's to say
                return self._settle(n)
            if n - self._answered > AHEAD:
                self._settle(n - AHEAD)
            return 0

    def _settle(self, n: int) -> int:
        """Waits for the answers to all reports up to ``n``, and raises the first error of those that were answered. Returns the last one's checkpoint."""
        if self._answered < n:
            if self._quiet:
                self._send({"alive": {}})  # for it to look into the pipe
            self._until(lambda: self._answered >= n)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        if self._answered < n:
            self.check()
        return self._number

    def restore(self) -> Path | None:
        """The folder with the files of the checkpoint that the group goes on from; None where there is none. Asked once."""
        if not self.welcome.checkpoint:
            return None
        with self._asking:
            if self._restored is None:
                self._look()
                self.check()
                self._answer, self._restoring = None, True
                self._send({"restore": {}})
                self._until(lambda: self._answer is not None)
                a = self._answer
                if a is None:
                    self.check()
                    return None
                if a.get("error"):
                    raise _fault(a["error"], f"checkpoint {self.welcome.checkpoint}")
                if not a.get("dir"):
                    return None
                self._restored = Path(a["dir"])
            return self._restored

    def done(self, failure: BaseException | None = None) -> None:
        """The loop has returned, or failed; the process ends next. The first call counts."""
        if self._done or self.pid != os.getpid():
            return
        self._done, self.failed = True, failure is not None
        if failure is None:
            with contextlib.suppress(Error):  # of a report: the controller knows
                self._settle(self.reports)
        m: dict[str, Any] = {}
        if failure is not None:
            trace = "".join(traceback.format_exception(type(failure), failure, failure.__traceback__))
            text = str(failure) if isinstance(failure, Error) else f"{type(failure).__name__}: {failure}".removesuffix(": ")
            code = failure.code if isinstance(failure, Error) else "canceled" if isinstance(failure, KeyboardInterrupt) else "user_code"
            m["error"] = {"code": code, "text": _short(text, 1 << 16), "trace": _short(trace, 1 << 18)}
        with contextlib.suppress(Error):  # it is gone already: the process ends anyway
            self._send({"done": m})

    def check(self) -> None:
        """Raises if the controller is known to be gone: nobody would hear of what is trained from there on."""
        lost = self._lost
        if lost is not None:
            raise error(*lost)

    # The controller's side.

    def _send(self, m: dict[str, Any]) -> None:
        self._say(_line(m))

    def _say(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            raise Invalid(f"a message of {len(line)} bytes for the controller: metrics and states take at most {MAX_LINE} together")
        with self._sending:
            self._quiet = False
            try:
                self._sock.sendall(line)
            except OSError as e:
                self._look()  # it may have said why
                raise self._lose("unavailable", _GONE) from e

    def _look(self) -> None:
        """Takes what the controller has said. Where another thread is at it, that one does."""
        if self._lost is None and self._reading.acquire(blocking=False):
            try:
                self._receive(socket.MSG_DONTWAIT)
            finally:
                self._reading.release()

    def _until(self, ready: Callable[[], bool]) -> None:
        """Waits until something was said, or the controller is gone."""
        while not ready() and self._lost is None:
            with self._reading:
                if not ready() and self._lost is None:  # another thread may have read it
                    self._receive(0)

    def _receive(self, flags: int) -> None:
        """Takes what comes next."""
        try:
            data = self._sock.recv(4096, flags)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and not self._buf:  # answers as nearly all are
            n = data.count(b"\n")
            if data == b"".join([_KEPT % i for i in range(self._answered + 1, self._answered + 1 + n)]):
                self._answered += n
                self._number = 0
                return
        try:
            for line in self._lines(data):
                self._take(line)
        except Error as e:
            self._lose(e.code, str(e))

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` ends; b"": the connection has ended."""
        if not data:
            self._lose("unavailable", _GONE)
            return []
        lines = data.split(b"\n")
        rest = lines.pop()
        if self._buf and lines:
            lines[0] = bytes(self._buf) + lines[0]
            self._buf.clear()
        if rest:
            self._buf += rest
            if len(self._buf) > 4 * MAX_LINE:
                raise Corrupt("what the controller says is damaged: a line without an end")
        return lines

    def _take(self, line: bytes) -> None:
        m = _message(line)
        if "reported" in m:
            a = m["reported"] or {}
            if a.get("n") != self._answered + 1:
                raise Corrupt(f"the controller answers report {a.get('n')} where report {self._answered + 1} is due: use one release for both sides")
            self._answered += 1
            if a.get("error") and self._failed is None:
                self._failed = _fault(a["error"], f"report {self._answered}")
            self._number = int(a.get("checkpoint") or 0)
        elif "restored" in m and self._restoring:
            self._answer = m["restored"] or {}
        elif "preempt" in m:
            p = m["preempt"]
            self.preempt = Preempt(str(p.get("reason", "")), float(p.get("grace") or 0), int(p.get("report") or 0))
        elif "refused" in m:
            raise _fault(m["refused"], "the controller gave this worker up")
        else:
            raise Corrupt(f"the controller says {', '.join(m) or 'nothing'}, which this release does not know: use one release for both sides")

    def _lose(self, code: str, text: str) -> Error:
        """The connection is of no use any more; the first reason counts, and is returned."""
        if self._lost is None:
            self._lost = (code, text)
        return error(*self._lost)


def _message(line: bytes) -> dict[str, Any]:
    try:
        m = json.loads(line)
    except ValueError:
        m = None
    if not isinstance(m, dict):
        raise Corrupt("what the controller says is damaged: use one release for both sides")
    return m


#: A report's answer, without an error or a checkpoint, byte for byte as Go writes it.
_KEPT = b'{"reported":{"n":%d}}\n'

_GONE = "the controller of this run is gone: it ended or was killed. `penstock resume` goes on from the last checkpoint"

#: The data sets of the run that this process has opened, by name. Those closed since are among them: what they gave stays given.
opened: dict[str, Shard] = {}

_lock = threading.Lock()
_session: Session | None = None


def session() -> Session | None:
    """The connection of this process to the controller of its run, made with the first call; None outside of a run.

    Only the process that the controller started may have it: processes that it forks or starts get an ``Unsupported`` error.
    """
    global _session
    if _session is not None:
        return _session
    path = os.environ.get(ENV_SOCKET)
    if not path:
        return None
    with _lock:
        owner = os.environ.get(_ENV_OWNER)
        if owner is not None and owner != str(os.getpid()):
            raise Unsupported(
                f"this process (pid {os.getpid()}) was started by worker {owner} of the run: shards, reports and contexts are the worker's own. "
                "Take batches in the worker's main process (a DataLoader with num_workers=0), or hand on what the child needs"
            )
        if _session is None:
            _session = Session(path)
            os.register_at_fork(after_in_child=_forget)
            os.environ[_ENV_OWNER] = str(os.getpid())
            _watch(_session)
        return _session


def _forget() -> None:
    """A process that a worker forks is none: it is told so (see :func:`session`)."""
    global _session
    _session = None


def _watch(s: Session) -> None:
    """Says how the process ends, and lets it be asked what it is doing."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(STACKS_SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN):  # ignored: the run was started in the background
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or no file
            faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=True)
    before = sys.excepthook

    def hook(kind: type[BaseException], e: BaseException, tb: TracebackType | None) -> None:
        before(kind, e, tb)
        s.done(e)

    sys.excepthook = hook
    atexit.register(s.done)


def failed() -> bool:
    """An exception that nobody caught ends this process, as far as that is known."""
    return _session is not None and _session.failed or getattr(sys, "last_type", None) is not None


def _fault(e: Mapping[str, Any], what: str) -> Error:
    return error(str(e.get("code") or "unknown"), f"{what}: {e.get('text') or 'no reason given'}")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} is {text!r} in the environment: a whole number is needed") from None


def _short(text: str, most: int) -> str:
    """Its end, where it is too long."""
    return text if len(text) <= most else "..." + text[-most:]
