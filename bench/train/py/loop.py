"""A training loop whose steps sleep, for penstock train: the same as loop of bench/train/loop.go, which says what its settings and figures are."""

import time

main = time.time_ns()

import json
import os
import signal
from pathlib import Path

import torch

import penstock

loaded = time.time_ns()


def process_start() -> int:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ticks * 10_000_000


def write(name: str, value: object) -> None:
    Path(name + ".new").write_text(json.dumps(value))
    os.replace(name + ".new", name)


def saved(out: str) -> Path:
    folder = Path(out, "model")
    folder.mkdir(exist_ok=True)
    Path(folder, "state").write_bytes(bytes(1 << 20))
    return folder


def train() -> None:
    o, me = penstock.get_config(), penstock.get_context()
    out, now = o["out"], time.perf_counter
    shard = penstock.shard("train")
    marks = {"rank": me.rank, "attempt": me.attempt, "started": process_start(), "main": main, "loaded": loaded, "joined": time.time_ns(), "first": 0}
    blocks, done = [], 0
    batches = shard.iter_torch_batches()
    for i, (ms, steps) in enumerate([(o["blocks"][0][0], o["warm"]), *o["blocks"]]):
        wait = slept = report = worst = 0.0
        start, used = now(), time.process_time()
        for _ in range(steps):
            begin = now()
            batch = next(batches, None)
            if batch is None:  # an epoch
                batches = shard.iter_torch_batches()
                batch = next(batches)
            got = now()
            if not marks["first"]:
                assert isinstance(batch["x"], torch.Tensor) and batch["x"].shape == (1024, 64)
                marks["first"] = time.time_ns()
                write(f"{out}/marks-{me.attempt}-{me.rank}.json", marks)
            time.sleep(ms / 1000)  # the step
            end = now()
            del batch
            done += 1
            if o.get("kill", 0) >= me.attempt and me.rank == 1 and done == 25:
                write(f"{out}/killed-{me.attempt}.json", time.time_ns())
                os.kill(os.getpid(), signal.SIGKILL)
            released = now()
            if o["report"]:
                save = o.get("save", 0) and done % o["save"] == 0 and me.rank == 0
                penstock.report({"loss": 1.0, "accuracy": 0.5}, checkpoint=saved(out) if save else None)
            wait, slept, report, worst = wait + got - begin, slept + end - got, report + now() - released, max(worst, got - begin)
        if i:
            blocks.append({"ms": ms, "steps": steps, "wall": now() - start, "next": wait, "sleep": slept, "report": report, "worst": worst, "cpu": time.process_time() - used})
    write(f"{out}/rank-{me.rank}.json", blocks)


if __name__ == "__main__":
    train()
