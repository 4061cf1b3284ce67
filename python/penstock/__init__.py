"""Penstock's Python client: data for training loops, and the loop's side of a run.

Nothing but numpy is needed. torch, pyarrow and lightning are imported by what needs them, when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock._errors import (
    Corrupt,
    Error,
    Exhausted,
    Invalid,
    NotFound,
    Unavailable,
    Unsupported,
    WorkerLost,
)
from penstock._version import __version__

if TYPE_CHECKING:
    from penstock import lightning as lightning
    from penstock import torch as torch
    from penstock import train as train
    from penstock._batch import Batch, Lineage, Place
    from penstock._open import connect, open, shard
    from penstock._serve import serve
    from penstock._shard import Shard
    from penstock.train import (
        Context,
        alive,
        get_checkpoint,
        get_config,
        get_context,
        get_device,
        preempted,
        prepare_model,
        report,
    )

# Where the other names are; each module is imported with the first use of one of its names.
_lazy = {
    "Batch": "_batch",
    "Lineage": "_batch",
    "Place": "_batch",
    "Shard": "_shard",
    "connect": "_open",
    "open": "_open",
    "serve": "_serve",
    "shard": "_open",
    **dict.fromkeys(
        ("Context", "alive", "get_checkpoint", "get_config", "get_context", "get_device", "preempted", "prepare_model", "report"),
        "train",
    ),
}

# Modules that are imported with their first use as an attribute. (serve is a function too, and its module is called the same way.)
_modules = ("lightning", "torch", "train")

__all__ = [
    "Batch",
    "Context",
    "Corrupt",
    "Error",
    "Exhausted",
    "Invalid",
    "Lineage",
    "NotFound",
    "Place",
    "Shard",
    "Unavailable",
    "Unsupported",
    "WorkerLost",
    "__version__",
    "alive",
    "connect",
    "get_checkpoint",
    "get_config",
    "get_context",
    "get_device",
    "open",
    "preempted",
    "prepare_model",
    "report",
    "serve",
    "shard",
]


def __getattr__(name: str) -> object:
    if name in _modules:
        return importlib.import_module(f"penstock.{name}")
    module = _lazy.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
