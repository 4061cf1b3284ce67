"""Batches as torch tensors: views on the CPU, copies that overlap with the step before on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._batch import BFLOAT16, Batch
from penstock._epoch import Epoch, arrays, info
from penstock._errors import Error, Invalid, Unsupported
from penstock._feed import END, TENSORS, Item

try:
    import torch
except ImportError as e:
    raise Unsupported("iter_torch_batches needs PyTorch: pip install torch, or take iter_batches()") from e

if TYPE_CHECKING:
    from penstock._shard import Shard

Dtypes = torch.dtype | Mapping[str, torch.dtype] | None

_CHUNK = 64 << 10  # the data process counts its memory by so much


def iterate(shard: Shard, device: torch.device | str | None, dtypes: Dtypes, pin_memory: bool) -> Iterator[Batch[torch.Tensor]]:
    """See :meth:`Shard.iter_torch_batches`."""
    to = torch.device("cpu" if device is None else device)
    if pin_memory:
        if not torch.cuda.is_available():
            raise Unsupported("pin_memory needs CUDA, and torch sees no GPU on this machine: leave it out")
        if to.type != "cuda":
            raise Invalid("pin_memory needs device='cuda': nobody else knows when a copy is done with the memory")
        if shard.begun and not shard._feed.pinned:
            raise Invalid("pin_memory: this shard has begun without; ask for it in the first loop")
        shard._feed.pinned = True
    if to.type == "cuda":
        return _Copies(shard, to, dtypes, pin_memory)
    if to.type == "cpu":
        if dtypes is None:
            return Epoch(shard, lambda item: info(item, views(item)), views=True)
        return Epoch(shard, lambda item: info(item, _cast(views(item), dtypes)))
    return Epoch(shard, lambda item: info(item, {k: t.to(to) for k, t in _cast(views(item), dtypes).items()}))


def views(item: Item) -> dict[str, torch.Tensor]:
    """The columns of a batch as tensors over its memory."""
    columns = arrays(item)
    if item.kind == TENSORS:
        wrap = torch.from_numpy
        return {h.name: wrap(columns[h.name]) if h.code != BFLOAT16 else wrap(columns[h.name].view(np.uint16)).view(torch.bfloat16) for h in item.heads}  # type: ignore[no-untyped-call, unused-ignore]
    return {k: _tensor(k, a) for k, a in columns.items()}


def _tensor(name: str, a: NDArray[Any]) -> torch.Tensor:
    if a.dtype.kind not in "biuf":
        raise Unsupported(f"column {name!r} ({a.dtype}) has no tensor form: leave it out of the spec (select), have the spec make tensors (shards.columns), or take iter_batches()")
    return torch.from_numpy(np.require(a, requirements="W"))


def _cast(columns: dict[str, torch.Tensor], dtypes: Dtypes) -> dict[str, torch.Tensor]:
    if dtypes is None:
        return columns
    if isinstance(dtypes, torch.dtype):
        return {k: t.to(dtypes) for k, t in columns.items()}
    for name in dtypes:
        if name not in columns:
            raise Invalid(f"dtypes: there is no column {name!r}; the batches have {', '.join(columns)}")
    return {k: t.to(dtypes[k]) if k in dtypes else t for k, t in columns.items()}


class _Copies(Iterator[Batch[torch.Tensor]]):
    """Copies batches to a GPU on a stream of its own: the next one, where it is there already, while the last is being used."""

    def __init__(self, shard: Shard, device: torch.device, dtypes: Dtypes, pin: bool) -> None:
        self._shard, self._device, self._dtypes = shard, device, dtypes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        self._started: dict[int, tuple[dict[str, torch.Tensor], torch.cuda.Event]] = {}  # by the item's id; the shard holds the item
        self._busy: list[tuple[torch.cuda.Event, dict[str, torch.Tensor]]] = []  # memory that is being copied from
        self._over = False
        if pin and shard._pins is None:
            shard._pins = Pins(torch.cuda.cudart())  # type: ignore[no-untyped-call, unused-ignore]
        self._pins: Pins | None = shard._pins if pin else None

    def _start(self, item: Item) -> None:
        host = views(item)
        if self._pins is not None and item.memory is not None:
            at = item.memory.__array_interface__["data"][0]
            self._pins.register(at - self._shard._feed.address, item.memory.nbytes, self._shard._feed.address, len(self._shard._feed.ring), self._stream.synchronize)
        with torch.cuda.stream(self._stream):
            copies = _cast({k: t.to(self._device, non_blocking=True) for k, t in host.items()}, self._dtypes)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            done.record(self._stream)
        self._started[id(item)] = copies, done
        self._busy.append((done, host))

    def _let_go(self) -> None:
        """Lets go of memory that was copied; all of it, where nothing is there to go on with: it may be what the data process waits for."""
        if not self._shard._ahead and not self._shard._feed.ready():
            for done, _ in self._busy:
                done.synchronize()
        self._busy = [x for x in self._busy if not x[0].query()]  # type: ignore[no-untyped-call, unused-ignore]

    def __del__(self) -> None:
        # A loop that is left early: memory is not given back while a copy reads it.
        try:
            for done, _ in self._busy:
                done.synchronize()
        except Exception:  # noqa: S110  at the end of the interpreter torch may be gone
            pass

    def __next__(self) -> Batch[torch.Tensor]:
        if self._over:
            raise StopIteration
        shard = self._shard
        self._let_go()
        item = shard._take()
        if item is None:
            self._over = True
            raise StopIteration
        try:
            if id(item) not in self._started:
                self._start(item)
        except BaseException:
            shard._ahead.appendleft(item)  # it was not given
            raise
        copies, done = self._started.pop(id(item))
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for t in copies.values():
            t.record_stream(current)
        out: Batch[torch.Tensor] = info(item, copies)
        shard._give(item)
        ahead = shard._peek()
        if ahead is not None and ahead.kind != END:
            with contextlib.suppress(Error):  # comes again with the batch that it is of
                self._start(ahead)
        return out


class Pins:
    """Memory of a ring that is registered with CUDA, as ranges of offsets that do not touch.

    A copy must lie in one range, so ranges that a batch joins are registered again as one: this happens a few times, until the ring is as large as it gets.
    """

    def __init__(self, cudart: Any) -> None:
        self._cudart = cudart
        self._ranges: list[tuple[int, int]] = []
        self._base = 0

    def register(self, offset: int, length: int, base: int, size: int, wait: Callable[[], None]) -> None:
        """Makes sure of [offset, offset+length) of the ring of ``size`` bytes at address ``base``. ``wait`` returns when no copy is under way."""
        self._base = base
        lo, hi = offset // _CHUNK * _CHUNK, min(-(-(offset + length) // _CHUNK) * _CHUNK, size)
        if any(a <= lo and hi <= b for a, b in self._ranges):
            return
        joined = [r for r in self._ranges if r[0] < hi and lo < r[1]]
        if joined:
            wait()
        for r in joined:
            self._ranges.remove(r)
            self._check(self._cudart.cudaHostUnregister(base + r[0]), r)
            lo, hi = min(lo, r[0]), max(hi, r[1])
        self._check(self._cudart.cudaHostRegister(base + lo, hi - lo, 0), (lo, hi))
        self._ranges.append((lo, hi))

    def _check(self, result: Any, r: tuple[int, int]) -> None:
        if int(result) != 0:
            why = self._cudart.cudaGetErrorString(result)
            raise Unsupported(f"CUDA does not pin {r[1] - r[0]} bytes of the data process's memory ({why}, error {int(result)}): leave pin_memory out, or give the data process less memory")

    def close(self) -> None:
        """Unregisters all. No copy may be under way."""
        while self._ranges:
            a, _ = self._ranges.pop()
            self._cudart.cudaHostUnregister(self._base + a)
