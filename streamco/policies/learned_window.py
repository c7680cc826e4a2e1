"""Learned window: a small network proposes the window gamma (DSD section 4, "adaptive window control").

The paper trains a residual network of two blocks with SiLU, by trying all windows in a simulator. The network maps five numbers to the best
window: the queue's utilisation q_depth, the acceptance rate alpha, the link's round trip RTT, the target's time per token TPOT, and the
previous window. This network differs from it in:

- *Inputs.* The wait for a verdict replaces RTT, which is a part of it. The other numbers that decide the best window are added: the time of
  a draft step, the hit rate of branches, and how much slower a step on all branches is than a step on the draft alone. Times are logarithms
  of multiples of TPOT, because a world in which everything takes twice as long has the same best window. Inputs are clamped to the range
  seen in training.
- *Outputs.* The paper's network has one output. This network has two: a preference, which is the best window or 0 for fused mode, and the
  window if drafting is chosen. Between worlds that need fused mode and worlds that need ten tokens, the preference passes through windows
  that are good in neither, so it is only used to decide the mode. At 1 or less, half-way between fused mode and the smallest window, fused
  mode is proposed, and ``mode_switch.ModeSwitch`` accepts it after two proposals in a row. ``window.Stabiliser`` clamps and smooths
  (section 4.4).
- *Length of one draft.* The network sees means, so its window suits an average draft. A draft of higher confidence continues. A draft of
  lower confidence ends early, as soon as it is less likely to be accepted whole than an average draft of ``window`` tokens. The paper has
  no such rule.

The weights are in ``windownet.json``, which also says how they were trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from streamco.errors import ConfigError
from streamco.policies.mode_switch import conditions_of, predict_rates
from streamco.policies.window import DEFAULT, MAX_WINDOW, WindowState, is_fused

__all__ = ["INPUTS", "MIN_DRAFT", "Adaptive", "Layer", "WindowNet", "WindowWeights", "inputs_of", "packaged_weights"]

INPUTS = ("queue_depth", "acceptance", "wait_steps", "draft_steps", "hit_rate", "slowdown", "previous")
MIN_DRAFT = 2  # tokens; the window of a round that is tried although fused mode is proposed
_MAX_STRETCH = 2  # windows; the length of the surest draft
_MIN_ROUNDS = 8.0  # rounds until calibrated confidences are used
_STAIR = 4  # tokens by which a window may be longer than the network's in order to fill a stair of the row costs
_STEEP = 0.15  # share of the wait for a verdict that the rows between the ends of that range may cost and still count as free
_MIN_STEPS = 1e-3  # steps of the target; shorter times make no difference


class Layer(Struct, frozen=True):
    """One layer of a network, with ``weights`` of shape (outputs, inputs) and ``bias`` of shape (outputs,)."""

    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]


class WindowWeights(Struct, frozen=True, kw_only=True):
    """Weights of a trained network.

    Args:
        made: how the network was trained, from which data, and its error on unseen worlds.
        inputs: names of the inputs, in order.
        mean, deviation: mean and standard deviation of each input in training, which normalise the input.
        low, high: minimum and maximum of each input in training.
        entry: the layer after the inputs, with SiLU.
        blocks: (inner, outer) of each residual block: x + outer(SiLU(inner(x))).
        exit: the layer whose outputs are the preference and the window.

    Raises:
        ConfigError: the shapes or inputs don't fit.
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
        """Refuse shapes that don't fit together."""
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
    """Evaluates a network. It has scratch buffers, so each pair of models needs its own.

    It makes few numpy calls, because each call takes longer than its arithmetic: 17 calls take 12 us, but lists of floats take 170 us. A 1
    is appended to every vector, so that a layer's bias is a column of its weights. With h = x / 2, SiLU(x) is h + h tanh h, so the weights
    of layers before a SiLU are stored halved. The weights of the first layer include the normalisation of the inputs.
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
        """Return (preference, window) for these inputs, both in tokens. A preference of 0 means fused mode."""
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
        preference, window = self._exit.dot(self._held).tolist()
        return preference, window


class Adaptive:
    """The learned window policy, one for each pair of models. Implements ``WindowPolicy``, ``DecidesFusedMode`` and ``EndsDraftsEarly``.

    Args:
        first: window in tokens for the first round, and as long as the times aren't known.
        max_window: maximum window in tokens.
        may_fuse: True if the target can generate alone. Otherwise fused mode is never proposed.
        weights: the network's weights, or None for the weights in the package.
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
        """Return the network's window after the last rounds. 1 or less means fused mode."""
        if state.acceptance is None or state.draft_step <= 0.0 or state.wait <= 0.0 or state.tpot <= 0.0:
            return float(self.first)
        preference, window = self._net.evaluate(inputs_of(state))
        if self.may_fuse and is_fused(preference):
            return preference
        window = min(float(self.max_window), max(float(MIN_DRAFT), window))
        return window if state.row_costs is None else self._fit_stairs(state, window)

    def _fit_stairs(self, state: WindowState, window: float) -> float:
        """Return the window that is fastest by the row costs, or the network's window if rows cost little.

        The result is at most ``_STAIR`` tokens above the network's window. The network was trained where one more row costs little, as on a
        GPU.
        """
        assert state.row_costs is not None
        low, high = MIN_DRAFT, min(self.max_window, round(window) + _STAIR)
        climbed = state.row_costs.seconds(high + 1) - state.row_costs.seconds(low + 1)
        if climbed <= _STEEP * state.wait:
            return window
        known = conditions_of(state)
        rates = {tokens: predict_rates(replace(known, window=tokens)).parallel for tokens in range(low, high + 1)}
        return float(max(rates, key=lambda tokens: (rates[tokens], -abs(tokens - window))))

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """Return the maximum length of a draft in tokens; see ``EndsDraftsEarly``."""
        return max(window, min(self.max_window, _MAX_STRETCH * window)) if state.rounds >= _MIN_ROUNDS else window

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """Return the probability of full acceptance below which a draft ends: that of an average draft of ``window`` tokens."""
        return math.pow(state.calibrated_acceptance, window - 0.5) if state.rounds >= _MIN_ROUNDS else 0.0


def inputs_of(state: WindowState) -> tuple[float, ...]:
    """Return the network's inputs, in the order of ``INPUTS``. The acceptance and the times must be known."""
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
    """Return the weights that come with the package."""
    return msgspec.json.decode((resources.files("streamco.policies") / "windownet.json").read_bytes(), type=WindowWeights)


def _matrix(weights: ArrayLike, bias: ArrayLike) -> NDArray[np.float32]:
    """Return a layer as one matrix of shape (outputs, inputs + 1). The last column is the bias, for the appended 1."""
    return np.ascontiguousarray(np.column_stack([weights, bias]), dtype=np.float32)
