"""The shard of a rank: its batches, epoch by epoch, and the state to go on from."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import NDArray

from penstock import _state
from penstock._batch import Batch
from penstock._epoch import Epoch, arrays, info
from penstock._errors import Error, Invalid, Unsupported
from penstock._feed import END, TENSORS, Feed, Item

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import torch


class Shard:
    """The batches of one rank. :func:`penstock.shard`, :func:`penstock.open` and :func:`penstock.connect` make one.

    Each call of :meth:`iter_batches`, :meth:`iter_torch_batches` or :meth:`to_arrow` goes through one epoch, or through what is left of it: after
    :meth:`load_state_dict`, or where the loop before was left early. (An evaluation set begins at its first row each time.) One thread at a time
    iterates; batches may be used, and dropped, in any.

    Close it, or use it in a ``with`` statement: that gives the rank up, and the other ranks go on without it. A program that an exception ends
    does not close, so that nobody goes on alone.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        name: str = "",
        spec: str = "",
        eval: bool = False,
        reopen: Callable[[], Feed] | None = None,
        alive: Callable[[int], None] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        self._feed = feed
        #: Of the data set in its run; "" where there is none.
        self.name = name
        self._spec = spec  # that penstock.open was given
        #: Each loop gives every row once, and the state is no part of checkpoints.
        self.eval = eval
        #: The preemption notice counts: save, report, and end.
        self.noticed = False
        self._reopen = reopen
        self._alive = alive
        self._done = done
        self._within = False  # an epoch that was begun, and has not ended
        self._last: Item | None = None
        self.given: Item | None = None  # the same, while its epoch lasts
        self._ahead: deque[Item] = deque()  # taken from the feed, but not given
        self._pins: Any = None  # registered memory, for copies to a GPU

    # -- iterating

    def iter_batches(self) -> Iterator[Batch[NDArray[Any]]]:
        """The batches of an epoch as numpy arrays by name: writable views of the data process's memory, not copies.

        bfloat16 arrives as the dtype of ml_dtypes where that package is installed, else as its bits in uint16. A batch's memory goes back when the last
        view of it is gone; who keeps many keeps as much memory, beyond ``run.memory`` too, and is warned once: keep copies (``v.copy()``). Of a spec that makes records (no ``shards.columns``), strings, lists,
        booleans and columns with nulls are copies, as pyarrow's ``to_numpy`` makes them.
        """
        self._begin()
        return Epoch(self, self._numpy, views=True)

    def iter_torch_batches(
        self,
        device: torch.device | str | None = None,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        pin_memory: bool = False,
    ) -> Iterator[Batch[torch.Tensor]]:
        """The batches of an epoch as tensors by name.

        On the CPU they are views as those of :meth:`iter_batches`, bfloat16 included. ``dtypes`` casts, all columns or by name. With a GPU as ``device`` a batch is
        copied while the one before is being used; ``pin_memory`` registers the data process's memory with CUDA (where the shard has not begun yet), so that these copies
        need no CPU; without it, and for what is cast, they go through pageable memory. pin_memory without CUDA is an error.
        """
        from penstock import _tensors

        self._begin()
        return _tensors.iterate(self, device, dtypes, pin_memory)

    def to_arrow(self) -> Iterator[pa.RecordBatch]:
        """The batches of an epoch as pyarrow record batches over the data process's memory, not copies. Only of specs that make records: without ``shards.columns``.

        :attr:`last` has the place in the epoch of the batch given last.
        """
        self._begin()
        return Epoch(self, self._arrow)

    def _begin(self) -> None:
        self._feed.usable()
        if self.eval and self._within:  # that was left early: to its end, which is the next one's beginning
            while self._take() is not None:
                pass

    def _take(self) -> Item | None:
        """The next batch, which is not given yet; None at the end of an epoch, which is."""
        item = self._ahead.popleft() if self._ahead else self._feed.next()
        if item is None:  # no epoch follows
            self._within, self.given = False, None
            return None
        if item.kind == END:
            self._within, self.given = False, None
            self._feed.position = item.position
            return None
        self._within = True
        return item

    def _peek(self) -> Item | None:
        """What :meth:`_take` will give next, where it is there already. An error waits until then."""
        if not self._ahead and self._feed.ready():
            with contextlib.suppress(Error):
                item = self._feed.next()
                if item is not None:
                    self._ahead.append(item)
        return self._ahead[0] if self._ahead else None

    def _give(self, item: Item) -> None:
        """The batch is the user's: the state is that after it."""
        self._feed.position = item.position
        item.memory = item.made = None  # that is the views' alone
        self._last = self.given = item
        if item.noticed:
            self.noticed = True
        if self._alive is not None:
            self._alive(item.step + 1)

    def _numpy(self, item: Item) -> Batch[NDArray[Any]]:
        return info(item, arrays(item))

    def _arrow(self, item: Item) -> pa.RecordBatch:
        from penstock import _arrow

        if item.kind == TENSORS:
            raise Unsupported("this spec makes tensors: leave shards.columns out of it for record batches, or take iter_batches()")
        return _arrow.record(item.memory, item.rows)

    def __iter__(self) -> NoReturn:
        raise TypeError("a shard has several forms of batches: loop over shard.iter_batches() (numpy), shard.iter_torch_batches() (tensors) or shard.to_arrow(), each of which is one epoch")

    def __len__(self) -> int:
        """Batches of the epoch. TypeError where nobody knows before reading: with filters, packing and the like."""
        steps = self._feed.steps()
        if steps is None:
            raise TypeError("the number of batches is not known before reading: a step of the spec changes the number of rows")
        return steps

    # Without this a shard of unknown length could not be asked whether it is one.
    def __bool__(self) -> bool:
        return True

    @property
    def last(self) -> Batch[Any] | None:
        """The batch given last, without its columns: epoch, step, rows, real, samples, lineage. None before the first."""
        return None if self._last is None else info(self._last, {})

    # -- the state

    @property
    def rank(self) -> int:
        return self._feed.rank

    @property
    def epoch(self) -> int:
        """Of the next batch."""
        return self.place().at()[0]

    @property
    def step(self) -> int:
        """Steps of the epoch that were given."""
        return self.place().at()[1]

    def place(self) -> _state.Place:
        """Where the job stands after the last batch given: what :meth:`state_dict` is made of, at the cost of an object."""
        return _state.Place(self._feed.base, self._feed.position)

    @property
    def begun(self) -> bool:
        """A batch was asked for."""
        return self._feed.begun

    def state_dict(self) -> dict[str, Any]:
        """The job's state after the last batch given, the same on every rank that is at the same step. What was read ahead does not count.

        A plain dict: ``json.dump`` of it is a state file that the command line takes (``penstock batches --from``).
        """
        return _state.summed(self.place().state())

    def load_state_dict(self, state: Mapping[str, Any] | str | bytes) -> None:
        """Goes on from a state: a dict, or its JSON. Every rank loads the same one. A state of another job is refused with what differs.

        Before the first batch; a shard that :func:`penstock.open` made may load one at any time, and starts its data process again for it.
        """
        if isinstance(state, Mapping):
            text = json.dumps(dict(state), ensure_ascii=False, separators=(",", ":"))
        elif isinstance(state, (str, bytes, bytearray)):
            text = state if isinstance(state, str) else bytes(state).decode("utf-8", "replace")
        else:
            raise TypeError(f"load_state_dict({type(state).__name__}): give what state_dict() returned, or its JSON")
        if self._feed.begun and self._reopen is not None:
            self._feed.close()
            self._feed = self._reopen()
            self._within, self.noticed, self._last, self.given = False, False, None, None
            self._unpin()
            self._ahead.clear()
        self._feed.restore(text)

    # -- the end

    def close(self) -> None:
        """Gives the rank up for good. Batches given out stay valid. Idempotent."""
        self._feed.close()
        self._unpin()
        self._ahead.clear()
        if self._done is not None:
            done, self._done = self._done, None
            done()

    def _unpin(self) -> None:
        if self._pins is not None:
            import torch

            torch.cuda.synchronize()
            self._pins.close()
            self._pins = None

    @property
    def closed(self) -> bool:
        return self._feed.closed

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        if kind is None or issubclass(kind, GeneratorExit) or (isinstance(value, SystemExit) and not value.code):
            self.close()
            return
        self._feed.drop()  # the rank counts as lost: nobody goes on alone
        self.close()

    def __del__(self) -> None:
        # Nobody can iterate any more. Where an exception ends the program, it holds the shard until that is dropped as lost.
        try:
            self.close()
        except Exception:  # noqa: S110, SIM105  at the end of the interpreter contextlib may be gone, as the rest of the modules
            pass

    def __reduce__(self) -> Any:
        raise Invalid("a shard belongs to the process that opened it, and cannot be sent to another (in a DataLoader: num_workers=0, batches are made in parallel already)")

    def __repr__(self) -> str:
        what = self.name or self._spec or self._feed.path
        return f"<penstock.Shard {what!r}, rank {self.rank}, {'closed' if self.closed else f'epoch {self.epoch}, step {self.step}'}>"
