"""Importance is what a token's column of the attention sums to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.importance import chunk_importance, column_sums, draft_importance


def causal(seed: int, tokens: int, heads: int = 3) -> list[np.ndarray]:
    """Rows of one attention matrix, (heads, keys) each, every row a softmax over the tokens so far."""
    dice = np.random.default_rng(seed)
    return [dice.dirichlet(np.ones(row + 1), heads) for row in range(tokens)]


def test_columns_are_summed_over_the_rows() -> None:
    attention = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.25, 0.25]])
    assert column_sums(attention) == pytest.approx([1.75, 1.0, 0.25])


def test_heads_and_layers_are_averaged() -> None:
    rows = [np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])]  # two layers of two heads
    assert column_sums(rows) == pytest.approx([0.5, 0.5])


def test_rows_may_grow_as_the_cache_does() -> None:
    assert column_sums([np.array([1.0]), np.array([0.5, 0.5]), np.array([0.2, 0.3, 0.5])]) == pytest.approx([1.7, 0.8, 0.5])


@given(st.integers(0, 1000), st.integers(1, 12))
def test_what_all_columns_receive_is_one_a_row(seed: int, tokens: int) -> None:
    assert column_sums(causal(seed, tokens)).sum() == pytest.approx(tokens)


@given(st.integers(0, 1000), st.integers(2, 12))
def test_rows_read_in_two_parts_add_up(seed: int, tokens: int) -> None:
    rows = causal(seed, tokens)
    whole, first, second = column_sums(rows), column_sums(rows[: tokens // 2]), column_sums(rows[tokens // 2 :])
    assert whole == pytest.approx(second + np.pad(first, (0, second.size - first.size)))


def test_a_chunk_has_the_mean_of_its_tokens() -> None:
    sums = np.array([4.0, 1.0, 3.0, 0.5])
    assert chunk_importance(sums, 1, 2) == 2.0
    assert chunk_importance(sums, 3, 4) == 0.5  # the newest tokens have no row yet
    assert chunk_importance(sums, 4, 4) == 0.0


def test_no_rows_give_no_importance() -> None:
    assert column_sums([]).size == 0


def test_rows_without_keys_and_chunks_without_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected rows of shape"):
        column_sums([np.zeros((2, 0))])
    with pytest.raises(ConfigError, match="expected rows of shape"):
        column_sums([np.array(1.0)])
    with pytest.raises(ConfigError, match="count >= 1, got 3 and 0"):
        chunk_importance(np.ones(4), 3, 0)


def test_a_drafts_importance_is_the_mean_of_what_its_tokens_got_so_far() -> None:
    rows = [np.array([[0.4]]), np.array([[0.2, 0.6]]), np.array([[0.1, 0.2, 0.3]])]
    assert draft_importance(rows[:1]) == pytest.approx(0.4)
    assert draft_importance(rows) == pytest.approx((0.7 + 0.8 + 0.3) / 3)


def test_a_draft_without_rows_has_no_importance() -> None:
    with pytest.raises(ConfigError):
        draft_importance([])
