"""Makes the files that all programs read: gen.py DIR SCALE.

SCALE is the fraction of 20 M taxi rows (5 M floats, 2 M texts, ...) in the files of the scan,
and of the full size of the other workloads where it is below 0.25. What DuckDB, pyarrow and
Polars write is written here; base/ is what `peers gen` rewrites with arrow-go.
"""
import os
import sys

try:
    import duckdb
    import numpy as np
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as e:
    sys.exit(f"making the files needs duckdb, numpy, polars and pyarrow ({e}): run make bench-peers once without QUICK")

out, scale = sys.argv[1], float(sys.argv[2])
rest = min(1.0, scale * 4)  # the other workloads have their full size from a scale of 0.25 on


def n(full, s=scale):
    return max(1000, int(full * s))


def u(k):
    """A number in [0, 1) that depends on the row and k only."""
    return f"((hash(i * 64 + {k}) % 1000003) / 1000003.0)"


def null(k, p, e):
    return f"CASE WHEN {u(k)} < {p} THEN NULL ELSE {e} END"


TAXI = ", ".join([
    f"(TIMESTAMP '2024-01-01' + to_microseconds((i * 700000 + hash(i) % 90000000)::BIGINT)) AS pickup",
    f"(TIMESTAMP '2024-01-01' + to_microseconds((i * 700000 + hash(i) % 90000000 + 60000000 + hash(i + 9) % 3000000000)::BIGINT)) AS dropoff",
    f"(1 + hash(i * 3) % 2)::INTEGER AS vendor",
    null(1, 0.04, f"(({u(2)} * 6)::INTEGER)") + " AS passengers",
    null(1, 0.04, f"(1 + ({u(3)} * {u(3)} * 5)::INTEGER)::INTEGER") + " AS rate_code",
    f"(1 + ({u(4)} * {u(5)} * 264)::BIGINT) AS from_zone",
    f"(1 + ({u(6)} * 264)::BIGINT) AS to_zone",
    f"(1 + ({u(7)} * {u(7)} * 4)::BIGINT) AS payment",
    f"round(-3.0 * ln(1.0000001 - {u(8)}), 2) AS trip_distance",
    f"round(3 + 9 * -ln(1.0000001 - {u(9)}), 1) AS fare",
    f"[0.0, 0.5, 1.0, 2.5, 5.0][1 + ({u(10)} * 4.99)::INTEGER % 5] AS extra",
    f"CASE WHEN {u(11)} < 0.99 THEN 0.5 ELSE -0.5 END AS tax",
    f"CASE WHEN {u(12)} < 0.3 THEN 0.0 ELSE round(-2.5 * ln(1.0000001 - {u(13)}), 2) END AS tip",
    f"CASE WHEN {u(14)} < 0.92 THEN 0.0 ELSE 6.55 END AS tolls",
    f"CASE WHEN {u(15)} < 0.99 THEN 0.3 ELSE 0.0 END AS surcharge",
    f"round(8 + 14 * -ln(1.0000001 - {u(9)}), 2) AS total",
    null(1, 0.04, f"CASE WHEN {u(16)} < 0.9 THEN 2.5 ELSE 0.0 END") + " AS congestion",
    null(1, 0.04, f"CASE WHEN {u(17)} < 0.9 THEN 0.0 ELSE 1.25 END") + " AS airport",
    null(1, 0.04, f"CASE WHEN {u(18)} < 0.99 THEN 'N' ELSE 'Y' END") + " AS flag",
])
FLOATS = ", ".join(f"(({u(k)} - 0.5) * {1 + k})::FLOAT AS f{k:02d}" for k in range(40))
NULLS = ", ".join([
    null(1, 0.1, f"'city ' || (({u(20)} * {u(21)} * 2000)::INTEGER)") + " AS city",
    null(2, 0.1, f"'kind ' || (({u(22)} * 20)::INTEGER)") + " AS kind",
    null(3, 0.1, "md5(i::VARCHAR)") + " AS digest",
    null(4, 0.1, f"{u(23)} < 0.5") + " AS ok",
    null(5, 0.1, f"(DATE '2020-01-01' + ({u(24)} * 1500)::INTEGER)") + " AS day",
    null(6, 0.1, "(TIMESTAMP '2024-01-01' + to_microseconds((i * 1000 + hash(i) % 900)::BIGINT))") + " AS at",
    null(7, 0.1, "(i * 3 + hash(i) % 5)::BIGINT") + " AS counter",
    null(8, 0.1, "(hash(i) % 1000000007)::BIGINT") + " AS key",
    null(9, 0.1, f"({u(25)} * 100)::INTEGER") + " AS percent",
    null(10, 0.1, f"({u(26)} * 1e6)::DOUBLE") + " AS x",
    null(11, 0.1, f"({u(27)} * 10)::FLOAT") + " AS y",
    null(12, 0.1, f"round({u(28)} * 100, 1)::DOUBLE") + " AS z",
])


def make(path, write):
    """Writes a file or folder once: under another name until it is whole."""
    path = os.path.join(out, path)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write(path + ".new")
    os.rename(path + ".new", path)
    print("made", path, flush=True)


con = duckdb.connect()
con.execute("SET threads = 2; SET preserve_insertion_order = true; SET memory_limit = '4GB'")


def duck(columns, rows, options):
    return lambda path: con.execute(f"COPY (SELECT {columns} FROM (SELECT range AS i FROM range({rows}))) TO '{path}' (FORMAT parquet, {options})")


def copy(src, options):
    return lambda path: con.execute(f"COPY (FROM '{os.path.join(out, src)}') TO '{path}' (FORMAT parquet, {options})")


def arrow(table_of, **options):
    return lambda path: pq.write_table(table_of(), path, **options)


SMALL, BIG, V2 = "ROW_GROUP_SIZE 122880", "ROW_GROUP_SIZE 1000000", "PARQUET_VERSION v2"
taxi, floats, nulls = n(20e6), n(5e6), n(10e6)
make("scan/taxi_duck_snappy_120k.parquet", duck(TAXI, taxi, f"COMPRESSION snappy, {SMALL}"))
T = "scan/taxi_duck_snappy_120k.parquet"
make("scan/taxi_duck_snappy_1m.parquet", copy(T, f"COMPRESSION snappy, {BIG}"))
make("scan/taxi_duck_zstd_120k.parquet", copy(T, f"COMPRESSION zstd, {SMALL}"))
make("scan/taxi_duckv2_zstd_120k.parquet", copy(T, f"COMPRESSION zstd, {V2}, {SMALL}"))
make("scan/taxi_polars_snappy_1m.parquet", lambda p: pl.scan_parquet(os.path.join(out, T)).sink_parquet(p, compression="snappy", row_group_size=1_000_000))
make("scan/floats_duck_none.parquet", duck(FLOATS, floats, f"COMPRESSION uncompressed, {SMALL}"))
F = "scan/floats_duck_none.parquet"
make("scan/floats_duck_snappy.parquet", copy(F, f"COMPRESSION snappy, {SMALL}"))
make("scan/floats_duckv2_zstd.parquet", copy(F, f"COMPRESSION zstd, {V2}, {SMALL}"))
make("scan/nulls_duckv1_snappy.parquet", duck(NULLS, nulls, f"COMPRESSION snappy, {SMALL}"))
make("scan/nulls_duckv2_zstd.parquet", copy("scan/nulls_duckv1_snappy.parquet", f"COMPRESSION zstd, {V2}, {SMALL}"))

rng = np.random.default_rng(7)


def zipf_tokens(size):
    return np.minimum(rng.zipf(1.2, size), 50_000).astype(np.int32)


def words(size):
    """Text of words that are as frequent as those of a language."""
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)
    vocabulary = [bytes(letters[rng.zipf(1.5, rng.integers(2, 11)) % 26]) for _ in range(8000)]
    ids = np.minimum(rng.zipf(1.3, size // 5), 7999)
    return b" ".join(vocabulary[i] for i in ids)


def text_table():
    rows = n(2e6)
    pool = words(48 << 20)
    at, size = rng.integers(0, len(pool) - 1000, rows), rng.integers(200, 801, rows)
    texts = [pool[a:a + s].decode() for a, s in zip(at, size)]
    return pa.table({"id": pa.array(np.arange(rows)), "text": pa.array(texts), "label": pa.array(rng.integers(0, 10, rows).astype(np.int32))})


def lists(values, width):
    rows = len(values) // width
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(values))


def images(rows, mean=50_000):
    sizes = rng.integers(mean // 2, mean * 3 // 2, rows)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = pa.py_buffer(rng.bytes(int(offsets[-1])))
    blob = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])
    return pa.table({"id": pa.array(np.arange(rows)), "image": blob, "label": pa.array(rng.integers(0, 1000, rows).astype(np.int32))})


plain = dict(compression="none", use_dictionary=False)
make("base/text.parquet", arrow(text_table, row_group_size=100_000, **plain))
make("base/emb.parquet", arrow(lambda: pa.table({"id": np.arange(n(2e5)), "vector": lists(rng.standard_normal(n(2e5) * 768).astype(np.float32), 768)}), row_group_size=10_000, **plain))
make("base/tok.parquet", arrow(lambda: pa.table({"tokens": lists(zipf_tokens(n(1e5) * 2048), 2048)}), row_group_size=5_000, **plain))
make("base/img.parquet", arrow(lambda: images(n(2e4)), row_group_size=500, **plain))
make("scan/text_duckv2_zstd.parquet", copy("base/text.parquet", f"COMPRESSION zstd, {V2}, {SMALL}"))

# The table of the filter workload: 8 files of 625,000 rows, 41 float32 and one int32; pyarrow's defaults.
TABLE_ROWS = n(625_000, rest)


def table_file(k):
    r = np.random.default_rng(100 + k)
    cols = {}
    for j in range(38):
        v = r.standard_normal(TABLE_ROWS, dtype=np.float32)
        cols[f"f{j:02d}"] = v if j < 20 else np.round(v, 2)
    cols["distance"] = (-3.0 * np.log1p(-r.random(TABLE_ROWS))).astype(np.float32)
    cols["fare"] = np.round(2.5 + 40 * r.random(TABLE_ROWS), 2).astype(np.float32)
    cols["tip"] = (cols["fare"] * 0.3 * r.random(TABLE_ROWS)).astype(np.float32)
    cols["passengers"] = r.integers(0, 6, TABLE_ROWS).astype(np.int32)
    return pa.table(cols)


def table(path):
    os.makedirs(path, exist_ok=True)
    for k in range(8):
        pq.write_table(table_file(k), os.path.join(path, f"part{k}.parquet"), row_group_size=122_880)


make("table", table)


def tokens(path):
    os.makedirs(path, exist_ok=True)
    docs = n(25_000, rest)
    for k in range(8):
        lengths = np.clip(np.exp(rng.normal(np.log(600) - 0.72, 1.2, docs)), 1, 2048).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = rng.integers(1, 50_001, offsets[-1]).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
        pq.write_table(pa.table({"tokens": column}), os.path.join(path, f"docs{k}.parquet"), row_group_size=5_000)


make("tokens", tokens)


def many(path):
    os.makedirs(path, exist_ok=True)
    for k in range(max(20, int(1000 * rest))):
        i = np.arange(10_000) + k * 10_000
        t = pa.table({"id": i, "x": rng.random(10_000), "label": rng.integers(0, 100, 10_000).astype(np.int32),
                      "kind": pa.array(np.array(["a", "bb", "ccc", "dddd"])[rng.integers(0, 4, 10_000)])})
        pq.write_table(t, os.path.join(path, f"f{k:04d}.parquet"), row_group_size=1_000)


make("many", many)


def inflate(path):
    rows = n(2000, rest)
    data = pa.py_buffer(rng.bytes(rows * 4096))
    blob = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * 4096), data])
    pq.write_table(pa.table({"blob": blob}), path, row_group_size=250)


make("inflate.parquet", inflate)
