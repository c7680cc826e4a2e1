"""Both ends of a connection of the split protocol: what is allowed when, what is refused, and that the two ends agree."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamco.errors import UsageError
from streamco.wire.row_costs import RowCost
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
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
from streamco.wire.split.server import SplitServer
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import (
    MalformedFrameError,
    ModelMismatchError,
    OverloadedError,
    UnauthorisedError,
    UnexpectedFrameError,
    VerifierFailedError,
    VersionError,
)
from streamco.wire.verify.server import MAX_FAULTS, VerifyServer
from tests.wire.split.peers import BATCHES, COSTS, KEY, LIMITS, MARK, WIDTH, Pair, make_states, states

msgpack: Any = import_module("msgpack")  # it has no types


def greeted(**options: Any) -> Pair:
    return Pair(**options).greet()


def opened(pair: Pair) -> int:
    number = pair.client.open()
    pair.up()
    assert pair.server.send(SplitOpened(number, KEY))
    pair.down()
    return number


def answer(pair: Pair, frame: Rows, **figures: Any) -> None:
    assert pair.server.send(
        make_states(frame.session, frame.round_number, frame.form, frame.states[len(frame.states) - frame.wanted :], **figures)
    )


def refusals(pair: Pair) -> list[tuple[str, int | None, int | None]]:
    return [(each.code, each.session, each.round_number) for each in pair.down() if isinstance(each, Refusal)]


# Hello and welcome


def test_a_hello_is_answered_with_a_welcome_that_says_what_batches_cost() -> None:
    pair = Pair(client_limits=SplitLimits(rows=8))
    [hello] = pair.up()
    assert isinstance(hello, SplitHello)
    assert hello.mark == MARK
    pair.server.welcome()
    [welcome] = pair.down()
    assert isinstance(welcome, SplitWelcome)
    assert (welcome.row_costs, welcome.batches, welcome.stages, welcome.limits) == (COSTS, BATCHES, 1, LIMITS)
    assert pair.client.limits == SplitLimits(context_rows=100, rows=8, sessions=4, rounds=4)


def test_a_client_in_exact_mode_refuses_a_server_that_is_not() -> None:
    for is_exact in (False, True):
        client = SplitClient(SplitCodec(WIDTH), MARK, exact=True)
        [hello] = client.take_messages()
        server = SplitServer(SplitCodec(WIDTH, LIMITS), MARK, model="m", row_costs=COSTS, batches=BATCHES, is_exact=is_exact)
        server.receive(hello)
        server.welcome()
        [message] = server.take_messages()
        if is_exact:
            assert isinstance(client.receive(message), SplitWelcome)
        else:
            with pytest.raises(ModelMismatchError, match="expected a server in exact mode"):
                client.receive(message)


@pytest.mark.parametrize(
    "other", [LayersMark("other", 2, 28, WIDTH), LayersMark("model-digest", 3, 27, WIDTH), LayersMark("model-digest", 2, 27, WIDTH)]
)
def test_layers_of_another_model_are_refused_by_name(other: LayersMark) -> None:
    pair = Pair(mark=other)
    assert pair.up() == []
    [refusal] = pair.down()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "model_mismatch"
    assert str(MARK) in refusal.message
    assert str(other) in refusal.message
    assert pair.server.is_closed
    assert pair.client.is_closed


def test_a_client_that_drafts_tokens_learns_what_it_has_reached_and_the_other_way_round() -> None:
    split, verifier = Pair(), VerifyClient(VerifyCodec(1000), "1000:00")
    assert split.server.receive(verifier.take_messages()[0]) is None
    [refusal] = [verifier.receive(message) for message in split.server.take_messages()]
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error(), VersionError)
    assert "computes middle layers" in refusal.message

    server = VerifyServer(VerifyCodec(1000), "1000:00")
    assert server.receive(split.client.take_messages()[0]) is None
    [refused] = [split.client.receive(message) for message in server.take_messages()]
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error(), VersionError)


def test_nothing_comes_before_the_welcome() -> None:
    pair = Pair()
    with pytest.raises(UsageError, match="not welcomed yet"):
        pair.client.open()
    pair.up()
    pair.server.receive(SplitCodec(WIDTH).encode(SplitOpen(0)))
    assert pair.server.is_closed
    assert [each.code for each in pair.down() if isinstance(each, Refusal)] == ["hello_expected"]


def test_a_wrong_token_ends_the_connection() -> None:
    pair = Pair()
    pair.up()
    pair.server.refuse(UnauthorisedError("token: expected a valid one, got none"))
    assert refusals(pair) == [("unauthorised", None, None)]
    assert pair.server.is_closed
    assert pair.client.is_closed
    with pytest.raises(UsageError, match="closed"):
        pair.client.open()


# Rounds


def test_rows_go_up_and_the_wanted_states_come_down() -> None:
    pair = greeted()
    number = opened(pair)
    pair.client.rows(number, 0, states(5), wanted=2, form="f32")
    [frame] = pair.up()
    assert isinstance(frame, Rows)
    assert np.array_equal(frame.states, states(5))
    answer(pair, frame, queue_us=1, compute_us=2, load_rows=3, steady_rows=4)
    [found] = pair.down()
    assert isinstance(found, States)
    assert np.array_equal(found.states, states(5)[3:])
    assert (found.queue_us, found.compute_us, found.load_rows, found.steady_rows) == (1, 2, 3, 4)
    assert pair.client.length(number) == 5
    assert pair.client.unanswered(number) == 0


def told(pair: Pair, session: int, costs: tuple[RowCost, ...], *, rows: int = 1, wanted: int = 1) -> tuple[RowCost, ...]:
    """The row costs of an answer that the server sends while its batches cost so much."""
    pair.client.rows(session, 0, states(rows), wanted=wanted, form="f32")
    [frame] = pair.up()
    assert isinstance(frame, Rows)
    answer(pair, frame, row_costs=costs)
    [found] = pair.down()
    assert isinstance(found, States)
    return found.row_costs


def test_row_costs_are_told_again_when_they_differ_by_more_than_a_tenth() -> None:
    pair = greeted()
    session = opened(pair)
    assert pair.client.row_costs == COSTS
    dearer, dearest = (RowCost(1, 5499), COSTS[1]), (RowCost(1, 5501), COSTS[1])
    assert told(pair, session, COSTS) == told(pair, session, dearer) == ()
    assert told(pair, session, dearest) == pair.client.row_costs == dearest
    assert told(pair, session, dearer) == ()
    assert told(pair, session, (RowCost(1, 5000), RowCost(64, 40_000))) == COSTS, "cheaper by a tenth"
    other = (RowCost(1, 5000), RowCost(32, 20_000))
    assert told(pair, session, other) == pair.client.row_costs == other


def test_an_answer_as_long_as_all_that_the_client_has_sent_leaves_the_costs_to_the_next() -> None:
    limits, width = SplitLimits(context_rows=4096, rows=2048, sessions=4, rounds=4), WIDTH
    pair = greeted(limits=limits)
    session = opened(pair)
    dearer = (RowCost(1, 9000), COSTS[1])
    count = 40_000 // (4 * width)
    assert told(pair, session, dearer, rows=count, wanted=count) == ()
    assert pair.client.row_costs == COSTS
    assert told(pair, session, dearer, rows=count, wanted=count - 24) == dearer, "its own rows were longer"


def test_row_costs_count_though_their_round_is_over() -> None:
    pair = greeted()
    session = opened(pair)
    pair.client.rows(session, 0, states(1), wanted=1)
    [frame] = pair.up()
    assert isinstance(frame, Rows)
    dearer = (RowCost(1, 9000), COSTS[1])
    answer(pair, frame, row_costs=dearer)
    pair.client.close(session)
    assert pair.down() == []
    assert pair.client.row_costs == dearer


def test_chunks_of_a_prompt_follow_each_other_without_waiting() -> None:
    pair = greeted()
    number = opened(pair)
    for place in range(LIMITS.rounds):
        pair.client.rows(number, 4 * place, states(4), wanted=0)
    with pytest.raises(UsageError, match="unanswered rounds"):
        pair.client.rows(number, 16, states(4), wanted=1)
    frames = [frame for frame in pair.up() if isinstance(frame, Rows)]
    assert len(frames) == LIMITS.rounds
    for frame in frames:
        answer(pair, frame)
    assert [len(each.states) for each in pair.down() if isinstance(each, States)] == [0] * LIMITS.rounds


def test_rows_below_the_end_replace_what_was_there() -> None:
    pair = greeted()
    number = opened(pair)
    for position, count in ((0, 6), (4, 3), (0, 2)):
        pair.client.rows(number, position, states(count), wanted=1)
        [frame] = pair.up()
        assert isinstance(frame, Rows)
        answer(pair, frame)
        pair.down()
        assert pair.client.length(number) == position + count


@pytest.mark.parametrize("position", [3, 5, -1])
def test_the_client_refuses_other_positions_while_a_round_is_unanswered(position: int) -> None:
    pair = greeted()
    number = opened(pair)
    pair.client.rows(number, 0, states(4), wanted=0)
    with pytest.raises(UsageError, match="expected position 4"):
        pair.client.rows(number, position, states(1), wanted=1)


def raw(pair: Pair, position: int, *, session: int = 0, number: int = 0, count: int = 1) -> None:
    data = states(count).tobytes()
    pair.server.receive(msgpack.packb([3, session, number, position, 0, 0, data]))


@pytest.mark.parametrize(
    ("position", "number", "count", "code"),
    [(5, 1, 1, "wrong_base"), (0, 0, 1, "stale_round"), (96, 1, 5, "wrong_base"), (0, 1, 17, "too_large")],
)
def test_the_server_refuses_rounds_that_break_the_order(position: int, number: int, count: int, code: str) -> None:
    pair = greeted()
    session = opened(pair)
    pair.client.rows(session, 0, states(4), wanted=0)
    [frame] = pair.up()
    assert isinstance(frame, Rows)
    answer(pair, frame)
    pair.server.take_messages()
    raw(pair, position, session=session, number=number, count=count)
    assert [msgpack.unpackb(message)[1] for message in pair.server.take_messages()] == [code]
    pair.client.rows(session, 4, states(1), wanted=1)  # the session goes on
    assert len(pair.up()) == 1


def test_a_replayed_frame_is_refused() -> None:
    pair = greeted()
    session = opened(pair)
    pair.client.rows(session, 0, states(4), wanted=0)
    [message] = pair.client.take_messages()
    frame = pair.server.receive(message)
    assert isinstance(frame, Rows)
    answer(pair, frame)
    assert pair.server.receive(message) is None
    assert refusals(pair) == []  # the client has no such round any more, so it drops the refusal
    assert pair.server.faults == 0


def test_rows_beyond_the_context_are_refused() -> None:
    pair = greeted(limits=SplitLimits(context_rows=6, rows=16, sessions=2))
    session = opened(pair)
    pair.client.rows(session, 0, states(7), wanted=1)
    assert pair.up() == []
    assert refusals(pair) == [("context_full", session, 0)]
    assert pair.client.length(session) == 0
    number = pair.client.open(reserve=7)
    assert pair.up() == []
    assert refusals(pair) == [("context_full", number, None)]


def test_a_refused_round_takes_those_after_it_along() -> None:
    pair = greeted()
    session = opened(pair)
    for place in range(3):
        pair.client.rows(session, 4 * place, states(4), wanted=0)
    frames = [frame for frame in pair.up() if isinstance(frame, Rows)]
    answer(pair, frames[0])
    pair.server.refuse(OverloadedError("expected less", session=session, round_number=1, retry_after=1.0))
    found = pair.down()
    assert [type(each).__name__ for each in found] == ["States", "Refusal"], "the second refusal follows from the first"
    assert [(each.code, each.round_number) for each in found if isinstance(each, Refusal)] == [("overloaded", 1)]
    assert pair.client.length(session) == 4
    assert pair.client.unanswered(session) == 0
    assert not pair.server.send(make_states(session, 1, "f16", states(0)))
    pair.client.rows(session, 4, states(2), wanted=1)
    [frame] = pair.up()
    assert isinstance(frame, Rows)
    answer(pair, frame)
    assert len(pair.down()) == 1


def test_a_round_beyond_the_context_is_refused_before_the_rounds_that_wait_are_answered() -> None:
    pair = greeted(limits=SplitLimits(context_rows=6, rows=16, sessions=2))
    session = opened(pair)
    pair.client.rows(session, 0, states(4), wanted=1, form="f32")
    pair.client.rows(session, 4, states(4), wanted=1, form="f32")
    [frame] = pair.up()
    assert refusals(pair) == [("context_full", session, 1)]
    assert (pair.client.length(session), pair.client.unanswered(session)) == (4, 1)
    assert isinstance(frame, Rows)
    answer(pair, frame)
    assert [type(each).__name__ for each in pair.down()] == ["States"]


# Sessions


def test_sessions_are_opened_closed_and_bounded() -> None:
    pair = greeted()
    numbers = [opened(pair) for _ in range(LIMITS.sessions)]
    assert pair.server.sessions == tuple(numbers)
    surplus = pair.client.open()
    pair.up()
    assert refusals(pair) == [("too_many_sessions", surplus, None)]
    pair.client.close(numbers[0])
    pair.client.close(numbers[0])
    assert pair.up() == [Close(numbers[0])]
    assert not pair.server.send(SplitOpened(numbers[0], KEY))
    raw(pair, 0, session=numbers[0])
    assert [msgpack.unpackb(message)[1] for message in pair.server.take_messages()] == ["unknown_session"]


def test_a_session_is_resumed_with_the_positions_that_the_server_holds() -> None:
    pair = greeted()
    number = pair.client.resume(KEY)
    with pytest.raises(UsageError, match="waits for the answer"):
        pair.client.rows(number, 0, states(1), wanted=1)
    assert pair.up() == [SplitResume(number, KEY)]
    raw(pair, 0, session=number)
    assert [msgpack.unpackb(message)[1] for message in pair.server.take_messages()] == ["unexpected"]
    assert pair.server.resume(SplitResumed(number, 7))
    assert pair.down() == [SplitResumed(number, 7)]
    assert pair.client.length(number) == 7
    pair.client.rows(number, 7, states(1), wanted=1)
    assert len(pair.up()) == 1


def test_an_error_about_a_session_ends_it_on_both_sides() -> None:
    pair = greeted()
    number = opened(pair)
    pair.server.refuse(VerifierFailedError("expected states, got an error", session=number))
    assert refusals(pair) == [("failed", number, None)]
    assert pair.server.sessions == ()
    with pytest.raises(UsageError, match="is not open"):
        pair.client.length(number)


def test_a_session_number_is_never_used_twice() -> None:
    pair = greeted()
    opened(pair)
    pair.server.receive(SplitCodec(WIDTH).encode(SplitOpen(0)))
    assert refusals(pair) == [("session_number", None, None)]


# Faults


def test_a_client_with_too_many_faults_is_not_read_any_more() -> None:
    pair = greeted()
    for _ in range(MAX_FAULTS):
        assert pair.server.receive(b"\xc1") is None
    assert pair.server.is_closed
    assert pair.server.faults == MAX_FAULTS
    assert [each[0] for each in refusals(pair)][-1] == "too_many_faults"
    assert pair.server.receive(b"\x90") is None


def test_text_is_malformed() -> None:
    pair = greeted()
    assert pair.server.receive("text") is None
    assert refusals(pair) == [("malformed", None, None)]
    with pytest.raises(MalformedFrameError, match="got text"):
        pair.client.receive("text")
    assert pair.client.is_closed


@pytest.mark.parametrize(
    "frame",
    [
        SplitWelcome(2, "m", LIMITS, 60, 1, COSTS, BATCHES),
        SplitOpened(0, KEY),
        SplitResumed(0, 3),
        make_states(0, 0, "f16", states(2)),
        make_states(0, 1, "f16", states(1)),
        Refusal("overloaded", "", 0, 1),
    ],
)
def test_a_server_that_breaks_the_order_is_not_trusted_any_more(frame: Any) -> None:
    pair = greeted()
    number = opened(pair)
    for place in range(2):
        pair.client.rows(number, place, states(1), wanted=1)
    with pytest.raises((UnexpectedFrameError, MalformedFrameError)):
        pair.client.receive(SplitCodec(WIDTH).encode(frame))
    assert pair.client.is_closed


def test_answers_about_what_is_over_are_dropped() -> None:
    pair = greeted()
    number = opened(pair)
    codec = SplitCodec(WIDTH)
    assert pair.client.receive(codec.encode(make_states(number, 7, "f16", states(0)))) is None
    assert pair.client.receive(codec.encode(make_states(99, 0, "f16", states(0)))) is None
    assert pair.client.receive(codec.encode(SplitOpened(99, KEY))) is None
    assert pair.client.receive(codec.encode(SplitResumed(99, 0))) is None
    assert pair.client.receive(codec.encode(Refusal("overloaded", "", number, 7))) is None
    assert pair.client.receive(codec.encode(Refusal("evicted", "", 99))) is None


def test_refusals_of_rounds_come_in_the_order_of_the_rounds() -> None:
    pair = greeted()
    session = opened(pair)
    for place in range(4):
        pair.client.rows(session, place, states(1), wanted=0)
    pair.up()
    pair.server.refuse(OverloadedError("expected less", session=session, round_number=1))
    found = [pair.client.codec.decode_down(message) for message in pair.server.take_messages()]
    refused = [(each.code, each.round_number) for each in found if isinstance(each, Refusal)]
    assert refused == [("overloaded", 1), ("stale_round", 2), ("stale_round", 3)]


@pytest.mark.parametrize(("asked", "got"), [("f32", "f16"), ("f32", "i8"), ("f16", "i8"), ("i8", "f16")])
def test_states_of_a_format_that_was_not_asked_for_are_refused(asked: StateFormat, got: StateFormat) -> None:
    pair = greeted()
    number = opened(pair)
    pair.client.rows(number, 0, states(1), wanted=1, form=asked)
    with pytest.raises(MalformedFrameError, match=f"expected states as {asked} or f32, got {got}"):
        pair.client.receive(SplitCodec(WIDTH).encode(make_states(number, 0, got, states(1))))
    assert pair.client.is_closed


@pytest.mark.parametrize("asked", ["f32", "f16", "i8"])
def test_states_may_always_be_32_bit_floats(asked: StateFormat) -> None:
    pair = greeted()
    number = opened(pair)
    pair.client.rows(number, 0, states(1), wanted=1, form=asked)
    assert isinstance(pair.client.receive(SplitCodec(WIDTH).encode(make_states(number, 0, "f32", states(1)))), States)


# Any order that the client's methods allow


class Ends(RuleBasedStateMachine):
    """Sessions, rounds, answers and refusals in any order; the two ends agree whenever nothing is on the way."""

    numbers: Bundle[int] = Bundle("numbers")

    @initialize()
    def begin(self) -> None:
        self.pair = greeted(limits=SplitLimits(context_rows=40, rows=8, sessions=3, rounds=4))
        self.waiting: dict[int, list[Rows]] = {}

    def deliver(self) -> None:
        for frame in self.pair.up():
            match frame:
                case SplitOpen():
                    assert self.pair.server.send(SplitOpened(frame.session, KEY))
                    self.waiting[frame.session] = []
                case Rows():
                    self.waiting[frame.session].append(frame)
                case Close():
                    del self.waiting[frame.session]
        for found in self.pair.down():
            if isinstance(found, Refusal) and found.session is not None and found.round_number is None:
                self.waiting.pop(found.session, None)

    def alive(self, number: int) -> bool:
        return number in self.waiting

    @rule(target=numbers)
    def open(self) -> int:
        number = self.pair.client.open()
        self.deliver()
        return number

    @rule(number=numbers, back=st.integers(0, 5), count=st.integers(1, 8))
    def send(self, number: int, back: int, count: int) -> None:
        if not self.alive(number) or self.pair.client.unanswered(number) >= LIMITS.rounds:
            return
        length = self.pair.client.length(number)
        position = length if self.pair.client.unanswered(number) else max(0, length - back)
        self.pair.client.rows(number, position, states(count, position), wanted=min(count, back), form="f32")
        self.deliver()

    @rule(number=numbers)
    def answer(self, number: int) -> None:
        if self.alive(number) and self.waiting[number]:
            answer(self.pair, self.waiting[number].pop(0))
            [found] = self.pair.down()
            assert isinstance(found, States)

    @rule(number=numbers)
    def refuse(self, number: int) -> None:
        if self.alive(number) and self.waiting[number]:
            first = self.waiting[number][0]
            self.waiting[number].clear()
            self.pair.server.refuse(OverloadedError("busy", session=number, round_number=first.round_number))
            self.pair.down()
            assert self.pair.client.length(number) == first.position

    @rule(number=numbers)
    def close(self, number: int) -> None:
        if self.alive(number):
            self.pair.client.close(number)
            self.deliver()

    @precondition(lambda self: hasattr(self, "pair"))
    @invariant()
    def agree(self) -> None:
        assert set(self.pair.server.sessions) == set(self.waiting)
        assert self.pair.server.faults == 0
        for number, rows in self.waiting.items():
            assert self.pair.client.unanswered(number) == len(rows)
            if rows:
                assert self.pair.client.length(number) == rows[-1].end


TestEnds = Ends.TestCase
TestEnds.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
