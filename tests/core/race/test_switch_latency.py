"""How soon an endpoint goes on with an answer: what is learned seldom understates it."""

from __future__ import annotations

import random

import pytest

from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.switch_latency import EndpointTiming, SwitchLearner
from streamco.errors import EndpointConnectError
from streamco.openai_types import CompletionUsage, PromptTokensDetails
from streamco.policies.migration import UNKNOWN_SERVER_SETUP


def takes(timing: EndpointTiming, tokens: int) -> float:
    assert timing.start is not None
    setup, per_token = timing.start
    return setup + per_token * tokens


def attempt(source: str = "server", *, opened: float = 0.0, first_token: float | None = None, stopped: float | None = None) -> Attempt:
    made = Attempt(AttemptPlan(source, 0.0, continues=True))
    made.opened, made.first_token, made.stopped = opened, first_token, stopped
    made.state = AttemptState.ENDED
    return made


def test_nothing_is_known_of_a_device_and_a_cautious_guess_of_a_server() -> None:
    assert EndpointTiming(is_device=True).start is None
    assert EndpointTiming(is_device=False).start == (UNKNOWN_SERVER_SETUP, 0.0)
    assert EndpointTiming(is_device=True).rate is None


@pytest.mark.parametrize("seed", range(5))
def test_a_device_seldom_takes_longer_than_was_learned(seed: int) -> None:
    rng = random.Random(seed)

    def draw(tokens: int) -> float:
        return (0.02 + 0.004 * tokens) * rng.lognormvariate(0, 0.2)

    timing = EndpointTiming(is_device=True)
    for _ in range(128):
        tokens = rng.randrange(5, 500)
        timing.observe_start(tokens, draw(tokens))
    late = sum(draw(tokens) > takes(timing, tokens) for tokens in (rng.randrange(5, 500) for _ in range(2000)))
    assert late <= 20, f"seed {seed}: {late} of 2000"
    assert takes(timing, 400) < 4 * (0.02 + 0.004 * 400)


@pytest.mark.parametrize("seed", range(5))
def test_a_server_seldom_takes_longer_than_was_learned_though_its_slow_answers_were_cut_off(seed: int) -> None:
    rng = random.Random(seed)
    timing = EndpointTiming(is_device=False)
    for _ in range(128):
        seconds, device = rng.lognormvariate(-0.7, 0.5), rng.uniform(0.3, 3.0)
        timing.observe_start(100, min(seconds, device), is_censored=device < seconds)
    late = sum(rng.lognormvariate(-0.7, 0.5) > takes(timing, 100) for _ in range(2000))
    assert late <= 80, f"seed {seed}: {late} of 2000"


def test_a_server_that_was_never_seen_to_answer_keeps_the_guess() -> None:
    timing = EndpointTiming(is_device=False)
    timing.observe_start(10, 0.2, is_censored=True)
    assert timing.start == (UNKNOWN_SERVER_SETUP, 0.0)


def test_a_server_whose_time_grows_with_length_is_seen_through_many_lengths() -> None:
    rng = random.Random(1)
    timing = EndpointTiming(is_device=False)
    for _ in range(64):
        tokens = rng.randrange(100, 8000)
        timing.observe_start(tokens, 0.3 + 0.0005 * tokens + 0.1 * rng.random())
    assert timing.start is not None
    assert timing.start[1] == pytest.approx(0.0005, rel=0.2)
    assert takes(timing, 8000) > 0.3 + 0.0005 * 8000


def test_few_samples_are_not_trusted() -> None:
    once, often = EndpointTiming(is_device=False), EndpointTiming(is_device=False)
    once.observe_start(10, 0.5)
    for _ in range(100):
        often.observe_start(10, 0.5)
    assert takes(once, 10) == pytest.approx(4 * 0.5)
    assert takes(often, 10) == pytest.approx(0.5, rel=0.1)


def test_a_rate_is_one_that_is_reached_three_times_in_four() -> None:
    timing = EndpointTiming(is_device=True)
    for rate in (10.0, 20.0, 30.0, 40.0):
        timing.observe_rate(rate)
    assert timing.rate == 20.0


def learned(*attempts: Attempt, prompt_tokens: int = 100) -> SwitchLearner:
    learner = SwitchLearner()
    for _ in range(40):
        learner.record(attempts, frozenset({"device"}), prompt_tokens)
    return learner


def test_reading_ahead_shows_how_fast_a_device_reads() -> None:
    ahead = attempt("device", opened=1.0, stopped=1.5).prepare(1.0, ReadAhead(20, 120))
    ahead.state, ahead.stopped = AttemptState.PREPARED, 1.5
    timing = learned(ahead).timing("device", is_device=True)
    assert takes(timing, 120) == pytest.approx(0.5, rel=0.3)


def test_reading_ahead_that_was_cancelled_shows_nothing() -> None:
    ahead = attempt("device").prepare(1.0, ReadAhead(20, 120))
    ahead.state, ahead.stopped = AttemptState.CANCELLED, 1.1
    assert learned(ahead).timing("device", is_device=True).start is None


def test_a_leg_that_failed_shows_nothing() -> None:
    failed = attempt(first_token=0.2, stopped=0.3)
    failed.error = EndpointConnectError("cut")
    assert learned(failed).timing("server", is_device=False).start == (UNKNOWN_SERVER_SETUP, 0.0)


def test_who_takes_over_has_read_what_it_had_not_kept() -> None:
    successor = Attempt(AttemptPlan("device", None, continues=True)).take_over(50, 2.0)
    successor.kept, successor.first_token, successor.stopped, successor.state = 40, 2.1, 5.0, AttemptState.ENDED
    successor.count(1, 2.1)
    timing = learned(successor).timing("device", is_device=True)
    assert takes(timing, 10) == pytest.approx(0.1, rel=0.6)
    assert takes(timing, 100) > 0.5


def test_what_the_cache_had_was_not_read() -> None:
    reported = attempt("device", first_token=0.2, stopped=2.0)
    reported.usage = CompletionUsage(100, 5, 105, PromptTokensDetails(cached_tokens=90))
    assert takes(learned(reported).timing("device", is_device=True), 100) > 1.5


def test_an_answer_held_back_by_a_proxy_shows_nothing() -> None:
    burst = attempt(first_token=3.0, stopped=3.01)
    burst.tokens = 200
    assert learned(burst).timing("server", is_device=False).start == (UNKNOWN_SERVER_SETUP, 0.0)
