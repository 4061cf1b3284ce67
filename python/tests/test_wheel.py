"""The wheel: installed in a clean environment it brings the command and the package, and an example trains with them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest

PROJECT = Path(__file__).resolve().parents[1]
ROOT = PROJECT.parent
PACKAGES = Path(numpy.__file__).resolve().parents[1]  # of the tests' environment
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")


def build(*argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(argv, cwd=PROJECT, env={**inherited, **env}, capture_output=True, text=True)


class Clean:
    """An environment in which nothing is installed, and that has nothing of the tests' environment but what it is lent."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self._env = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.bin.parent], check=True)
        (self._packages,) = self.bin.parent.glob("lib/python*/site-packages")

    def lend(self, name: str) -> None:
        """A package, without those that it needs."""
        for top in {f.parts[0] for f in importlib.metadata.files(name) or ()} - {".."}:
            (self._packages / top).symlink_to(PACKAGES / top)

    def lend_all(self) -> None:
        """All packages; what is installed here comes before them."""
        (self._packages / "others.pth").write_text(str(PACKAGES))

    def install(self, what: str) -> subprocess.CompletedProcess[str]:
        """`pip install`. There is no index: what is required must be here."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--disable-pip-version-check", "--no-index", what]
        return subprocess.run(pip, env=self._env, capture_output=True, text=True)

    def run(self, program: str, *args: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.bin / program, *args], env=self._env, cwd=cwd, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def wheel(penstock_bin: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes of the binary."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    p = build(PROJECT / "wheel.sh", penstock_bin, ARCH, folder, PYTHON=sys.executable)
    assert p.returncode == 0, p.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The wheel is installed, with what it says that it needs."""
    env = Clean(tmp_path_factory.mktemp("clean"))
    p = env.install(str(wheel))
    assert p.returncode != 0 and "No matching distribution found for numpy" in p.stderr, p.stderr
    env.lend("numpy")
    p = env.install(str(wheel))
    assert p.returncode == 0, p.stderr
    return env


def test_wheel(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"penstock/_bin/penstock", "penstock/__init__.py", "penstock/py.typed"} <= set(names) and not [n for n in names if "test" in n]


def test_installed(clean: Clean, tmp_path: Path) -> None:
    """With numpy alone."""
    p = clean.run("penstock", "version")
    assert p.returncode == 0 and p.stdout.startswith("penstock "), p.stderr
    p = clean.run("penstock", "run", "no.yaml", cwd=tmp_path)
    assert p.returncode == 2 and "no.yaml" in p.stderr

    (tmp_path / "spec.yaml").write_text("version: 1\nsource: {range: {n: 100}}\nshards: {global_batch: 10, columns: {id: int64}}\n")
    script = """
import penstock
with penstock.open("spec.yaml") as shard:
    print(sum(batch["id"].sum() for batch in shard.iter_batches()), len(shard))
"""
    p = clean.run("python", "-c", script, cwd=tmp_path)
    assert p.returncode == 0 and p.stdout == "4950 10\n", p.stderr


def test_example(clean: Clean, wheel: Path, tmp_path: Path) -> None:
    """An example trains, reports and saves. It is the one in which the binary starts Python by itself, too: for a step of the spec."""
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    p = clean.install(f"{wheel}[torch,arrow]")
    assert p.returncode != 0 and "No matching distribution found for" in p.stderr, p.stderr
    clean.lend_all()
    p = clean.install(f"{wheel}[torch,arrow]")
    assert p.returncode == 0, p.stderr
    p = clean.run("python", "-c", "import penstock, torch; from penstock import _process; print(penstock.__file__, _process.binary())")
    assert p.returncode == 0 and all(Path(x).is_relative_to(clean.bin.parent) for x in p.stdout.split()), p.stdout + p.stderr

    sets = ["--set=train.config.steps=10", "--set=train.config.layers=1"]
    p = clean.run("penstock", "train", "examples/tokens/train.yaml", "--name", "a", "--storage", tmp_path, *sets, "--", clean.bin / "python", "examples/tokens/train.py")
    assert p.returncode == 0 and "step 10: loss " in p.stdout, p.stdout + p.stderr
    p = clean.run("penstock", "status", "a", "--storage", tmp_path, "--json")
    status = json.loads(p.stdout)
    assert (status["state"], status["reports"], status["checkpoint"]) == ("finished", 10, 1) and status["metrics"]["loss"] < 5


def test_without_a_binary(tmp_path: Path) -> None:
    """One for every platform; what it cannot be made for is refused."""
    pytest.importorskip("hatchling")
    hatch = sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path
    p = build(*hatch)
    assert p.returncode == 0, p.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") and "penstock/_bin/penstock" not in zipfile.ZipFile(wheel).namelist()
    p = build(*hatch, PENSTOCK_BINARY=sys.executable, PENSTOCK_GOARCH="riscv64")
    assert p.returncode != 0 and "wheels with a binary are made for amd64 and arm64" in p.stderr
    p = build(*hatch, PENSTOCK_BINARY="/nowhere", PENSTOCK_GOARCH="amd64")
    assert p.returncode != 0 and "/nowhere, which is no program" in p.stderr
