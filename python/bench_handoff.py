"""What it costs to hand batches from the data process to Python, beside memcpy in the same run.

    python bench_handoff.py [--server feedserver] [--batches N] [--rounds N]

The data process copies rows that it has in memory into batches (feedserver bench); the consumer takes each as numpy or torch views. ``wall`` is the time per batch
from one to the next, producer included; ``cpu`` is what the consumer's process uses of it, system calls included. Rounds of all kinds take turns; the median of each is printed.
``memcpy`` copies as many bytes from one of 16 buffers to another of the same number, in this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import penstock

SIZES = {"64 KiB": (1024, 16), "4 MiB": (1024, 1024)}


class Bench:
    def __init__(self, server: str, rows: int, width: int, records: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        socket = os.path.join(self.folder.name, "s")
        argv = [server, "bench", "--rows", str(rows), "--width", str(width), "--socket", socket] + ["--records"] * records
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None and b"ready" in self.process.stdout.readline()
        self.shard = penstock.connect(socket)

    def close(self) -> None:
        self.shard.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def timed(n: int, one: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time of a call, in seconds."""
    for _ in range(max(n // 10, 3)):
        one()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(n):
        one()
    return (time.perf_counter() - wall) / n, (time.process_time() - cpu) / n


def memcpy(size: int) -> Callable[[], object]:
    a, b = np.ones((16, size), np.uint8), np.ones((16, size), np.uint8)
    i = 0

    def one() -> None:
        nonlocal i
        i = (i + 1) % 16
        np.copyto(b[i], a[i])

    return one


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", help="the program feedserver; default: it is built")
    p.add_argument("--batches", type=int, default=2000)
    p.add_argument("--rounds", type=int, default=5)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        if not o.server:
            o.server = os.path.join(tmp, "feedserver")
            subprocess.run(["go", "build", "-o", o.server, "./tests/feedserver"], cwd=Path(__file__).parent, check=True)
        print(f"{'size':8} {'what':16} {'wall us':>9} {'cpu us':>9} {'GB/s':>7} {'of memcpy':>10}")
        for name, (rows, width) in SIZES.items():
            size = rows * width * 4
            n = max(o.batches // max(size >> 18, 1), 50)
            benches = {records: Bench(o.server, rows, width, records) for records in (False, True)}
            ways: dict[str, Callable[[], object]] = {"memcpy": memcpy(size)}
            ways["numpy"] = benches[False].shard.iter_batches().__next__
            ways["arrow"] = benches[True].shard.to_arrow().__next__
            try:
                import torch  # noqa: F401

                ways["torch"] = benches[False].shard.iter_torch_batches().__next__
            except ImportError:
                pass
            got: dict[str, list[tuple[float, float]]] = {w: [] for w in ways}
            for _ in range(o.rounds):
                for w, one in ways.items():
                    got[w].append(timed(n, one))
            base = statistics.median(x[0] for x in got["memcpy"])
            for w, times in got.items():
                wall, cpu = (statistics.median(x[i] for x in times) for i in range(2))
                print(f"{name:8} {w:16} {wall * 1e6:9.1f} {cpu * 1e6:9.1f} {size / wall / 1e9:7.2f} {base / wall:10.2f}")
            for b in benches.values():
                b.close()


if __name__ == "__main__":
    main()
