"""Loads llama.cpp with the first model, silences its logging and shortens its threads' spinning.

The library is the one that ``STREAMCO_LLAMA_LIBRARY`` names, or else llama-cpp-python's, which is compiled for this machine, or else a
prebuilt one (``prebuilt``).

llama.cpp logs through one process-wide callback. llama-cpp-python sets one in Python, which prints on stderr and takes the GIL from the
engine's thread. Here it is replaced by a C function that does nothing, except while a model is loaded. Then the errors are collected,
because nothing else says what is wrong with a file.

The threads of llama.cpp meet after each node of the graph, and the first to arrive spins. With OpenMP, which its Linux wheels use, it spins
for longer than the scheduler lets it run. If other programs use the cores, a decode may then take a hundred times as long, because each
thread waits for one that waits for a core. Spinning for a shorter time before sleeping costs nothing while the cores are free
(``bench.timed.busy``).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamco.engines.llamacpp.binding import Binding
from streamco.engines.llamacpp.prebuilt import find_prebuilt, open_named, open_prebuilt
from streamco.errors import EngineError

__all__ = ["collected_errors", "extra_buffer", "library_address", "load_library", "native_function"]

VARIABLE = "STREAMCO_LLAMA_LIBRARY"
_lock = threading.Lock()
_library: Any = None
_SPINS = {"GOMP_SPINCOUNT": "3000"}  # spins of libgomp, some 20 to 70 ns each; libgomp reads this when it is loaded
_CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # if the user has set one of these, it isn't changed
_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR; GGML_LOG_LEVEL_CONT (5) continues the line before


def native_function(name: str) -> Any:
    """Return a function of the C library, to be used as a callback without Python."""
    return getattr(ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None), name)


def library_address(library: Any, name: str) -> int:
    """Return the address of a function of llama.cpp or of its ggml.

    Raises:
        EngineError: this build doesn't export it.
    """
    try:
        function = getattr(_handle(library), name)  # includes the libraries that it depends on
    except AttributeError:
        try:
            function = getattr(ctypes.CDLL("ggml-base.dll" if sys.platform == "win32" else "libggml-base.so"), name)
        except (OSError, AttributeError) as exc:
            raise EngineError(f"llama.cpp: expected a library that exports {name}, got {exc}") from exc
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _handle(library: Any) -> ctypes.CDLL:
    handle: ctypes.CDLL = library.handle if isinstance(library, Binding) else library.llama_cpp._lib
    return handle


def extra_buffer(library: Any, name: str) -> int | None:
    """Return the address of the CPU's buffer type of this name, such as "CPU_REPACK", or None if this build has none.

    A weight in such a buffer is stored in another order when it is loaded, and multiplied by the kernels for that order.
    """
    pointer = ctypes.c_void_p
    try:
        device_of_type = ctypes.CFUNCTYPE(pointer, ctypes.c_int)(library_address(library, "ggml_backend_dev_by_type"))
        registry_of = ctypes.CFUNCTYPE(pointer, pointer)(library_address(library, "ggml_backend_dev_backend_reg"))
        find = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p)(library_address(library, "ggml_backend_reg_get_proc_address"))
        name_of = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(library_address(library, "ggml_backend_buft_name"))
    except EngineError:
        return None
    device = device_of_type(_CPU)
    address = find(registry_of(device), b"ggml_backend_dev_get_extra_bufts") if device else None
    if not address:
        return None
    types = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
    number = 0
    while types and (found := types[number]):
        if name_of(found) == name.encode():
            return int(found)
        number += 1
    return None


def load_library() -> Any:
    """Return the module ``llama_cpp`` or a ``Binding``, with llama.cpp's backend initialised and its logging silenced.

    Raises:
        EngineError: there is no library, or it must not be trusted; see ``open_prebuilt`` and ``open_named``.
    """
    global _library  # noqa: PLW0603  # one llama.cpp a process
    with _lock:
        if _library is None:
            with _short_spins():
                found = _open(os.environ.get(VARIABLE, ""))
            _silence(found)
            found.llama_backend_init()
            _library = found
    return _library


def _open(wanted: str) -> Any:
    """Return the library that the variable names: "" (any), "compiled", "prebuilt" or a path."""
    if wanted == "prebuilt":
        return open_prebuilt()
    if wanted not in {"", "compiled"}:
        return open_named(Path(wanted).expanduser())
    try:
        import llama_cpp
    except ImportError as exc:
        if not wanted and find_prebuilt() is not None:
            return open_prebuilt()
        raise EngineError(
            f"device model: expected llama.cpp, got {exc}; pip install 'streamco[prebuilt]' brings a compiled one, pip install "
            "'streamco[llama]' compiles one for this processor, which takes minutes and a C++ compiler; the URL of a server that runs on "
            "this machine can be the device without either"
        ) from exc
    except (OSError, RuntimeError) as exc:
        raise EngineError(f"device model: expected a llama-cpp-python that loads, got {exc}") from exc
    return llama_cpp


@contextmanager
def _short_spins() -> Iterator[None]:
    """Set the environment variables for shorter spinning, only while libraries are loaded inside the block."""
    added = {} if any(name in os.environ for name in _CHOSEN) else _SPINS
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _silence(library: Any) -> None:
    # abs(level) has no effect, and C's calling conventions ignore the two extra arguments
    library.llama_log_set(ctypes.cast(native_function("abs"), library.llama_log_callback), None)


_collecting = threading.Lock()


@contextmanager
def collected_errors(library: Any) -> Iterator[list[str]]:
    """Collect the errors that llama.cpp logs inside the block, line by line; one block at a time in a process."""
    lines: list[str] = []
    last = 0

    def collect(level: int, text: bytes | None, _data: object) -> None:
        nonlocal last
        last = last if level == 5 else level
        if last == _ERROR_LEVEL and text and len(lines) < 20:
            lines.append(text.decode("utf-8", "replace").strip())

    with _collecting:
        callback = library.llama_log_callback(collect)
        library.llama_log_set(callback, None)
        try:
            yield lines
        finally:
            _silence(library)
