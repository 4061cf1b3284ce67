"""The wheel: installed in a clean environment it brings the command and the package."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest

PROJECT = Path(__file__).resolve().parents[1]
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")


def build(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=PROJECT, env={**inherited, **env}, capture_output=True, text=True)


def test_installed(penstock_bin: str, tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    p = build(tmp_path, PENSTOCK_BINARY=penstock_bin, PENSTOCK_GOARCH=ARCH)
    assert p.returncode == 0, p.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"penstock/_bin/penstock", "penstock/__init__.py", "penstock/py.typed"} <= set(names) and not [n for n in names if "test" in n]

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(str(Path(numpy.__file__).resolve().parents[1]))  # numpy, from where it is

    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    p = subprocess.run([venv / "bin" / "penstock", "version"], env=env, capture_output=True, text=True)
    assert p.returncode == 0 and p.stdout.startswith("penstock "), p.stderr
    p = subprocess.run([venv / "bin" / "penstock", "run", "no.yaml"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert p.returncode == 2 and "no.yaml" in p.stderr

    (tmp_path / "spec.yaml").write_text("version: 1\nsource: {range: {n: 100}}\nshards: {global_batch: 10, columns: {id: int64}}\n")
    script = """
import penstock
assert __import__("pathlib").Path(penstock.__file__).is_relative_to(VENV), penstock.__file__
with penstock.open("spec.yaml") as shard:
    print(sum(batch["id"].sum() for batch in shard.iter_batches()), len(shard))
"""
    p = subprocess.run([venv / "bin" / "python", "-c", f"VENV = {str(venv)!r}\n{script}"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stdout == "4950 10\n", p.stderr


def test_without_a_binary(tmp_path: Path) -> None:
    """One for every platform; what it cannot be made for is refused."""
    pytest.importorskip("hatchling")
    p = build(tmp_path)
    assert p.returncode == 0, p.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") and "penstock/_bin/penstock" not in zipfile.ZipFile(wheel).namelist()
    p = build(tmp_path, PENSTOCK_BINARY=sys.executable, PENSTOCK_GOARCH="riscv64")
    assert p.returncode != 0 and "wheels with a binary are made for amd64 and arm64" in p.stderr
    p = build(tmp_path, PENSTOCK_BINARY="/nowhere", PENSTOCK_GOARCH="amd64")
    assert p.returncode != 0 and "/nowhere, which is no program" in p.stderr
