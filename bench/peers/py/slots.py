"""The memory-limited pipeline of arXiv 2501.12407, with sleeps for work: slots.py VIDEOS UNIT_MS FRAME_MIB FRAMES.

8 CPU slots and 4 GPU slots (a resource of its own: num_gpus did not end here). load sleeps 10 units and
gives 5 frames one by one; transform sleeps 1 unit and gives a new frame; infer sleeps 1 unit and gives an
id. The object store holds FRAMES frames.
"""
import logging
import sys
import time

import peer
import numpy as np

videos, unit, frame, frames = int(sys.argv[1]), int(sys.argv[2]) / 1000, int(sys.argv[3]) << 20, int(sys.argv[4])
import ray  # noqa: E402
import ray.data  # noqa: E402

ray.init(num_cpus=8, resources={"gpu_slot": 4}, object_store_memory=frames * frame, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
ctx = ray.data.DataContext.get_current()
ctx.enable_progress_bars = False
ctx.target_max_block_size = frame  # a frame is a block, as in the paper's script


def load(row):
    time.sleep(10 * unit)
    for _ in range(5):
        yield {"frame": np.full((1, frame), row["id"][0] % 256, np.uint8)}


def transform(b):
    time.sleep(unit)
    return {"frame": np.full((1, frame), b["frame"][0, 0], np.uint8)}


def infer(b):
    time.sleep(unit)
    return {"id": b["frame"][:, 0].astype(np.int64)}


limit, rows = peer.Limit(), 0
peer.start()
d = (ray.data.range(videos, override_num_blocks=videos).map_batches(load, batch_size=1, num_cpus=1)
     .map_batches(transform, batch_size=1, num_cpus=1).map_batches(infer, batch_size=1, num_cpus=0, resources={"gpu_slot": 1}))
for b in d.iter_batches(batch_size=5):
    peer.first()
    rows += len(b["id"])
    if limit.over():
        break
ideal = videos * 15 / 8 * unit
wall = peer.elapsed()
# Of a run that was cut, the time the rest would have taken at its rate so far after the first batch.
if limit.cut and peer._first is not None:
    wall = peer._first + (wall - peer._first) * (videos * 5 - 5) / max(1, rows - 5)
peer.end(rows=rows, ideal=ideal, wall=wall, cut=1 if limit.cut else None)
