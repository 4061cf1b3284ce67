"""Random files, and what readers make of them.

A generator makes a Case: the bytes of a file, how Penstock and its peers are told to read it, and the columns that it was made
of. `compare` reads it with all of them. A generator of another format adds itself to GENERATORS; what peers are known to read
otherwise is in KNOWN, each with the reason: there they disagree among themselves.
"""

from __future__ import annotations

import datetime
import gzip
import json
import math
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json

duckdb.sql("set TimeZone = 'UTC'; set threads = 1")

Columns = dict[str, list[Any]]


@dataclass
class Case:
    """A file and what it holds."""

    kind: str  # of Penstock's source
    name: str  # of the file
    data: bytes
    want: Columns  # what is in it
    config: dict[str, Any] = field(default_factory=dict)  # of Penstock's source
    peers: dict[str, Callable[[str], pyarrow.Table]] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)  # what KNOWN speaks of
    filter: str = ""


# A peer reads a case of such a feature otherwise, or not at all: (kind, peer, feature).
KNOWN = {
    ("csv", "polars", "empty text"): "a quoted empty field is null in Polars where empty fields are; it is text in DuckDB and pyarrow",
    ("csv", "polars", "quote in a name"): "Polars keeps a doubled quote of a header double; DuckDB and pyarrow read one",
    ("csv", "polars", "cr"): "Polars ends lines with a byte that it is told; pyarrow and DuckDB find CR",
    ("csv", "pyarrow", "empty at the end"): "a file that ends in an empty field, without a line end, has a text there in pyarrow, a null in DuckDB and Polars",
    ("csv", "polars", "encoding"): "Polars reads UTF-8 only; pyarrow has encodings",
    ("csv", "duckdb", "encoding"): "DuckDB has other encodings by an extension; pyarrow has them",
    ("json", "pyarrow", "layout"): "pyarrow reads lines only; DuckDB reads arrays, and objects one behind another",
    ("json", "polars", "layout"): "Polars reads lines and arrays, each by a function of its own",
}


class Reader:
    """Penstock, in one process for many files."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.out = folder / "out.arrow"
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, case: Case, path: str) -> pyarrow.Table:
        assert self.process.stdin is not None and self.process.stdout is not None
        ask = {"kind": case.kind, "config": case.config | {"paths": [path]}, "filter": case.filter, "out": str(self.out)}
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "penstock ended"
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        with pyarrow.ipc.open_stream(self.out) as r:
            return r.read_all()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def plain(v: Any) -> Any:
    """A value as all readers have it: times in UTC, NaN equal to itself, 1 and 1.0 and True three values."""
    if isinstance(v, bool) or v is None:
        return v
    if isinstance(v, float):
        return "NaN" if math.isnan(v) else ("double", v, math.copysign(1, v))
    if isinstance(v, datetime.datetime):
        return ("instant", v.astimezone(datetime.timezone.utc)) if v.tzinfo else ("timestamp", v)
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, list):
        return [plain(x) for x in v]
    return v


def columns(t: pyarrow.Table) -> list[tuple[str, list[Any]]]:
    return [(n, [plain(v) for v in c.to_pylist()]) for n, c in zip(t.column_names, t.columns)]


def difference(got: list[tuple[str, list[Any]]], want: list[tuple[str, list[Any]]]) -> str:
    """The first place where columns differ; "" if none."""
    if [n for n, _ in got] != [n for n, _ in want]:
        return f"columns {[n for n, _ in got]!r:.300}, not {[n for n, _ in want]!r:.300}"
    for (name, a), (_, b) in zip(got, want):
        if len(a) != len(b):
            return f"{len(a)} rows, not {len(b)}"
        for i, (x, y) in enumerate(zip(a, b)):
            if x != y or type(x) is not type(y):
                return f"row {i} of {name!r}: {x!r:.200}, not {y!r:.200}"
    return ""


def compare(case: Case, reader: Reader, folder: Path) -> tuple[list[str], int]:
    """What is wrong with what Penstock makes of a case, and how many peers agreed with it."""
    path = folder / case.name
    path.write_bytes(case.data)
    want = [(n, [plain(v) for v in vs]) for n, vs in case.want.items()]
    try:
        got = columns(reader.read(case, str(path)))
    except ValueError as e:
        return [f"penstock: {e}"], 0
    wrong = []
    if d := difference(got, want):
        wrong.append(f"penstock, of what was written: {d}")
    agreed = 0
    for peer, read in case.peers.items():
        try:
            d = difference(columns(read(str(path))), got)
        except Exception as e:  # whatever a peer throws
            d = f"{type(e).__name__}: {e!s:.300}"
        if not d:
            agreed += 1
        elif not any((case.kind, peer, f) in KNOWN for f in case.features):
            wrong.append(f"{peer}: {d}")
    return wrong, agreed


# Values.

NAMES = ["a", "b", "id", "a b", 'quo"te', "it's", "é", "日本", "comma,name", "semi;colon", "select", "1", "a.b", "x/y", "\u00a0x",
         "NULL", "true", "%s", "${x}", "back\\slash", "#", "_", "__proto__", "long" * 50]
WORDS = ["x", "NULL", "null", "NA", "N/A", "nan", "true", "1", "007", "+1", "1e5", "2024-01-01", 'a"b', '"', '""', "a,b", "a;b", "a|b", "a\tb", "é", "🙂", "e\u0301",
         "\u2028", "\u00a0", "#c", "\\", '\\"', "'", "''", "{}", "[1]", "=1", "x" * 5000, "\x7f", "\ufeff", " lead", "trail ", " ", "-", "\u0000" "z"]


def sample_names(r: random.Random, least: int) -> list[str]:
    return r.sample(NAMES, r.randrange(least, 6))


def word(r: random.Random) -> str:
    if r.random() < 0.7:
        return r.choice(WORDS)
    return "".join(chr(r.choice([r.randrange(0x20, 0x7F), r.randrange(0xA0, 0x2000), r.randrange(0x1F300, 0x1F600)])) for _ in range(r.randrange(1, 12)))


def integer(r: random.Random) -> int:
    return r.choice([0, 1, -1, r.randrange(-1000, 1000), 2**31, -(2**63), 2**63 - 1, r.randrange(-(2**63), 2**63)])


def double(r: random.Random) -> float:
    return r.choice([0.0, -0.0, 0.1, 1e22, 1e23, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 9007199254740993.0, r.random(), r.gauss(0, 1) * 10.0 ** r.randrange(-30, 30)])


def moment(r: random.Random) -> datetime.datetime:
    return datetime.datetime(r.choice([1, 1677, 1900, 1969, 1970, 2024, 2262, 9999]), r.randrange(1, 13), r.randrange(1, 29), r.randrange(24), r.randrange(60), r.randrange(60), r.choice([0, 0, 500_000, 1, 999_999]))


def split(r: random.Random, text: str) -> int:
    """Of which there are at most a hundred."""
    return max(r.choice([1, 7, 50, 1000, 1 << 20]), len(text) // 50)


# CSV.

ARROW = {"int64": pyarrow.int64(), "double": pyarrow.float64(), "bool": pyarrow.bool_(), "string": pyarrow.string(), "date": pyarrow.date32(),
         "timestamp[us]": pyarrow.timestamp("us"), "timestamp[us, UTC]": pyarrow.timestamp("us", "UTC")}
DUCK = {"int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR", "date": "DATE", "timestamp[us]": "TIMESTAMP", "timestamp[us, UTC]": "TIMESTAMPTZ"}
POLARS = {"int64": polars.Int64, "double": polars.Float64, "bool": polars.Boolean, "string": polars.String, "date": polars.Date,
          "timestamp[us]": polars.Datetime("us"), "timestamp[us, UTC]": polars.Datetime("us", "UTC")}


# A value of each type, from which it is guessed.
SEEN: dict[str, tuple[Any, str]] = {
    "int64": (12, "12"), "double": (0.5, "0.5"), "bool": (True, "true"), "string": ("x", "x"), "date": (datetime.date(2024, 2, 29), "2024-02-29"),
    "timestamp[us]": (datetime.datetime(2024, 2, 29, 12), "2024-02-29 12:00:00"),
    "timestamp[us, UTC]": (datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc), "2024-02-29T12:00:00Z"),
}


def csv_value(r: random.Random, t: str) -> tuple[Any, str]:
    if t == "int64":
        v: Any = integer(r)
        return v, str(v)
    if t == "double":
        v = double(r)
        return v, r.choice([repr(v), f"{v:.17e}", f"{v:.20g}"])
    if t == "bool":
        v = r.random() < 0.5
        return v, str(v).lower()
    if t == "date":
        d = moment(r).date()
        return d, d.isoformat()
    if t.startswith("timestamp"):
        m = moment(r)
        s = m.isoformat(sep=r.choice(" T"), timespec="microseconds")
        if t == "timestamp[us]":
            return m, s
        m = m.replace(year=max(m.year, 1900), tzinfo=datetime.timezone.utc)
        s = m.replace(tzinfo=None).isoformat(sep="T", timespec="microseconds")
        return m, s + "Z"
    v = word(r)
    return v, v


def quote(s: str) -> str:
    return '"' + s.replace('"', '""') + '"'


def csv_case(r: random.Random) -> Case:
    """Types are given, or are what all guess alike."""
    features: set[str] = set()
    delimiter = r.choice([",", ",", ";", "\t", "|"])
    end = r.choice(["\n", "\n", "\r\n", "\r"])
    if end == "\r":
        features.add("cr")
    given = r.random() < 0.7
    multiline = r.random() < 0.3
    names = sample_names(r, 2)
    if 'quo"te' in names:
        features.add("quote in a name")
    types = {n: r.choice(list(ARROW)) for n in names}
    rows = r.choice([0, 1, 2, 5, 30, 300])
    want: Columns = {n: [] for n in names}
    lines = [delimiter.join(quote(n) if r.random() < 0.3 or any(c in n for c in '",;|\t\r\n# \u00a0') else n for n in names)]
    for i in range(rows):
        fields = []
        for n in names:
            if i == 0 and not given:  # it says the type
                v, text = SEEN[types[n]]
                want[n].append(v)
                fields.append(text)
                continue
            if r.random() < 0.1:
                want[n].append(None)
                fields.append("")
                continue
            v, text = csv_value(r, types[n])
            if types[n] == "string":
                if r.random() < 0.05:
                    v = text = ""
                    features.add("empty text")
                if multiline and r.random() < 0.2:
                    v = text = text + r.choice(["\n", "\r\n", "\n\n", '\n"']) + text
            want[n].append(v)
            needs = text == "" or any(c in text for c in '",;|\t\r\n#') or text != text.strip()
            fields.append(quote(text) if needs or r.random() < 0.2 else text)
        lines.append(delimiter.join(fields))
    text = end.join(lines) + (end if r.random() < 0.8 or rows == 0 else "")
    if all(f == "" for f in lines[-1].split(delimiter)):
        text += "" if text.endswith(end) else end
    if text.endswith(delimiter):
        features.add("empty at the end")
    encoding = "utf-8"
    if r.random() < 0.1:
        encoding = "utf-16"
        features.add("encoding")
    elif r.random() < 0.2:
        text = "\ufeff" + text
    if rows == 0:
        given = True
    config: dict[str, Any] = {"delimiter": delimiter, "multiline": multiline}
    if given:
        config["types"] = types
    if encoding != "utf-8" and r.random() < 0.5:  # the byte order mark says it
        config["encoding"] = encoding
    if not multiline:
        config["split_bytes"] = split(r, text)
    data, name = text.encode(encoding), "x.csv"
    if r.random() < 0.1:
        data, name = gzip.compress(data), "x.csv.gz"

    def arrow(path: str) -> pyarrow.Table:
        return pyarrow.csv.read_csv(
            path, read_options=pyarrow.csv.ReadOptions(encoding=encoding), parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types={n: ARROW[t] for n, t in types.items()}, null_values=[""], strings_can_be_null=True,
                                                       quoted_strings_can_be_null=False, true_values=["true"], false_values=["false"]))

    def duck(path: str) -> pyarrow.Table:
        return duckdb.sql("select * from read_csv(?, delim = ?, header = true, quote = '\"', escape = '\"', auto_detect = false, nullstr = '', allow_quoted_nulls = false, strict_mode = true, "
                           f"max_line_size = 10000000, columns = {{{', '.join(sql(n) + ': ' + sql(DUCK[t]) for n, t in types.items())}}})",
                          params=[path, delimiter]).to_arrow_table()

    def polar(path: str) -> pyarrow.Table:
        return polars.read_csv(path, separator=delimiter, schema={n: POLARS[t] for n, t in types.items()}, null_values=[""]).to_arrow()

    return Case("csv", name, data, want, config, {"pyarrow": arrow, "duckdb": duck, "polars": polar}, features)


def sql(s: str) -> str:
    return "'" + s.replace("'", "''") + "'"


# JSON.


def json_value(r: random.Random, t: str, depth: int = 0) -> Any:
    if r.random() < 0.1:
        return None
    if t == "int64":
        return integer(r)
    if t == "double":
        return double(r)
    if t == "bool":
        return r.random() < 0.5
    if t == "string":
        return word(r) if r.random() < 0.9 else ""
    if t == "list<int64>":
        return [json_value(r, "int64") for _ in range(r.randrange(4))]
    return {"x": json_value(r, "int64"), "é": json_value(r, "string")}


STRUCT = 'struct<x: int64, "é": string>'
JSON_ARROW = {"int64": pyarrow.int64(), "double": pyarrow.float64(), "bool": pyarrow.bool_(), "string": pyarrow.string(), "list<int64>": pyarrow.list_(pyarrow.int64()),
              STRUCT: pyarrow.struct([("x", pyarrow.int64()), ("é", pyarrow.string())])}
JSON_DUCK = {"int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR", "list<int64>": "BIGINT[]", STRUCT: 'STRUCT(x BIGINT, "é" VARCHAR)'}
JSON_POLARS = {"int64": polars.Int64, "double": polars.Float64, "bool": polars.Boolean, "string": polars.String, "list<int64>": polars.List(polars.Int64),
               STRUCT: polars.Struct({"x": polars.Int64, "é": polars.String})}


def json_case(r: random.Random) -> Case:
    features: set[str] = set()
    names = sample_names(r, 1)
    types = {n: r.choice(list(JSON_ARROW)) for n in names}
    rows = [{n: json_value(r, types[n]) for n in names} for _ in range(r.choice([1, 2, 5, 30, 300]))]
    given = r.random() < 0.5
    want = {n: [row[n] for row in rows] for n in names}
    if not given:  # a first row from which all types are seen
        rows[0] = {n: {"int64": 1, "double": 0.5, "bool": True, "string": "x", "list<int64>": [1], STRUCT: {"x": 1, "é": "x"}}[types[n]] for n in names}
        want = {n: [row[n] for row in rows] for n in names}
    layout = r.choice(["lines", "lines", "array", "behind", "pretty", "pretty array"])
    ascii_ = r.random() < 0.5
    texts = []
    for row in rows:
        keys = r.sample(names, len(names)) if given else list(names)
        if given:
            keys = [n for n in keys if row[n] is not None or r.random() < 0.5]
        pretty = {"indent": r.choice([0, 1, 4, "\t"])} if layout.startswith("pretty") else {"separators": r.choice([(",", ":"), (", ", ": ")])}
        texts.append(json.dumps({k: row[k] for k in keys}, ensure_ascii=ascii_, **pretty))
    end = r.choice(["\n", "\r\n"])
    if layout == "lines":
        text = end.join(texts) + r.choice(["", end, end + end])
    elif layout.endswith("array"):
        text = "[" + f",{end}".join(texts) + "]"
    else:
        text = r.choice(["", " ", end]).join(texts)
    if layout != "lines":
        features.add("layout")
    config: dict[str, Any] = {"split_bytes": split(r, text)}
    if given:
        config["types"] = types
    data, name = text.encode(), r.choice(["x.json", "x.jsonl", "x.ndjson"])
    if r.random() < 0.1:
        data, name = gzip.compress(data), name + ".gz"

    def arrow(path: str) -> pyarrow.Table:
        schema = pyarrow.schema(list({n: JSON_ARROW[t] for n, t in types.items()}.items()))
        t = pyarrow.json.read_json(path, parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, newlines_in_values=layout != "lines"))
        return t.select(names)

    def duck(path: str) -> pyarrow.Table:
        form = "array" if layout.endswith("array") else "newline_delimited" if layout == "lines" else "unstructured"
        return duckdb.sql(f"select * from read_json(?, format = '{form}', records = 'true', maximum_object_size = 50000000, columns = {{{', '.join(sql(n) + ': ' + sql(JSON_DUCK[t]) for n, t in types.items())}}})", params=[path]).to_arrow_table()

    def polar(path: str) -> pyarrow.Table:
        read = polars.read_json if layout.endswith("array") else polars.read_ndjson
        return read(path, schema={n: JSON_POLARS[t] for n, t in types.items()}).to_arrow()

    # Columns that types gives come as they are first seen, and those not seen by name.
    order = [k for k in dict.fromkeys(k for t in texts for k in json.loads(t))]
    names_in_order = order + sorted(set(names) - set(order))
    want = {n: want[n] for n in names_in_order}
    names[:] = names_in_order
    types = {n: types[n] for n in names}
    return Case("json", name, data, want, config, {"pyarrow": arrow, "duckdb": duck, "polars": polar}, features)


def values_case(r: random.Random) -> Case:
    """Rows that are no objects."""
    t = r.choice(list(JSON_ARROW)[:5])
    rows = [json_value(r, t) for _ in range(r.choice([1, 2, 5, 30, 300]))]
    texts = [json.dumps(v, ensure_ascii=r.random() < 0.5) for v in rows]
    array = r.random() < 0.5 or t == "list<int64>" and len(rows) == 1
    between = r.choice([",", ", ", ",\n"] if array else ["\n", "\r\n", " "])
    text = "[" + between.join(texts) + "]" if array else between.join(texts)

    def duck(path: str) -> pyarrow.Table:
        form = "array" if array else "newline_delimited"
        return duckdb.sql(f"select * from read_json(?, format = '{form}', records = 'false', maximum_object_size = 50000000, columns = {{value: '{JSON_DUCK[t]}'}})", params=[path]).to_arrow_table()

    return Case("json", "x.json", text.encode(), {"value": rows}, {"types": {"value": t}, "split_bytes": split(r, text)},
                {} if between == " " else {"duckdb": duck})  # which reads values on lines of their own only


# Text.


def text_case(r: random.Random) -> Case:
    lines = [r.choice(["", word(r), word(r) + word(r), "x" * r.choice([10, 70_000])]).replace("\x0b", "") for _ in range(r.choice([0, 1, 3, 100]))]
    keep = r.random() < 0.5
    ends = [r.choice(["\n", "\r\n"]) for _ in lines]
    text = "".join(a + b for a, b in zip(lines, ends))
    if lines and lines[-1] and r.random() < 0.3:
        text = text[: -len(ends[-1])]
    want = {"text": [v for v in lines if v or keep]}
    if text.startswith("\ufeff"):
        text = "\ufeff" + text
    data, name = text.encode(), "x.txt"
    if r.random() < 0.1:
        data, name = gzip.compress(data), "x.txt.gz"
    return Case("text", name, data, want, {"keep_empty": keep, "split_bytes": split(r, text)})


GENERATORS: dict[str, Callable[[random.Random], Case]] = {"csv": csv_case, "json": json_case, "values": values_case, "text": text_case}
