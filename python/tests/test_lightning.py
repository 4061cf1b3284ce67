"""Lightning in a run: workers that are killed, and runs that are preempted and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from test_train_run import ROWS, Train, losses, train  # noqa: F401

pytest.importorskip("lightning")

LOOP = """
import os, signal, sys, tempfile, time, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L
import torch, penstock
from penstock.lightning import PenstockEnvironment, ReportCallback, checkpoint, loader

me, config = penstock.get_context(), penstock.get_config()
torch.manual_seed(0)
torch.set_num_threads(1)

class Net(L.LightningModule):
    told = False
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    def training_step(self, batch, batch_idx):
        loss = (self.net(batch["x"][:, None])[:, 0] - batch["y"]).square().mean()
        at = self.current_epoch, batch_idx
        with open(f"loss-{me.rank}", "a") as f:
            print(*at, loss.item().hex(), batch["x"].tolist(), file=f)
        if [me.attempt, me.rank, *at] == config.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.told:  # a notice takes a moment to come with the data: the epochs must not be over before
            time.sleep(0.2)
        if [me.attempt, me.rank, *at] == config.get("notice"):
            self.told = True
            os.kill(os.getppid(), signal.SIGTERM)
            while '"preempting"' not in "".join(p.read_text() for p in Path("penstock-runs/a/status").glob("*.json")):
                time.sleep(0.001)
        self.log("loss", loss)
        return loss
    def on_save_checkpoint(self, checkpoint):
        if [me.attempt, me.rank, self.current_epoch, self.trainer.fit_loop.batch_idx] == config.get("die_saving"):
            Path("saving").write_text(" ".join(map(str, Path(tempfile.gettempdir()).glob("penstock-*/checkpoint"))))
            os.kill(os.getpid(), signal.SIGKILL)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=config["lr"])

trainer = L.Trainer(plugins=[PenstockEnvironment()], callbacks=[ReportCallback(every_n_steps=4, on_validation_end=False, metrics=["loss"])], devices=me.local_world_size, strategy="ddp",
                    accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), loader("train", prefetch=2), ckpt_path=checkpoint())
"""


def seen(folder: Path, workers: int) -> None:
    """Every sample of an epoch was trained on once, and what was trained on twice, before and after a loss, gave the same loss."""
    ranks = [losses(folder, rank) for rank in range(workers)]
    for epoch in range(2):
        xs = [x for r in ranks for (e, _), rest in r.items() if e == epoch for x in json.loads(rest.partition(" ")[2])]
        assert sorted(round(x * ROWS) for x in xs) == list(range(ROWS))


def test_a_worker_is_killed(train: Train, tmp_path: Path) -> None:  # noqa: F811
    """With DDP."""
    p = train("two", LOOP, "--workers", "2", config={"die": [1, 1, 0, 6]})
    assert p.returncode == 0, p.stderr
    assert "SIGKILL" in p.stderr
    assert len((tmp_path / "two" / "loss-0").read_text().splitlines()) >= 96 + 2  # steps 4 and 5 again
    seen(tmp_path / "two", 2)


def test_no_length(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Where nobody knows how many batches there are Lightning takes one ahead: it is not counted. A notice counts after what was read ahead: two batches.

    The worker is killed while it saves: the next one removes what it left.
    """
    temporary = tmp_path / ("t" * 60)  # too long for sockets: the controller has its folder elsewhere, and removes nothing here
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    p = train("one", LOOP, "--set", f"steps=[{{with_columns: {{x: double(id) / {ROWS}.0, y: double(id % 7)}}}}, {{filter: x >= 0.0}}]", config={"die_saving": [1, 0, 0, 7], "notice": [2, 0, 1, 2]})
    assert p.returncode == 75, p.stderr
    assert "SIGKILL" in p.stderr and 50 < len(losses(tmp_path / "one", 0)) < 96
    (left,) = (tmp_path / "one" / "saving").read_text().split()
    assert left.startswith(str(temporary)) and not [*temporary.glob("penstock-*")]
    p = train("one", LOOP, "penstock-runs/a", command="resume")
    assert p.returncode == 0, p.stderr
    seen(tmp_path / "one", 1)
