"""A worker of kill_test.go: it trains with DDP, writes down samples and losses, and says where it is."""

import os
import tempfile
import time
from pathlib import Path

import torch

import penstock

EPOCHS, STEPS = 2, 20


def say(moment: str, number: int) -> None:
    """The line of killtest.Say."""
    if pipe := os.environ.get("KILLTEST_PIPE"):
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # a test that is gone is an error
        os.write(fd, f"{os.getpid()} {me.rank} {moment} {number}\n".encode())
        os.close(fd)


def hold() -> None:
    """Waits, or raises, where chaos_test.go says so."""
    chaos = config.get("dir")
    if not chaos or made != config["holdat"]:
        return
    fault = Path(chaos, "fault")
    if me.rank == 1 and fault.exists():
        if fault.read_text() == "once":
            fault.unlink()
        raise RuntimeError("a fault of the test")
    Path(chaos, f"held-{os.environ.get('PENSTOCK_JOB_ATTEMPT', '')}-rank-{me.rank}").touch()
    while Path(chaos, "hold").exists():
        time.sleep(0.005)


torch.manual_seed(0)
torch.set_num_threads(1)
me, config = penstock.get_context(), penstock.get_config()
net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = penstock.prepare_model(net, {"find_unused_parameters": True})  # else the first step of an attempt adds up in another order
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
if me.checkpoint:
    say("restore", 0)
    saved = penstock.get_checkpoint()
    assert saved is not None
    state = torch.load(saved / "state.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
name = f"{me.world_size}-{me.attempt}-{me.rank}"
samples, losses = Path(config["out"], f"ledger-{name}").open("w"), Path(config["out"], f"loss-{name}").open("w")
train = penstock.shard("train")
while train.epoch < EPOCHS:
    for batch in train.iter_torch_batches():
        made = train.epoch * STEPS + train.step
        say("step", made)
        time.sleep(config["step"])
        # A rank has its share of the batch; what is averaged over the ranks is weighted by it.
        loss = (model(batch["x"][:, None])[:, 0] - batch["y"]).square().sum() * me.world_size / 40
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for sample, n in zip(batch.samples.tolist(), batch["id"].tolist()):
            print(f"{train.epoch}/{sample} {train.step} {n}", file=samples, flush=True)
        print(made, loss.item().hex(), file=losses, flush=True)
        hold()
        folder = None
        if made % 5 == 0 and me.rank == 0:
            folder = tempfile.mkdtemp()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
            torch.save(torch.full((1 << 18,), float(made)), f"{folder}/large.pt")
            say("report", made)
        penstock.report({"loss": loss}, checkpoint=folder)
