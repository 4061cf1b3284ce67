"""The paced loop over torch's DataLoader and pyarrow, as a user writes it: one process per rank, whose two loader workers read every second file each of those of the rank.

    loader.py DATA OUT RANK BLOCKS

It filters, makes two columns and gives batches of 1024 x 64 float32, in the order of the files: nothing is shuffled.
"""

import glob
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

data, out, rank, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
WORKERS, ROWS, WIDTH = 2, 1024, 62
NAMES = [f"f{i:02d}" for i in range(WIDTH)]


class Table(IterableDataset):
    """Whole batches of row groups: rows through a DataLoader one by one are many times slower."""

    def __iter__(self):
        pa.set_cpu_count(1)
        me = get_worker_info().id
        groups = [(path, g) for path in sorted(glob.glob(os.path.join(data, "*.parquet"))) for g in range(pq.ParquetFile(path).num_row_groups)]
        rest = np.empty((0, WIDTH + 2), np.float32)
        for path, g in groups[rank * WORKERS + me :: 2 * WORKERS]:
            t = pq.ParquetFile(path).read_row_group(g, columns=NAMES, use_threads=False)
            c = {k: t.column(k).to_numpy() for k in NAMES}
            keep = c["f00"] > 0.1
            c = {k: v[keep] for k, v in c.items()}
            block = np.stack([*c.values(), c["f00"] / (c["f01"] + 1), np.log1p(c["f02"])], axis=1)
            rest = np.concatenate([rest, block])
            for i in range(0, len(rest) - ROWS + 1, ROWS):
                yield torch.from_numpy(rest[i : i + ROWS].copy())
            rest = rest[len(rest) - len(rest) % ROWS :]


def main() -> None:
    loader = DataLoader(Table(), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    batches, now, got_all = iter(loader), time.perf_counter, []
    for i, (ms, steps) in enumerate(blocks):
        wait = slept = worst = 0.0
        start = now()
        for _ in range(steps):
            begin = now()
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            got = now()
            assert batch.shape == (ROWS, WIDTH + 2)
            time.sleep(ms / 1000)  # the step
            end = now()
            wait, slept, worst = wait + got - begin, slept + end - got, max(worst, got - begin)
        if i:  # the first one is warm-up
            got_all.append({"ms": ms, "steps": steps, "wall": now() - start, "next": wait, "sleep": slept, "report": 0.0, "worst": worst})
    Path(out, f"rank-{rank}.json").write_text(json.dumps(got_all))
    del batches, loader  # its workers end here


if __name__ == "__main__":
    main()
