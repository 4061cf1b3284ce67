"""Trains a small model on the device of its worker, under `penstock train`, and reports what that cost. bench/gpu/train.go starts it, and says what the figures mean.

Each batch is checked where it arrives: a slot of the ring that was given back before its copy was done would be seen.
"""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import penstock
import torch

WIDTH = 16  # columns of the spec; a batch is taken as rows of INPUT numbers
INPUT = 1024


class Clock:
    """Moments as the device has them: each is after the work that it was given before."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        e = torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def between(self, a: Any, b: Any) -> float:
        """Seconds. Both have passed."""
        return a.elapsed_time(b) / 1e3 if self.cuda else b - a

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def wrong(batch: "penstock.Batch[torch.Tensor]", device: torch.device) -> torch.Tensor:
    """How many numbers of a batch are not those of the spec. It is not waited for."""
    first = batch.step * batch.rows
    rows = torch.arange(first, first + batch.rows, dtype=torch.int64, device=device)[:, None]
    columns = torch.arange(1, WIDTH + 1, dtype=torch.int64, device=device)
    want = ((rows * columns % 1000).double() / 1000).float()
    return (batch["x"] != want).sum()


def train(batches: "Iterator[penstock.Batch[torch.Tensor]]", clock: Clock, device: torch.device, config: "dict[str, Any]") -> "dict[str, float]":
    hidden = int(config["hidden"])
    model = torch.nn.Sequential(torch.nn.Linear(INPUT, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 1))
    model = penstock.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x: torch.Tensor, times: int) -> torch.Tensor:
        x = x.reshape(-1, INPUT)
        y = x[:, :WIDTH].mean(1, keepdim=True)
        for _ in range(times):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.detach()

    # As many turns as make a step that long.
    x = next(batches)["x"]
    step(x, 3)
    clock.wait()
    a = clock.now()
    step(x, 10)
    b = clock.now()
    clock.wait()
    times = max(math.ceil(float(config["step_ms"]) / 1e3 / (clock.between(a, b) / 10)), 1)
    del x

    marks = []
    losses = []
    bad = torch.zeros((), dtype=torch.int64, device=device)
    warm, steps = int(config["warm"]), int(config["steps"])
    asked = 0.0
    for i in range(warm + steps):
        done = clock.now()  # of the step before
        t = time.perf_counter()
        batch = next(batches)
        if i >= warm:
            asked += time.perf_counter() - t
        there = clock.now()
        marks.append((done, there))
        bad += wrong(batch, device)
        losses.append(step(batch["x"], times))
        del batch
        if i == (warm + steps) // 2:
            save(model, {"step": i})
    end = clock.now()
    clock.wait()
    marks = marks[warm:]
    wall = clock.between(marks[0][0], end)
    waits = [clock.between(a, b) for a, b in marks]
    tenth = max(len(losses) // 10, 1)
    return {
        "stall": sum(waits) / wall,
        "longest_wait": max(waits),
        "step": wall / steps,
        "asked": asked / steps,
        "turns": times,
        "wrong": int(bad),
        "loss_first": median(v.item() for v in losses[:tenth]),
        "loss": median(v.item() for v in losses[-tenth:]),
    }


def save(model: torch.nn.Module, metrics: "dict[str, float]") -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        penstock.report(metrics, checkpoint=folder)


def held(shard: penstock.Shard, cuda: bool) -> torch.Tensor:
    """A batch in the ring: on a machine with a GPU one that lies in memory which CUDA knows."""
    for i, batch in enumerate(shard.iter_batches()):
        x = torch.from_numpy(batch["x"])
        if not cuda or x.is_pinned():
            return x
        del x, batch
        if i > 200:
            break
    raise SystemExit("no batch of 200 lies in registered memory: pin_memory has no effect")


def copies(x: torch.Tensor, clock: Clock, device: torch.device, rounds: int, n: int) -> "dict[str, float]":
    """Bytes per second of copies to the device, in turns: from the ring, from plain pinned memory twice, from plain memory."""
    target = torch.empty_like(x, device=device)
    pinned = x.clone().pin_memory() if clock.cuda else x.clone()
    sources = {"ring": x, "pinned": pinned, "pinned_again": pinned, "pageable": x.clone()}
    speeds: "dict[str, list[float]]" = {k: [] for k in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            target.zero_()
            target.copy_(source, non_blocking=True)
            clock.wait()
            a = clock.now()
            for _ in range(n):
                target.copy_(source, non_blocking=True)
            b = clock.now()
            clock.wait()
            speeds[name].append(n * x.nbytes / clock.between(a, b))
            if not torch.equal(target.cpu(), pinned):
                raise SystemExit(f"a copy from {name} memory is not what was copied")
    out = {f"copy_{k}": median(v) for k, v in speeds.items()}
    out["copy_ratio"] = median(r / p for r, p in zip(speeds["ring"], speeds["pinned"]))
    out["copy_again"] = median(r / p for r, p in zip(speeds["pinned_again"], speeds["pinned"]))
    return out


def main() -> None:
    config = penstock.get_config()
    device = penstock.get_device()
    if config["cuda"] != (device.type == "cuda"):
        raise SystemExit(f"the worker has device {device}")
    clock = Clock(device)
    with penstock.shard("train") as shard:
        batches = shard.iter_torch_batches(device, pin_memory=clock.cuda)
        metrics = train(batches, clock, device, config)
        del batches
        x = held(shard, clock.cuda)
        metrics.update(copies(x, clock, device, int(config["rounds"]), int(config["copies"])))
        metrics["bytes"] = x.nbytes
        del x
        penstock.report(metrics)


if __name__ == "__main__":
    main()
