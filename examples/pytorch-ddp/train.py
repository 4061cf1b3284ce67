"""House prices with PyTorch and DistributedDataParallel.

    penstock train train.yaml -- python train.py

Each worker gets its share of every batch; the model, the optimiser and the position in the data are committed together, so a run whose worker dies goes on from
there, with the batches that come next. It runs unchanged on GPUs: train.resources.gpus=1.
"""

import os
import signal
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import penstock


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    me, config, device = penstock.get_context(), penstock.get_config(), penstock.get_device()
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model = penstock.prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.01))
    saved = penstock.get_checkpoint()
    if saved:
        state = torch.load(saved / "state.pt", map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    train = penstock.shard("train")
    with tempfile.TemporaryDirectory() as folder:

        def report(metrics: dict, save: bool = True) -> None:
            if save and me.rank == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "state.pt"))
            penstock.report(metrics, checkpoint=folder if save and me.rank == 0 else None)

        while train.epoch < config.get("epochs", 3):
            for batch in train.iter_torch_batches(device=device):
                loss = F.mse_loss(model(batch["x"]), batch["y"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                crash(me, train)
                report({"loss": loss.item(), "epoch": train.epoch}, save=train.step % 20 == 0 or penstock.preempted())
                if penstock.preempted():
                    return
            report({"val_loss": evaluate(model, device), "epoch": train.epoch})


@torch.no_grad()
def evaluate(model: nn.Module, device: torch.device) -> float:
    """The loss over every row of the validation set."""
    sums = torch.zeros(2, dtype=torch.float64)
    with penstock.shard("val") as val:
        for batch in val.iter_torch_batches(device=device):
            rows = batch.real  # those behind are pads, so that every rank has as many batches
            error = model(batch["x"])[:rows] - batch["y"][:rows]
            sums += torch.tensor([error.double().square().sum().item(), rows])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def crash(me: penstock.Context, train: penstock.Shard) -> None:
    """Kills worker 1 once, at the step of the second epoch that --set train.config.crash=STEP names: to see the run go on."""
    if me.rank == 1 and me.attempt == 1 and (train.epoch, train.step) == (1, me.config.get("crash")):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
