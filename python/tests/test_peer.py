"""The consumer against a data process that does what the real one never does."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import signal
import socket
import struct
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import fake
import penstock
from fake import Fake, Peer, Ring
from penstock import _feed

X = fake.form([("x", "float32", (4,))])


def numbers(ring: Ring, offset: int, values: list[float]) -> None:
    ring.array[offset : offset + 4 * len(values)] = np.array(values, np.float32).view(np.uint8)


def test_credits_and_frees(tmp_path: Path) -> None:
    """What is asked for is bounded; memory is freed with the last view, once, wherever that is dropped."""
    ring = Ring()
    seen: list[tuple[int, bytes]] = []
    got = threading.Condition()

    def script(p: Peer) -> None:
        p.welcome(ring)
        kind, meta = p.frame()
        assert (kind, meta) == (2, struct.pack("<II", 4, 0))  # 3 ahead, and the one that the first call takes
        p.send(fake.frame(8, _json(fake.STATE)))
        for i in range(4):
            numbers(ring, 4096 * i, [i] * 4)
            p.send(fake.batch(i, 4096 * i, 64, X))
        while True:
            f = p.frame()
            with got:
                seen.append(f)
                got.notify()
            if f[0] in (0, 4):
                return

    def wait(n: int) -> None:
        with got:
            assert got.wait_for(lambda: len(seen) >= n, 20), seen

    with Fake(tmp_path, script) as f:
        with penstock.connect(f.path, prefetch=3) as s:
            assert len(s) == 8 and s.state_dict()["step"] == 0 and not s.begun
            it = s.iter_batches()
            a = next(it)["x"]
            assert s.step == 1 and s.begun and a.tolist() == [0] * 4 and a.flags.writeable
            view = a[1:].reshape(3, 1).T
            b = next(it)
            wait(1)
            assert seen == [(3, b"")]  # of the first; nothing is free
            del a
            gc.collect()
            c = next(it)
            wait(2)
            assert seen[1:] == [(3, b"")]
            threads = [threading.Thread(target=lambda v: v.clear(), args=([view],))]
            del view
            for t in threads:
                t.start()
                t.join()
            del threads, t
            b["x"][:] = 7  # nobody else reads it
            assert c["x"].tolist() == [2] * 4
            d = next(it)
            wait(4)
            assert sorted(seen[2:]) == [(3, b""), (5, struct.pack("<Q", 0))]
            assert b["x"].tolist() == [7] * 4
            del b, c
            s._feed.flush()
            wait(6)
            assert sorted(seen[4:]) == [(5, struct.pack("<Q", 4096)), (5, struct.pack("<Q", 8192))]
            assert not seen[6:]
        wait(7)
        assert seen[6][0] == 4  # bye
        assert d["x"].tolist() == [3] * 4  # what was given out stays
    del d, it, s
    gc.collect()


def _json(v: object) -> bytes:
    import json

    return json.dumps(v).encode()


def test_large_batches_are_freed_at_once(tmp_path: Path) -> None:
    ring = Ring(8 << 20)
    freed = threading.Event()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(fake.batch(0, 0, 1 << 20, fake.form([("x", "uint8", (1 << 20,))])))
        while True:
            kind, meta = p.frame()
            if kind == 5:
                assert meta == bytes(8)
                freed.set()
            if kind in (0, 4):
                return

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        b = next(s.iter_batches())
        del b
        assert freed.wait(20)


def test_freed_while_waiting(tmp_path: Path) -> None:
    """Memory that another thread lets go comes back although the consumer waits: else both would wait."""
    ring = Ring()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(fake.batch(0, 0, 64, X))
        while p.frame()[0] != 5:
            pass
        p.send(fake.batch(1, 0, 64, X))
        while p.frame()[0] not in (0, 4):
            pass

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        it = s.iter_batches()
        kept = [next(it)]
        t = threading.Thread(target=lambda: (_until(lambda: s._feed.waiting), kept.clear()))
        t.start()
        assert next(it).step == 1
        t.join()


def _until(what: object) -> None:
    while not what():  # type: ignore[operator]
        time.sleep(0.001)


def test_batches_that_come_together_are_not_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning comes with the first batch that is one too many, and counts those that were given."""
    monkeypatch.setattr(_feed, "_MANY", 3)
    monkeypatch.setattr(_feed, "_MANY_BYTES", 64)
    ring = Ring()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(*(fake.batch(i, 64 * i, 64, X) for i in range(8)))
        while p.frame()[0] not in (0, 4):
            pass

    with Fake(tmp_path, script) as f, penstock.connect(f.path, prefetch=7) as s:
        it = s.iter_batches()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kept = [next(it) for _ in range(3)]
        assert s._feed.decoded
        with pytest.warns(RuntimeWarning, match="4 batches are still in use"):
            kept.append(next(it))


@pytest.mark.parametrize("keep, text", [(3, "3 batches are still in use"), (1, "1 batch is still in use")])
def test_kept_views_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, text: str) -> None:
    ring = Ring()
    go = threading.Event()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        for i in range(keep):
            p.send(fake.batch(i, 64 * i, 64, X))
        go.wait(30)
        p.send(fake.batch(keep, 64 * keep, 64, X))
        while p.frame()[0] not in (0, 4):
            pass

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        it = s.iter_batches()
        kept = [next(it) for _ in range(keep)]
        monkeypatch.setattr(_feed, "_PATIENCE", 0.5)  # from now on: those may take as long as they like
        monkeypatch.setattr(_feed, "_LONG_PATIENCE", 0.5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            t = threading.Thread(target=lambda: (_until(lambda: s._feed._warned), go.set()))
            t.start()
            kept.append(next(it))
            t.join()
        assert len(caught) == 1 and text in str(caught[0].message) and issubclass(caught[0].category, RuntimeWarning)


def test_interrupt_loses_nothing(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have programs in the background ignore it
    ring = Ring()
    go = threading.Event()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        half = fake.batch(0, 0, 64, X)
        p.send(half[:50])
        go.wait(30)
        p.send(half[50:])
        while p.frame()[0] not in (0, 4):
            pass

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        it = s.iter_batches()
        t = threading.Thread(target=lambda: (_until(lambda: len(s._feed._buf) == 50), signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)))
        t.start()
        with pytest.raises(KeyboardInterrupt):
            next(it)
        t.join()
        go.set()
        assert next(it).step == 0


def test_interrupt_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a frame was taken and is lost, no later one is given as if nothing had happened."""
    ring = Ring()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(fake.batch(0, 0, 64, X), fake.batch(1, 64, 64, X))
        while p.frame()[0] not in (0, 4):
            pass

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        it = s.iter_batches()
        with monkeypatch.context() as m:
            m.setattr(s._feed, "_batch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(it)
        for _ in range(2):
            with pytest.raises(penstock.Error, match="interrupted in the midst") as e:
                next(it)
        assert e.value.code == "canceled" and s.step == 0


@pytest.mark.parametrize(
    "hello, error, text",
    [
        (struct.pack("<8sH", b"penstock", 1), penstock.Unsupported, "version 1 of the feed, this client version 3"),
        (b"HTTP/1.1 400 Bad Request", penstock.Invalid, "no data process"),
        (b"pen", penstock.Unavailable, "gone"),
        (b"", penstock.Unavailable, "gone"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(13, b"\x03rank 7 is not served here"), penstock.NotFound, "data process: rank 7"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(7), penstock.Corrupt, "damaged"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(6, b"{"), penstock.Corrupt, "no welcome"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(6, b"[" * 100000), penstock.Corrupt, "no welcome"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(6, b'{"samples":1,"batch":1,"rest":false,"state":{},"ring":4096}'), penstock.Corrupt, "no state"),
        (struct.pack("<8sH", b"penstock", 3) + fake.frame(6, _json({"samples": 1, "batch": 1, "rest": False, "state": fake.STATE, "ring": 4096})), penstock.Unsupported, "no shared memory"),
        (struct.pack("<8sH", b"penstock", 3) + struct.pack("<B3xIQ", 6, 1 << 31, 0), penstock.Corrupt, "at most"),
    ],
)
def test_bad_hello(tmp_path: Path, hello: bytes, error: type[Exception], text: str) -> None:
    with Fake(tmp_path, lambda p: p.send(hello)) as f, pytest.raises(error, match=text):
        penstock.connect(f.path, wait=0)


def test_bad_rings(tmp_path: Path) -> None:
    for ring, claim, text in (
        (Ring(4096, fcntl.F_SEAL_SEAL), 4096, "may shrink"),
        (Ring(4096), 8192, "has less"),
        (Ring(4096), 0, "no welcome"),
        (Ring(4096), 1 << 70, "no welcome"),
    ):
        with Fake(tmp_path, lambda p: p.welcome(ring, ring=claim)) as f, pytest.raises(penstock.Error, match=text):  # noqa: B023
            penstock.connect(f.path, wait=0)
    r, w = os.pipe()
    ring = Ring(4096)
    os.dup2(r, ring.fd)  # no memfd at all
    with Fake(tmp_path, lambda p: p.welcome(ring)) as f, pytest.raises(penstock.Corrupt, match="may shrink"):
        penstock.connect(f.path, wait=0)
    for fd in (r, w):
        os.close(fd)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(penstock.Unavailable, match="no data process serves"):
        penstock.connect(tmp_path / "none", wait=0.05)
    with pytest.raises(penstock.Invalid, match="ranks begin at 0"):
        penstock.connect(tmp_path / "none", rank=-1)
    with socket.socket(socket.AF_UNIX) as silent:  # listens, but never answers
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(penstock.Unavailable, match="does not answer"):
            penstock.connect(tmp_path / "silent", wait=0)


@pytest.mark.parametrize(
    "bad",
    [
        fake.batch(0, (1 << 20) - 64, 128, X),  # behind the ring
        fake.batch(0, (1 << 64) - 64, 64, X),
        fake.batch(0, 0, 64, fake.form([("x", "float32", (17,))])),  # more than it has
        fake.batch(0, 0, 128, X),  # less
        fake.batch(0, 0, 64, X + b"\0"),
        fake.batch(0, 0, 64, b""),
        fake.batch(0, 0, 0, b"", kind=9),  # no stream
        fake.batch(0, 0, 64, b"", kind=9),
        fake.batch(0, 0, 64, X, kind=9),
        fake.batch(0, 0, 64, X)[:-1] + b"",
        fake.frame(10, b"\0" * 71),
        fake.frame(10, b"\0" * 72),
        fake.frame(11, b"\xff"),
        fake.frame(8, b"{}"),
        fake.frame(42),
        fake.frame(10, b"", body=1),
        b"\x0a\x01" + bytes(14),
    ],
)
def test_bad_frames(tmp_path: Path, bad: bytes) -> None:
    if bad[0] == 9:
        pytest.importorskip("pyarrow")
    ring = Ring()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(bad)

    with Fake(tmp_path, script) as f:
        s = penstock.connect(f.path)
        for _ in range(2):  # and it stays so
            with pytest.raises(penstock.Error) as e:
                next(s.iter_batches())
            assert e.value.code in ("corrupt", "unavailable")
        s.close()
        with pytest.raises(penstock.Invalid, match="closed"):
            s.iter_batches()


def test_memory_in_use_is_not_given_again(tmp_path: Path) -> None:
    ring = Ring()

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(fake.batch(0, 0, 64, X), fake.batch(1, 0, 64, X))
        p.frame()

    with Fake(tmp_path, script) as f:
        s = penstock.connect(f.path)
        it = s.iter_batches()
        kept = next(it)
        with pytest.raises(penstock.Corrupt, match="in use"):
            next(it)
        assert kept.step == 0
        s.close()


def test_random_bytes(tmp_path: Path) -> None:
    """Whatever comes, the consumer gives whole batches, or one of our errors: it neither hangs nor dies."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    ring = Ring()
    good = b"".join(
        [fake.frame(8, _json(fake.STATE))]
        + [fake.batch(i, 64 * i, 64, X, samples=fake.uvarint(5) + b"\0\2\2\2", lineage=b"\0") for i in range(3)]
        + [fake.frame(11, position(0, 1)) for position in (fake.position,)]
        + [fake.frame(12)]
    )
    outcomes: dict[str, int] = {}

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        b = bytearray(good)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(b))
            how = rng.randrange(3)
            if how == 0:
                b[at] = rng.randrange(256)
            elif how == 1:
                del b[at : at + rng.randrange(1, 20)]
            else:
                b[at:at] = rng.randbytes(rng.randrange(1, 20))
        p.send(bytes(b[: rng.randrange(len(b) + 1)] if rng.random() < 0.3 else b))

    with Fake(tmp_path, script) as f:
        for _ in range(400):
            s = penstock.connect(f.path)
            try:
                for _ in range(3):
                    for b in s.iter_batches():
                        for a in b.values():
                            a.sum()
                        b.samples, b.lineage, s.state_dict()  # noqa: B018
                how = "ended"
            except penstock.Error as e:
                how = e.code
            except Exception as e:
                raise AssertionError(f"seed {seed}") from e
            outcomes[how] = outcomes.get(how, 0) + 1
            s.close()
    assert set(outcomes) <= {"ended", *_feed.CODES}, outcomes
    assert outcomes["ended"] and outcomes["corrupt"] and outcomes["unavailable"], f"seed {seed}: {outcomes}"


def test_restore(tmp_path: Path) -> None:
    ring = Ring()
    got: list[bytes] = []

    def script(p: Peer) -> None:
        p.welcome(ring)
        while True:
            kind, meta = p.frame()
            if kind == 1:
                got.append(meta)
                p.send(fake.frame(13, b"\x02the state is of another plan") if len(got) == 1 else fake.frame(7))
            elif kind in (0, 4):
                return
            elif kind == 2:
                p.send(fake.batch(5, 0, 64, X))

    state = {**fake.STATE, "step": 5}
    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        with pytest.raises(penstock.Invalid, match="another plan"):
            s.load_state_dict(state)
        s.load_state_dict(state)
        assert s.step == 5 and len(got) == 2
        assert next(s.iter_batches()).step == 5
        with pytest.raises(penstock.Invalid, match="has begun"):
            s.load_state_dict(state)


def test_empty_tensors(tmp_path: Path) -> None:
    ring = Ring()
    frees: list[int] = []

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        p.send(fake.batch(0, 77, 0, fake.form([("x", "float32", (0, 3))]), rows=0, samples=b"\1"))
        p.send(fake.batch(1, 0, 0, fake.form([]), rows=4))
        p.send(fake.frame(11, fake.position(0, 1)), fake.frame(12))
        while True:
            kind, _ = p.frame()
            frees.append(kind)
            if kind in (0, 4):
                return

    with Fake(tmp_path, script) as f, penstock.connect(f.path) as s:
        it = s.iter_batches()
        b = next(it)
        assert b["x"].shape == (0, 3) and b.samples is not None and b.samples.tolist() == [] and b.mask.tolist() == []
        b = next(it)
        assert dict(b) == {} and b.samples is None and b.mask.tolist() == [True] * 4 and b.lineage is None
        assert next(it, None) is None and next(it, None) is None
        assert s.epoch == 1 and list(s.iter_batches()) == []  # no epoch follows
        del b
    assert 5 not in frees


def test_fork(tmp_path: Path) -> None:
    """A fork neither frees nor reads for its parent, and its end is not the parent's."""
    ring = Ring()
    seen: list[int] = []

    def script(p: Peer) -> None:
        p.welcome(ring)
        p.frame()
        numbers(ring, 0, [1, 2, 3, 4])
        p.send(fake.batch(0, 0, 64, X))
        while seen[-1:] not in ([0], [4]):
            seen.append(p.frame()[0])
            if seen == [3]:
                p.send(fake.batch(1, 64, 64, X))

    with Fake(tmp_path, script) as f:
        s = penstock.connect(f.path)
        it = s.iter_batches()
        b = next(it)
        r, w = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads and forks
            pid = os.fork()
        if pid == 0:
            try:
                values = b["x"].tolist()
                b.clear()
                gc.collect()
                try:
                    next(it)
                    text = "no error"
                except penstock.Invalid as e:
                    text = str(e)
                text += f" {s._feed._sock.fileno()}"
                s.close()
                os.write(w, f"{values} {text}".encode())
            finally:
                os._exit(0)
        os.close(w)
        with os.fdopen(r, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(pid, 0)
        assert said.startswith("[1.0, 2.0, 3.0, 4.0] ") and "num_workers=0" in said and str(os.getpid()) in said and said.endswith(" -1")
        assert seen == []  # no free, no bye
        assert next(it).step == 1 and b["x"].tolist() == [1, 2, 3, 4]
        s.close()
        del b, it
        gc.collect()
    assert seen == [3, 5, 4]  # the free is of the second batch


def test_exit(tmp_path: Path) -> None:
    """A program that ends gives its rank up; one that an exception ends loses it."""
    import subprocess
    import sys

    ring = Ring()
    ends: list[int] = []

    def script(p: Peer) -> None:
        p.welcome(ring)
        while (kind := p.frame()[0]) not in (0, 4):
            if kind == 2:
                p.send(fake.batch(0, 0, 64, X))
        ends.append(kind)

    program = "import sys, penstock; s = penstock.connect(sys.argv[1]); next(s.iter_batches()); {}"
    with Fake(tmp_path, script) as f:
        for last in ("", "1/0", "exec('with s:\\n raise ValueError')", "exec('with s:\\n sys.exit(1)')", "exec('with s:\\n sys.exit(0)')"):
            env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
            subprocess.run([sys.executable, "-c", program.format(last), f.path], env=env, stderr=subprocess.DEVNULL)
    assert ends == [4, 0, 0, 0, 4]
