"""Budgets at a running proxy: what is reserved, what happens when nothing is left, and what an answer costs however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import ClientSession

from streamco.client.modes.speculation.mode import Speculate
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError
from streamco.openai_types import CompletionUsage
from streamco.proxy.app import PROXY, make_app
from streamco.proxy.callers.base import to_nanos
from streamco.proxy.callers.store import CallerStore, ReservedCost
from streamco.proxy.config import ProxyOptions
from streamco.server.http.listening import listening
from streamco.testing import ScriptedServer, stream_answer
from tests.client.helpers import device, recorded_log
from tests.client.speculating import PROMPT, World
from tests.proxy.callers.support import (
    FREE,
    MESSAGES,
    NOON,
    PAID,
    PRICES,
    RESPONSES,
    SMALL,
    access_of,
    asking,
    caller,
    paid,
    serving,
    today,
    until_settled,
)
from tests.proxy.support import CHAT, HELLO, TEXT
from tests.server.support import until

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_if_the_budget_is_used_up_the_device_answers_alone_and_says_so(
    path: Path, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamco.proxy")
    headers = caller(path, budget=5e-6)
    near, far = device(), paid()
    with recorded_log() as records:
        async with serving(path, near, far, policy="server-first") as proxy:
            async with proxy.client.post(CHAT, json={**SMALL, "stream": is_streamed}, headers=headers) as response:
                assert response.status == 200
                assert response.headers["x-streamco-winner"] == "device"
                assert response.headers["x-streamco-budget"] == "used up"
                note = "the device alone answers: today's budget of alice doesn't cover a server"
                assert response.headers["x-streamco-notes"] == note
                text = await response.text()
            if is_streamed:
                report = json.loads(next(line for line in text.splitlines() if line.startswith(": streamco "))[len(": streamco ") :])
                assert report["notes"] == [note]
            await proxy.post(CHAT, SMALL, **headers)
            figures = today(proxy, path)
    assert (figures.spent, figures.reserved, figures.requests, figures.spared) == (0, 0, 2, 2)
    assert not far.streams
    said = [record for record in records if "the budget of alice" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING", "INFO"], "a warning once a day"
    assert "the device alone answers (0.000005 $ left, at most 0.00" in said[0].getMessage()


async def test_origins_of_chunks_have_the_note_in_their_report(path: Path) -> None:
    headers = caller(path, budget=0.0)
    body = {**SMALL, "stream": True, "stream_options": {"include_origin": True}}
    async with serving(path, device(), paid()) as proxy, proxy.client.post(CHAT, json=body, headers=headers) as response:
        events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: {")]
    assert events[0]["streamco"]["endpoint"] == "device"
    assert any("budget" in note for note in events[-1]["streamco"]["report"]["notes"])


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("place", PAID)
@pytest.mark.parametrize("limits", [{"sides": ("server",)}, {}])
async def test_if_no_device_may_answer_it_is_429_until_midnight(path: Path, place: str, limits: dict[str, Any]) -> None:
    headers = caller(path, budget=0.0, **limits)
    far = paid()
    async with (
        serving(path, device() if limits else None, far) as proxy,
        proxy.client.post(place, json=asking(place), headers=headers) as response,
    ):
        assert response.status == 429
        assert response.headers["Retry-After"] == "43200"
        assert response.headers["x-should-retry"] == "false"
        body = await response.json()
        assert "today's budget covers" in body["error"]["message"]
        if place == MESSAGES:
            assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        else:
            assert (body["error"]["type"], body["error"]["code"]) == ("insufficient_quota", "insufficient_quota")
        assert today(proxy, path).refused == 1
    assert not far.streams


@pytest.mark.long
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_if_the_device_cannot_serve_the_request_it_is_429_too(path: Path, is_streamed: bool) -> None:
    headers = caller(path, budget=0.0)
    near, far = device(), paid()
    async with serving(path, near, far) as proxy:
        body = {**SMALL, "tools": [TOOL], "stream": is_streamed}
        status, answer = await proxy.post(CHAT, body, **headers)
        assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
        assert today(proxy, path).reserved == 0
        status, answer = await proxy.post(CHAT, {**SMALL, "temperature": 9}, **headers)
        assert (status, answer["error"]["param"]) == (400, "temperature"), "a bad value is still its sender's"
    assert not near.streams


async def test_openais_and_anthropics_packages_meet_the_error_at_once(path: Path) -> None:
    key = caller(path, budget=0.0)["Authorization"].removeprefix("Bearer ")
    async with serving(path, far=paid()) as proxy:
        address = f"http://127.0.0.1:{proxy.runner.addresses[0][1]}"
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="streamco", messages=[{"role": "user", "content": "Hi"}])
            assert caught.value.code == "insufficient_quota"
        async with anthropic.AsyncAnthropic(base_url=address, api_key=key) as other:
            with pytest.raises(anthropic.RateLimitError):
                await other.messages.create(model="streamco", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
        assert today(proxy, path).refused == 2, "neither tried again"


async def test_the_budget_is_whole_again_on_the_next_day(path: Path) -> None:
    headers = caller(path, budget=300e-6)
    async with serving(path, far=paid(usage=CompletionUsage(200, 50, 250))) as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 429, "300 were spent"
        access_of(proxy)._accounts.clock = lambda: NOON + 86_400
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200


async def test_parallel_requests_cannot_spend_the_same_money(path: Path) -> None:
    headers = caller(path, budget=1000e-6)
    far = paid([(60.0, "S")])
    async with serving(path, far=far) as proxy:
        body = {**HELLO, "max_tokens": 100}
        waiting = [asyncio.create_task(proxy.post(CHAT, body, **headers)) for _ in range(20)]
        await until(lambda: sum(task.done() for task in waiting) + len(far.streams) == 20)
        figures = today(proxy, path)
        each = figures.reserved // len(far.streams)
        assert 1000_000 - each < figures.reserved <= 1000_000, "as many as the budget covers, and no more"
        assert {task.result()[0] for task in waiting if task.done()} == {429}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until_settled(proxy, path)


@pytest.mark.long
async def test_two_proxies_with_one_file_share_a_budget_and_a_rate(path: Path) -> None:
    headers = caller(path, budget=1000e-6, rate=3)
    async with serving(path, far=paid()) as one:
        assert (await one.post(CHAT, SMALL, **headers))[0] == 200
        async with serving(path, far=paid()) as two:
            assert [(await proxy.post(CHAT, SMALL, **headers))[0] for proxy in (two, one, two)] == [200, 200, 429]
            assert today(two, path).spent == 48_000


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("place", [CHAT, TEXT, RESPONSES])
async def test_an_answer_without_a_limit_gets_one_at_servers_and_that_is_reserved(path: Path, place: str) -> None:
    headers = caller(path, budget=0.1)
    near, far = device(), paid([(60.0, "S")])
    body = {name: value for name, value in asking(place).items() if name not in {"max_tokens", "max_output_tokens"}}
    async with serving(path, far=far, answer_tokens=1000) as proxy:
        waiting = asyncio.create_task(proxy.post(place, body, **headers))
        await until(lambda: far.streams)
        assert far.streams[0].request.server_limit == 1000
        assert far.streams[0].request.sampling.max_tokens is None
        assert 2_000_000 < today(proxy, path).reserved < 2_300_000
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: not far.active)
    async with serving(path, near, None) as proxy:
        assert (await proxy.post(place, body, **headers))[0] == 200
    assert near.streams[0].request.server_limit is None


async def test_a_real_server_is_sent_the_limit(path: Path) -> None:
    headers = caller(path, budget=0.1)
    async with ScriptedServer(stream_answer(["Hi"], usage={"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10})) as remote:
        far = OpenAIEndpoint("large", base_url=remote.url, api_key="", prices=PRICES)
        async with serving(path, far=far, answer_tokens=77) as proxy:
            assert (await proxy.post(CHAT, HELLO, **headers))[0] == 200
            assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
            assert today(proxy, path).spent == 2 * 11_000
        bodies = [json.loads(each.body) for each in remote.requests]
    assert [body.get("max_tokens") or body.get("max_completion_tokens") for body in bodies] == [77, 5]
    assert all(headers["Authorization"] not in str(each.headers) for each in remote.requests)


@pytest.mark.long
@pytest.mark.parametrize(("limit", "tokens"), [({}, 40), ({"max_tokens": 30}, 30)])
async def test_a_speculated_answer_has_the_limit_too_and_what_its_verifier_computes_is_reserved(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any], tokens: int
) -> None:
    headers = caller(path)
    world = World(noise=30.0, length=200)  # no draft is accepted
    fixed = Speculate(is_adaptive=False, window=4)  # a policy that goes by times may draft more than is reserved on a slow machine
    async with (
        world.scripted() as verifier,
        world.speculating(verifier, server=paid(), speculation=fixed) as client,
        ClientSession() as http,
    ):
        app = make_app(client, ProxyOptions(callers=path, answer_tokens=40))
        access, reserved = app[PROXY].access, []
        assert access is not None
        reserve = access._accounts.reserve

        async def reserving(reservation: str, name: str, cost: int, *, may_fall_back: bool) -> ReservedCost | None:
            reserved.append(cost)
            return await reserve(reservation, name, cost, may_fall_back=may_fall_back)

        monkeypatch.setattr(access._accounts, "reserve", reserving)
        async with listening(app, ProxyOptions(callers=path)) as address:
            body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, **limit}
            async with http.post(f"{address}{CHAT}", json=body, headers=headers) as response:
                answer = await response.json()
                assert response.headers["x-streamco-mode"] == "speculate"
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (tokens, "length")
        store = CallerStore(path)
        _, figures = store.figures("alice", time.time())
        store.close()
        assert figures.spent > tokens * to_nanos(2 * 2e-6), "more was computed than delivered"
        assert figures.spent <= reserved[0]
    world.close()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("trick", [{"n": 1000}, {"max_tokens": 10**9}, {"max_completion_tokens": 10**9}, {"max_tokens": 1, "n": 10**6}])
async def test_large_limits_and_many_choices_are_reserved_and_not_covered(path: Path, trick: dict[str, Any]) -> None:
    headers = caller(path, budget=1e-3)
    far = paid()
    async with serving(path, far=far) as proxy:
        assert (await proxy.post(CHAT, {**HELLO, "max_tokens": 5, **trick}, **headers))[0] == 429
    assert not far.streams


async def test_fields_of_unknown_cost_are_refused_to_a_caller_with_a_budget_alone(path: Path) -> None:
    alice, bob = caller(path), caller(path, "bob", budget=None)
    async with serving(path, far=paid()) as proxy:
        status, body = await proxy.post(CHAT, {**SMALL, "web_search_options": {}}, **alice)
        assert (status, body["error"]["param"], body["error"]["code"]) == (400, "web_search_options", "unsupported_parameter")
        assert (await proxy.post(CHAT, {**SMALL, "web_search_options": {}}, **bob))[0] == 200
    async with serving(path, far=paid(prices=FREE)) as proxy:
        assert (await proxy.post(CHAT, {**HELLO, "web_search_options": {}}, **alice))[0] == 200, "free servers cost nothing"
        assert today(proxy, path).reserved == 0


@pytest.mark.parametrize("options", [{}, {"unknown_models": "pass"}])
async def test_another_models_name_is_refused_because_its_price_is_not_known(path: Path, options: dict[str, Any]) -> None:
    headers = caller(path)
    far = paid()
    async with serving(path, far=far, models=("large",), **options) as proxy:
        status, body = await proxy.post(CHAT, {**SMALL, "model": "o1-pro"}, **headers)
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await proxy.post(CHAT, {**SMALL, "model": "large"}, **headers))[0] == 200
        assert (await proxy.post(RESPONSES, {**asking(RESPONSES), "model": "o1-pro"}, **headers))[0] == 404


async def test_a_large_body_is_measured_in_a_thread(path: Path) -> None:
    headers = caller(path, budget=0.5)
    far = paid()
    async with serving(path, far=far) as proxy:
        message = {"role": "user", "content": "word " * 50_000}
        assert (await proxy.post(CHAT, {"messages": [message], "max_tokens": 5}, **headers))[0] == 200
        status, _ = await proxy.post(CHAT, {"messages": [message] * 3, "max_tokens": 5}, **headers)
        assert status == 429, "750,000 bytes may be as many tokens"


@pytest.mark.long
async def test_parallel_requests_with_many_empty_lists_in_a_tool_spend_no_more_than_the_budget(path: Path) -> None:
    headers = caller(path, budget=0.02)
    far = paid()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": [[]] * 50_000}}}
    async with serving(path, far=far) as proxy:
        answers = await asyncio.gather(*(proxy.post(CHAT, {**SMALL, "tools": [tool]}, **headers) for _ in range(4)))
    assert {status for status, _ in answers} == {429}
    assert not far.streams


# However an answer ends


async def test_a_stream_with_an_image_that_is_dropped_costs_what_was_reserved(path: Path) -> None:
    headers = caller(path)
    far = paid([(0.0, "one"), (60.0, "two")], tokens=1)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, image]}], "max_tokens": 50, "stream": True}
    async with serving(path, far=far) as proxy:
        async with proxy.client.post(CHAT, json=body, headers=headers) as response:
            assert response.status == 200
            await response.content.readline()
        await until(lambda: not far.active)
        await until_settled(proxy, path)
        assert 50_000_000 <= today(proxy, path).spent < 50_500_000, "no server has counted the image"


async def test_a_failed_answer_is_settled(path: Path) -> None:
    headers = caller(path)
    failing = paid([(0.0, EndpointConnectError("expected a connection, got none", endpoint="server"))])
    async with serving(path, far=failing) as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 502
        figures = today(proxy, path)
    assert (figures.requests, figures.spent, figures.reserved) == (1, 0, 0)


async def test_a_stream_that_is_dropped_at_once_costs_what_was_reserved(path: Path) -> None:
    headers = caller(path)
    far = paid([(0.0, "one"), (60.0, "two")], tokens=1)
    hidden = [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "x" * 40_000}}]}]
    body = {
        "messages": [*HELLO["messages"], *hidden, {"role": "tool", "tool_call_id": "c", "content": "ok"}],
        "max_tokens": 50,
        "stream": True,
    }
    async with serving(path, far=far) as proxy:
        async with proxy.client.post(CHAT, json=body, headers=headers) as response:
            assert response.status == 200
            await response.content.readline()
        await until(lambda: not far.active)
        await until_settled(proxy, path)
        figures = today(proxy, path)
    assert 40_000_000 < figures.spent < 41_000_000, "40,000 bytes of hidden prompt may be as many tokens"


async def test_a_caller_that_leaves_before_the_first_token_is_settled(path: Path) -> None:
    headers = caller(path)
    far = paid([(60.0, "S")], tokens=100)
    async with serving(path, far=far) as proxy:
        for is_streamed in (True, False):
            waiting = asyncio.create_task(proxy.post(CHAT, {**SMALL, "stream": is_streamed}, **headers))
            await until(lambda: far.active)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until(lambda: not far.active)
            await until_settled(proxy, path)
        figures = today(proxy, path)
    assert (figures.requests, figures.prompt_tokens) == (2, 200)
    assert figures.spent == 200_000


async def test_the_losers_work_is_charged_too(path: Path) -> None:
    headers = caller(path)
    near, far = device([(0.0, "D")]), paid([(60.0, "S")], tokens=100)
    async with serving(path, near, far, policy="both") as proxy, proxy.client.post(CHAT, json=SMALL, headers=headers) as response:
        assert response.headers["x-streamco-winner"] == "device"
        assert today(proxy, path).spent == 10_000, "ten tokens by the device's count, which the report has"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9},
        {"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2},
        {"prompt_tokens": -9, "completion_tokens": 2, "total_tokens": 2},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0.0},
    ],
)
async def test_an_estimate_takes_nothing_off_what_was_reserved(path: Path, usage: dict[str, Any] | None, is_streamed: bool) -> None:
    headers, reserved = caller(path), []
    async with ScriptedServer(stream_answer(["Hi", " you"], usage=usage)) as remote:
        far = OpenAIEndpoint("large", base_url=remote.url, api_key="", prices=PRICES)
        async with serving(path, far=far) as proxy:
            reserve = access_of(proxy)._accounts.reserve

            async def reserving(reservation: str, name: str, cost: int, *, may_fall_back: bool) -> ReservedCost | None:
                reserved.append(cost)
                return await reserve(reservation, name, cost, may_fall_back=may_fall_back)

            access_of(proxy)._accounts.reserve = reserving  # type: ignore[method-assign]
            async with proxy.client.post(CHAT, json={**SMALL, "stream": is_streamed}, headers=headers) as response:
                assert response.status == 200
                await response.read()
            await until_settled(proxy, path)
            figures = today(proxy, path)
    assert figures.spent == reserved[0] > 0
    assert figures.prompt_tokens > 0
    assert figures.completion_tokens == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        {"input_tokens": 9, "output_tokens": 2},
    ],
)
async def test_a_count_takes_the_place_of_what_was_reserved(path: Path, usage: dict[str, Any]) -> None:
    headers = caller(path)
    async with ScriptedServer(stream_answer(["Hi", " you"], usage=usage)) as remote:
        far = OpenAIEndpoint("large", base_url=remote.url, api_key="", prices=PRICES)
        async with serving(path, far=far) as proxy:
            assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
            assert today(proxy, path).spent == 9_000 + 4_000


async def test_a_shutdown_settles_what_is_under_way(path: Path) -> None:
    headers = caller(path)
    far = paid([(0.0, "one"), (60.0, "two")], tokens=100)
    async with serving(path, far=far) as proxy:
        response = await proxy.client.post(CHAT, json={**SMALL, "stream": True}, headers=headers)
        await response.content.readline()
        await proxy.runner.cleanup()
        response.close()
        figures = today(proxy, path)
    assert (figures.reserved, figures.requests) == (0, 1)
    assert figures.spent >= 100_000
