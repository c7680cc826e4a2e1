"""Callers at a running proxy: keys, sides, rates, metrics and the page."""

from __future__ import annotations

import gzip
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamco.proxy.callers.base import Caller
from streamco.proxy.callers.estimate import measure_request
from streamco.proxy.callers.store import CallerStore
from streamco.proxy.tasks import TASK_HEADER
from tests.client.helpers import device, recorded_log
from tests.proxy.callers.support import (
    COUNT,
    MESSAGES,
    PAID,
    SMALL,
    USED,
    access_of,
    asking,
    caller,
    paid,
    serving,
    today,
    until_settled,
)
from tests.proxy.support import CHAT, HELLO, proxying

# Keys


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("method", "place"),
    [
        *[("GET", each) for each in ("/v1/models", "/v1/models/streamco", "/metrics", "/streamco/totals", USED, "/nothing")],
        *[("POST", each) for each in (*PAID, COUNT)],
        ("HEAD", "/metrics"),
        ("DELETE", CHAT),
    ],
)
async def test_nothing_is_answered_without_a_callers_key(path: Path, method: str, place: str) -> None:
    caller(path)
    side = paid()
    keys: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Bearer sk-streamco-" + "A" * 43},
        {"Authorization": "Bearer x"},
        {"x-api-key": "x"},
        {"Authorization": "Basic x"},
    )
    async with serving(path, far=side) as proxy:
        for headers in keys:
            async with proxy.client.request(method, place, headers=headers, json=None if method != "POST" else asking(place)) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
        async with proxy.client.get("/health") as response:
            assert response.status == 200
    assert not side.streams


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("place", PAID)
async def test_a_caller_is_answered_and_charged_by_each_api(path: Path, place: str) -> None:
    headers = caller(path)
    async with serving(path, far=paid()) as proxy:
        for is_streamed in (False, True):
            async with proxy.client.post(place, json={**asking(place), "stream": is_streamed}, headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.read()
        await until_settled(proxy, path)
        figures = today(proxy, path)
    assert (figures.requests, figures.spent, figures.prompt_tokens, figures.completion_tokens) == (2, 32_000, 20, 6)


@pytest.fixture
def alice(path: Path) -> dict[str, str]:
    return caller(path, budget=120e-6, rate=1000)


@pytest.mark.usefixtures("no_blocked_loop")
async def test_no_answer_blocks_the_event_loop(path: Path, alice: dict[str, str]) -> None:
    async with serving(path, device(), paid(), policy="server-first") as proxy:
        for place in (*PAID, COUNT):
            async with proxy.client.post(place, json=asking(place), headers=alice) as response:
                assert response.status == 200
        async with proxy.client.get(USED, headers=alice) as response:
            shown = await response.json()
        assert (shown["requests"], shown["reserved_usd"]) == (4, 0)
        assert 0 < shown["spent_usd"] <= 120e-6
        assert shown["device_only"] > 0


async def test_the_messages_api_takes_the_key_in_its_own_header(path: Path) -> None:
    key = caller(path)["Authorization"].removeprefix("Bearer ")
    async with serving(path, far=paid()) as proxy:
        async with proxy.client.post(MESSAGES, json=asking(MESSAGES), headers={"x-api-key": key}) as response:
            assert response.status == 200
        async with proxy.client.post(CHAT, json=SMALL, headers={"x-api-key": key}) as response:
            assert response.status == 401, "not on other paths"
        for headers, status in (({"x-api-key": key}, 401), ({"x-api-key": key, "anthropic-version": "2023-06-01"}, 200)):
            async with proxy.client.get("/v1/models", headers=headers) as response:
                assert response.status == status, "the list of models is in both APIs"


async def test_a_key_is_void_at_once_when_its_caller_goes_and_limits_count_from_the_next_request_on(path: Path) -> None:
    headers = caller(path, budget=None)
    async with serving(path, far=paid()) as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        store = CallerStore(path)
        store.change(Caller(name="alice", budget=0))
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 429
        store.remove("alice")
        store.close()
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 401


async def test_a_caller_sees_its_own_figures_and_an_operator_those_of_all(path: Path) -> None:
    alice, bob = caller(path, rate=60), caller(path, "bob", budget=None, is_operator=True)
    async with serving(path, far=paid()) as proxy:
        assert (await proxy.post(CHAT, SMALL, **alice))[0] == 200
        async with proxy.client.get(USED, headers=alice) as response:
            assert await response.json() == {
                "caller": "alice",
                "day": "2026-11-27",
                "seconds_left": 43_200,
                "budget_usd": 1.0,
                "spent_usd": 16e-6,
                "reserved_usd": 0.0,
                "left_usd": 0.999984,
                "rate": 60,
                "sides": ["device", "server"],
                "requests": 1,
                "device_only": 0,
                "refused": 0,
                "prompt_tokens": 10,
                "estimated_prompt_tokens": 0,
                "estimated_completion_tokens": 0,
                "completion_tokens": 3,
            }
        async with proxy.client.get(USED, headers=bob) as response:
            shown = await response.json()
            assert (shown["budget_usd"], shown["left_usd"], shown["requests"]) == (None, None, 0)
        for place in ("/metrics", "/streamco/totals", "/%6detrics"):
            async with proxy.client.get(place, headers=alice) as response:
                assert response.status == 403
            async with proxy.client.get(place, headers=bob) as response:
                assert response.status == 200


async def test_without_callers_there_is_no_usage_of_one(path: Path) -> None:
    async with proxying(far := device()) as proxy, proxy.client.get(USED) as response:
        assert response.status == 404
    assert not far.streams


async def test_no_key_and_no_prompt_is_in_any_log(path: Path) -> None:
    headers, other = caller(path, budget=0.0), caller(path, "bob")
    logging.getLogger("streamco").setLevel(logging.DEBUG)
    try:
        with recorded_log() as records:
            async with serving(path, device(), paid()) as proxy:
                for each in (headers, other, {"Authorization": "Bearer sk-streamco-" + "B" * 43}):
                    await proxy.post(CHAT, {"messages": [{"role": "user", "content": "the secret question"}]}, **each)
                path.unlink()
                await proxy.post(CHAT, SMALL, **headers)
    finally:
        logging.getLogger("streamco").setLevel(logging.NOTSET)
    text = "\n".join(f"{record.getMessage()} {record.exc_info}" for record in records)
    assert "alice" in text
    assert "sk-streamco" not in text
    assert "secret question" not in text


# Sides


@pytest.mark.parametrize(("sides", "winner"), [(("device",), "device"), (("server",), "server")])
async def test_a_caller_of_one_side_never_uses_the_other(path: Path, sides: tuple[str, ...], winner: str) -> None:
    headers = caller(path, sides=sides)
    near, far = device(), paid()
    async with serving(path, near, far, policy="both") as proxy, proxy.client.post(CHAT, json=SMALL, headers=headers) as response:
        assert response.headers["x-streamco-winner"] == winner
        assert response.headers["x-streamco-policy"] == f"{winner}-only"
        assert "x-streamco-budget" not in response.headers
    assert (len(near.streams), len(far.streams)) == ((1, 0) if winner == "device" else (0, 1))


async def test_totals_add_up_the_answers_of_callers_of_any_sides(path: Path) -> None:
    keys = [caller(path, "both"), caller(path, "near", sides=("device",)), caller(path, "far", sides=("server",))]
    boss = caller(path, "boss", is_operator=True)
    async with proxying(device(), paid(), callers=path, policy="server-first") as proxy:
        for headers in (*keys, keys[1]):
            assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        async with proxy.client.get("/streamco/totals", headers=boss) as response:
            told = await response.json()
    assert told["answers"] == 4
    assert {name: each["won"] for name, each in told["endpoints"].items()} == {"server": 2, "device": 2}


@pytest.mark.parametrize(("sides", "near", "far"), [(("device",), None, paid()), (("server",), device(), None)])
async def test_a_caller_of_a_side_that_is_not_there_gets_403(path: Path, sides: Any, near: Any, far: Any) -> None:
    headers = caller(path, sides=sides)
    async with serving(path, near, far) as proxy:
        status, body = await proxy.post(CHAT, SMALL, **headers)
    assert (status, body["error"]["code"]) == (403, "no_side")


@pytest.mark.long
async def test_a_promise_of_the_proxys_own_policy_holds_for_its_callers_too(path: Path) -> None:
    headers = caller(path, budget=0.0)
    near = device()
    async with serving(path, near, paid(), policy="server-only") as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 429
    assert not near.streams
    far = paid()
    async with serving(path, device(), far, budget=0.0) as proxy, proxy.client.post(CHAT, json=SMALL, headers=headers) as response:
        assert (response.status, response.headers["x-streamco-winner"]) == (200, "device")
        assert "x-streamco-budget" not in response.headers, "no server would have been asked anyway"
    assert not far.streams


async def test_a_background_task_costs_no_budget_and_a_caller_without_the_device_has_none(path: Path) -> None:
    alice, bob = caller(path, budget=1e-6), caller(path, "bob", sides=("server",))
    near, far = device(), paid()
    async with serving(path, near, far, policy="server-first", takes_tasks=True) as proxy:
        for headers, winner in ((alice, "device"), (bob, "server")):
            async with proxy.client.post(CHAT, json=HELLO, headers={**headers, TASK_HEADER: "title"}) as response:
                assert (response.status, response.headers["x-streamco-winner"]) == (200, winner)
                assert "x-streamco-budget" not in response.headers
        assert today(proxy, path).spent == 0


# Rates


async def test_requests_beyond_the_rate_get_429_with_the_wait(path: Path) -> None:
    headers, other = caller(path, rate=2), caller(path, "bob")
    async with serving(path, far=paid()) as proxy:
        assert [(await proxy.post(CHAT, SMALL, **headers))[0] for _ in range(2)] == [200, 200]
        for place in (*PAID, COUNT):
            async with proxy.client.post(place, json=asking(place), headers=headers) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "30")
                body = await response.json()
                if place in {MESSAGES, COUNT}:
                    assert body["error"]["type"] == "rate_limit_error"
                else:
                    assert body["error"]["code"] == "rate_limit_exceeded"
        async with proxy.client.get("/v1/models", headers=headers) as response:
            assert response.status == 200, "only requests that make work count"
        assert (await proxy.post(CHAT, SMALL, **other))[0] == 200


async def test_a_request_beyond_the_rate_is_refused_before_its_body_is_read(path: Path) -> None:
    headers = caller(path, rate=1)
    async with serving(path, far=paid()) as proxy:
        assert (await proxy.post(CHAT, b"not json", **headers))[0] == 400, "it counts all the same"
        assert (await proxy.post(CHAT, b"not json", **headers))[0] == 429


async def test_counting_tokens_costs_nothing(path: Path) -> None:
    headers = caller(path, budget=0.0)
    async with serving(path, device(), paid()) as proxy:
        status, body = await proxy.post(COUNT, asking(COUNT), **headers)
        assert (status, body["input_tokens"]) == (200, 10)
        assert today(proxy, path).requests == 0


async def test_a_caller_that_is_removed_after_its_key_was_checked_gets_401(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = caller(path)
    with recorded_log() as records:
        async with serving(path, far=paid()) as proxy:
            accounts = access_of(proxy)._accounts
            look_up = accounts.figures

            async def removing(name: str) -> Any:
                store = CallerStore(path)
                store.remove(name)
                store.close()
                return await look_up(name)

            monkeypatch.setattr(accounts, "figures", removing)
            async with proxy.client.get(USED, headers=headers) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert (await response.json())["error"]["code"] == "invalid_api_key"
            assert await access_of(proxy).problem() == ""
    assert not [record for record in records if record.levelname == "ERROR"], "the file is as it should be"


# Where a request is measured


@pytest.mark.long
@pytest.mark.parametrize(("words", "is_in_a_thread"), [(10, False), (40_000, True)])
async def test_a_body_is_measured_in_a_thread_if_it_is_large_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch, words: int, is_in_a_thread: bool
) -> None:
    headers = {**caller(path), "Content-Type": "application/json", "Content-Encoding": "gzip"}
    threads = []

    def measuring(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return measure_request(*args, **options)

    monkeypatch.setattr("streamco.proxy.callers.access.measure_request", measuring)
    body = gzip.compress(json.dumps({**SMALL, "messages": [{"role": "user", "content": "word " * words}]}).encode())
    assert len(body) < 2000
    async with serving(path, far=paid()) as proxy:
        assert (await proxy.post(CHAT, body, **headers))[0] == 200
    assert [thread is not threading.current_thread() for thread in threads] == [is_in_a_thread]


# Metrics, the page


async def test_metrics_count_callers_by_name(path: Path) -> None:
    alice, bob = caller(path, budget=0.0), caller(path, "bob", rate=1, is_operator=True)
    async with serving(path, device(), paid(), policy="server-first") as proxy:
        for headers in (alice, bob, bob):
            await proxy.post(CHAT, SMALL, **headers)
        async with proxy.client.get("/metrics", headers=bob) as response:
            text = await response.text()
    found = {
        (sample.name, sample.labels.get("caller"), sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["streamco_caller_requests_total", "alice", "device only"] == 1
    assert found["streamco_caller_requests_total", "bob", "admitted"] == 1
    assert found["streamco_caller_requests_total", "bob", "rate exceeded"] == 1
    assert found["streamco_caller_cost_usd_total", "bob", None] == 16e-6
    assert "sk-streamco" not in text


async def test_the_page_needs_no_key_and_what_it_asks_for_does(path: Path) -> None:
    headers = caller(path, budget=0.0)
    async with serving(path, device(), paid(), page=True) as proxy:
        async with proxy.client.get("/") as response:
            assert response.status == 200
        assert (await proxy.post(CHAT, SMALL))[0] == 401
        async with proxy.client.post(CHAT, json=SMALL, headers=headers) as response:
            assert response.headers["x-streamco-budget"] == "used up"


async def test_a_page_of_another_origin_can_read_the_budget_header(path: Path) -> None:
    headers = {**caller(path, budget=0.0), "Origin": "http://localhost:3000"}
    async with (
        serving(path, device(), paid(), cors=("http://localhost:3000",)) as proxy,
        proxy.client.post(CHAT, json=SMALL, headers=headers) as response,
    ):
        assert "x-streamco-budget" in response.headers["Access-Control-Expose-Headers"]
