"""Documents to samples of 2,048 tokens: tokens.py CASE DIR. Counts the tokens of every sample."""
import bisect
import glob
import os
import sys

import peer
import numpy as np

case, folder = sys.argv[1], sys.argv[2]
files = sorted(glob.glob(os.path.join(folder, "*.parquet")))
LENGTH = 2048
limit = peer.Limit()
samples = tokens = 0


def give(ids):
    """A batch or a sample of ids; 0 fills what is left."""
    global samples, tokens
    peer.first()
    samples += ids.size // LENGTH
    tokens += int(np.count_nonzero(ids))


def documents():
    """Flat values and offsets, by record batch."""
    import pyarrow.parquet as pq
    for path in files:
        for rb in pq.ParquetFile(path).iter_batches(1000, columns=["tokens"], use_threads=False):
            col = rb.column(0)
            yield col.flatten().to_numpy(), col.offsets.to_numpy() - col.offsets[0].as_py()


def numpy_concat():
    peer.start()
    rest = np.empty(0, np.int32)
    for values, _ in documents():
        values = np.concatenate([rest, values])
        whole = len(values) // LENGTH * LENGTH
        for i in range(0, whole, 8 * LENGTH):
            give(values[i:min(i + 8 * LENGTH, whole)])
        rest = values[whole:]
    if len(rest):
        give(np.pad(rest, (0, LENGTH - len(rest))))


def python_bestfit():
    """Windows of 1,000 documents: longest first, each where it leaves least room."""
    peer.start()
    for values, offsets in documents():
        lengths = np.diff(offsets)
        rooms, bins = [], []  # sorted by room left; the bin of each
        packed = []
        for d in np.argsort(-lengths, kind="stable"):
            n = int(lengths[d])
            if n == 0:
                continue
            k = bisect.bisect_left(rooms, n)
            if k == len(rooms):
                packed.append([d])
                room, b = LENGTH - n, len(packed) - 1
            else:
                room, b = rooms.pop(k) - n, bins.pop(k)
                packed[b].append(d)
            if room:
                k = bisect.bisect_left(rooms, room)
                rooms.insert(k, room)
                bins.insert(k, b)
        for i in range(0, len(packed), 8):
            out = np.zeros((min(8, len(packed) - i), LENGTH), np.int32)
            for row, b in enumerate(packed[i:i + 8]):
                at = 0
                for d in b:
                    n = lengths[d]
                    out[row, at:at + n] = values[offsets[d]:offsets[d + 1]]
                    at += n
            give(out)


def grain_pack(method):
    import grain
    import pyarrow.parquet as pq
    peer.start()
    part = files[:max(1, len(files) // 4)]  # it is slow: a part of the files, rates are per token
    columns = [pq.ParquetFile(p).read(columns=["tokens"]).column(0).combine_chunks() for p in part]
    docs = []
    for c in columns:
        v, o = c.flatten().to_numpy(), c.offsets.to_numpy()
        docs += [v[a:b] for a, b in zip(o[:-1], o[1:])]
    d = grain.MapDataset.source(docs).map(lambda x: {"tokens": x}).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    packer = {"concat": grain.experimental.ConcatThenSplitIterDataset, "best_fit": getattr(grain.experimental, "BestFitPackIterDataset", None)}[method]
    if method == "concat":
        d = packer(d, length_struct={"tokens": LENGTH})
    else:
        d = packer(d, length_struct={"tokens": LENGTH}, num_packing_bins=64)
    for x in d:
        x = x[0] if isinstance(x, tuple) else x
        give(np.asarray(x["tokens"]))
        if limit.over():
            break


def hf():
    import datasets
    import pyarrow as pa
    datasets.disable_progress_bars()
    peer.start()

    def group(t):
        values = t["tokens"].combine_chunks().flatten().to_numpy()
        n = len(values) // LENGTH
        return pa.table({"ids": pa.FixedSizeListArray.from_arrays(pa.array(values[:n * LENGTH]), LENGTH)})

    d = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True).with_format("arrow")
    for t in d.map(group, batched=True, batch_size=5_000, remove_columns=["tokens"]).iter(batch_size=8):
        give(t["ids"].combine_chunks().flatten().to_numpy())
        if limit.over():
            break


def ray_concat():
    import logging
    import ray
    import ray.data
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    peer.start()
    import pyarrow as pa

    def group(t):
        values = t.column("tokens").combine_chunks().flatten().to_numpy()
        n = len(values) // LENGTH
        return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(values[:n * LENGTH]), LENGTH)})

    d = ray.data.read_parquet(files).map_batches(group, batch_format="pyarrow", batch_size=None)
    for t in d.iter_batches(batch_size=8, batch_format="pyarrow"):
        give(t.column("tokens").combine_chunks().flatten().to_numpy())
        if limit.over():
            break


{"numpy": numpy_concat, "python_bestfit": python_bestfit, "grain": lambda: grain_pack("concat"), "grain_bestfit": lambda: grain_pack("best_fit"),
 "datasets": hf, "ray": ray_concat}[case]()
peer.end(rows=samples, tokens=tokens, padding=1 - tokens / (samples * LENGTH), cut=1 if limit.cut else None)
