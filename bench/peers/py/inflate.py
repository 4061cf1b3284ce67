"""Rows of 4 KiB become 4 MiB, default settings, a consumer of 2 ms per row: inflate.py CASE FILE."""
import os
import sys
import time

import peer
import numpy as np

case, path = sys.argv[1], sys.argv[2]
SIZE, rows, limit = 4 << 20, 0, peer.Limit()


def give(n):
    global rows
    assert n == SIZE, n
    peer.first()
    time.sleep(0.002)
    rows += 1
    return limit.over()


def grow(b):
    return np.tile(np.frombuffer(b, np.uint8), SIZE // len(b))


def loader(workers):
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, Dataset
    column = pq.read_table(path).column(0).to_pylist()

    class Rows(Dataset):
        def __len__(self):
            return len(column)

        def __getitem__(self, i):
            return torch.from_numpy(grow(column[i]))

    peer.start()
    for t in DataLoader(Rows(), batch_size=None, num_workers=workers):
        if give(len(t)):
            break


def daft_udf():
    import daft

    @daft.func.batch(return_dtype=daft.DataType.binary())
    def inflate(s):
        return [grow(b).tobytes() for b in s.to_pylist()]

    peer.start()
    for r in daft.read_parquet(path).select(inflate(daft.col("blob"))).to_arrow_iter():
        for v in r.column(0):
            if give(len(v.as_buffer())):
                return


def ray_data(batches):
    import logging
    import ray
    import ray.data
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    peer.start()
    d = ray.data.read_parquet(path)
    if batches:
        d = d.map_batches(lambda b: {"blob": np.stack([grow(v) for v in b["blob"]])})
    else:
        d = d.map(lambda r: {"blob": grow(r["blob"])})
    for r in d.iter_rows():
        if give(len(r["blob"])):
            return


{"torch_2": lambda: loader(2), "torch": lambda: loader(0), "daft": daft_udf, "ray": lambda: ray_data(False), "ray_batches": lambda: ray_data(True)}[case]()
peer.end(rows=rows, cut=1 if limit.cut else None)
