#!/usr/bin/env python3
"""Writes Parquet files with pyarrow, DuckDB and Polars, and prints what pyarrow (or else DuckDB) reads from them.

    writers.py FOLDER SEED

Files that are in the folder already (of other writers) are read as well. For every file a line of JSON: its name, the number of rows, and for
each column its type as kind() gives it and the SHA-256 of all values in the canonical text of golden.py.
"""

import datetime
import decimal
import hashlib
import json
import os
import random
import sys

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

from golden import text

folder, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)


def array(t, rows, nulls, few):
    """Random values: one of `few` distinct ones each, null with the probability `nulls`."""
    if pa.types.is_fixed_size_list(t):
        nulls = 0  # pyarrow cannot read its own
    pool = [value(t) for _ in range(few)]
    return pa.array([None if rng.random() < nulls else rng.choice(pool) for _ in range(rows)], t)


def value(t):
    p = pa.types
    if p.is_boolean(t):
        return rng.random() < 0.5
    if p.is_integer(t):
        low = 0 if p.is_unsigned_integer(t) else -(1 << (t.bit_width - 1))
        high = (1 << t.bit_width) - 1 + low
        return rng.choice([rng.randint(low, high), rng.randint(max(low, -9), 9), low, high])
    if p.is_floating(t):
        return rng.choice([rng.gauss(0, 100), 0.0, -0.0, float("inf"), float("nan"), float(rng.randint(0, 5))])
    if p.is_string(t) or p.is_large_string(t):
        return rng.choice(["", "a", "Süß", "prefix/%06d" % rng.randint(0, 999), "x" * rng.randint(1, 300)])
    if p.is_binary(t) or p.is_large_binary(t):
        return rng.randbytes(rng.choice([0, 1, 7, 100]))
    if p.is_fixed_size_binary(t):
        return rng.randbytes(t.byte_width)
    if p.is_decimal(t):
        digits = rng.randint(1, t.precision)
        return decimal.Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-t.scale, decimal.Context(prec=80))
    if p.is_date(t):
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randint(-9999, 99999))
    if p.is_time(t):
        return datetime.time(rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59), rng.randint(0, 999) * 1000)
    if p.is_timestamp(t):
        return datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc if t.tz else None) + datetime.timedelta(milliseconds=rng.randint(-(10**12), 10**12))
    if p.is_map(t):
        return [("k%d" % i, value(t.item_type)) for i in range(rng.randint(0, 4))]
    if p.is_fixed_size_list(t):
        return [value(t.value_type) for _ in range(t.list_size)]
    if p.is_list(t):
        return [None if rng.random() < 0.1 else value(t.value_type) for _ in range(rng.choice([0, 1, 3, 30]))]
    if p.is_struct(t):
        return {f.name: None if rng.random() < 0.2 else value(f.type) for f in t}
    raise TypeError(str(t))


flat = [pa.bool_(), pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(),
        pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.decimal128(9, 2), pa.decimal128(20, 4)]
more = [pa.float16(), pa.large_string(), pa.large_binary(), pa.binary(7), pa.decimal256(50, 3), pa.time32("ms"), pa.time64("ns"), pa.timestamp("s", "UTC")]
nested = [pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.list_(pa.float64())), pa.struct([("a", pa.int64()), ("b", pa.string())]),
          pa.list_(pa.struct([("a", pa.float32()), ("b", pa.list_(pa.string()))])), pa.struct([("l", pa.list_(pa.int64())), ("s", pa.struct([("x", pa.bool_())]))])]
maps = [pa.map_(pa.string(), pa.int64()), pa.list_(pa.float32(), 4)]


def table(types, rows):
    cols = {}
    for i, t in enumerate(types):
        cols["c%02d_%s" % (i, "".join(c if c.isalnum() else "_" for c in str(t))[:24])] = array(t, rows, rng.choice([0, 0, 0.1, 0.9, 1]), rng.choice([1, 5, 200, rows]))
    return pa.table(cols)


def encodings(t, schema):
    """An encoding for each flat column."""
    p = pa.types
    out = {}
    for f in schema:
        of = ["PLAIN"]
        if p.is_boolean(f.type):
            of.append("RLE")
        elif p.is_integer(f.type) or p.is_temporal(f.type):
            of += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        elif p.is_floating(f.type) or p.is_fixed_size_binary(f.type):
            of.append("BYTE_STREAM_SPLIT")
        elif p.is_string(f.type) or p.is_binary(f.type) or p.is_large_string(f.type) or p.is_large_binary(f.type):
            of += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        out[f.name] = rng.choice(of)
    return out


for i in range(14):
    rows = rng.choice([1, 100, 1500])
    wide = i % 2 == 0
    t = table(flat + more + (nested + maps if wide else []), rows)
    how = {} if wide or rng.random() < 0.3 else {"use_dictionary": False, "column_encoding": encodings(t, t.schema)}
    pq.write_table(t, "%s/pyarrow-%02d.parquet" % (folder, i), version=rng.choice(["1.0", "2.4", "2.6"]), data_page_version=rng.choice(["1.0", "2.0"]),
                   compression=rng.choice(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]), data_page_size=rng.choice([200, 5000, 1 << 20]), write_batch_size=rng.choice([7, 1024]),
                   row_group_size=rng.choice([97, 10000]), write_page_index=rng.random() < 0.5, write_page_checksum=rng.random() < 0.5, store_schema=rng.random() < 0.5,
                   dictionary_pagesize_limit=rng.choice([500, 1 << 20]), **how)
    # (version 1.0 and no stored schema: types become what the file can say, which is what both readers then give)

for i in range(8):
    t = table(flat + nested[: rng.randint(0, len(nested))] + maps[:1], rng.choice([1, 2049, 5000]))
    c = duckdb.connect()
    c.execute("SET threads = 1")
    c.register("t", t)
    codec = rng.choice(["uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw"])
    c.execute("COPY t TO '%s/duckdb-%02d.parquet' (FORMAT parquet, COMPRESSION %s, PARQUET_VERSION %s, ROW_GROUP_SIZE %d)" % (folder, i, codec, rng.choice(["v1", "v2"]), rng.choice([2048, 100000])))

for i in range(8):
    t = polars.from_arrow(table(flat + nested, rng.choice([1, 300, 3000])))
    t.write_parquet("%s/polars-%02d.parquet" % (folder, i), compression=rng.choice(["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]), statistics=rng.random() < 0.5,
                    row_group_size=rng.choice([97, 100000]), data_page_size=rng.choice([500, 1 << 20]))



def kind(f):
    """The type of a field as kindText of writers_test.go says it, too: names of fields within lists and maps are left out."""
    t, p = f.type, pa.types
    while isinstance(t, pa.BaseExtensionType):
        t = t.storage_type
    if p.is_dictionary(t):
        t = t.value_type
    if p.is_struct(t):
        out = "struct<" + ", ".join(k.name + ": " + kind(k) for k in t) + ">"
    elif p.is_map(t):
        out = "map<%s, %s>" % (kind(t.key_field), kind(t.item_field))
    elif p.is_fixed_size_list(t):
        out = "list[%d]<%s>" % (t.list_size, kind(t.value_field))
    elif p.is_list(t) or p.is_large_list(t):
        out = ("large_list<" if p.is_large_list(t) else "list<") + kind(t.value_field) + ">"
    else:
        out = str(t)
    return out if f.nullable else out + " not null"


for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    try:
        t = pq.ParquetFile(path, page_checksum_verification=True).read()
    except OSError:  # pyarrow 25 refuses some of the deltas that DuckDB writes
        t = duckdb.read_parquet(path).to_arrow_table().cast(pq.ParquetFile(path).schema_arrow)
    cols = [hashlib.sha256("\n".join(text(c)).encode()).hexdigest() for c in t.columns]
    print(json.dumps({"file": name, "rows": t.num_rows, "names": t.column_names, "kinds": [kind(f) for f in t.schema], "hashes": cols}))
