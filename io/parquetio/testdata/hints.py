#!/usr/bin/env python3
"""Makes hints.parquet: types whose unit is another in the stored Arrow schema
than in Parquet, which has no seconds.

    python3 -m venv venv && venv/bin/pip install pyarrow==26.0.1
    venv/bin/python hints.py hints.parquet

hints_test.go has the values.
"""

import sys

import pyarrow as pa
import pyarrow.parquet as pq

zone = "Europe/Berlin"
v = [0, 1720000000, None, -1]
m = pa.map_(pa.string(), pa.timestamp("s", zone))
t = [0, 86399, None, 1]
columns = {"ts_" + u: pa.array(v, pa.timestamp(u, zone)) for u in ("s", "us", "ns")}
columns["local_s"] = pa.array(v, pa.timestamp("s"))
columns["t32_s"] = pa.array(t, pa.time32("s"))
columns["dur_s"] = pa.array(v, pa.duration("s"))
columns["dict_s"] = columns["ts_s"].dictionary_encode()
columns["list_s"] = pa.array([v, [], None, [1]], pa.list_(pa.timestamp("s", zone)))
columns["struct_s"] = pa.StructArray.from_arrays([columns["ts_s"]], ["x"])
columns["map_s"] = pa.array([[("k", v[1])], [], None, []], m)
pq.write_table(pa.table(columns), sys.argv[1], compression="none", write_statistics=False, use_dictionary=False)
