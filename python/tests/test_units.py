"""Decoders against slow ones, and states against what Go writes."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fake
import penstock
from penstock import _arrow, _batch, _process, _state
from penstock._ahead import Ahead
from penstock._errors import CODES, Corrupt, error


def test_crc32c() -> None:
    assert _state.crc32c(b"123456789") == 0xE3069283
    assert _state.crc32c(b"") == 0


def test_samples() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for _ in range(300):
        n = rng.randrange(40)
        wide = rng.choice((1, 63, 64, 1 << 20, 1 << 62))
        want = [rng.randint(-wide, wide) if wide < 1 << 62 else rng.randint(-(1 << 63), (1 << 63) - 1) for _ in range(n)]
        b, last = fake.uvarint(n + 1), 0
        for v in want:
            d = (v - last + (1 << 63)) % (1 << 64) - (1 << 63)  # as int64 wraps
            b, last = b + fake.varint(d), v
        got = _batch.decode_samples(b, n)
        assert got is not None and got.tolist() == want, f"seed {seed}"
        for bad in (b + b"\0", b[:-1], b + b"\x80"):
            if n:
                with pytest.raises(penstock.Corrupt):
                    _batch.decode_samples(bad, n)
        with pytest.raises(penstock.Corrupt):
            _batch.decode_samples(b, n + 1)
    assert _batch.decode_samples(b"\0", 3) is None
    with pytest.raises(penstock.Corrupt):
        _batch.decode_samples(b"\x02" + b"\xff" * 10 + b"\x01", 1)
    with pytest.raises(penstock.Corrupt):
        _batch.decode_samples(b"\x02" + b"\xff" * 9 + b"\x02", 1)


def test_form() -> None:
    b = fake.form([("a", "int64", (3, 2)), ("µ", "bfloat16", (5,)), ("none", "float32", (0, 4))])
    heads = _batch.decode_form(b, 128)
    assert [(h.name, h.shape, h.offset, h.size) for h in heads] == [("a", (3, 2), 0, 48), ("µ", (5,), 64, 10), ("none", (0, 4), 128, 0)]
    for length in (0, 64, 127, 192):
        with pytest.raises(penstock.Corrupt):
            _batch.decode_form(b, length)
    for cut in range(len(b)):
        with pytest.raises(penstock.Corrupt):
            _batch.decode_form(b[:cut], 128)
    for shape in ((1 << 62, 4), (1 << 40, 2), (1 << 63, 0, 4)):
        with pytest.raises(penstock.Corrupt):
            _batch.decode_form(fake.form([("a", "int8", shape)]), 64)


def test_position() -> None:
    s = _state.position(fake.position(5), fake.STATE)
    assert s["step"] == 5 and s["sources"][0]["pos"] == [[0, 5], [0, 0]] and list(s) == list(fake.STATE)
    for cut in range(len(fake.position(5))):
        with pytest.raises(penstock.Corrupt):
            _state.position(fake.position(5)[:cut], fake.STATE)
    with pytest.raises(penstock.Corrupt):
        _state.position(fake.position(5) + b"\0", fake.STATE)


def test_state_of_go() -> None:
    """A state that Go wrote, with names that its JSON escapes; the sum is Go's."""
    for line in (
        '{"version":1,"order":1,"plan":"p","data":"d","seed":18446744073709551615,"epoch":3,"step":5,"sample":9,"global_batch":4,"weights":[[0,[3,1]],[7,[1,1]]],'
        '"sources":[{"name":"a\\u003cb\\u0026c\\u003e\\u2028","mode":"window","lanes":1,"window":16,"pass":2,"pos":[[1,2]]},'
        '{"name":"ü\\"\\\\\\n\\u0001\\u007f/","mode":"none","lanes":1,"window":1,"pass":0,"pos":[[0,0]]}],"sum":"SUM"}',
    ):
        s = json.loads(line)
        assert _state.text(s) + "" == line[: line.index(',"sum"')].replace("\\u007f", "\x7f") + "}"


def test_errors() -> None:
    for code in CODES:
        e = error(code, "what to do")
        assert e.code == code and isinstance(e, penstock.Error) and str(e) == "what to do"
        again = pickle.loads(pickle.dumps(e))
        assert type(again) is type(e) and again.code == code and str(again) == str(e)
    assert isinstance(error("worker_lost", ""), penstock.WorkerLost)
    assert error("of_tomorrow", "").code == "of_tomorrow"


def test_settings() -> None:
    assert _process.settings({"shards": {"global_batch": 8, "shuffle": {"mode": "none"}}, "run.memory": "1GiB", "a": [1, None], "b": {}}) == [
        "shards.global_batch=8", 'shards.shuffle.mode="none"', 'run.memory="1GiB"', "a=[1, null]", "b={}",
    ]  # fmt: skip
    with pytest.raises(penstock.Invalid, match="no value of a spec"):
        _process.settings({"a": np.zeros(2)})


def test_names() -> None:
    assert not set(penstock.__all__) - set(dir(penstock))
    code = "import sys, penstock; assert 'penstock.train' not in sys.modules and 'torch' not in sys.modules; print(penstock.train.get_context().rank, penstock.get_context().rank)"
    env = {**{k: v for k, v in os.environ.items() if k not in ("RANK", "PENSTOCK_CONTROL")}, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    p = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert p.stdout == "0 0\n", p.stderr
    with pytest.raises(AttributeError):
        penstock.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "offered, size, pace, want",
    [
        (1 << 20, 64 << 10, 0.001, 16),
        (1 << 20, (64 << 10) + 1, 0.001, 15),
        (1 << 20, 100, 0.001, 16),
        (1 << 20, 300 << 10, 0.001, 3),
        (1 << 20, 4 << 20, 0.001, 2),
        (100 << 10, 20 << 10, 0.001, 5),
        (0, 100, 0.001, 2),
        (-5, 100, 0.001, 2),
        (1 << 20, 100, 0.01999, 10),
        (1 << 20, 100, 2.0, 2),
        (1 << 20, 0, 0.001, 2),
    ],
)
def test_ahead(offered: int, size: int, pace: float, want: int) -> None:
    """The table of TestAhead in Go."""
    a = Ahead(None, 1023)
    a.offered = offered
    for i in range(5):
        assert i >= 2 or a.n == 2  # the pace is not known
        a.asked += a.ask()
        a.take(size, 1000 + i * pace)
    assert a.n == want


@pytest.mark.parametrize("n", range(1, 21))
def test_ask(n: int) -> None:
    """Asked for is what is taken next, and n more at most; and never so little that half of n is not there."""
    a, calls = Ahead(n, 1023), 0
    for _ in range(100):
        more = a.ask()
        a.asked += more
        calls += more > 0
        assert (1 if n == 1 else n // 2 + 2) <= a.asked <= n + 1
        a.take(1 << 20, 1000.0)
    assert calls <= 100 // (n // 2 or 1) + 1


def test_numbers_of_the_other_side() -> None:
    """A state whose numbers are none, negative or absurd is damaged; nothing else is raised, and nothing is computed with it."""
    good = {"version": 1, "order": 1, "plan": "", "data": "", "seed": 7, "epoch": 0, "step": 1, "sample": 2, "global_batch": 2, "weights": [], "sources": []}
    assert _state.parse(json.dumps(good))["step"] == 1
    for key in ("epoch", "step", "sample", "global_batch", "length"):
        for v in (-1, 1 << 64, 1.5, True, "1", None, float("inf"), [], {}):
            with pytest.raises(Corrupt):
                _state.parse(json.dumps({**good, key: v}))
    for text in ("[]", "1", "null", '"x"'):
        with pytest.raises(Corrupt):
            _state.parse(text)


def test_offsets_of_the_other_side() -> None:
    """A record whose offsets lead outside of its values is damaged: nothing outside is read."""
    pa = pytest.importorskip("pyarrow")
    for values, kind, last in (
        (["aaaa", "bbbb", "cccc"], pa.string(), 12),
        ([b"aaaa", b"bbbb", b"cccc"], pa.large_binary(), 12),
        ([[1], [2], [3]], pa.list_(pa.int64()), 3),
        ([{"a": "aaaa"}, {"a": "bbbb"}, {"a": "cccc"}], pa.struct([("a", pa.string())]), 12),
        ([["aaaa"], ["bbbb"], ["cccc"]], pa.list_(pa.string(), 1), 12),
    ):
        batch = pa.record_batch([pa.array(values, kind)], names=["s"])
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as w:
            w.write_batch(batch)
        raw = bytearray(out.getvalue().to_pybytes())
        assert _arrow.record(np.frombuffer(bytes(raw), np.uint8), 3).equals(batch)
        width = np.int64 if pa.types.is_large_binary(kind) else np.int32
        good = np.array([0, last // 3, 2 * last // 3, last], width).tobytes()
        at = raw.find(good)
        assert at > 0
        for middle in ((-2_000_000_000, 2_000_000_000), (2_000_000_000, 0), (last + 1, last)):
            raw[at : at + len(good)] = np.array([0, *middle, last], width).tobytes()
            with pytest.raises(Corrupt):
                _arrow.record(np.frombuffer(bytes(raw), np.uint8), 3)
