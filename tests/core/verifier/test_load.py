"""How busy a verifier is: step times, the pace of prompts, the limit of sessions."""

from __future__ import annotations

import math

import pytest

from streamco.core.verifier.load import MeasuredStep, PrefillPace, SessionLimit
from streamco.policies.serving.batching import LinearStep

STEP = LinearStep(setup=0.04, per_token=0.001, per_context=0.00001)


# Step times


def test_before_anything_was_measured_the_model_is_believed() -> None:
    assert MeasuredStep(STEP)(10, 1000) == pytest.approx(0.06)


def test_measured_times_scale_the_model_and_one_hiccup_does_not() -> None:
    step = MeasuredStep(STEP)
    for _ in range(5):
        step.observe(10, 1000, 0.12)
    step.observe(10, 1000, 60.0)
    assert step(10, 1000) == pytest.approx(0.12)
    assert step(20, 1000) == pytest.approx(0.14)


def test_a_verification_alone_takes_the_time_of_its_chunks() -> None:
    step = MeasuredStep(LinearStep(setup=0.04, per_token=0.001))
    assert step.alone(32, 0) == pytest.approx(0.072)
    assert step.alone(70, 0) == pytest.approx(0.072 + 0.072 + 0.046)


def test_a_model_that_says_nothing_is_not_divided_by() -> None:
    step = MeasuredStep(LinearStep(setup=0.0, per_token=0.0))
    step.observe(10, 0, 0.1)
    assert step(10, 0) == 0.0


# Prompts


def test_the_pace_of_prompts_includes_what_goes_on_between_their_steps() -> None:
    pace = PrefillPace(1.0)
    pace.begin(now=0.0)
    for step in range(1, 200):
        pace.observe(100, waits_on=True, now=step * 0.5)
    assert pace.seconds_per_token == pytest.approx(0.005, rel=1e-3)


def test_time_without_prompts_does_not_count() -> None:
    pace = PrefillPace(0.001)
    for start in range(0, 2000, 10):
        pace.begin(now=float(start))
        pace.observe(100, waits_on=False, now=start + 0.2)
    assert pace.seconds_per_token == pytest.approx(0.002, rel=1e-3)


# Sessions


def observe(limit: SessionLimit, verdicts: int, *, late: int, present: int, asked: float = 0.0, now: float = 0.0) -> None:
    for number in range(verdicts):
        limit.observe(is_late=number < late, present=present, asked=asked, now=now)


def lowered(present: int) -> SessionLimit:
    """A limit nine tenths of this, which is kept."""
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=present)
    observe(limit, 1, late=0, present=0, asked=-1.0)
    return limit


def test_while_verdicts_are_in_time_anybody_may_come() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 1000, late=0, present=500)
    assert limit.limit == math.inf
    assert limit.wait(500, device="a", now=0.0) is None


def test_a_twentieth_and_what_chance_adds_to_it_may_be_late() -> None:
    limit = SessionLimit(0.05)
    for _ in range(10):
        observe(limit, 128, late=8, present=50)
    assert limit.limit == math.inf


def test_more_late_verdicts_take_the_limit_to_nine_tenths_of_what_is_there() -> None:
    limit = lowered(50)
    assert limit.limit == 45
    observe(limit, 9, late=9, present=44)
    assert limit.limit == 39
    assert limit.wait(38, device="a", now=0.0) is None
    assert limit.wait(39, device="a", now=0.0) is not None


def test_the_most_that_were_there_count_and_not_those_at_the_last_late_verdict() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 8, late=8, present=50)
    observe(limit, 1, late=1, present=3)
    assert limit.limit == 45


def test_drafts_from_before_a_lower_limit_was_kept_do_not_lower_it_again() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 900, late=900, present=50)
    assert limit.limit == 45, "no session ends by it"
    observe(limit, 900, late=900, present=46, asked=1.0, now=2.0)
    assert limit.limit == 45
    observe(limit, 900, late=900, present=45, asked=2.0, now=3.0)
    assert limit.limit == 45, "they came while there were more"
    observe(limit, 9, late=9, present=45, asked=3.0, now=4.0)
    assert limit.limit == 40


def test_sessions_that_do_not_end_put_off_a_lower_limit_and_do_not_prevent_it() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=50)
    for number in range(100):
        observe(limit, 9, late=9, present=50, asked=number / 2 - 0.1, now=number / 2)
    assert 45 * 0.9**6 < limit.limit < 45 * 0.9**3, "once in ten seconds"


def test_the_limit_is_a_whole_number_or_devices_would_keep_it_exceeded() -> None:
    limit = lowered(47)
    assert limit.limit == 42
    present = 42
    assert limit.wait(present, device="a", now=0.0) is not None
    observe(limit, 9, late=9, present=present)
    assert limit.limit == 37


def test_without_a_late_verdict_it_rises_sooner() -> None:
    limit = lowered(50)
    observe(limit, 89, late=0, present=45)
    assert limit.limit == 45
    observe(limit, 1, late=0, present=45)
    assert limit.limit == 46
    observe(limit, 127, late=1, present=46)
    assert limit.limit == 46
    observe(limit, 1, late=0, present=46)
    assert limit.limit == 47
    few = lowered(10)
    observe(few, 31, late=0, present=9)
    assert few.limit == 9
    observe(few, 1, late=0, present=9)
    assert few.limit == 10


def test_a_rise_is_judged_by_drafts_that_came_after_it() -> None:
    limit = lowered(10)
    observe(limit, 32, late=0, present=9, asked=5.0, now=5.5)
    assert limit.limit == 10
    observe(limit, 500, late=0, present=10, asked=5.4, now=6.0)
    assert limit.limit == 10


def test_the_limit_rises_only_where_it_is_what_keeps_sessions_out() -> None:
    limit = lowered(50)
    observe(limit, 1280, late=0, present=20)
    assert limit.limit == 45
    observe(limit, 1280, late=0, present=45)
    assert limit.limit > 45


def test_somebody_may_always_come_when_nobody_is_there() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 1000, late=1000, present=1)
    assert limit.wait(0, device="a", now=0.0) is None


def test_who_is_told_to_wait_is_told_longer_the_more_wait_already() -> None:
    limit = lowered(10)
    assert limit.wait(10, device="a", now=4.5) == 1.0
    for end in (1.0, 3.0, 5.0):
        limit.record_end(now=end)
    assert [limit.wait(10, device="a", now=5.0) for _ in range(3)] == [4.0, 6.0, 8.0]
    assert limit.wait(1, device="a", now=5.0) is None
    assert limit.wait(10, device="a", now=13.0) == 2.0, "all of them have asked again by then"


def test_who_asks_again_in_time_is_counted_once() -> None:
    limit = lowered(10)
    told = {name: limit.wait(10, device="a", now=0.0) for name in "abc"}
    assert list(told.values()) == [1.0, 2.0, 3.0]
    asks = {name: seconds for name, seconds in told.items() if seconds is not None}
    waits = []
    for _ in range(30):
        name = min(asks, key=asks.__getitem__)
        now = asks[name]
        seconds = limit.wait(10, device="a", now=now)
        assert seconds is not None
        waits.append(seconds)
        asks[name] = now + seconds
    assert waits == [3.0] * 30, "as long as three take, however often they were told"


def test_who_is_gone_keeps_nobody_waiting() -> None:
    limit = lowered(10)
    assert [limit.wait(10, device=device, now=0.0) for device in "aabc"] == [1.0, 2.0, 3.0, 4.0]
    limit.leave("a")
    assert limit.wait(10, device="d", now=0.0) == 3.0
    limit.leave("unknown")


def test_one_device_does_not_make_all_others_wait_however_often_it_asks() -> None:
    limit = lowered(10)
    for _ in range(500):
        limit.wait(10, device="greedy", now=0.0)
    assert limit.wait(10, device="a", now=0.0) == 65.0


def test_ends_of_long_ago_say_nothing_about_the_next_one() -> None:
    limit = lowered(10)
    for end in (0.0, 900.0, 1800.0):
        limit.record_end(now=end)
    assert limit.wait(10, device="a", now=1800.0) == 1.0


def test_nobody_is_told_to_wait_for_longer_than_is_borne_however_many_ask() -> None:
    limit = lowered(10)
    assert [limit.wait(10, device="a", now=0.0, max_wait=30.0) for _ in range(2000)][-1] == 30.0
    assert limit.wait(10, device="a", now=31.0, max_wait=30.0) == 1.0
