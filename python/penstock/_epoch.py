"""One epoch of a shard, in one form of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._batch import Batch
from penstock._errors import Corrupt, Error
from penstock._feed import TENSORS, Item

if TYPE_CHECKING:
    from penstock._shard import Shard


class Epoch(Iterator[Any]):
    """One epoch of a shard. It keeps no batch that it gave."""

    __slots__ = ("_make", "_over", "_shard", "_views")

    def __init__(self, shard: Shard, make: Callable[[Item], Any], views: bool = False) -> None:
        """``views``: what ``make`` makes costs no memory of its own, so that some may be made ahead."""
        self._shard, self._make, self._views, self._over = shard, make, views, False

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        shard = self._shard
        item = shard._take()
        if item is None:
            self._over = True
            raise StopIteration
        make = self._make
        if item.made is not None and item.made[0] is make:
            out = item.made[1]
        else:
            try:
                out = make(item)
            except BaseException:
                shard._ahead.appendleft(item)  # it was not given, and another loop may ask for it in another form
                raise
            if self._views:
                try:
                    for x in shard._feed.decoded:  # as decoding: several at once cost little more than one
                        if x.kind == TENSORS:
                            x.made = make, make(x)
                except Error:  # raised in its turn  # noqa: S110
                    pass
        shard._give(item)
        return out


def info(item: Item, columns: dict[str, Any]) -> Batch[Any]:
    b: Batch[Any] = Batch(columns)
    b.epoch, b.step, b.rows, b.real = item.epoch, item.step, item.rows, item.real
    b.noticed, b._samples, b._lineage = item.noticed, item.samples, item.lineage
    return b


def arrays(item: Item) -> dict[str, NDArray[Any]]:
    """The columns of a batch: views of its memory."""
    memory = item.memory
    if item.kind == TENSORS:
        if memory is None:
            return {h.name: np.empty(h.shape, h.dtype) for h in item.heads}
        array = np.ndarray
        return {h.name: array(h.shape, h.dtype, memory, h.offset) for h in item.heads}
    from penstock import _arrow

    if memory is None:
        raise Corrupt("the feed is damaged: a batch of records without bytes")
    return _arrow.columns(_arrow.record(memory, item.rows), memory)
