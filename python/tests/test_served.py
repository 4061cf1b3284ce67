"""The consumer against the real data process: the same bytes, numbers and states as the command line gives."""

from __future__ import annotations

import gc
import json
import linecache
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import digests
import penstock
from conftest import Served
from penstock import _feed, _state
from penstock._shard import Shard

Spec = Callable[[str], Path]
Serve = Callable[..., Served]
Cli = Callable[..., list[str]]

TENSORS = """
version: 1
source: {range: {n: 1000}}
steps:
  - filter: id % 10 != 3
  - with_columns: {x: id * 0.5, y: id % 7, even: id % 2 == 0}
shards:
  ranks: 2
  global_batch: 62
  seed: 7
  tail: pad
  shuffle: {window_rows: 100, lanes: 3}
  columns: {id: int64, x: float32, y: bfloat16, half: {stack: [x, id], dtype: float16}, even: bool}
run: {memory: 64MiB}
"""

RECORDS = TENSORS[: TENSORS.index("  columns:")] + "  with_lineage: true\nrun: {memory: 64MiB}\n"


def table(path: Path, rows: int = 500) -> None:
    """Lists, strings, nulls, structs, fixed lists and a dictionary."""
    rng = random.Random(3)
    text = ["", "a", "Grüße", "naïve \U0001f600", "x" * 300]
    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "name": pa.array([rng.choice([*text, None]) for _ in range(rows)]),
        "tokens": pa.array([[rng.randrange(100) for _ in range(rng.randrange(6))] for _ in range(rows)], pa.list_(pa.field("element", pa.int32(), False))),
        "maybe": pa.array([rng.choice([None, i]) for i in range(rows)], pa.int32()),
        "vector": pa.array([[i, i + 1.5, -i] for i in range(rows)], pa.list_(pa.field("element", pa.float32(), False), 3)),
        "kind": pa.array([rng.choice(text[1:3]) for _ in range(rows)]),
        "day": pa.array([i for i in range(rows)], pa.date32()),
        "flag": pa.array([i % 3 == 0 for i in range(rows)]),
        "nested": pa.array([None if i % 7 == 0 else {"a": i, "b": [str(i)] * (i % 3)} for i in range(rows)]),
    }
    nullable = {"name", "maybe", "nested"}
    schema = pa.schema([pa.field(k, v.type, k in nullable) for k, v in columns.items()])
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=64)


def lines(shard: Shard, steps: int | None = None) -> list[str]:
    """What ``penstock batches --format digest`` prints of a shard's next epoch."""
    out = []
    while steps is None or len(out) < steps:
        item = shard._take()
        if item is None:
            break
        if item.kind == _feed.TENSORS:
            sum_ = digests.tensors(item)
        else:
            sum_ = digests.record(shard._arrow(item))
        out.append(f"{item.step} {shard.rank} {item.real} {sum_}")
        shard._give(item)
    return out


def all_ranks(socket: str, ranks: int, state: Any = None, steps: int | None = None) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines of all ranks by step and rank, and their states."""
    out: list[list[str]] = [[]] * ranks
    states: list[dict[str, Any]] = [{}] * ranks

    def one(rank: int) -> None:
        with penstock.connect(socket, rank) as s:
            if state is not None:
                s.load_state_dict(state)
            out[rank] = lines(s, steps)
            states[rank] = s.state_dict()

    threads = [threading.Thread(target=one, args=(r,)) for r in range(ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [line for step in zip(*out, strict=True) for line in step], states


@pytest.mark.parametrize("text", [TENSORS, RECORDS], ids=["tensors", "records"])
def test_digests_and_states(serve: Serve, spec: Spec, cli: Cli, tmp_path: Path, text: str) -> None:
    """Digests are the command line's; states cross both ways, also to another number of ranks."""
    path = spec(text)
    want = cli("batches", path, "--format", "digest")
    assert len(want) == 2 * 15
    got, states = all_ranks(serve(path, 2).socket, 2)
    assert got == want
    state_file = tmp_path / "state.json"
    for steps in (0, 1, 7, 15):
        cli("batches", path, "--steps", steps, "--state-out", state_file)
        of_go = json.loads(state_file.read_text())
        for ranks in (2, 3):
            rest = cli("batches", path, "--from", state_file, "--epoch", of_go["epoch"], "--ranks", ranks)
            got, states = all_ranks(serve(path, ranks).socket, ranks, of_go)
            assert got == rest
        if 0 < steps < 15:
            _, states = all_ranks(serve(path, 2).socket, 2, steps=steps)
            for s in states:
                assert s == of_go and list(s) == list(of_go)
            # to Go
            state_file.write_text(json.dumps(states[1], indent=2))
            assert cli("batches", path, "--from", state_file) == want[2 * steps :]


def test_python_state_is_go_text(serve: Serve, spec: Spec, cli: Cli, tmp_path: Path) -> None:
    """Byte for byte, with a long seed, a length and weights that change."""
    path = spec("""
version: 1
source:
  mix:
    sources:
      - {name: a, source: {range: {n: 600}}, weight: 3, repeat: true}
      - {name: b.c, source: {range: {n: 400}}, weight: 1}
    schedule: [{at: 200, weights: [1, 1]}]
shards: {ranks: 1, global_batch: 50, seed: 18446744073709551615, steps_per_epoch: 9, shuffle: {window_rows: 50}, columns: {id: int64}}
""")
    state_file = tmp_path / "state.json"
    with penstock.connect(serve(path).socket) as s:
        for steps, b in enumerate(s.iter_batches(), 1):
            if steps in (1, 5):
                cli("batches", path, "--steps", steps, "--state-out", state_file)
                raw = state_file.read_text().strip()
                mine = s.state_dict()
                assert _state.text(mine)[:-1] + f',"sum":"{mine["sum"]}"}}' == raw
            assert b["id"].shape == (50,)
        assert steps == 9


def test_bad_states(serve: Serve, spec: Spec) -> None:
    path = spec(TENSORS)
    with penstock.connect(serve(path, 1).socket) as s:
        good = s.state_dict()
        for bad, error, text in (
            ({**good, "step": 1}, penstock.Corrupt, "sum"),
            ({**good, "version": 2}, penstock.Unsupported, "version 2"),
            ("{", penstock.Corrupt, "damaged"),
            (_state.summed({**good, "plan": "0" * 64}), penstock.Invalid, "another plan"),
            (_state.summed({**good, "seed": 8}), penstock.Invalid, "seed 8"),
            ({k: v for k, v in good.items() if k != "sum"}, penstock.Corrupt, "no sum"),
        ):
            with pytest.raises(error, match=text) as e:
                s.load_state_dict(bad)
            assert str(e.value).startswith("data process: ")
        with pytest.raises(TypeError, match=r"load_state_dict\(NoneType\): give what state_dict\(\) returned"):
            s.load_state_dict(None)  # type: ignore[arg-type]
        s.load_state_dict(good)
        assert next(s.iter_batches()).step == 0


def test_numbers_masks_lineage(serve: Serve, spec: Spec, cli: Cli) -> None:
    path = spec(TENSORS.replace("  tail: pad", "  tail: pad\n  with_lineage: true"))
    rows = [json.loads(x) for x in cli("batches", path, "--format", "lineage", "--ranks", 1)]
    with penstock.connect(serve(path, 1).socket) as s:
        with pytest.raises(TypeError, match="not known"):
            len(s)
        at = 0
        for b in s.iter_batches():
            assert b.samples is not None and b.lineage is not None and s.last is not None
            assert b["mask"].tolist() == b.mask.tolist() and b.mask.sum() == b.real and s.last.step == b.step
            for i in range(b.real):
                want, l = rows[at], b.lineage[i]
                assert (want["step"], want["n"], want["source"], want["file"], want["row_group"], want["row"]) == (
                    b.step, b.samples[i], l.place.source, l.place.file, l.place.row_group, l.place.row,
                )  # fmt: skip
                assert l.n == b.samples[i] and l.epoch == 0 and l.parts is None
                at += 1
            assert not b["id"][b.real :].any()
        assert at == len(rows) == 900 and (s.epoch, s.step) == (1, 0)


def test_records(serve: Serve, spec: Spec, cli: Cli, tmp_path: Path) -> None:
    """Strings, lists, nulls and the like: as Arrow, and as numpy; the views are the ring's."""
    table(tmp_path / "t.parquet")
    path = spec(f"version: 1\nsource: {{parquet: {{paths: ['{tmp_path}/t.parquet'], dictionary: [kind]}}}}\nshards: {{global_batch: 64, tail: pad, shuffle: {{window_rows: 64}}}}\n")
    want = cli("batches", path)
    srv = serve(path)
    with penstock.connect(srv.socket) as s:
        assert len(s) == 8
        assert lines(s) == want
        held = []
        for batch in s.to_arrow():
            assert isinstance(batch, pa.RecordBatch) and s.last is not None
            real = s.last.real
            ids = batch.column("id").to_pylist()[:real]
            assert batch.column("vector").to_pylist()[:real] == [[i, i + 1.5, -i] for i in ids]
            held.append((batch.column("name"), batch.column("name").to_pylist()))
            del batch
        assert len(s._feed.held) == 8  # a column holds its batch
        assert all(a.to_pylist() == v for a, v in held)
        del held
        gc.collect()
        assert not s._feed.held
        for b in s.iter_batches():
            assert b["id"].dtype == np.int64 and b["id"].flags.writeable and b["vector"].shape == (64, 3) and b["vector"].dtype == np.float32
            assert b["day"].dtype == np.dtype("M8[D]") and b["flag"].dtype == np.bool_ and b["name"].dtype == object
            assert (b["vector"][:, 0] == b["id"]).all() and (b["flag"][: b.real] == (b["id"] % 3 == 0)[: b.real]).all()
            assert all(isinstance(x, str) or x is None for x in b["name"]) and b["kind"][0] in ("a", "Grüße")
            assert b["maybe"].dtype == np.float64
            b["id"][:] = -1
        del b
        for _ in range(2):
            with pytest.raises(penstock.Unsupported, match="'name'"):
                next(s.iter_torch_batches())
        assert s.step == 0 and next(s.to_arrow()).num_rows == 64 and s.step == 1  # the batch is still to be had


def test_ragged_and_padded(serve: Serve, spec: Spec, cli: Cli, tmp_path: Path) -> None:
    table(tmp_path / "t.parquet")
    path = spec(f"""
version: 1
source: {{parquet: {{paths: ['{tmp_path}/t.parquet']}}}}
shards:
  global_batch: 40
  shuffle: {{window_rows: 64}}
  columns: {{id: int64, tokens: {{lists: ragged}}, vector: {{lists: ragged}}}}
""".replace(", vector: {lists: ragged}", ""))
    want = cli("batches", path)
    with penstock.connect(serve(path).socket) as s:
        assert lines(s) == want
        tokens = pq.read_table(tmp_path / "t.parquet").column("tokens").to_pylist()
        for b in s.iter_torch_batches():
            offsets = b["tokens.offsets"]
            assert offsets.shape == (41,)
            for i, id_ in enumerate(b["id"].tolist()):
                assert b["tokens"][offsets[i] : offsets[i + 1]].tolist() == tokens[id_]
        assert s.epoch == 2


def test_len_restored(serve: Serve, spec: Spec) -> None:
    """After a state of another batch size len() is the steps given and those to come, and that of a whole epoch from the next on."""
    text = "version: 1\nsource: {range: {n: 100}}\nshards: {global_batch: %d, columns: {id: int64}, shuffle: none, tail: %s}\n"
    with penstock.connect(serve(spec(text % (10, "drop"))).socket) as s:
        batches = s.iter_batches()
        for _ in range(5):
            next(batches)
        state = s.state_dict()
        assert len(s) == 10
    for tail, first, later in (("drop", 5 + 1, 3), ("pad", 5 + 2, 4)):
        with penstock.connect(serve(spec(text % (30, tail))).socket) as s:
            assert len(s) == later
            s.load_state_dict(state)
            for want in (first, later):
                assert len(s) == want
                for _ in s.iter_batches():
                    assert len(s) == want or s.step == 0
                    last = s.last
                assert last is not None and last.step + 1 == want


def test_epochs(serve: Serve, spec: Spec) -> None:
    """A loop that is left early goes on; epochs that are none end; there are as many as the spec says."""
    path = spec("version: 1\nsource: {range: {n: 10}}\nshards: {global_batch: 4, columns: {id: int64}, shuffle: none}\n")
    with penstock.connect(serve(path).socket) as s:
        assert len(s) == 2
        for b in s.iter_batches():
            assert b["id"].tolist() == [0, 1, 2, 3]
            break
        assert [b["id"].tolist() for b in s.iter_batches()] == [[4, 5, 6, 7]]
        assert [b.step for b in s.iter_batches()] == [0, 1] and (s.epoch, s.step) == (2, 0)
        s.eval = True
        next(s.iter_batches())
        assert [b.step for b in s.iter_batches()] == [0, 1]  # from the first row
        assert s.epoch == 4
    path = spec("version: 1\nsource: {range: {n: 3}}\nshards: {global_batch: 4, columns: {id: int64}}\n")
    with penstock.connect(serve(path).socket) as s:
        assert len(s) == 0 and list(s.iter_batches()) == [] and s.epoch == 1 and list(s.iter_torch_batches()) == []


def test_kept_batches(serve: Serve, spec: Spec) -> None:
    """Who keeps everything is told; what is kept stays as it is, and what is dropped is used again."""
    path = spec("version: 1\nsource: {range: {n: 4000000}}\nshards: {global_batch: 65536, columns: {id: int64}, shuffle: none}\nrun: {memory: 16MiB}\n")
    with penstock.connect(serve(path).socket) as s:
        assert s._feed.much >= 16 << 20
        s._feed.much = 8 << 20
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept = list(s.iter_batches())
        assert len(kept) == len(s) == 61 and s._feed.held_bytes == 61 << 19
        assert len(caught) == 1 and "17 batches are still in use (8.5 MiB)" in str(caught[0].message)
        for i, b in enumerate(kept):
            assert b["id"][0] == 65536 * i and b["id"][-1] == 65536 * (i + 1) - 1
        offsets = set(s._feed.held)
        kept.clear()
        del b
        gc.collect()
        assert s._feed.held_bytes == 0 and not s._feed.held
        more = {at for b in s.iter_batches() for at in s._feed.held} - offsets
        assert len(more) <= 8  # it is the same memory, but for what was ahead


@pytest.mark.parametrize("torch", [False, True])
def test_kept_batches_are_told_of_early(serve: Serve, spec: Spec, torch: bool) -> None:
    """Of more than 16 batches and 64 MiB, with the line of the loop that keeps them, and what to do instead."""
    # 4 MiB a batch, 100 MiB in all.
    path = spec("version: 1\nsource: {range: {n: 13107200}}\nshards: {global_batch: 524288, columns: {id: int64}, shuffle: none}\nrun: {memory: 16MiB}\n")
    with penstock.connect(serve(path).socket) as s:
        assert s._feed.much > 200 << 20
        if torch:
            loops = pytest.importorskip("torch.utils.data")
            it = iter(loops.DataLoader(pytest.importorskip("penstock.torch").ShardDataset(s), batch_size=None))
        else:
            it = s.iter_batches()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept = [next(it) for _ in range(16)]
            assert not caught
            for b in it:
                kept.append(b)
        (w,) = caught
        assert w.filename == __file__ and linecache.getline(__file__, w.lineno).strip() == "for b in it:"
        text = str(w.message)
        assert "17 batches are still in use (68.0 MiB)" in text and "{k: v.clone() for k, v in batch.items()}" in text
        del kept, b


def test_a_plain_loop_is_not_warned(serve: Serve, spec: Spec) -> None:
    """With many batches ahead, as large as they are."""
    path = spec("version: 1\nsource: {range: {n: 13107200}}\nshards: {global_batch: 524288, columns: {id: int64}, shuffle: none}\nrun: {memory: 256MiB}\n")
    with penstock.connect(serve(path).socket, prefetch=20) as s, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(1 for _ in s.iter_batches()) == 25
        assert sum(1 for _ in s.iter_torch_batches()) == 25


def test_killed_server(serve: Serve, spec: Spec) -> None:
    path = spec(TENSORS)
    srv = serve(path, 1)
    with penstock.connect(srv.socket) as s:
        it = s.iter_torch_batches()
        kept = [next(it), next(it)]
        before = [{k: v.clone() for k, v in b.items()} for b in kept]
        srv.kill()
        srv.process.wait()
        with pytest.raises(penstock.Unavailable, match=r"rank 0: the data process is gone.*epoch 0, step \d"):
            for b in it:
                kept.append(b)
        with pytest.raises(penstock.Unavailable):
            next(s.iter_batches())
        for b, was in zip(kept, before):  # no SIGBUS: the memory stays
            for k, v in b.items():
                assert v.equal(was[k])
                v.zero_()
        state = s.state_dict()
        assert state["step"] == len(kept)
    with penstock.connect(serve(path, 1).socket) as s:
        with pytest.raises(penstock.Unsupported, match="leave shards.columns out"):
            next(s.to_arrow())
        assert next(s.iter_batches()).step == 0
    with penstock.connect(serve(path, 1).socket) as s:
        s.load_state_dict(state)
        assert next(s.iter_batches()).step == len(kept)


def test_killed_consumer(serve: Serve, spec: Spec) -> None:
    """The others are told which rank was lost."""
    srv = serve(spec(TENSORS), 2)
    pid = os.fork()
    if pid == 0:
        try:
            s = penstock.connect(srv.socket, 1)
            next(s.iter_batches())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    with penstock.connect(srv.socket, 0) as s:
        with pytest.raises(penstock.WorkerLost, match="rank 1: its consumer, process .* is lost") as e:
            list(s.iter_batches())
        assert e.value.code == "worker_lost"
    os.waitpid(pid, 0)


def test_ranks(serve: Serve, spec: Spec) -> None:
    srv = serve(spec(TENSORS), 2)
    with pytest.raises(penstock.NotFound, match="rank 2 is not served"):
        penstock.connect(srv.socket, 2)
    with penstock.connect(srv.socket, 1):
        with pytest.raises(penstock.Error, match="taken by process") as e:
            penstock.connect(srv.socket, 1, wait=0)
        assert e.value.code == "exists"


def test_failure_of_the_job(serve: Serve, spec: Spec) -> None:
    """An error of the data plane arrives with its code and its cause."""
    path = spec("""
version: 1
source: {range: {n: 100}}
steps: [{with_columns: {x: 'cast(id * 3, "int8")'}}]
shards: {global_batch: 10, shuffle: none, columns: {x: int8}}
""")
    with penstock.connect(serve(path).socket) as s, pytest.raises(penstock.Error, match="does not fit int8") as e:
        list(s.iter_batches())
    assert e.value.code == "row_error"


def test_notice(serve: Serve, spec: Spec) -> None:
    """The preemption notice is at the same step on every rank."""
    srv = serve(spec(TENSORS), 2)
    shards = [penstock.connect(srv.socket, r) for r in range(2)]
    marked: list[int] = [-1, -1]

    def one(rank: int) -> None:
        s = shards[rank]
        while marked[rank] < 0:
            for b in s.iter_batches():
                if b.step == 3 and s.epoch == 0 and rank == 0:
                    srv.kill(signal.SIGUSR2)
                if s.noticed:
                    assert b.noticed
                    marked[rank] = b.epoch * 1000 + b.step
                    break

    threads = [threading.Thread(target=one, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert marked[0] == marked[1] >= 3
    for s in shards:
        s.close()


def test_soak_of_views(serve: Serve, spec: Spec) -> None:
    """Batches dropped in any order, in several threads, keep their values until then."""
    seed = random.randrange(1 << 32)
    path = spec("version: 1\nsource: {range: {n: 600000}}\nshards: {global_batch: 3000, columns: {id: int64, x: {dtype: float32}}, shuffle: none}\nrun: {memory: 64MiB}\n".replace(", x: {dtype: float32}", ""))
    rng = random.Random(seed)
    with penstock.connect(serve(path).socket) as s:
        kept: dict[int, Any] = {}
        drop: list[Any] = []

        def dropper() -> None:
            while True:
                if drop:
                    if drop.pop() is None:
                        return

        t = threading.Thread(target=dropper)
        t.start()
        for n, b in enumerate(s.iter_batches()):
            kept[n] = b["id"][rng.randrange(10) :: 7]
            del b
            if len(kept) > 20:
                i = rng.choice(list(kept))
                a = kept.pop(i)
                assert ((a >= 3000 * i) & (a < 3000 * (i + 1))).all() and (np.diff(a) == 7).all(), f"seed {seed}"
                drop.append(a)
                del a
        drop.insert(0, None)
        t.join()
        assert n == 199
        for i, a in kept.items():
            assert ((a >= 3000 * i) & (a < 3000 * (i + 1))).all(), f"seed {seed}"
        del a
        kept.clear()
        gc.collect()
        assert not s._feed.held
