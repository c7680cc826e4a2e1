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


def observe(limit: SessionLimit, verdicts: int, *, late: int, present: int) -> None:
    for number in range(verdicts):
        limit.observe(is_late=number < late, present=present)


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


def test_more_late_verdicts_take_the_limit_below_what_is_there() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=50)
    assert limit.limit == pytest.approx(45.0)
    observe(limit, 9, late=9, present=44)
    assert limit.limit == pytest.approx(39.6)
    assert limit.wait(39, device="a", now=0.0) is None
    assert limit.wait(40, device="a", now=0.0) is not None


def test_while_more_are_there_than_the_limit_allows_late_verdicts_do_not_lower_it() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 900, late=900, present=50)
    assert limit.limit == pytest.approx(45.0), "no session ends by it"
    observe(limit, 9, late=9, present=45)
    assert limit.limit == pytest.approx(40.5)


def test_without_a_late_verdict_it_rises_sooner() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=50)
    observe(limit, 32, late=0, present=45)
    assert limit.limit == pytest.approx(46.0)
    observe(limit, 127, late=1, present=46)
    assert limit.limit == pytest.approx(46.0)
    observe(limit, 1, late=0, present=46)
    assert limit.limit == pytest.approx(47.0)


def test_the_limit_rises_only_where_it_is_what_keeps_sessions_out() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=50)
    observe(limit, 1280, late=0, present=20)
    assert limit.limit == pytest.approx(45.0)
    observe(limit, 1280, late=0, present=45)
    assert limit.limit > 45.0


def test_somebody_may_always_come_when_nobody_is_there() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 1000, late=1000, present=1)
    assert limit.wait(0, device="a", now=0.0) is None


def test_who_is_told_to_wait_is_told_longer_the_more_wait_already() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=10)
    assert limit.wait(10, device="a", now=4.5) == 1.0
    for end in (1.0, 3.0, 5.0):
        limit.record_end(now=end)
    assert [limit.wait(10, device="a", now=5.0) for _ in range(3)] == [4.0, 6.0, 8.0]
    assert limit.wait(1, device="a", now=5.0) is None
    assert limit.wait(10, device="a", now=13.0) == 2.0, "all of them have asked again by then"


def test_who_asks_again_in_time_is_counted_once() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=10)
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
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=10)
    assert [limit.wait(10, device=device, now=0.0) for device in "aabc"] == [1.0, 2.0, 3.0, 4.0]
    limit.leave("a")
    assert limit.wait(10, device="d", now=0.0) == 3.0
    limit.leave("nobody")


def test_nobody_is_told_to_wait_for_longer_than_is_borne_however_many_ask() -> None:
    limit = SessionLimit(0.05)
    observe(limit, 9, late=9, present=10)
    assert [limit.wait(10, device="a", now=0.0, max_wait=30.0) for _ in range(2000)][-1] == 30.0
    assert limit.wait(10, device="a", now=31.0, max_wait=30.0) == 1.0
