"""Metrics of a report as JSON, which has no NaN and no infinities: those are texts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from math import isfinite
from typing import Any

import numpy as np

_TEXTS = {"inf": '"Infinity"', "-inf": '"-Infinity"', "nan": '"NaN"'}


def values(metrics: Mapping[str, Any]) -> tuple[float | str, ...]:
    """What ``%s`` makes the JSON of each value. They are numbers: Python's, numpy's, or tensors of one element; TypeError of others."""
    return tuple([v if type(v) is float and isfinite(v) else _number(k, v) for k, v in metrics.items()])


def form(names: tuple[Any, ...]) -> str:
    """What stands between the braces, with %s for each value. TypeError of names that are no text."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a metric is {name!r}: names are text")
    return ",".join([quoted(name).replace("%", "%%") + ":%s" for name in names])


def decode(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items()}


def _number(key: str, v: Any) -> float | str:
    """A float, or the text of one that JSON does not have."""
    bad = f"metric {key!r} is {_show(v)}: metrics are numbers, or tensors of one element"
    if not isinstance(v, (numbers.Real, np.bool_)):  # bool and numpy's scalars are Real
        item = getattr(v, "item", None)
        if not callable(item) or math.prod(getattr(v, "shape", ())) != 1:
            raise TypeError(bad)
        v = item()
        if not isinstance(v, numbers.Real):
            raise TypeError(bad)
    try:
        v = float(v)  # numpy's float64 is one, and writes itself in another way
    except (TypeError, ValueError, OverflowError):
        raise TypeError(bad) from None
    return v if isfinite(v) else _TEXTS[repr(v)]


def _show(v: Any) -> str:
    shape = getattr(v, "shape", None)
    if shape is not None:
        return f"a {type(v).__name__} of shape {tuple(shape)}"
    text = repr(v)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(v).__name__})"
