"""Attacks on shallow states, on states whose tokens are known."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from bench.counted.inversion_attacks import Classifier, Floats, LinearMap, Search, Wire, nearest, unit
from streamco.engines.split.layers import InputPart

WIDTH, VOCABULARY = 32, 300


class HashedLayers:
    """Input layers whose states depend on all tokens before."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._matrix = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        self._rows = np.zeros((0, WIDTH), np.float32)

    def run(self, states: Floats, position: int) -> Floats:
        assert position == len(self._rows), "rows follow one another"
        self._rows = np.concatenate([self._rows, states])
        before = np.cumsum(self._rows, axis=0)[position:] / np.arange(position + 1, len(self._rows) + 1)[:, None]
        found: Floats = np.tanh((states + 2 * before) @ self._matrix).astype(np.float32)
        return found

    def truncate(self, length: int) -> None:
        self._rows = self._rows[:length]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def embeddings(rng: np.random.Generator) -> Floats:
    return rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)


def test_a_wire_without_noise_changes_what_its_format_changes(rng: np.random.Generator) -> None:
    states = rng.standard_normal((5, WIDTH)).astype(np.float32)
    assert np.array_equal(Wire().sent(states, rng), states)
    assert 0 < np.abs(Wire("f16").sent(states, rng) - states).max() < 0.01
    assert 0.001 < np.abs(Wire("i8").sent(states, rng) - states).max() < 0.1


def test_noise_has_the_size_that_was_asked_for(rng: np.random.Generator) -> None:
    states = 40 * rng.standard_normal((400, WIDTH)).astype(np.float32)
    noise = Wire(noise=0.5).sent(states, rng) - states
    assert np.sqrt(np.square(noise).mean() / np.square(states).mean()) == pytest.approx(0.5, rel=0.05)


def test_a_linear_map_turns_states_back_that_the_nearest_embedding_does_not(rng: np.random.Generator, embeddings: Floats) -> None:
    matrix = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, 4000)
    linear = LinearMap(embeddings[ids] @ matrix, ids, embeddings)
    attacked = rng.integers(0, VOCABULARY, 200)
    states = embeddings[attacked] @ matrix
    assert (nearest(linear.map(states), unit(embeddings)) == attacked).mean() == 1
    assert (nearest(states, unit(embeddings)) == attacked).mean() < 0.1


@pytest.mark.long
def test_a_classifier_learns_what_a_linear_map_can_not(rng: np.random.Generator, embeddings: Floats) -> None:
    first = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)

    def states(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        found: Floats = np.abs(embeddings[ids] @ first).astype(np.float32)
        return found

    ids = rng.integers(0, VOCABULARY, 4000)
    linear = LinearMap(states(ids), ids, embeddings)
    network = Classifier(linear, states(ids), ids, unit(embeddings), epochs=20, seed=1)
    attacked = rng.integers(0, VOCABULARY, 300)
    by_map, by_network = ((nearest(attack.map(states(attacked)), unit(embeddings)) == attacked).mean() for attack in (linear, network))
    assert by_network > by_map + 0.2
    assert by_network > 0.9


@pytest.mark.parametrize("wire", [Wire("f32"), Wire("f16"), Wire("i8"), Wire("f32", 0.3)], ids=["f32", "f16", "i8", "noise"])
def test_a_search_finds_every_token_whatever_the_order_of_candidates(wire: Wire, rng: np.random.Generator, embeddings: Floats) -> None:
    part = cast("InputPart", HashedLayers(rng))
    tokens = rng.integers(0, VOCABULARY, 24).tolist()
    received = wire.sent(part.run(embeddings[tokens], 0), rng)[4:]
    search = Search(part, embeddings, wire, most=VOCABULARY)
    misleading = rng.standard_normal((len(received), WIDTH)).astype(np.float32)
    assert search.run(tokens[:4], received, misleading, unit(embeddings)) == tokens[4:]


def test_a_search_tries_one_candidate_where_the_map_is_right(rng: np.random.Generator, embeddings: Floats) -> None:
    part = cast("InputPart", HashedLayers(rng))
    tokens = rng.integers(0, VOCABULARY, 24).tolist()
    received = part.run(embeddings[tokens], 0)[4:]
    search = Search(part, embeddings, Wire())
    assert search.run(tokens[:4], received, embeddings[tokens[4:]], unit(embeddings)) == tokens[4:]
    assert search.tried == len(received)
