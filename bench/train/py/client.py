"""Measures the hand-off of batches to Python when it is asked to: each line of stdin is a request, each line of stdout the seconds per batch. See bench/train/handoff.go."""

import json
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import penstock

PAGE = 4096


def look(a: np.ndarray) -> None:
    a.reshape(-1).view(np.uint8)[::PAGE].sum()


def memcpy(size: int) -> Callable[[], None]:
    source, target = np.ones((16, size), np.uint8), np.ones((8, size), np.uint8)
    i = 0

    def one() -> None:
        nonlocal i
        np.copyto(target[i % 8], source[i % 16])
        look(target[i % 8])
        i += 1

    return one


class Batches(IterableDataset):
    def __init__(self, size: int) -> None:
        self.source = np.ones((16, size // 4), np.float32)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            for row in self.source:
                yield torch.from_numpy(row.copy())


def loader(size: int) -> Callable[[], None]:
    batches = iter(DataLoader(Batches(size), batch_size=None, num_workers=1))

    def one() -> None:
        look(next(batches).numpy())

    return one


shards: dict[str, penstock.Shard] = {}


def numpy(socket: str) -> Callable[[], None]:
    batches = shards[socket].iter_batches()

    def one() -> None:
        look(next(batches)["x"])

    return one


def tensors(socket: str) -> Callable[[], None]:
    batches = shards[socket].iter_torch_batches()

    def one() -> None:
        look(next(batches)["x"].numpy())

    return one


def main() -> None:
    ways: dict[tuple, Callable[[], None]] = {}
    for line in sys.stdin:
        r = json.loads(line)
        key = r["kind"], r["bytes"], r["socket"]
        if key not in ways:
            if r["socket"] and r["socket"] not in shards:
                shards[r["socket"]] = penstock.connect(r["socket"])
            make = {"numpy": numpy, "torch": tensors, "py copy": memcpy, "loader": loader}[r["kind"]]
            ways[key] = make(r["socket"] or r["bytes"])
        one, n = ways[key], r["batches"]
        for _ in range(max(n // 10, 10)):
            one()
        begin = time.perf_counter()
        for _ in range(n):
            one()
        print((time.perf_counter() - begin) / n, flush=True)
    for s in shards.values():
        s.close()
    shards.clear()


if __name__ == "__main__":
    main()
