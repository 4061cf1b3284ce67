"""A shard as a dataset of PyTorch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from penstock._batch import Batch
from penstock._errors import Invalid, Unsupported
from penstock._shard import Shard

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map
except ImportError as e:
    raise Unsupported("penstock.torch needs PyTorch: pip install torch") from e


def _refuse(batch: Any, *, collate_fn_map: Any = None) -> NoReturn:
    """What default_collate does with batches. A dataset is not told of its loader's ``batch_size``; this comes of all but None."""
    raise Invalid(
        "DataLoader: pass batch_size=None: each element is a batch of the shard already, and a batch_size (its default is 1) would stack whole batches. "
        "How many rows a batch has is said by shards.global_batch of the spec"
    )


default_collate_fn_map[Batch] = _refuse  # where torch's own types are registered


class ShardDataset(IterableDataset[Batch[torch.Tensor]]):
    """Batches of a shard for ``DataLoader(ShardDataset(shard), batch_size=None)``: each element is a batch already.

    Another ``batch_size`` would stack batches, and is an error. (``shards.global_batch`` of the spec says how many rows a batch has.)
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
