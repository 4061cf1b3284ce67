"""Random files against what was written, and what pyarrow, DuckDB and Polars read.

PENSTOCK_DIFF_SECONDS is how long each run is (default 30), PENSTOCK_DIFF_SEED the first seed, one for each file: the same file comes of
the same seed, so that of a failure can be run alone.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":
    for peer in ("duckdb", "polars", "pyarrow"):
        pytest.importorskip(peer, reason=f"{peer} is not installed: files were not compared with what it reads")

import differential
from conftest import _build

SECONDS = float(os.environ.get("PENSTOCK_DIFF_SECONDS", "30"))
FAILURES = 5  # then a run ends
TEXT = ["csv", "json", "values", "text"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[differential.Reader]:
    folder = tmp_path_factory.mktemp("reader")
    r = differential.Reader(_build("filereader", "./python/tests/filereader", folder), folder)
    for generate in differential.GENERATORS.values():  # the peers keep descriptors, from the first file on
        differential.compare(generate(random.Random(0)), r, folder)
    yield r
    r.close()


def go(formats: list[str], reader: differential.Reader, folder: Path, seconds: float = SECONDS) -> None:
    first = int(os.environ.get("PENSTOCK_DIFF_SEED", str(time.time_ns() % 1_000_000_000)))
    print(f"seeds from {first}")
    end, seed, agreed, failures = time.monotonic() + seconds, first, 0, []
    while seed == first or time.monotonic() < end and len(failures) < FAILURES:
        format = formats[seed % len(formats)]
        case = differential.GENERATORS[format](random.Random(seed))
        wrong, n = differential.compare(case, reader, folder)
        agreed += n
        if wrong:
            kept = folder / f"{seed}-{case.name}"
            shutil.copy(folder / case.name, kept)
            failures.append(f"PENSTOCK_DIFF_SECONDS=0 PENSTOCK_DIFF_SEED={seed}: {kept}, {case.config!r:.500}, {sorted(case.features)}\n    " + "\n    ".join(wrong))
        seed += 1
    print(f"{seed - first} files, {agreed} times a peer read the same")
    assert not failures, "\n".join([f"{len(failures)} of {seed - first} files differ", *failures])
    if seconds:
        assert agreed, "no peer read anything"


def test_text(reader: differential.Reader, tmp_path: Path) -> None:
    go(TEXT, reader, tmp_path)
