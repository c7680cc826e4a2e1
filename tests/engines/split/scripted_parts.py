"""Parts of a split model that compute nothing, and complain if their memory doesn't hold what a row stands on.

A shallow state says which tokens it was computed from, and a guess depends on these alone or on them and its deep state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamco.engines.split.draft_layer import DraftStep

VOCABULARY = 6
DEPTHS = 64
States = NDArray[np.float32]


def state_of(tokens: Sequence[int]) -> States:
    """The state after some tokens: a number that only these have, and their count."""
    found = 0
    for token in tokens:
        found = (found * 31 + token + 1) % 65_521
    return np.array([found, len(tokens)], np.float32)


class ScriptedHead:
    """Embeddings are the ids."""

    def embed(self, ids: Sequence[int]) -> States:
        return np.array([[token, 0] for token in ids], np.float32)


class ScriptedInput:
    """Input layers with a memory."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.rows = 0

    def run(self, states: States, position: int, sequence: int = 0) -> States:
        held = self.held.setdefault(sequence, [])
        assert position == len(held), "positions follow each other"
        found = []
        for state in states:
            held.append(int(state[0]))
            found.append(state_of(held))
        self.rows += len(states)
        return np.stack(found)

    def truncate(self, length: int, sequence: int = 0) -> None:
        del self.held[sequence][length:]


class ScriptedLayer:
    """A draft layer with a memory. ``guesses`` of it follow from the shallow state: sometimes the next token of ``text``, sometimes not.

    A guessed deep state is negative, and says how many guesses it stands on: parts of ``DEPTHS``.
    """

    def __init__(self, text: dict[tuple[float, float], int], luck: Any) -> None:
        self.text, self.luck = text, luck
        self.held: dict[int, list[States]] = {}
        self.deep: dict[int, list[States]] = {}
        self.steps = 0

    def normed(self, states: States) -> States:
        return states

    def step(self, deep: States, shallow: States, position: int, sequence: int = 0) -> DraftStep:
        held = self.held.setdefault(sequence, [])
        assert position == len(held), "positions follow each other"
        assert shallow[1] == position + 1, "a row of this position"
        held.append(shallow)
        self.deep.setdefault(sequence, []).append(deep)
        self.steps += 1
        right = self.text.get((float(shallow[0]), float(shallow[1])), 0)
        order = sorted(range(VOCABULARY), key=lambda token: (token != right, token))
        if self.luck.random() < 0.4:
            self.luck.shuffle(order)
        shares = sorted((self.luck.random() + 0.01 for _ in order), reverse=True)
        depth = 1 if deep[0] >= 0 else 1 + round(-deep[0] % 1 * DEPTHS)
        return DraftStep(tuple(order), tuple(share / sum(shares) for share in shares), -shallow - np.float32(depth / DEPTHS))

    def extend(self, deep: States, shallow: States, position: int, sequence: int = 0) -> None:
        held, before = self.held.setdefault(sequence, []), self.deep.setdefault(sequence, [])
        assert position <= len(held), "no gap"
        del held[position:], before[position:]
        for place, row in enumerate(shallow):
            assert row[1] == position + place + 1, "a row of this position"
        held += list(shallow)
        before += list(deep)

    def truncate(self, length: int, sequence: int = 0) -> None:
        del self.held.setdefault(sequence, [])[length:], self.deep.setdefault(sequence, [])[length:]
