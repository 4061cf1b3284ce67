"""Tensors, PyTorch's DataLoader, torchdata's StatefulDataLoader, and pinned memory (with a CUDA of our own)."""

from __future__ import annotations

import gc
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import penstock
from conftest import Served
from penstock import _batch
from penstock._tensors import Pins
from penstock.torch import ShardDataset

Spec = Callable[[str], Path]
Serve = Callable[..., Served]

ALL = """
version: 1
source: {range: {n: 200}}
steps: [{with_columns: {u: 'cast(id, "uint16")', b: id % 2 == 0, x: id * 0.25}}]
shards: {global_batch: 32, shuffle: none, columns: {id: int64, u: uint16, b: bool, x: float32, h: {stack: [x], dtype: float16}, f: {stack: [x, id], dtype: bfloat16}}}
"""


def test_views(serve: Serve, spec: Spec) -> None:
    with penstock.connect(serve(spec(ALL)).socket) as s:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            b = next(s.iter_torch_batches())
        assert {k: t.dtype for k, t in b.items()} == {
            "id": torch.int64, "u": torch.uint16, "b": torch.bool, "x": torch.float32, "h": torch.float16, "f": torch.bfloat16,
        }  # fmt: skip
        want = torch.arange(32)
        assert b["id"].equal(want) and b["u"].long().equal(want) and b["x"].equal(want * 0.25) and b["b"].equal(want % 2 == 0)
        assert b["f"].equal(torch.stack([want * 0.25, want.float()], 1).bfloat16()) and b["h"].equal((want * 0.25).half()[:, None])
        x = b["x"][3:5]
        del b
        gc.collect()
        assert len(s._feed.held) == 1 + len(s._feed.decoded) and x.tolist() == [0.75, 1.0]  # others may have come with it
        x += 1
        del x
        gc.collect()
        assert len(s._feed.held) == len(s._feed.decoded)
        b = next(s.iter_torch_batches(dtypes={"x": torch.float64, "b": torch.uint8}))
        assert b["x"].dtype == torch.float64 and b["b"].dtype == torch.uint8 and b["id"].dtype == torch.int64
        assert {t.dtype for t in next(s.iter_torch_batches(dtypes=torch.float32)).values()} == {torch.float32}
        assert next(s.iter_torch_batches("meta"))["x"].device.type == "meta"
        with pytest.raises(penstock.Invalid, match="no column 'y'; the batches have id, u"):
            next(s.iter_torch_batches(dtypes={"y": torch.int8}))


def test_numpy_bfloat16(serve: Serve, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(serve(spec(ALL)).socket) as s:
        b = next(s.iter_batches())
        bits = b["f"].view(np.uint16)
        assert torch.from_numpy(bits).view(torch.bfloat16)[:, 1].tolist() == list(range(32))


def test_dataloader(serve: Serve, spec: Spec) -> None:
    path = spec(ALL)
    with penstock.connect(serve(path).socket) as s:
        data = ShardDataset(s)
        loader = DataLoader(data, batch_size=None)
        assert len(loader) == 6
        seen = [(type(b), b.step, b["id"].tolist()) for b in loader]
        assert seen == [(_batch.Batch, i, list(range(32 * i, 32 * i + 32))) for i in range(6)]
        assert [b["id"][0].item() for b in loader] == [32 * i for i in range(6)] and s.epoch == 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(penstock.Invalid, match="num_workers=0"):
                next(iter(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")))
        with pytest.raises(penstock.Invalid, match="cannot be sent to another"):
            pickle.dumps(data)
        assert next(iter(loader)).step == 0  # the forks did no harm


def test_repr(serve: Serve, spec: Spec) -> None:
    with penstock.connect(serve(spec(ALL)).socket) as s:
        b = next(s.iter_torch_batches())
        forms = {"id": "int64 [32]", "u": "uint16 [32]", "b": "bool [32]", "x": "float32 [32]", "h": "float16 [32, 1]", "f": "bfloat16 [32, 2]"}
        assert set(b) == set(forms) and repr(b) == f"<penstock.Batch epoch 0, step 0, 32 rows: {{{', '.join(f'{k!r}: {forms[k]}' for k in b)}}}>"
        assert "meta" in repr(b.like({"x": torch.zeros(3, device="meta")}))


def test_attribute() -> None:
    """``import penstock`` is enough for what is in its submodules."""
    code = "import sys, penstock; assert 'torch' not in sys.modules; print(penstock.torch.ShardDataset.__name__, penstock.torch.ShardDataset.__module__)"
    p = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}, capture_output=True, text=True)
    assert p.stdout == "ShardDataset penstock.torch\n", p.stderr


@pytest.mark.parametrize("size", [1, 3])
def test_dataloader_that_would_stack(serve: Serve, spec: Spec, size: int) -> None:
    """Elements are batches already; a loader's own batch_size would make a new axis of them."""
    with penstock.connect(serve(spec(ALL)).socket) as s:
        with pytest.raises(penstock.Invalid, match=r"pass batch_size=None: .* shards.global_batch"):
            next(iter(DataLoader(ShardDataset(s), batch_size=size)))
        assert next(iter(DataLoader(ShardDataset(s), batch_size=None)))["id"].shape == (32,)


def test_stateful_dataloader(serve: Serve, spec: Spec) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    path = spec(ALL)
    with penstock.connect(serve(path).socket) as s:
        loader = loaders.StatefulDataLoader(ShardDataset(s), batch_size=None)
        it = iter(loader)
        got = [next(it)["id"][0].item() for _ in range(2)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        rest = [b["id"][0].item() for b in it]
        assert got + rest == [0, 32, 64, 96, 128, 160]
    with penstock.connect(serve(path).socket) as s:
        loader = loaders.StatefulDataLoader(ShardDataset(s), batch_size=None)
        loader.load_state_dict(state)
        assert [b["id"][0].item() for b in loader] == rest
        assert [b["id"][0].item() for b in loader] == got + rest  # the next epoch


def test_no_gpu(serve: Serve, spec: Spec) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with penstock.connect(serve(spec(ALL)).socket) as s:
        with pytest.raises(penstock.Unsupported, match="no GPU on this machine"):
            s.iter_torch_batches("cuda", pin_memory=True)


class Cudart:
    """What CUDA keeps of registered memory, with its rules."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.calls = 0
        self.idle = True

    def cudaHostRegister(self, at: int, size: int, flags: int) -> int:
        self.calls += 1
        assert size > 0 and flags == 0
        if any(at < a + n and a < at + size for a, n in self.ranges.items()):
            return 712  # already registered
        self.ranges[at] = size
        return 0

    def cudaGetErrorString(self, result: int) -> str:
        return "already mapped" if result == 712 else "not mapped"

    def cudaHostUnregister(self, at: int) -> int:
        assert self.idle
        return 0 if self.ranges.pop(at, None) else 713


def test_pins() -> None:
    """Whatever batches lie where: each is in one registered range, ranges never overlap, and their number settles."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    base, size = 1 << 40, 100 * 65536 + 4096
    cuda = Cudart()
    pins = Pins(cuda)
    waits = 0

    def wait() -> None:
        nonlocal waits
        waits, cuda.idle = waits + 1, True

    for _ in range(500):
        offset = rng.randrange(0, size - 4096) // 64 * 64
        length = min(rng.randrange(1, 20 * 65536), size - offset)
        cuda.idle = False  # the last copy may be under way
        pins.register(offset, length, base, size, wait)
        inside = [a for a, n in cuda.ranges.items() if a <= base + offset and base + offset + length <= a + n]
        assert len(inside) == 1, f"seed {seed}"
        assert all(a + n <= base + size for a, n in cuda.ranges.items())
    assert cuda.calls < 40 and waits < 40, f"seed {seed}: {cuda.calls}"
    cuda.ranges[base + size] = 1
    with pytest.raises(penstock.Unsupported, match="already mapped, error 712"):
        pins.register(size, 1, base, size + 65536, wait)
    del cuda.ranges[base + size]
    wait()
    pins.close()
    assert not cuda.ranges


class Stream:
    def synchronize(self) -> None:
        pass


class Event:
    slow = False  # none is done before it is waited for

    def __init__(self) -> None:
        self.done = False

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.done or not Event.slow

    def synchronize(self) -> None:
        self.done = True


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    """A GPU whose memory is the CPU's."""
    import contextlib

    rt = Cudart()
    monkeypatch.setattr(Event, "slow", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: rt)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    class Current:
        def wait_event(self, e: Event) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: None)
    to = torch.Tensor.to

    def fake_to(self: Any, where: Any, **how: Any) -> Any:
        if isinstance(where, torch.device) and where.type == "cuda":
            assert how == {"non_blocking": True}
            return self.clone()
        return to(self, where, **how)

    monkeypatch.setattr(torch.Tensor, "to", fake_to)
    return rt


@pytest.mark.parametrize("pin", [False, True])
def test_copies(serve: Serve, spec: Spec, cuda: Cudart, pin: bool) -> None:
    """Copies begin ahead, the state does not count them, and a loop that is left early loses nothing."""
    with penstock.connect(serve(spec(ALL)).socket) as s:
        got = []
        for b in s.iter_torch_batches("cuda", pin_memory=pin, dtypes={"x": torch.float64}):
            assert b["x"].dtype == torch.float64 and s.step == b.step + 1
            got.append(b["id"].tolist())
            if b.step == 2:
                break
        assert s._feed.pinned == pin and bool(cuda.ranges) == pin
        state = s.state_dict()
        assert state["step"] == 3
        for b in s.iter_batches():  # what was copied ahead is not lost
            got.append(b["id"].tolist())
            if b.step == 3:
                break
        for b in s.iter_torch_batches("cuda", pin_memory=pin):
            got.append(b["id"].tolist())
        assert got == [list(range(32 * i, 32 * i + 32)) for i in range(6)] and (s.epoch, s.step) == (1, 0)
        assert [b.step for b in s.iter_torch_batches("cuda", pin_memory=pin)] == list(range(6))
        if pin:
            with pytest.raises(penstock.Invalid, match="device='cuda'"):
                s.iter_torch_batches(pin_memory=True)
        else:
            with pytest.raises(penstock.Invalid, match="has begun without"):
                s.iter_torch_batches("cuda", pin_memory=True)
    assert not cuda.ranges


def test_copies_hold_their_memory(serve: Serve, spec: Spec, cuda: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a batch is kept until its copy is done, and given back where nothing is there to go on with."""
    monkeypatch.setattr(Event, "slow", True)
    srv = serve(spec(ALL))
    with penstock.connect(srv.socket) as s:
        it = s.iter_torch_batches("cuda")
        monkeypatch.setattr(s._feed, "ready", lambda: True)
        for n in range(1, 4):
            next(it)
            gc.collect()
            assert len(s._feed.held) - len(s._feed.decoded) == n + 1  # and the one ahead
        monkeypatch.setattr(s._feed, "ready", lambda: False)
        next(it)
        next(it)
        gc.collect()
        assert len(s._feed.held) - len(s._feed.decoded) == 1


def test_a_loop_that_is_left_while_it_copies(serve: Serve, spec: Spec, cuda: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a batch goes back after the copy, also where the loop ends before that."""
    monkeypatch.setattr(Event, "slow", True)
    held: list[int] = []
    with penstock.connect(serve(spec(ALL)).socket) as s:
        wait = Event.synchronize
        monkeypatch.setattr(Event, "synchronize", lambda e: (held.append(len(s._feed.held)), wait(e))[1])
        for b in s.iter_torch_batches("cuda"):
            assert b.step == 0
            n = len(s._feed.held)
            break
        del b
        gc.collect()
        assert n >= 1 and held and held[0] == n


def test_killed_while_ahead(serve: Serve, spec: Spec, cuda: Cudart) -> None:
    """An error that copying ahead meets is of the batch that it is of."""
    srv = serve(spec(ALL))
    with penstock.connect(srv.socket, prefetch=1) as s:
        it = s.iter_torch_batches("cuda")
        next(it)
        srv.kill()
        srv.process.wait()
        n = 1
        with pytest.raises(penstock.Unavailable):
            for _ in it:
                n += 1
        assert s.step == n < 6
