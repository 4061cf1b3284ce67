"""SHA-256 of batches as ``shard.Batch.Digest`` defines it."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import _arrow
from penstock._batch import NAMES
from penstock._feed import Item


def tensors(item: Item) -> str:
    """Of a batch of tensors, before it is given out."""
    h = hashlib.sha256()
    for t in sorted(item.heads, key=lambda t: t.name.encode()):
        h.update(t.name.encode() + b"\0" + NAMES[t.code].encode() + b"\0" + ",".join(map(str, t.shape)).encode() + b"\0")
        if item.memory is not None:
            h.update(np.asarray(item.memory)[t.offset : t.offset + t.size].tobytes())
    return h.hexdigest()


def arrays(columns: dict[str, np.ndarray[Any, Any]], bfloat16: tuple[str, ...] = ()) -> str:
    """Of numpy arrays; bfloat16 names those that are its bits."""
    h = hashlib.sha256()
    for name in sorted(columns, key=str.encode):
        a = columns[name]
        dtype = "bfloat16" if name in bfloat16 else str(a.dtype)
        h.update(name.encode() + b"\0" + dtype.encode() + b"\0" + ",".join(map(str, a.shape)).encode() + b"\0")
        h.update(np.ascontiguousarray(a).tobytes())
    return h.hexdigest()


def record(batch: pa.RecordBatch) -> str:
    """Of numbers, booleans, text, lists and structs of these."""
    h = hashlib.sha256()
    for i in sorted(range(batch.num_columns), key=lambda i: batch.schema.names[i].encode()):
        f, t, dims = batch.schema.field(i), batch.schema.field(i).type, [batch.num_rows]
        while pa.types.is_fixed_size_list(t):
            dims.append(t.list_size)
            t = t.value_type
        h.update(f.name.encode() + b"\0" + _name(t).encode() + b"\0" + ",".join(map(str, dims)).encode() + b"\0")
        _values(h, f.type, f.nullable, batch.column(i).to_pylist())
    return h.hexdigest()


def _name(t: pa.DataType) -> str:
    if pa.types.is_dictionary(t):
        return _name(t.value_type)
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return "string"
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return f"list<{_name(t.value_type)}>"
    if pa.types.is_fixed_size_list(t):
        return f"fixed_size_list<{_name(t.value_type)}>({t.list_size})"
    if pa.types.is_struct(t):
        return "struct<" + ", ".join(f"{f.name}: {_name(f.type)}" for f in t) + ">"
    return {"float": "float32", "double": "float64", "halffloat": "float16", "date32[day]": "date32"}.get(str(t), str(t))


def _values(h: Any, t: pa.DataType, nullable: bool, values: list[Any]) -> None:
    """Values of one type; what lies below a null is null."""
    if pa.types.is_dictionary(t):
        return _values(h, t.value_type, nullable, values)
    if pa.types.is_boolean(t):
        h.update(bytes(int(v or 0) for v in values))
    elif pa.types.is_string(t) or pa.types.is_large_string(t):
        _offsets(h, [len((v or "").encode()) for v in values])
        h.update("".join(v or "" for v in values).encode())
    elif pa.types.is_list(t) or pa.types.is_large_list(t):
        _offsets(h, [len(v or []) for v in values])
        _values(h, t.value_type, t.value_field.nullable, [x for v in values for x in v or []])
    elif pa.types.is_fixed_size_list(t):
        _values(h, t.value_type, t.value_field.nullable, [x for v in values for x in (v if v is not None else [None] * t.list_size)])
    elif pa.types.is_struct(t):
        for f in t:
            _values(h, f.type, f.nullable, [None if v is None else v[f.name] for v in values])
    else:
        dtype = _arrow._dtype(t)
        a = np.array([0 if v is None else v for v in values], dtype)
        h.update((a.astype(np.int32) if dtype.kind == "M" else a).tobytes())
    if nullable:
        h.update(bytes(int(v is not None) for v in values))


def _offsets(h: Any, lengths: list[int]) -> None:
    at = 0
    h.update(struct.pack("<q", 0))
    for n in lengths:
        at += n
        h.update(struct.pack("<q", at))
