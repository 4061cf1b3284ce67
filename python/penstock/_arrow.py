"""Batches of records: Arrow arrays, and numpy arrays of their columns, over the memory of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._errors import Corrupt, Unsupported

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]


def record(memory: NDArray[np.uint8] | None, rows: int) -> pa.RecordBatch:
    """The record batch of an Arrow IPC stream. Its buffers are slices of ``memory``, which lives as long as one of them."""
    try:
        import pyarrow as pa
    except ImportError as e:
        raise Unsupported("batches of records need pyarrow: pip install pyarrow, or have the spec make tensors (shards.columns)") from e
    if memory is None:
        raise Corrupt("the feed is damaged: a batch of records without bytes")
    try:
        with pa.ipc.open_stream(pa.py_buffer(memory)) as reader:
            batch = reader.read_next_batch()
        batch.validate()
        for column in batch.columns:
            _check(column)
    except (pa.ArrowException, StopIteration, OSError) as e:
        raise Corrupt(f"the feed is damaged: no record batch: {e}") from e
    if batch.num_rows != rows:
        raise Corrupt(f"the feed is damaged: {batch.num_rows} rows, not {rows}")
    return batch


def _check(a: pa.Array) -> None:
    """Raises where values are outside of the array's buffers: pyarrow's own look at the first and the last offset alone, or read every text."""
    import pyarrow as pa

    t = a.type
    if pa.types.is_struct(t):
        for i in range(t.num_fields):
            _check(a.field(i))
    elif pa.types.is_fixed_size_list(t):
        _check(a.values)
    elif pa.types.is_primitive(t) or pa.types.is_null(t) or pa.types.is_fixed_size_binary(t) or pa.types.is_decimal(t):
        return
    elif len(a) and (width := _offsets(t)) is not None:
        offsets = np.frombuffer(a.buffers()[1], width)[a.offset : a.offset + len(a) + 1]
        if offsets[0] < 0 or np.any(offsets[1:] < offsets[:-1]):
            raise pa.ArrowInvalid(f"offsets of a column of {t} go back")
        if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_map(t):
            _check(a.values)
    else:
        a.validate(full=True)


def _offsets(t: pa.DataType) -> type[np.integer[Any]] | None:
    """Their type, where an array of ``t`` has offsets."""
    import pyarrow as pa

    if pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_list(t) or pa.types.is_map(t):
        return np.int32
    if pa.types.is_large_string(t) or pa.types.is_large_binary(t) or pa.types.is_large_list(t):
        return np.int64
    return None


def columns(batch: pa.RecordBatch, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Columns as numpy arrays.

    Numbers, dates and times without nulls, and lists of fixed size of these, are views of ``memory``. Other columns are what pyarrow makes of them, which are
    copies: strings and lists become arrays of objects, numbers with nulls become floats with NaN.
    """
    start = memory.ctypes.data
    return {name: _column(batch.column(i), memory, start) for i, name in enumerate(batch.schema.names)}


def _dtype(t: pa.DataType) -> np.dtype[Any]:
    """Of numbers, dates, timestamps and durations. (pyarrow's own way wants pandas.)"""
    import pyarrow as pa

    if pa.types.is_timestamp(t):
        return np.dtype(f"M8[{t.unit}]")
    if pa.types.is_duration(t):
        return np.dtype(f"m8[{t.unit}]")
    names = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "M8[D]", "date64[ms]": "M8[ms]"}
    return np.dtype(names.get(str(t), str(t)))


def _column(a: pa.Array, memory: NDArray[np.uint8], start: int) -> NDArray[Any]:
    import pyarrow as pa

    shape = [len(a)]
    values = a
    while pa.types.is_fixed_size_list(values.type) and values.null_count == 0:
        shape.append(values.type.list_size)
        values = values.flatten()
    t = values.type
    if values.null_count == 0 and (pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_date(t) or pa.types.is_timestamp(t) or pa.types.is_duration(t)):
        dtype = _dtype(t)
        width = t.bit_width // 8
        data = values.buffers()[1]
        if dtype.itemsize == width and data is not None:
            at = data.address - start + values.offset * width
            if 0 <= at and at + len(values) * width <= memory.nbytes:
                return np.ndarray(shape, dtype, memory, at)
    if len(shape) > 1 and values.null_count == 0 and not pa.types.is_nested(t):
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
    return np.asarray(a.to_numpy(zero_copy_only=False))
