"""The loop's side of a run: what it is told, what it reports, and where it goes on from.

All of it works in a script that is run by hand too, as a group of its own: nothing is restored then, and :func:`report` keeps nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from penstock import _control, _metrics
from penstock._errors import Invalid, Unsupported

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="torch.nn.Module")


@dataclass(frozen=True)
class Context:
    """A worker's place in its run."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    #: Name of the run; "" outside of one.
    run: str = ""
    #: URL of the run's folder; "" outside of a run.
    storage: str = ""
    #: Counts the starts of the group, from 1.
    attempt: int = 1
    #: GPUs leased to this worker, as CUDA_VISIBLE_DEVICES names them. Outside of a run it is empty.
    devices: tuple[str, ...] = ()
    #: The loop's settings.
    config: dict[str, Any] = field(default_factory=dict)
    #: Names of the run's data sets.
    data: tuple[str, ...] = ()
    #: The checkpoint that the group goes on from; None at the beginning.
    checkpoint: Optional[int] = None
    #: Metrics of that checkpoint's report.
    metrics: dict[str, float] = field(default_factory=dict)


def get_context() -> Context:
    """The worker's place in its run; outside of one that of RANK, WORLD_SIZE and relatives, else rank 0 of 1."""
    s = _control.session()
    if s is None:
        number = _control._number
        world = number("WORLD_SIZE", 1)
        rank = number("RANK", 0)
        local = number("LOCAL_WORLD_SIZE", world)
        return Context(
            rank=rank, world_size=world, local_rank=number("LOCAL_RANK", rank), local_world_size=local,
            node_rank=number("GROUP_RANK", number("NODE_RANK", 0)), nodes=max(world // max(local, 1), 1),
        )  # fmt: skip
    w = s.welcome
    return Context(
        rank=w.rank, world_size=w.world, local_rank=w.local_rank, local_world_size=w.local_world, node_rank=w.node, nodes=w.nodes,
        run=w.run, storage=w.storage, attempt=w.attempt, devices=w.devices, config=dict(w.config), data=tuple(sorted(w.data)),
        checkpoint=w.checkpoint or None, metrics=dict(w.metrics),
    )  # fmt: skip


def get_config() -> dict[str, Any]:
    """The loop's settings: ``train.config`` of the spec, with what ``--set train.config.KEY=VALUE`` changed. Empty outside of a run."""
    return get_context().config


def get_device() -> torch.device:
    """The first GPU leased to this worker, which is made the current one, else the CPU. Outside of a run: the GPU of LOCAL_RANK where CUDA is there; in a
    function of a ``python`` step that of its process, which have the GPUs of the machine in turn."""
    import torch

    s = _control.session()
    if s is None:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        number = _control._number("PENSTOCK_WORKER", get_context().local_rank)
        device = torch.device("cuda", number % torch.cuda.device_count())
    elif not s.welcome.devices:
        return torch.device("cpu")
    elif not torch.cuda.is_available():
        raise Unsupported(f"GPU {', '.join(s.welcome.devices)} is leased to this worker, but this PyTorch ({torch.__version__}) finds no CUDA: install a build with it, or set resources.gpus to 0")
    else:
        device = torch.device("cuda", 0)  # CUDA_VISIBLE_DEVICES has the leased ones only
    torch.cuda.set_device(device)
    return device


def report(metrics: Optional[Mapping[str, Any]] = None, checkpoint: "str | os.PathLike[str] | None" = None) -> None:
    """Makes this rank's next report. Every rank reports equally often, after the same steps.

    ``metrics`` are numbers by name: Python's, numpy's, or tensors of one element. ``checkpoint`` is a directory whose files, with those of other ranks, are kept
    together with the position in every training data set: a rank that gives one waits until that is committed (or, with asynchronous checkpoints, until
    the directory was moved away). A report that is not kept raises with the reason; where only its directory cannot be used (it is missing, empty, a file,
    or holds the working directory) the report counts as one without, so that a loop which catches the error may go on.
    """
    if type(metrics) is not dict and metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"report({type(metrics).__name__}): metrics are a dict of numbers by name, as report({{'loss': 0.5}})")
    s = _control.session()
    if s is not None and metrics and checkpoint is None and s.again(metrics):
        return
    metrics = metrics or {}
    names, values = tuple(metrics), _metrics.values(metrics)
    directory = "" if checkpoint is None else os.path.abspath(os.fspath(checkpoint))
    if s is not None:
        s.report(names, values, directory)  # the controller looks at the directory: every rank makes as many reports
        return
    _metrics.form(names)
    if directory and not os.path.isdir(directory):
        what = "is a file" if os.path.exists(directory) else "does not exist"
        raise Invalid(f"checkpoint {directory} {what}: give a directory with the files to keep")
    _alone(directory)


def get_checkpoint() -> Optional[Path]:
    """The directory with the files of the checkpoint that the group goes on from, read only and shared by the ranks of a machine; None at the beginning.

    Shards stand where that checkpoint was committed already.
    """
    s = _control.session()
    return None if s is None else s.restore()


def preempted() -> bool:
    """The machine will be taken away: save, report, and end with exit code 0. It becomes true after the same step on every rank.

    Where this process has opened training data sets, that is after the batch that carries the notice; else after a report.
    """
    s = _control.session()
    return s is not None and s.noticed()


def alive() -> None:
    """Says that the loop gets somewhere, where neither a batch nor a report does for long: an evaluation, a download. It may be called in every turn."""
    s = _control.session()
    if s is not None:
        s.alive()


def prepare_model(model: M, ddp_kwargs: Optional[Mapping[str, Any]] = None) -> "M | torch.nn.parallel.DistributedDataParallel":
    """``model`` on this worker's device, and in a group of several wrapped in DistributedDataParallel, which gets ``ddp_kwargs``.

    The process group is made where the script has not made one: nccl with GPUs, else gloo.

    DistributedDataParallel puts gradients into other buckets after its first step, so the first step after a restart may differ in its last bits. With
    ``{"find_unused_parameters": True}`` it does not, and a run that goes on gives the losses of one that was not stopped, bit for bit.
    """
    import torch

    device = get_device()
    model = model.to(device)
    if get_context().world_size == 1:
        return model
    dist = torch.distributed
    if not dist.is_available():
        raise Unsupported(f"this PyTorch ({torch.__version__}) has no torch.distributed: install a build with it, or train with one worker")
    if not dist.is_initialized():
        missing = [v for v in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if not os.environ.get(v)]
        if missing:
            raise Invalid(f"{' and '.join(missing)} must be set for a group of several workers: start the script with `penstock train` or torchrun")
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_end_group)
    kwargs = dict(ddp_kwargs or {})
    if device.type == "cuda":
        kwargs.setdefault("device_ids", [device.index])
    return torch.nn.parallel.DistributedDataParallel(model, **kwargs)


def _end_group() -> None:
    """At the end of a process that did not fail: after a failure the others do not answer any more."""
    dist = sys.modules["torch.distributed"]
    if dist.is_initialized() and not _control.failed():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


_said = False


def _alone(directory: str) -> None:
    global _said
    if not _said and get_context().rank == 0:
        _said = True
        more = f"; files stay where they are ({directory!r})" if directory else ""
        print(f"penstock: this process is no worker of a run, so reports are not kept{more}. `penstock train` keeps them", file=sys.stderr)
