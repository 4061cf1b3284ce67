"""Ray Train: two workers whose steps of 20 ms sleep, each with a ray.train.report. Prints the share of the time that is spent in it, and microseconds per report.

    ray_report.py STEPS WARM FOLDER
"""

import json
import logging
import os
import sys
import time

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")

import ray
import ray.train
from ray.train.torch import TorchTrainer

steps, warm, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def loop(o: dict) -> None:
    report = wall = 0.0
    for i in range(o["warm"] + o["steps"]):
        begin = time.perf_counter()
        time.sleep(0.02)
        slept = time.perf_counter()
        ray.train.report({"loss": 1.0, "accuracy": 0.5})
        end = time.perf_counter()
        if i >= o["warm"]:
            report, wall = report + end - slept, wall + end - begin
    with open(f"{o['folder']}/ray-{ray.train.get_context().get_world_rank()}.json", "w") as f:
        json.dump({"report": report, "wall": wall}, f)


ray.init(num_cpus=8, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, object_store_memory=256 << 20)
TorchTrainer(
    loop,
    train_loop_config={"steps": steps, "warm": warm, "folder": folder},
    scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=ray.train.RunConfig(storage_path=folder, name="bench"),
).fit()
all_ranks = [json.load(open(f"{folder}/ray-{r}.json")) for r in range(2)]
report, wall = (sum(x[k] for x in all_ranks) for k in ("report", "wall"))
print(json.dumps({"share": report / wall, "micros": 1e6 * report / (2 * steps), "version": ray.__version__}))
