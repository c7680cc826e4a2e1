"""The limit on requests a minute, with the time as an argument."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.proxy.callers.rates import TokenBucket


def test_a_minutes_requests_may_come_at_once_and_then_one_each_share_of_it() -> None:
    bucket, waits = TokenBucket.full(60, 100.0), []
    for now in [100.0] * 61 + [100.5, 101.0, 101.0]:
        bucket, wait = bucket.take(60, now)
        waits.append(wait)
    assert waits[:60] == [0.0] * 60
    assert waits[60:] == [pytest.approx(1.0), pytest.approx(0.5), 0.0, pytest.approx(1.0)]


def test_a_request_that_comes_after_its_wait_is_admitted() -> None:
    bucket, wait = TokenBucket(0.25, 7.0).take(3, 7.0)
    assert wait == pytest.approx(15.0)
    assert bucket.take(3, 7.0 + wait + 1e-6)[1] == 0


def test_a_bucket_holds_no_more_than_a_lower_rate_allows() -> None:
    bucket, _ = TokenBucket.full(100, 0.0).take(2, 0.0)
    assert bucket.tokens == 1


def test_if_the_clock_was_set_back_no_time_has_passed() -> None:
    bucket, wait = TokenBucket(0.0, 1000.0).take(60, 10.0)
    assert wait == pytest.approx(1.0)
    assert bucket.take(60, 11.0)[1] == 0, "and from then on it passes again"


def test_a_clock_that_swings_admits_no_more_than_one_that_goes_on() -> None:
    bucket, admitted = TokenBucket.full(60, 100.0), 0
    for number in range(600):
        bucket, wait = bucket.take(60, 100.0 + number % 2)
        admitted += not wait
    assert admitted == 61


def test_after_a_short_step_back_the_wait_ends_when_the_clock_has_caught_up_and_a_request_fits() -> None:
    bucket, wait = TokenBucket(0.0, 100.0).take(60, 95.0)
    assert wait == pytest.approx(6.0)
    assert bucket.take(60, 101.0)[1] == 0


@given(rate=st.integers(1, 500), gaps=st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_sees_more_than_twice_the_rate_and_the_long_run_no_more_than_the_rate(rate: int, gaps: list[float]) -> None:
    bucket, now, admitted = TokenBucket.full(rate, 0.0), 0.0, []
    for gap in gaps:
        now += gap
        bucket, wait = bucket.take(rate, now)
        assert wait >= 0
        if not wait:
            admitted.append(now)
    for begin in admitted:
        assert sum(begin <= time < begin + 60 for time in admitted) <= 2 * rate
    assert len(admitted) <= rate + now * rate / 60 + 1e-6
