"""What all answers of a client know of its endpoints: those that fail are left alone for a while, and a busy device is helped out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import streamco
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError, EndpointProtocolError, EndpointStatusError, EngineError
from streamco.policies.dispatch import Decision
from streamco.testing import Cut, ScriptedEndpoint, ScriptedServer, chunk_event, json_answer, run_in_virtual_time, sse_event, stream_answer
from streamco.testing import ScriptedResponse as Response
from tests.client.helpers import ask, device, opened, server, tokens_text, words

DOWN = EndpointConnectError("down", endpoint="first")
BUSY = EndpointStatusError("slow down", status=429, retry_after=10.0, endpoint="first")
CHAT = "/v1/chat/completions"


def two(error: Exception = DOWN) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    return server([(0.0, error)], name="first"), server([(0.1, "second")], name="second")


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_in_virtual_time(test())

    run.__name__ = test.__name__
    return run


@in_virtual_time
async def test_the_next_answers_ask_the_other_one_first_until_the_rest_is_over() -> None:
    first, second = two()
    async with opened(server=[first, second]) as client:
        for _ in range(5):
            assert await ask(client) == "second"
        assert len(first.streams) == 1
        await asyncio.sleep(1.0)
        assert await ask(client) == "second"
        assert len(first.streams) == 2, "one answer has tried it again"
        first.script = [(0.0, "first")]
        assert await ask(client) == "second", "now it rests for two seconds"
        await asyncio.sleep(2.0)
        assert await ask(client) == "first"
        assert client.degraded == ()
        assert await ask(client) == "first"


@in_virtual_time
async def test_only_one_of_many_answers_tries_it_again() -> None:
    first, second = two()
    async with opened(server=[first, second]) as client:
        await ask(client)
        await asyncio.sleep(1.0)
        first.script = [(5.0, DOWN)]
        answers = await asyncio.gather(*(ask(client) for _ in range(30)))
        assert answers == ["second"] * 30
        assert len(first.streams) == 2


@in_virtual_time
async def test_the_time_that_a_server_asks_for_is_kept() -> None:
    first, second = two(BUSY)
    async with opened(server=[first, second]) as client:
        await ask(client)
        for seconds, asked in ((9.0, 1), (1.0, 2)):
            await asyncio.sleep(seconds)
            await ask(client)
            assert len(first.streams) == asked


@in_virtual_time
async def test_what_an_answer_meets_all_clients_over_the_endpoints_know() -> None:
    first, second = two()
    async with opened(server=[first, second]) as client:
        await ask(client)
        assert await ask(client.with_options(mode=streamco.Race(policy="server-only"))) == "second"
        assert len(first.streams) == 1


@in_virtual_time
async def test_an_endpoint_that_rests_is_asked_if_all_others_fail() -> None:
    first, second = two()
    async with opened(server=[first, second]) as client:
        await ask(client)
        first.script, second.script = [(0.0, "first")], [(0.0, DOWN)]
        assert await ask(client) == "first"


@in_virtual_time
async def test_while_both_rest_the_order_is_the_usual_one() -> None:
    first, second = two()
    second.script = [(0.0, DOWN)]
    async with opened(server=[first, second]) as client:
        with pytest.raises(streamco.errors.AllEndpointsFailed):
            await ask(client)
        first.script = [(0.0, "first")]
        stream = client.stream("hello")
        assert await tokens_text(stream) == "first"
        assert stream.report.notes == []


@in_virtual_time
async def test_an_only_endpoint_never_rests() -> None:
    first, _ = two()
    async with opened(server=first) as client:
        for _ in range(3):
            with pytest.raises(EndpointConnectError):
                await ask(client)
        assert len(first.streams) == 3


@in_virtual_time
async def test_the_device_stands_in_for_a_server_that_rests_and_the_other_way_round() -> None:
    for failing, other in (("server", "device"), ("device", "server")):
        sides: dict[str, Any] = {"device": device(), "server": server()}
        sides[failing].script = [(0.0, DOWN)]
        async with opened(sides["device"], sides["server"], policy=f"{failing}-first") as client:
            await ask(client)
            stream = client.stream("hello")
            await tokens_text(stream)
            assert stream.report.winner == other
            assert stream.report.dispatch is not None
            assert stream.report.dispatch.reason == f"{other} at once, because the {failing} has just failed"
            assert stream.report.notes == [f"{failing} is asked only if others fail: it has just failed (EndpointConnectError)"]
            assert len(sides[failing].streams) == 1


@in_virtual_time
async def test_a_rest_spends_nothing_of_the_budget() -> None:
    local = device([(0.0, DOWN)])
    remote = server()
    async with opened(local, remote, budget=0.1, policy="device-first", constrained="server") as client:
        await ask(client)
        assert await ask(client) == "S"
        assert (len(local.streams), len(remote.streams)) == (1, 2)
        assert client.totals.budget_share is None, "both were outages"


@in_virtual_time
async def test_a_promise_is_kept_though_its_side_rests() -> None:
    local, remote = device([(0.0, DOWN)]), server()
    async with opened(local, remote, policy="device-only") as client:
        for _ in range(3):
            with pytest.raises(EndpointConnectError):
                await ask(client)
        assert remote.streams == []


@in_virtual_time
async def test_with_raise_no_endpoint_stands_in_for_one_that_rests() -> None:
    first, second = two()
    async with opened(server=[first, second], on_degraded="raise") as client:
        for _ in range(2):
            with pytest.raises(EndpointConnectError):
                await ask(client)
        assert second.streams == []


@pytest.mark.parametrize("error", [EngineError("broken"), EndpointStatusError("no", status=400)])
def test_what_says_nothing_about_the_next_answer_lets_nothing_rest(error: Exception) -> None:
    async def main() -> None:
        first, second = two(error)
        async with opened(server=[first, second]) as client:
            for _ in range(2):
                await ask(client)
            assert len(first.streams) == 2

    run_in_virtual_time(main())


@in_virtual_time
async def test_an_answer_from_before_the_failure_says_nothing() -> None:
    first, second = two(BUSY)
    first.script = [(0.1 * number, f"{number} ") for number in range(100)]
    async with opened(server=[first, second], pace="smooth") as client:
        old = client.stream("hello")
        await anext(old)
        first.script[0] = (0.0, BUSY)  # of all later streams
        for _ in range(5):
            assert await ask(client) == "second"
            await anext(old)
        assert len(first.streams) == 2
        await old.aclose()


@in_virtual_time
async def test_a_trial_is_over_when_it_fails_and_not_with_its_answer() -> None:
    first, second = two()
    async with opened(server=[first, second]) as client:
        await ask(client)
        await asyncio.sleep(1.0)
        second.script = [(0.0, "long "), (600.0, "answer")]
        trial = client.stream("hello")
        assert (await anext(trial)).text == "long "
        first.script, second.script = [(0.0, "first")], [(0.0, "second")]
        await asyncio.sleep(2.0)
        assert await ask(client) == "first"
        await trial.aclose()


@in_virtual_time
async def test_another_api_is_said_to_each_caller() -> None:
    first = server([(0.0, EndpointProtocolError("expected OpenAI's API", is_lasting=True))], name="first")
    async with opened(device(), first, policy="server-first") as client:
        for _ in range(3):
            with pytest.raises(EndpointProtocolError, match="OpenAI"):
                await ask(client)


# Servers that are asked again by their endpoint


def remote(scripted: ScriptedServer, name: str, **options: Any) -> OpenAIEndpoint:
    return OpenAIEndpoint("m", base_url=scripted.url, name=name, probe=False, **options)


async def test_the_next_server_begins_at_once_while_the_first_one_waits_to_be_asked_again() -> None:
    busy = json_answer({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "60"})
    async with ScriptedServer(busy) as one, ScriptedServer(stream_answer(["S"])) as two, ScriptedServer(stream_answer(["T"])) as three:
        servers = [remote(each, name) for each, name in ((one, "one"), (two, "two"), (three, "three"))]
        policy = streamco.RetryPolicy(longest_wait=100.0)
        servers[0] = remote(one, "one", retry=policy)
        async with opened(server=servers) as client:
            stream = client.stream("hello")
            async with asyncio.timeout(10.0):
                assert await tokens_text(stream) == "S"
            assert stream.report.notes == ["one failed (EndpointStatusError 429): two answered"]
            assert [(each.name, each.outcome, each.error_kind) for each in stream.report.endpoints] == [
                ("one", "failed", "EndpointStatusError 429"),
                ("two", "won", None),
                ("three", "not started", None),
            ]
            assert await ask(client) == "S"
        assert (one.count(CHAT), three.count(CHAT)) == (1, 0)


async def test_the_third_server_begins_at_once_if_the_first_two_wait() -> None:
    busy = json_answer({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "60"})
    patient = streamco.RetryPolicy(longest_wait=100.0)
    async with ScriptedServer(busy) as one, ScriptedServer(busy) as two, ScriptedServer(stream_answer(["S"])) as three:
        servers = [remote(one, "one", retry=patient), remote(two, "two", retry=patient), remote(three, "three")]
        async with opened(server=servers) as client, asyncio.timeout(10.0):
            assert await ask(client) == "S"


@pytest.mark.parametrize(
    "down",
    [
        json_answer({}, status=503, headers={"Retry-After": "0"}),
        Response(steps=[sse_event({"error": {"message": "overloaded", "code": 503}})]),
        Response(steps=[Cut()]),
    ],
    ids=["status", "error event", "cut"],
)
async def test_a_request_with_tools_is_never_at_two_endpoints_at_once(down: Response) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with ScriptedServer(down, stream_answer(["late"])) as one, ScriptedServer(stream_answer(["S"], first=0.3)) as two:
        no_wait = streamco.RetryPolicy(backoff=1e-9)
        async with opened(server=[remote(one, "one", retry=no_wait), remote(two, "two")]) as client:
            answer = await client.chat.completions.create(messages=[{"role": "user", "content": "hello"}], tools=tools)
            assert answer.choices[0].message.content == "S"
        assert (one.count(CHAT), two.count(CHAT)) == (1, 1)


async def test_a_server_that_recovers_first_wins() -> None:
    down = json_answer({}, status=503)
    async with ScriptedServer(down, stream_answer(["S"])) as one, ScriptedServer(stream_answer(["T"], first=30.0)) as two:
        async with opened(server=[remote(one, "one"), remote(two, "two")]) as client:
            stream = client.stream("hello")
            assert await tokens_text(stream) == "S"
            assert stream.report.notes == []
        assert (one.count(CHAT), two.count(CHAT)) == (2, 1)


async def test_an_only_server_is_asked_as_often_as_before() -> None:
    down = json_answer({}, status=503)
    async with ScriptedServer(down, down, down) as one:
        quick = streamco.RetryPolicy(attempts=2, backoff=0.001)
        async with opened(server=remote(one, "one", retry=quick)) as client:
            with pytest.raises(EndpointStatusError, match="503"):
                await ask(client)
        assert one.count(CHAT) == 3


async def test_with_raise_a_server_that_is_asked_again_is_waited_for() -> None:
    down = json_answer({}, status=503)
    async with ScriptedServer(down, stream_answer(["S"])) as one:
        quick = streamco.RetryPolicy(attempts=1, backoff=0.001)
        second = device(words(0.0))
        async with opened(second, remote(one, "one", retry=quick), policy="server-first", on_degraded="raise") as client:
            assert await ask(client) == "S"
        assert second.streams == []


# What could not go on


async def test_the_error_and_the_notes_name_the_endpoint_that_takes_no_begun_answers() -> None:
    cut = Response(steps=[chunk_event("One "), chunk_event("two "), Cut()])
    async with ScriptedServer(cut) as one:
        able = device(words(0.0), capabilities=Capabilities())
        async with opened(able, remote(one, "one"), policy="server-first") as client:
            stream = client.stream("hello")
            with pytest.raises(streamco.errors.EndpointProtocolError) as caught:
                await tokens_text(stream)
            sentence = 'device can\'t go on with a begun answer, as far as is known (capabilities.continuation is "none")'
            assert str(caught.value).endswith(f"; {sentence}")
            assert caught.value.partial == "One two "
            assert sentence in stream.report.notes


# A device that is busy with others


def busy(**options: Any) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    return device([(1.0, "D"), (9.0, "d")], tokens=250, **options), server([(0.3, "S")], tokens=250)


async def crowd(client: streamco.Client, size: int) -> list[streamco.Report]:
    streams = [client.stream("hello") for _ in range(size)]
    await asyncio.gather(*(tokens_text(stream) for stream in streams))
    return [stream.report for stream in streams]


@in_virtual_time
async def test_answers_that_come_together_borrow_from_the_budget_in_place_of_waiting() -> None:
    async with opened(*busy()) as client:
        reports = await crowd(client, 12)
        assert [report.winner for report in reports] == ["device", *["server"] * 11]
        assert [report.dispatch.is_borrowed for report in reports if report.dispatch] == [False, *[True] * 11]
        assert reports[1].dispatch is not None
        assert reports[1].dispatch.reason == "the device has others before it, and the budget is spent: borrowed"
        assert "on credit" in str(reports[1])
        assert all(report.notes == [] for report in reports)
        later = [await crowd(client, 1) for _ in range(20)]
        assert {report.winner for (report,) in later} == {"device"}, "what was borrowed is paid back first"


@in_virtual_time
async def test_what_may_be_borrowed_ends_and_then_the_notes_say_why_an_answer_waits() -> None:
    async with opened(*busy()) as client:
        reports = await crowd(client, 30)
        assert sum(report.winner == "server" for report in reports) == 17
        assert reports[-1].notes == [
            "the answer waits for 12 others at device, because the budget is spent, and what may be borrowed, too (burst)"
        ]


@pytest.mark.parametrize("options", [{"burst": 0}, {"policy": "device-first"}, {"policy": "device-only"}, {"budget": 0.0}])
def test_nothing_is_borrowed_where_it_must_not(options: dict[str, Any]) -> None:
    async def main() -> None:
        local, remote = busy()
        async with opened(local, remote, **options) as client:
            await crowd(client, 12)
            assert remote.streams == []

    run_in_virtual_time(main())


@in_virtual_time
async def test_an_own_policy_decides_alone() -> None:
    class Device:
        name = "mine"

        def decide(self, length: int, rng: object) -> Decision:
            return Decision(0.0, None, "mine", "always the device")

    local, remote = busy()
    async with opened(local, remote, policy=Device()) as client:
        await crowd(client, 12)
        assert remote.streams == []


@in_virtual_time
async def test_a_budget_that_is_not_spent_is_not_borrowed_from() -> None:
    async with opened(*busy(), budget=1.0, policy="server-constrained") as client:
        reports = await crowd(client, 4)
        assert [report.dispatch.is_borrowed for report in reports if report.dispatch] == [False] * 4
        assert reports[-1].winner == "server"


@in_virtual_time
async def test_the_device_s_speed_is_not_learned_from_answers_that_waited() -> None:
    local, remote = busy()
    async with opened(local, remote, burst=0, explore=0.0) as client:
        await crowd(client, 12)
        assert len(client._settings.planner.dispatcher._learner._device) == 1  # type: ignore[attr-defined]
