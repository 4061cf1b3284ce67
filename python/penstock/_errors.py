"""Errors of the data plane, and of this package.

Programs decide by :attr:`Error.code`, or by the class, never by the text.
"""

from __future__ import annotations

#: Codes by their number on the wire (package ``internal/fault``).
CODES = (
    "unknown",
    "canceled",
    "invalid",
    "not_found",
    "exists",
    "corrupt",
    "row_error",
    "user_code",
    "exhausted",
    "unavailable",
    "worker_lost",
    "stalled",
    "unsupported",
    "internal",
    "denied",
    "changed",
)


class Error(Exception):
    """A failure with a code.

    ``code`` is one of :data:`CODES`; the text says what happened and what to do.
    """

    code: str = "unknown"

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.code))


class Invalid(Error):
    """The request is wrong: an option, a column, a state of another job."""

    code = "invalid"


class NotFound(Error):
    """A file, a data set or a rank that does not exist."""

    code = "not_found"


class Corrupt(Error):
    """Bytes that do not decode: a damaged file, or a peer that is no data process."""

    code = "corrupt"


class Exhausted(Error):
    """Out of memory, disk or quota."""

    code = "exhausted"


class Unavailable(Error):
    """The data process is gone, or was never there. Start it again, and go on from the last state that was committed."""

    code = "unavailable"


class WorkerLost(Error):
    """Another rank's consumer is gone. Start all ranks again, and go on from the last state that was committed."""

    code = "worker_lost"


class Unsupported(Error):
    """Understood, but nothing that this build, machine or batch can do."""

    code = "unsupported"


for _c in (Error, Invalid, NotFound, Corrupt, Exhausted, Unavailable, WorkerLost, Unsupported):
    _c.__module__ = "penstock"  # where users find them

_classes: dict[str, type[Error]] = {
    c.code: c for c in (Invalid, NotFound, Corrupt, Exhausted, Unavailable, WorkerLost, Unsupported)
}


def error(code: str, text: str) -> Error:
    """An :class:`Error` of the class that its code has."""
    return _classes.get(code, Error)(text, code)
