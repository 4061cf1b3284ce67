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

if TYPE_CHECKING:
    from penstock._batch import Batch, Lineage, Place
    from penstock._shard import Shard, connect, open, shard

# Where the other names are; each module is imported with the first use of one of its names.
_lazy = {
    "Batch": "_batch",
    "Lineage": "_batch",
    "Place": "_batch",
    "Shard": "_shard",
    "connect": "_shard",
    "open": "_shard",
    "shard": "_shard",
}

__all__ = [
    "Batch",
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
    "connect",
    "open",
    "shard",
]


def __getattr__(name: str) -> object:
    module = _lazy.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
