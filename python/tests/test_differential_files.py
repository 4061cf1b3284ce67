"""Random Parquet and Arrow IPC files of others are read as pyarrow reads them."""

from __future__ import annotations

import faulthandler
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("polars")

import differential_files as files  # noqa: E402

SECONDS = float(os.environ.get("PENSTOCK_DIFF_SECONDS", "30"))


@pytest.fixture(scope="module", autouse=True)
def threads_of_polars(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Polars keeps the descriptors of its threads, which are no test's."""
    path = tmp_path_factory.mktemp("polars") / "f.parquet"
    files.pl.DataFrame({"a": [1]}).write_parquet(path)
    files.peers(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "folder"])
def test_random_files(penstock_bin: str, kind: str) -> None:
    """The seed of a difference repeats it: python python/tests/differential_files.py SEED."""
    faulthandler.dump_traceback_later(SECONDS + 300, exit=True)  # instead of the limit of all tests
    first = int(os.environ.get("PENSTOCK_DIFF_SEED", random.SystemRandom().randrange(10**9)))
    read, refused, found = files.search(penstock_bin, kind, SECONDS / 3, first)
    print(f"{kind}: seeds from {first}: {read} files read, {refused} that nobody writes or reads, {len(found)} differences")
    assert not found, f"{kind}, seeds from {first}:\n" + "\n".join(found)
    assert read > 0, f"{kind}, seeds from {first}: none of {refused} files could be written"


def test_differences_are_found(penstock_bin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a value that is wrong, a row that is missing and an error."""
    seed = next(s for s in range(100) if _rows(s, tmp_path) > 2)
    assert files.differences(penstock_bin, "parquet", seed, _new(tmp_path)) == []
    ask = files.ask
    monkeypatch.setattr(files, "ask", lambda *a: [t.slice(1) for t in ask(*a)])  # type: ignore[misc]
    assert files.differences(penstock_bin, "parquet", seed, _new(tmp_path))
    monkeypatch.setattr(files, "ask", lambda *a: "exit 1: no")
    assert "exit 1: no" in files.differences(penstock_bin, "parquet", seed, _new(tmp_path))[0]
    assert files.plain(pa.array([0.0, float("nan")])) == [0.0, "NaN"] and files.plain(pa.array([-0.0])) != files.plain(pa.array([0.0]))


def _new(folder: Path) -> Path:
    new = folder / str(len(list(folder.iterdir())))
    new.mkdir()
    return new


def _rows(seed: int, folder: Path) -> int:
    try:
        path, _ = files.make(random.Random(seed), "parquet", _new(folder))
        return files.read(path).num_rows
    except Exception:
        return 0
