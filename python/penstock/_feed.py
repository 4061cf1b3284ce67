"""The consumer of ``shard/feed``, version 3: frames over a unix socket, batches in a ring of shared memory.

One thread at a time calls :meth:`Feed.next`; memory may be let go in any thread. There is no thread of our own: what is read
ahead lies in the ring, and its frames in the socket.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import _state
from penstock._ahead import Ahead
from penstock._batch import _ALIGN, Head, decode_form
from penstock._errors import CODES, Corrupt, Error, Invalid, Unavailable, Unsupported, error

_MAGIC = b"penstock"
VERSION = 3

_PREAMBLE = struct.Struct("<8sH")
_HEADER = struct.Struct("<B3sIQ")
_FREE_FRAME = struct.Struct("<B3xIQQ")
_BATCH = struct.Struct("<6Q6I")

# of the consumer
_RESTORE, _BEGIN, _MORE, _BYE, _FREE = 1, 2, 3, 4, 5
# of the data process
_WELCOME, _DONE, _STARTED, RECORD, TENSORS, END, OVER, _ERROR = 6, 7, 8, 9, 10, 11, 12, 13

_MAX_META = 256 << 20
_MAX_STATE = 16 << 20
_MAX_ROWS = 1 << 40
_MAX_RING = 1 << 46
_MAX_AHEAD = 1 << 10

_MAP_NORESERVE = 0x4000  # named by Python 3.13 and later

_TICK = 1  # seconds between looks at why nothing comes
_SOON = 1 << 19  # bytes of batches that are freed at once; fewer ride with the next request
_PINNED = 1  # flag of begin: pages of the ring stay where they are
_NOTICED = 1  # flag of a batch

_MANY, _MANY_BYTES = 16, 64 << 20  # batches in use when a warning comes: no loop uses that many

_AT_ONCE = 8  # batches that are decoded beside the one that is asked for

_PATIENCE = 5.0  # seconds without a batch while several are held, until a warning
_LONG_PATIENCE = 30.0  # while one is

_MORE_FRAME = _HEADER.pack(_MORE, b"\0\0\0", 0, 0)
_DAMAGED = "the feed is damaged: a frame that does not decode"


class _Memory(np.ndarray):  # type: ignore[type-arg]
    """The bytes of one batch. All views of the batch have it as their base, so it goes with the last of them."""

    __slots__ = ()


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """Tells when the memory of a batch is gone."""

    __slots__ = ("feed", "length", "offset")

    feed: Feed
    offset: int
    length: int


def _gone(lease: _Lease) -> None:
    feed = lease.feed
    feed.held.pop(lease.offset, None)
    feed.held_bytes -= lease.length
    if feed.dead:
        return
    feed.pending.append(_FREE_FRAME.pack(_FREE, 8, 0, lease.offset))
    feed.freed += lease.length
    if feed.waiting or feed.freed >= _SOON:
        feed.flush()


class Item:
    """What :meth:`Feed.next` gives: a batch of kind RECORD or TENSORS, or the END of an epoch."""

    __slots__ = ("epoch", "heads", "kind", "lineage", "made", "memory", "noticed", "position", "real", "rows", "samples", "step")

    kind: int
    position: bytes  # the state after it
    epoch: int
    step: int
    rows: int
    real: int
    noticed: bool
    samples: bytes
    lineage: bytes
    heads: tuple[Head, ...]
    memory: NDArray[np.uint8] | None  # None: no bytes
    made: tuple[object, Any] | None  # who made a batch of it that was not given yet, and the batch


_LOOPS = ("penstock", "torch", "torchdata", "lightning", "lightning_fabric", "pytorch_lightning")


def _of_user() -> int:
    """The stacklevel, for a warning of our caller, of the first frame that is neither ours nor of a library that loops for the user."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LOOPS:
        level, frame = level + 1, frame.f_back
    return level


_live: weakref.WeakSet[Feed] = weakref.WeakSet()


class Feed:
    """A rank of a data process that serves the socket at ``path``.

    It waits up to ``wait`` seconds for one that is not there yet, and for a rank that another consumer has to become free. At most ``prefetch``
    batches are ready beside the one that is being used; None: see :class:`Ahead`. ``explain`` adds to the error of a data process that is gone.
    """

    def __init__(self, path: str, rank: int, *, wait: float = 10.0, prefetch: int | None = None, explain: Callable[[], str] | None = None) -> None:
        if not hasattr(socket, "recv_fds") or not hasattr(socket, "MSG_CMSG_CLOEXEC") or not hasattr(fcntl, "F_GET_SEALS"):
            raise Unsupported("batches in shared memory need Linux")
        if not 0 <= rank < 1 << 31:
            raise Invalid(f"no rank {rank}: ranks begin at 0")
        self.path, self.rank = path, rank
        self.ahead = Ahead(prefetch, _MAX_AHEAD - 1)
        self.begun = self.over = self.closed = self.forked = False
        self.dead = False  # nothing is sent any more
        self.pinned = False  # asked for with the first batch: the ring's pages stay where they are
        self.failed: Error | None = None
        self.waiting = False
        self.held: dict[int, _Lease] = {}  # batches that have views, by their offset
        self.held_bytes = 0
        self.pending: deque[bytes] = deque()  # frames to send
        self.freed = 0  # bytes of batches that they free
        self._sending = threading.Lock()
        self._explain = explain
        self._buf = bytearray()  # received
        self.decoded: deque[Item] = deque()  # batches that come next
        self._fds: list[int] | None = None  # a list: descriptors are wanted
        self._form: tuple[bytes, int, tuple[Head, ...]] = (b"", -1, ())
        self._taken = False  # the frame that was waited for
        self._warned = False
        self._pid = os.getpid()
        until = time.monotonic() + wait
        while True:
            try:
                self._dial(until)
                break
            except Error as e:
                if e.code not in ("unavailable", "exists") or time.monotonic() >= until:
                    raise
            time.sleep(0.01)
        _live.add(self)

    # -- the beginning

    def _dial(self, until: float) -> None:
        self._buf.clear()
        self._fds = []
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(until - time.monotonic(), 1.0))
            try:
                sock.connect(self.path)
            except OSError as e:
                raise self._at(Unavailable, f"no data process serves this socket: {e.strerror or e}") from e
            _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                raise self._at(Invalid, f"the data process belongs to user {uid}, this one to user {os.geteuid()}: both must be of one user")
            self._sock = sock
            # One that refuses at once may not read it: its answer says more than a failure to write.
            with contextlib.suppress(OSError):
                sock.sendall(_PREAMBLE.pack(_MAGIC, VERSION) + struct.pack("<I", self.rank))
            self._need(_PREAMBLE.size)
            magic, version = _PREAMBLE.unpack_from(self._buf)
            if magic != _MAGIC:
                raise self._at(Invalid, "what is at the other end of the socket is no data process of a feed")
            if version != VERSION:
                raise self._at(Unsupported, f"the data process speaks version {version} of the feed, this client version {VERSION}: use one release for both")
            del self._buf[: _PREAMBLE.size]
            kind, meta = self._frame(_MAX_STATE)
            if kind == _ERROR:
                raise _remote(meta)
            if kind != _WELCOME:
                raise Corrupt(_DAMAGED)
            self._welcome(meta)
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TICK, 0))
        except BaseException:
            sock.close()
            raise
        finally:
            for fd in self._fds or ():
                os.close(fd)
            self._fds = None

    def _at(self, kind: type[Error], text: str) -> Error:
        return kind(f"{self.path}: {text}")

    def _welcome(self, meta: bytes) -> None:
        try:
            w = json.loads(meta)
            self._extent = _state.number(w["samples"], -1), _state.number(w["batch"], 1), w["rest"] is True
            ring = _state.number(w["ring"], 1, _MAX_RING)
            self.ahead.offered = _state.number(w.get("ahead", 0))
            state = json.dumps(w["state"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise Corrupt("the feed is damaged: no welcome") from e
        self.base: dict[str, Any] = _state.parse(state)
        self.position: bytes | None = None  # what has changed in it
        if not self._fds or len(self._fds) != 1:
            raise self._at(Unsupported, "the data process gave no shared memory: use one release for both, and no proxy in between")
        fd = self._fds[0]
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < ring:
            raise Corrupt(f"the feed is damaged: its memory may shrink, or has less than the {ring} bytes it says")
        try:
            self.ring = mmap.mmap(fd, ring, mmap.MAP_SHARED | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError, OverflowError) as e:
            raise self._at(
                Unsupported, f"the ring of {ring} bytes cannot be mapped ({e}): raise the limit of address space (ulimit -v), or give the data process less memory"
            ) from e
        self.much = ring // 4  # to hold, however few batches: what the data process may take in all
        with contextlib.suppress(OSError):
            self.ring.madvise(mmap.MADV_DONTDUMP)

    def steps(self) -> int | None:
        """Batches of the epoch in all: those given, and what is left of it. None where that is not known."""
        samples, batch, rest = self._extent
        if samples < 0:
            return None
        s = _state.Place(self.base, self.position).state()
        left: int = min(samples, s.get("length") or samples) - s["sample"]
        n: int = s["step"] + left // batch
        return n + 1 if rest and left % batch else n

    # -- frames

    def _receive(self, deadline: float | None = None) -> None:
        """Adds what comes to the buffer."""
        began = None
        while True:
            try:
                if self._fds is None:
                    data = self._sock.recv(1 << 16)
                else:
                    data, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 8, socket.MSG_CMSG_CLOEXEC)
                    self._fds += fds
            except (BlockingIOError, TimeoutError) as e:
                if self._fds is not None:
                    raise self._at(Unavailable, "the data process does not answer") from e
                now = time.monotonic()
                if deadline is not None and now > deadline:
                    raise self._at(Unavailable, "the data process does not answer") from e
                began = began or now - _TICK
                self._patience(now - began)
                continue
            except OSError as e:
                self._lost(e)
            if not data:
                self._lost(None)
            self._buf += data
            return

    def _lost(self, cause: OSError | None) -> None:
        if self.closed:
            raise Invalid(f"the shard of rank {self.rank} is closed")
        why = "it ended the connection" if cause is None or isinstance(cause, ConnectionError) else str(cause)
        if self._fds is not None:
            raise self._at(Unavailable, f"the data process is gone ({why})") from cause
        if self._explain:
            why = self._explain() or why
        s = self.state()
        raise Unavailable(
            f"rank {self.rank}: the data process is gone ({why}): start it again, and restore every rank from the same state: the last committed one. "
            f"state_dict() has that after the last batch given (epoch {s['epoch']}, step {s['step']})"
        ) from cause

    def _patience(self, waited: float) -> None:
        """Says that views may be what is waited for."""
        n, _ = self._in_use()
        if n and waited >= (_PATIENCE if n > 1 else _LONG_PATIENCE):
            self._warn(f"no batch for {waited:.0f} s, while ")

    def _warn(self, begin: str) -> None:
        """Once, of the line that asked for a batch."""
        if self._warned:
            return
        self._warned = True
        n, size = self._in_use()
        warnings.warn(
            f"rank {self.rank}: {begin}{n} {'batch is' if n == 1 else 'batches are'} still in use ({size / (1 << 20):.1f} MiB): "
            "arrays and tensors are views of the data process's memory, which comes back with the last view of a batch, and grows without a limit of its own until then. "
            "Keep copies: {k: v.clone() for k, v in batch.items()} of tensors, v.copy() of arrays; or drop batches sooner",
            RuntimeWarning,
            stacklevel=_of_user(),
        )

    def _need(self, n: int, deadline: float | None = None) -> None:
        while len(self._buf) < n:
            self._receive(deadline)

    def _frame(self, most: int = _MAX_META, deadline: float | None = None) -> tuple[int, bytes]:
        """The next frame. An interrupt while it waits loses nothing."""
        self._need(16, deadline)
        kind, zeros, n, body = _HEADER.unpack_from(self._buf)
        if body or zeros != b"\0\0\0":
            raise Corrupt("the feed is damaged: no header of a frame")
        if n > most:
            raise Corrupt(f"the feed is damaged: a frame of kind {kind} with {n} bytes of meta; at most {most}")
        self._need(16 + n, deadline)
        meta = bytes(self._buf[16 : 16 + n])
        self._taken = True
        del self._buf[: 16 + n]
        return kind, meta

    def send(self, kind: int, meta: bytes = b"") -> None:
        self.pending.append(_HEADER.pack(kind, b"\0\0\0", len(meta), 0) + meta)
        self.flush()

    def flush(self) -> None:
        """Sends what is pending. Whoever finds that somebody else is sending leaves it to him; so does a callback in the midst of it."""
        while self.pending and self._sending.acquire(blocking=False):
            try:
                frames = []
                self.freed = 0
                while self.pending:
                    frames.append(self.pending.popleft())
                if not self.dead:
                    self._sock.sendall(b"".join(frames))
            except OSError:
                pass  # a data process that is gone is seen when reading
            finally:
                self._sending.release()

    # -- what a shard calls

    def usable(self) -> None:
        """Raises if nothing can come any more."""
        if self.forked:
            raise Invalid(
                f"this shard belongs to process {self._pid}, and this is a process that it forked: use the shard where it was opened "
                "(in a DataLoader num_workers=0: batches are made in parallel already), or open one here"
            )
        if self.closed:
            raise Invalid(f"the shard of rank {self.rank} is closed")
        if self.failed:
            raise type(self.failed)(str(self.failed), self.failed.code) from self.failed.__cause__

    def state(self) -> dict[str, Any]:
        """Where the job stands after ``position``: a state without its sum."""
        return self.base if self.position is None else _state.position(self.position, self.base)

    def restore(self, state: str) -> None:
        self.usable()
        if self.begun:
            raise Invalid(f"restore: rank {self.rank} has begun: restore before the first batch, or start the data process and all ranks again")
        raw = state.encode()
        if len(raw) > _MAX_STATE:
            raise Invalid(f"restore: the state takes {len(raw)} bytes; at most {_MAX_STATE}")
        self.send(_RESTORE, raw)
        try:
            kind, meta = self._frame(_MAX_STATE, time.monotonic() + 60)
        except Error as e:
            self.fail(e)
            raise
        if kind == _ERROR:
            raise _remote(meta)
        if kind != _DONE:
            self.fail(Corrupt(_DAMAGED))
            self.usable()
        self.base, self.position = _state.parse(raw), None

    def fail(self, e: Error) -> None:
        self.failed = e
        self.dead = True

    def next(self) -> Item | None:
        """What comes next; None: no epoch follows. It waits for it."""
        if self.forked or self.closed or self.failed:
            self.usable()
        if self.over:
            return None
        self._ask()
        if self.decoded:
            return self._count(self.decoded.popleft())
        self.waiting = True
        try:
            while True:
                self._taken = False
                kind, meta = self._frame()
                if kind == _STARTED:
                    if len(meta) > _MAX_STATE:
                        raise Corrupt(_DAMAGED)
                    self.base, self.position = _state.parse(meta), None
                    continue
                break
            if kind == TENSORS or kind == RECORD:
                item = self._batch(kind, meta)
                self._decode()
            elif kind == END:
                item = Item()
                item.kind, item.position, item.memory = END, meta, None
                _state.position(meta, self.base)
            elif kind == OVER:
                self.over = True
                return None
            elif kind == _ERROR:
                raise _remote(meta)
            else:
                raise Corrupt(f"the feed is damaged: a frame of kind {kind}")
            return self._count(item)
        except Error as e:
            if not self.closed:
                self.fail(e)
            raise
        except BaseException:
            if self._taken:  # a frame, which is lost
                self.fail(Error(f"rank {self.rank}: interrupted in the midst of a batch: open the shard again, and restore the state", "canceled"))
            raise
        finally:
            self.waiting = False

    def _count(self, item: Item) -> Item:
        """An item that is given: it is asked for no more, and is one more in use."""
        self.ahead.take(0 if item.memory is None else len(item.memory), time.monotonic())
        if (self.held_bytes > _MANY_BYTES or self.held_bytes > self.much) and not self._warned:
            n, size = self._in_use()
            if size > self.much or (size > _MANY_BYTES and n > _MANY):
                self._warn("")
        return item

    def _in_use(self) -> tuple[int, int]:
        """Batches, and their bytes, that were given and have views: without those that are decoded ahead."""
        ahead = [len(x.memory) for x in self.decoded if x.memory is not None]
        return len(self.held) - len(ahead), self.held_bytes - sum(ahead)

    def _decode(self) -> None:
        """Decodes batches that came with the one before. After a step of the user's the first use of any code is slow, ten and more times the second: so several at once cost little more than one."""
        buf = self._buf
        while len(buf) >= 16 and len(self.decoded) < _AT_ONCE:
            kind, zeros, n, body = _HEADER.unpack_from(buf)
            if (kind != TENSORS and kind != RECORD) or body or zeros != b"\0\0\0" or len(buf) < 16 + n:
                return
            try:
                item = self._batch(kind, bytes(buf[16 : 16 + n]))
            except Corrupt:
                return  # raised in its turn
            del buf[: 16 + n]
            self.decoded.append(item)

    def _ask(self) -> None:
        n = self.ahead.ask()
        if not n:
            return
        if self.begun:
            self.pending.append(_MORE_FRAME * n)
        else:
            self.begun = True
            self.pending.append(_HEADER.pack(_BEGIN, b"\0\0\0", 8, 0) + struct.pack("<II", n, _PINNED if self.pinned else 0))
        self.ahead.asked += n  # an interrupt before this line asks twice, one after it loses nothing
        self.flush()

    def ready(self) -> bool:
        """Whether something is there that :meth:`next` would not wait for (or the most of it, or the end)."""
        if self.dead or not self.begun:
            return False
        if self.decoded or len(self._buf) >= 16:
            return True
        self._ask()
        poll = select.poll()  # select has no room for large descriptors
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def address(self) -> int:
        """Where the ring is mapped."""
        return int(np.frombuffer(self.ring, np.uint8, 1).__array_interface__["data"][0])

    def _batch(self, kind: int, meta: bytes) -> Item:
        if len(meta) < 72:
            raise Corrupt(_DAMAGED)
        item = Item()
        item.kind, item.made = kind, None
        (item.epoch, item.step, item.rows, item.real, offset, length, flags, a, b, c, d, zero) = _BATCH.unpack_from(meta)
        a += 72
        b += a
        c += b
        if c + d != len(meta) or zero or item.rows > _MAX_ROWS or item.real > item.rows or (kind == RECORD and d) or not a > 72:
            raise Corrupt(_DAMAGED)
        item.noticed = flags & _NOTICED != 0
        item.position = meta[72:a]
        item.samples = meta[a:b]
        item.lineage = meta[b:c]
        form = meta[c:]
        if length == 0:
            item.memory = None
        else:
            if offset % _ALIGN or offset + length > len(self.ring) or offset in self.held:
                raise Corrupt("the feed is damaged: a batch outside of the ring, or in memory that is in use")
            memory: Any = _Memory(length, np.uint8, self.ring, offset)
            lease = _Lease(memory, _gone)
            lease.feed, lease.offset, lease.length = self, offset, length
            self.held[offset] = lease
            self.held_bytes += length
            item.memory = memory
        if kind == TENSORS:
            known, size, heads = self._form
            if form != known or size != length:
                heads = decode_form(form, length)
                self._form = form, length, heads
            item.heads = heads
        else:
            item.heads = ()
        return item

    def close(self) -> None:
        """Gives the rank up for good: the others go on without it. What was given out stays valid."""
        if self.closed:
            return
        self.closed = True
        if not self.forked:
            if not self.dead:
                with contextlib.suppress(OSError):
                    self._sock.settimeout(1.0)
                self.send(_BYE)
            self.dead = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
            self._sock.close()
        self.decoded.clear()
        _live.discard(self)

    def drop(self) -> None:
        """Ends the connection without a goodbye: the rank counts as lost."""
        self.closed = self.dead = True
        self.decoded.clear()
        self._sock.close()


def _remote(meta: bytes) -> Error:
    """The error of a frame: its code in one byte, and its text."""
    code = CODES[meta[0]] if meta and meta[0] < len(CODES) else "unknown"
    text = meta[1 : 64 << 10].decode("utf-8", "replace") or "without a text"
    return error(code, f"data process: {text}")


def _in_child() -> None:
    """A forked process takes nothing of its parent's: neither its batches nor its connection."""
    for feed in list(_live):
        feed.forked = feed.dead = True
        with contextlib.suppress(OSError):
            feed._sock.close()  # the parent's stays open


def _at_exit() -> None:
    """A program that ends as it should gives its ranks up; one that an exception ends loses them."""
    failed = getattr(sys, "last_value", None) is not None
    for feed in list(_live):
        if failed:
            feed.drop()
        else:
            feed.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
