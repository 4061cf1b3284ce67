"""States of a job (``docs/order.md``): their JSON as the Go side writes it, and the position that comes with each batch.

A state is a dict with the fields of its JSON, in their order. ``json.dumps`` of one is a state file.
"""

from __future__ import annotations

import json
from typing import Any

from penstock._errors import Corrupt

_SIGNED = (1 << 63) - 1

_DAMAGED = "the feed is damaged: a frame that does not decode"


def uvarint(b: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, at most 64 bits, and where the next one begins."""
    v = shift = 0
    while True:
        if at >= len(b) or shift > 63:
            raise Corrupt(_DAMAGED)
        c = b[at]
        at += 1
        v |= (c & 0x7F) << shift
        if c < 0x80:
            if v >> 64:
                raise Corrupt(_DAMAGED)
            return v, at
        shift += 7


class Place:
    """Where a job stands: what the data process said with a batch. It is read when somebody asks."""

    __slots__ = ("_base", "_position")

    def __init__(self, base: dict[str, Any], position: bytes | None) -> None:
        self._base, self._position = base, position

    def at(self) -> tuple[int, int]:
        """Epoch, and steps of it that were given."""
        b = self._position
        if b is None:
            return self._base["epoch"], self._base["step"]
        epoch, at = uvarint(b, 0)
        return epoch, uvarint(b, at)[0]

    def state(self) -> dict[str, Any]:
        """The state, without its sum."""
        return self._base if self._position is None else position(self._position, self._base)


def position(b: bytes, base: dict[str, Any]) -> dict[str, Any]:
    """The state that a position of the feed says; what does not change from step to step is that of ``base``. It has no sum."""
    at = 0

    def signed() -> int:
        nonlocal at
        v, at = uvarint(b, at)
        if v > _SIGNED:
            raise Corrupt(_DAMAGED)
        return v

    sources: list[dict[str, Any]] = base["sources"] or []
    epoch, at = uvarint(b, at)
    step, sample, batch, length, n = signed(), signed(), signed(), signed(), signed()
    if n > (len(b) - at) // (1 + len(sources)):
        raise Corrupt(_DAMAGED)
    weights = [[signed(), [signed() for _ in sources]] for _ in range(n)]
    moved = []
    for s in sources:
        pass_, at = uvarint(b, at)
        moved.append({**s, "pass": pass_, "pos": [[signed(), signed()] for _ in s["pos"] or []]})
    if at != len(b):
        raise Corrupt(_DAMAGED)
    out: dict[str, Any] = {}
    for key in ("version", "order", "plan", "data", "seed"):
        out[key] = base[key]
    out.update(epoch=epoch, step=step, sample=sample, global_batch=batch)
    if length:
        out["length"] = length
    out.update(weights=weights, sources=moved)
    return out


def _table() -> list[int]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_CRC = _table()


def crc32c(b: bytes) -> int:
    """CRC-32C (Castagnoli) of ``b``: 0.1 ms for the 2 KiB of a state."""
    table, crc = _CRC, 0xFFFFFFFF
    for x in b:
        crc = table[(crc ^ x) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# What Go's encoding/json escapes beside what JSON wants; all of it occurs in strings only.
_escapes = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def text(state: dict[str, Any]) -> str:
    """The JSON of a state without its sum, byte for byte as Go writes it."""
    plain = {k: v for k, v in state.items() if k != "sum"}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).translate(_escapes)


def summed(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with its sum, by which an edited one is noticed."""
    return {**state, "sum": f"{crc32c(text(state).encode()):08x}"}


def number(v: object, least: int = 0, most: int = _SIGNED) -> int:
    """A whole number of a JSON text that came from the other side, in its range: true, 1.0 and Infinity are none. ValueError for others."""
    if type(v) is not int or not least <= v <= most:
        raise ValueError(f"{v!r} is no number from {least} to {most}")
    return v


def parse(raw: bytes | bytearray | str) -> dict[str, Any]:
    """The state of a JSON text that came from the data process."""
    try:
        s: dict[str, Any] = json.loads(raw)
        for key in ("step", "sample", "global_batch"):
            number(s[key])
        number(s["epoch"], 0, (1 << 64) - 1)
        number(s.get("length", 0))
        ok = (
            isinstance(s, dict)
            and s["version"] == 1
            and all(k in s for k in ("order", "plan", "data", "seed", "weights"))
            and all(isinstance(x, dict) and isinstance(x["pos"] or [], list) for x in s["sources"] or [])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise Corrupt("the feed is damaged: no state") from e
    if not ok:
        raise Corrupt("the feed is damaged: no state of version 1: use one release for both processes")
    return s
