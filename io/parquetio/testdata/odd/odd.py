# Files that cannot be read, or that have no columns: python3 odd.py in this folder, with polars 2.1.0.
import polars as pl


def write(name, values, dtype):
    pl.DataFrame({"id": [1, 2, 3], "x": pl.Series(values, dtype=dtype)}).write_parquet(name + ".parquet")


write("int128", [1, None, -3], pl.Int128)
write("uint128", [1, None, 3], pl.UInt128)
write("nested_int128", [[{"a": 1}], None, [{"a": 3}]], pl.List(pl.Struct({"a": pl.Int128})))
write("no_width", [[], None, []], pl.Array(pl.Int32, 0))
pl.DataFrame(height=5).write_parquet("no_columns.parquet")
