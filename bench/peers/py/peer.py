"""What all drivers share. A driver is one case in one process, under the supervisor of `peers`:

    @start        imports are done; the supervisor notes time and CPU of the process tree and answers
    @end {...}    the work is done; it notes them again and answers; then the process ends

A missing package ends the process with code 3: the case is "not installed".
"""
import json
import os
import sys
import time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

WIDTH = 42   # columns of a batch of the table
ROWS = 1024  # rows of a batch

_t0 = 0.0
_first = None
last = []    # is called at the end, after the clock has stopped: what would outlive the process


def _missing(kind, value, trace):
    if issubclass(kind, ImportError):
        print(f"{value}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(3)
    sys.__excepthook__(kind, value, trace)


sys.excepthook = _missing


def start():
    global _t0
    try:
        import pyarrow.dataset  # noqa: F401  engines that give Arrow import it late: no work of theirs
    except ImportError:
        pass
    print("@start", flush=True)
    sys.stdin.readline()
    _t0 = time.perf_counter()


def first():
    """The first batch is there."""
    global _first
    if _first is None:
        _first = time.perf_counter() - _t0


def elapsed():
    return time.perf_counter() - _t0


def end(**figures):
    figures = {k: float(v) for k, v in figures.items() if v is not None}
    figures.setdefault("wall", elapsed())
    if _first is not None:
        figures.setdefault("first", _first)
    for f in last:
        f()
    print("\n@end " + json.dumps(figures), flush=True)
    sys.stdin.readline()
    sys.stdout.flush()
    os._exit(0)  # what engines do at their exit is not measured


class Batches:
    """Cuts blocks of 42 columns into contiguous batches of 42 x 1024 float32, and looks at each:
    rows are counted, and the two computed columns summed. One array is reused, as a trainer would."""

    def __init__(self):
        import numpy
        self.np = numpy
        self.out = numpy.empty((WIDTH, ROWS), numpy.float32)
        self.have = self.rows = self.batches = 0
        self.sum = 0.0

    def add(self, columns):
        """columns: 42 one-dimensional arrays of equal length, the computed ones last."""
        at, size = 0, len(columns[0])
        while at < size:
            m = min(ROWS - self.have, size - at)
            for j in range(WIDTH):
                self.out[j, self.have:self.have + m] = columns[j][at:at + m]
            at += m
            self.have += m
            if self.have == ROWS:
                self.give(self.out)

    def give(self, matrix, rows_first=False):
        """A whole batch, 42 x n (or n x 42)."""
        first()
        n = self.have or matrix.shape[0 if rows_first else 1]
        two = matrix[:n, WIDTH - 2:] if rows_first else matrix[WIDTH - 2:, :n]
        self.sum += float(two.sum(dtype=self.np.float64))
        self.rows += n
        self.batches += 1
        self.have = 0

    def end(self, **more):
        if self.have:
            self.give(self.out)
        end(rows=self.rows, sum=self.sum, batches=self.batches, **more)


class Limit:
    """Says when a case that is too slow has run long enough: its rates are valid, its totals are not."""

    def __init__(self):
        self.at = float(os.environ.get("PEERS_LIMIT", "inf"))
        self.cut = False

    def over(self):
        self.cut = self.cut or elapsed() > self.at
        return self.cut
