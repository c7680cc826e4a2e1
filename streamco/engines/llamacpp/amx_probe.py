"""The AMX probe, which tests in another process whether llama.cpp's repacked weights (AMX kernels) crash on this CPU.

On a CPU that advertises AMX inside a virtual machine that does not grant it, the first decode of more than one token dies with SIGSEGV
(``ldtilecfg`` in ``ggml_backend_amx_mul_mat``). Loading with ``use_extra_bufts=False`` avoids that, but is slower if AMX works. No flag
distinguishes the two cases, so a trial does: a child process loads the model once and decodes a few tokens. The result is kept in the
user's cache for this machine, this build of llama.cpp and this model file, because the file's quantisation decides whether the kernels are
used.

Where AMX is not granted, weights can still be repacked for the other kernels, which work in tiles of four rows ("tiles"): the weights that
these kernels support are named one by one (``tiled_weights``), so that none goes to AMX. This is tried in a child process, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from streamco.engines.llamacpp.binding import Binding
from streamco.engines.llamacpp.cache_dir import CPUINFO, machine_key
from streamco.engines.llamacpp.gguf import tensor_types
from streamco.engines.llamacpp.library import extra_buffer, load_library
from streamco.engines.llamacpp.trials import Run, outcome
from streamco.errors import EngineError

__all__ = [
    "Repacking",
    "advertises_amx",
    "allows_repacking",
    "allows_tiles",
    "check_decoding",
    "choose_repacking",
    "lacks_tiles",
    "tiled_weights",
]

Repacking = bool | Literal["tiles"]
"""The kernels that weights may be repacked for: all (True), none (False), or all except AMX's ("tiles")."""

TILES = "CPU_REPACK"  # the buffer type of weights for tiles of rows
_Q4_0 = 2
_TILED = frozenset({_Q4_0, 12})  # ggml types: Q4_0 and Q4_K; no x86 kernel repacks Q8_0, Q4_1, Q5 or Q6
CHILD = "streamco.engines.llamacpp.trial_child"


def advertises_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Return True if the CPU has any of AMX's flags; False if it hasn't, or if they can't be read (on anything but x86 Linux)."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return any(flag.startswith("amx") for flag in line.split())
    except OSError:
        return False
    return False


def allows_repacking(path: Path, library: Any, *, cpuinfo: Path = CPUINFO, run: Run | None = None) -> bool:
    """Return True if this model may be loaded with ``use_extra_bufts``.

    Args:
        path: the model's file.
        library: llama.cpp.
        cpuinfo: the file in which the kernel describes the CPU.
        run: runs a command and returns its exit status (negative if a signal killed it; None if it didn't end in time).
    """
    if not advertises_amx(cpuinfo):
        return True
    return outcome(machine_key(path, library, cpuinfo=cpuinfo), [CHILD, str(path)], run) == "works"


def allows_tiles(path: Path, library: Any, *, cpuinfo: Path = CPUINFO, run: Run | None = None) -> bool:
    """Return True if this model has weights that ``tiled_weights`` names, and may be loaded with them repacked.

    Args:
        path, library, cpuinfo, run: see ``allows_repacking``.
    """
    if not tiled_weights(path, library) or extra_buffer(library, TILES) is None:
        return False
    return outcome(machine_key(path, library, "tiles", cpuinfo=cpuinfo), [CHILD, str(path), "tiles"], run) == "works"


def choose_repacking(path: Path, library: Any) -> Repacking:
    """Return how to load this model: with as many weights repacked as possible without crashing on this CPU."""
    if allows_repacking(path, library):
        return True
    return "tiles" if allows_tiles(path, library) else False


def check_decoding(path: Path, library: Any, repack: Repacking) -> None:
    """Check that a library that wasn't compiled on this machine can decode this model. If it can't, it may crash the process.

    Raises:
        EngineError: a child process that tried it died.
    """
    if not isinstance(library, Binding):
        return
    layout = "tiles" if repack == "tiles" else "repacked" if repack else "plain"
    if outcome(machine_key(path, library, "decode", layout), [CHILD, str(path), layout]) == "dies":
        raise EngineError(
            f"model {path}: expected a llama.cpp that decodes it on this processor, got {library.__version__}, of which a process "
            "died that tried; pip install 'streamco[llama]' compiles one, for which it needs a C++ compiler"
        )


def tiled_weights(path: Path, library: Any) -> list[str]:
    """Return the names of a model's weights that kernels for tiles of rows, other than AMX's, support."""
    types = tensor_types(path, library)
    return [name for name, kind in types.items() if kind in _TILED and name.startswith("blk.") and name.endswith(".weight")]


def lacks_tiles(path: Path) -> bool:
    """Return True if kernels for tiles exist in this build, and most of this model's layers aren't in Q4_0, which suits them best."""
    library = load_library()
    types = [kind for name, kind in tensor_types(path, library).items() if name.startswith("blk.") and kind > 1]
    return extra_buffer(library, TILES) is not None and types.count(_Q4_0) < len(types) / 2
