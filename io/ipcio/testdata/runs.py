"""Writes runs.arrow, runs.arrows and runs.json: run-end encoded columns and list views, as pyarrow writes them, and their values.

    python -B testdata/runs.py
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

HERE = pathlib.Path(__file__).parent


def ree(values: list, t: pa.DataType, ends: pa.DataType = pa.int32()) -> pa.Array:
    return pc.run_end_encode(pa.array(values, t), run_end_type=ends)


def runs_of(values: pa.Array, lengths: list[int]) -> pa.Array:
    ends, at = [], 0
    for n in lengths:
        at += n
        ends.append(at)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)


text = ["a", "a", None, None, "naïve", "naïve", "naïve", ""]
words = pa.array(["x", None, "yy"]).dictionary_encode()
view = pa.ListViewArray.from_arrays(pa.array([4, 0, 2, 0, 6, 6, 1, 0], pa.int32()), pa.array([2, 3, 0, 1, 0, 1, 6, 7], pa.int32()),
                                    pa.array([1, 2, None, 4, 5, 6, 7]), mask=pa.array([False, False, True, False, False, False, False, False]))
large = pa.LargeListViewArray.from_arrays(pa.array([0, 1, 3, 3, 3, 5, 6, 7], pa.int64()), pa.array([1, 2, 0, 0, 2, 1, 1, 0], pa.int64()),
                                          pa.array(["p", "q", None, "r", "s", "t", "u"]))
inner = ree([1, 1, 1, None, None, 5, 5, 5, 9, 9], pa.int64(), pa.int16())
columns = {
    "n": pa.array(range(8), pa.int32()),
    "text": ree(text, pa.string()),
    "bool": ree([True, True, False, None, None, None, True, True], pa.bool_(), pa.int64()),
    "null": runs_of(pa.nulls(2), [3, 5]),
    "coded": runs_of(words, [1, 4, 3]),
    "lists": runs_of(pa.array([[1, 2], None, [], [3]], pa.list_(pa.int8())), [2, 1, 4, 1]),
    "structs": runs_of(pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]), [2, 1, 5]),
    "view": view,
    "large": large,
    "in": pa.StructArray.from_arrays([ree([1.5] * 8, pa.float64()), view], ["r", "v"]),
    "list": pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 5, 6, 6, 9, 10], pa.int32()), inner),
    "views": pa.ListViewArray.from_arrays(pa.array([1, 0, 2, 0, 0, 0, 0, 0], pa.int32()), pa.array([1, 2, 1, 0, 3, 1, 1, 1], pa.int32()),
                                          pa.array([["a"], [], ["b", None]], pa.list_view(pa.string()))),
}


def values(a: pa.Array, i: int) -> object:
    """Value i, whatever the encoding: pyarrow's own as_py, but for lists of run-end encoded values."""
    if pa.types.is_run_end_encoded(a.type):
        return values(pc.run_end_decode(a.slice(i, 1)), 0) if not pa.types.is_nested(a.type.value_type) and not pa.types.is_dictionary(
            a.type.value_type) else values(a.values, a.slice(i, 1).find_physical_offset())
    return a[i].as_py()


table = pa.table(columns)
batch = table.to_batches()[0]
batches = [batch, batch.slice(1, 5), batch.slice(3), batch.slice(2, 0), batch]
for name, new in {"runs.arrow": pa.ipc.new_file, "runs.arrows": pa.ipc.new_stream}.items():
    with new(str(HERE / name), table.schema) as w:
        for b in batches:
            w.write_batch(b)
with pa.ipc.open_file(str(HERE / "runs.arrow")) as f:  # what pyarrow reads again
    rows = []
    for k in range(f.num_record_batches):
        b = f.get_batch(k)
        assert b.num_rows == batches[k].num_rows
        rows += [{c: values(b.column(c), i) for c in columns} for i in range(b.num_rows)]
(HERE / "runs.json").write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n")
