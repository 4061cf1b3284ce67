"""Prints the ledger of a run, and compares it with that of another: ledger.py RUN OTHER, folders that train.py has written to.

It ends with 1 where a sample is missing or comes twice in RUN, or comes in another step than in OTHER.
"""

import sys
from collections import Counter
from pathlib import Path


def read(folder: str) -> list[tuple[int, int, int, int, int, int, str]]:
    """Attempt, workers, epoch, number in the epoch's order, step, rank and row of each sample, in that order."""
    out = []
    for file in Path(folder).glob("*.txt"):
        attempt, workers, rank = map(int, file.stem.split("-"))
        for line in file.read_text().splitlines():
            epoch, n, step, row = line.split(" ", 3)
            out.append((attempt, workers, int(epoch), int(n), int(step), rank, row))
    return sorted(out)


def ranges(numbers: list[int]) -> str:
    """Sorted numbers as 0-4031, 4040; one that comes twice begins another range."""
    out: list[list[int]] = []
    for n in numbers:
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in out)


def main(run: str, other: str) -> int:
    ledger, without = read(run), read(other)
    print("attempt  workers  epoch  steps    samples      of each step, by rank")
    for attempt, workers, epoch in sorted({x[:3] for x in ledger}):
        part = [x for x in ledger if x[:3] == (attempt, workers, epoch)]
        steps = ranges(sorted({x[4] for x in part}))
        dealt = Counter((x[4], x[5]) for x in part)
        shares = {" + ".join(str(dealt[step, rank]) for rank in range(workers)) for step, _ in dealt}
        print(f"{attempt:7}  {workers:7}  {epoch:5}  {steps:7}  {ranges([x[3] for x in part]):11}  {', '.join(sorted(shares))}")

    wrong = []
    for epoch in sorted({x[2] for x in ledger + without}):
        of = sorted(x[3] for x in ledger if x[2] == epoch)
        rows = Counter(x[6] for x in ledger if x[2] == epoch)
        if of != list(range(len(of))):
            wrong.append(f"epoch {epoch} has the samples {ranges(of)}")
        if again := [row for row, times in rows.items() if times > 1]:
            wrong.append(f"epoch {epoch} has rows more than once: {', '.join(again[:5])}")
        print(f"epoch {epoch}: {len(of)} samples, {len(rows)} different rows")
    place = [{(x[2], x[3]): (x[4], x[6]) for x in one} for one in (ledger, without)]
    if differ := sorted(k for k in place[0].keys() | place[1].keys() if place[0].get(k) != place[1].get(k)):
        wrong.append(f"{len(differ)} samples are not those of the other run, or not in the same step: first sample {differ[0][1]} of epoch {differ[0][0]}")
    print("\n".join(wrong) or "complete, without repeats, and each sample in the same step as in a run without a stop")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
