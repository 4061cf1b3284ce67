"""The programs of examples/, as its README and theirs say to run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_finetune() -> None:
    """Stopped on 4 workers, gone on with 3."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    r = subprocess.run([ROOT / "examples/finetune-resume/run.sh", sys.executable], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert r.returncode == 0 and re.search(r"each in the same step as in a run without a stop", r.stdout), r.stdout + r.stderr
