"""A shard as a dataset of PyTorch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock._batch import Batch
from penstock._errors import Invalid, Unsupported
from penstock._shard import Shard

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as e:
    raise Unsupported("penstock.torch needs PyTorch: pip install torch") from e


class ShardDataset(IterableDataset[Batch[torch.Tensor]]):
    """Batches of a shard for ``DataLoader(ShardDataset(shard), batch_size=None)``: each element is a batch already.

    ``num_workers`` must be 0: batches are made in parallel by the data process, and arrive without a copy. Its state is the shard's, so torchdata's
    ``StatefulDataLoader`` saves and restores the position. ``dtypes`` as in :meth:`Shard.iter_torch_batches`.
    """

    def __init__(self, shard: Shard, dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None) -> None:
        self.shard = shard
        self.dtypes = dtypes

    def __iter__(self) -> Iterator[Batch[torch.Tensor]]:
        if get_worker_info() is not None:
            raise Invalid("ShardDataset needs num_workers=0: batches are made in parallel by the data process already, and a rank has one consumer")
        return self.shard.iter_torch_batches(dtypes=self.dtypes)

    def __len__(self) -> int:
        return len(self.shard)

    def state_dict(self) -> dict[str, Any]:
        return self.shard.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.shard.load_state_dict(state)
