"""Imports numpy when it is first used, because a client needs it only when it has something to learn from.

    from streamco.lazy_numpy import np

Use ``np`` like the module, but only inside functions. Type aliases belong below ``TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["is_numpy_loaded", "load_numpy", "np"]

_PARTS = ("numpy", "numpy.ma")  # numpy itself imports numpy.ma when a median is first computed


class _Numpy:
    """Stands in for the numpy module. Each name is looked up in numpy only once."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("numpy"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()


def load_numpy() -> None:
    """Import numpy, which takes 0.1 to 0.2 s. Any thread may call this."""
    for part in _PARTS:
        import_module(part)


def is_numpy_loaded() -> bool:
    """Return True if numpy is loaded, so that using ``np`` imports nothing."""
    return all(part in sys.modules and not getattr(sys.modules[part].__spec__, "_initializing", False) for part in _PARTS)
