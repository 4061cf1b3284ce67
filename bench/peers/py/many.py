"""Many small files, as record batches of the engine's own size: many.py CASE DIR."""
import glob
import os
import sys

import peer

case, folder = sys.argv[1], sys.argv[2]
rows, limit = 0, peer.Limit()
pattern = os.path.join(folder, "*.parquet")


def give(n):
    global rows
    if n:
        peer.first()
    rows += n
    return limit.over()


def pads():
    import pyarrow.dataset as ds
    peer.start()
    for rb in ds.dataset(folder, format="parquet").to_batches():
        give(rb.num_rows)


def duck():
    import duckdb
    peer.start()
    for rb in duckdb.connect().sql(f"FROM '{pattern}'").to_arrow_reader(65_536):
        give(rb.num_rows)


def polars():
    import polars as pl
    peer.start()
    for df in pl.scan_parquet(pattern).collect_batches(maintain_order=True):
        give(df.height)


def daft_arrow():
    import daft
    peer.start()
    for rb in daft.read_parquet(pattern).to_arrow_iter():
        give(rb.num_rows)


def torch_loader():
    import pyarrow.parquet as pq
    from torch.utils.data import DataLoader, IterableDataset
    import torch

    class Files(IterableDataset):
        def __iter__(self):
            for path in sorted(glob.glob(pattern)):
                for rb in pq.ParquetFile(path).iter_batches(10_000):
                    yield {n: torch.from_numpy(rb.column(n).to_numpy().copy()) for n in ("id", "x", "label")} | {"kind": rb.column("kind").to_pylist()}

    peer.start()
    for b in DataLoader(Files(), batch_size=None):
        if give(len(b["id"])):
            break


def hf():
    import datasets
    datasets.disable_progress_bars()
    peer.start()
    d = datasets.load_dataset("parquet", data_files=sorted(glob.glob(pattern)), split="train", streaming=True).with_format("arrow")
    for t in d.iter(batch_size=1024):
        if give(t.num_rows):
            break


def ray_data():
    import logging
    import ray
    import ray.data
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    peer.start()
    for t in ray.data.read_parquet(folder).iter_batches(batch_size=1024, batch_format="pyarrow"):
        give(t.num_rows)


{"pyarrow": pads, "duckdb": duck, "polars": polars, "daft": daft_arrow, "torch": torch_loader, "datasets": hf, "ray": ray_data}[case]()
peer.end(rows=rows, cut=1 if limit.cut else None)
