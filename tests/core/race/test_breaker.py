"""Whether an endpoint rests after failures: called directly with now=."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.breaker import Breaker, rests_after
from streamco.errors import (
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    EngineError,
)

DOWN = EndpointConnectError("down")


def status(code: int, retry_after: float | None = None) -> EndpointStatusError:
    return EndpointStatusError("refused", status=code, retry_after=retry_after)


@pytest.mark.parametrize(
    ("error", "rests"),
    [
        (DOWN, True),
        (EndpointTimeoutError("silent", phase="first_token", limit=1.0), True),
        (EndpointProtocolError("cut"), True),
        (status(429), True),
        (status(503), True),
        (status(529), True),
        (status(400), False),
        (status(401), False),
        (status(404), False),
        (EngineError("the model failed"), False),
        (EndpointTimeoutError("the caller's limit", phase="total", limit=1.0), False),
        (EndpointProtocolError("more than Limits allow", is_limit=True), False),
        (EndpointProtocolError("another API", is_lasting=True), False),
    ],
)
def test_what_will_probably_fail_again_rests(error: EndpointError, rests: bool) -> None:
    assert rests_after(error) is rests


def test_a_rest_doubles_with_each_failure_in_a_row_and_ends_with_an_answer() -> None:
    breaker, now, rests = Breaker(), 100.0, []
    assert not breaker.is_resting(now=now)
    for _ in range(8):
        breaker.record_failure(DOWN, "down", now=now)
        rests.append(breaker.until - now)
        assert breaker.is_resting(now=breaker.until - 0.001)
        now = breaker.until
        assert not breaker.is_resting(now=now)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    breaker.record_answer()
    assert not breaker.is_resting(now=now)
    breaker.record_failure(DOWN, "down", now=now)
    assert breaker.until == now + 1.0


@pytest.mark.parametrize(("asked", "rest"), [(2.0, 2.0), (0.0, 0.0), (7200.0, 300.0)])
def test_the_time_that_a_server_asks_for_is_kept(asked: float, rest: float) -> None:
    breaker = Breaker()
    breaker.record_failure(status(429, asked), "429", now=10.0)
    assert breaker.until == 10.0 + rest


def test_answers_that_fail_together_count_once() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.record_failure(DOWN, "down", now=5.0)
    assert (breaker.failures, breaker.until) == (1, 6.0)


def test_one_answer_at_a_time_tries_it_again() -> None:
    breaker = Breaker()
    breaker.record_failure(DOWN, "down", now=0.0)
    assert not breaker.begin(now=0.5), "the others failed, so it is asked in its rest: no trial"
    assert breaker.begin(now=1.0)
    assert breaker.is_resting(now=1.0)
    assert not breaker.begin(now=1.1)
    breaker.end_trial()
    assert not breaker.is_resting(now=1.2)


@given(st.lists(st.tuples(st.sampled_from(["fail", "busy", "answer", "begin", "end"]), st.floats(0.0, 50.0)), max_size=30))
def test_no_endpoint_rests_for_ever(events: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(), 0.0
    for event, wait in events:
        now += wait
        match event:
            case "fail":
                breaker.record_failure(DOWN, "down", now=now)
            case "busy":
                breaker.record_failure(status(429, wait), "429", now=now)
            case "answer":
                breaker.record_answer()
            case "begin":
                breaker.begin(now=now)
            case "end":
                breaker.end_trial()
    breaker.end_trial()
    assert not breaker.is_resting(now=now + 300.0)
