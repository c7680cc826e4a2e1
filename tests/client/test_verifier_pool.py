"""A client with several verifiers of one model: its answers are spread, move when one fails, and say where they were."""

from __future__ import annotations

import asyncio

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.driver import SpeculationDriver
from streamco.client.modes.speculation.mode import Speculate
from streamco.config import Timeouts
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import ConfigError
from streamco.testing import Crash, Refuse
from streamco.wire.verify.errors import OverloadedError, RuleError
from tests.client.helpers import tokens_text
from tests.client.speculating import PROMPT, QUICK, World
from tests.support.modes import drafting

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.verifiers.pool_session._GRACE", 0.02)
    monkeypatch.setattr("streamco.endpoints.verifiers.pool_session._STAY", 0.1)


def pool_of(*urls: str, routing: str = "in-order", timeouts: Timeouts = QUICK) -> VerifierPool:
    names = "abc"
    verifiers = [VerifierEndpoint(url, name=name, timeouts=timeouts) for url, name in zip(urls, names, strict=False)]
    return VerifierPool(verifiers, routing=routing, retry_after=0.05)


@pytest.mark.parametrize("verifier", [["ws://127.0.0.1:9", 3], ("ws://127.0.0.1:9", None, object())])
def test_a_list_is_of_urls_and_verifiers(verifier: list[object], world: World) -> None:
    with pytest.raises(ConfigError, match="verifier: expected the URL of one, a verifier, a list of them or None, got"):
        Client(DeviceEndpoint(world.engine), mode=Speculate(verifier=verifier))  # type: ignore[arg-type]


@pytest.mark.long
async def test_a_list_of_addresses_spreads_the_answers(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating([one.url, other.url]) as client:
        streams = [client.stream(PROMPT, temperature=0) for _ in range(4)]
        assert await asyncio.gather(*map(tokens_text, streams)) == [world.text()] * 4
        assert one.drafts
        assert other.drafts
        served = [stream.report.speculation.verifiers for stream in streams if stream.report.speculation is not None]
        assert sorted(served) == [(f"127.0.0.1:{port}",) for port in sorted((one.port, one.port, other.port, other.port))]


@pytest.mark.long
async def test_the_report_names_the_verifier_of_each_answer(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other:
        pool = pool_of(one.url, other.url, routing="round-robin")
        async with world.speculating(pool) as client:
            for name in "abab":
                stream = client.stream(PROMPT, temperature=0)
                tokens = [token async for token in stream]
                assert "".join(token.text for token in tokens) == world.text()
                assert {token.source for token in tokens} == {"device", name}
                assert [each.name for each in stream.report.endpoints] == ["device", name]
                assert not stream.report.notes


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("kill_at", [1, 30, 100])
async def test_an_answer_goes_on_at_another_verifier_and_says_so(world: World, kill_at: int) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating(pool_of(one.url, other.url)) as client:
        stream = client.stream(PROMPT, temperature=0)
        text, sources = "", []
        async for token in stream:
            text += token.text
            sources.append(token.source)
            if len(text) > kill_at and one.connections_open:
                await one.aclose()
        assert text == world.text()
        figures, report = stream.report.speculation, stream.report
        assert figures is not None
        assert (figures.verifiers, figures.is_exact, figures.device) == (("a", "b"), True, 0)
        assert sources[-1] in {"device", "b"}
        assert any(note.startswith("the answer moved from a to b: ") for note in report.notes)
        server = next(each for each in report.endpoints if each.kind == "server")
        assert server.name == "b"
        assert server.prompt_tokens > 2 * len(world.prompt_ids()), "both have read the prompt"
        # the next answer knows already
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.speculation is not None
        assert stream.report.speculation.verifiers == ("b",)
        assert any(note.startswith("verifier a left out: ") and note.endswith("; b took the answer") for note in stream.report.notes)


async def test_an_answer_is_planned_with_the_times_of_its_own_verifier(world: World) -> None:
    costs = {"a": {1: 0.01, 8: 0.02}, "b": {1: 0.4, 8: 0.8}}
    async with world.scripted(row_costs=costs["a"]) as one, world.scripted(row_costs=costs["b"]) as other:
        pool = pool_of(one.url, other.url, routing="round-robin")
        async with world.speculating(pool) as client:
            planned = {}
            for name in "ab":
                stream = client.stream(PROMPT, temperature=0)
                assert await tokens_text(stream) == world.text()
                driver = stream._answer.driver
                assert isinstance(driver, SpeculationDriver)
                planned[name] = driver.machine._estimates
            for name, estimates in planned.items():
                known, (rows, seconds) = estimates._round_trip._costs, max(costs[name].items())
                assert known is not None
                assert known.seconds(rows) == seconds
            assert planned["a"].wait != planned["b"].wait
            assert planned["a"].acceptance == planned["b"].acceptance


async def test_an_answer_that_moves_is_planned_with_the_times_of_its_new_verifier(world: World) -> None:
    async with world.scripted(row_costs={1: 0.01}) as one, world.scripted(row_costs={1: 0.4}) as other:
        one.script_opens(*[Refuse(OverloadedError, retry_after=600.0)] * 5)
        async with world.speculating(pool_of(one.url, other.url)) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            driver = stream._answer.driver
            assert isinstance(driver, SpeculationDriver)
            costs = driver.machine._estimates._round_trip._costs
            assert costs is not None
            assert costs.seconds(1) == 0.4


async def test_under_another_budget_answers_are_planned_with_the_measured_times_of_each_verifier(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating(pool_of(one.url, other.url)) as client:
        assert await tokens_text(client.stream(PROMPT, temperature=0)) == world.text()
        planner = drafting(client)
        assert planner.estimates.wait != (measured := planner.estimates.at("a").wait)
        other_budget = drafting(client.with_options(budget=0.5))
        assert other_budget.estimates.at("a").wait == measured


async def test_in_mode_auto_an_answer_is_speculated_if_that_pays_at_one_verifier(world: World) -> None:
    async with world.scripted(row_costs={1: 90.0}) as one, world.scripted(row_costs={1: 0.001}) as other:
        pool = pool_of(one.url, other.url)
        async with world.speculating(pool, mode="auto") as client:
            planner = drafting(client)
            planner.estimates._remote_step.seconds = 1.0
            assert planner._pays()
            pool.members[1].problem = "it is down"
            assert not planner._pays()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("first", [0, 2])
async def test_each_verifier_bills_what_it_computed(world: World, first: int) -> None:
    prices = {"a": TokenPrices(prompt=2e-6, completion=3e-6), "b": TokenPrices(prompt=5e-5, completion=7e-5)}
    async with world.scripted() as one, world.scripted() as other:
        verifiers = [VerifierEndpoint(url.url, name=name, timeouts=QUICK, prices=prices[name]) for url, name in ((one, "a"), (other, "b"))]
        async with world.speculating(VerifierPool(verifiers, routing="in-order")) as client:
            one.script(*[None] * first, Refuse(RuleError, is_about_round=False))
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            figures, (_, part) = stream.report.speculation, stream.report.endpoints
            assert figures is not None
            assert figures.verifiers == ("a", "b")
            prompt, computed = len(world.prompt_ids()), sum(len(draft.ids) + 1 for draft in one.drafts[:first])
            assert (computed > 0) == (first > 0)
            assert part.completion_tokens == figures.target_tokens > computed
            money = prompt * 2e-6 + computed * 3e-6
            money += (part.prompt_tokens - prompt) * 5e-5 + (figures.target_tokens - computed) * 7e-5
            assert part.cost_usd == stream.report.cost_usd == pytest.approx(money)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("is_down", [False, True])
async def test_a_verifier_that_did_not_take_the_answer_bills_nothing(world: World, is_down: bool) -> None:
    prices = {"a": TokenPrices(prompt=2e-6, completion=3e-6), "b": TokenPrices(prompt=5e-5, completion=7e-5)}
    async with world.scripted() as one, world.scripted() as other:
        verifiers = [VerifierEndpoint(url.url, name=name, timeouts=QUICK, prices=prices[name]) for url, name in ((one, "a"), (other, "b"))]
        async with world.speculating(VerifierPool(verifiers, routing="in-order")) as client:
            await tokens_text(client.stream(PROMPT, temperature=0))
            one.script_opens(*[Refuse(OverloadedError, retry_after=600.0)] * 5)
            if is_down:
                await one.aclose()
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            figures, (_, part) = stream.report.speculation, stream.report.endpoints
            assert figures is not None
            assert figures.verifiers == ("a", "b")
            assert part.prompt_tokens < 2 * len(world.prompt_ids()), "b alone has read the prompt"
            assert part.cost_usd == pytest.approx(part.prompt_tokens * 5e-5 + figures.target_tokens * 7e-5)


async def test_a_refused_answer_goes_to_another_verifier(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating(pool_of(one.url, other.url)) as client:
        one.script_opens(*[Refuse(OverloadedError, retry_after=600.0)] * 5)
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.speculation is not None
        assert stream.report.speculation.verifiers == ("a", "b")


async def test_an_answer_that_every_verifier_refuses_does_not_keep_the_next_one_from_them(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating(pool_of(one.url, other.url)) as client:
        for verifier in (one, other):
            verifier.script(Refuse(RuleError, is_about_round=False))
        refused = client.stream(PROMPT, temperature=0)
        await tokens_text(refused)
        assert refused.report.speculation is not None
        assert refused.report.speculation.verifiers == ("a", "b")
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.speculation is not None
        assert (stream.report.speculation.verifiers, stream.report.notes) == (("a",), [])


@pytest.mark.long
async def test_crashes_here_and_there_cost_no_token(world: World) -> None:
    async with world.scripted() as one, world.scripted() as other, world.speculating(pool_of(one.url, other.url)) as client:
        for verifier in (one, other):
            verifier.script(None, Crash(), None, Crash())
        for seed in range(3):
            stream = client.stream(PROMPT, temperature=0, seed=seed)
            assert await tokens_text(stream) == world.text()


async def test_an_answer_of_served_verifiers_moves_with_its_plain_stream(world: World) -> None:
    """Two ``streamco serve``: the remote stream is that of the verifier that the answer is at."""
    options = Speculate()
    async with world.served() as one, world.served() as other:
        pool = pool_of(one, other, routing="round-robin")
        async with world.speculating(pool, speculation=options) as client:
            for name in "abab":
                stream = client.stream(PROMPT, temperature=0)
                sources = {token.source async for token in stream}
                assert sources <= {"device", name}
                assert name in sources
