"""A flag that llama.cpp reads inside a decode, without Python.

``llama_set_abort_callback`` wants ``bool (*)(void *data)`` and calls it before every graph node. A Python function there would take the
GIL hundreds of times a decode. C's own ``strlen`` has the right shape: with ``data`` pointing to a buffer of two bytes, an empty string is
0 (go on) and a string of one byte is 1 (stop), so that setting the flag is storing one byte, from any thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

from streamco.engines.llamacpp.library import native_function

__all__ = ["AbortFlag"]


class AbortFlag:
    """Stops the ``llama_decode`` that runs in a context, and every later one until it is cleared."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)

    @property
    def is_set(self) -> bool:
        """Whether decodes stop."""
        return self._buffer[0] != b"\0"

    def set(self) -> None:
        """Stop; thread-safe, never blocks."""
        self._buffer[0] = b"\1"

    def clear(self) -> None:
        """Go on."""
        self._buffer[0] = b"\0"

    def attach(self, library: Any, context: Any) -> None:
        """Make a context obey; the flag must outlive the context."""
        callback = ctypes.cast(native_function("strlen"), library.ggml_abort_callback)
        library.llama_set_abort_callback(context, callback, ctypes.cast(self._buffer, ctypes.c_void_p))
