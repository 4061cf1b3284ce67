"""How far a consumer reads ahead: ``shard/feed/ahead.go`` in Python, number for number."""

from __future__ import annotations

LEAST, MOST = 2, 16  # batches
TIME = 0.2  # seconds


class Ahead:
    """How many frames to ask for.

    Without ``prefetch``, a number of batches, it is so many that they take the ``offered`` bytes of the data process, at least LEAST and at most MOST; and no more than the
    consumer uses in TIME, so that a notice, which counts after all that was sent, is not late for consumers with small batches and long steps. When half of them
    have been used, as many are asked for at once: where they are small, a request takes longer than a batch.
    """

    __slots__ = ("_fixed", "_last", "_pace", "asked", "n", "offered")

    def __init__(self, prefetch: int | None, most: int) -> None:
        self._fixed = prefetch is not None
        self.n = LEAST if prefetch is None else min(max(prefetch, 1), most)  # batches beside the one in use
        self.asked = 0  # frames that were asked for and not taken
        self.offered = 0
        self._last = 0.0
        self._pace = 0.0  # seconds from batch to batch, of late; 0: not known

    def ask(self) -> int:
        """How many more frames to ask for before one is taken: who asks for them counts them as ``asked``."""
        missing = self.n + 1 - self.asked  # one is for the taker
        return 0 if missing < (self.n // 2 or 1) else missing

    def take(self, size: int, now: float) -> None:
        """A frame was taken at ``now``, with a batch of ``size`` bytes, or the end of an epoch (0)."""
        self.asked -= 1
        if self._fixed:
            return
        if self._last:
            d = max(now - self._last, 1e-9)
            pace = self._pace or d
            self._pace = pace = pace + (d - pace) / 8
            if size:
                self.n = int(min(max(min(self.offered // size, TIME / pace), LEAST), MOST))
        self._last = now
