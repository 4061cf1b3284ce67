"""Lightning in a run: its ranks, its batches, its checkpoints.

    trainer = Trainer(plugins=[PenstockEnvironment()], callbacks=[ReportCallback(every_n_steps=100)], devices=penstock.get_context().local_world_size)
    trainer.fit(module, loader("train"), loader("val"), ckpt_path=checkpoint())

Works with the package ``lightning`` and with ``pytorch_lightning``: the one that the script has imported, else the first that is there.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

from penstock import _control, _open, train
from penstock._errors import Invalid, Unsupported
from penstock._folder import Folder
from penstock._shard import Shard
from penstock._state import Place, summed

__all__ = ["Loader", "PenstockEnvironment", "ReportCallback", "checkpoint", "loader"]

_FILE = "lightning.ckpt"


def _base(module: str, old: str, name: str) -> Any:
    """A class of whichever package it is."""
    order = [("lightning", module), ("pytorch_lightning", old)]
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        order.reverse()
    for _, path in order:
        with contextlib.suppress(ModuleNotFoundError):
            return getattr(importlib.import_module(path), name)
    raise Unsupported("penstock.lightning needs Lightning: pip install lightning (or pytorch-lightning)")


if TYPE_CHECKING:

    class _Environment: ...

    class _Callback: ...

else:
    _Environment = _base("lightning.fabric.plugins.environments", "lightning_fabric.plugins.environments", "ClusterEnvironment")
    _Callback = _base("lightning.pytorch.callbacks", "pytorch_lightning.callbacks", "Callback")


class PenstockEnvironment(_Environment):
    """Tells Lightning who it is: the ranks that `penstock train` (or torchrun) has given, so that it starts no processes of its own."""

    def __init__(self) -> None:
        self._me = train.get_context()

    @staticmethod
    def detect() -> bool:
        """This process is a worker of a run."""
        return bool(os.environ.get(_control.ENV_SOCKET))

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        return _control._number("MASTER_PORT", 0)

    def world_size(self) -> int:
        return self._me.world_size

    def set_world_size(self, size: int) -> None:
        """It is the run's."""

    def global_rank(self) -> int:
        return self._me.rank

    def set_global_rank(self, rank: int) -> None:
        """It is the run's."""

    def local_rank(self) -> int:
        return self._me.local_rank

    def node_rank(self) -> int:
        return self._me.node_rank

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if num_devices * num_nodes != self._me.world_size:
            raise Invalid(
                f"Trainer(devices={num_devices}, num_nodes={num_nodes}) is not the group of {self._me.world_size} workers that was started: "
                f"give devices={self._me.local_world_size}, num_nodes={self._me.nodes}, or start as many workers"
            )


class Loader:
    """A shard as a dataloader for Lightning: an epoch of tensors each time. Made by :func:`loader`.

    Lightning takes one batch ahead where it does not know how many there are; the state that goes into checkpoints is that of the batch which it has been given to train on.
    """

    def __init__(self, shard: Shard, options: dict[str, Any]) -> None:
        self.shard = shard
        self._options = options
        self._before: Optional[Place] = None  # of the batch that was taken ahead

    def __iter__(self) -> Iterator[Any]:
        self._before = None
        if not self.ahead and self.shard.step >= len(self.shard):  # Lightning counts, and has not seen the end of the epoch before
            next(self.shard.iter_batches(), None)
        batches = self.shard.iter_torch_batches(**self._options)
        return _Ahead(self, batches) if self.ahead else batches

    def __len__(self) -> int:
        return len(self.shard)

    def __bool__(self) -> bool:
        return True

    @property
    def ahead(self) -> bool:
        """Lightning takes a batch ahead."""
        try:
            len(self.shard)
        except TypeError:
            return True
        return False

    def position(self) -> Place:
        """Where the data set is after the batch that is, or was last, trained on."""
        return self._before if self._before is not None else self.shard.place()


class _Ahead(Iterator[Any]):
    """Notes the place before each batch; after the last one there is none ahead."""

    def __init__(self, loader: Loader, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __next__(self) -> Any:
        before = self._loader.shard.place()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._before = None
            raise
        self._loader._before = before
        return batch


class _OpenLoader(Loader):
    """Of a shard that no run keeps the state of: Lightning's checkpoints have it."""

    def state_dict(self) -> dict[str, Any]:
        return summed(self.position().state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shard.load_state_dict(state)


def loader(data: "str | Shard" = "train", *, prefetch: int | None = None, **options: Any) -> Loader:
    """A data set of the run, or a shard that :func:`penstock.open` gave, as a dataloader. ``prefetch`` is that of :func:`penstock.shard` (a shard that is given has its own); ``options`` are those of
    :meth:`Shard.iter_torch_batches`.

    Lightning moves the tensors to its device; of tensors that are to be copied by themselves give ``device=penstock.get_device()``. A shard of its own has its state in Lightning's
    checkpoints; of a data set of the run it is in the run's.
    """
    if isinstance(data, Shard):
        if prefetch is not None:
            raise Invalid("loader(shard, prefetch=): give prefetch where the shard is opened")
        return _OpenLoader(data, options)
    session = _control.session()
    if session is None:
        raise Invalid(f"loader({data!r}): this process is no worker of a run, which has data sets by name; start it with `penstock train`, or give a shard: loader(penstock.open(spec))")
    made = Loader(_open.shard(data, prefetch=prefetch), options)
    if not made.shard.eval:
        session.positions[data] = made.position
    return made


def checkpoint() -> Optional[str]:
    """What ``Trainer.fit(ckpt_path=)`` goes on from: the run's checkpoint that :class:`ReportCallback` made; None at the beginning."""
    folder = train.get_checkpoint()
    if folder is None:
        return None
    if not (folder / _FILE).exists():
        raise Invalid(f"the checkpoint that the run goes on from has no {_FILE}: it was not made by penstock.lightning.ReportCallback")
    return str(folder / _FILE)


class ReportCallback(_Callback):
    """Reports the trainer's metrics, with a checkpoint of it, to the run: after each ``every_n_steps`` batches, after validation, or both.

    ``metrics`` are the names to report; default: all that were logged and are numbers. ``save=False`` reports without a checkpoint. When the machine will be taken away the
    trainer saves, reports and stops after the batch with which the notice came.
    """

    def __init__(self, every_n_steps: Optional[int] = None, on_validation_end: bool = True, metrics: Optional[Sequence[str]] = None, save: bool = True) -> None:
        super().__init__()
        if every_n_steps is not None and every_n_steps < 1:
            raise Invalid(f"every_n_steps={every_n_steps}: it is at least 1, or None")
        if every_n_steps is None and not on_validation_end:
            raise Invalid("ReportCallback reports nothing: give every_n_steps, or on_validation_end=True")
        self._every, self._validation, self._metrics, self._save = every_n_steps, on_validation_end, metrics, save

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if type(trainer.fit_loop._data_fetcher).__name__ == "_DataLoaderIterDataFetcher":
            raise Unsupported("training_step(dataloader_iter) takes batches by itself: the position in the data cannot be known. Take batch and batch_idx instead")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if train.preempted():
            self._report(trainer, save=True)
            trainer.should_stop = True
            trainer.limit_val_batches = 0  # there is no time for it
        elif self._every is not None and (trainer.fit_loop.total_batch_idx + 1) % self._every == 0:
            self._report(trainer, self._save)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if self._validation and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._report(trainer, self._save)

    def _report(self, trainer: Any, save: bool) -> None:
        values = {}
        for name, v in trainer.callback_metrics.items():
            if self._metrics is None or name in self._metrics:
                values[name] = v
        if self._metrics is not None and (missing := [n for n in self._metrics if n not in values]):
            raise Invalid(f"metric {', '.join(missing)} was not logged; there are: {', '.join(trainer.callback_metrics) or 'none'}")
        if not save:
            train.report(values)
            return
        with Folder(tempfile.gettempdir()) as folder:
            files = os.path.join(folder.path, "checkpoint")
            os.mkdir(files)
            trainer.save_checkpoint(os.path.join(files, _FILE))  # on all ranks: it is theirs together, and written by the first
            train.report(values, checkpoint=files if os.listdir(files) else None)
