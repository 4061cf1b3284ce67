"""Stop at 90 % of an epoch and go on: resume.py CASE FILE WORKDIR. One file of the table; rows with
distance < 2.9 and passengers > 1 in batches of 1,024.

t0: time to the first batch at the start (the second start in this process); t90: after restoring.
exact: the next 8 batches are those that came before. other: restored with another number of workers.
"""
import itertools
import os
import shutil
import sys
import time

import peer
import numpy as np

case, path, work = sys.argv[1:4]
ROWS = 1024
COLUMNS = [f"f{j:02d}" for j in range(38)] + ["distance", "fare", "tip", "passengers"]


def key(b):
    """What tells batches apart."""
    return tuple(float(np.asarray(v, dtype=np.float64).sum()) for v in (b["distance"], b["fare"]))


def trial(open_loader, state_of, load_state, other=None):
    """open_loader() gives a new loader; state_of and load_state are its methods."""
    peer.start()
    f = {}
    next(iter(open_loader()))  # cold
    t = time.perf_counter()
    next(iter(open_loader()))
    peer.first()
    f["t0"] = time.perf_counter() - t
    total = sum(1 for _ in open_loader())
    f["epoch"] = peer.elapsed()
    loader = open_loader()
    it, t = iter(loader), time.perf_counter()
    for _ in range(total * 9 // 10):
        next(it)
    f["to90"] = time.perf_counter() - t
    state = state_of(loader, it)
    f["state_bytes"] = len(repr(state)) if not isinstance(state, bytes) else len(state)
    want = [key(b) for b in itertools.islice(it, 8)]
    del it
    t = time.perf_counter()
    loader = load_state(open_loader(), state)
    it = iter(loader)
    got = [key(b) for b in itertools.islice(it, 1)]
    if got:  # else nothing comes after the restore
        f["t90"] = time.perf_counter() - t
    got += [key(b) for b in itertools.islice(it, 7)]
    f["exact"] = float(got == want)
    f["rows"] = total * ROWS
    if other is not None:
        try:
            it = iter(load_state(other(), state))
            f["other_ranks"] = float([key(b) for b in itertools.islice(it, 8)] == want)
        except Exception as e:
            print("on another number of workers:", repr(e)[:200], file=sys.stderr)
            f["other_ranks"] = 0
    peer.end(**f)


def filtered():
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    t = pq.read_table(path, columns=COLUMNS)
    return t.filter(pc.and_(pc.less(t["distance"], 2.9), pc.greater(t["passengers"], 1)))


def hf(shuffle):
    import datasets
    import pyarrow.compute as pc
    datasets.disable_progress_bars()
    import pyarrow.parquet as pq
    # The shuffle of a stream takes rows one by one: about 1 ms each.
    if shuffle:
        small = os.path.join(work, "hf.parquet")
        pq.write_table(filtered().slice(0, 8_000), small)

    class Loader:
        def __init__(self):
            d = datasets.load_dataset("parquet", data_files=[small if shuffle else path], split="train", streaming=True).select_columns(COLUMNS).with_format("arrow")
            if shuffle:
                d = d.shuffle(seed=7, buffer_size=2_000)
            else:
                d = d.map(lambda t: t.filter(pc.and_(pc.less(t["distance"], 2.9), pc.greater(t["passengers"], 1))), batched=True, batch_size=16_384)
            self.d = d.batch(ROWS) if shuffle else d

        def __iter__(self):
            if not shuffle:
                for t in self.d.iter(batch_size=ROWS):
                    yield {c: t[c].to_numpy() for c in ("distance", "fare")}
            else:
                for t in self.d:
                    yield {c: t[c].combine_chunks().flatten().to_numpy(zero_copy_only=False) for c in ("distance", "fare")}

    def load(loader, state):
        loader.d.load_state_dict(state)
        return loader

    trial(Loader, lambda loader, it: loader.d.state_dict(), load)


def sdl(shuffle):
    import torch
    import pyarrow.parquet as pq
    from torch.utils.data import IterableDataset, get_worker_info
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Table(IterableDataset):
        """Row groups of a file, filtered; shuffled through a pool of 100,000 rows."""

        def __iter__(self):
            w = get_worker_info()
            k, n = (w.id, w.num_workers) if w else (0, 1)
            f = pq.ParquetFile(path)
            rng, pool = np.random.default_rng(7), None
            for g in range(k, f.num_row_groups, n):
                t = f.read_row_group(g, columns=COLUMNS, use_threads=False)
                c = {x: t.column(x).to_numpy() for x in COLUMNS}
                m = (c["distance"] < 2.9) & (c["passengers"] > 1)
                b = np.stack([c[x][m] for x in COLUMNS], axis=1).astype(np.float32)
                pool = b if pool is None else np.concatenate([pool, b])
                while len(pool) >= (100_000 if shuffle else 0) + ROWS:
                    if shuffle:
                        pick = rng.choice(len(pool), ROWS, replace=False)
                        out = pool[pick]
                        pool = np.delete(pool, pick, axis=0)
                    else:
                        out, pool = pool[:ROWS], pool[ROWS:]
                    yield torch.from_numpy(out.copy())
            if pool is not None:
                pool = pool[rng.permutation(len(pool))] if shuffle else pool
                for i in range(0, len(pool), ROWS):
                    yield torch.from_numpy(pool[i:i + ROWS].copy())

    at = {c: j for j, c in enumerate(COLUMNS)}

    class Named:
        def __init__(self, workers=2):
            self.loader = StatefulDataLoader(Table(), batch_size=None, num_workers=workers)

        def __iter__(self):
            for t in self.loader:
                yield {c: t.numpy()[:, at[c]] for c in ("distance", "fare")}

    def load(named, state):
        named.loader.load_state_dict(state)
        return named

    trial(Named, lambda named, it: named.loader.state_dict(), load, lambda: Named(1))


def mosaic():
    import logging
    logging.disable(logging.WARNING)
    from streaming import MDSWriter, StreamingDataset, StreamingDataLoader
    from streaming.base.util import clean_stale_shared_memory
    peer.last.append(clean_stale_shared_memory)
    folder = os.path.join(work, "mds")
    shutil.rmtree(folder, ignore_errors=True)
    t = filtered().slice(0, 30_000)  # converting and reading take 0.1 ms a row
    matrix = np.stack([t.column(c).to_numpy().astype(np.float32) for c in COLUMNS], axis=1)
    began = time.perf_counter()
    with MDSWriter(out=folder, columns={"x": "ndarray:float32:%d" % len(COLUMNS)}) as w:
        for row in matrix:
            w.write({"x": row})
    converted = time.perf_counter() - began
    at = {c: j for j, c in enumerate(COLUMNS)}

    class Named:
        def __init__(self, workers=2):
            self.data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=7, batch_size=ROWS, num_canonical_nodes=1)
            self.loader = StreamingDataLoader(self.data, batch_size=ROWS, num_workers=workers)

        def __iter__(self):
            for b in self.loader:
                yield {c: b["x"].numpy()[:, at[c]] for c in ("distance", "fare")}

    def load(named, state):
        named.loader.load_state_dict(state)
        return named

    print("converted in", converted, file=sys.stderr)
    trial(Named, lambda named, it: named.loader.state_dict(), load, lambda: Named(1))


def grain_loader():
    import grain
    t = filtered()
    matrix = np.stack([t.column(c).to_numpy().astype(np.float32) for c in COLUMNS], axis=1)
    at = {c: j for j, c in enumerate(COLUMNS)}

    class Named:
        def __init__(self):
            d = grain.MapDataset.source(range(len(matrix))).shuffle(seed=7).map(lambda i: matrix[i]).batch(ROWS)
            self.data = d.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            self.state = None

        def __iter__(self):
            self.it = iter(self.data)
            if self.state is not None:
                self.it.set_state(self.state)
            for b in self.it:
                yield {c: b[:, at[c]] for c in ("distance", "fare")}

    def load(named, state):
        named.state = state
        return named

    trial(Named, lambda named, it: named.it.get_state(), load)


{"datasets": lambda: hf(False), "datasets_shuffle": lambda: hf(True), "torchdata": lambda: sdl(False), "torchdata_shuffle": lambda: sdl(True),
 "mosaic": mosaic, "grain": grain_loader}[case]()
