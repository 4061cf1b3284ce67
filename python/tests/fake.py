"""A data process in Python, for what the real one never does: it sends whatever a test gives it."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock._batch import NAMES

STATE: dict[str, Any] = {
    "version": 1, "order": 1, "plan": "ab" * 32, "data": "cd" * 32, "seed": 7, "epoch": 0, "step": 0, "sample": 0, "global_batch": 4,
    "weights": [[0, [1]]], "sources": [{"name": "data", "mode": "window", "lanes": 2, "window": 16, "pass": 0, "pos": [[0, 0], [0, 0]]}],
}  # fmt: skip


def uvarint(v: int) -> bytes:
    out = b""
    while v > 0x7F:
        out += bytes([v & 0x7F | 0x80])
        v >>= 7
    return out + bytes([v])


def varint(v: int) -> bytes:
    return uvarint(((v << 1) ^ (v >> 63)) & ((1 << 64) - 1))


def frame(kind: int, meta: bytes = b"", body: int = 0) -> bytes:
    return struct.pack("<B3xIQ", kind, len(meta), body) + meta


def position(step: int, epoch: int = 0) -> bytes:
    return b"".join(map(uvarint, (epoch, step, 4 * step, 4, 0, 1, 0, 1, 0, 0, step, 0, 0)))


def form(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> bytes:
    b = uvarint(len(tensors))
    for name, dtype, shape in tensors:
        b += uvarint(len(name.encode())) + name.encode() + bytes([NAMES.index(dtype)]) + uvarint(len(shape)) + b"".join(map(uvarint, shape))
    return b


def batch(step: int, offset: int, length: int, form_: bytes, rows: int = 4, samples: bytes = b"\0", lineage: bytes = b"", flags: int = 0, kind: int = 10, epoch: int = 0) -> bytes:
    p = position(step + 1, epoch)
    head = struct.pack("<6Q6I", epoch, step, rows, rows, offset, length, flags, len(p), len(samples), len(lineage), len(form_), 0)
    return frame(kind, head + p + samples + lineage + form_)


class Ring:
    """A memfd as the real one's."""

    def __init__(self, size: int = 1 << 20, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL) -> None:
        self.fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.size = size
        self.bytes = mmap.mmap(self.fd, size)
        self.array = np.frombuffer(self.bytes, np.uint8)

    def __del__(self) -> None:
        os.close(self.fd)


class Peer:
    """A connection, behind the preamble."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buf = b""

    def welcome(self, memory: Ring, state: dict[str, Any] = STATE, **more: Any) -> None:
        self.sock.sendall(struct.pack("<8sH", b"penstock", 3))
        meta = json.dumps({"rank": 0, "samples": 32, "batch": 4, "rest": False, "state": state, "ring": memory.size, **more}).encode()
        socket.send_fds(self.sock, [frame(6, meta)], [memory.fd])

    def frame(self) -> tuple[int, bytes]:
        """The next of the consumer; kind 0: the connection ended."""
        while len(self.buf) < 16 or len(self.buf) < 16 + struct.unpack_from("<I", self.buf, 4)[0]:
            try:
                data = self.sock.recv(1 << 16)
            except OSError:
                return 0, b""
            if not data:
                return 0, b""
            self.buf += data
        n = struct.unpack_from("<I", self.buf, 4)[0]
        kind, meta, self.buf = self.buf[0], self.buf[16 : 16 + n], self.buf[16 + n :]
        return kind, meta

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))


class Fake:
    """Serves one connection after another with ``script``, which gets the peer behind its preamble."""

    def __init__(self, folder: Path, script: Callable[[Peer], None]) -> None:
        self.path = str(folder / "fake")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.script = script
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with sock:
                hello = sock.recv(14, socket.MSG_WAITALL)
                if len(hello) < 14:
                    continue
                try:
                    self.script(Peer(sock))
                except (BrokenPipeError, ConnectionResetError):
                    pass
                except BaseException as e:
                    self.failed = e

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)
        os.unlink(self.path)
        assert not self.thread.is_alive()
        if self.failed:
            raise self.failed
