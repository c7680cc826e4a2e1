"""Hidden states as bytes: what comes back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from streamco.wire.tensors import BLOCK, StateFormat, StateFormatError, decode_states, encode_states, state_bytes

FORMS: tuple[StateFormat, ...] = ("f32", "f16", "i8")
shapes = st.tuples(st.integers(0, 5), st.integers(1, 100))
moderate = shapes.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=st.floats(-60_000, 60_000, width=32)))
finite = shapes.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))


def round_trip(states: NDArray[np.float32], form: StateFormat) -> tuple[StateFormat, NDArray[np.float32]]:
    used, data = encode_states(states, form)
    rows, width = states.shape
    assert len(data) == state_bytes(rows, width, used)
    found = decode_states(data, rows, width, used)
    assert found.dtype == np.float32
    assert found.shape == states.shape
    return used, found


@given(finite)
def test_32_bits_keep_every_number(states: NDArray[np.float32]) -> None:
    used, found = round_trip(states, "f32")
    assert used == "f32"
    assert np.array_equal(found, states)


@given(moderate)
def test_16_bits_keep_what_a_16_bit_float_keeps(states: NDArray[np.float32]) -> None:
    used, found = round_trip(states, "f16")
    assert used == "f16"
    assert np.array_equal(found, states.astype(np.float16).astype(np.float32))


@given(moderate)
def test_8_bits_are_off_by_half_a_step_of_their_block(states: NDArray[np.float32]) -> None:
    used, found = round_trip(states, "i8")
    assert used == "i8"
    for start in range(0, states.shape[1], BLOCK):
        block, back = states[:, start : start + BLOCK], found[:, start : start + BLOCK]
        step = np.abs(block).max(axis=1, initial=0.0) / 127 * (1 + 2**-9) + 2**-23  # the scale is a 16-bit float, rounded up
        assert (np.abs(block - back) <= step[:, None] * 0.51 + 2**-24).all()


@given(finite, st.sampled_from(FORMS))
def test_no_finite_number_is_lost(states: NDArray[np.float32], form: StateFormat) -> None:
    used, found = round_trip(states, form)
    assert used in (form, "f32")
    assert np.isfinite(found).all()


@pytest.mark.parametrize("form", ["f16", "i8"])
def test_a_state_that_is_too_large_is_sent_in_32_bits(form: StateFormat) -> None:
    states = np.array([[1.0, 1e30]], np.float32)
    used, found = round_trip(states, form)
    assert used == "f32"
    assert np.array_equal(found, states)


def test_the_largest_16_bit_float_is_sent_in_16_bits() -> None:
    assert encode_states(np.array([[65504.0]], np.float32), "f16")[0] == "f16"
    assert encode_states(np.array([[65505.0]], np.float32), "f16")[0] == "f32"


@pytest.mark.parametrize(("form", "size"), [("f32", 2304), ("f16", 1152), ("i8", 612)])
def test_bytes_of_a_row_of_smollm2(form: StateFormat, size: int) -> None:
    assert state_bytes(1, 576, form) == size
    assert len(encode_states(np.ones((1, 576), np.float32), form)[1]) == size


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_by_both_ends(form: StateFormat, bad: float) -> None:
    states = np.array([[1.0, bad]], np.float32)
    with pytest.raises(StateFormatError, match="expected finite numbers"):
        encode_states(states, form)
    kind = np.float32 if form == "f32" else np.float16
    data = np.array([1.0, bad], kind).tobytes() if form != "i8" else np.array([bad], np.float16).tobytes() + b"\1\1"
    with pytest.raises(StateFormatError, match="expected finite numbers"):
        decode_states(data, 1, 2, form)


@given(st.binary(max_size=400), st.integers(0, 4), st.integers(1, 70), st.sampled_from(FORMS))
def test_any_bytes_are_states_or_a_documented_error(data: bytes, rows: int, width: int, form: StateFormat) -> None:
    try:
        found = decode_states(data, rows, width, form)
    except StateFormatError:
        return
    assert found.shape == (rows, width)
    assert np.isfinite(found).all()
    assert len(data) == state_bytes(rows, width, form)


@given(shapes, st.sampled_from(FORMS), st.integers(0, 2**32 - 1))
def test_bytes_of_the_right_size_are_read_or_refused(shape: tuple[int, int], form: StateFormat, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(state_bytes(*shape, form))
    try:
        assert np.isfinite(decode_states(data, *shape, form)).all()
    except StateFormatError as error:
        assert "finite" in str(error)  # noqa: PT017


@pytest.mark.parametrize("extra", [-1, 1])
@pytest.mark.parametrize("form", FORMS)
def test_another_size_is_refused(form: StateFormat, extra: int) -> None:
    data = bytes(state_bytes(3, 40, form) + extra)
    with pytest.raises(StateFormatError, match="for 3 rows of 40"):
        decode_states(data, 3, 40, form)


@pytest.mark.parametrize(("rows", "width"), [(-1, 4), (1, 0), (1, -4)])
def test_a_shape_without_numbers_is_refused(rows: int, width: int) -> None:
    with pytest.raises(StateFormatError, match="expected rows of at least 1 number"):
        state_bytes(rows, width, "f32")


def test_only_rows_are_encoded() -> None:
    with pytest.raises(StateFormatError, match="expected shape"):
        encode_states(np.zeros(4, np.float32), "f32")
    with pytest.raises(StateFormatError, match="expected shape"):
        encode_states(np.zeros((4, 0), np.float32), "f32")


def test_32_bits_are_read_without_a_copy() -> None:
    _, data = encode_states(np.ones((2, 8), np.float32), "f32")
    assert not decode_states(data, 2, 8, "f32").flags.owndata
