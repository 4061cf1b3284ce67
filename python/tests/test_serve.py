"""Functions in Python as steps: what they get and return, what they keep, and what becomes of their errors."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import _serve
from penstock._errors import Invalid, Unsupported

pa = pytest.importorskip("pyarrow")

PYTHON = Path(_serve.__file__).resolve().parents[1]


def child(module: str, folder: Path, answer: Any, batches: list[Any], *more: str) -> tuple[list[Any], str, int]:
    """Runs ``python -m penstock.serve``: its answers (batches, or errors as text), its stderr and exit code."""
    (folder / "mine.py").write_text(textwrap.dedent(module))
    sink = io.BytesIO()
    packed = io.BytesIO()
    pa.ipc.new_stream(packed, answer).close()
    schema = batches[0].schema.with_metadata({_serve.ANSWER: base64.b64encode(packed.getvalue())})
    with pa.ipc.new_stream(sink, schema) as w:
        for b in batches:
            w.write_batch(b)
    p = subprocess.run([sys.executable, "-m", "penstock.serve", *(more or ("mine:f",))], input=sink.getvalue(), capture_output=True, timeout=60,
                       env={"PYTHONPATH": f"{folder}:{PYTHON}", "PATH": os.environ["PATH"]})  # fmt: skip
    out: list[Any] = []
    if p.stdout:
        with pa.ipc.open_stream(p.stdout) as r:
            while True:
                try:
                    b, md = r.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                out.append(f"{md[_serve.CODE].decode()}: {md[_serve.ERROR].decode()}" if md is not None else b)
    return out, p.stderr.decode(), p.returncode


def ids(*values: int | None) -> Any:
    return pa.record_batch({"id": pa.array(values, pa.int64())})


ID = pa.schema({"id": pa.int64()})


def test_prints_harm_nothing(tmp_path: Path) -> None:
    """Also those of subprocesses and of C; and stdin is not the function's."""
    out, err, code = child("""
        import os, subprocess, sys
        print("at import")
        def f(b):
            print("print", len(b["id"])); os.write(1, b"write\\n"); subprocess.run(["echo", "echo"]); sys.stdout.write("no end of line")
            assert sys.stdin.read() == ""
            return b
    """, tmp_path, ID, [ids(1, 2), ids(3)])  # fmt: skip
    assert [b.to_pydict() for b in out] == [{"id": [1, 2]}, {"id": [3]}] and code == 0
    for text in ("at import", "print 2", "write\n", "echo\n", "no end of line"):
        assert text in err


def test_state_is_kept(tmp_path: Path) -> None:
    out, _, code = child("""
        import numpy as np
        class f:
            def __init__(self): self.n = 0
            def __call__(self, b):
                self.n += 1
                return {"id": np.full(len(b["id"]), self.n)}
    """, tmp_path, ID, [ids(0, 0), ids(0), ids(0)])  # fmt: skip
    assert [b.column(0).to_pylist() for b in out] == [[1, 1], [2], [3]] and code == 0


def test_errors_of_batches(tmp_path: Path) -> None:
    """The text and the stack of the user's code; then the next batch."""
    out, err, code = child("""
        def deep(v):
            raise KeyError("no such word")
        def f(b):
            if b["id"][0] == 2:
                deep(b)
            return b
    """, tmp_path, ID, [ids(1), ids(2), ids(3)])  # fmt: skip
    assert out[0].to_pydict() == {"id": [1]} and out[2].to_pydict() == {"id": [3]} and code == 0
    assert out[1].startswith("user_code: KeyError: 'no such word'\nTraceback (most recent call last):") and "in deep" in out[1]
    assert "_serve.py" not in out[1] and err == ""


def test_functions_that_are_none(tmp_path: Path) -> None:
    """No row will do better: the process answers once, and ends."""
    for k, (module, function, want) in enumerate([
        ("", "g", "module MINE has no 'g'"), ("f = 5", "f", "MINE:f is a int: a function or a class is needed"), ("f(", "f", "never closed"),
        ("import his", "f", "No module named 'his'"), ("class f: pass", "f", "class f has no method __call__"), ("class f:\n  class g:\n    def __call__(self): pass", "f.h", "has no 'f.h'"),
        ("class f:\n  def __init__(self): raise OSError('no tokenizer.json')\n  def __call__(self, b): pass", "f", "no tokenizer.json"),
    ]):  # fmt: skip
        name = f"mine_{k}"
        (tmp_path / f"{name}.py").write_text(module)
        sys.path.insert(0, str(tmp_path))
        try:
            with pytest.raises(Exception) as e:
                _serve._Function(_serve.load(f"{name}:{function}"), None, ID)
        finally:
            sys.path.remove(str(tmp_path))
        assert want.replace("MINE", name) in str(e.value)
    for text in ("mine", ":f", "mine:", ""):
        with pytest.raises(Invalid, match="names no function: write module:function"):
            _serve.load(text)
    out, _, code = child("", tmp_path, ID, [ids(1), ids(2)], "his:f")
    assert len(out) == 1 and out[0].startswith("invalid: no module 'his': it is looked for in") and code == 1
    out, _, code = child("import his", tmp_path, ID, [ids(1), ids(2)])
    assert len(out) == 1 and out[0].startswith("invalid: ModuleNotFoundError: No module named 'his'\nTraceback") and code == 1


@pytest.mark.parametrize("f, kind, want", [
    (lambda b: None, Invalid, "returned nothing: a dict of arrays or a pyarrow.RecordBatch is needed"),
    (lambda b: {}, Invalid, "returned no column id, but none at all"),
    (lambda b: {"ids": b["id"], "x": b["id"]}, Invalid, "returned no column id, but ids, x"),
    (lambda b: {**b, "x": b["id"]}, Invalid, "returned column x, which the step does not have"),
    (lambda b: {"id": b["id"][:1]}, Invalid, "returned 1 rows for 2"),
    (lambda b: {"id": ["a", "b"]}, ValueError, "column 'id': values of type string"),
    (lambda b: {"id": ["1", "2"]}, ValueError, "column 'id': values of type string"),
    (lambda b: {"id": [1.5, 2.5]}, ValueError, "column 'id': "),
    (lambda b: {"id": np.array([1.5, 2.5])}, ValueError, "column 'id': "),
    (lambda b: {"id": 5}, Invalid, "column 'id' is an int: an array with a value for each row is needed"),
    (lambda b: {"id": np.array(5)}, Invalid, "column 'id' is one value"),
    (lambda b: {"id": np.zeros((2, 2))}, ValueError, r"column 'id': an array of shape \(2, 2\) for one value a row"),
    (lambda b: np.add(b["id"], 1, out=b["id"]), ValueError, "read-only"),
])  # fmt: skip
def test_what_functions_must_return(f: Callable[[Any], Any], kind: type[Exception], want: str) -> None:
    with pytest.raises(kind, match=want):
        _serve._Function(f, None, ID)(ids(1, 2))


def test_flat(tmp_path: Path) -> None:
    answer = ID.append(pa.field("__parent", pa.int64()))
    out, _, code = child("""
        import numpy as np
        def f(b):
            p = np.repeat(np.arange(len(b["id"])), b["id"])
            return {"id": b["id"][p], "__parent": p}
        def g(b):
            return b
    """, tmp_path, answer, [ids(2, 0, 1), ids(0)])  # fmt: skip
    assert [b.to_pydict() for b in out] == [{"id": [2, 2, 1], "__parent": [0, 0, 2]}, {"id": [], "__parent": []}] and code == 0
    with pytest.raises(Invalid, match="returned no column __parent"):
        _serve._Function(lambda b: b, None, answer)(ids(1))


def annotated(b: pa.RecordBatch) -> pa.RecordBatch:
    return b


def in_text(b: "pa.RecordBatch") -> Any:
    return pa.table({"id": b.column("id")})


class Method:
    def __call__(self, b: pa.RecordBatch) -> Any:
        return b


@pytest.mark.parametrize("f, format", [(annotated, None), (in_text, None), (Method, None), (Method(), None), (lambda b: b, "arrow")])
def test_arrow(f: Any, format: str | None) -> None:
    """As it came, and as a table; nulls and all."""
    got = _serve._Function(f, format, ID)(ids(1, None))
    assert type(got) is pa.RecordBatch and got.to_pydict() == {"id": [1, None]}


def test_formats() -> None:
    assert _serve._Function(annotated, "numpy", ID)(ids(1)).to_pydict() == {"id": [1]}
    with pytest.raises(Invalid, match="format 'pandas': numpy or arrow"):
        _serve._Function(annotated, "pandas", ID)


def test_columns_there_and_back() -> None:
    """Every type as numpy, and back: also of slices, with and without nulls."""
    import datetime
    from decimal import Decimal

    t = datetime.datetime(2024, 5, 6, 7, 8, 9)
    f = np.float32(0.1).item()
    for kind, values, nulls in [
        *((k, [1, 2, 100, 3, 5], False) for k in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        (pa.float32(), [f, float("inf"), -0.0, 2.5, 1], False), (pa.float64(), [0.1, 1e300, -0.0, 2, 3], False), (pa.bool_(), [True, False, True, True, False], False),
        (pa.string(), ["a", None, "", "ö", "b"], True), (pa.large_string(), ["a", None, "", "ö", "b"], True), (pa.binary(), [b"a", None, b"", b"\xff", b"b"], True),
        (pa.date32(), [t.date(), None, t.date(), t.date(), None], True), (pa.timestamp("us"), [t, None, t, t, None], True),
        (pa.timestamp("us", "UTC"), [t.replace(tzinfo=datetime.timezone.utc)] * 5, False), (pa.duration("s"), [datetime.timedelta(seconds=5), None] * 2 + [None], True),
        (pa.time64("us"), [t.time(), None, t.time(), t.time(), None], True), (pa.decimal128(5, 2), [Decimal("1.25"), None, Decimal("-3.50"), None, Decimal("0.01")], True),
        (pa.list_(pa.int32()), [[1], None, [], [1, 2], [3]], True), (pa.large_list(pa.float32()), [[1], [2], [], [1, 2], [3]], False), (pa.list_(pa.string()), [["a"], None, [], ["b", None], []], True),
        (pa.list_(pa.int32(), 2), [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], False), (pa.list_(pa.list_(pa.float32(), 1), 2), [[[1], [2]]] * 5, False),
        (pa.struct({"a": pa.int64()}), [{"a": 1}, None, {"a": None}, {"a": 2}, None], True), (pa.null(), [None] * 5, True),
    ]:  # fmt: skip
        a = pa.array(values, kind)
        for part, want in ((a, values), (a.slice(1, 3), values[1:4]), (a.slice(2, 0), [])):
            v = _serve.to_numpy("x", part)
            assert len(v) == len(want) and not v.flags.writeable, kind
            back = _serve.from_numpy("x", v, kind)
            assert back.type == kind and back.to_pylist() == want, (kind, v)
            back.validate(full=True)
    d = pa.array(["a", "b", "a"]).dictionary_encode()
    assert _serve.to_numpy("x", d).tolist() == ["a", "b", "a"]
    assert np.isnan(_serve.to_numpy("x", pa.array([1.5, None]))[1])
    for bad in (pa.array([1, None]), pa.array([True, None])):
        with pytest.raises(Unsupported, match="column 'x' has 1 nulls among"):
            _serve.to_numpy("x", bad)


def test_what_is_taken_for_a_column() -> None:
    torch = pytest.importorskip("torch")
    f32, i32 = pa.float32(), pa.int32()
    for v, kind, want in [
        (np.arange(3), i32, [0, 1, 2]), (np.arange(3), f32, [0, 1, 2]), (torch.arange(3), i32, [0, 1, 2]), (torch.ones(2, requires_grad=True), f32, [1, 1]),
        (np.array(["a", "bc"]), pa.string(), ["a", "bc"]), ([1, None], i32, [1, None]), ((1.5,), f32, [1.5]), (pa.array([1, 2]), i32, [1, 2]),
        (pa.chunked_array([[1], [2]]), i32, [1, 2]), (pa.chunked_array([], pa.int64()), i32, []), (np.ma.masked_array([1, 2], [False, True]), i32, [1, None]),
        (np.arange(6).reshape(3, 2), pa.list_(i32), [[0, 1], [2, 3], [4, 5]]), (torch.arange(6).reshape(3, 2), pa.list_(i32, 2), [[0, 1], [2, 3], [4, 5]]),
        (np.zeros((2, 0)), pa.list_(f32), [[], []]), (np.zeros((0, 2)), pa.large_list(f32), []), (np.arange(8).reshape(2, 2, 2), pa.list_(pa.list_(i32)), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        ([np.arange(2), np.arange(0)], pa.list_(pa.int64()), [[0, 1], []]), (np.array([np.arange(2), None], dtype=object), pa.list_(pa.int64()), [[0, 1], None]),
        (np.array([True, False]), pa.bool_(), [True, False]), ([], pa.string(), []), ([None], pa.list_(i32), [None]), ([[("a", 1)]], pa.map_(pa.string(), i32), [[("a", 1)]]), (np.float32([1.5, np.nan])[:1], f32, [1.5]),
    ]:  # fmt: skip
        got = _serve.from_numpy("x", v, kind)
        assert got.type == kind and got.to_pylist() == want, v
    assert _serve.from_numpy("x", np.array([np.nan]), pa.float64()).null_count == 0  # NaN is a value
    for v, kind in [(np.array([2**40]), i32), (np.array([-1]), pa.uint8()), ([2**70], pa.int64()), (np.arange(6).reshape(2, 3), pa.list_(i32, 2)), (np.array(["x"]), i32), ([object()], i32), (np.arange(2), pa.string()), (["1"], i32), ([1.5], i32), ([[1.5]], pa.list_(i32))]:
        with pytest.raises((ValueError, TypeError), match="column 'x': "):
            _serve.from_numpy("x", v, kind)
    for v in (None, 5, "text", {"a": 1}, np.array(1)):
        with pytest.raises(Invalid, match="column 'x' is "):
            _serve.from_numpy("x", v, i32)


def test_columns_returned_as_they_came_keep_nulls(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.float64(), "y": pa.float64()})
    out, _, _ = child("def f(b):\n    return {'x': b['x'], 'y': b['y'] + 1}", tmp_path, schema, [pa.record_batch({"x": [1.0, None], "y": [1.0, None]})])
    d = out[0].to_pydict()
    assert d["x"] == [1.0, None] and d["y"][0] == 2 and np.isnan(d["y"][1])


def test_a_function_that_ends_the_process(tmp_path: Path) -> None:
    out, _, code = child("import sys\ndef f(b):\n    if b['id'][0] == 2: sys.exit(7)\n    return b", tmp_path, ID, [ids(1), ids(2)])
    assert code == 7
    out, err, code = child("def f(b):\n    raise MemoryError('model')", tmp_path, ID, [ids(1)])
    assert code == 1 and out == [] and "MemoryError: model" in err


def test_scripts(tmp_path: Path) -> None:
    """penstock.serve is a function, whatever was imported."""
    p = subprocess.run([sys.executable, "-c", "import penstock.serve, penstock\nprint(callable(penstock.serve))\nfrom penstock import serve\npenstock.serve(lambda b: b)"],
                       env={"PYTHONPATH": str(PYTHON)}, input=b"", capture_output=True)  # fmt: skip
    assert p.stdout == b"True\n" and p.returncode == 1 and b"ArrowInvalid" in p.stderr
    p = subprocess.run([sys.executable, "-c", "import penstock\nprint(callable(penstock.serve))\nimport penstock.serve\nprint(callable(penstock.serve))"],
                       env={"PYTHONPATH": str(PYTHON)}, capture_output=True)  # fmt: skip
    assert p.stdout == b"True\nTrue\n", p.stderr


def test_without_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('not here')")
    p = subprocess.run([sys.executable, "-m", "penstock.serve", "os:getcwd"], env={"PYTHONPATH": f"{tmp_path}:{PYTHON}"}, input="", capture_output=True, text=True)
    assert p.returncode == 1 and "penstock.serve needs pyarrow" in p.stderr and "pip install pyarrow" in p.stderr


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job(penstock_bin: str, tmp_path: Path) -> Run:
    """Runs a spec with a python step over the numbers 0 to n-1."""
    (tmp_path / "specs").mkdir()

    def run(module: str, step: str, n: int = 50, command: str = "run", more: str = "", *args: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "specs" / "mine.py").write_text(textwrap.dedent(module))
        spec = tmp_path / "specs" / "s.yaml"
        spec.write_text(f"version: 1\nsource: {{range: {{n: {n}}}}}\nsteps:\n  - python: {{function: mine:f, {step}}}\n" + (more or "sink: {json: {path: out, mode: overwrite}}\n"))
        env = {**os.environ, "PENSTOCK_PYTHON": sys.executable, "PYTHONPATH": str(PYTHON)}
        return subprocess.run([penstock_bin, command, str(spec), *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)

    return run


def rows(folder: Path) -> list[Any]:
    return [json.loads(line) for file in sorted((folder / "out").glob("*.json*")) for line in file.read_text().splitlines()]


def test_step(job: Run, tmp_path: Path) -> None:
    """Order, types and rows of a run; the function is found from the spec's folder."""
    p = job("""
        import numpy as np
        def f(b):
            print("to stderr")
            return {"id": b["id"], "half": b["id"] / 2, "pair": np.stack([b["id"], -b["id"]], 1), "text": [f"n{i}" for i in b["id"]]}
    """, "workers: 2, batch_rows: 7, schema: {id: int64, half: float, pair: list<int64>, text: string}")  # fmt: skip
    assert p.returncode == 0, p.stderr
    assert rows(tmp_path) == [{"id": i, "half": i / 2, "pair": [i, -i], "text": f"n{i}"} for i in range(50)]


def test_step_that_fails(job: Run, tmp_path: Path) -> None:
    """The error of the run has the text, the stack and the step; with skip only the rows that fail are left out, without another process."""
    module = """
        import os
        open(f"started-{os.getpid()}", "w").close()
        def f(b):
            bad = [i for i in b["id"] if i % 20 == 13]
            if bad:
                raise ValueError(f"unlucky {bad[0]}")
            return b
    """
    p = job(module, "workers: 1")
    assert p.returncode == 1 and "step 1" in p.stderr and "ValueError: unlucky 13" in p.stderr and "mine.py" in p.stderr and "in f" in p.stderr
    for f in tmp_path.glob("started-*"):
        f.unlink()
    p = job(module, "workers: 1", 50, "run", "sink: {json: {path: out, mode: overwrite}}\nrun: {cpus: 1, on_error: {policy: skip, dead_letter: bad}}\n")
    assert p.returncode == 0, p.stderr
    assert [r["id"] for r in rows(tmp_path)] == [i for i in range(50) if i % 20 != 13]
    assert len(list(tmp_path.glob("started-*"))) == 1
    import pyarrow.parquet

    (dead,) = (tmp_path / "bad").rglob("*.parquet")
    text = str(pyarrow.parquet.read_table(dead).to_pylist())
    assert "ValueError: unlucky 13" in text and "ValueError: unlucky 33" in text
    p = job("import nothing_of_this_name", "workers: 1", 50, "run", "sink: {count: {}}\nrun: {on_error: skip}\n")
    assert p.returncode == 2 and "ModuleNotFoundError: No module named 'nothing_of_this_name'" in p.stderr, p.stderr


def test_step_of_shards(job: Run, tmp_path: Path) -> None:
    """Samples of shards, flat, in an order that does not depend on how the function runs."""
    module = """
        import numpy as np
        def f(b):
            p = np.repeat(np.arange(len(b["id"])), b["id"] % 3)
            return {"x": b["id"][p] * 10, "__parent": p}
    """
    shards = "shards: {global_batch: 8, seed: 3, tail: pad, columns: {x: int64}}\n"
    a = job(module, "workers: 1, flat: true, schema: {x: int64}", 50, "batches", shards, "--format", "jsonl")
    b = job(module, "workers: 2, batch_rows: 5, flat: true, schema: {x: int64}", 50, "batches", shards, "--format", "jsonl")
    assert a.returncode == 0, a.stderr
    assert a.stdout == b.stdout
    got = sorted(json.loads(line)["row"]["x"] for line in a.stdout.splitlines())
    want = sorted(i * 10 for i in range(50) for _ in range(i % 3))
    assert [x for x in got if x] == [x for x in want if x]
