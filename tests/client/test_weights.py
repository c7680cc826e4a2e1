"""A client that chooses the way to make each answer by what time, money and quality are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import streamco
from streamco import Auto, Client, MigrationOptions, QualityGate, Race, Speculate
from streamco.core.report_parts import AnswerPlan
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import DegradedError, EndpointConnectError
from streamco.policies.ways import Way
from streamco.profiles import Profile
from streamco.profiles.rated_answer import RatedAnswer
from streamco.reports import Report
from streamco.testing import FakeEngine, ScriptedEndpoint, run_in_virtual_time
from streamco.testing.endpoint import ScriptedStream
from tests.client.helpers import HELLO, ask, device, opened, server
from tests.client.speculating import PROMPT, World
from tests.support.modes import drafting, racing

PRICES = TokenPrices(prompt=1e-6, completion=1e-6)
TOKENS = 20
QUALITY = MigrationOptions(quality={"device": 0.4, "server": 0.9})


class Timed(ScriptedEndpoint):
    """An endpoint that takes about so long to its first token, and then writes at a rate."""

    def __init__(self, name: str, first: float, gap: float, **options: Any) -> None:
        super().__init__(name, [(first, "")], tokens=100, **options)
        self.first, self.gap, self._rng = first, gap, Random(name)
        self.is_down = False

    def open(self, request: Request) -> ScriptedStream:
        first = self.first * self._rng.uniform(0.9, 1.1)
        self.script = [(first + self.gap * place, f"{self.name[0]}{place} ") for place in range(TOKENS)]
        if self.is_down:
            self.script = [(0.0, EndpointConnectError("down"))]
        return super().open(request)


def local(first: float = 0.5, gap: float = 0.02) -> Timed:
    return Timed("device", first, gap, kind="device")


def remote(first: float = 0.3, gap: float = 0.01, **options: Any) -> Timed:
    return Timed("server", first, gap, prices=PRICES, **options)


async def reports(client: Client, count: int, **options: Any) -> list[Report]:
    found = []
    for _ in range(count):
        stream = client.stream("hello", max_tokens=TOKENS, **options)
        assert "".join([token.text async for token in stream])
        found.append(stream.report)
    return found


def play(sides: tuple[Any, Any], mode: Auto, count: int = 60, **options: Any) -> list[Report]:
    """The reports of answers one after the other, in virtual time."""

    async def main() -> list[Report]:
        async with Client(*sides, mode=mode, seed=1, **options) as client:
            return await reports(client, count)

    return run_in_virtual_time(main())


def plan_of(report: Report) -> AnswerPlan:
    assert report.plan is not None
    return report.plan


def counted(found: Iterable[Report]) -> Counter[str]:
    return Counter(plan_of(report).way for report in found)


def named(report: Report) -> dict[str, Way]:
    return {way.name: way for way in plan_of(report).ways}


# What goes


def test_the_side_with_the_sooner_first_word_goes_if_time_alone_counts() -> None:
    found = play((local(0.2), remote(0.9)), Auto(time=1.0))
    assert counted(found[5:])["device"] > 50
    found = play((local(0.9), remote(0.2)), Auto(time=1.0), budget=1)
    assert counted(found[5:])["server"] + counted(found[5:])["race"] > 50


def test_the_cheaper_side_goes_if_money_counts_most() -> None:
    found = play((local(0.9), remote(0.2)), Auto(time=1e-9, money=1.0))
    assert counted(found[2:])["device"] > 50
    assert sum(report.cost_usd or 0.0 for report in found[10:]) == 0.0


def test_the_better_side_goes_if_quality_counts_most() -> None:
    mode = Auto(Race(migration=QUALITY), time=0.001, money=1.0, quality=1.0)
    found = play((local(0.2), remote(0.9)), mode)
    assert counted(found[2:])["server"] > 50
    assert [round(each.quality or 0.0, 3) for name, each in named(found[-1]).items() if name in {"device", "server"}] == [0.4, 0.9]


def test_a_quality_that_isnt_known_counts_as_0_and_the_plan_says_so() -> None:
    found = play((local(0.2), remote(0.9)), Auto(time=0.001, quality=1.0), budget=1)
    assert counted(found[2:])["server"] > 50
    assert "the quality of device isn't known and counts as 0" in plan_of(found[-1]).reason
    assert (named(found[-1])["device"].quality, named(found[-1])["server"].quality) == (None, 1.0)


def test_a_price_that_isnt_known_counts_as_0_and_the_plan_says_so() -> None:
    found = play((local(), Timed("server", 0.1, 0.01, prices=TokenPrices(prompt=None, completion=None))), Auto(money=1.0, time=1.0), 5)
    assert "the price of server isn't known and counts as 0" in plan_of(found[-1]).reason


def test_who_waits_for_the_whole_answer_gets_the_faster_writer() -> None:
    async def main() -> list[str]:
        async with Client(local(0.1, gap=0.1), remote(0.6, gap=0.001), mode=Auto(time=1.0), seed=1, budget=1) as client:
            await reports(client, 10)
            (streamed,) = await reports(client, 1)
            answer = await client.chat.completions.create(messages=HELLO, max_tokens=TOKENS)
            assert answer.report is not None
            return [plan_of(streamed).way, plan_of(answer.report).way]

    assert run_in_virtual_time(main()) == ["device", "server"]


# What is told


def test_the_plan_has_what_was_predicted_of_each_way() -> None:
    report = play((local(0.5, gap=0.05), remote(0.3, gap=0.02)), Auto(time=0.001, money=1.0, quality=1e-5), 30)[-1]
    ways, plan = named(report), plan_of(report)
    assert list(ways) == ["device", "server", "race", "gated race"]
    assert ways["device"].first_word == pytest.approx(0.5, rel=0.15)
    assert ways["server"].first_word == pytest.approx(0.3, rel=0.15)
    assert ways["server"].dollars == pytest.approx((100 + plan.tokens) * 1e-6, rel=0.05)
    assert ways["device"].dollars == 0.0
    assert ways["gated race"].obstacle == "too few answers have been rated (0 so far)"
    assert plan.tokens == pytest.approx(TOKENS, abs=1.0)
    assert (plan.time, plan.money, plan.quality) == (0.001, 1.0, 1e-5)
    assert [way.cost is None for way in plan.ways] == [False, False, False, True]


def test_the_plan_is_in_the_report_as_text_and_as_json() -> None:
    report = play((local(), remote()), Auto(time=1.0), 5)[-1]
    text = str(report)
    assert "ways to make an answer of about " in text
    assert f"\n  {plan_of(report).way} <" in text
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_without_weights_there_is_no_plan() -> None:
    assert play((local(), remote()), Auto(Race()), 2)[-1].plan is None


# Promises and budgets


@pytest.mark.parametrize("options", [{"mode": Auto(Race(policy="device-only"), time=1.0)}, {"mode": Auto(time=1.0), "budget": 0}])
def test_a_side_that_is_kept_out_is_never_asked(options: dict[str, Any]) -> None:
    there = remote(0.0)

    async def main() -> list[Report]:
        async with Client(local(3.0), there, seed=1, **options) as client:
            return await reports(client, 30)

    found = run_in_virtual_time(main())
    assert not there.streams
    assert {(report.winner, report.plan) for report in found} == {("device", None)}


@pytest.mark.parametrize("budget", [0.1, 0.3, 0.7])
def test_a_budget_holds_whatever_the_weights_say(budget: float) -> None:
    found = play((local(3.0), remote(0.1)), Auto(time=1.0), 200, budget=budget)
    assert found[-1].dispatch.budget == budget
    share = found[-1].dispatch.budget_share
    assert share is not None
    assert 0.6 * budget <= share <= budget + 0.03


def test_without_a_budget_the_worth_of_a_dollar_decides_what_a_server_does() -> None:
    assert play((local(), remote()), Auto(time=1.0, money=1.0), 1)[0].dispatch.budget == 1.0
    assert play((local(), remote()), Auto(time=1.0), 1)[0].dispatch.budget == 0.3
    assert play((local(), remote()), Auto(time=1.0, money=1.0), 1, budget=0.4)[0].dispatch.budget == 0.4


def test_a_policy_that_names_a_side_leaves_no_other_way() -> None:
    found = play((local(0.1), remote(0.9)), Auto(Race(policy="server-first"), time=1.0, money=1.0), 5)
    assert [list(named(report)) for report in found] == [["server"]] * 5
    assert {report.winner for report in found} == {"server"}


async def test_a_client_with_weights_has_an_account_of_its_own() -> None:
    async with opened(device(), server()) as client:
        weighing = client.with_options(mode=Auto(money=1.0, time=1.0))
        assert racing(weighing).dispatcher is not racing(client).dispatcher
        assert racing(client.with_options(mode=Auto(time=1.0))).dispatcher is racing(client).dispatcher
        await ask(weighing)
        assert (client.totals.answers, weighing.totals.answers) == (0, 1)


# Failures and what a side can't do


async def test_an_answer_survives_the_side_that_was_chosen() -> None:
    broken = device([(0.0, "D"), (0.01, EndpointConnectError("gone"))], prices=TokenPrices(prompt=0.0, completion=0.0))
    other = server([(0.3, "S"), (0.31, "!")], prices=PRICES, capabilities=Capabilities(continuation="prefix"))
    async with opened(broken, other, mode=Auto(time=1e-9, money=1.0)) as client:
        for _ in range(3):
            stream = client.stream("hello")
            text = "".join([token.text async for token in stream])
            assert text.endswith("!")
        assert stream.report.ending == "complete"


async def test_a_request_that_one_side_alone_can_serve_has_one_way() -> None:
    async with opened(device(capabilities=Capabilities(tools=False)), server(), mode=Auto(time=1.0), budget=0.1) as client:
        for _ in range(3):
            tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
            stream = client.stream("hello", tools=tools)
            assert "".join([token.text async for token in stream]) == "S"
            assert [way.name for way in plan_of(stream.report).ways if not way.obstacle] == ["server"]
            assert "tools" in named(stream.report)["device"].obstacle


async def test_requests_with_tools_are_never_raced() -> None:
    async with opened(device(capabilities=Capabilities(tools=True)), server(), mode=Auto(time=1.0), budget=1) as client:
        for _ in range(8):
            tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
            stream = client.stream("hello", tools=tools)
            assert "".join([token.text async for token in stream])
            assert plan_of(stream.report).way != "race"
            assert sum(part.opened is not None for part in stream.report.endpoints) == 1


def test_a_server_that_rests_is_no_way_and_is_found_again() -> None:
    there = remote(0.1)

    async def main() -> list[Report]:
        async with Client(local(0.5), there, mode=Auto(time=1.0), seed=1, budget=1) as client:
            found = await reports(client, 5)
            there.is_down = True
            found += await reports(client, 5)
            there.is_down = False
            return found + await reports(client, 100)

    found = run_in_virtual_time(main())
    assert any("rests, because it has just failed" in way.obstacle for report in found[5:10] for way in plan_of(report).ways)
    assert counted(found[-20:])["server"] + counted(found[-20:])["race"] >= 18


async def test_an_answer_that_no_way_is_open_to_is_made_nevertheless() -> None:
    failing = device([(0.0, EndpointConnectError("down"))])
    async with opened(failing, server(), mode=Auto(time=1.0), budget=0.001, on_degraded="answer") as client:
        for _ in range(6):  # the device rests, and the budget is spent
            assert await ask(client) == "S"


# Quality


def ratings(count: int, good: float) -> tuple[RatedAnswer, ...]:
    rng = Random(1)
    return tuple(
        RatedAnswer(
            mean=0.9 if is_good else 0.3,
            tenth=0.8 if is_good else 0.1,
            median=0.9 if is_good else 0.3,
            tokens=16,
            is_complete=False,
            prompt_tokens=10,
            good=is_good,
        )
        for is_good in (rng.random() < good for _ in range(count))
    )


def test_ratings_tell_the_quality_of_the_device_and_the_gates_score(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(Profile(ratings=ratings(200, 0.5)).to_json())
    sides: list[Report] = []
    for probability, way in ((0.95, "device"), (0.2, "server")):
        engine = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=probability), name="device")

        async def main(engine: DeviceEndpoint = engine) -> list[Report]:
            mode = Auto(time=1e-6, money=1.0, quality=1e-4)  # a server's answer costs 23 millionths
            async with Client(engine, remote(0.3), mode=mode, seed=1, profile=profile) as client:
                return await reports(client, 12)

        found = run_in_virtual_time(main())
        gated = [report for report in found if plan_of(report).way == "gated race"]
        assert gated
        assert {report.winner for report in gated} == {way}
        sides += gated
    assert 0.4 < (named(sides[0])["device"].quality or 0.0) < 0.6
    assert (named(sides[0])["gated race"].quality or 0.0) > 0.9
    least = {report.grade.min_score for report in sides if report.grade is not None}
    assert all(each == pytest.approx(0.77, abs=0.05) for each in least)


async def test_answers_of_a_client_whose_quality_counts_can_be_rated() -> None:
    engine = DeviceEndpoint(FakeEngine("one two three", probability=0.9))
    async with opened(engine, server([(5.0, "S")]), mode=Auto(Race(policy="device-first"), quality=1.0)) as client:
        stream = client.stream("hello")
        assert [token.text async for token in stream]
        assert stream.rate(True)
        grader = racing(client).dispatcher.grader
        assert grader is not None
        assert grader.learned.labels == 1


@pytest.mark.parametrize("probability", [0.9, 0.3])
async def test_a_gate_of_the_callers_own_decides_whatever_the_weights_say(probability: float) -> None:
    mode = Auto(Race(quality=QualityGate(min_score=0.7)), money=1.0)
    engine = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=probability))
    async with opened(engine, server([(0.0, "S")], prices=PRICES), mode=mode) as client:
        for _ in range(6):
            report = await whole(client)
            if report.winner == "device":
                assert report.grade is not None
                assert (report.grade.verdict, report.grade.min_score) == ("sure", 0.7)
        assert named(report)["device"].obstacle == "its answers must have a score"


@pytest.mark.parametrize("probability", [0.95, 0.2])
def test_a_device_that_goes_first_is_graded_by_weights(probability: float, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(Profile(ratings=ratings(200, 0.5)).to_json())
    engine = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=probability), name="device")
    mode = Auto(Race(policy="device-first"), time=1e-6, money=1.0, quality=1e-4)
    found = play((engine, remote(0.3)), mode, 10, profile=profile)
    assert counted(found)["gated race"] >= 2
    assert {report.winner for report in found[1:]} == {"device" if probability > 0.5 else "server"}


def test_a_gate_that_may_ask_no_server_is_no_way(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(Profile(ratings=ratings(200, 0.5)).to_json())
    engine = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=0.2), name="device")
    mode = Auto(Race(policy="device-first"), time=1e-6, quality=1e-4)
    found = play((engine, remote(0.3)), mode, 60, profile=profile, budget=0.1)
    gated = [report for report in found if plan_of(report).way == "gated race"]
    assert gated
    assert {report.winner for report in gated} == {"server"}
    assert not any(report.notes for report in gated)


def test_a_gate_counts_that_readers_wait_only_so_long(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(Profile(ratings=ratings(200, 0.5)).to_json())
    engine = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=0.2), name="device")
    report = play((engine, remote(30.0)), Auto(time=1e-6, quality=1e-4), 12, profile=profile, budget=1)[-1]
    assert (named(report)["gated race"].quality or 0.0) < 0.6  # the device's own answer is shown in the end


# The account


@pytest.mark.parametrize("last", [Race(), Race(explore=0.1), Auto(time=1.0), Auto(Race())])
async def test_who_goes_back_from_the_worth_of_a_dollar_has_the_usual_budget(last: Any) -> None:
    async with opened(device(), server()) as client:
        weighing = client.with_options(mode=Auto(money=1.0, time=1.0))
        assert racing(weighing).dispatcher.budget == 1.0
        assert racing(weighing.with_options(mode=last)).dispatcher.budget == 0.3
        assert racing(client.with_options(budget=0.5).with_options(mode=Auto(money=1.0))).dispatcher.budget == 0.5


async def test_the_short_name_keeps_the_weights() -> None:
    mode = Auto(Race(), time=1.0)
    async with opened(device(), server(), mode=mode) as client:
        assert client.with_options(mode=Race(policy="both")).with_options(mode="auto")._settings.mode == Auto(Race(policy="both"), time=1.0)


def test_money_is_not_spent_where_no_time_can_be_learned() -> None:
    def held_back(request: Request) -> ScriptedStream:
        there.script = [(1.0, f"s{place} ") for place in range(40)]  # as behind a proxy that holds answers back
        return ScriptedEndpoint.open(there, request)

    there = Timed("server", 1.0, 0.0, prices=TokenPrices(prompt=1.0, completion=1.0))
    there.open = held_back  # type: ignore[method-assign]
    found = play((local(2.0), there), Auto(time=1e-6, money=1.0), 40)
    assert counted(found)["device"] >= 38
    assert named(found[-1])["server"].dollars == pytest.approx(100 + plan_of(found[-1]).tokens, rel=0.05)


def test_money_alone_is_a_weight() -> None:
    found = play((local(2.0), remote(0.0)), Auto(money=1.0), 20)
    assert counted(found)["device"] >= 18


# Other modes


@pytest.fixture
def world() -> Any:
    found = World(token_s=0.001)
    yield found
    found.close()


async def test_speculation_is_a_way(world: World) -> None:
    async with world.scripted() as verifier:
        mode = Auto(Race(policy="device-first"), Speculate(verifier=verifier.url), quality=1.0)
        async with world.speculating(verifier.url, mode=mode, budget=1) as client:
            found = [await whole(client) for _ in range(4)]
    assert {report.mode for report in found[1:]} == {"speculate"}
    assert (named(found[-1])["speculate"].quality, named(found[-1])["device"].quality) == (1.0, None)
    assert named(found[-1])["speculate"].first_word is not None


async def test_what_speculation_will_cost_is_what_it_is_billed(world: World) -> None:
    priced = server(prices=TokenPrices(prompt=1.0, completion=2.0))
    async with world.scripted() as verifier:
        mode = Auto(Speculate(verifier=verifier.url, is_adaptive=False), quality=1.0)
        async with Client(DeviceEndpoint(world.engine), priced, mode=mode, seed=1, budget=1) as client:
            found = [await whole(client) for _ in range(6)]
    made = [report for report in found if report.mode == "speculate"]
    assert made
    way = named(made[-1])["speculate"]
    assert way.dollars == pytest.approx(made[-1].cost_usd, rel=0.9)
    assert "price of speculate" not in plan_of(made[-1]).reason


async def test_a_request_that_speculation_alone_can_serve_is_speculated(world: World) -> None:
    async with world.scripted() as verifier:
        mode = Auto(Race(gate=lambda _: False), Speculate(verifier=verifier.url), time=1.0)
        async with world.speculating(verifier.url, mode=mode) as client:
            assert (await whole(client)).mode == "speculate"


async def test_speculation_keeps_its_own_budget() -> None:
    async with opened(DeviceEndpoint(FakeEngine("a")), server()) as client:
        weighing = client.with_options(mode=Auto(Speculate(budget=0.5, verifier="http://127.0.0.1:1"), money=1.0))
        assert drafting(weighing).budget == 0.5


@pytest.mark.parametrize("options", [{"mode": Race(policy="device-only")}, {"mode": Race(), "budget": 0}])
async def test_a_mode_that_a_promise_keeps_from_an_answer_is_said(options: Any) -> None:
    race = options.pop("mode")
    mode = Auto(race, Speculate(verifier="http://127.0.0.1:1"), time=1.0)
    async with opened(DeviceEndpoint(FakeEngine("a b")), server(), mode=mode, on_degraded="answer", **options) as client:
        report = await whole(client)
        assert (report.plan, report.notes) == (None, ["not speculated: the server is kept out"])


async def whole(client: Client) -> Report:
    stream = client.stream(PROMPT, max_tokens=20, temperature=0)
    assert [token.text async for token in stream]
    return stream.report


async def test_a_verifier_that_cant_be_reached_is_said_and_the_answer_is_made_in_another_way(world: World) -> None:
    mode = Auto(Race(), Speculate(verifier="http://127.0.0.1:1"), time=1.0)
    world.wake()
    async with opened(DeviceEndpoint(world.engine), server([(0.5, "S")]), mode=mode, on_degraded="answer") as client:
        report = await whole(client)
        assert named(report)["speculate"].obstacle
        assert any("not speculated" in note for note in report.notes)
    async with opened(DeviceEndpoint(world.engine), server([(0.5, "S")]), mode=mode, on_degraded="raise") as client:
        with pytest.raises(DegradedError):
            await whole(client)


def test_the_public_name_has_weights() -> None:
    assert streamco.Auto(time=1.0).weights is not None
