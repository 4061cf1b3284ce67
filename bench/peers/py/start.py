"""From the start of a process to the first ten rows of a file: start.py CASE FILE."""
import os
import sys

import peer

case, path = sys.argv[1], sys.argv[2]
if case == "pyarrow":
    import pyarrow.parquet as pq
    peer.start()
    n = next(pq.ParquetFile(path).iter_batches(10)).num_rows
elif case == "duckdb":
    import duckdb
    peer.start()
    n = len(duckdb.sql(f"FROM '{path}' LIMIT 10").fetchall())
elif case == "polars":
    import polars as pl
    peer.start()
    n = pl.scan_parquet(path).head(10).collect().height
elif case == "daft":
    import daft
    peer.start()
    n = len(daft.read_parquet(path).limit(10).to_pydict()["id"])
elif case == "datasets":
    import datasets
    datasets.disable_progress_bars()
    peer.start()
    n = next(iter(datasets.load_dataset("parquet", data_files=[path], split="train", streaming=True).with_format("arrow").iter(batch_size=10))).num_rows
elif case == "torch":
    import pyarrow.parquet as pq
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset):
        def __iter__(self):
            for rb in pq.ParquetFile(path).iter_batches(10):
                yield {k: v.to_numpy(zero_copy_only=False) if k != "kind" else v.to_pylist() for k, v in zip(rb.schema.names, rb.columns)}

    peer.start()
    n = len(next(iter(DataLoader(Rows(), batch_size=None)))["id"])
elif case == "ray":
    import logging
    import ray
    import ray.data
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    peer.start()
    n = next(iter(ray.data.read_parquet(path).limit(10).iter_batches(batch_size=10, batch_format="pyarrow"))).num_rows
peer.first()
peer.end(rows=n)
