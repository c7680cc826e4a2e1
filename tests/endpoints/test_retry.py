"""Errors that pass, and the waits before retries: decisions, without a clock."""

from __future__ import annotations

import random
import ssl
from random import Random

import pytest

from streamco.config import RetryPolicy
from streamco.endpoints.retry import Backoff, Retries, is_transient
from streamco.errors import (
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    EngineError,
)
from tests.support.data import data_path


def status(number: int, body: str = "", retry_after: float | None = None) -> EndpointStatusError:
    return EndpointStatusError("x", status=number, body=body, retry_after=retry_after)


def caused(cause: BaseException) -> EndpointConnectError:
    error = EndpointConnectError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("number", [408, 409, 425, 429, 500, 502, 503, 504, 520, 524, 529, 599])
def test_statuses_that_pass_are_transient(number: int) -> None:
    assert is_transient(status(number))


@pytest.mark.parametrize("number", [301, 400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 451])
def test_statuses_that_stay_are_not(number: int) -> None:
    assert not is_transient(status(number))


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"])
def test_a_429_that_lasts_until_somebody_pays_is_not_transient(code: str) -> None:
    assert not is_transient(status(429, f'{{"error": {{"code": "{code}"}}}}'))
    assert is_transient(status(429, '{"error": {"code": "rate_limit_exceeded"}}'))


def test_connecting_may_succeed_later_but_an_untrusted_certificate_will_not() -> None:
    assert is_transient(EndpointConnectError("refused"))
    assert is_transient(caused(ConnectionResetError()))
    assert is_transient(caused(ssl.SSLEOFError()))
    assert not is_transient(caused(ssl.SSLCertVerificationError()))
    assert not is_transient(caused(ssl.SSLError()))


def test_the_backoff_of_many_retries_stays_a_number() -> None:
    retries = Retries(RetryPolicy(attempts=2000, backoff=0.1, longest_wait=5.0), Random(1))
    waits = [retries.next_wait(EndpointProtocolError("x")) for _ in range(2000)]
    assert all(wait is not None and 0 <= wait <= 5 for wait in waits)


def test_an_answer_of_another_api_stays_what_it_is() -> None:
    assert is_transient(EndpointProtocolError("x"))
    assert not is_transient(EndpointProtocolError("x", is_lasting=True))


def test_the_connect_limit_is_transient_and_a_silent_server_is_not() -> None:
    assert is_transient(EndpointTimeoutError("x", phase="connect", limit=1))
    assert not is_transient(EndpointTimeoutError("x", phase="first_token", limit=1))
    assert not is_transient(EndpointTimeoutError("x", phase="next_token", limit=1))


def test_an_answer_cut_before_its_first_content_is_transient_and_other_errors_are_not() -> None:
    assert is_transient(EndpointProtocolError("cut"))
    assert not is_transient(EngineError("x"))
    assert not is_transient(EndpointError("x"))


def test_the_wait_doubles_with_full_jitter() -> None:
    policy = RetryPolicy(attempts=4, backoff=0.5, longest_wait=3.0)
    seen: list[list[float]] = [[], [], [], []]
    rng = random.Random(7)
    for _ in range(500):
        retries = Retries(policy, rng)
        for waits in seen:
            wait = retries.next_wait(EndpointConnectError("x"))
            assert wait is not None
            waits.append(wait)
        assert retries.next_wait(EndpointConnectError("x")) is None
    for waits, ceiling in zip(seen, (0.5, 1.0, 2.0, 3.0), strict=True):
        assert 0 <= min(waits) < ceiling * 0.05
        assert ceiling * 0.95 < max(waits) <= ceiling


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = (Retries(RetryPolicy(attempts=3), random.Random(3)) for _ in range(2))
    error = EndpointConnectError("x")
    assert [first.next_wait(error) for _ in range(4)] == [second.next_wait(error) for _ in range(4)]


def test_the_servers_wish_is_kept_to() -> None:
    retries = Retries(RetryPolicy(attempts=2, longest_wait=20), random.Random(1))
    assert retries.next_wait(status(429, retry_after=7.5)) == 7.5
    assert retries.next_wait(status(503, retry_after=0.0)) == 0.0
    assert retries.next_wait(status(503, retry_after=0.0)) is None


def test_a_wish_beyond_the_longest_wait_means_giving_up() -> None:
    retries = Retries(RetryPolicy(attempts=2, longest_wait=20), random.Random(1))
    assert retries.next_wait(status(429, retry_after=20.1)) is None
    assert retries.next_wait(status(429, retry_after=20.0)) == 20.0


def test_no_attempts_no_retries() -> None:
    assert Retries(RetryPolicy(attempts=0), random.Random(1)).next_wait(EndpointConnectError("x")) is None


def test_forbidden_is_forbidden() -> None:
    retries = Retries(RetryPolicy(attempts=5), random.Random(1))
    retries.forbid()
    assert retries.next_wait(status(503)) is None


def test_recorded_errors_of_real_servers_are_told_apart() -> None:
    import json

    from streamco.wire.openai.errors import status_error

    lines = data_path("sse", "http_errors.jsonl").read_text().splitlines()
    verify = {True: set[int](), False: set[int]()}
    for line in lines:
        entry = json.loads(line)
        error = status_error(entry["status"], entry["headers"], entry["body"].encode())
        verify[is_transient(error)].add(entry["status"])
    assert verify[True] <= {408, 409, 429, 500, 502, 503, 504, 529}
    assert {400, 401} <= verify[False]


# test_backoff


def test_waits_grow_and_the_servers_wish_goes_first() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    waits = [backoff.next_wait() for _ in range(30)]
    assert waits[0] == 0.0
    assert 0.3 < max(waits) <= 1.0
    assert backoff.next_wait(2.5) == 2.5
    assert backoff.next_wait(1e9) == 60.0
