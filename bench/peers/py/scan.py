"""Full scans: scan.py ENGINE THREADS, then a file per line of stdin. Answers each with the CPU and
wall seconds of a pass (after one that does not count), and the rows that arrived.

    duckdb        EXPLAIN ANALYZE SELECT *: the sink drops vectors; dictionaries and strings stay lazy
    duckdb_arrow  SELECT * as Arrow record batches
    polars        scan_parquet().sink_ipc() to /dev/null, which decodes all columns to Arrow
    polars_batches scan_parquet().collect_batches()
    pyarrow       ParquetFile.iter_batches()
"""
import json
import os
import resource
import sys
import time

engine, threads = sys.argv[1], int(sys.argv[2])
os.environ["POLARS_MAX_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
import peer  # noqa: E402

if engine.startswith("duckdb"):
    import duckdb
    con = duckdb.connect()
    con.execute(f"SET threads = {threads}")

    if engine == "duckdb":
        def scan(path):
            plan = json.loads(con.execute(f"EXPLAIN (ANALYZE, FORMAT json) FROM '{path}'").fetchall()[0][1])

            def rows(nodes):
                return max((max(n.get("intermediate_rows", 0), rows(n.get("children", []))) for n in nodes), default=0)
            return rows(plan["operator"])
    else:
        def scan(path):
            return sum(b.num_rows for b in con.sql(f"FROM '{path}'").to_arrow_reader(65_536))
elif engine == "polars":
    import polars as pl

    def scan(path):
        pl.scan_parquet(path).sink_ipc("/dev/null", compression="uncompressed")
        return pl.scan_parquet(path).select(pl.len()).collect().item()  # from the footer; the sink gives no count
elif engine == "polars_batches":
    import polars as pl

    def scan(path):
        return sum(b.height for b in pl.scan_parquet(path).collect_batches(maintain_order=False))
elif engine == "pyarrow":
    import pyarrow as pa
    import pyarrow.parquet as pq
    pa.set_cpu_count(threads)

    def scan(path):
        return sum(b.num_rows for b in pq.ParquetFile(path).iter_batches(65_536, use_threads=threads > 1))
else:
    raise SystemExit(f"no engine {engine}")


def usage():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), u.ru_utime + u.ru_stime


def measure(path, least=0.3, most=12):
    scan(path)
    passes, t0, c0 = 0, *usage()
    while passes < most and (passes < 1 or time.perf_counter() - t0 < least):
        rows = scan(path)
        passes += 1
    t1, c1 = usage()
    return {"rows": rows, "wall": (t1 - t0) / passes, "cpu": (c1 - c0) / passes, "passes": passes}


print("@start", flush=True)
for line in sys.stdin:
    if line.strip() == "":
        break
    try:
        print("@end " + json.dumps(measure(line.strip())), flush=True)
    except Exception as e:  # a file that an engine cannot read is a result
        print("@fail " + repr(e)[:200].replace("\n", " "), flush=True)
