"""``python -m penstock.serve my.module:fn``: a Python function as a worker of an exec step. See :func:`penstock.serve`."""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

from penstock._serve import main, serve

__all__ = ["main", "serve"]


class _Module(types.ModuleType):
    """``import penstock.serve`` hides the function of that name behind this module; a call does the same."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        serve(*args, **kwargs)


if __name__ == "__main__":
    main()
sys.modules[__name__].__class__ = _Module
