"""Softmax, top-k and sampling of a row, both twins: against numpy in double, against each other, and at the edges of float32."""

from __future__ import annotations

import ctypes
import math
import random
import sys
from array import array
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamco import _native
from streamco._native import topk_py

Row = NDArray[np.float32]
INF, NAN = math.inf, math.nan
HIGHEST = float(np.finfo(np.float32).max)
SIZES = [1, 2, 31, 32, 33, 64, 1000, 4095, 4096, 4097]
logits_ = st.floats(-60, 60, width=32) | st.sampled_from([0.0, -0.0, 1.0, -INF, NAN, -100.0, 88.0])
rows = st.lists(logits_, min_size=1, max_size=80).filter(lambda values: any(value > -INF for value in values))
filters_ = st.tuples(st.floats(0.1, 3), st.integers(0, 20), st.floats(0, 1), st.floats(0, 1))


def some_row(size: int, spread: float = 4.0) -> Row:
    return (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)


def probabilities(row: Row) -> NDArray[np.float64]:
    """The plain formula in double, NaN counted as -inf."""
    clean = np.minimum(np.where(np.isnan(row), -INF, row.astype(np.float64)), HIGHEST)
    weights = np.exp(clean - clean.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


@pytest.mark.parametrize("size", [*SIZES, 49152])
def test_softmax_is_the_plain_formula_at_every_remainder(topk: ModuleType, size: int) -> None:
    row, out = some_row(size), np.full(size, 9, np.float32)
    topk.softmax_into(row, out)
    np.testing.assert_allclose(out, probabilities(row), rtol=1e-5, atol=1e-37)


def test_softmax_of_the_largest_vocabulary_sums_to_one(topk: ModuleType) -> None:
    row = some_row(262144)
    topk.softmax_into(row, row)
    assert abs(float(row.sum(dtype=np.float64)) - 1) < 1e-5


@given(rows)
def test_any_row_agrees_with_the_plain_formula(topk: ModuleType, values: list[float]) -> None:
    row = np.array(values, np.float32)
    expected, out = probabilities(row), np.zeros(len(row), np.float32)
    topk.softmax_into(row, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-37)
    order = [place for place in np.lexsort((np.arange(len(row)), -np.nan_to_num(row, nan=-INF))) if row[place] > -INF]
    assert topk.argmax(row) == order[0]
    best = topk.top_k(row, 5)
    assert [place for place, _ in best] == order[:5]
    np.testing.assert_allclose([share for _, share in best], expected[order[:5]], rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 5, 40, 100_000])
def test_the_best_k_come_best_first_and_are_clipped_to_the_row(topk: ModuleType, size: int, k: int) -> None:
    row = some_row(size)
    best = topk.top_k(row, k)
    assert [place for place, _ in best] == np.argsort(-row, kind="stable")[:k].tolist()
    assert all(type(place) is int and type(share) is float for place, share in best)


@pytest.mark.parametrize("place", [0, 1, 31, 32, 63, 64, 98, 99])
def test_the_highest_is_found_wherever_it_lies(topk: ModuleType, place: int) -> None:
    row = np.zeros(100, np.float32)
    row[place] = 0.5
    assert topk.argmax(row) == place
    assert topk.top_k(row, 3)[0][0] == place
    assert topk.sample_row(row, 0.0, 0, 1.0, 0.0, 0.5) == place


@pytest.mark.parametrize("size", [5, 70])
def test_of_equal_logits_the_lower_id_comes_first(topk: ModuleType, size: int) -> None:
    row = np.zeros(size, np.float32)
    assert topk.argmax(row) == 0
    assert [place for place, _ in topk.top_k(row, 4)] == [0, 1, 2, 3]


def test_log_probabilities_are_logarithms_of_probabilities(topk: ModuleType) -> None:
    row = some_row(49152)
    expected = np.log(probabilities(row))
    for choice in (0, 1, 77, 49151):
        assert topk.log_probability(row, choice) == pytest.approx(expected[choice], abs=1e-5)


@pytest.mark.parametrize("lowest", [-INF, NAN])
def test_nan_and_minus_infinity_weigh_nothing_and_are_never_chosen(topk: ModuleType, lowest: float) -> None:
    row = np.full(70, lowest, np.float32)
    row[[3, 40, 69]] = [1.0, 2.0, 1.0]
    out = np.zeros(70, np.float32)
    topk.softmax_into(row, out)
    assert np.flatnonzero(out).tolist() == [3, 40, 69]
    assert topk.argmax(row) == 40
    assert [place for place, _ in topk.top_k(row, 10)] == [40, 3, 69]
    assert topk.log_probability(row, 0) == -INF
    assert {topk.sample_row(row, 5.0, 0, 1.0, 0.0, u / 100) for u in range(100)} == {3, 40, 69}


@pytest.mark.parametrize("values", [[NAN], [-INF, NAN], [-INF] * 50, [NAN] * 33])
def test_a_row_without_a_logit_above_minus_infinity_is_refused(topk: ModuleType, values: list[float]) -> None:
    row = np.array(values, np.float32)
    calls: tuple[Callable[[], object], ...] = (
        lambda: topk.argmax(row),
        lambda: topk.top_k(row, 3),
        lambda: topk.softmax_into(row, row.copy()),
        lambda: topk.log_probability(row, 0),
        lambda: topk.sample_row(row, 1.0, 0, 1.0, 0.0, 0.0),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"row: expected a logit above -inf, got none in {len(values)}"):
            call()


def test_infinity_counts_as_the_largest_number(topk: ModuleType) -> None:
    row = np.array([0, INF, 5, HIGHEST, -HIGHEST], np.float32)
    assert topk.argmax(row) == 1
    assert topk.top_k(row, 3) == ((1, 0.5), (3, 0.5), (2, 0.0))
    out = np.zeros(5, np.float32)
    topk.softmax_into(row, out)
    assert out.tolist() == [0, 0.5, 0, 0.5, 0]


@pytest.mark.parametrize("offset", [-1e6, 0.0, 3e4, 1e30])
def test_only_differences_count(topk: ModuleType, offset: float) -> None:
    row = np.array([offset, offset], np.float32)
    assert topk.top_k(row, 2) == ((0, 0.5), (1, 0.5))


def test_an_empty_row_is_refused(topk: ModuleType) -> None:
    with pytest.raises(ValueError, match="row: expected at least one logit, got none"):
        topk.argmax(np.zeros(0, np.float32))


@pytest.mark.parametrize(("source", "expected"), [
    ([1.0], "expected a buffer of float32, got list"),
    (np.zeros(3), "format 'd'"),
    (np.zeros(3, np.int32), "format 'i'"),
    (b"abcd", "format 'B'"),
    (np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"), "expected one contiguous dimension of native float32"),
    (np.zeros((2, 2), np.float32), "got 2 of format 'f'"),
    (np.zeros(6, np.float32)[::2], "got 1 of format 'f', strided"),
])  # fmt: skip
def test_what_is_not_a_row_of_float32_is_refused(topk: ModuleType, source: Any, expected: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: topk.argmax(source),
        lambda: topk.top_k(source, 1),
        lambda: topk.log_probability(source, 0),
        lambda: topk.softmax_into(source, np.zeros(3, np.float32)),
        lambda: topk.softmax_into(np.zeros(3, np.float32), source),
        lambda: topk.sample_row(source, 1.0, 0, 1.0, 0.0, 0.0),
    )
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        assert expected in str(caught.value)


def test_an_output_that_does_not_fit_or_cannot_be_written_is_refused(topk: ModuleType) -> None:
    row, out = some_row(4), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="out: expected room for 4 probabilities, got 3"):
        topk.softmax_into(row, out[:3])
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out: expected a writable buffer, got a read-only ndarray"):
        topk.softmax_into(row, out)


@pytest.mark.parametrize("k", [0, -1])
def test_no_choices_cannot_be_asked_for(topk: ModuleType, k: int) -> None:
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        topk.top_k(some_row(4), k)


@pytest.mark.parametrize("choice", [-1, 4])
def test_an_id_outside_the_row_has_no_probability(topk: ModuleType, choice: int) -> None:
    with pytest.raises(ValueError, match=f"id: expected 0 to 3, got {choice}"):
        topk.log_probability(some_row(4), choice)


@pytest.mark.parametrize("wrap", [
    lambda row: array("f", row.tolist()),
    lambda row: (ctypes.c_float * len(row))(*row.tolist()),
    lambda row: memoryview(row.tobytes()).cast("f"),
    lambda row: memoryview(b"\0" + row.tobytes())[1:].cast("f"),
])  # fmt: skip
def test_a_row_may_be_any_buffer_even_an_unaligned_one(topk: ModuleType, wrap: Callable[[Row], Any]) -> None:
    row = some_row(77)
    assert topk.top_k(wrap(row), 7) == topk.top_k(row, 7)


def test_a_row_may_be_read_in_memory_of_another_owner(topk: ModuleType) -> None:
    row = some_row(100)
    view = topk.row_at(row.ctypes.data, 100)
    assert (view.format, view.shape) == ("f", (100,))
    assert topk.top_k(view, 9) == topk.top_k(row, 9)
    row[50] = 99.0
    assert topk.argmax(view) == 50
    topk.softmax_into(view, view)
    assert float(row[50]) == pytest.approx(1.0)


@pytest.mark.parametrize(("address", "length"), [(0, 5), (-8, 5), (4096, 0), (4096, -1), (4096, 1 << 31)])
def test_a_row_that_cannot_be_anywhere_is_refused(topk: ModuleType, address: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"got address {address} and length {length}"):
        topk.row_at(address, length)


def test_buffers_are_released(topk: ModuleType) -> None:
    row, out = array("f", [1, 2, 3]), array("f", [0, 0])
    topk.argmax(row)
    topk.top_k(row, 2)
    topk.sample_row(row, 1.0, 2, 0.9, 0.0, 0.5)
    with pytest.raises(ValueError, match="room"):
        topk.softmax_into(row, out)
    row.append(4)  # an exported buffer can't grow
    out.append(0)


# --- drawing ---


def reference_draw(row: Row, filters: tuple[float, int, float, float], u: float) -> tuple[int, float]:
    """numpy's answer, and how far ``u`` is from the nearest boundary between two answers."""
    temperature, top_k, top_p, min_p = filters
    order = np.argsort(-row, kind="stable")[: top_k or len(row)]
    weights = np.exp((row[order].astype(np.float64) - float(row[order[0]])) / temperature)
    weights /= weights.sum()
    keep = len(order) if top_p >= 1 else int(np.searchsorted(np.cumsum(weights), top_p)) + 1
    keep = max(1, min(keep, int((weights >= min_p * weights[0]).sum())))
    edges = np.cumsum(weights[:keep]) / weights[:keep].sum()
    return int(order[min(int(np.searchsorted(edges, u, side="right")), keep - 1)]), float(np.abs(edges - u).min())


@pytest.mark.parametrize("size", [2, 40, 500, 5000])
@pytest.mark.parametrize(
    "filters",
    [(1.0, 0, 1.0, 0.0), (0.8, 40, 0.95, 0.05), (1.0, 0, 0.9, 0.0), (1.5, 0, 1.0, 0.01), (2.0, 7, 1.0, 0.0), (3.0, 0, 0.999, 1e-6)],
)
def test_draws_agree_with_the_plain_formula(topk: ModuleType, size: int, filters: tuple[float, int, float, float]) -> None:
    row, rng = some_row(size), random.Random(size)
    for u in [0.0, 0.999999, *(rng.random() for _ in range(10))]:
        expected, distance = reference_draw(row, filters, u)
        if distance > 1e-5:
            assert topk.sample_row(row, *filters, u) == expected, f"size {size}, filters {filters}, u {u}"


def test_draws_follow_the_distribution(topk: ModuleType) -> None:
    row = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    drawn = Counter(topk.sample_row(row, 1.0, 0, 1.0, 0.0, (step + 0.5) / 1000) for step in range(1000))
    assert drawn == {0: 100, 1: 600, 2: 300}


def test_a_flat_row_draws_its_last_id_too(topk: ModuleType) -> None:
    row = np.zeros(3000, np.float32)
    assert topk.sample_row(row, 1.0, 0, 1.0, 0.0, 0.0) == 0
    assert topk.sample_row(row, 1.0, 0, 1.0, 0.0, 1 - 2**-53) == 2999
    assert topk.sample_row(row, 1.0, 0, 1.0, 0.0, 0.50001) == 1500
    assert topk.sample_row(row, 1.0, 0, 0.5, 0.0, 1 - 2**-53) == 1499


def test_temperature_zero_is_the_highest_whatever_the_dice_say(topk: ModuleType) -> None:
    row = some_row(300)
    assert {topk.sample_row(row, 0.0, 0, 1.0, 0.0, u) for u in (0.0, 0.5, 0.99)} == {int(row.argmax())}


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-5])
def test_a_temperature_near_zero_is_nearly_that(topk: ModuleType, temperature: float) -> None:
    row = some_row(300)
    assert topk.sample_row(row, temperature, 0, 1.0, 0.0, 0.999) == int(row.argmax())


@pytest.mark.parametrize("filters", [(1.0, 1, 1.0, 0.0), (1.0, 0, 0.0, 0.0), (1.0, 0, 1.0, 1.0)])
def test_the_strictest_filters_leave_the_best(topk: ModuleType, filters: tuple[float, int, float, float]) -> None:
    row = some_row(300)
    assert topk.sample_row(row, *filters, 0.999999) == int(row.argmax())


@pytest.mark.parametrize("numbers", [
    (-0.1, 0, 1.0, 0.0, 0.5), (NAN, 0, 1.0, 0.0, 0.5), (INF, 0, 1.0, 0.0, 0.5), (1.0, -1, 1.0, 0.0, 0.5), (1.0, 0, 1.1, 0.0, 0.5),
    (1.0, 0, -0.1, 0.0, 0.5), (1.0, 0, NAN, 0.0, 0.5), (1.0, 0, 1.0, 1.1, 0.5), (1.0, 0, 1.0, -0.1, 0.5), (1.0, 0, 1.0, 0.0, 1.0),
    (1.0, 0, 1.0, 0.0, -0.1), (1.0, 0, 1.0, 0.0, NAN),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(topk: ModuleType, numbers: tuple[float, int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="sampling: expected temperature >= 0, top_k >= 0"):
        topk.sample_row(some_row(4), *numbers)


@given(rows, filters_, st.floats(0, 1, exclude_max=True))
def test_the_twins_draw_alike(values: list[float], filters: tuple[float, int, float, float], u: float) -> None:
    if not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built, or STREAMCO_NO_NATIVE is set")
    from streamco._native import topk as compiled

    row = array(
        "f", [max(value for value in values if value > -INF), *values[:60]]
    )  # few enough that the compiled twin too weighs them in double
    here, there = (twin.sample_row(row, *filters, u) for twin in (compiled, topk_py))
    assert here == there
