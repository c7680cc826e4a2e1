"""A decoder in Llama's form, of PyTorch alone: what ``bench.timed.gpu_rows`` times.

Its weights and caches are random. A pass takes as long with them as with a trained model's, because no kernel's work depends on values
(zeros would save power, so there are none). The matrices are joined as engines join them: one for queries, keys and values, one for the
gate and what it gates. On a GPU the small operations between two matrices are compiled to one kernel each.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bench.timed.gpu_rows import DecoderShape, Point

torch: Any = import_module("torch")  # of no group of the project, and mypy doesn't need it
bias: Any = import_module("torch.nn.attention.bias")
functional: Any = import_module("torch.nn.functional")

__all__ = ["Decoder", "Pass", "check", "launched", "speeds", "times"]

EPSILON = 1e-5
WARM_UP = 3  # replays before the timed ones; the host is ahead of the GPU then
REPLAYS = 12  # timed ones of a turn
MOST_APART = {"float32": 1e-4, "bfloat16": 3e-2}  # of one pass and several, as a share of the logits' norm


class Layer(NamedTuple):
    """Matrices of a layer, and its norms' weights."""

    norm: Any
    qkv: Any
    qkv_bias: Any
    out: Any
    next_norm: Any
    gate_up: Any
    down: Any


class Decoder:
    """Random weights, and room for a cache.

    Args:
        shape: sizes of the model.
        device: "cuda" or "cpu".
        dtype: torch's type of weights, activations and caches.
        cached_tokens: tokens that the caches of all sequences have room for together.
    """

    def __init__(self, shape: DecoderShape, *, device: str, dtype: Any, cached_tokens: int) -> None:
        self.shape = shape
        random = torch.Generator(device=device).manual_seed(1)
        new = functools.partial(torch.randn, device=device, dtype=dtype, generator=random)

        def matrix(rows: int, columns: int) -> Any:
            return new(rows, columns).mul_(columns**-0.5)

        width, head = shape.width, shape.width // shape.heads
        qkv = (shape.heads + 2 * shape.kv_heads) * head
        self.embedding = new(shape.vocabulary, width)
        self.head = self.embedding if shape.is_tied else matrix(shape.vocabulary, width)
        self.layers = [
            Layer(
                1.0 + 0.1 * new(width),
                matrix(qkv, width),
                new(qkv) if shape.has_bias else None,
                matrix(width, width),
                1.0 + 0.1 * new(width),
                matrix(2 * shape.feed_forward, width),
                matrix(width, shape.feed_forward),
            )
            for _ in range(shape.layers)
        ]
        self.norm = 1.0 + 0.1 * new(width)
        self.caches = [(new(cached_tokens, shape.kv_heads, head), new(cached_tokens, shape.kv_heads, head)) for _ in range(shape.layers)]
        self.add_norm, self.rotate, self.gated = add_norm, rotate, gated

    @property
    def weight_bytes(self) -> int:
        """Bytes that a pass reads of the weights: everything except the embedding, of which it reads a few rows, unless it is the head."""
        tensors = [self.head, *(each for layer in self.layers for each in layer if each is not None)]
        return int(sum(each.numel() * each.element_size() for each in tensors))

    def compile(self) -> None:
        """Compile the operations between two matrices into a kernel each."""
        torch.compiler.reset()  # what was compiled for another model's sizes
        self.add_norm, self.rotate, self.gated = (torch.compile(each, fullgraph=True) for each in (add_norm, rotate, gated))


class Pass:
    """Forward pass over new tokens, after the caches of their sequences.

    Args:
        decoder: the model; new keys and values are written into its caches.
        tokens: ids, by sequence and row.
        context: tokens in each sequence's cache.
        is_prompt: only the last row of each sequence goes through the head, as when a prompt is read; otherwise all rows, as a verifier
            needs them.
    """

    def __init__(self, decoder: Decoder, tokens: Any, context: int, *, is_prompt: bool = False) -> None:
        self.decoder, self.tokens, self.is_prompt = decoder, tokens, is_prompt
        sequences, rows = tokens.shape
        self.end = context + rows
        self.room = -(-self.end // 16) * 16  # places of a sequence
        device, head = tokens.device, decoder.shape.width // decoder.shape.heads
        positions = torch.arange(context, self.end, device=device)
        self.slots = (positions + self.room * torch.arange(sequences, device=device)[:, None]).flatten()
        angles = positions[:, None] * 10_000.0 ** -(torch.arange(0, head, 2, device=device) / head)
        angles = angles.repeat(sequences, 1)[:, None]
        self.angles = angles.cos(), angles.sin()
        self.attention: dict[str, Any] = {"enable_gqa": decoder.shape.heads != decoder.shape.kv_heads}
        if rows > 1 and context:
            self.attention["attn_mask"] = bias.causal_lower_right(rows, self.end)  # row i sees the cache, and rows up to i
        elif rows > 1:
            self.attention["is_causal"] = True

    def __call__(self) -> Any:
        """Return the logits, by sequence and row."""
        decoder, layers = self.decoder, self.decoder.layers
        hidden = functional.embedding(self.tokens.flatten(), decoder.embedding)
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layers[0].norm, EPSILON)
        for number, layer in enumerate(layers):
            update = functional.linear(self._attend(number, normed), layer.out)
            hidden, normed = decoder.add_norm(hidden, update, layer.next_norm)
            update = functional.linear(decoder.gated(functional.linear(normed, layer.gate_up)), layer.down)
            hidden, normed = decoder.add_norm(hidden, update, layers[number + 1].norm if number + 1 < len(layers) else decoder.norm)
        normed = normed.view(*self.tokens.shape, -1)
        return functional.linear(normed[:, -1:] if self.is_prompt else normed, decoder.head)

    def _attend(self, number: int, normed: Any) -> Any:
        """Return the heads' sums of values, a row for each token."""
        shape, layer, caches = self.decoder.shape, self.decoder.layers[number], self.decoder.caches[number]
        sequences, rows = self.tokens.shape
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), shape.heads + 2 * shape.kv_heads, -1)
        queries = self.decoder.rotate(qkv, self.angles, caches, self.slots)
        keys, values = (
            cache[: sequences * self.room].view(sequences, self.room, shape.kv_heads, -1)[:, : self.end].transpose(1, 2) for cache in caches
        )
        queries = queries.view(sequences, rows, shape.heads, -1).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(queries, keys, values, **self.attention)
        return attended.transpose(1, 2).reshape(len(normed), -1)


def add_norm(hidden: Any, update: Any, weight: Any) -> tuple[Any, Any]:
    """Return the sum, and its norm."""
    hidden = hidden + update
    return hidden, functional.rms_norm(hidden, hidden.shape[-1:], weight, EPSILON)


def rotate(qkv: Any, angles: tuple[Any, Any], cache: tuple[Any, Any], slots: Any) -> Any:
    """Turn queries and keys by their angles (cosine, sine), write keys and values into the cache, and return the queries."""
    (cosine, sine), (keys, values) = angles, cache
    kv_heads = keys.shape[1]
    heads = qkv.shape[1] - 2 * kv_heads
    first, second = qkv[:, : heads + kv_heads].float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(qkv.dtype)
    keys.index_copy_(0, slots, turned[:, heads:])
    values.index_copy_(0, slots, qkv[:, heads + kv_heads :])
    return turned[:, :heads].contiguous()


def gated(both: Any) -> Any:
    """Return the second half times SiLU of the first."""
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def check(decoder: Decoder, *, rows: int = 5, context: int = 19) -> float:
    """Return how far the logits of one pass over some rows are from those of passes over one row each, as a share of their norm.

    Raises:
        AssertionError: they are further apart than rounding explains.
    """
    device = decoder.embedding.device
    tokens = torch.randint(decoder.shape.vocabulary, (2, context + rows), device=device)
    read = Pass(decoder, tokens[:, :context], 0)()  # and write the caches that the others need
    assert Pass(decoder, tokens, 0).room == Pass(decoder, tokens[:, :context], 0).room, "expected the same places for all passes"
    single = torch.cat([Pass(decoder, tokens[:, each : each + 1], each)() for each in range(context, context + rows)], 1)
    together = Pass(decoder, tokens[:, context:], context)()
    whole = Pass(decoder, tokens, 0)()
    apart = max(_distance(together, single), _distance(whole[:, context:], single), _distance(whole[:, :context], read))
    most = MOST_APART[str(single.dtype).removeprefix("torch.")]
    assert apart < most, f"expected one pass over {rows} rows to give the logits of {rows} passes, got {apart:.2g} apart"
    return apart


def _distance(ours: Any, reference: Any) -> float:
    return float((ours.double() - reference.double()).norm() / reference.double().norm())


def times(decoder: Decoder, points: Sequence[Point], turns: int) -> dict[Point, list[float]]:
    """Return the milliseconds of each point's pass, replayed from a CUDA graph; the points take turns."""
    pool = torch.cuda.graph_pool_handle()
    passes = {point: _pass_of(decoder, point) for point in points}  # a graph reads their tensors
    graphs = {point: _captured(one, pool) for point, one in passes.items()}
    found: dict[Point, list[float]] = {point: [] for point in points}
    for _ in range(turns):
        for point, graph in graphs.items():
            found[point] += _replayed(graph.replay)
    return found


def launched(decoder: Decoder, points: Sequence[Point], rounds: int) -> dict[Point, list[float]]:
    """Return the milliseconds of each point's pass if PyTorch launches each kernel, from the first launch to the last result."""
    found: dict[Point, list[float]] = {}
    for point in points:
        one = _pass_of(decoder, point)
        samples = []
        for _ in range(WARM_UP + rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            one()
            torch.cuda.synchronize()
            samples.append(1e3 * (time.perf_counter() - start))
        found[point] = samples[WARM_UP:]
    return found


def _pass_of(decoder: Decoder, point: Point) -> Pass:
    tokens = torch.randint(decoder.shape.vocabulary, (point.sequences, point.rows), device="cuda")
    return Pass(decoder, tokens, point.context, is_prompt=point.is_prompt)


def _captured(one: Pass, pool: Any) -> Any:
    """Return a CUDA graph of the pass, after some passes that compile and choose kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            logits = one()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        replayed = one()
    graph.replay()
    assert _distance(replayed, logits) < MOST_APART["bfloat16"], "expected the graph's logits to be the pass's"
    return graph


def _replayed(call: Callable[[], object]) -> list[float]:
    """Return the milliseconds between events around each call, without those of the warm-up."""
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(WARM_UP + REPLAYS)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks][WARM_UP:]


def speeds() -> dict[str, float]:
    """Return what the card does at most: terabytes a second, read and written, and 10^12 operations a second in bfloat16."""
    source = torch.randn(2**31, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copied = statistics.median(_replayed(lambda: target.copy_(source)))
    size = 8192
    left, right = source[: size * size].view(size, size), source[size * size : 2 * size * size].view(size, size)
    product = target[: size * size].view(size, size)
    multiplied = statistics.median(_replayed(lambda: torch.mm(left, right, out=product)))
    return {"copy [TB/s]": 2 * source.numel() * 2 / copied / 1e9, "product [TFLOP/s]": 2 * size**3 / multiplied / 1e9}
