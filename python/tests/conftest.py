"""Real servers for the tests: the penstock binary, and feedserver, which has a preemption notice besides."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

LIMIT = 300  # seconds of a test; then all stacks are printed, and the run ends


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def no_descriptors_left() -> Iterator[None]:
    """Every test gives back the descriptors that it opened."""
    import gc

    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    after = len(os.listdir("/proc/self/fd"))
    assert after <= before, f"{after - before} descriptors left: {[os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')]}"


def _build(name: str, package: str, folder: Path) -> str:
    """A Go program; one that is in $PENSTOCK_TEST_BIN is taken as it is."""
    ready = Path(os.environ.get("PENSTOCK_TEST_BIN", "/nowhere")) / name
    if ready.exists():
        return str(ready)
    out = folder / name
    subprocess.run(["go", "build", "-o", str(out), package], cwd=ROOT, check=True)
    return str(out)


@pytest.fixture(scope="session")
def penstock_bin(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _build("penstock", "./cmd/penstock", tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="session")
def feedserver_bin(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _build("feedserver", "./python/tests/feedserver", tmp_path_factory.mktemp("bin"))


class Served:
    """A data process for the ranks of a spec."""

    def __init__(self, binary: str, folder: Path, spec: str | Path, ranks: int, *more: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.socket = str(folder / "s")
        argv = [binary, "data", "--ranks", str(ranks), "--socket", self.socket, *more, str(spec)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready" in line, line

    def kill(self, sig: int = signal.SIGKILL) -> None:
        self.process.send_signal(sig)

    def close(self) -> int:
        """Ends it; its exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture
def serve(feedserver_bin: str, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Serves a spec: ``serve(spec, ranks)``."""
    all_: list[Served] = []

    def start(spec: str | Path, ranks: int = 1, *more: str) -> Served:
        s = Served(feedserver_bin, tmp_path / f"sock{len(all_)}", spec, ranks, *more)
        all_.append(s)
        return s

    yield start
    for s in all_:
        s.close()


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a spec, and names its file."""
    n = 0

    def write(text: str) -> Path:
        nonlocal n
        n += 1
        path = tmp_path / f"spec{n}.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def cli(penstock_bin: str) -> Callable[..., list[str]]:
    """Runs the command line; the lines that it prints."""

    def run(*argv: object) -> list[str]:
        r = subprocess.run([penstock_bin, *map(str, argv)], capture_output=True, text=True, timeout=60)
        assert r.returncode == 0, r.stderr
        return r.stdout.splitlines()

    return run
