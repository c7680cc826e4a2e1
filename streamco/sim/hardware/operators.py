"""The time of a transformer's forward pass on GPUs, from measurements if there are any, and otherwise from a roofline model.

A pass reads ``new`` tokens of several sequences after the tokens in their caches. Its time is a sum over the layers, split over the GPUs by
tensor parallelism:

* linear operators (projections, MLP, norms, rope): measured by tokens in the batch; see ``bench/data/make_gpu_profiles.py``. Their time is
  constant for few tokens, when reading the weights takes longest, and then linear.
* attention, a roofline: decoding reads the cache at the memory's bandwidth. A prefill of l tokens does 4 l^2 d FLOPs at the rate of the
  linear operators. The half that the mask hides is counted, too, because attention reaches about half of that rate.
* all-reduce, two per layer: a ring moves 2 (n - 1) / n of ``new`` hidden states over a share of the link's bandwidth.
* gaps: the rest of each layer's time, which includes small attention kernels and the latency of the all-reduces.

The host launches each kernel, so a pass takes at least the host's time for all layers, and many steps on large GPUs wait for it. The host's
work for each sequence (scheduling, sampling) is added. An engine that replays CUDA graphs has neither cost.

The embedding is in the measured tables. The head is its matrix, read once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, Protocol

from msgspec import Struct

__all__ = ["MODELS", "Engine", "Gpu", "PassSeconds", "Transformer", "all_reduce_seconds", "forward_pass"]

Engine = Literal["eager", "graphs"]
_BYTES = 2  # bytes of a weight, an activation or a cached value: half precision


class PassSeconds(Protocol):
    """A function that returns how many seconds one forward pass takes."""

    def __call__(self, rows: int, tokens: int, context: int, sequences: int = 1) -> float:
        """Return how many seconds a pass takes. Nothing is checked.

        Args:
            rows: number of sequences that decode a token.
            tokens: other new tokens, of prompts or of drafts to be verified.
            context: tokens in the caches of all sequences.
            sequences: number of sequences among which the other tokens are divided equally.
        """
        ...


class Transformer(Struct, frozen=True, kw_only=True):
    """The sizes of a decoder.

    Args:
        layers: number of layers of attention and MLP.
        width: width of the hidden state, d_model.
        feed_forward: width inside the MLP.
        vocabulary: number of tokens in the vocabulary.
        heads: number of attention heads.
        kv_heads: number of heads of keys and values; fewer than ``heads`` with grouped queries.
        matrices: matrices of an MLP: 3 with a gate (SwiGLU), 2 without.
    """

    layers: int
    width: int
    feed_forward: int
    vocabulary: int
    heads: int
    kv_heads: int
    matrices: int = 3

    @property
    def layer_weights(self) -> int:
        """Parameters in the matrices of a layer."""
        kv_width = self.width * self.kv_heads // self.heads
        return self.width * (2 * self.width + 2 * kv_width + self.matrices * self.feed_forward)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the whole model in half precision, including embedding and head."""
        return _BYTES * (self.layers * self.layer_weights + 2 * self.vocabulary * self.width)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return _BYTES * 2 * self.layers * self.width * self.kv_heads // self.heads


_LLAMA_70B = {"layers": 80, "width": 8192, "feed_forward": 28672, "heads": 64, "kv_heads": 8}
_LLAMA_8B = {"layers": 32, "width": 4096, "feed_forward": 14336, "vocabulary": 128256, "heads": 32, "kv_heads": 8}
_OF_7B = {"layers": 32, "width": 4096, "feed_forward": 11008, "heads": 32, "kv_heads": 32}

MODELS: Mapping[str, Transformer] = {
    "llama2-70b": Transformer(**_LLAMA_70B, vocabulary=32000),
    "llama3-70b": Transformer(**_LLAMA_70B, vocabulary=128256),
    "qwen-72b": Transformer(layers=80, width=8192, feed_forward=24576, vocabulary=152064, heads=64, kv_heads=64),
    "llama2-7b": Transformer(**_OF_7B, vocabulary=32000),
    "qwen-7b": Transformer(**_OF_7B, vocabulary=151936),
    "llama3-8b": Transformer(**_LLAMA_8B),
    "llama3.1-8b": Transformer(**_LLAMA_8B),
    "phi-2": Transformer(layers=32, width=2560, feed_forward=10240, vocabulary=51200, heads=32, kv_heads=32, matrices=2),
}
"""Sizes of models, from their published configurations."""


class Gpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of a GPU and of the machine around it; each packaged file has one.

    Args:
        name: name of the GPU in ``Hardware``.
        title: the manufacturer's name for it.
        source: source of the measurements.
        license: licence of the measurements.
        note: values that were scaled or assumed.
        memory: bytes of one GPU.
        bandwidth: bytes per second of its memory, as published.
        link: bytes per second to the other GPUs, each way, as published.
        gap: seconds that each layer takes in addition to its operators.
        all_reduce: (bytes of a message, share of ``link`` that it gets) points, ascending; the time is linear between them.
        host_decode: seconds the host needs to launch a layer when all rows decode.
        host_prefill: the same for a pass that reads other tokens, too.
        host_row: seconds that the host takes for each sequence of a pass.
        tokens: tokens of a batch at the points of the tables, ascending.
        layer_ms: milliseconds of a layer's linear operators at these points, by model and tensor parallelism.
    """

    name: str
    title: str
    source: str
    license: str
    note: str
    memory: float
    bandwidth: float
    link: float
    gap: float
    all_reduce: tuple[tuple[float, float], ...]
    host_decode: float
    host_prefill: float
    host_row: float
    tokens: tuple[int, ...]
    layer_ms: Mapping[str, Mapping[int, tuple[float, ...]]]


def all_reduce_seconds(gpu: Gpu, message: float, ways: int) -> float:
    """Return how many seconds one all-reduce of ``message`` bytes among ``ways`` GPUs takes, without its latency."""
    if ways == 1:
        return 0.0
    points = [(0.0, 0.0), *((size, size / share) for size, share in gpu.all_reduce)]
    return 2.0 * (ways - 1) / ways / gpu.link * _PiecewiseLinear(points)(message)


def forward_pass(gpu: Gpu, model: Transformer, layer_ms: Sequence[float], ways: int, engine: Engine = "eager") -> PassSeconds:
    """Return a fast function that returns how many seconds a forward pass takes.

    Args:
        gpu: the GPU. The machine has ``ways`` of them.
        model: sizes of the model.
        layer_ms: milliseconds of a layer's linear operators at ``gpu.tokens``.
        ways: tensor parallelism.
        engine: ``eager`` launches each kernel, ``graphs`` replays graphs of them.
    """
    linear = _PiecewiseLinear([(tokens, ms / 1000.0) for tokens, ms in zip(gpu.tokens, layer_ms, strict=True)])
    state = _BYTES * model.width
    head = _BYTES * model.width * model.vocabulary / ways / gpu.bandwidth

    def without_attention(tokens: float) -> float:
        communication = 2.0 * all_reduce_seconds(gpu, state * tokens, ways)
        return model.layers * (linear(tokens) + communication + gpu.gap) + head

    last = gpu.tokens[-1]
    bends = sorted({*gpu.tokens, *(size / state for size, _ in gpu.all_reduce)})
    line = _PiecewiseLinear([(tokens, without_attention(tokens)) for tokens in (*bends, 2.0 * bends[-1])])
    rate = 2.0 * model.layer_weights / ways * last / linear(last)  # FLOP/s of a GPU's linear operators
    per_pair = 4.0 * model.width * model.layers / ways / rate
    per_read = model.cache_bytes / ways / gpu.bandwidth
    is_launched = engine == "eager"
    host_decode = gpu.host_decode * model.layers * is_launched
    host_prefill = gpu.host_prefill * model.layers * is_launched
    host_row = gpu.host_row * is_launched

    def seconds(rows: int, tokens: int, context: int, sequences: int = 1) -> float:
        new = rows + tokens
        if new <= 0:
            return 0.0
        if tokens:
            served = rows + sequences
            cache = context / served  # tokens of each sequence; the caches are assumed to be equally long
            read, computed = sequences * cache * per_read, tokens * (cache + tokens / sequences) * per_pair
            busy, host = line(new) + rows * cache * per_read + (max(computed, read)), host_prefill
        else:
            served, busy, host = rows, line(new) + context * per_read, host_decode
        return (max(host, busy)) + served * host_row

    return seconds


class _PiecewiseLinear:
    """A function that is linear between points, has the first value before them, and the last slope beyond them."""

    __slots__ = ("_offsets", "_slopes", "_starts")

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._starts = [x for x, _ in points[:-1]]
        self._slopes = [(right[1] - left[1]) / (right[0] - left[0]) for left, right in pairwise(points)]
        self._offsets = [left[1] - slope * left[0] for (left, _), slope in zip(pairwise(points), self._slopes, strict=True)]

    def __call__(self, x: float) -> float:
        index = bisect_right(self._starts, x) - 1
        if index < 0:
            return self._offsets[0] + self._slopes[0] * self._starts[0]
        return self._offsets[index] + self._slopes[index] * x
