"""A Python function as a worker of an ``exec`` or ``python`` step: Arrow IPC on stdin and stdout (``exec/operators``).

The stream that comes says in the metadata of its schema what the answers' schema is. A batch that the function fails on is answered with no rows and the
error in the batch's metadata, and the process lives on.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NoReturn, Optional

import numpy as np
from numpy.typing import NDArray

from penstock._errors import Error, Invalid, Unsupported

ANSWER = b"penstock.answer"  # of the input's schema: that of the answers, an IPC stream without batches, base64
ERROR = "penstock.error"  # of an answer without rows: why there are none
CODE = "penstock.code"  # and the code of that
PARENT = "__parent"

_MOST_TEXT = 16 << 10  # of an error


def serve(fn: Callable[[Any], Any], *, format: Optional[str] = None) -> NoReturn:
    """Makes this script a worker of an ``exec`` step: calls ``fn`` with every batch, and ends the process when there are no more.

    ``fn`` gets a dict of numpy arrays by column, or a ``pyarrow.RecordBatch`` (``format="arrow"``, or where its parameter is annotated so), and returns
    either, whatever it got: all columns of the step's ``schema``, as many rows as came. With ``flat: true`` it may return any number of
    rows, with a column ``__parent`` that says, ascending, which row of its batch each comes from. A class is constructed once, and its instance called: what it keeps
    is kept between batches.

    The arrays are read only. Nulls are NaN in floats, NaT in times, None among strings and other objects; integers and booleans cannot have them: the batch fails, so fill
    them in a step before, or take Arrow. A column that is returned as it came keeps its nulls. Lists of a fixed size are arrays of two dimensions.

    What ``fn`` prints goes to stderr. An exception is the error of its batch, and follows the step's ``on_error``.
    """
    _serve(lambda: fn, format, *_take_streams())


def main(argv: Optional[list[str]] = None) -> NoReturn:
    """``python -m penstock.serve [--format numpy|arrow] my.module:function``."""
    p = argparse.ArgumentParser(prog="python -m penstock.serve", description="A Python function as a worker of an exec step: Arrow IPC on stdin and stdout.")
    p.add_argument("function", help="module:function, or module:Class, which is constructed once")
    p.add_argument("--format", choices=("numpy", "arrow"), help="what the function gets; default: arrow where its parameter is annotated as pyarrow.RecordBatch, else numpy")
    a = p.parse_args(argv)
    _serve(lambda: load(a.function), a.format, *_take_streams())


def load(name: str) -> Any:
    """What ``module:attribute`` names."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise Invalid(f"{name!r} names no function: write module:function, such as my.module:tokenize")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not (module == e.name or module.startswith(e.name + ".")):
            raise  # one that the module imports
        raise Invalid(f"no module {e.name!r}: it is looked for in the spec's folder, the working directory and PYTHONPATH, with {sys.executable}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Invalid(f"module {module} has no {path!r}") from None
    if not callable(found):
        raise Invalid(f"{name} is a {type(found).__name__}: a function or a class is needed")
    return found


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """stdin and stdout for batches alone: from now on prints go to stderr, and reads of stdin find its end."""
    if os.isatty(0) or os.isatty(1):
        sys.exit("this is a worker of an exec step, which speaks Arrow IPC on stdin and stdout: name it in a spec, and let `penstock run` start it")
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    return open(source, "rb", buffering=1 << 16), open(sink, "wb", buffering=1 << 16)


def _serve(find: Callable[[], Any], format: Optional[str], source: BinaryIO, sink: BinaryIO) -> NoReturn:
    try:
        import pyarrow as pa
    except ImportError as e:
        sys.exit(f"penstock.serve needs pyarrow, which {sys.executable} does not have ({e}): pip install pyarrow")
    reader = pa.ipc.open_stream(pa.PythonFile(source, mode="r"))
    packed = (reader.schema.metadata or {}).get(ANSWER)
    if packed is None:
        sys.exit("the batches do not say what the answer must be: use one release of the binary and of the Python package")
    schema: pa.Schema = pa.ipc.open_stream(base64.b64decode(packed)).schema
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)
    function: Optional[_Function] = None
    for batch in reader:
        try:
            if function is None:
                function = _Function(find(), format, schema)
        except Exception as e:  # no batch will do better
            _refuse(writer, schema, e, "invalid")
            sink.flush()
            sys.exit(1)
        try:
            writer.write_batch(function(batch))
        except MemoryError:
            raise  # another process may have more room
        except Exception as e:
            _refuse(writer, schema, e, e.code if isinstance(e, Error) else "user_code")
        batch = None
        sink.flush()
    writer.close()
    try:
        sink.flush()
    except BrokenPipeError:  # nobody waits for the end
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(0)


def _refuse(writer: Any, schema: Any, e: BaseException, code: str) -> None:
    """Answers with no rows and the error, with the stack from the user's code on."""
    text = f"{type(e).__name__}: {e}" if not isinstance(e, Error) else str(e)
    frames = e.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    if frames is not None and not isinstance(e, Error):
        chained = e.__cause__ is not None or e.__context__ is not None and not e.__suppress_context__
        stack = traceback.format_exception(type(e), e, frames) if chained else ["Traceback (most recent call last):\n", *traceback.format_tb(frames)]
        text += "\n" + "".join(stack).rstrip()
    if len(text) > _MOST_TEXT:
        text = text[: _MOST_TEXT // 2] + "\n...\n" + text[-_MOST_TEXT // 2 :]
    # Not the schema's own metadata: that is not sent again with batches.
    import pyarrow as pa

    none = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    writer.write_batch(none, custom_metadata={ERROR: text.encode("utf-8", "replace"), CODE: code.encode()})


class _Function:
    """The user's function, from record batch to record batch."""

    def __init__(self, found: Any, format: Optional[str], schema: Any) -> None:
        if format not in (None, "numpy", "arrow"):
            raise Invalid(f"format {format!r}: numpy or arrow")
        if inspect.isclass(found):
            found = found()
            if not callable(found):
                raise Invalid(f"class {type(found).__name__} has no method __call__(self, batch)")
        self._call = found
        self._arrow = format == "arrow" or format is None and _wants_arrow(found)
        self._schema = schema
        self._flat = PARENT in schema.names

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        given: Any = batch if self._arrow else {f.name: to_numpy(f.name, batch.column(i)) for i, f in enumerate(batch.schema)}
        got = self._call(batch if self._arrow else dict(given))
        if isinstance(got, pa.Table):
            got = {n: got.column(n) for n in got.column_names}
        elif isinstance(got, pa.RecordBatch):
            if got.schema.equals(self._schema):
                self._count(batch.num_rows, got.num_rows)
                return pa.RecordBatch.from_arrays(got.columns, schema=self._schema)
            got = {n: got.column(i) for i, n in enumerate(got.schema.names)}
        elif not isinstance(got, Mapping):
            raise Invalid(f"{self._name()} returned {_a(got)}: a dict of arrays or a pyarrow.RecordBatch is needed")
        self._check_names(got)
        columns = []
        for f in self._schema:
            v = got[f.name]
            if not self._arrow and f.name in given and v is given[f.name] and batch.schema.field(f.name).type == f.type:
                columns.append(batch.column(f.name))
            else:
                columns.append(from_numpy(f.name, v, f.type))
        rows = {f.name: len(c) for f, c in zip(self._schema, columns)}
        if len(set(rows.values())) > 1:
            raise Invalid(f"{self._name()} returned columns of different lengths: {', '.join(f'{n} {k}' for n, k in rows.items())}")
        self._count(batch.num_rows, next(iter(rows.values()), batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _count(self, had: int, has: int) -> None:
        if not self._flat and had != has:
            raise Invalid(f"{self._name()} returned {has} rows for {had}; a function that changes rows must be declared with flat: true, and return column {PARENT}")

    def _check_names(self, got: Mapping[str, Any]) -> None:
        missing = [n for n in self._schema.names if n not in got]
        more = [str(n) for n in got if n not in self._schema.names]
        if missing == [PARENT]:
            raise Invalid(f"{self._name()} returned no column {PARENT}, which says for each row the row of its batch that it comes from: needed with flat: true (it returned {_names(got)})")
        if missing:
            raise Invalid(f"{self._name()} returned no column {', '.join(missing)}, but {_names(got)}: it returns all columns of the step's schema")
        if more:
            raise Invalid(f"{self._name()} returned column {', '.join(more)}, which the step does not have: declare what it returns in the step's schema")

    def _name(self) -> str:
        return getattr(self._call, "__name__", type(self._call).__name__)


def _names(got: Mapping[str, Any]) -> str:
    """The columns of ``got``, the first of many."""
    names = [str(n) for n in got]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none at all"


def _wants_arrow(fn: Any) -> bool:
    """Its first parameter is annotated as a record batch."""
    f = fn if inspect.isroutine(fn) else type(fn).__call__
    try:
        ps = [p for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return False
    if not ps or ps[0].annotation is inspect.Parameter.empty:
        return False
    kind = ps[0].annotation
    if isinstance(kind, str):
        kind = kind.rpartition(".")[2].strip("'\"")
        return bool(kind == "RecordBatch")
    import pyarrow as pa

    return kind is pa.RecordBatch and f is not None


def to_numpy(name: str, a: Any) -> NDArray[Any]:
    """A column as :func:`serve` describes it."""
    import pyarrow as pa

    t = a.type
    if pa.types.is_dictionary(t):
        a = a.dictionary_decode()
        t = a.type
    out: NDArray[Any]
    if a.null_count and (pa.types.is_integer(t) or pa.types.is_boolean(t)):
        raise Unsupported(f"column {name!r} has {a.null_count} nulls among {t} values, which numpy arrays of that type cannot hold: fill or filter them in a step before (coalesce), or take format: arrow")
    if pa.types.is_fixed_size_list(t) and not a.null_count and _flat(t.value_type):
        out = to_numpy(name, a.flatten()).reshape(len(a), t.list_size, *_inner(t.value_type))
    elif pa.types.is_struct(t) or pa.types.is_map(t) or pa.types.is_union(t) or pa.types.is_null(t):
        out = np.empty(len(a), dtype=object)
        out[:] = a.to_pylist()
    else:
        out = a.to_numpy(zero_copy_only=False)
    out.flags.writeable = False
    return out


def _flat(t: Any) -> bool:
    """Numbers, or lists of a fixed size of them."""
    import pyarrow as pa

    while pa.types.is_fixed_size_list(t):
        t = t.value_type
    return bool(pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t))


def _inner(t: Any) -> tuple[int, ...]:
    import pyarrow as pa

    dims: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(t):
        dims += (t.list_size,)
        t = t.value_type
    return dims


def from_numpy(name: str, v: Any, t: Any) -> Any:
    """What a function returned for a column, as an Arrow array of type ``t``. Values that do not fit are an error."""
    import pyarrow as pa

    if isinstance(v, pa.ChunkedArray):
        v = v.combine_chunks()
        if isinstance(v, pa.ChunkedArray):  # of releases where it stays one
            v = pa.concat_arrays(v.chunks) if v.num_chunks else pa.array([], v.type)
    try:
        if isinstance(v, pa.Array):
            return _fit(v, t)
        if hasattr(v, "detach") and hasattr(v, "cpu"):  # a tensor
            v = v.detach().cpu().numpy()
        if isinstance(v, np.ma.MaskedArray):
            return _fit(pa.array(v), t) if v.ndim == 1 else _objects(list(v), t)
        if isinstance(v, np.ndarray):
            if v.ndim == 0:
                raise Invalid(f"column {name!r} is one value: an array with a value for each row is needed")
            if v.dtype == object:
                return _objects(list(v), t)
            return _dense(v, t)
        if isinstance(v, (list, tuple)):
            return _objects(v, t)
    except (pa.ArrowException, OverflowError) as e:
        raise ValueError(f"column {name!r}: {e} (the step's schema says {t})") from None
    except TypeError as e:
        raise TypeError(f"column {name!r}: {e} (the step's schema says {t})") from None
    raise Invalid(f"column {name!r} is {_a(v)}: an array with a value for each row is needed")


def _objects(v: Any, t: Any) -> Any:
    """A list of Python's values. With the type given pyarrow would cut 1.5 to 1, so it is found first where it can be."""
    import pyarrow as pa

    try:
        a = pa.array(v, from_pandas=False)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array(v, type=t, from_pandas=False)
    return _fit(a, t)


def _fit(a: Any, t: Any) -> Any:
    """The same values as another type; text is no number, and no number is text."""
    import pyarrow as pa

    def text(t: Any) -> bool:
        return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))

    if a.type == t:
        return a
    if text(a.type) != text(t) and not pa.types.is_null(a.type) and not pa.types.is_dictionary(a.type) and not pa.types.is_dictionary(t):
        raise pa.ArrowInvalid(f"values of type {a.type}")
    return a.cast(t)


def _dense(v: NDArray[Any], t: Any) -> Any:
    """An array without objects; each dimension after the first is a list."""
    import pyarrow as pa

    if v.ndim == 1:
        return _fit(pa.array(v, from_pandas=False), t)
    rest = v.reshape(-1, *v.shape[2:])
    size = v.shape[1]
    if pa.types.is_fixed_size_list(t):
        if t.list_size != size:
            raise pa.ArrowInvalid(f"an array of shape {v.shape} for lists of {t.list_size}")
        return pa.FixedSizeListArray.from_arrays(_dense(rest, t.value_type), size)
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        kind = pa.ListArray if pa.types.is_list(t) else pa.LargeListArray
        offsets = np.arange(0, (v.shape[0] + 1) * size, size) if size else np.zeros(v.shape[0] + 1, np.int64)
        return kind.from_arrays(pa.array(offsets).cast(pa.int32() if pa.types.is_list(t) else pa.int64()), _dense(rest, t.value_type)).cast(t)
    raise pa.ArrowInvalid(f"an array of shape {v.shape} for one value a row")


def _a(v: Any) -> str:
    name = type(v).__name__
    return "nothing" if v is None else f"a{'n' if name[:1].lower() in 'aeiou' else ''} {name}"
