"""How long a large model takes on given GPUs: the one API ``predict(op, shape, hardware)`` of DSD section 3.1, and a fast form of it.

``streamco.sim.hardware.operators`` has the theory; the packaged tables in ``sim/profiles`` are made by ``tools/make_gpu_profiles.py``. How
far predictions are from measured times is in docs/hardware.md, with what stands in for models and GPUs that nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal, assert_never

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.hardware.operators import MODELS, Engine, Gpu, PassSeconds, forward_pass

__all__ = ["Hardware", "Op", "ForwardPassShape", "describe", "gpus", "memory_tokens", "predict", "predictor"]

Op = Literal["prefill", "decode"]

_SAME_LAYERS = {"llama3-70b": "llama2-70b", "llama3.1-8b": "llama3-8b", "qwen-7b": "llama2-7b"}
"""Models that nobody timed, and those whose layers have the same sizes (Qwen's have biases besides)."""


class Hardware(Struct, frozen=True, kw_only=True):
    """A model on one machine.

    Args:
        model: as in ``operators.MODELS``.
        gpu: as in ``gpus()``.
        tensor_parallel: GPUs that share each layer.
        engine: ``eager`` launches each kernel from the host, as the engine did that was measured; ``graphs`` costs the host nothing.
    """

    model: str
    gpu: str
    tensor_parallel: int = 1
    engine: Engine = "eager"


class ForwardPassShape(Struct, frozen=True, kw_only=True):
    """What a pass reads.

    Args:
        tokens: new ones, of all sequences.
        sequences: that they belong to, in equal parts.
        context: tokens in the caches of these sequences, in all.
    """

    tokens: int
    sequences: int = 1
    context: int = 0


def predict(op: Op, shape: ForwardPassShape, hardware: Hardware) -> float:
    """Seconds of one forward pass.

    Args:
        op: ``decode``: a token of each sequence; ``prefill``: any number, whether of a prompt or of a draft to be verified.
        shape: what it reads.
        hardware: what it runs on.

    Raises:
        ConfigError: no such hardware, or no such shape.
    """
    is_possible = 1 <= shape.sequences <= shape.tokens and shape.context >= 0
    match op:
        case "decode":
            if not is_possible or shape.tokens != shape.sequences:
                raise ConfigError(f"decode: expected as many tokens as sequences, at least one, and a context >= 0, got {shape}")
            return predictor(hardware)(shape.tokens, 0, shape.context)
        case "prefill":
            if not is_possible:
                raise ConfigError(f"prefill: expected at least a token of each sequence, at least one, and a context >= 0, got {shape}")
            return predictor(hardware)(0, shape.tokens, shape.context, shape.sequences)
        case _:
            assert_never(op)


@cache
def predictor(hardware: Hardware) -> PassSeconds:
    """Return the same for the inner loop: a function of (decode rows, other new tokens, context tokens, sequences of the other tokens = 1).

    Returns:
        Seconds of one forward pass over all of it, 0.0 for nothing; nothing is checked. The context is that of all sequences, decoding or
        not, and is taken to be shared equally.

    Raises:
        ConfigError: no such hardware.
    """
    gpu, layer_ms = _table(hardware)
    return forward_pass(gpu, MODELS[hardware.model], layer_ms, hardware.tensor_parallel, hardware.engine)


def memory_tokens(hardware: Hardware, *, usable: float = 0.9) -> int:
    """Tokens whose keys and values fit beside the weights.

    Args:
        hardware: what the model runs on.
        usable: share of the memory that weights and cache may take; the rest is for activations (vLLM's default).

    Raises:
        ConfigError: no such hardware, or not even the weights fit.
    """
    gpu, _ = _table(hardware)
    model = MODELS[hardware.model]
    memory = usable * gpu.memory * hardware.tensor_parallel
    if memory - model.weight_bytes < model.cache_bytes:
        where = f"{hardware.model} on {hardware.tensor_parallel} {hardware.gpu}"
        raise ConfigError(f"{where}: expected room for {model.weight_bytes / 1e9:.0f} GB of weights and a cache, got {memory / 1e9:.0f} GB")
    return int((memory - model.weight_bytes) // model.cache_bytes)


def describe(hardware: Hardware) -> str:
    """Return what of the prediction was measured, where, and what stands in for what wasn't.

    Raises:
        ConfigError: no such hardware.
    """
    gpu, _ = _table(hardware)
    twin = _SAME_LAYERS.get(hardware.model)
    substitute = f"; {hardware.model}: the layers of {twin}" if twin else ""
    return f"{gpu.title}; {gpu.note}{substitute}; {gpu.source}, {gpu.license}"


def gpus() -> Mapping[str, Gpu]:
    """Return the packaged GPUs by name."""
    return _gpus()


@cache
def _gpus() -> Mapping[str, Gpu]:
    folder = resources.files("streamco.sim") / "profiles"
    found = [msgspec.json.decode(entry.read_bytes(), type=Gpu) for entry in folder.iterdir() if entry.name.endswith(".json")]
    return {gpu.name: gpu for gpu in sorted(found, key=lambda gpu: gpu.name)}


def _table(hardware: Hardware) -> tuple[Gpu, tuple[float, ...]]:
    gpu = _gpus().get(hardware.gpu)
    if gpu is None:
        raise ConfigError(f"hardware: expected a gpu of {', '.join(_gpus())}, got {hardware.gpu!r}")
    tables = gpu.layer_ms.get(_SAME_LAYERS.get(hardware.model, hardware.model))
    if tables is None:
        names = [name for name in MODELS if _SAME_LAYERS.get(name, name) in gpu.layer_ms]
        raise ConfigError(f"hardware: expected a model of {', '.join(names)} on {gpu.name}, got {hardware.model!r}")
    if hardware.tensor_parallel not in tables:
        ways = ", ".join(map(str, tables))
        raise ConfigError(f"{hardware.model} on {gpu.name}: expected tensor_parallel of {ways}, got {hardware.tensor_parallel!r}")
    return gpu, tables[hardware.tensor_parallel]
