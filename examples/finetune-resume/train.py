"""Writes down which samples every rank gets: run.sh stops it on 4 workers, goes on with 3, and has ledger.py print and compare."""

import os
import signal
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

import penstock


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    me, config = penstock.get_context(), penstock.get_config()
    net = torch.nn.Linear(2, 1)
    model = penstock.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saved = penstock.get_checkpoint()
    if saved:
        net.load_state_dict(torch.load(saved / "net.pt"))
    ledger = Path(config["ledger"], f"{me.attempt}-{me.world_size}-{me.rank}.txt").open("w")
    train = penstock.shard("train")
    with tempfile.TemporaryDirectory() as folder:
        while train.epoch < config["epochs"]:
            for batch in train.iter_torch_batches():
                # A rank has its share of the batch; what is averaged over the ranks is weighted by it.
                loss = F.mse_loss(model(batch["x"]), batch["y"], reduction="sum") * me.world_size / 96
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                for sample in batch.lineage:
                    row = sample.place
                    print(batch.epoch, sample.n, batch.step, f"{row.file}:{row.row_group}:{row.row}", file=ledger)
                if me.rank == 0 and train.step == config.get("stop") and not saved:
                    os.kill(os.getppid(), signal.SIGTERM)  # as when the machine is taken away
                save = penstock.preempted() or train.step % 50 == 0
                if save and me.rank == 0:
                    torch.save(net.state_dict(), Path(folder, "net.pt"))
                penstock.report({"loss": loss.item()}, checkpoint=folder if save and me.rank == 0 else None)
                if penstock.preempted():
                    return
            penstock.report({"epoch": train.epoch})


if __name__ == "__main__":
    main()
