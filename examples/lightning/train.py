"""House prices with Lightning: ../pytorch-ddp/train.yaml says what the data is.

    penstock train examples/pytorch-ddp/train.yaml -- python examples/lightning/train.py

PenstockEnvironment tells Lightning its ranks, ReportCallback reports its metrics and checkpoints to the run, and checkpoint() is what a run goes on from.
"""

import lightning as L
import torch
from torch.nn import functional as F

import penstock
from penstock.lightning import PenstockEnvironment, ReportCallback, checkpoint, loader


class Net(L.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch: dict, batch_idx: int) -> torch.Tensor:
        loss = F.mse_loss(self.net(batch["x"]), batch["y"])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict, batch_idx: int) -> None:
        real = batch["mask"]  # other rows are pads, so that every rank has as many batches
        loss = F.mse_loss(self.net(batch["x"][real]), batch["y"][real])
        self.log("val_loss", loss, batch_size=int(real.sum()), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    me, config = penstock.get_context(), penstock.get_config()
    trainer = L.Trainer(
        plugins=[PenstockEnvironment()],
        callbacks=[ReportCallback()],
        devices=me.local_world_size,
        strategy="ddp",
        accelerator="gpu" if me.devices else "cpu",
        max_epochs=config.get("epochs", 3),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(config.get("lr", 0.01)), loader("train"), loader("val"), ckpt_path=checkpoint())
    if me.rank == 0:
        print(f"validation loss {trainer.callback_metrics['val_loss']:.6f}")


if __name__ == "__main__":
    main()
