"""Random Parquet and Arrow IPC files, and folders of them, of pyarrow, DuckDB and Polars, read by Penstock and by pyarrow.

What Penstock gives of a file, with random projections and filters, is compared with a full read by pyarrow whose rows are
filtered here, without any statistics. A file that is read differently by DuckDB or Polars, too, is one where the peers disagree
among themselves: such are no difference of Penstock's only if `DISAGREE` names them.

    python python/tests/differential_files.py SEED...    repeats files by their seeds, and prints what differs
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq

FILTERS = 8  # of a file, in one process
ROWS = 300  # of a file, at most

# Where the peers disagree among themselves: what of a file, and why no reading of it is the right one.
DISAGREE: dict[str, str] = {
    "no row of one": "pyarrow reads no row of some of its own files of one row whose columns are lists or maps; the footer says one, and DuckDB and Polars read it",
}


# Values


def _text(r: random.Random) -> str:
    pools = [string.ascii_lowercase, string.printable, "aäßéœ日本語🙂\u00a0\u2028", "a", "\x00a\x7f\xff"]
    n = r.choice([0, 1, 2, 5, 15, 16, 17, 40, 300])
    return "".join(r.choices(r.choice(pools), k=n))


def _float(r: random.Random) -> float:
    return r.choice([0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 1e300, 5e-324, r.uniform(-10, 10), float(r.randint(-5, 5))])


def _float32(r: random.Random) -> float:
    import numpy as np

    return float(np.float32(r.choice([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 3.4e38, 1e-45, r.uniform(-10, 10), float(r.randint(-5, 5))])))


def _int(bits: int, signed: bool) -> Callable[[random.Random], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def value(r: random.Random) -> int:
        return r.choice([low, high, low + 1, high - 1, 0, high // 2, high // 2 + 1, r.randint(low, high), max(low, r.randint(-3, 3)), max(low, r.randint(-3, 3))])

    return value


def _within(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda r: r.choice([low, high, 0, 1, max(low, -1), r.randint(low, high), r.randint(low, high), r.randint(max(low, -5), min(high, 5))])


def _decimal(precision: int, scale: int) -> Callable[[random.Random], decimal.Decimal]:
    top = 10**precision - 1

    def value(r: random.Random) -> decimal.Decimal:
        n = r.choice([0, 1, -1, top, -top, r.randint(-top, top), r.randint(-min(top, 999), min(top, 999))])
        return decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=100))

    return value


US = 1_000_000
_LATE = 253_402_300_799  # seconds of the end of year 9999
_EARLY = -62_135_596_800  # of the beginning of year 1


def leaf(r: random.Random, ipc: bool) -> tuple[pa.DataType, Callable[[random.Random], Any]]:
    """A type without parts, and its values; of times these are integers."""
    zone = r.choice([None, "UTC", "Europe/Berlin", "+05:30"])
    p = r.choice([1, 4, 9, 10, 18, 19, 38])
    wide = r.choice([39, 50, 76])
    n = r.choice([1, 2, 12, 16, 33])
    choices: list[tuple[pa.DataType, Callable[[random.Random], Any]]] = [
        (pa.bool_(), lambda r: r.random() < 0.5),
        *[(getattr(pa, f"int{b}")(), _int(b, True)) for b in (8, 16, 32, 64)],
        *[(getattr(pa, f"uint{b}")(), _int(b, False)) for b in (8, 16, 32, 64)],
        (pa.float32(), _float32),
        (pa.float64(), _float),
        (pa.float64(), _float),
        (pa.string(), _text),
        (pa.string(), lambda r: f"key {r.randint(0, 9)}"),
        (pa.large_string(), _text),
        (pa.binary(), lambda r: r.randbytes(r.choice([0, 1, 16, 17, 200]))),
        (pa.large_binary(), lambda r: r.randbytes(r.choice([0, 1, 16, 40]))),
        (pa.binary(n), lambda r: r.choice([b"\x00" * n, b"\xff" * n, r.randbytes(n)])),
        (pa.date32(), _within(-719_162, 2_932_896)),
        (pa.timestamp("ms", zone), _within(_EARLY * 1000, _LATE * 1000)),
        (pa.timestamp("us", zone), _within(_EARLY * US, _LATE * US)),
        (pa.timestamp("ns", zone), _within(-(2**63) + 1, 2**63 - 1)),
        (pa.timestamp("s", zone), _within(_EARLY, _LATE)),
        (pa.time32("ms"), _within(0, 86_399_999)),
        (pa.time64("us"), _within(0, 86_400 * US - 1)),
        (pa.time64("ns"), _within(0, 86_400 * US * 1000 - 1)),
        (pa.decimal128(p, s := r.randint(0, p)), _decimal(p, s)),
        (pa.decimal256(wide, t := r.randint(0, wide)), _decimal(wide, t)),
        (pa.duration(r.choice(["s", "ms", "us", "ns"])), _within(-(10**9), 10**9)),
        (pa.null(), lambda r: None),
    ]
    if ipc:
        choices += [(pa.string_view(), _text), (pa.binary_view(), lambda r: r.randbytes(r.choice([0, 12, 13, 40]))), (pa.date64(), lambda r: 86_400_000 * r.randint(-9999, 9999)),
                    (pa.time32("s"), _within(0, 86_399))]  # fmt: skip
    return r.choice(choices)


def column(r: random.Random, n: int, ipc: bool, depth: int = 2) -> pa.Array:
    """A random array of n rows."""
    nulls = r.choice([0, 0, 0.1, 0.5, 1]) if r.random() < 0.9 else 0.02

    def mask(k: int) -> list[bool]:
        return [r.random() < nulls for _ in range(k)]

    kind = r.random()
    if depth and kind < 0.25:
        shape = r.choice(["list", "large_list", "fixed", "struct", "map"])
        if shape == "struct":
            fields = [column(r, n, ipc, depth - 1) for _ in range(r.randint(1, 3))]
            return pa.StructArray.from_arrays(fields, names=[f"f{i}" for i in range(len(fields))], mask=pa.array(mask(n), pa.bool_()))
        if shape == "fixed":
            width = r.randint(1, 4)
            return pa.FixedSizeListArray.from_arrays(column(r, n * width, ipc, depth - 1), width, mask=pa.array(mask(n), pa.bool_()))
        none = mask(n)
        sizes = [0 if gone else r.choice([0, 1, 2, 3, 7]) for gone in none]
        at, offsets = 0, []
        for gone, k in zip(none, sizes, strict=True):
            offsets.append(None if gone else at)
            at += k
        offsets.append(at)
        if shape == "map":
            keys = pa.array([f"k{i}" for i in range(at)], pa.string())
            return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, column(r, at, ipc, depth - 1))
        values = column(r, at, ipc, depth - 1)
        if shape == "list":
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    t, value = leaf(r, ipc)
    pool = [value(r) for _ in range(r.choice([1, 3, 20, n + 1]))]
    values = [None if gone else r.choice(pool) for gone in mask(n)]
    if r.random() < 0.3:
        values.sort(key=lambda v: (v is None, isinstance(v, float) and math.isnan(v), v if v is not None else 0))
    whole = {"ms": pa.int64(), "us": pa.int64(), "ns": pa.int64(), "s": pa.int64()}
    if pa.types.is_temporal(t):
        bits = pa.int32() if t.bit_width == 32 else whole["s"]
        return pa.array(values, bits).cast(t)
    if kind > 0.85 and not pa.types.is_null(t) and t in (pa.string(), pa.large_string(), pa.int64(), pa.int32(), pa.binary()):
        return pa.array(values, t).dictionary_encode().cast(pa.dictionary(pa.int32(), t))
    return pa.array(values, t)


HOSTILE = ["a", 'quo"te', "it's", "日本", "e\u0301", "%s", "a/b", "a=b", "_", "select", "1", "back\\slash", "tab\t", "line\nend", " ", "\u00a0x", "#", "NULL", "true", "[x]", "*", "x" * 300]


def table(r: random.Random, ipc: bool) -> pa.Table:
    n = r.choice([0, 1, 2, 17, 100, ROWS])
    names = ["a", "b c", "ü", "d.e", "F", "g"][: r.randint(1, 6)] if r.random() < 0.5 else r.sample(HOSTILE, r.randint(1, 6))
    return pa.table({name: column(r, n, ipc) for name in names})


# Files


def _pyarrow_parquet(r: random.Random, t: pa.Table, path: str) -> None:
    dictionary = r.random() < 0.6
    encodings = {}
    if not dictionary and r.random() < 0.7:
        for field in t.schema:
            options = ["PLAIN"]
            if pa.types.is_int32(field.type) or pa.types.is_int64(field.type):
                options += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
            elif pa.types.is_string(field.type) or pa.types.is_binary(field.type):
                options += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
            elif pa.types.is_floating(field.type) or pa.types.is_fixed_size_binary(field.type):
                options += ["BYTE_STREAM_SPLIT"]
            elif pa.types.is_boolean(field.type):
                options += ["RLE"]
            if not pa.types.is_nested(field.type) and not pa.types.is_dictionary(field.type):
                encodings[field.name] = r.choice(options)
    flat = [f.name for f in t.schema if not pa.types.is_nested(f.type) and not pa.types.is_boolean(f.type) and not pa.types.is_null(f.type)]
    blooms = {name: {"ndv": 100, "fpp": r.choice([0.5, 0.01])} for name in flat if r.random() < 0.5}
    pq.write_table(
        t,
        path,
        version=r.choice(["1.0", "2.4", "2.6"]),
        data_page_version=r.choice(["1.0", "2.0"]),
        use_dictionary=dictionary,
        column_encoding=encodings or None,
        compression=r.choice(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        row_group_size=r.choice([1 << 20, 100, 7]),
        data_page_size=r.choice([1 << 20, 64, 1]),
        write_batch_size=r.choice([1024, 5]),
        dictionary_pagesize_limit=r.choice([1 << 20, 20]),
        write_statistics=r.random() < 0.8,
        write_page_index=r.random() < 0.6,
        write_page_checksum=r.random() < 0.3,
        bloom_filter_options=blooms or None,
        max_rows_per_page=r.choice([20_000, 3]),
        store_decimal_as_integer=r.random() < 0.3,
        store_schema=r.random() < 0.7,
        use_compliant_nested_type=r.random() < 0.8,
    )


def _duckdb_parquet(r: random.Random, t: pa.Table, path: str) -> None:
    with duckdb.connect(":memory:") as con:
        con.register("t", t)
        con.execute(
            f"COPY (SELECT * FROM t) TO '{path}' (FORMAT parquet, COMPRESSION {r.choice(['uncompressed', 'snappy', 'gzip', 'zstd', 'lz4_raw', 'brotli'])}, "
            f"PARQUET_VERSION {r.choice(['V1', 'V2'])}, ROW_GROUP_SIZE {r.choice([2048, 100_000])}, DICTIONARY_SIZE_LIMIT {r.choice([1, 100, 100_000])})"
        )


def _polars(t: pa.Table) -> pl.DataFrame:
    if "decimal256" in str(t.schema):  # a panic there, with its stack on stderr
        raise NotImplementedError("Polars has no decimals of 256 bits")
    frame = pl.from_arrow(t)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _polars_parquet(r: random.Random, t: pa.Table, path: str) -> None:
    frame = _polars(t)
    frame.write_parquet(
        path,
        compression=r.choice(["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        statistics=r.choice([True, False, "full"]),
        row_group_size=r.choice([None, 50, 7]),
        data_page_size=r.choice([None, 64]),
    )


def _pyarrow_ipc(r: random.Random, t: pa.Table, path: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=r.choice([None, None, "lz4", "zstd"]), allow_64bit=True, unify_dictionaries=r.random() < 0.5,
                                     emit_dictionary_deltas=r.random() < 0.5, use_legacy_format=False)  # fmt: skip
    with pa.OSFile(path, "wb") as f, pa.ipc.new_file(f, t.schema, options=options) as w:
        w.write_table(t.unify_dictionaries(), max_chunksize=r.choice([1 << 20, 64, 5]))


def _pyarrow_stream(r: random.Random, t: pa.Table, path: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=r.choice([None, "lz4", "zstd"]), allow_64bit=True)
    with pa.OSFile(path, "wb") as f, pa.ipc.new_stream(f, t.schema, options=options) as w:
        w.write_table(t, max_chunksize=r.choice([1 << 20, 64, 5]))


def _pyarrow_feather(r: random.Random, t: pa.Table, path: str) -> None:
    pyarrow.feather.write_feather(t.unify_dictionaries(), path, compression=r.choice(["uncompressed", "lz4", "zstd"]), chunksize=r.choice([None, 50]))


def _polars_ipc(r: random.Random, t: pa.Table, path: str) -> None:
    frame = _polars(t)
    frame.write_ipc(path, compression=r.choice(["uncompressed", "lz4", "zstd"]))


def _int96_parquet(r: random.Random, t: pa.Table, path: str) -> None:
    """As Spark and Impala wrote times: INT96, of any year, with microseconds here."""
    t = t.select([f.name for f in t.schema if "timestamp" not in str(f.type)])
    for name in ["at 96", "at 96 of any year"]:
        near = name == "at 96"  # what nanoseconds can hold
        value = _within(-8_520_336_000 * US, 9_214_646_400 * US) if near else _within(_EARLY * US, _LATE * US)
        values = [None if r.random() < 0.1 else value(r) for _ in range(t.num_rows)]
        t = t.append_column(name, pa.array(values, pa.int64()).cast(pa.timestamp("us")))
    pq.write_table(t, path, use_deprecated_int96_timestamps=True, store_schema=False, row_group_size=r.choice([1 << 20, 100, 7]),
                   data_page_version=r.choice(["1.0", "2.0"]), use_dictionary=r.random() < 0.5, compression=r.choice(["none", "snappy"]))  # fmt: skip


WRITERS: dict[str, list[Callable[[random.Random, pa.Table, str], None]]] = {
    "parquet": [_pyarrow_parquet, _pyarrow_parquet, _pyarrow_parquet, _int96_parquet, _duckdb_parquet, _duckdb_parquet, _polars_parquet, _polars_parquet],
    "arrow": [_pyarrow_ipc, _pyarrow_stream, _pyarrow_feather, _polars_ipc],
}


class Unwritable(Exception):
    """The writer refuses the table, or nobody reads what it wrote."""


def make(r: random.Random, kind: str, folder: Path) -> tuple[Path, str]:
    """A random file, and who wrote it."""
    writer = r.choice(WRITERS[kind])
    t = table(r, kind == "arrow")
    path = folder / f"{r.choice(['f', 'a b', 'ü', '100%41', 'k=v', '#1', '$x', '{y}'])}.{kind}"
    try:
        writer(r, t, str(path))
    except BaseException as e:  # Polars panics
        if isinstance(e, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise Unwritable(f"{writer.__name__}: {e}") from e
    return path, writer.__name__


def read(path: Path) -> pa.Table:
    """All of a file, by pyarrow and without any filter."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(str(path), coerce_int96_timestamp_unit="us").read()
    with pa.OSFile(str(path), "rb") as f:
        magic = f.read(6)
    opened = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
    with pa.OSFile(str(path), "rb") as f:
        return opened(f).read_all()


def peers(path: Path) -> dict[str, pa.Table | str]:
    """What others read, or their errors."""
    got: dict[str, pa.Table | str] = {}

    def attempt(name: str, f: Callable[[], pa.Table]) -> None:
        try:
            got[name] = f()
        except BaseException as e:  # Polars panics
            got[name] = f"{type(e).__name__}: {e}"

    if path.suffix == ".parquet":
        attempt("duckdb", lambda: duckdb.connect(":memory:").sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table())
        attempt("polars", lambda: pl.read_parquet(path).to_arrow())
    else:
        attempt("polars", lambda: (pl.read_ipc_stream(path) if path.read_bytes()[:6] != b"ARROW1" else pl.read_ipc(path, memory_map=False)).to_arrow())
    return got


# Values that can be compared


UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def plain(a: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, whatever the encoding of its type: equal ones are equal objects."""
    if isinstance(a, pa.ChunkedArray):
        return [v for chunk in a.chunks for v in plain(chunk)]
    t = a.type
    if isinstance(t, pa.BaseExtensionType):
        return plain(a.storage)
    if pa.types.is_dictionary(t):
        values = plain(a.dictionary)
        return [None if i is None else values[i] for i in a.indices.to_pylist()]
    if pa.types.is_run_end_encoded(t):
        return plain(pa.compute.run_end_decode(a))
    if pa.types.is_date64(t):
        return [None if v is None else v // 86_400_000 for v in a.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(t):
        return a.cast(pa.int32()).to_pylist()
    if pa.types.is_temporal(t) and not pa.types.is_interval(t):
        by = UNIT[t.unit]
        return [None if v is None else v * by for v in (a.cast(pa.int32()).to_pylist() if t.bit_width == 32 else a.cast(pa.int64()).to_pylist())]
    if pa.types.is_floating(t):
        return [None if v is None else number(v) for v in a.to_pylist()]
    if pa.types.is_decimal(t):
        # Without trailing zeros: a scale is part of the type.
        return [None if v is None else v.normalize(decimal.Context(prec=100)) + 0 for v in a.to_pylist()]
    if pa.types.is_struct(t):
        fields = [plain(f) for f in a.flatten()] if t.num_fields else []
        return [None if not ok else {t.field(i).name: f[j] for i, f in enumerate(fields)} for j, ok in enumerate(a.is_valid().to_pylist())]
    if pa.types.is_map(t):
        return [None if v is None else [(k, x) for k, x in zip(plain(v.field(0)), plain(v.field(1)), strict=True)] for v in (s.values for s in a)]
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t) or pa.types.is_list_view(t) or pa.types.is_large_list_view(t):
        return [None if s.values is None else plain(s.values) for s in a]
    return a.to_pylist()


def number(v: float) -> Any:
    """A float that is equal to itself only: zeros have signs, and NaN is one."""
    if math.isnan(v):
        return "NaN"
    return "-0" if v == 0 and math.copysign(1, v) < 0 else v


# Filters


Test = Callable[[Any], bool | None]


def literal(t: pa.DataType, v: Any) -> str | None:
    """A value in an expression of Penstock; None where there is no such literal."""
    if pa.types.is_boolean(t):
        return "true" if v else "false"
    if pa.types.is_integer(t):
        return f"{v}u" if v > 2**63 - 1 else str(v) if v > -(2**63) else None
    if pa.types.is_floating(t):
        if v in ("NaN", "-0") or math.isinf(v):
            return None
        return repr(v)
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return '"' + "".join(c if c.isalnum() and c.isascii() or c == " " else f"\\U{ord(c):08x}" for c in v) + '"'
    if pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t) or pa.types.is_binary_view(t):
        return 'b"' + "".join(f"\\x{c:02x}" for c in v) + '"'
    if pa.types.is_date(t):
        day = datetime.date(1970, 1, 1) + datetime.timedelta(days=v)
        return f'"{day.isoformat()}"'
    if pa.types.is_timestamp(t):
        seconds, rest = divmod(v, 10**9)
        if not _EARLY <= seconds <= _LATE:
            return None
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
        return f'"{at.isoformat()}.{rest:09d}{"Z" if t.tz else ""}"'
    return None


def tests(r: random.Random, t: pa.Table) -> Iterator[tuple[str, int, Test]]:
    """Endless conditions on one column: the expression, the column, and what is true of its values."""
    cache: dict[int, list[Any]] = {}
    while True:
        i = r.randrange(t.num_columns)
        typ = t.schema.field(i).type
        typ = typ.value_type if pa.types.is_dictionary(typ) else typ
        col = f'col({json.dumps(t.schema.field(i).name, ensure_ascii=False)})'
        how = r.random()
        if how < 0.15 or pa.types.is_nested(typ) or pa.types.is_null(typ):
            if r.random() < 0.5:
                yield f"is_null({col})", i, lambda v: v is None
            else:
                yield f"!is_null({col})", i, lambda v: v is not None
            continue
        if i not in cache:
            cache[i] = [v for v in plain(t.column(i)) if v is not None]
        have = cache[i]
        v = r.choice(have) if have and r.random() < 0.9 else None
        if v is None:
            yield f"is_null({col})", i, lambda v: v is None
            continue
        if pa.types.is_integer(typ):
            near = v + r.choice([0, 0, -1, 1])
            v = near if -(2**63) < near < 2**64 else v
        elif isinstance(v, str | bytes) and not pa.types.is_floating(typ) and r.random() < 0.4:
            v = r.choice([v[:1], v[:16], v + v[:1], v[:-1]])
        elif isinstance(v, float) and r.random() < 0.3:
            v = r.choice([v + 1, v - 1, 0.0])
            if pa.types.is_float32(typ):
                import numpy as np

                with np.errstate(over="ignore"):
                    v = float(np.float32(v))
        lit = literal(typ, v)
        if lit is None:
            continue
        if how < 0.3:
            others = [x for x in (r.choice(have) for _ in range(2)) if literal(typ, x) is not None]
            yield f"{col} in [{', '.join([lit, *(str(literal(typ, x)) for x in others)])}]", i, _in([v, *others])
            continue
        op = r.choice(["==", "!=", "<", "<=", ">", ">="])
        yield f"{col} {op} {lit}", i, _compare(op, v)


def _ordered(v: Any) -> Any:
    return 0.0 if v == "-0" and isinstance(v, str) else v


def _in(values: list[Any]) -> Test:
    floats = any(isinstance(v, float) for v in values)
    return lambda v: None if v is None else (_ordered(v) if floats else v) in values


def _compare(op: str, to: Any) -> Test:
    def test(v: Any) -> bool | None:
        if v is None:
            return None
        if isinstance(to, float):
            if v == "NaN":
                return op == "!="
            v = _ordered(v)
        return bool({"==": v == to, "!=": v != to}[op] if op in ("==", "!=") else {"<": v < to, "<=": v <= to, ">": v > to, ">=": v >= to}[op])

    return test


def both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: bool | None, b: bool | None) -> bool | None:
    return True if a is True or b is True else None if a is None or b is None else False


def filters(r: random.Random, t: pa.Table, n: int) -> list[tuple[str, list[int]]]:
    """Conditions, and the rows of which they are true."""
    columns = [plain(c) for c in t.columns]
    one = tests(r, t)
    made = []
    for _ in range(n):
        text, i, test = next(one)
        kept = [test(v) for v in columns[i]]
        how = r.random()
        if how < 0.3:
            more, j, other = next(one)
            second = [other(v) for v in columns[j]]
            join = r.choice([both, either])
            text = f"({text}) {'&&' if join is both else '||'} ({more})"
            kept = [join(a, b) for a, b in zip(kept, second, strict=True)]
        if 0.2 < how < 0.4:
            text, kept = f"!({text})", [None if k is None else not k for k in kept]
        made.append((text, [at for at, k in enumerate(kept) if k]))
    return made


# Penstock


def ask(binary: str, path: Path, columns: list[str], conditions: list[str], more: dict[str, Any] | None = None) -> list[pa.Table] | str:
    """The rows of each condition, or the error."""
    source: dict[str, Any] = {"parquet" if path.suffix in (".parquet", "") else "ipc": {"paths": [str(path)]} | (more or {})}

    def steps(k: int) -> list[dict[str, Any]]:
        return [{"filter": conditions[k]}] * (conditions[k] != "true") + [{"select": columns}, {"with_columns": {"query_": str(k)}}]

    spec = {"version": 1, "source": source, "steps": [*steps(0), {"union": [{"source": source, "steps": steps(k)} for k in range(1, len(conditions))]}],
            "sink": {"ipc": {"path": str(path.parent / "out")}}, "run": {"cpus": 1, "memory": "256MiB"}}  # fmt: skip
    file = path.parent / "spec.yaml"
    file.write_text(json.dumps(spec, ensure_ascii=False))
    done = subprocess.run([binary, "run", "--quiet", str(file)], capture_output=True, text=True, errors="replace", timeout=120)
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"
    parts = sorted((path.parent / "out").glob("*.arrow"))
    all_rows = pa.concat_tables([read(p) for p in parts]) if parts else None
    if all_rows is None:
        return "no files of rows"
    which = all_rows.column("query_").to_pylist()
    rest = all_rows.drop_columns(["query_"])
    return [rest.take(pa.array([i for i, q in enumerate(which) if q == k], pa.int64())) for k in range(len(conditions))]


# Folders


WIDER: dict[str, list[pa.DataType]] = {
    "int64": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8()],
    "double": [pa.float64(), pa.float32(), pa.int32(), pa.int8()],
    "string": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "timestamp": [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")],
    "zoned": [pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")],
}


def many(r: random.Random, at: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Files of different schemas in partition folders: all of their rows in the order of their paths, and options of the source."""
    kinds = {name: r.choice(list(WIDER)) for name in r.sample(HOSTILE[:12], r.randint(1, 4))}
    of_text = r.random() < 0.5
    values = r.sample(["x", "y z", "ü", "a=b", "100%", "", "it's"] if of_text else ["0", "7", "-12", "300"], r.randint(1, 3))
    tables: dict[str, pa.Table] = {}
    for value in values:
        hive = "key=" + ("".join(c if c.isalnum() and c.isascii() else "".join(f"%{b:02X}" for b in c.encode()) for c in value) if of_text else value)
        for i in range(r.randint(1, 2)):
            n, columns = r.choice([1, 3, 40]), {}
            for name, kind in kinds.items():
                t = r.choice(WIDER[kind])
                small = [None if r.random() < 0.1 else r.randint(0, 100) for _ in range(n)]
                text: list[Any] = [None if v is None else f"t{v}" for v in small]
                columns[name] = pa.array(text if kind == "string" else small, pa.string() if kind == "string" else pa.int64()).cast(t)
            t = pa.table(columns)
            where = at / hive / f"{r.choice('abc')}{i}.parquet"
            where.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(t, where, row_group_size=r.choice([5, 1 << 20]))
            wide = pa.schema([(name, {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "timestamp": pa.timestamp("ns"), "zoned": pa.timestamp("us", "UTC")}[k]) for name, k in kinds.items()])
            tables[str(where.relative_to(at))] = t.cast(wide).append_column("key", pa.array([value if of_text else int(value)] * n, pa.string() if of_text else pa.int64()))
    # A condition on the folders decides which files there are, and so which type holds those of all: one is given where a union would not make them one.
    told = {"double": "double", "string": "string", "timestamp": "timestamp[ns]", "zoned": "timestamp[us, UTC]"}
    types = {name: told.get(k, k) for name, k in kinds.items() if k in told or r.random() < 0.3}
    more: dict[str, Any] = ({"types": types} if types else {}) | {"partition_types": {"key": "string" if of_text else "int64"}}
    return pa.concat_tables([tables[k] for k in sorted(tables, key=str.encode)]), more


def of_folder(binary: str, seed: int, at: Path) -> list[str]:
    """What Penstock reads differently of the folder of this seed; DuckDB reads it, too, with the number of its rows."""
    r = random.Random(seed)
    t, more = many(r, at / "in")
    values = {name: plain(t.column(i)) for i, name in enumerate(t.column_names)}
    made = [("true", list(range(t.num_rows))), *filters(r, t, FILTERS)]
    got = ask(binary, at / "in", t.column_names, [text for text, _ in made], more)
    what = f"folder, seed {seed}, {sorted(str(p.relative_to(at)) for p in (at / 'in').rglob('*.parquet'))}, {more}, {[f'{f.name}: {f.type}' for f in t.schema]}"
    if isinstance(got, str):
        return [f"{what}: {got}"]
    found = []
    for (text, rows), answer in zip(made, got, strict=True):
        for name in t.column_names:
            want, have = [values[name][i] for i in rows], plain(answer.column(name))
            if have != want:
                k = next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
                found.append(f"{what}: where {text}: column {name!r} has {len(have)} rows, of {len(want)}; row {k}: {have[k : k + 1]}, {want[k : k + 1]}")
                break
    with duckdb.connect(":memory:") as con:
        theirs = con.execute("select count(*) from read_parquet($1, union_by_name = true, hive_partitioning = true)", [f"{at}/in/*/*.parquet"]).fetchall()[0][0]
    return found if theirs == t.num_rows else [*found, f"{what}: DuckDB reads {theirs} rows, of {t.num_rows}"]


def differences(binary: str, kind: str, seed: int, folder: Path) -> list[str]:
    """What Penstock reads differently of the file of this seed. Raises Unwritable where there is no such file."""
    if kind == "folder":
        return of_folder(binary, seed, folder)
    r = random.Random(seed)
    path, writer = make(r, kind, folder)
    try:
        t = read(path)
        values = {name: plain(t.column(i)) for i, name in enumerate(t.column_names)}
    except Exception as e:
        raise Unwritable(f"pyarrow cannot read what {writer} wrote: {e}") from e
    if few(path, t):
        raise Unwritable(DISAGREE["no row of one"])
    columns = r.sample(t.column_names, r.randint(1, len(t.column_names)))
    made = [("true", list(range(t.num_rows))), *filters(r, t, FILTERS)]
    got = ask(binary, path, columns, [text for text, _ in made])
    what = f"{kind} of {writer}, seed {seed}, columns {columns} of {[f'{f.name}: {f.type}' for f in t.schema]}"
    if isinstance(got, str):
        return [f"{what}: {got}"]
    found = []
    for (text, rows), answer in zip(made, got, strict=True):
        for name in columns:
            want, have = [values[name][i] for i in rows], plain(answer.column(name))
            if have != want:
                at = next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
                found.append(f"{what}: where {text}: column {name!r} has {len(have)} rows, of {len(want)}; row {at}: {have[at : at + 1]}, {want[at : at + 1]}; others: {others(path, name, rows)}")
                break
    return found


def others(path: Path, name: str, rows: list[int]) -> dict[str, str]:
    said = {}
    for who, t in peers(path).items():
        said[who] = t[:200] if isinstance(t, str) else str([plain(t.column(name))[i] for i in rows[:3]])[:200]
    return said


def few(path: Path, t: pa.Table) -> bool:
    """Whether it is a file that pyarrow reads no row of, though the footer and others have one: see DISAGREE."""
    if path.suffix != ".parquet" or t.num_rows or pq.ParquetFile(str(path)).metadata.num_rows != 1:
        return False
    said = peers(path).values()
    return any(not isinstance(p, str) and p.num_rows == 1 for p in said)


def known(text: str) -> bool:
    return any(mark in text for mark in DISAGREE)


def search(binary: str, kind: str, seconds: float, first: int, workers: int = 2) -> tuple[int, int, list[str]]:
    """Tries seeds from the first until the time is up: files read, files that nobody could write, differences."""
    end = time.monotonic() + seconds
    made = refused = 0
    found: list[str] = []

    def one(seed: int) -> list[str] | None:
        if time.monotonic() > end:
            return None
        with tempfile.TemporaryDirectory() as folder:
            try:
                return differences(binary, kind, seed, Path(folder))
            except Unwritable:
                return None

    with ThreadPoolExecutor(workers) as pool:
        seed = first
        while time.monotonic() < end and len(found) < 20:
            for one_found in pool.map(one, range(seed, seed + 8 * workers)):
                if one_found is None:
                    refused += 1
                else:
                    made += 1
                    found += [text for text in one_found if not known(text)]
            seed += 8 * workers
    return made, refused, found


if __name__ == "__main__":
    penstock = os.environ.get("PENSTOCK", "bin/penstock")
    kinds = os.environ.get("KIND", "parquet arrow").split()
    if sys.argv[1] == "search":
        for k in kinds:
            n, none, texts = search(penstock, k, float(sys.argv[2]), int(sys.argv[3]))
            print(f"{k}: {n} files, {none} not written, {len(texts)} differences")
            print("\n".join(texts))
    else:
        for k in kinds:
            for s in sys.argv[1:]:
                with tempfile.TemporaryDirectory() as d:
                    try:
                        print("\n".join(differences(penstock, k, int(s), Path(d))) or f"{k} {s}: equal")
                    except Unwritable as e:
                        print(f"{k} {s}: {e}")
