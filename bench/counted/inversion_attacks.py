"""What a server tries that wants the text back from shallow states: it knows the model's public weights.

Each attack names a token for each state. The nearest embedding needs no training. The linear map and the classifier are trained on states
of text that the attacker made itself. The search computes the input layers for one candidate after the other and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamco.engines.split.layers import InputPart
from streamco.wire.tensors import StateFormat, decode_states, encode_states

__all__ = ["Classifier", "LinearMap", "Search", "Wire", "nearest"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

RIDGE = 30.0
BLOCK = 256  # states that are compared with the whole vocabulary at once


@dataclass(frozen=True, slots=True)
class Wire:
    """What happens to states on their path: Gaussian noise of ``noise`` times a state's root mean square, then a format."""

    form: StateFormat = "f32"
    noise: float = 0.0

    def sent(self, states: Floats, rng: np.random.Generator) -> Floats:
        """Return the states that arrive."""
        if self.noise:
            size = self.noise * np.sqrt(np.square(states).mean(axis=1, keepdims=True))
            states = (states + size * rng.standard_normal(states.shape)).astype(np.float32)
        form, data = encode_states(states, self.form)
        return decode_states(data, len(states), states.shape[1], form)


def unit(rows: Floats) -> Floats:
    """Return the rows with length 1."""
    found: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return found


def nearest(states: Floats, units: Floats) -> Ids:
    """Return the token whose embedding has the smallest angle to each state; ``units``: the embeddings with length 1."""
    found = [(unit(states[start : start + BLOCK]) @ units.T).argmax(axis=1) for start in range(0, len(states), BLOCK)]
    return np.concatenate(found).astype(np.int64)


class LinearMap:
    """A ridge regression from states to embeddings.

    Args:
        states: the attacker's, shape (rows, width).
        ids: their tokens.
        embeddings: of all tokens, shape (vocabulary, width).
    """

    def __init__(self, states: Floats, ids: Ids, embeddings: Floats) -> None:
        self._mean, self._scale = states.mean(axis=0), states.std(axis=0) + np.float32(1e-6)
        inputs = self.inputs(states)
        square = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1], dtype=np.float32)
        self._matrix = np.linalg.solve(square, inputs.T @ embeddings[ids]).astype(np.float32)

    def inputs(self, states: Floats) -> Floats:
        """Return the standardised states with a column of ones."""
        return np.concatenate([(states - self._mean) / self._scale, np.ones((len(states), 1), np.float32)], axis=1)

    def map(self, states: Floats) -> Floats:
        """Return the embedding that each state has by the map."""
        mapped: Floats = self.inputs(states) @ self._matrix
        return mapped


class Classifier:
    """A network with one hidden layer beside the linear map, trained to tell a token from others.

    A token's score is the product of the network's output with the token's embedding. The others are a batch's own tokens and tokens drawn
    at random, because all of a vocabulary would cost a hundred times more.

    Args:
        linear: the map that it begins with.
        states: the attacker's.
        ids: their tokens.
        units: embeddings with length 1.
    """

    HIDDEN, BATCH, NEGATIVES, RATE, SHARPNESS = 512, 256, 1024, 1e-3, 20.0

    def __init__(self, linear: LinearMap, states: Floats, ids: Ids, units: Floats, *, epochs: int, seed: int) -> None:
        self._linear, self._units = linear, units
        self._rng = np.random.default_rng(seed)
        inputs, width = linear.inputs(states), units.shape[1]
        base = linear.map(states)
        self._length = np.float32(1 / np.linalg.norm(base, axis=1).mean())
        first = self._rng.standard_normal((inputs.shape[1], self.HIDDEN)) / np.sqrt(inputs.shape[1])
        self._weights = [first.astype(np.float32), np.zeros((self.HIDDEN, width), np.float32)]
        self._moments = [[np.zeros_like(w), np.zeros_like(w)] for w in self._weights]
        steps = max(1, epochs * len(ids) // self.BATCH)
        for step in range(steps):
            rows = self._rng.integers(0, len(ids), self.BATCH)
            self._learn(inputs[rows], base[rows], ids[rows], step + 1, self.RATE * (1 - step / steps))

    def map(self, states: Floats) -> Floats:
        """Return the network's output for each state."""
        hidden = np.maximum(self._linear.inputs(states) @ self._weights[0], 0)
        mapped: Floats = self._linear.map(states) * self._length + hidden @ self._weights[1]
        return mapped

    def _learn(self, inputs: Floats, base: Floats, ids: Ids, step: int, rate: float) -> None:
        """Take one step of Adam on the cross-entropy over the candidates."""
        hidden = np.maximum(inputs @ self._weights[0], 0)
        output = base * self._length + hidden @ self._weights[1]
        candidates = np.unique(np.concatenate([ids, self._rng.integers(0, len(self._units), self.NEGATIVES)]))
        vectors = self._units[candidates]
        scores = self.SHARPNESS * output @ vectors.T
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = scores / scores.sum(axis=1, keepdims=True)
        error[np.arange(len(ids)), np.searchsorted(candidates, ids)] -= 1
        back = (self.SHARPNESS / len(ids)) * error @ vectors
        slopes = [inputs.T @ ((back @ self._weights[1].T) * (hidden > 0)), hidden.T @ back]
        for weights, moments, slope in zip(self._weights, self._moments, slopes, strict=True):
            _adam(weights, moments, slope.astype(np.float32), step, rate)


def _adam(weights: Floats, moments: list[Floats], slope: Floats, step: int, rate: float) -> None:
    moments[0] *= 0.9
    moments[0] += 0.1 * slope
    moments[1] *= 0.98
    moments[1] += 0.02 * slope * slope
    size = np.sqrt(moments[1] / (1 - 0.98**step)) + 1e-8
    weights -= (rate / (1 - 0.9**step) * moments[0] / size).astype(np.float32)


class Search:
    """Computes the input layers for candidates at each position and takes the one whose state is nearest to the received one.

    The tokens before are those that the search found itself. Candidates come in the order of a map's angles, so the right one is mostly
    among the first. Without noise the search stops at a state that is as near as rounding explains, else it goes through the vocabulary.
    With noise it takes the nearest of the first ``most`` candidates.

    Args:
        part: the input layers, one sequence.
        embeddings: of all tokens.
        wire: what the attacker knows of the path; candidates go through its format, too.
        most: number of candidates with noise; without noise the whole vocabulary.
    """

    ROUNDED = 0.03
    """Distance of equal tokens, as a share of the state's length: the device computed a prompt's rows together, the search each alone."""

    def __init__(self, part: InputPart, embeddings: Floats, wire: Wire, most: int = 256) -> None:
        self._part, self._embeddings, self._wire = part, embeddings, wire
        self._exact = Wire(wire.form)
        self._most = most if wire.noise else len(embeddings)
        self._rng = np.random.default_rng(0)
        self.tried = 0

    def run(self, prefix: Sequence[int], received: Floats, mapped: Floats, units: Floats) -> list[int]:
        """Return a token for each received state.

        Args:
            prefix: tokens before the first state, which are the same in every conversation.
            received: shape (positions, width).
            mapped: a map's embedding for each.
            units: embeddings with length 1.
        """
        self._part.truncate(0)
        self._part.run(self._embeddings[list(prefix)], 0)
        found: list[int] = []
        for index, state in enumerate(received):
            order = np.argsort(-(units @ mapped[index]))[: self._most]
            found.append(self._nearest(state, order, len(prefix) + index))
            self._part.run(self._embeddings[found[-1:]], len(prefix) + index)
        return found

    def _nearest(self, state: Floats, order: Ids, position: int) -> int:
        best, least = -1, np.inf
        enough = 0.0 if self._wire.noise else self.ROUNDED * float(np.linalg.norm(state))
        for candidate, found in self._candidates(order, position):
            distance = float(np.linalg.norm(found - state))
            if distance < least:
                best, least = candidate, distance
            if distance <= enough:
                break
        return best

    def _candidates(self, order: Ids, position: int) -> Iterator[tuple[int, Floats]]:
        for candidate in order.tolist():
            self.tried += 1
            states = self._part.run(self._embeddings[candidate : candidate + 1], position)
            self._part.truncate(position)
            yield candidate, self._exact.sent(states, self._rng)[0]
