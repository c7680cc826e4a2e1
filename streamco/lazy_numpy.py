"""numpy, imported when it is first used: a client needs it only when it has something to learn from.

    from streamco.lazy_numpy import np

``np`` is used like the module, inside functions. Aliases of types belong below ``TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["is_numpy_loaded", "load_numpy", "np"]

_PARTS = ("numpy", "numpy.ma")  # numpy itself imports the second when a median is first computed


class _Numpy:
    """Stands for the module; each of its names is looked up there once."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("numpy"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()


def load_numpy() -> None:
    """Import numpy, which takes 0.1 to 0.2 s; any thread may do it."""
    for part in _PARTS:
        import_module(part)


def is_numpy_loaded() -> bool:
    """Return True if using ``np`` imports nothing any more."""
    return all(part in sys.modules and not getattr(sys.modules[part].__spec__, "_initializing", False) for part in _PARTS)
