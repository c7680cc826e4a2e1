"""A whole model in PyTorch, from its GGUF file: writes text and gives the states that a draft layer learns from.

The weights are dequantised, matrices multiply in bfloat16 and the residual stream is 32-bit. llama.cpp quantises the inputs of its
products, too, so its states differ a little; a draft layer trained on these is judged in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

__all__ = ["Layer", "ModelSizes", "Rope", "Teacher", "Written", "rms"]

_TIES: Final = 0.25  # of logits in bfloat16: candidates so near the largest are compared in 32 bits
_NARROW: Final = 0.8  # share of a batch that still writes, below which the batch is made smaller
_MATRICES: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class ModelSizes(Struct, frozen=True):
    """Sizes of a model. ``is_neox``: the halves of a head rotate together (qwen2), not neighbours (llama)."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    rope_base: float
    epsilon: float

    @property
    def head_width(self) -> int:
        """Numbers in a head."""
        return self.width // self.heads

    @property
    def is_neox(self) -> bool:
        """True if the two halves of a head rotate together, False if neighbours do."""
        return self.architecture == "qwen2"


class Rope:
    """Rotary position embedding."""

    def __init__(self, sizes: ModelSizes) -> None:
        steps = torch.arange(0, sizes.head_width, 2, dtype=torch.float64) / sizes.head_width
        self._frequencies = 1.0 / sizes.rope_base**steps
        self._is_neox = sizes.is_neox

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions, each of shape (*positions, head_width / 2)."""
        angle = positions.double()[..., None] * self._frequencies
        return angle.cos().float(), angle.sin().float()

    def turn(self, values: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate values of shape (batch, rows, heads, head_width)."""
        cosine, sine = angles[0][..., None, :], angles[1][..., None, :]
        if self._is_neox:
            first, second = values.chunk(2, -1)
            return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)
        first, second = values[..., 0::2], values[..., 1::2]
        return torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1).flatten(-2)


def rms(values: Tensor, epsilon: float) -> Tensor:
    """Return values scaled to a root mean square of 1 in the last dimension."""
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon)


class Layer:
    """One transformer layer.

    Args:
        weights: matrices by their names in a GGUF file, with ``_bias`` added for biases.
        sizes: of the model.
        rope: rotates queries and keys.
    """

    def __init__(self, weights: dict[str, Tensor], sizes: ModelSizes, rope: Rope) -> None:
        self.weights = weights
        self._sizes = sizes
        self._rope = rope

    def project(self, states: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each of shape (batch, rows, heads, head_width)."""
        sizes, (batch, rows, _) = self._sizes, states.shape
        normed = rms(states, sizes.epsilon) * self.weights["attn_norm"]
        query, key, value = (self._multiply(name, normed).view(batch, rows, -1, sizes.head_width) for name in _MATRICES[:3])
        return self._rope.turn(query, angles), self._rope.turn(key, angles), value

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from its input and what attention gave, shape (batch, rows, width)."""
        states = states + self._multiply("attn_output", attended)
        normed = rms(states, self._sizes.epsilon) * self.weights["ffn_norm"]
        inner = functional.silu(self._product("ffn_gate", normed)) * self._product("ffn_up", normed)
        return states + self._multiply("ffn_down", inner)

    def __call__(self, states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return the layer's output for whole sequences from their first token."""
        query, key, value = (each.transpose(1, 2).bfloat16() for each in self.project(states, angles))
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.finish(states, attended.transpose(1, 2).flatten(2))

    def _product(self, name: str, values: Tensor) -> Tensor:
        weight = self.weights[name]
        return functional.linear(values.to(weight.dtype), weight, self.weights.get(f"{name}_bias"))

    def _multiply(self, name: str, values: Tensor) -> Tensor:
        return self._product(name, values).float()


class Written(Struct, frozen=True):
    """A text that the model wrote.

    Args:
        ids: prompt and answer, shape (tokens,).
        prompt: tokens of the prompt.
        deep: states after the final norm, of the prompt's last token and of each later one except the last; shape
            (tokens - prompt, width), 16-bit floats.
    """

    ids: NDArray[np.int32]
    prompt: int
    deep: NDArray[np.float16]


class Teacher:
    """A model that writes.

    Args:
        path: the GGUF file.
        layers: numbers of the layers to load; None: all.
    """

    def __init__(self, path: Path, layers: Sequence[int] | None = None) -> None:
        reader: Any = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.sizes = _read_sizes(reader)
        self.rope = Rope(self.sizes)
        self.embeddings = self._load("token_embd.weight")
        self.output = self._load("output.weight") if "output.weight" in self._tensors else self.embeddings
        self.norm = self._load("output_norm.weight", torch.float32)
        self.layers = [self._layer(number) for number in (range(self.sizes.layers) if layers is None else layers)]

    def _load(self, name: str, kind: torch.dtype = torch.bfloat16) -> Tensor:
        tensor = self._tensors[name]
        return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)).to(kind)

    def _layer(self, number: int) -> Layer:
        weights = {}
        for name in _MATRICES:
            weights[name] = self._load(f"blk.{number}.{name}.weight")
            if f"blk.{number}.{name}.bias" in self._tensors:
                weights[f"{name}_bias"] = self._load(f"blk.{number}.{name}.bias")
        for name in ("attn_norm", "ffn_norm"):
            weights[name] = self._load(f"blk.{number}.{name}.weight", torch.float32)
        return Layer(weights, self.sizes, self.rope)

    @torch.no_grad()
    def shallow(self, ids: Tensor, layers: int) -> Tensor:
        """Return the states after the first layers, shape (batch, tokens, width)."""
        angles = self.rope.angles(torch.arange(ids.shape[1])[None])
        states = self.embeddings[ids].float()
        for layer in self.layers[:layers]:
            states = layer(states, angles)
        return states

    @torch.no_grad()
    def write(self, prompts: Sequence[Sequence[int]], *, most: int, ends: Sequence[int], temperature: float, seed: int) -> list[Written]:
        """Continue prompts, all in one batch.

        Args:
            prompts: token ids of each; similar lengths waste least.
            most: tokens of a continuation.
            ends: ids that end one; such an id is its last.
            temperature: 0: the likeliest token, ties of bfloat16 resolved in 32 bits.
            seed: of the random draws.
        """
        return _Batch(self, prompts, most=most, ends=ends, temperature=temperature, seed=seed).run()


class _Batch:
    """One batch of texts in the making. Prompts are padded at the left; texts that have ended leave the batch from time to time."""

    def __init__(
        self, teacher: Teacher, prompts: Sequence[Sequence[int]], *, most: int, ends: Sequence[int], temperature: float, seed: int
    ) -> None:
        self._teacher, self._temperature = teacher, temperature
        self._random = torch.Generator().manual_seed(seed)
        self._ends = torch.tensor(sorted(ends))
        self._longest = max(map(len, prompts))
        self._lengths = [len(prompt) for prompt in prompts]
        count, total = len(prompts), self._longest + most
        self._pad = torch.tensor([self._longest - length for length in self._lengths])
        self._ids = torch.zeros(count, total, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            self._ids[row, self._longest - len(prompt) : self._longest] = torch.tensor(prompt)
        sizes = teacher.sizes
        positions = (torch.arange(total)[None] - self._pad[:, None]).clamp(min=0)
        self._angles = teacher.rope.angles(positions)
        self._is_real = torch.arange(total)[None] >= self._pad[:, None]
        shape = (count, sizes.kv_heads, total, sizes.head_width)
        self._keys = [torch.zeros(shape, dtype=torch.bfloat16) for _ in teacher.layers]
        self._values = [torch.zeros(shape, dtype=torch.bfloat16) for _ in teacher.layers]
        self._deep = torch.zeros(count, most + 1, sizes.width, dtype=torch.float16)
        self._stop = torch.full((count,), total)  # position after the last token
        self._rows = torch.arange(count)  # those in the batch

    def run(self) -> list[Written]:
        start, end = 0, self._longest
        is_writing = torch.ones(len(self._lengths), dtype=torch.bool)
        while True:
            deep = self._read(start, end)[:, -1]
            self._deep[self._rows, end - self._longest] = deep.half()
            if end == self._ids.shape[1] or not is_writing.any():
                break
            token = self._choose(deep)
            self._ids[self._rows, end] = token
            has_ended = torch.isin(token, self._ends) & is_writing[self._rows]
            self._stop[self._rows[has_ended]] = end + 1
            is_writing[self._rows[has_ended]] = False
            self._narrow(is_writing)
            start, end = end, end + 1
        return [self._written(row) for row in range(len(self._lengths))]

    def _read(self, start: int, end: int) -> Tensor:
        """Read the tokens of these positions; return their states after the final norm, shape (rows, positions, width)."""
        teacher, rows = self._teacher, self._rows
        at, known = torch.arange(start, end), torch.arange(end)
        mask = self._is_real[rows, None, None, :end] & (known[None, :] <= at[:, None])[None, None]
        mask = mask | (known[None, :] == at[:, None])[None, None]  # padding sees itself, or its softmax would have no number
        angles = (self._angles[0][rows, start:end], self._angles[1][rows, start:end])
        states = teacher.embeddings[self._ids[rows, start:end]].float()
        for layer, keys, values in zip(teacher.layers, self._keys, self._values, strict=True):
            query, key, value = layer.project(states, angles)
            keys[:, :, start:end] = key.transpose(1, 2).bfloat16()
            values[:, :, start:end] = value.transpose(1, 2).bfloat16()
            states = layer.finish(states, _attend(query.bfloat16(), keys[:, :, :end], values[:, :, :end], mask))
        return rms(states, teacher.sizes.epsilon) * teacher.norm

    def _choose(self, deep: Tensor) -> Tensor:
        logits = functional.linear(deep.bfloat16(), self._teacher.output)
        if self._temperature:
            shares = (logits.float() / self._temperature).softmax(-1)
            return torch.multinomial(shares, 1, generator=self._random)[:, 0]
        rows, ids = (logits >= logits.amax(-1, keepdim=True) - _TIES).nonzero(as_tuple=True)
        order = (deep[rows] * self._teacher.output[ids].float()).sum(-1).argsort()
        token = torch.zeros(len(deep), dtype=torch.long)
        token[rows[order]] = ids[order]  # the largest comes last and stays
        return token

    def _narrow(self, is_writing: Tensor) -> None:
        keep = is_writing[self._rows]
        if 0 < int(keep.sum()) < _NARROW * len(keep):
            self._rows = self._rows[keep]
            self._keys = [each[keep] for each in self._keys]
            self._values = [each[keep] for each in self._values]

    def _written(self, row: int) -> Written:
        first, stop = int(self._pad[row]), int(self._stop[row])
        prompt = self._lengths[row]
        ids = self._ids[row, first:stop].numpy().astype(np.int32)
        return Written(ids, prompt, self._deep[row, : len(ids) - prompt].numpy().copy())


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention; for one new row the query heads of a group are taken as rows, which is 8 times as fast here as repeating the keys."""
    batch, rows, heads, width = query.shape
    if rows == 1:
        grouped = query.view(batch, keys.shape[1], -1, width)
        return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).reshape(batch, 1, -1)
    groups = heads // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    attended = functional.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


def _read_sizes(reader: Any) -> ModelSizes:
    architecture = reader.fields["general.architecture"].contents()

    def value(name: str) -> Any:
        return reader.fields[f"{architecture}.{name}"].contents()

    return ModelSizes(
        architecture=architecture,
        layers=value("block_count"),
        width=value("embedding_length"),
        heads=value("attention.head_count"),
        kv_heads=value("attention.head_count_kv"),
        rope_base=value("rope.freq_base"),
        epsilon=value("attention.layer_norm_rms_epsilon"),
    )
