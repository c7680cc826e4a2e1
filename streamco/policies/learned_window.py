"""The window that a small network proposes (DSD section 4, "adaptive window control").

The paper trains a residual network of two blocks with SiLU, by an exhaustive sweep of windows in a simulator, to say the best window from
five figures: the queue's utilisation, the acceptance rate, the link's round trip, the target's time per token and the window before. Here
the wait for a verdict, of which the round trip is a part, takes its place, and what else decides which window is best goes in: how long a
draft step takes, how often a branch is adopted, and how much slower a step on all branches is than one on the draft alone. Times go in as
logarithms of what they are in steps of the target, for a world in which everything takes twice as long has the same best window; and
nothing goes in beyond what was seen in training.

The paper's network says one figure. Here it says two: a verdict, the best window or 0 for fused mode, and the window if drafting it is.
Between worlds that want fused mode and worlds that want ten tokens the first passes through windows that nobody wants, so it is taken for
the verdict alone: at 1 or less, half-way between fused mode and the smallest window, fused mode is proposed, and ``fallback.ModeSwitch``
takes it where two in a row say so. Clamping and smoothing (section 4.4) are for ``window.Stabiliser``.

The network sees means, so what it says is the window of a usual draft. One whose tokens are surer than usual goes further and one whose
tokens are not ends before: where the chance that all of it is accepted falls below what it is behind as many usual tokens. The paper has
neither.

The weights are in ``windownet.json``, whose head says how they were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from streamco.errors import ConfigError
from streamco.policies.window import DEFAULT, MAX_WINDOW, WindowState, is_fused

__all__ = ["INPUTS", "MIN_DRAFT", "Adaptive", "Layer", "WindowNet", "WindowWeights", "inputs_of", "packaged_weights"]

INPUTS = ("queue_depth", "acceptance", "wait_steps", "draft_steps", "hit_rate", "slowdown", "previous")
MIN_DRAFT = 2  # tokens: what is drafted while fused mode is proposed, for a round that is tried all the same
_MAX_STRETCH = 2  # windows: as far goes the surest draft
_MIN_ROUNDS = 8.0  # rounds until what drafts are sure of is believed
_MIN_STEPS = 1e-3  # steps of the target; a link can't be felt below


class Layer(Struct, frozen=True):
    """Of a network: ``weights`` of shape (outputs, inputs), ``bias`` of shape (outputs,)."""

    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]


class WindowWeights(Struct, frozen=True, kw_only=True):
    """A trained network.

    Args:
        made: by what, from what, and how good it was on worlds that it had not seen.
        inputs: their names, in order.
        mean, deviation: of each input in training, by which it is made comparable with the others.
        low, high: the least and most of each in training.
        entry: the layer behind the inputs, with SiLU.
        blocks: (inner, outer) of each: what comes in, and on top of it outer(SiLU(inner(what comes in))).
        exit: the layer with the verdict and the window.

    Raises:
        ConfigError: shapes or inputs that don't fit.
    """

    made: dict[str, msgspec.Raw]
    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    entry: Layer
    blocks: tuple[tuple[Layer, Layer], ...]
    exit: Layer

    def __post_init__(self) -> None:
        """Refuse what no window comes out of."""
        if self.inputs != INPUTS:
            raise ConfigError(f"window network: expected the inputs {', '.join(INPUTS)}, got {', '.join(self.inputs)}")
        count, width = len(self.inputs), len(self.entry.bias)
        if any(len(each) != count for each in (self.mean, self.deviation, self.low, self.high)) or min(self.deviation) <= 0.0:
            raise ConfigError(f"window network: expected mean, deviation above 0, low and high of {count} inputs")
        shapes = [(self.entry, width, count), *((layer, width, width) for block in self.blocks for layer in block), (self.exit, 2, width)]
        for layer, outputs, given in shapes:
            rows = [len(row) for row in layer.weights]
            if rows != [given] * outputs or len(layer.bias) != outputs:
                raise ConfigError(f"window network: expected a layer of {outputs} x {given}, got {len(layer.bias)} x {rows[:1]}")


class WindowNet:
    """Reckons with a network's weights; one for each pair of models, for it keeps room to reckon in.

    Made for few calls of numpy, each of which takes longer than what it reckons: 17 calls, 12 us, where lists of floats take 170. Every
    vector has a 1 behind it, so that a layer's bias is a column of its weights. With h half of x, SiLU(x) is h + h tanh h, so that layers
    in front of one are kept halved. What makes inputs comparable is in the weights of the first layer.
    """

    def __init__(self, weights: WindowWeights) -> None:
        self._bounds = list(zip(weights.low, weights.high, strict=True))
        entry = np.array(weights.entry.weights) / np.array(weights.deviation)
        self._entry = _matrix(entry, np.array(weights.entry.bias) - entry @ np.array(weights.mean)) / np.float32(2.0)
        self._blocks = [
            (_matrix(inner.weights, inner.bias) / np.float32(2.0), _matrix(outer.weights, outer.bias)) for inner, outer in weights.blocks
        ]
        self._exit = _matrix(weights.exit.weights, weights.exit.bias)
        width = len(weights.entry.bias)
        self._given = np.ones(len(weights.inputs) + 1, dtype=np.float32)
        self._held, self._inner = np.ones(width + 1, dtype=np.float32), np.ones(width + 1, dtype=np.float32)
        self._scratch, self._ones = np.empty(width, dtype=np.float32), np.ones(width, dtype=np.float32)

    def evaluate(self, inputs: Sequence[float]) -> tuple[float, float]:
        """Return the verdict and the window for these inputs, tokens; a verdict of 0 is fused mode."""
        add, multiply, tanh = np.add, np.multiply, np.tanh
        held, inner, scratch, ones = self._held[:-1], self._inner[:-1], self._scratch, self._ones
        self._given[:-1] = [min(high, max(low, value)) for value, (low, high) in zip(inputs, self._bounds, strict=True)]
        self._entry.dot(self._given, held)
        tanh(held, scratch)
        multiply(held, add(scratch, ones, scratch), held)
        for into, out in self._blocks:
            into.dot(self._held, inner)
            tanh(inner, scratch)
            multiply(inner, add(scratch, ones, scratch), inner)
            add(held, out.dot(self._inner, scratch), held)
        verdict, window = self._exit.dot(self._held).tolist()
        return verdict, window


class Adaptive:
    """The window that the network proposes; 1 or less: fused mode.

    Args:
        first: tokens of the first round, and while the times aren't known.
        max_window: tokens.
        may_fuse: the remote side can generate alone; False: fused mode is never proposed.
        weights: of the network; None: the packaged ones.
    """

    name = "adaptive"

    def __init__(
        self, first: int = DEFAULT, *, max_window: int = MAX_WINDOW, may_fuse: bool = True, weights: WindowWeights | None = None
    ) -> None:
        if not MIN_DRAFT <= first <= max_window:
            raise ConfigError(f"adaptive window: expected {MIN_DRAFT} <= first <= max_window, got {first} and {max_window}")
        self.first, self.max_window, self.may_fuse = first, max_window, may_fuse
        self._net = WindowNet(weights or packaged_weights())

    def propose(self, state: WindowState) -> float:
        """Return what the network says to the last rounds."""
        if state.acceptance is None or state.draft_step <= 0.0 or state.wait <= 0.0 or state.tpot <= 0.0:
            return float(self.first)
        verdict, window = self._net.evaluate(inputs_of(state))
        if self.may_fuse and is_fused(verdict):
            return verdict
        return min(float(self.max_window), max(float(MIN_DRAFT), window))

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """See ``window.Stopping``."""
        return max(window, min(self.max_window, _MAX_STRETCH * window)) if state.rounds >= _MIN_ROUNDS else window

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """See ``window.Stopping``: that of as many usual tokens, to the nearest one."""
        return math.pow(state.calibrated_acceptance, window - 0.5) if state.rounds >= _MIN_ROUNDS else 0.0


def inputs_of(state: WindowState) -> tuple[float, ...]:
    """Return what the network is given, in the order of ``INPUTS``; acceptance and times must be known."""
    assert state.acceptance is not None
    return (
        state.queue_depth,
        state.acceptance,
        math.log(max(_MIN_STEPS, state.wait / state.tpot)),
        math.log(max(_MIN_STEPS, state.draft_step / state.tpot)),
        state.hit_rate,
        math.log(state.slowdown),
        float(state.previous),
    )


@cache
def packaged_weights() -> WindowWeights:
    """Return the network's that comes with the package."""
    return msgspec.json.decode((resources.files("streamco.policies") / "windownet.json").read_bytes(), type=WindowWeights)


def _matrix(weights: ArrayLike, bias: ArrayLike) -> NDArray[np.float32]:
    """Of shape (outputs, inputs + 1): the bias is what a 1 behind the inputs adds."""
    return np.ascontiguousarray(np.column_stack([weights, bias]), dtype=np.float32)
