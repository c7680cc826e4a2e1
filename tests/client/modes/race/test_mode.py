"""A race's settings: a policy of the caller's own, and two servers that race."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.core.report import report_sections
from streamco.endpoints.base import Capabilities
from streamco.errors import ConfigError, UsageError
from streamco.policies.dispatch import Decision
from tests.client.helpers import ask, device, opened, server, tokens_text, words


class Later:
    """The server starts a tenth of a second after the device, for long prompts at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, length: int, rng: Random) -> Decision:
        self.asked.append(length)
        return Decision(0.0, 0.1 + rng.random() * 0.01, policy="mine", reason="device first, server later")


async def test_a_policy_of_ones_own_decides_when_each_side_starts() -> None:
    policy = Later()
    async with opened(device(words(0.5)), server(words(0.0)), mode=Race(policy=policy), budget=1.0) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "w0 "
        dispatch = stream.report.dispatch
        assert (stream.report.winner, dispatch.policy, dispatch.reason) == ("server", "mine", "device first, server later")
        assert dispatch.device_wait == 0.0
        assert 0.1 <= (dispatch.server_wait or 0.0) <= 0.11
        await ask(client)
    assert policy.asked == [10, 10]


async def test_equal_seeds_give_equal_decisions() -> None:
    waits = []
    for _ in range(2):
        async with opened(device(words(0.0)), server(words(0.5)), mode=Race(policy=Later()), budget=1.0, seed=5) as client:
            stream = client.stream("hello")
            await tokens_text(stream)
            waits.append(stream.report.dispatch.server_wait)
    assert waits[0] == waits[1]


async def test_the_budget_is_kept_whatever_ones_own_policy_decides() -> None:
    class Both:
        def decide(self, length: int, rng: Random) -> Decision:
            return Decision(0.0, 0.0, policy="both of mine", reason="both")

    async with opened(device(words(0.0)), server(words(0.5)), mode=Race(policy=Both()), budget=0.25) as client:
        for _ in range(40):
            await ask(client)
        stream = client.stream("hello")
        await tokens_text(stream)
        share = stream.report.dispatch.budget_share
        assert share is not None
        assert share <= 0.25 + 0.01 + 1 / 40  # and one prompt among the first


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (None, r"policy own: Odd: expected decide\(\) to return a Decision, got NoneType"),
        (
            Decision(None, None, "odd", ""),
            "expected waits of 0 seconds or more, or None for one of them, got None and None",
        ),
        (Decision(-1.0, None, "odd", ""), "expected waits of 0 seconds or more"),
        (Decision(0.0, float("nan"), "odd", ""), "expected waits of 0 seconds or more"),
    ],
)
async def test_what_is_no_decision_is_an_error(decision: Any, text: str) -> None:
    class Odd:
        def decide(self, length: int, rng: Random) -> Any:
            return decision

    async with opened(device(), server(), mode=Race(policy=Odd()), budget=1.0) as client:
        with pytest.raises(UsageError, match=text):
            await ask(client)


@pytest.mark.parametrize("policy", ["fast", None, 5, Random(0)])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ConfigError, match=r"policy: expected one of auto, .*, or an object with decide\(length, rng\), got "):
        Client(device(), server(), mode=Race(policy=policy))


async def test_two_servers_race_and_are_reported_by_their_names() -> None:
    one, two = server(words(0.3), name="one"), server(words(0.0), name="two")
    async with opened(one, two, mode=Race(policy="both"), budget=1.0) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "w0 "
        report = stream.report
    assert report.winner == "two"
    assert report.dispatch.constraint == "two"
    text = "\n".join(str(section) for section in report_sections(report))
    assert "the budget limits" in text
    for word in ("device", "energy", "constrained side"):
        assert word not in text


async def test_our_reasons_name_two_servers_that_race_and_those_of_others_stay() -> None:
    one, two = server(words(0.5), name="one"), server(words(0.0), name="two")
    async with opened(one, [two, server(name="third server")], mode=Race(policy="server-first"), budget=1.0) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.dispatch.reason == "two alone, one in reserve"
        own = client.with_options(mode=Race(policy=Later())).stream("hello")
        await tokens_text(own)
        assert own.report.dispatch.reason == "device first, server later"


@pytest.mark.parametrize(("left_out", "other"), [("one", "two"), ("two", "one")])
async def test_one_of_two_servers_that_is_left_out_is_named(left_out: str, other: str) -> None:
    able = {name: server(name=name, capabilities=Capabilities(tools=name != left_out)) for name in ("one", "two")}
    async with opened(able["one"], able["two"], mode=Race(policy="both"), budget=1.0) as client:
        stream = client.stream("hello", tools=[{"type": "function", "function": {"name": "f"}}])
        await tokens_text(stream)
        assert stream.report.winner == other
        assert [note for note in stream.report.notes if "left out" in note] == [f"{left_out} left out: tools; {other} alone answers"]
        assert f"{left_out}: tools" in stream.report.dispatch.reason


async def test_a_client_without_a_device_hears_nothing_of_sides() -> None:
    async with opened(None, server(words(0.0))) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        text = "\n".join(str(section) for section in report_sections(stream.report))
    assert "energy" not in text
    assert "constrained" not in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "nonsense"}, "policy: expected one of auto, both, .*, got 'nonsense'"),
        ({"constrained": "both"}, "constrained: expected"),
        ({"constrained": []}, "constrained: expected"),
        ({"tail": 2.0}, "tail: expected a share from 0 to 1, got 2.0"),
        ({"tail_weight": float("nan")}, "race: tail_weight: expected 0 or more, got nan"),
        ({"policy": "server-constrained", "constrained": "device"}, "constrained: expected 'server'"),
    ],
)
def test_a_policy_that_can_not_be_is_refused_where_it_is_written(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Race(**settings)
