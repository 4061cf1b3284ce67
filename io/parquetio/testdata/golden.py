#!/usr/bin/env python3
"""Makes golden.json: what pyarrow reads from every file of parquet-testing.

    python3 -m venv venv && venv/bin/pip install pyarrow==26.0.1
    venv/bin/python golden.py DATA... > golden.json

DATA are folders of Parquet files. For every file: the number of rows and a
SHA-256 of all values in a canonical text (see text() in conformance_test.go, which
must give the same), or the error. Checksums of pages are verified.
"""

import decimal
import hashlib
import json
import os
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq


def text(a):
    """The canonical text of every value of an array."""
    t = a.type
    if isinstance(a, pa.ChunkedArray):
        out = []
        for c in a.chunks:
            out += text(c)
        return out
    if isinstance(t, pa.BaseExtensionType):
        return text(a.storage)
    if pa.types.is_dictionary(t):
        return text(a.dictionary_decode())
    valid = a.is_valid().to_pylist()
    if pa.types.is_null(t):
        out = [""] * len(a)
    elif pa.types.is_boolean(t):
        out = ["true" if v else "false" for v in a.to_pylist()]
    elif pa.types.is_integer(t):
        out = [str(v) for v in a.to_pylist()]
    elif pa.types.is_temporal(t):
        bits = t.bit_width
        ints = a.view(pa.int32() if bits == 32 else pa.int64())
        out = [str(v) for v in ints.to_pylist()]
    elif pa.types.is_decimal(t):
        out = ["" if v is None else str(int(v.scaleb(t.scale, decimal.Context(prec=80)))) for v in a.to_pylist()]
    elif pa.types.is_floating(t):
        fmt = {16: "<e", 32: "<f", 64: "<d"}[t.bit_width]
        out = []
        for v in a.to_pylist():
            if v is None:
                out.append("")
            elif v != v:
                out.append("nan")
            else:
                out.append(struct.pack(fmt, v)[::-1].hex())
    elif pa.types.is_string(t) or pa.types.is_large_string(t):
        out = ["" if v is None else v.encode().hex() for v in a.to_pylist()]
    elif pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t):
        out = ["" if v is None else v.hex() for v in a.to_pylist()]
    elif pa.types.is_struct(t):
        kids = [text(a.field(i)) for i in range(t.num_fields)]
        out = ["{" + ",".join(k[i] for k in kids) + "}" for i in range(len(a))]
    elif pa.types.is_map(t):
        keys, items = text(a.keys), text(a.items)
        offs = a.offsets.to_pylist()
        base = offs[0] if offs else 0
        out = ["[" + ",".join("(%s:%s)" % (keys[j - base], items[j - base]) for j in range(offs[i], offs[i + 1])) + "]"
               if valid[i] else "" for i in range(len(a))]
    elif pa.types.is_list(t) or pa.types.is_large_list(t):
        vals = text(a.values)
        offs = a.offsets.to_pylist()
        out = ["[" + ",".join(vals[offs[i]:offs[i + 1]]) + "]" if valid[i] else "" for i in range(len(a))]
    elif pa.types.is_fixed_size_list(t):
        vals, k = text(a.values), t.list_size
        out = ["[" + ",".join(vals[i * k:i * k + k]) + "]" for i in range(a.offset, a.offset + len(a))]
    else:
        raise TypeError(str(t))
    return [v if ok else "null" for v, ok in zip(out, valid)]


def summary(path):
    try:
        t = pq.ParquetFile(path, page_checksum_verification=True).read()
        h = hashlib.sha256()
        for name, col in zip(t.column_names, t.columns):
            h.update(name.encode() + b"\n")
            for v in text(col):
                h.update(v.encode() + b"\n")
        return {"rows": t.num_rows, "hash": h.hexdigest()[:32]}
    except Exception as e:  # whatever pyarrow raises is the result
        return {"error": type(e).__name__ + ": " + str(e).split("\n")[0][:120]}


def main():
    out = {}
    for root in sys.argv[1:]:
        for folder, _, files in os.walk(root):
            for f in files:
                if os.path.splitext(f)[1] in (".md", ".csv", ".json", ".yaml", ".bin", ""):
                    continue
                path = os.path.join(folder, f)
                if f.startswith("large_string_map"):
                    out[os.path.relpath(path, root)] = {"error": "not tried: 2 GiB of text"}
                    continue
                out[os.path.relpath(path, root)] = summary(path)
    json.dump(out, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
