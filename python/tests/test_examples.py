"""The programs of examples/, as its README and theirs say to run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def penstock(*args: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), PENSTOCK_PYTHON=sys.executable)
    binary = Path(os.environ.get("PENSTOCK_TEST_BIN", ROOT / "bin")) / "penstock"
    return subprocess.run([binary, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


def train(spec: str, script: str, storage: Path, name: str, *sets: str) -> dict[str, object]:
    """What `penstock status --json` says of the run once it has ended."""
    changed = [f"train.storage={storage}", *sets]
    r = penstock("train", f"examples/{spec}", "--name", name, *(x for s in changed for x in ("--set", s)), "--", sys.executable, f"examples/{script}")
    assert r.returncode == 0, r.stdout + r.stderr
    status = penstock("status", name, "--storage", str(storage), "--json")
    assert status.returncode == 0, status.stderr
    said: dict[str, object] = json.loads(status.stdout)
    return said


def test_ddp(tmp_path: Path) -> None:
    """A run whose worker is killed ends with the loss, to the last bit, of one in which nothing happens; Lightning's ends with it, too."""
    spec, script = "pytorch-ddp/train.yaml", "pytorch-ddp/train.py"
    whole = train(spec, script, tmp_path, "whole", "train.config.epochs=2")
    killed = train(spec, script, tmp_path, "killed", "train.config.epochs=2", "train.config.crash=30")
    assert killed["metrics"] == whole["metrics"]
    assert (whole["attempt"], killed["attempt"]) == (1, 2)
    pytest.importorskip("lightning")
    with_lightning = train(spec, "lightning/train.py", tmp_path, "lightning", "train.config.epochs=2")
    got, want = with_lightning["metrics"]["val_loss"], whole["metrics"]["val_loss"]  # type: ignore[index]
    assert abs(got - want) < 1e-4 * want


def test_tokens(tmp_path: Path) -> None:
    """The loss comes down."""
    pytest.importorskip("pyarrow")
    status = train("tokens/train.yaml", "tokens/train.py", tmp_path, "tokens", "train.config.steps=25", "train.config.layers=1")
    assert status["metrics"]["loss"] < 3.2  # type: ignore[index]


def test_finetune(penstock_bin: str, tmp_path: Path) -> None:
    """Stopped on 4 workers, gone on with 3. The ledger that is printed has every district below the filter's limit once, but for those that fill no step at the end."""
    parquet = pytest.importorskip("pyarrow.parquet")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), PENSTOCK_BINARY=penstock_bin)
    r = subprocess.run([ROOT / "examples/finetune-resume/run.sh", sys.executable, tmp_path], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert r.returncode == 0, r.stdout + r.stderr
    lines = re.findall(r"^ +(\d+) +(\d+) +0  (\d+)-(\d+) +(\d+)-(\d+) +([0-9 +]+)$", r.stdout, re.MULTILINE)
    (first, second) = ([int(x) for x in line[:6]] for line in lines)
    assert first[:3] == [1, 4, 0] and second[:2] == [2, 3] and second[2] == first[3] + 1 and second[4] == first[5] + 1
    assert [line[6] for line in lines] == ["24 + 24 + 24 + 24", "32 + 32 + 32"]
    assert first[4] == 0 and first[5] + 1 == 96 * second[2] and second[5] + 1 == 96 * (second[3] + 1)

    file = "examples/data/housing/housing.parquet"
    housing = parquet.ParquetFile(ROOT / file)
    there = {f"{file}:{g}:{i}" for g in range(housing.num_row_groups) for i, v in enumerate(housing.read_row_group(g)["median_house_value"].to_pylist()) if v < 500000}
    given = [line.split(" ", 3)[3] for p in (tmp_path / "stopped").glob("*.txt") for line in p.read_text().splitlines()]
    assert len(set(given)) == len(given) == len(there) // 96 * 96 == second[5] + 1 and set(given) <= there


def test_finetune_ledger(tmp_path: Path) -> None:
    """What is wrong with a ledger is found."""

    def compare(**files: list[tuple[int, int, str]]) -> tuple[int, str]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, rows in {"one_1_2_0": [(0, 0, "a"), (2, 1, "c")], "one_1_2_1": [(1, 0, "b"), (3, 1, "d")], **files}.items():
            run, _, file = name.partition("_")
            (folder / run).mkdir(exist_ok=True)
            (folder / run / f"{file.replace('_', '-')}.txt").write_text("".join(f"0 {n} {step} {row}\n" for n, step, row in rows))
        r = subprocess.run([sys.executable, ROOT / "examples/finetune-resume/ledger.py", folder / "two", folder / "one"], capture_output=True, text=True)
        assert not r.stderr
        return r.returncode, r.stdout

    head = [(0, 0, "a"), (1, 0, "b")]
    code, said = compare(two_1_1_0=head, two_2_1_0=[(2, 1, "c"), (3, 1, "d")])
    assert code == 0 and "complete, without repeats" in said
    code, said = compare(two_1_1_0=head, two_2_1_0=[(3, 1, "d")])
    assert code == 1 and "epoch 0 has the samples 0-1, 3" in said and "1 samples are not those" in said
    code, said = compare(two_1_1_0=head, two_2_1_0=[(1, 0, "b"), (2, 1, "c"), (3, 1, "d")])
    assert code == 1 and "epoch 0 has the samples 0-1, 1-3" in said and "more than once: b" in said
    code, said = compare(two_1_1_0=head, two_2_1_0=[(2, 1, "d"), (3, 1, "c")])
    assert code == 1 and "2 samples are not those of the other run, or not in the same step: first sample 2 of epoch 0" in said
    code, said = compare(two_1_1_0=[*head, (2, 0, "c")], two_2_1_0=[(3, 1, "d")])
    assert code == 1 and "first sample 2 of epoch 0" in said


def test_demo(penstock_bin: str, tmp_path: Path) -> None:
    """What `make demo` runs: late flights are written, and a training run whose worker is killed goes on to its end."""
    env = dict(os.environ, PENSTOCK_BINARY=penstock_bin)
    r = subprocess.run([ROOT / "examples/demo.sh", tmp_path], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "4,349 rows in 1 file" in r.stdout and "rank 1 (pid " in r.stdout and "SIGKILL" in r.stdout
    assert re.search(r"16 reports in 2 attempts, validation loss 0\.", r.stdout), r.stdout
    assert len([*(tmp_path / "flights").glob("*.parquet")]) == len([*(tmp_path / "runs").iterdir()]) == 1
