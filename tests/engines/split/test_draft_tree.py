"""Whatever is asked of a tree, in whatever order: its rows are those of their tokens, and both memories hold what a step stands on."""

from __future__ import annotations

from random import Random
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.draft_tree import DraftTree
from streamco.engines.split.layers import HeadPart, InputPart
from tests.engines.split.scripted_parts import ScriptedHead, ScriptedInput, ScriptedLayer, state_of

PROMPT = [2, 0]


def begin(seed: int) -> tuple[DraftTree, ScriptedInput, ScriptedLayer]:
    layers, layer = ScriptedInput(), ScriptedLayer({}, Random(seed))
    tree = DraftTree(cast(DraftPart, layer), cast("tuple[InputPart, HeadPart]", (layers, ScriptedHead())), sequence=0)
    prompt = layers.run(ScriptedHead().embed(PROMPT), 0)
    tree.record(prompt, prompt[-1:] + 0.5, 0)
    tree.start(len(PROMPT))
    return tree, layers, layer


paths = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
asked = st.tuples(st.sampled_from(["row", "guess", "forget", "verify", "verify", "verify and forget"]), paths)


@given(st.lists(asked, max_size=20), st.integers(0, 2**32))
def test_rows_and_memories_are_those_of_the_tokens(orders: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    tree, _, layer = begin(seed)
    tokens, states = list(PROMPT), [state_of(PROMPT[: end + 1]) for end in range(len(PROMPT))]
    for order, path in orders:
        if order == "row":
            assert (tree.row(path) == state_of([*tokens, *path])).all()
        elif order == "guess":
            tree.guess(path)
            held = layer.held[0]
            assert [row.tolist() for row in held[: len(states)]] == [state.tolist() for state in states]
            assert all((layer.deep[0][place] == states[place - 1] + 0.5).all() for place in range(len(PROMPT), len(states)))
        elif order == "forget":
            tree.forget_guesses()
        else:
            shallow = np.stack([tree.row(path[: end + 1]) for end in range(len(path))])
            tree.record(shallow, shallow + 0.5, len(tokens))
            tree.advance(path)
            tokens += path
            states += list(shallow)
            if order == "verify and forget":
                tree.forget_guesses()


def test_what_is_known_of_a_verified_continuation_is_kept_and_the_rest_forgotten() -> None:
    tree, layers, layer = begin(0)
    for path in ((1, 1), (1, 2), (1, 2, 0)):
        tree.guess(path)
    tree.record(np.stack([tree.row((1,))]), tree.row((1,))[None] + 0.5, len(PROMPT))
    tree.advance((1,))
    rows, steps = layers.rows, layer.steps
    assert tree.has_guess((1,))
    assert tree.has_guess((2, 0))
    assert not tree.has_guess((1, 1))
    assert tree.rows == 3
    tree.row((2, 0))
    tree.guess((2,))
    assert (layers.rows, layer.steps) == (rows, steps)
    assert tree.has_row((1,))
    tree.advance((0,))
    assert tree.rows == 0


def test_a_branch_shares_what_the_memory_holds() -> None:
    tree, layers, _ = begin(0)
    for path in ((1,), (1, 1), (1, 1, 1)):
        tree.row(path)
    assert layers.rows == len(PROMPT) + 3
    tree.row((1, 1, 2))
    assert layers.rows == len(PROMPT) + 4, "the first two tokens are held"
    tree.row((2,))
    tree.row((1, 1, 1, 0))
    assert layers.rows == len(PROMPT) + 4 + 1 + 4, "the held tokens were others"
    tree.close()


def test_after_a_verdict_the_layer_reads_a_kept_continuation_again() -> None:
    tree, _, layer = begin(0)
    tree.guess((1, 1))
    tree.record(np.stack([tree.row((1,))]), tree.row((1,))[None] + 0.5, len(PROMPT))
    tree.advance((1,))
    assert tree.has_guess((1,))
    tree.guess((1, 2))
    assert [row.tolist() for row in layer.held[0][-2:]] == [tree.row((1,)).tolist(), tree.row((1, 2)).tolist()]
