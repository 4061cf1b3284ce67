"""The types of the package: all are there and right, and the syntax and the standard library are those of the oldest Python that it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


def test_types() -> None:
    """As mypy sees them: pyproject.toml says how strictly, and for which Python."""
    pytest.importorskip("mypy")
    p = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(PROJECT.parent / "bin" / "mypy")], cwd=PROJECT, capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "no issues found" in p.stdout
