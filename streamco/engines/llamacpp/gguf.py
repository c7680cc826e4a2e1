"""Models derived from a GGUF file, with another quantisation or fewer layers."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamco.engines.llamacpp.cache_dir import cache_folder, replaced_file
from streamco.engines.llamacpp.library import collected_errors, library_address, load_library
from streamco.errors import ConfigError, EngineError

__all__ = ["KINDS", "content_mark", "derived", "quantize", "tensor_types"]

SAMPLE, SAMPLES = 65536, 64  # bytes of a block, and number of blocks, by which the content of a model is identified
KINDS = {  # name: llama_ftype
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "BF16": 32,
}


def quantize(source: str | Path, target: str | Path, kind: str, prune_layers: Iterable[int] = ()) -> Path:
    """Write a copy of a model with another quantisation or fewer layers. Blocks for about a second per 100 million parameters.

    The copy appears under its name when it is complete. A copy of a file that is already quantised is no better than that file.

    Args:
        source: the GGUF file.
        target: the file to write; an existing one is replaced.
        kind: one of ``KINDS``, in upper or lower case.
        prune_layers: layers to leave out, counted from 0; the others are renumbered.

    Returns:
        The target's path.

    Raises:
        ConfigError: an unknown kind, a negative layer, or the target is the source.
        EngineError: llama.cpp could not do it.
    """
    source, target = Path(source), Path(target)
    ftype = KINDS.get(kind.upper())
    if ftype is None:
        raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    layers = sorted(set(prune_layers))
    if layers and layers[0] < 0:
        raise ConfigError(f"prune_layers: expected layers from 0, got {layers[0]}")
    if source.resolve() == target.resolve():
        raise ConfigError(f"target: expected a file other than the source, got {target}")
    with replaced_file(target) as temporary:
        _quantize(source, temporary, ftype, layers)
    return target


def _quantize(source: Path, target: Path, ftype: int, layers: list[int]) -> None:
    if not source.is_file():
        raise EngineError(f"model {source}: expected a GGUF file, got no such file")
    library = load_library()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = ftype
    parameters.allow_requantize = True
    parameters.nthread = 1  # engines use the other cores
    pruned = (ctypes.c_int32 * (len(layers) + 1))(*layers, -1)  # bound to a name because llama.cpp reads it during the call
    if layers:
        parameters.prune_layers = ctypes.cast(pruned, ctypes.POINTER(ctypes.c_int32))
    with collected_errors(library) as errors:
        status = library.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(parameters))
    if status != 0:
        raise EngineError(
            f"model {source}: expected llama.cpp to derive {target.name}, got status {status}: {'; '.join(errors) or 'no reason'}"
        )


def derived(source: str | Path, kind: str, prune_layers: Iterable[int] = ()) -> Path:
    """Return the path of a derived model in the user's cache, which ``quantize`` makes once for each source file's content.

    Raises:
        ConfigError: see ``quantize``.
        EngineError: see ``quantize``, or the cache folder can't be written.
    """
    source = Path(source)
    layers = sorted(set(prune_layers))
    try:
        content = content_mark(source)
        folder = cache_folder("models")
    except OSError as exc:
        raise EngineError(f"model {source}: expected a file and a cache folder, got {exc}") from exc
    mark = hashlib.sha256(f"{content} {layers}".encode()).hexdigest()[:12]
    target = folder / f"{source.stem}.{kind.upper()}.{mark}.gguf"
    return target if target.is_file() else quantize(source, target, kind, layers)


class _Reading(ctypes.Structure):
    """``gguf_init_params``, to read only the header of a file."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def tensor_types(path: Path, library: Any) -> dict[str, int]:
    """Return the ggml type of each tensor in a file by its name, or {} if it can't be read.

    Args:
        path: the GGUF file.
        library: llama.cpp.
    """

    def function(name: str, returned: Any, *taken: Any) -> Any:
        return ctypes.CFUNCTYPE(returned, *taken)(library_address(library, name))

    read = function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Reading)
    with collected_errors(library):
        file = read(os.fsencode(path), _Reading(no_alloc=True, context=None))
    if not file:
        return {}
    try:
        count = function("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)(file)
        name_of = function("gguf_get_tensor_name", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
        type_of = function("gguf_get_tensor_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
        return {name_of(file, index).decode(): type_of(file, index) for index in range(count)}
    finally:
        function("gguf_free", None, ctypes.c_void_p)(file)


def content_mark(path: Path) -> str:
    """Return a digest of a file's size and of blocks spread over it, which identifies large models without reading all of them."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()
