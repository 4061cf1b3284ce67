"""Filter, two computed columns, batches of 42 x 1024 float32: table.py CASE DIR [WORKDIR].

Input: files of 41 float32 columns and an int32. Kept: rows with distance < 2.9 and passengers > 1.
Given: 40 of the columns, tip_rate and log_dist.
"""
import glob
import os
import sys

import peer
import numpy as np

case, folder = sys.argv[1], sys.argv[2]
files = sorted(glob.glob(os.path.join(folder, "*.parquet")))
FEATURES = [f"f{j:02d}" for j in range(38)] + ["distance", "fare"]
NAMES = FEATURES + ["tip_rate", "log_dist"]
READ = FEATURES + ["tip", "passengers"]
batches, limit = peer.Batches(), peer.Limit()
ROWS = peer.ROWS


def keep_numpy(c):
    mask = (c["distance"] < 2.9) & (c["passengers"] > 1)
    out = {k: c[k][mask] for k in FEATURES}
    out["tip_rate"] = c["tip"][mask] / out["fare"]
    out["log_dist"] = np.log1p(out["distance"])
    return out


def arrow_columns(rb):
    return [rb.column(k).to_numpy() for k in NAMES]


def pads():
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    f = ds.field
    peer.start()
    columns = {k: f(k) for k in FEATURES}
    columns["tip_rate"], columns["log_dist"] = f("tip") / f("fare"), pc.log1p(f("distance"))
    for rb in ds.dataset(files).scanner(columns=columns, filter=(f("distance") < 2.9) & (f("passengers") > 1)).to_batches():
        if rb.num_rows:
            batches.add([rb.column(j).to_numpy() for j in range(peer.WIDTH)])


def duck():
    import duckdb
    peer.start()
    con = duckdb.connect()
    sql = f"""SELECT {', '.join(FEATURES)}, tip / fare AS tip_rate, ln(1 + distance)::FLOAT AS log_dist
              FROM read_parquet({files}) WHERE distance < 2.9 AND passengers > 1"""
    for rb in con.sql(sql).to_arrow_reader(131_072):
        batches.add(arrow_columns(rb))


def polars_batches():
    import polars as pl
    peer.start()
    c = pl.col
    lf = (pl.scan_parquet(files).filter((c("distance") < 2.9) & (c("passengers") > 1))
          .select(*FEATURES, tip_rate=c("tip") / c("fare"), log_dist=c("distance").log1p()))
    for df in lf.collect_batches(maintain_order=True):
        batches.add([s.to_numpy() for s in df.get_columns()])


def daft_arrow():
    import daft
    c = daft.col
    peer.start()
    df = (daft.read_parquet(files).where((c("distance") < 2.9) & (c("passengers") > 1))
          .with_columns({"tip_rate": c("tip") / c("fare"), "log_dist": c("distance").log1p()}).select(*NAMES))
    for rb in df.to_arrow_iter():
        batches.add([rb.column(k).to_numpy(zero_copy_only=False) for k in NAMES])


def torch_set(shuffle):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    pa.set_cpu_count(2)

    class Table(IterableDataset):
        """Reads row groups, gives whole batches: rows through a DataLoader one by one are 50 times slower."""

        def blocks(self):
            w = get_worker_info()
            k, n = (w.id, w.num_workers) if w else (0, 1)
            for path in files[k::n]:
                f = pq.ParquetFile(path)
                for g in range(f.num_row_groups):
                    t = f.read_row_group(g, columns=READ, use_threads=w is None)
                    out = keep_numpy({c: t.column(c).to_numpy() for c in READ})
                    yield np.stack([out[c] for c in NAMES], axis=1)

        def __iter__(self):
            if shuffle:
                yield from self.shuffled()
                return
            rest = np.empty((0, peer.WIDTH), np.float32)
            for b in self.blocks():
                b = np.concatenate([rest, b])
                for i in range(0, len(b) - ROWS + 1, ROWS):
                    yield torch.from_numpy(b[i:i + ROWS])
                rest = b[len(b) - len(b) % ROWS:]
            if len(rest):
                yield torch.from_numpy(rest)

        def shuffled(self):
            """A pool of `shuffle` rows; every batch is drawn from all of it and replaced by what was last."""
            rng, pool = np.random.default_rng(7), np.empty((0, peer.WIDTH), np.float32)
            for b in self.blocks():
                pool = np.concatenate([pool, b])
                while len(pool) >= shuffle + ROWS:
                    pick = rng.choice(len(pool), ROWS, replace=False)
                    yield torch.from_numpy(pool[pick])
                    tail, n = np.setdiff1d(np.arange(len(pool) - ROWS, len(pool)), pick), len(pool) - ROWS
                    holes = pick[pick < n]
                    pool[holes] = pool[tail[:len(holes)]]
                    pool = pool[:n]
            pool = pool[rng.permutation(len(pool))]
            for i in range(0, len(pool), ROWS):
                yield torch.from_numpy(pool[i:i + ROWS].copy())

    return Table()


def dataloader(workers, shuffle=0):
    from torch.utils.data import DataLoader
    d = torch_set(shuffle)
    peer.start()
    for t in DataLoader(d, batch_size=None, num_workers=workers):
        batches.give(t.numpy(), rows_first=True)
        if limit.over():
            break


def hf(shuffle=0):
    import datasets
    import pyarrow.compute as pc
    datasets.disable_progress_bars()
    peer.start()

    def compute(t):
        t = t.filter(pc.and_(pc.less(t["distance"], 2.9), pc.greater(t["passengers"], 1)))
        return t.append_column("tip_rate", pc.divide(t["tip"], t["fare"])).append_column("log_dist", pc.log1p(t["distance"])).select(NAMES)

    d = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True).select_columns(READ)
    d = d.with_format("arrow").map(compute, batched=True, batch_size=16_384)
    if shuffle:
        d = d.shuffle(seed=7, buffer_size=shuffle)
    for t in d.iter(batch_size=ROWS):
        batches.give(np.stack([t.column(k).to_numpy() for k in NAMES]))
        if limit.over():
            break


def ray_data(shuffle=None):
    import logging
    import ray
    import ray.data
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    peer.start()
    d = ray.data.read_parquet(files, columns=READ).map_batches(keep_numpy, batch_format="numpy", batch_size=None)
    for b in d.iter_batches(batch_size=ROWS, batch_format="numpy", local_shuffle_buffer_size=shuffle, local_shuffle_seed=7 if shuffle else None):
        batches.give(np.stack([b[k] for k in NAMES]))
        if limit.over():
            break


def matrices():
    """The rows of each file, one behind the other in memory."""
    import pyarrow.parquet as pq
    for path in files:
        t = pq.read_table(path, columns=READ)
        out = keep_numpy({c: t.column(c).to_numpy() for c in READ})
        yield np.stack([out[c] for c in NAMES], axis=1)


def mosaic():
    """100,000 rows, converted before: reading and converting take 0.1 ms a row."""
    import logging
    logging.disable(logging.WARNING)
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    peer.last.append(clean_stale_shared_memory)
    folder = os.path.join(sys.argv[3], "mds-table")
    with MDSWriter(out=folder, columns={"x": "ndarray:float32:%d" % peer.WIDTH}, exist_ok=True) as w:
        for row in next(matrices())[:100_000]:
            w.write({"x": row})
    peer.start()
    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=7, batch_size=ROWS, num_canonical_nodes=1)
    for b in StreamingDataLoader(data, batch_size=ROWS, num_workers=2):
        batches.give(b["x"].numpy(), rows_first=True)
        if limit.over():
            break


def grain_loader():
    """The order is one of all rows, which are in memory."""
    import grain
    peer.start()
    m = np.concatenate(list(matrices()))
    d = grain.MapDataset.source(range(len(m))).shuffle(seed=7).map(lambda i: m[i]).batch(ROWS)
    for b in d.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)):
        batches.give(b, rows_first=True)
        if limit.over():
            break


{
    "mosaic_shuffle": mosaic, "grain_shuffle": grain_loader,
    "pyarrow": pads, "duckdb": duck, "polars": polars_batches, "daft": daft_arrow,
    "torch": lambda: dataloader(0), "torch_2": lambda: dataloader(2), "torch_2_shuffle": lambda: dataloader(2, 100_000),
    "torch_shuffle": lambda: dataloader(0, 100_000),
    "datasets": hf, "datasets_shuffle": lambda: hf(100_000), "ray": ray_data, "ray_shuffle": lambda: ray_data(100_000),
}[case]()
batches.end(cut=1 if limit.cut else None)
