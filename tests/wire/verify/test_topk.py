"""Probabilities as weights: round trips, how far rounding goes, what is drawn, and an error for everything that is no row."""

from __future__ import annotations

import math
import struct
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco._native import pack, top_k
from streamco.policies.acceptance import Distribution, verify_sampled
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError
from streamco.wire.verify.topk import MAX_WEIGHT, TopK, pack_rows, quantise, row_size, unpack_rows

SIZE, BITS = 49152, 16


@st.composite
def some_rows(draw: st.DrawFn, size: int = SIZE) -> TopK:
    ids = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    weights = sorted(draw(st.lists(st.integers(1, MAX_WEIGHT), min_size=len(ids), max_size=len(ids))), reverse=True)
    return TopK(tuple(ids), tuple(weights), draw(st.integers(0, MAX_WEIGHT)))


@st.composite
def shares(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Ids with their probabilities, best first, of a vocabulary that may hold more."""
    raw = sorted(draw(st.lists(st.floats(1e-9, 1), min_size=1, max_size=40)), reverse=True)
    scale = draw(st.floats(0.2, 1)) / math.fsum(raw)
    return [(place * 3, share * scale) for place, share in enumerate(raw)]


def read(data: bytes, max_rows: int = 8, max_ids: int = 255) -> tuple[TopK, ...]:
    return unpack_rows(data, BITS, vocabulary_size=SIZE, max_rows=max_rows, max_ids=max_ids)


@given(st.sampled_from([256, 1000, 32000, 100277, 262144, 1 << 32]), st.data())
def test_any_rows_of_any_vocabulary_come_back(size: int, data: st.DataObject) -> None:
    bits = (size - 1).bit_length()
    rows = tuple(data.draw(st.lists(some_rows(size), max_size=5)))
    packed = pack_rows(rows, bits)
    assert unpack_rows(packed, bits, vocabulary_size=size, max_rows=5, max_ids=20) == rows
    assert len(packed) == sum(row_size(len(row.ids), bits) for row in rows)


def test_a_row_is_as_written_down() -> None:
    packed = pack_rows([TopK((7, 258), (65535, 2), 9)], BITS)
    assert packed.hex() == "020900ffff020007000201"


@given(shares())
def test_a_share_of_the_whole_is_off_by_at_most_its_rounding(pairs: list[tuple[int, float]]) -> None:
    row = quantise(pairs, is_whole=False)
    distribution = row.distribution()
    for token, share in pairs:
        assert abs(distribution.probability(token) - share) <= (len(pairs) + 2) / MAX_WEIGHT


@given(shares())
def test_ratios_of_a_whole_distribution_keep_within_a_step_of_the_best(pairs: list[tuple[int, float]]) -> None:
    row = quantise(pairs, is_whole=True)
    assert (row.rest, row.weights[0]) == (0, MAX_WEIGHT)
    for (_, share), weight in zip(pairs, row.weights, strict=True):
        assert abs(weight / MAX_WEIGHT - share / pairs[0][1]) <= 1 / MAX_WEIGHT


@given(shares(), st.booleans())
def test_what_is_quantised_can_always_be_sent(pairs: list[tuple[int, float]], is_whole: bool) -> None:
    row = quantise(pairs, is_whole=is_whole)
    assert read(pack_rows([row], BITS)) == (row,)


@given(some_rows())
def test_both_sides_mean_the_same_numbers(row: TopK) -> None:
    ours, theirs = row.distribution(), read(pack_rows([row], BITS))[0].distribution()
    assert ours.ids.tolist() == theirs.ids.tolist() == list(row.ids)
    assert ours.probabilities.tolist() == theirs.probabilities.tolist()
    assert ours.is_whole == (not row.rest)
    assert row.ids[0] == ours.best


def test_a_probability_is_a_weight_of_all_weights() -> None:
    row = TopK((5, 3, 9), (3, 2, 1), 2).distribution()
    assert [row.probability(token) for token in (5, 3, 9, 4)] == [0.375, 0.25, 0.125, 0]


def test_sampling_through_rows_keeps_the_targets_distribution() -> None:
    target = Distribution([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4])
    drafted_from = read(pack_rows([quantise([(1, 0.61234567), (3, 0.3), (0, 0.0876)], is_whole=True)], BITS))[0].distribution()
    rng, rounds = Random(5), 20_000
    seen = Counter(
        verdict.token if verdict.accepted == 0 else token
        for token in (drafted_from.draw(rng) for _ in range(rounds))
        for verdict in (verify_sampled([token], [drafted_from], [target, target], rng),)
    )
    statistic = sum((seen[token] - rounds * share) ** 2 / (rounds * share) for token, share in enumerate((0.1, 0.2, 0.3, 0.4)))
    assert statistic < 16.27  # chi-square, 3 degrees of freedom, 0.001; the seed is fixed


# Greedy verdicts and size


def test_the_first_id_is_the_likeliest_of_all_even_where_weights_tie() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        logits = (rng.standard_normal(32000) * 3).astype(np.float32)
        logits[rng.integers(32000, size=4)] = logits.max() + np.float32(1e-6)  # closer than a weight can tell
        row = quantise(top_k(logits, 8), is_whole=False)
        assert read(pack_rows([row], BITS))[0].ids[0] == int(np.argmax(logits))


@pytest.mark.parametrize(("size", "count"), [(32000, 8), (32000, 20), (49152, 20), (128256, 40), (262144, 64)])
def test_top_k_takes_off_at_least_995_of_1000_bytes(size: int, count: int) -> None:
    whole = 4 * size  # float32, as Synera counts
    assert row_size(count, (size - 1).bit_length()) <= 0.005 * whole


# What is no row


@pytest.mark.parametrize("length", range(1, 11))
def test_every_truncation_is_refused(length: int) -> None:
    whole = pack_rows([TopK((7, 258), (65535, 2), 9)], BITS)
    assert len(whole) == 11
    with pytest.raises(MalformedFrameError, match="row 0"):
        read(whole[:length])


@pytest.mark.parametrize(
    ("weights", "ids", "expected"),
    [
        ((5, 0), (1, 2), "weights above 0"),
        ((5, 6), (1, 2), "none above the one before it"),
        ((5, 5), (1, 1), "2 different ids, got 1"),
        ((5, 5), (1, 49152), "ids below 49152, got 49152"),
    ],
)
def test_a_row_that_says_nonsense_is_refused(weights: tuple[int, ...], ids: tuple[int, ...], expected: str) -> None:
    data = struct.pack("<BH2H", 2, 0, *weights) + pack(ids, BITS)
    with pytest.raises(MalformedFrameError, match=expected):
        read(data)


def test_a_row_without_ids_is_refused() -> None:
    with pytest.raises(MalformedFrameError, match="at least 1 id"):
        read(b"\0\0\0")


def test_bits_after_the_last_id_are_refused() -> None:
    with pytest.raises(MalformedFrameError, match="zero bits"):
        unpack_rows(b"\1\0\0\1\0\1\0\xf0", 17, vocabulary_size=100277, max_rows=1, max_ids=1)


def test_more_rows_or_ids_than_the_limit_are_refused() -> None:
    row = TopK((1, 2), (3, 3), 0)
    with pytest.raises(FrameSizeError, match="at most 2 rows"):
        read(pack_rows([row] * 3, BITS), max_rows=2)
    with pytest.raises(FrameSizeError, match="at most 1 ids, got 2"):
        read(pack_rows([row], BITS), max_ids=1)


@pytest.mark.parametrize(
    "row",
    [
        TopK((1,), (65536,), 0),
        TopK((1,), (1,), -1),
        TopK((1, 2), (1,), 0),
        TopK((65536,), (1,), 0),
        TopK(tuple(range(256)), (1,) * 256, 0),
    ],
)
def test_what_does_not_fit_a_row_is_not_written(row: TopK) -> None:
    with pytest.raises(MalformedFrameError, match="expected 1 to 255 ids"):
        pack_rows([row], BITS)
