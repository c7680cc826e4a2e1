"""The networks that draft for a split model, in PyTorch (HAT, section 3.4), and how they begin.

``paper``: the paper's adapter (equation 4). One attention layer without a feed-forward part reads the device's shallow state of each token.

``deep``: one whole layer reads the server's deep state of the token before and the shallow state of this one, joined by a matrix. The
device has every verified token's deep state anyway. The matrix begins as the ridge regression of the deep state on its inputs, and the
layer as the identity. That start is worth more than the first 100,000 training steps.

While a draft grows, the deep states of its own tokens aren't known. The network takes its own outputs in their place, and training unrolls
that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bench.data.draft_teacher import Teacher, Written, rms

__all__ = ["Batch", "DraftNetwork", "Kind", "batch_of"]

Kind = Literal["deep", "paper"]

_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_RIDGE = 300.0
_FIRST_LENGTHS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2)  # of the output: regression alone is too sure of itself


class Batch(Struct, frozen=True):
    """Texts of one training step.

    Args:
        ids: shape (texts, tokens).
        shallow: states after the device's layers, shape (texts, tokens, width).
        deep: states after the final norm; zeros before the prompt's last token, whose deep states aren't sent. Shape as ``shallow``.
        is_drafted: positions whose next token a draft may hold, shape (texts, tokens).
    """

    ids: Tensor
    shallow: Tensor
    deep: Tensor
    is_drafted: Tensor


def batch_of(teacher: Teacher, texts: Sequence[Written], *, input_layers: int, known: dict[bytes, Tensor] | None = None) -> Batch:
    """Return texts as one batch, padded at the right.

    Args:
        teacher: gives the shallow states.
        texts: the texts.
        input_layers: layers on the device.
        known: shallow states that were computed before, in bfloat16, by the bytes of their ids. New ones are added. None: there are none.
    """
    longest = max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    deep = torch.zeros(len(texts), longest, teacher.sizes.width)
    is_drafted = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        length = len(text.ids)
        ids[row, :length] = torch.from_numpy(text.ids.astype(np.int64))
        deep[row, text.prompt - 1 : length - 1] = torch.from_numpy(text.deep.astype(np.float32))
        is_drafted[row, text.prompt : length - 1] = True
    return Batch(ids, _shallow(teacher, texts, ids, input_layers, {} if known is None else known), deep, is_drafted)


def _shallow(teacher: Teacher, texts: Sequence[Written], ids: Tensor, layers: int, known: dict[bytes, Tensor]) -> Tensor:
    names = [text.ids.tobytes() for text in texts]
    if any(name not in known for name in names):
        states = teacher.shallow(ids, layers)
        known.update({name: row[: len(text.ids)].bfloat16() for name, row, text in zip(names, states, texts, strict=True)})
        return states
    states = torch.zeros(*ids.shape, teacher.sizes.width)
    for row, name in enumerate(names):
        states[row, : len(known[name])] = known[name]
    return states


class DraftNetwork(nn.Module):
    """A network that predicts deep states.

    Args:
        teacher: gives sizes and, as a start, its last layer.
        kind: see the module.
        inner: width of the feed-forward part, a multiple of 32; None: the teacher's. Its last layer's first rows are the start.
    """

    def __init__(self, teacher: Teacher, kind: Kind, inner: int | None = None) -> None:
        super().__init__()
        self.kind = kind
        self._sizes, self._rope = teacher.sizes, teacher.rope
        last = teacher.layers[-1].weights
        taken = [name for name in last if kind == "deep" or not name.startswith("ffn")]
        self.weights = nn.ParameterDict({name: nn.Parameter(_narrow(name, last[name].float(), inner)) for name in taken})
        self.weights["norm"] = nn.Parameter(teacher.norm.clone())
        if kind == "deep":
            self.weights["fuse"] = nn.Parameter(torch.zeros(teacher.sizes.width, 2 * teacher.sizes.width))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights by name."""
        return {name: value.detach().numpy() for name, value in self.weights.items()}

    def set_arrays(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Take weights by name."""
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(torch.from_numpy(arrays[name]))

    def forward(self, batch: Batch, depth: int) -> list[Tensor]:
        """Return the predicted deep states of drafts of 1 to ``depth`` tokens, each of the shape of ``batch.deep``.

        The state at a position and depth belongs to a draft that has begun ``depth - 1`` positions before.
        """
        angles = self._rope.angles(torch.arange(batch.ids.shape[1])[None])
        shallow = rms(batch.shallow, self._sizes.epsilon)
        if self.kind == "paper":
            return [self._layer(batch.shallow, [], angles)]
        found: list[Tensor] = []
        cached: list[tuple[Tensor, Tensor]] = []
        before = batch.deep
        for _ in range(depth):
            given = torch.cat([rms(_shift(before, 1), self._sizes.epsilon), shallow], -1)
            before = self._layer(self._multiply("fuse", given), cached, angles)
            found.append(before)
        return found

    def _multiply(self, name: str, values: Tensor) -> Tensor:
        bias = self.weights[f"{name}_bias"].bfloat16() if f"{name}_bias" in self.weights else None
        return functional.linear(values.bfloat16(), self.weights[name].bfloat16(), bias).float()

    def _layer(self, states: Tensor, cached: list[tuple[Tensor, Tensor]], angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return the output after the norm; adds this depth's keys and values to ``cached``."""
        sizes, (batch, rows, _) = self._sizes, states.shape
        normed = rms(states, sizes.epsilon) * self.weights["attn_norm"]
        query, key, value = (self._multiply(name, normed).view(batch, rows, -1, sizes.head_width) for name in _MATRICES[:3])
        cached.append((self._rope.turn(key, angles).bfloat16(), value.bfloat16()))
        states = states + self._multiply("attn_output", _attend(self._rope.turn(query, angles).bfloat16(), cached))
        if "ffn_up" in self.weights:
            normed = rms(states, sizes.epsilon) * self.weights["ffn_norm"]
            inner = functional.silu(self._multiply("ffn_gate", normed)) * self._multiply("ffn_up", normed)
            states = states + self._multiply("ffn_down", inner)
        return rms(states, sizes.epsilon) * self.weights["norm"]

    # The start

    @torch.no_grad()
    def begin(self, teacher: Teacher, batches: Iterable[Batch], head: Tensor) -> None:
        """Set the matrix to the regression's, and the layer to the identity.

        Args:
            teacher: gives the norm that the deep states have passed.
            batches: texts to regress on; the first one sets the output's length.
            head: rows of the output matrix, shape (drafted vocabulary, width).
        """
        width = self._sizes.width
        squares = torch.zeros(2 * width, 2 * width, dtype=torch.float64)
        products = torch.zeros(2 * width, width, dtype=torch.float64)
        first: Batch | None = None
        for batch in batches:
            first = first or batch
            before, shallow = rms(_shift(batch.deep, 1), self._sizes.epsilon), rms(batch.shallow, self._sizes.epsilon)
            given = torch.cat([before, shallow], -1)[batch.is_drafted]
            squares += (given.T @ given).double()
            products += (given.T @ (batch.deep / teacher.norm)[batch.is_drafted]).double()
        solution = torch.linalg.solve(squares + _RIDGE * torch.eye(2 * width, dtype=torch.float64), products)
        self.weights["fuse"].copy_(solution.T.float())
        for name in ("attn_output", "ffn_down"):
            self.weights[name].zero_()
        if first is not None:
            self._scale(first, head)

    def _scale(self, batch: Batch, head: Tensor) -> None:
        made, deep = self(batch, 1)[0][batch.is_drafted], batch.deep[batch.is_drafted]
        wanted = functional.linear(deep.bfloat16(), head).float().softmax(-1)
        logits = functional.linear(made.bfloat16(), head).float()
        losses = {length: float(-(wanted * (logits * length).log_softmax(-1)).sum(-1).mean()) for length in _FIRST_LENGTHS}
        self.weights["norm"].mul_(min(losses, key=losses.__getitem__))


def _narrow(name: str, value: Tensor, inner: int | None) -> Tensor:
    """Return a copy of a weight for a feed-forward part of another width."""
    if name in {"ffn_gate", "ffn_up"}:
        value = value[:inner]
    elif name == "ffn_down":
        value = value[:, :inner]
    return value.clone()


def _shift(values: Tensor, by: int) -> Tensor:
    """Move values to later positions (the second dimension)."""
    if not by:
        return values
    padding = [0, 0] * (values.dim() - 2) + [by, 0]
    return functional.pad(values, padding)[:, : values.shape[1]]


def _attend(query: Tensor, cached: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return what attention gives at the last depth, shape (batch, rows, width).

    At depth d a position sees the keys of depth 1 up to d - 1 positions before, then one key of each later depth, the last its own.
    """
    batch, rows, heads, width = query.shape
    keys, values = cached[0]
    groups, depth = heads // keys.shape[2], len(cached)
    if depth == 1:
        repeated = [each.transpose(1, 2).repeat_interleave(groups, 1) for each in (keys, values)]
        attended = functional.scaled_dot_product_attention(query.transpose(1, 2), *repeated, is_causal=True)
        return attended.transpose(1, 2).flatten(2)
    grouped = query.view(batch, rows, -1, groups, width)
    scores = torch.einsum("btkgd,bskd->bkgts", grouped, keys).float()
    sees = torch.ones(rows, rows, dtype=torch.bool).tril(1 - depth)
    sees[:, 0] = True
    scores = scores.masked_fill(~sees, -1e30)
    later = [_shift(each, depth - number) for number, (each, _) in enumerate(cached[1:], 2)]
    own = [(grouped * each[:, :, :, None]).sum(-1).permute(0, 2, 3, 1).float()[..., None] for each in later]
    shares = (torch.cat([scores, *own], -1) * width**-0.5).softmax(-1).bfloat16()
    attended = torch.einsum("bkgts,bskd->btkgd", shares[..., :rows], values)
    for number, (_, each) in enumerate(cached[1:], 2):
        share = shares[..., rows + number - 2].permute(0, 3, 1, 2)[..., None]
        attended = attended + share * _shift(each, depth - number)[:, :, :, None]
    return attended.reshape(batch, rows, -1)
