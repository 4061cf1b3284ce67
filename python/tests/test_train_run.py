"""Runs of `penstock train` with Python workers: the real controller and data process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PYTHON = Path(__file__).resolve().parents[1]

ROWS = 384  # 48 steps an epoch: many more than are read ahead when a notice comes

SPEC = f"""
version: 1
source: {{range: {{n: {ROWS}}}}}
steps:
  - with_columns: {{x: double(id) / {ROWS}.0, y: double(id % 7)}}
shards: {{global_batch: 8, seed: 5, columns: {{x: float32, y: float32}}}}
"""

LOOP = """
import os, signal, sys, tempfile, time
from pathlib import Path
import torch, penstock

torch.manual_seed(0)
torch.set_num_threads(1)
me, config = penstock.get_context(), penstock.get_config()
net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
model = penstock.prepare_model(net)
optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
saved = penstock.get_checkpoint()
if saved:
    state = torch.load(saved / f"rank{me.rank if config.get('each') else 0}.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
shard = penstock.shard("train", prefetch=2)  # a notice counts after what was read ahead
told = False
while shard.epoch < 2:
    for batch in shard.iter_torch_batches():
        loss = (model(batch["x"][:, None])[:, 0] - batch["y"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if [me.attempt, me.rank, shard.epoch, shard.step] == config.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"loss-{me.rank}", "a") as f:
            print(shard.epoch, shard.step, loss.item().hex(), batch["x"].tolist(), file=f)
        with tempfile.TemporaryDirectory() as folder:
            save = shard.step % 4 == 0 or penstock.preempted()
            if save and (me.rank == 0 or config.get("each")):
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/rank{me.rank}.pt")
                penstock.report({"loss": loss, "rank": me.rank}, checkpoint=folder)
            else:
                penstock.report({"loss": loss, "rank": me.rank})
        if penstock.preempted():
            sys.exit(0)
        if told:  # a notice takes a moment to come with the data: the epochs must not be over before
            time.sleep(0.2)
        if [me.attempt, me.rank, shard.epoch, shard.step] == config.get("notice"):
            os.kill(os.getppid(), signal.SIGTERM)
            while '"preempting"' not in "".join(p.read_text() for p in Path("penstock-runs/a/status").glob("*.json")):
                time.sleep(0.001)
            told = True
"""

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(penstock_bin: str, tmp_path: Path) -> Train:
    """`penstock train` of a script; its files are in the folder ``name``."""

    def run(name: str, script: str, *args: str, command: str = "train", config: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "spec.yaml").write_text(SPEC)
        (folder / "loop.py").write_text(textwrap.dedent(script))
        env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        env.update(PYTHONPATH=str(PYTHON), OMP_NUM_THREADS="1")
        sets = [f"train.config={json.dumps({'lr': 0.01, **(config or {})})}"]
        argv = [penstock_bin, command]
        argv += ["--name", "a", *(f"--set={s}" for s in sets), "spec.yaml", *args, "--", sys.executable, "loop.py"] if command == "train" else args
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=200)

    return run


def losses(folder: Path, rank: int) -> dict[tuple[int, int], str]:
    """The last loss of each step and its batch. What was done twice gave the same."""
    out: dict[tuple[int, int], str] = {}
    for line in (folder / f"loss-{rank}").read_text().splitlines():
        epoch, step, rest = line.split(" ", 2)
        at = int(epoch), int(step)
        assert out.get(at, rest) == rest, at
        out[at] = rest
    return out


def test_a_worker_is_killed(train: Train, tmp_path: Path) -> None:
    """On two workers with DDP, and later the run is preempted and resumed: every loss is bit for bit that of a run without all that."""
    pytest.importorskip("torch")
    whole = train("whole", LOOP, "--workers", "2")
    assert whole.returncode == 0, whole.stderr
    assert len(losses(tmp_path / "whole", 0)) == 96
    noticed = train("parts", LOOP, "--workers", "2", config={"die": [1, 1, 0, 7], "notice": [2, 0, 1, 2], "each": True})
    assert noticed.returncode == 75, noticed.stderr
    assert "rank 1" in noticed.stderr and "SIGKILL" in noticed.stderr
    assert 50 < len(losses(tmp_path / "parts", 0)) < 96
    resumed = train("parts", LOOP, "penstock-runs/a", command="resume")
    assert resumed.returncode == 0, resumed.stderr
    for rank in range(2):
        assert losses(tmp_path / "parts", rank) == losses(tmp_path / "whole", rank)


def test_the_last_reports_of_a_killed_worker(train: Train, tmp_path: Path) -> None:
    """Reports that were made are kept, though nobody had heard of them yet when their worker was killed."""
    script = """
import os, signal
import penstock
me = penstock.get_context()
shard = penstock.shard("train")
for batch in shard.iter_batches():
    penstock.report({"step": shard.step})
    if me.attempt == 1 and shard.step == 17:
        open(f"there-{me.rank}", "w").close()
        while not os.path.exists(f"there-{1 - me.rank}"):
            pass
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
"""
    done = train("last", script, "--workers", "2")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("last/penstock-runs/a/metrics/000001-*.jsonl"))
    assert [json.loads(line)["metrics"]["step"] for f in files for line in f.read_text().splitlines()] == list(range(1, 18))


def test_an_exception(train: Train) -> None:
    """The run's error is the worker's, with its stack; not the cascade of the others."""
    p = train("bad", """
        import penstock
        shard = penstock.shard("train")
        for batch in shard.iter_batches():
            penstock.report({"a": 1})
            if shard.rank == 1 and shard.step == 3:
                raise ValueError("loss is not finite")
    """, "--workers", "2", "--set", "train.failures.worker=0")  # fmt: skip
    assert p.returncode == 1
    assert "ValueError: loss is not finite" in p.stderr and "rank 1" in p.stderr, p.stderr


def test_an_exit_code(train: Train) -> None:
    """A worker that gives up in its own way, while another goes on, is the cause: not that they reported unequally often."""
    p = train("exits", """
        import sys, time
        import penstock
        shard = penstock.shard("train")
        for batch in shard.iter_batches():
            penstock.report({"a": 1})
            if shard.rank == 1 and shard.step == 3:
                sys.exit("the learning rate is bad")
            time.sleep(0.01)
    """, "--workers", "2", "--set", "train.failures.worker=0")  # fmt: skip
    assert p.returncode == 1
    assert "rank 1" in p.stderr and "exit code 1, and printed last: the learning rate is bad" in p.stderr, p.stderr


def test_reports_that_do_not_fit(train: Train) -> None:
    """Wrong directories and ranks that report after different steps: errors in the worker's own words."""
    p = train("apart", """
        import penstock
        shard = penstock.shard("train")
        it = shard.iter_batches()
        next(it)
        if shard.rank == 0:
            next(it)
        penstock.report({"a": 1})
        for _ in it:
            penstock.report({"a": 1})
    """, "--workers", "2", "--set", "train.failures.worker=0")  # fmt: skip
    assert p.returncode != 0 and "rank 0 after step 2, rank 1 after step 1" in p.stderr, p.stderr


def test_directories_that_are_no_checkpoints(train: Train, tmp_path: Path) -> None:
    """Each is a report all the same, also where files are moved away: a loop that catches the error goes on in step with the other rank, and nothing is lost of what is there."""
    for upload in "sync", "async":
        p = train(upload, """
            import os, penstock
            from pathlib import Path
            shard = penstock.shard("train")
            os.makedirs("empty", exist_ok=True)
            os.makedirs("good", exist_ok=True)
            Path("file").touch()
            Path("good/model").write_text("whole")
            bad = ["missing", "empty", "file", "", ".", "..", "penstock-runs", str(Path.home()), "/tmp"]
            for batch in shard.iter_batches():
                n = shard.step - 1
                if shard.rank == 1 or n > len(bad):
                    penstock.report({"a": n})
                elif n == len(bad):
                    penstock.report({"a": n}, checkpoint="good")
                else:
                    try:
                        penstock.report({"a": n}, checkpoint=bad[n])
                        print("kept", repr(bad[n]))
                    except (penstock.Invalid, penstock.NotFound) as e:
                        print("refused", e)
        """, "--workers", "2", "--set", "train.failures.worker=0", "--set", f"train.checkpoints.upload={upload}")  # fmt: skip
        assert p.returncode == 0 and "kept" not in p.stdout, p.stdout + p.stderr
        for want, times in ("no such file", 1), ("has no files", 1), ("is a file", 1), ("holds the working directory", 3), ("holds the folder of the run", 1), ("holds the ", 6):
            assert p.stdout.count(want) >= times, (want, p.stdout)
        assert "after 48 reports" in p.stdout and "last checkpoint 1" in p.stdout, p.stdout
        assert {"spec.yaml", "loop.py", "empty", "file", "penstock-runs"} <= set(os.listdir(tmp_path / upload))


def test_what_a_process_does_at_its_end_hangs(train: Train, tmp_path: Path) -> None:
    """It is found, with its stacks, though its loop has returned well."""
    p = train("end", """
        import atexit, threading
        atexit.register(threading.Event().wait)  # runs after penstock's own, as teardowns of frameworks that were imported first do
        import penstock
        shard = penstock.shard("train")
        for batch in shard.iter_batches():
            penstock.report({"a": 1})
    """, "--workers", "2", "--set", "train.failures.hang=0", "--set", "train.hang_timeout=2s", "--set", "train.stop_timeout=100ms")  # fmt: skip
    assert p.returncode == 1, p.stderr
    assert "the loop of rank" in p.stderr and "has returned, but its process did not end within" in p.stderr, p.stderr
    assert "threading.py" in (tmp_path / "end/penstock-runs/a/logs/attempt-1/rank-0.log").read_text()
