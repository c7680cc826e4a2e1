"""One endpoint's part: what it knows of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState, ReadAhead


def make(state: AttemptState = AttemptState.WAITING, *, continues: bool = True) -> Attempt:
    attempt = Attempt(AttemptPlan("device", 0.0, continues=continues, vocabulary="v"))
    attempt.state = state
    return attempt


# Rate


def test_the_rate_is_that_of_the_tokens_behind_the_first_ones() -> None:
    attempt = make()
    attempt.count(3, 1.0)  # a burst: it says nothing of the rate
    attempt.count(2, 1.1)
    attempt.count(2, 1.2)
    assert attempt.rate == pytest.approx(20.0)


@pytest.mark.parametrize("counts", [[], [5], [1, 3], [1, 1, 1, 1]])
def test_too_few_tokens_tell_no_rate(counts: list[int]) -> None:
    attempt = make()
    for index, count in enumerate(counts):
        attempt.count(count, 1.0 + index)
    assert attempt.rate is None


def test_a_rate_that_all_at_once_would_give_is_none() -> None:
    attempt = make()
    attempt.count(1, 1.0)
    attempt.count(9, 1.0)
    assert attempt.rate is None


def test_only_the_first_tokens_count_because_later_a_paced_reader_may_hold_the_endpoint_back() -> None:
    attempt = make()
    for index in range(32):
        assert attempt.is_new
        attempt.count(1, index * 0.1)
    assert attempt.rate == pytest.approx(10.0)
    for index in range(100):
        attempt.count(1, 10.0 + index)
    assert attempt.rate == pytest.approx(10.0)
    assert attempt.tokens == 132
    assert not attempt.is_new


@given(st.lists(st.integers(1, 5), min_size=8, max_size=40), st.floats(0.5, 500.0))
def test_steady_tokens_have_their_own_rate_whatever_comes_together(counts: list[int], rate: float) -> None:
    attempt = make()
    made = 0
    for count in counts:
        made += count
        attempt.count(count, 2.0 + made / rate)
    assert attempt.rate == pytest.approx(rate)


def test_the_time_to_the_first_token_is_counted_from_opening() -> None:
    attempt = make()
    assert attempt.ttft is None
    attempt.opened = 0.5
    assert attempt.ttft is None
    attempt.count(1, 1.25)
    attempt.count(1, 2.0)
    assert attempt.ttft == pytest.approx(0.75)


# Who may take over

ABLE = {
    AttemptState.WAITING,
    AttemptState.OPEN,
    AttemptState.LOST,
    AttemptState.CANCELLED,
    AttemptState.SPARED,
    AttemptState.PREPARING,
    AttemptState.PREPARED,
}


@pytest.mark.parametrize("state", AttemptState)
def test_who_has_not_failed_and_does_not_write_may_take_over(state: AttemptState) -> None:
    assert make(state).can_take_over is (state in ABLE)
    assert not make(state, continues=False).can_take_over


def test_nobody_takes_over_twice() -> None:
    attempt = make(AttemptState.SPARED).take_over(10, 1.0)
    assert attempt.state is AttemptState.WON
    for state in AttemptState:
        attempt.state = state
        assert not attempt.can_take_over


def test_who_ended_may_take_over_if_it_had_something_to_say() -> None:
    attempt = make(AttemptState.ENDED)
    assert not attempt.can_take_over
    attempt.count(1, 1.0)
    assert attempt.can_take_over


def test_who_failed_may_be_asked_at_last_if_it_only_read_ahead() -> None:
    reading, unable = (
        make(AttemptState.SPARED).prepare(1.0, ReadAhead(40, 140)),
        make(AttemptState.SPARED, continues=False).prepare(1.0, ReadAhead(40, 140)),
    )
    writer = reading.take_over(10, 2.0)
    assert not reading.is_last_resort
    for attempt in (reading, unable, writer):
        attempt.state = AttemptState.FAILED
    assert [attempt.is_last_resort for attempt in (reading, unable, writer, make(AttemptState.FAILED))] == [True, False, False, False]
    assert not reading.can_take_over


# Parts


def test_an_endpoints_next_part_knows_what_it_has_read_and_nothing_else() -> None:
    attempt = make(AttemptState.SPARED)
    first = attempt.prepare(1.0, ReadAhead(40, 140))
    assert first.finish_reading() == ReadAhead(40, 140)
    first.count(1, 1.5)
    for part, state in ((first.prepare(2.0, ReadAhead(50, 10)), AttemptState.PREPARING), (first.take_over(60, 2.0), AttemptState.WON)):
        assert (part.source, part.state, part.opened, part.kept, part.plan.vocabulary) == ("device", state, 2.0, 40, "v")
        assert (part.tokens, part.first_token, part.stopped, part.error, part.is_stopping) == (0, None, None, None, False)
    assert first.take_over(60, 2.0).takeover_position == 60
    assert first.prepare(2.0, ReadAhead(50, 10)).takeover_position is None


LIVE = {AttemptState.OPEN, AttemptState.WON, AttemptState.LOST, AttemptState.PREPARING}


@pytest.mark.parametrize("state", AttemptState)
def test_a_leg_lives_while_it_works_and_until_its_cancel_has_taken_effect(state: AttemptState) -> None:
    attempt = make(state)
    assert attempt.is_live is (state in LIVE)
    attempt.is_stopping = True
    assert attempt.is_live
