"""An exchange rate that changes: when its function is called, what its failures do, and what follows a change."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.current_rate import CurrentRate, RateName
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import TokenPrices
from streamco.errors import ConfigError
from tests.client.helpers import ShapedDevice, device, server
from tests.client.modes.race.test_dispatcher import decide, play

NAME = RateName("race", "exchange_rate", "dollars")


class Answers:
    """A function that returns these in turn, or raises them, and the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def test_a_constant_stays() -> None:
    rate = CurrentRate(0.3, NAME, now=0.0)
    assert [rate.read(now=now) for now in (0.0, 5.0)] == [0.3, 0.3]


def test_a_function_is_called_at_most_once_a_second() -> None:
    function = Answers(1, 2.0, 3.0)
    rate = CurrentRate(function, NAME, now=10.0)
    assert [rate.read(now=now) for now in (10.0, 10.5, 10.99)] == [1.0, 1.0, 1.0]
    assert function.calls == 1
    assert [rate.read(now=now) for now in (11.0, 11.5, 12.0)] == [2.0, 2.0, 3.0]
    assert function.calls == 3


@pytest.mark.parametrize("answer", [-1.0, math.nan, math.inf, "0.3", None, True, OSError("no battery"), ConfigError("mine")], ids=repr)
def test_a_function_that_fails_at_once_is_an_error(answer: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        CurrentRate(Answers(answer), NAME, now=0.0)
    if not isinstance(answer, ConfigError):
        assert "exchange_rate" in str(caught.value)


@pytest.mark.parametrize("answer", [-1.0, math.nan, None, OSError("gone")], ids=repr)
def test_a_function_that_fails_later_leaves_the_last_rate_and_is_logged_once(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    function = Answers(2.0, answer, answer, 4.0, answer)
    rate = CurrentRate(function, NAME, now=0.0)
    with caplog.at_level(logging.WARNING, logger="streamco"):
        assert [rate.read(now=now) for now in (1.0, 1.5, 2.0, 3.0, 4.0)] == [2.0, 2.0, 2.0, 4.0, 4.0]
    assert function.calls == 5, "it isn't called more often because it fails"
    assert len(caplog.records) == 1


@pytest.mark.parametrize("rate", [-1, math.nan, math.inf, "0.3", None, True], ids=repr)
def test_a_setting_that_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigError, match="exchange_rate"):
        Race(exchange_rate=rate)


def test_the_client_raises_what_the_function_does_when_it_is_made() -> None:
    mode = Race(exchange_rate=Answers(OSError("no battery")))
    with pytest.raises(ConfigError, match="no battery"):
        Client(device(), server(), mode=mode)


# What follows a change


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("streamco.client.modes.race.dispatcher.monotonic", clock)
    return clock


def dispatcher_with(rate: float | Callable[[], float], budget: float = 0.5) -> Dispatcher:
    return Dispatcher(DispatchOptions(exchange_rate=rate), budget=budget, seed=1)


def test_the_constrained_side_and_the_costs_follow_the_rate(clock: Clock) -> None:
    dispatcher = dispatcher_with(Answers(0.3, 5.0, 0.3))
    local, remote = ShapedDevice("device", kind="device", tokens=10), server(prices=TokenPrices(prompt=2e-7, completion=4e-7))
    sides, costs = [], []
    for clock.now in (0.0, 0.5, 1.5, 3.0):
        dispatched = decide(dispatcher, local=local, remote=remote)
        sides.append(dispatched.plan.constrained)
        costs.append(dispatched.cost(local, 10, 10, 0).device or 0.0)
    assert sides == ["server", "server", "device", "server"]
    assert costs == pytest.approx([costs[0], costs[0], costs[0] * 5.0 / 0.3, costs[0]])


def test_a_side_that_is_constrained_again_has_the_account_that_it_had(clock: Clock) -> None:
    dispatcher = dispatcher_with(Answers(0.3, 5.0, 0.3))
    local, remote = ShapedDevice("device", kind="device", tokens=10), server(prices=TokenPrices(prompt=2e-7, completion=4e-7))
    accounts = []
    for clock.now in (0.0, 1.5, 3.0):
        dispatched = decide(dispatcher, local=local, remote=remote)
        play(dispatcher, dispatched, server_at=0.1, device_at=0.2)
        accounts.append(dispatched.steering)
    assert accounts[0] is accounts[2]
    assert accounts[0] is not accounts[1]
    assert [account.requests for account in accounts] == [2, 1, 2]


def test_a_plan_is_not_made_again_for_a_rate_that_changes_nothing(clock: Clock) -> None:
    dispatcher = dispatcher_with(Answers(0.3, 0.31, 0.32))
    local, remote = ShapedDevice("device", kind="device", tokens=10), server(prices=TokenPrices(prompt=1.0, completion=1.0))
    revisions = set()
    for clock.now in (0.0, 1.5, 3.0):
        revisions.add(decide(dispatcher, local=local, remote=remote).plan.revision)
    assert len(revisions) == 1


def test_copies_with_the_same_function_share_what_it_returned(clock: Clock) -> None:
    function = Answers(0.3, OSError("gone"))
    dispatcher = dispatcher_with(function)
    clock.now = 5.0
    copy = dispatcher.copy(DispatchOptions(policy="both", exchange_rate=function), budget=None)
    assert decide(copy, local=device(), remote=server()).attempts, "a client from with_options isn't refused by a passing failure"
