"""Predicts the time of a forward pass on given GPUs, with the API ``predict(op, shape, hardware)`` of DSD section 3.1 or a faster form.

``streamco.sim.hardware.operators`` explains the theory, and ``bench/data/make_gpu_profiles.py`` makes the packaged tables in
``sim/profiles``. docs/research/hardware.md compares predictions with measured times, and lists the substitutes for models and GPUs without
measurements.
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
"""For each model without measurements, a measured model whose layers have the same sizes (Qwen's also have biases)."""


class Hardware(Struct, frozen=True, kw_only=True):
    """A model on one machine.

    Args:
        model: a key of ``operators.MODELS``.
        gpu: a key of ``gpus()``.
        tensor_parallel: number of GPUs that share each layer.
        engine: ``eager`` launches each kernel from the host, as the measured engine did; ``graphs`` needs no time on the host.
    """

    model: str
    gpu: str
    tensor_parallel: int = 1
    engine: Engine = "eager"


class ForwardPassShape(Struct, frozen=True, kw_only=True):
    """The tokens of a forward pass.

    Args:
        tokens: new tokens of all sequences.
        sequences: number of sequences, among which the new tokens are divided equally.
        context: tokens in the caches of all these sequences.
    """

    tokens: int
    sequences: int = 1
    context: int = 0


def predict(op: Op, shape: ForwardPassShape, hardware: Hardware) -> float:
    """Predict the seconds of one forward pass.

    Args:
        op: ``decode`` for a token of each sequence, or ``prefill`` for any number of tokens, of prompts or of drafts to be verified.
        shape: tokens of the pass.
        hardware: the hardware that it runs on.

    Raises:
        ConfigError: there is no such hardware, or the shape is impossible.
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
    """Return a fast form of ``predict``, for inner loops.

    Returns:
        A function of (decode rows, other new tokens, context tokens, sequences of the other tokens = 1). It returns the seconds of one
        forward pass over all these tokens, or 0.0 without tokens. It checks nothing. The context tokens are the total of all sequences,
        which are assumed to be equally long.

    Raises:
        ConfigError: there is no such hardware.
    """
    gpu, layer_ms = _table(hardware)
    return forward_pass(gpu, MODELS[hardware.model], layer_ms, hardware.tensor_parallel, hardware.engine)


def memory_tokens(hardware: Hardware, *, usable: float = 0.9) -> int:
    """Return the number of tokens whose keys and values fit in the memory alongside the weights.

    Args:
        hardware: the hardware that the model runs on.
        usable: share of the memory for weights and cache (vLLM's default); the rest is for activations.

    Raises:
        ConfigError: there is no such hardware, or the weights don't fit.
    """
    gpu, _ = _table(hardware)
    model = MODELS[hardware.model]
    memory = usable * gpu.memory * hardware.tensor_parallel
    if memory - model.weight_bytes < model.cache_bytes:
        where = f"{hardware.model} on {hardware.tensor_parallel} {hardware.gpu}"
        raise ConfigError(
            f"{where}: expected memory for {model.weight_bytes / 1e9:.0f} GB of weights and a cache, got {memory / 1e9:.0f} GB"
        )
    return int((memory - model.weight_bytes) // model.cache_bytes)


def describe(hardware: Hardware) -> str:
    """Return a description of the measurements behind a prediction, their source, and the substitutes for missing measurements.

    Raises:
        ConfigError: there is no such hardware.
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
