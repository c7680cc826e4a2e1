"""Averages that forget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.speculation.averages import DecayedRatio, DraftStepTimes, Ewma, HitRate, RemoteStepTime, RoundTrip
from streamco.profiles.row_costs import RowCosts

VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60)
TIMES = st.floats(1e-4, 10.0)


@given(VALUES, st.floats(0.0, 1.0), st.floats(0.5, 20.0))
def test_a_decayed_ratio_is_the_weighted_mean_of_its_prior_and_its_events(values: list[float], prior: float, events: float) -> None:
    ratio = DecayedRatio(0.9, prior, events)
    for value in values:
        ratio.record(value)
    weights = [0.9**age for age in reversed(range(len(values)))]
    left = events * 0.9 ** len(values)
    expected = (left * prior + sum(w * v for w, v in zip(weights, values, strict=True))) / (left + sum(weights))
    assert ratio.value == pytest.approx(expected, abs=1e-9)
    assert min([prior, *values]) - 1e-9 <= ratio.value <= max([prior, *values]) + 1e-9


@given(VALUES)
def test_a_ratio_without_decay_is_the_plain_mean(values: list[float]) -> None:
    ratio = DecayedRatio(1.0)
    for value in values:
        ratio.record(value)
    assert ratio.value == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_a_prior_that_does_not_decay_is_added_to_what_was_measured() -> None:
    ratio = DecayedRatio(0.5)
    assert ratio.with_prior(0.25, 4.0) == (1.0, 4.0)
    ratio.record(1.0)
    ratio.record(0.0)
    assert ratio.with_prior(0.25, 4.0) == (1.5, 5.5)


@given(VALUES, st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_a_moving_average_stays_between_what_it_has_seen(values: list[float], believed: float, weight: float) -> None:
    average = Ewma(believed, weight)
    for value in values:
        average.record(value)
    assert min([believed, *values]) - 1e-9 <= average.value <= max([believed, *values]) + 1e-9


def test_a_step_beside_a_stream_counts_until_another_is_known() -> None:
    steps = DraftStepTimes([0.02, 0.03])
    steps.record(1, 10, 0.4, is_beside_stream=True)
    assert steps.times[0] == pytest.approx(0.024), "half of the prior, and half of 0.7 of what it took"
    for _ in range(50):
        steps.record(1, 10, 0.25, is_beside_stream=True)
    assert steps.times[0] == pytest.approx(0.02, rel=0.01), "as long as the prior says"
    steps.record(1, 10, 0.1)
    assert steps.times == pytest.approx([0.01, 0.015]), "the first other time takes their place"
    steps.record(1, 10, 0.4, is_beside_stream=True)
    assert steps.times == pytest.approx([0.01, 0.015])
    steps.record(1, 10, 0.2)
    assert steps.times[0] == pytest.approx(0.015), "the first times have equal weights"


def test_a_step_beside_a_stream_counts_whole_if_it_is_shorter_than_expected() -> None:
    steps = DraftStepTimes([0.02])
    steps.record(1, 10, 0.1, is_beside_stream=True)
    assert steps.times[0] == pytest.approx(0.015), "half of the prior, and half of what it took"


def test_a_hit_rate_rises_and_falls_with_the_acceptance_rate() -> None:
    rate = HitRate(None, 0.7, 4.0)
    assert [rate.at(acceptance) for acceptance in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0], "nothing is known, so it is the acceptance rate"
    for _ in range(40):
        rate.record(True, 0.6)
        rate.record(False, 0.6)
    assert rate.at(0.6) == pytest.approx(0.5, abs=0.02)
    assert rate.at(0.9) == pytest.approx(0.75, abs=0.03), "the text has changed since those rounds"
    assert HitRate(0.3, 0.0, 4.0).at(0.5) == 0.5, "at an acceptance of 0 a share says nothing"
    calibrated = HitRate(0.4, 0.8, 4.0)
    assert [rate.is_measured, calibrated.is_measured, HitRate(None, 0.7, 4.0).is_measured] == [True, True, False]
    assert [calibrated.at(0.8), calibrated.at(0.4)] == pytest.approx([0.4, 0.2])


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 1.0))), st.none() | st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_hit_rate_is_a_share_whatever_is_recorded(rounds: list[tuple[bool, float]], prior: float | None, acceptance: float) -> None:
    rate = HitRate(prior, acceptance, 4.0)
    for is_hit, expected in rounds:
        rate.record(is_hit, expected)
    assert 0.0 <= rate.at(acceptance) <= 1.0


def test_a_stream_beside_a_draft_counts_until_another_time_is_known() -> None:
    step = RemoteStepTime(None)
    step.record(4, 4 * 0.08, is_beside_draft=True)
    assert step.is_known
    assert step.seconds == pytest.approx(0.08)
    step.record(1, 0.04)
    assert step.seconds == pytest.approx(0.04)
    step.record(4, 4 * 0.08, is_beside_draft=True)
    assert step.seconds == pytest.approx(0.04)
    given = RemoteStepTime(0.05)
    given.record(4, 4 * 0.08, is_beside_draft=True)
    assert given.seconds == 0.05


def test_times_beside_other_work_count_when_there_are_no_others_for_long() -> None:
    steps, stream = DraftStepTimes([0.02]), RemoteStepTime(0.05)
    steps.record(1, 10, 0.1)
    for _ in range(80):
        steps.record(1, 10, 0.4, is_beside_stream=True)
        stream.record(1, 0.2, is_beside_draft=True)
    assert steps.times[0] == pytest.approx(0.04, rel=0.01), "the device has become slower, and drafts are never verified"
    assert stream.seconds == pytest.approx(0.2, rel=0.05), "the server has become slower, and the device always drafts"
    steps.record(1, 10, 0.1)
    stream.record(1, 0.05)
    assert [steps.times[0], stream.seconds] == pytest.approx([0.01, 0.05])


@given(st.floats(-5.0, 5.0), st.floats(0.0, 5.0))
def test_a_first_weight_of_one_forgets_what_was_believed(believed: float, value: float) -> None:
    average = Ewma(believed, 0.1, first_weight=1.0)
    seen = [average.is_measured]
    average.record(value)
    seen.append(average.is_measured)
    assert seen == [False, True]
    assert average.value == pytest.approx(value)
    average.record(value + 1.0)
    assert average.value == pytest.approx(value + 0.1)


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 9), st.floats(-1.0, 10.0)), max_size=30))
def test_step_times_stay_positive_whatever_is_recorded(records: list[tuple[int, int, float]]) -> None:
    times = DraftStepTimes((0.02, 0.03, 0.04))
    for sequences, tokens, seconds in records:
        times.record(sequences, tokens, seconds)
    assert len(times.times) == 3
    assert min(times.times) > 0.0
    assert times.is_measured == any(0 < sequences < 4 and tokens and seconds > 0.0 for sequences, tokens, seconds in records)


@given(TIMES)
def test_one_measured_size_scales_the_prior_of_the_others(seconds: float) -> None:
    times = DraftStepTimes((0.02, 0.03, 0.04))
    times.record(1, 1, seconds)
    first, second, third = times.times
    assert [second / first, third / first] == pytest.approx([1.5, 2.0])


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=20), TIMES)
def test_a_measured_wait_replaces_the_expected_one(records: list[tuple[float, float]], expected_rtt: float) -> None:
    trip = RoundTrip(0.1)
    assert (trip.wait(0.05), trip.rtt) == (0.1, 0.0)
    trip.expect_rtt(expected_rtt)
    assert [trip.wait(0.05), trip.rtt] == pytest.approx([expected_rtt + 0.05, expected_rtt])
    for seconds, server in records:
        trip.record(seconds, queue_depth=0.5, server_seconds=server)
    waits = [seconds for seconds, _ in records]
    assert min(waits) - 1e-9 <= trip.wait(0.05) <= max(waits) + 1e-9
    assert 0.0 <= trip.rtt <= max(max(0.0, seconds - server) for seconds, server in records) + 1e-9
    assert trip.queue_depth == 0.5


@given(st.lists(TIMES, min_size=1, max_size=6))
def test_the_first_times_of_an_unknown_stream_have_equal_weights(times: list[float]) -> None:
    step = RemoteStepTime(None)
    known = [step.is_known]
    for seconds in times:
        step.record(1, seconds)
    known.append(step.is_known)
    assert known == [False, True]
    assert step.seconds == pytest.approx(sum(times) / len(times))


@given(st.integers(1, 40))
def test_a_step_is_stale_after_64_drafted_tokens_for_each_measured_one_but_2048_at_most(measured: int) -> None:
    step = RemoteStepTime(None)
    for _ in range(measured):
        step.record(1, 0.1)
    limit = min(64 * measured, 2048)
    step.record_drafted(limit - 1)
    stale = [step.is_stale]
    step.record_drafted(1)
    stale.append(step.is_stale)
    step.record(14, 1.4)
    stale.append(step.is_stale and limit == 2048)
    step.record(1, 0.1)
    stale.append(step.is_stale)
    assert stale == [False, True, limit == 2048, False]


def test_one_late_token_hardly_changes_the_pace_of_a_stream() -> None:
    step = RemoteStepTime(None)
    for place in range(64):
        step.record(1, 0.08 if place % 32 == 31 else 0.04)
    assert step.seconds == pytest.approx(0.04, rel=0.04)
    step.record_drafted(2048)
    for place in range(15):
        step.record(1, 0.08 if place == 14 else 0.04)
    assert not step.is_stale
    assert step.seconds == pytest.approx(0.04 + 2 * 0.04 / 30), "15 known ones count, and one of them was late, too"


def test_a_new_sample_counts_as_much_as_what_was_known() -> None:
    step = RemoteStepTime(None)
    for _ in range(64):
        step.record(1, 0.04)
    step.record_drafted(2048)
    for _ in range(15):
        step.record(1, 0.06)
    assert step.seconds == pytest.approx(0.05)
    for _ in range(17):
        step.record(1, 0.06)
    assert step.seconds == pytest.approx(0.06)


def test_drafts_of_another_answer_do_not_end_a_sample() -> None:
    step = RemoteStepTime(0.05)
    step.record_drafted(2048)
    for _ in range(5):
        assert step.is_stale
        step.record(3, 0.12)
        step.record_drafted(3)
    assert not step.is_stale


def test_a_piece_of_many_tokens_counts_as_many() -> None:
    step = RemoteStepTime(None)
    for _ in range(40):
        step.record(1, 0.04)
    step.record(16, 16 * 0.08)
    assert step.seconds == pytest.approx(0.06)
    step.record(300, 300 * 0.02)
    assert step.seconds == pytest.approx(0.02)
    step.record_drafted(2048)
    for _ in range(15):
        step.record(1, 0.04)
    assert step.seconds == pytest.approx(0.03), "of the piece as many count as of the new ones"


def test_after_many_times_beside_a_draft_their_mean_counts_and_not_the_next_one() -> None:
    step = RemoteStepTime(0.04)
    for place in range(49):
        step.record(1, 0.06 if place % 2 else 0.1, is_beside_draft=True)
    assert step.seconds == pytest.approx(0.08, rel=0.02)


def test_a_stream_that_gave_nothing_says_nothing() -> None:
    step = RemoteStepTime(0.05)
    step.record(0, 1.0)
    step.record(4, 0.0)
    assert step.seconds == 0.05


def test_what_a_round_reads_beside_its_rows_is_part_of_the_wait() -> None:
    trip = RoundTrip(0.1)
    trip.expect_costs(RowCosts({1: 0.04, 4: 0.08}))
    trip.expect_rtt(0.02)
    trip.record(0.5, queue_depth=0.0, server_seconds=0.48, computed=(4, 0.4), read=30)
    assert trip.wait(0.05, 4) == pytest.approx(0.5)
    assert trip.wait(0.05, 1) == pytest.approx(0.46), "the list is right about the rows"
    trip.record(0.5, queue_depth=0.0, server_seconds=0.48, computed=(4, 0.04), read=30)
    assert trip.wait(0.05, 4) == pytest.approx(0.5 + 0.15 * 0.04), "and never more than the batch took"


def test_a_wait_by_rows_follows_the_told_costs_and_the_measured_load() -> None:
    trip = RoundTrip(0.1)
    trip.expect_costs(RowCosts({1: 0.04, 4: 0.08}))
    assert trip.wait(0.05, 4) == 0.1, "the link is not known"
    trip.expect_rtt(0.02)
    assert trip.wait(0.05, 4) == pytest.approx(0.1)
    assert trip.wait(0.05, 1) == pytest.approx(0.06)
    trip.record(0.2, queue_depth=0.0, server_seconds=0.17, computed=(4, 0.16))
    prices = trip.prices
    assert prices is not None
    assert prices[0] == pytest.approx(0.04), "link and queue"
    assert trip.wait(0.05, 1) == pytest.approx(0.04 + 0.08), "it takes twice as long as it told"
    trip.record(5.0, queue_depth=0.0, server_seconds=0.0)
    assert trip.wait(0.05, 1) == pytest.approx(0.12), "a lost round says nothing about prices"
    trip.expect_costs(None)
    assert trip.wait(0.05, 1) == trip.wait(0.05, 9), "without a list all rounds wait alike"
