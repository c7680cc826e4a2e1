"""Frames of states to bytes and back: round trips, the layout as msgpack's own package reads it, sizes, and an error for every damage."""

from __future__ import annotations

import tracemalloc
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streamco.wire.row_costs import COSTS_BYTES, RowCost
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
    FORMATS,
    Close,
    LayersMark,
    Refusal,
    Rows,
    SplitHello,
    SplitLimits,
    SplitOpen,
    SplitOpened,
    SplitResume,
    SplitResumed,
    SplitWelcome,
    States,
)
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError, VerifyProtocolError
from tests.support.examples import examples
from tests.wire.split.peers import BATCHES, COSTS, KEY, LIMITS, MARK, WIDTH, make_states, states

msgpack: Any = import_module("msgpack")  # it has no types
CODEC = SplitCodec(WIDTH, LIMITS)


def rows(count: int = 2, *, form: StateFormat = "f32", wanted: int = 0) -> Rows:
    return Rows(1, 2, 3, wanted, form, states(count))


@pytest.mark.parametrize(
    "frame",
    [
        SplitHello(2, 2, MARK, "token", "agent"),
        SplitHello(1, 9, LayersMark("", 0, 1, 1)),
        SplitOpen(1, 20),
        SplitResume(1, KEY),
        Close(3),
    ],
)
def test_frames_without_states_come_back(frame: Any) -> None:
    assert CODEC.decode_up(CODEC.encode(frame)) == frame


@pytest.mark.parametrize(
    "frame",
    [
        SplitWelcome(2, "m", LIMITS, 60, 1, COSTS, BATCHES),
        SplitOpened(1, KEY),
        SplitResumed(1, 7),
        Refusal("overloaded", "expected", 1, 2, 30),
    ],
)
def test_answers_without_states_come_back(frame: Any) -> None:
    assert CODEC.decode_down(CODEC.encode(frame)) == frame


finite = st.floats(-60_000, 60_000, width=32)
some_states = st.integers(1, 16).flatmap(lambda count: arrays.arrays(np.float32, (count, WIDTH), elements=finite))


@given(some_states, st.integers(0, 16), st.sampled_from(FORMATS))
@example(np.full((1, WIDTH), 2.0**-126, np.float32), 0, "i8")  # below the smallest scale, which is a 16-bit float
def test_rows_come_back_as_their_format_keeps_them(sent: Any, wanted: int, form: StateFormat) -> None:
    frame = Rows(1, 2, 3, min(wanted, len(sent)), form, sent)
    found = CODEC.decode_up(CODEC.encode(frame))
    assert isinstance(found, Rows)
    assert (found.session, found.round_number, found.position, found.wanted, found.form) == (1, 2, 3, frame.wanted, form)
    assert found.end == 3 + len(sent)
    largest = float(np.abs(sent).max())
    bound = {"f32": 0.0, "f16": max(largest * 2**-11, 2**-24), "i8": max(largest / 127, 2**-24)}[form]
    assert np.abs(found.states - sent).max() <= bound


@given(some_states, st.sampled_from(FORMATS))
def test_answers_come_back_as_their_format_keeps_them(sent: Any, form: StateFormat) -> None:
    found = CODEC.decode_down(CODEC.encode(States(1, 2, form, sent, 3, 4, 5, 6)))
    assert isinstance(found, States)
    assert (found.session, found.round_number, found.queue_us, found.compute_us) == (1, 2, 3, 4)
    assert (found.load_rows, found.steady_rows) == (5, 6)
    again = CODEC.decode_down(CODEC.encode(make_states(1, 2, form, found.states)))
    assert isinstance(again, States)
    assert again.row_costs == ()
    if form != "i8":
        assert np.array_equal(again.states, found.states)


def test_an_answer_may_have_row_costs_and_later_additions_after_them_are_ignored() -> None:
    message = CODEC.encode(States(1, 2, "f32", states(1), 3, 4, 5, 6, COSTS))
    found = CODEC.decode_down(message)
    assert isinstance(found, States)
    assert found.row_costs == COSTS
    fields = msgpack.unpackb(message)
    assert fields[5:] == [3, 4, 5, 6, [[1, 5000], [64, 40000]]]
    later = CODEC.decode_down(msgpack.packb([*fields, "more"]))
    assert isinstance(later, States)
    assert later.row_costs == COSTS


def test_the_longest_row_costs_take_the_bytes_that_are_said() -> None:
    longest = tuple(RowCost((1 << 32) - 1 - size, (1 << 32) - 1) for size in range(64))
    without = CODEC.encode(make_states(1, 2, "f32", states(1)))
    assert len(CODEC.encode(make_states(1, 2, "f32", states(1), row_costs=longest))) - len(without) == COSTS_BYTES


@pytest.mark.parametrize("costs", [[[1, 0]], [[0, 5]], [[1]], [1, 2], None, [[1, 1 << 32]], [[size, 5] for size in range(1, 66)]])
def test_row_costs_of_an_answer_that_cannot_be_are_refused(costs: Any) -> None:
    fields = msgpack.unpackb(CODEC.encode(States(1, 2, "f32", states(1), 3, 4, 5, 6)))
    with pytest.raises(MalformedFrameError, match="frame from the server"):
        CODEC.decode_down(msgpack.packb([*fields, costs]))


def test_an_answer_may_have_no_states() -> None:
    found = CODEC.decode_down(CODEC.encode(make_states(1, 2, "f16", states(0))))
    assert isinstance(found, States)
    assert found.states.shape == (0, WIDTH)


def test_the_layout_is_that_of_the_specification() -> None:
    sent = np.zeros((1, WIDTH), np.float32)
    assert msgpack.unpackb(CODEC.encode(Rows(1, 2, 3, 1, "f16", sent))) == [3, 1, 2, 3, 1, 1, bytes(2 * WIDTH)]
    assert msgpack.unpackb(CODEC.encode(States(1, 2, "f32", sent, 3, 4, 5, 6))) == [18, 1, 2, 0, bytes(4 * WIDTH), 3, 4, 5, 6]
    assert msgpack.unpackb(CODEC.encode(SplitWelcome(2, "m", LIMITS, 60, 1, COSTS, BATCHES))) == [
        16,
        2,
        "m",
        [100, 16, 4, 4],
        60,
        1,
        [[1, 5000], [64, 40000]],
        [64, 9, 3],
        False,
    ]
    assert msgpack.unpackb(CODEC.encode(SplitHello(2, 2, MARK))) == [1, 2, 2, ["model-digest", 2, 28, WIDTH], None, ""]


def test_a_state_too_large_for_its_format_is_sent_in_32_bits() -> None:
    found = CODEC.decode_up(CODEC.encode(Rows(1, 2, 3, 0, "f16", np.full((1, WIDTH), 7e4, np.float32))))
    assert isinstance(found, Rows)
    assert (found.form, float(found.states[0, 0])) == ("f32", 7e4)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", FORMATS)
def test_numbers_that_are_not_finite_are_refused_at_both_ends(number: float, form: StateFormat) -> None:
    spoiled = states(2)
    spoiled[1, 3] = number
    for frame in (Rows(1, 2, 3, 0, form, spoiled), make_states(1, 2, form, spoiled)):
        with pytest.raises(MalformedFrameError, match="finite") as refused:
            CODEC.encode(frame)
        assert (refused.value.session, refused.value.round_number) == (1, 2)
    if form != "i8":
        data = spoiled.astype("<f4" if form == "f32" else "<f2").tobytes()
        for message, decode in (
            (msgpack.packb([3, 1, 2, 3, 0, FORMATS.index(form), data]), CODEC.decode_up),
            (msgpack.packb([18, 1, 2, FORMATS.index(form), data, 0, 0, 0, 0]), CODEC.decode_down),
        ):
            with pytest.raises(MalformedFrameError, match="finite") as refused:
                decode(message)
            assert (refused.value.session, refused.value.round_number) == (1, 2)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([3, 1, 2, 3, 0, 0, b""], "at least 1 row"),
        ([3, 1, 2, 3, 2, 0, bytes(4 * WIDTH)], "no more wanted"),
        ([3, 1, 2, 3, 0, 0, bytes(4 * WIDTH - 1)], "expected rows of 32 bytes in f32"),
        ([3, 1, 2, 3, 0, 1, bytes(3 * WIDTH)], "expected rows of 16 bytes in f16"),
        ([3, 1, 2, 3, 0, 3, b""], "frame from the client"),
        ([3, 1, 2, -1, 0, 0, bytes(4 * WIDTH)], "frame from the client"),
        ([3, 1, 2, 3, 0, 0, "text"], "frame from the client"),
        ([3, 1, 2, 3, 0, 0], "frame from the client"),
        ([9, 1], "frame from the client"),
        ([1, 2, 2, ["m", 0, 0, 8]], "frame from the client"),
        ([1, 2, 2, ["m", 0, 1, 0]], "frame from the client"),
    ],
)
def test_damage_has_an_error_that_says_what_is_wrong(fields: list[Any], problem: str) -> None:
    with pytest.raises(MalformedFrameError, match=problem):
        CODEC.decode_up(msgpack.packb(fields))


def test_more_rows_than_the_limit_are_refused_and_named() -> None:
    with pytest.raises(FrameSizeError, match="at most 16 rows, got 17") as refused:
        CODEC.encode(rows(17))
    assert (refused.value.session, refused.value.round_number) == (1, 2)
    with pytest.raises(FrameSizeError, match="at most 16 rows, got 17"):
        CODEC.decode_up(msgpack.packb([3, 1, 2, 3, 0, 1, bytes(2 * WIDTH * 17)]))
    with pytest.raises(FrameSizeError, match="at most 16 rows, got 17"):
        CODEC.decode_down(msgpack.packb([18, 1, 2, 0, bytes(4 * WIDTH * 17), 0, 0, 0, 0]))


def test_states_of_another_width_are_refused() -> None:
    with pytest.raises(MalformedFrameError, match=r"expected shape \(rows, 8\), got \(2, 9\)"):
        CODEC.encode(Rows(1, 2, 3, 0, "f32", np.zeros((2, 9), np.float32)))
    with pytest.raises(MalformedFrameError, match="expected shape"):
        CODEC.encode(make_states(1, 2, "f32", np.zeros(8, np.float32)))


def test_a_message_above_the_limit_is_refused_before_memory_is_taken() -> None:
    codec = SplitCodec(4096, SplitLimits(rows=4))
    message = msgpack.packb([3, 1, 2, 3, 0, 2, bytes(20 << 20)])
    tracemalloc.start()
    try:
        with pytest.raises(FrameSizeError, match="frame: expected at most"):
            codec.decode_up(message)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_the_largest_rows_fit_a_frame() -> None:
    codec = SplitCodec(4096, SplitLimits(rows=32))
    message = codec.encode(Rows((1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, 32, "f32", np.ones((32, 4096), np.float32)))
    assert len(message) <= codec.frame_bytes
    assert isinstance(codec.decode_up(message), Rows)


def test_states_in_32_bits_share_the_messages_memory() -> None:
    message = CODEC.encode(rows())
    found = CODEC.decode_up(message)
    assert isinstance(found, Rows)
    assert np.shares_memory(found.states, np.frombuffer(message, np.uint8))
    assert not found.states.flags.writeable


def test_the_smaller_limits_hold() -> None:
    both = SplitCodec(8, SplitLimits(rows=9, sessions=2)).within(SplitLimits(rows=20, context_rows=50, rounds=3))
    assert both.limits == SplitLimits(context_rows=50, rows=9, sessions=2, rounds=3)


nonsense = st.lists(st.one_of(st.integers(-9, 1 << 34), st.binary(max_size=70), st.text(max_size=3)), max_size=9)


@given(st.one_of(st.binary(max_size=80), nonsense.map(msgpack.packb)))
@settings(max_examples=examples(200, thorough=2000))
def test_nonsense_gives_a_frame_or_an_error_of_the_protocol(message: bytes) -> None:
    for decode in (CODEC.decode_up, CODEC.decode_down):
        try:
            frame: Any = decode(message)
        except VerifyProtocolError:
            continue
        assert isinstance(
            frame, SplitHello | SplitOpen | Rows | SplitResume | Close | SplitWelcome | SplitOpened | States | SplitResumed | Refusal
        )


def test_row_costs_are_bounded() -> None:
    codec = SplitCodec(8)
    for count in (0, 65):
        with pytest.raises(MalformedFrameError):
            codec.decode_down(codec.encode(SplitWelcome(2, "m", LIMITS, 60, 1, (RowCost(1, 1),) * count, BATCHES)))
