"""Batches: columns by name, and what is known of their rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._errors import Corrupt
from penstock._state import uvarint

T = TypeVar("T")

_DAMAGED = "the feed is damaged: a frame that does not decode"
_ALIGN = 64
_MOST = 1 << 40  # elements of a tensor, and rows of a batch


@dataclass(frozen=True)
class Place:
    """A row of a source; ``file`` is the split where there is no file, ``row`` counts in the row group."""

    source: str
    file: str
    row_group: int
    row: int


@dataclass(frozen=True)
class Lineage:
    """Where a sample comes from. ``parts`` are the documents of a packed sample; ``place`` is that of the first."""

    place: Place
    epoch: int
    n: int
    parts: tuple[Place, ...] | None


class Batch(Dict[str, T], Generic[T]):
    """Columns by name, and the batch's place in the epoch.

    A dict of numpy arrays (or torch tensors). They are views of memory that the data process gave: it is given back when
    the last view is gone. They may be written to; nobody else reads them.

    The mask of the spec's ``tail: pad`` is the column ``mask`` among them, where padding is asked for. The first ``real`` rows are no
    pads, with or without that column.
    """

    __slots__ = ("_lineage", "_samples", "epoch", "noticed", "real", "rows", "step")

    epoch: int
    #: Of the epoch, from 0: the same for the batches of all ranks that belong together.
    step: int
    #: With pads.
    rows: int
    #: Rows that are no pads; they come first.
    real: int
    #: The preemption notice counts from this batch on: it is the first on every rank for which this is true.
    noticed: bool
    _samples: bytes
    _lineage: bytes

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True for the rows that are no pads: a new array."""
        return np.arange(self.rows) < self.real

    @property
    def samples(self) -> NDArray[np.int64] | None:
        """Numbers of the real rows in the epoch's order; None where batches have none. Decoded with each use."""
        return decode_samples(self._samples, self.real)

    @property
    def lineage(self) -> list[Lineage] | None:
        """Where each real row comes from; None without ``with_lineage`` in the spec. Decoded with each use."""
        return decode_lineage(self._lineage, self.real)

    def __repr__(self) -> str:
        """What it has, not the values."""
        columns = ", ".join(f"{k!r}: {_form(v)}" for k, v in self.items())
        where = f"epoch {self.epoch}, step {self.step}, {self.rows} rows: " if hasattr(self, "step") else ""  # one that a user made has no place
        return f"<penstock.Batch {where}{{{columns}}}>"

    def like(self, columns: dict[str, Any]) -> Batch[Any]:
        """Another batch of the same rows."""
        b: Batch[Any] = Batch(columns)
        b.epoch, b.step, b.rows, b.real = self.epoch, self.step, self.rows, self.real
        b.noticed, b._samples, b._lineage = self.noticed, self._samples, self._lineage
        return b


def _form(v: Any) -> str:
    """dtype, shape and device of an array or a tensor: float32 [32, 10]."""
    dtype, shape = getattr(v, "dtype", None), getattr(v, "shape", None)
    if dtype is None or shape is None:
        return type(v).__name__
    device = str(getattr(v, "device", "cpu"))
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, shape))}]{'' if device == 'cpu' else f' {device}'}"


def decode_samples(b: bytes, real: int) -> NDArray[np.int64] | None:
    """Of the feed: 0 for none, else how many + 1; then the differences, in zigzag form."""
    if not b or b == b"\0":
        return None
    n, at = uvarint(b, 0)
    if n - 1 != real:
        raise Corrupt(_DAMAGED)
    raw = np.frombuffer(b, np.uint8, offset=at)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) != real or len(raw) != (ends[-1] + 1 if real else 0):
        raise Corrupt(_DAMAGED)
    if real == 0:
        return np.zeros(0, np.int64)
    if len(raw) == real:  # all of one byte
        z = raw.astype(np.uint64)
    else:
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        lengths = ends - starts + 1
        if lengths.max() > 10 or bool((raw[ends[lengths == 10]] > 1).any()):
            raise Corrupt(_DAMAGED)
        place = np.arange(len(raw)) - np.repeat(starts, lengths)
        z = np.add.reduceat((raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64), starts)
    one = np.uint64(1)
    deltas = (z >> one) ^ (np.uint64(0) - (z & one))
    return np.cumsum(deltas, dtype=np.uint64).view(np.int64)


def decode_lineage(b: bytes, real: int) -> list[Lineage] | None:
    """Of the feed: names are written once, and named by their number later."""
    if not b:
        return None
    at = 0
    names: list[str] = []

    def uint() -> int:
        nonlocal at
        v, at = uvarint(b, at)
        return v

    def signed() -> int:
        v = uint()
        return v >> 1 ^ -(v & 1)

    def name() -> str:
        nonlocal at
        i = uint()
        if i == len(names):
            n = uint()
            if n > len(b) - at:
                raise Corrupt(_DAMAGED)
            names.append(b[at : at + n].decode("utf-8", "replace"))
            at += n
        if i >= len(names):
            raise Corrupt(_DAMAGED)
        return names[i]

    def place() -> Place:
        return Place(name(), name(), signed(), signed())

    n = uint()
    if n == 0 and len(b) == 1:
        return None
    if n - 1 != real:
        raise Corrupt(_DAMAGED)
    out = []
    for _ in range(n - 1):
        p, epoch, number, k = place(), uint(), signed(), uint()
        if k > len(b):
            raise Corrupt(_DAMAGED)
        out.append(Lineage(p, epoch, number, tuple(place() for _ in range(k - 1)) if k else None))
    if at != len(b):
        raise Corrupt(_DAMAGED)
    return out


#: dtypes by their number on the wire, and their names in digests.
NAMES = ("", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64")
BFLOAT16 = 11


@lru_cache(maxsize=None)
def dtypes() -> tuple[np.dtype[Any] | None, ...]:
    """numpy's dtypes by their number. bfloat16 is that of ml_dtypes; without that package its bits, as uint16."""
    try:
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    except ImportError:
        bf16 = np.dtype(np.uint16)
    return (None, *(bf16 if n == "bfloat16" else np.dtype(n) for n in NAMES[1:]))


@dataclass(frozen=True)
class Head:
    """A tensor as it lies in the memory of a batch."""

    name: str
    code: int  # of its dtype
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int  # bytes


def decode_form(b: bytes, length: int) -> tuple[Head, ...]:
    """The heads of tensors that lie in ``length`` bytes, one after another, each padded to 64."""
    n, at = uvarint(b, 0)
    if n > len(b) // 3:
        raise Corrupt(_DAMAGED)
    heads = []
    offset = 0
    for _ in range(n):
        k, at = uvarint(b, at)
        if k > len(b) - at - 2:
            raise Corrupt(_DAMAGED)
        name = b[at : at + k].decode("utf-8", "replace")
        code = b[at + k]
        dims, at = uvarint(b, at + k + 1)
        if not 1 <= code < len(NAMES) or dims > 32:  # numpy 1 has no more
            raise Corrupt(_DAMAGED)
        shape = []
        for _ in range(dims):
            d, at = uvarint(b, at)
            shape.append(d)
        dtype = dtypes()[code]
        assert dtype is not None
        if math.prod(max(d, 1) for d in shape) > _MOST:
            raise Corrupt(_DAMAGED)
        size = math.prod(shape) * dtype.itemsize
        if size > length - offset:
            raise Corrupt(_DAMAGED)
        heads.append(Head(name, code, dtype, tuple(shape), offset, size))
        offset += (size + _ALIGN - 1) // _ALIGN * _ALIGN
    if at != len(b) or offset != length:
        raise Corrupt(_DAMAGED)
    return tuple(heads)
