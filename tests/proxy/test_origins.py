"""What made each piece of a stream: asked for by an option that no server gets, and nothing is different without it."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from streamco.client.arguments import build_request
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.errors import EndpointConnectError
from streamco.proxy.app import serving
from streamco.proxy.origins import OriginFields, report_interval
from streamco.testing.endpoint import text_chunk
from tests.client.helpers import ShapedDevice, device, opened, server, words
from tests.client.speculating import PROMPT, World
from tests.proxy.support import CHAT, HELLO, TEXT, proxying
from tests.server.support import contents, parse_events

pytestmark = pytest.mark.usefixtures("no_blocked_loop")

ASKED: dict[str, Any] = {**HELLO, "stream_options": {"include_origin": True}}
PARIS: list[tuple[float, Any]] = [(0.0, "one"), (0.0, " two"), (0.0, text_chunk("", finish_reason="stop"))]


def chunks_of(events: list[Any]) -> list[dict[str, Any]]:
    return [event for event in events if isinstance(event, dict) and "choices" in event]


def made(events: list[Any]) -> list[tuple[str, str, str]]:
    """Endpoint, origin and text of each run of chunks."""
    runs: list[tuple[str, str, str]] = []
    for chunk in chunks_of(events):
        text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if not text:
            continue
        field = chunk["streamco"]
        if runs and runs[-1][:2] == (field["endpoint"], field["origin"]):
            text = runs.pop()[2] + text
        runs.append((field["endpoint"], field["origin"], text))
    return runs


async def test_without_the_option_no_chunk_has_the_field_and_with_it_nothing_else_is_different() -> None:
    async with proxying(server=server(PARIS)) as proxy:
        plain = chunks_of(await proxy.events(CHAT, HELLO))
        off = chunks_of(await proxy.events(CHAT, {**HELLO, "stream_options": {"include_origin": False}}))
        *marked, last = chunks_of(await proxy.events(CHAT, ASKED))
    fields = [chunk.pop("streamco") for chunk in marked]
    assert last["choices"] == []
    for chunk in [*plain, *off, *marked]:
        assert "streamco" not in chunk
        del chunk["created"]  # seconds
    assert plain == off == marked
    assert [(field["endpoint"], field["origin"]) for field in fields] == [("server", "server")] * 3


async def test_no_server_gets_the_option_and_each_gets_the_others() -> None:
    side = server(PARIS)
    async with proxying(server=side) as proxy:
        await proxy.events(CHAT, {**HELLO, "stream_options": {"include_origin": True, "new": 1}})
        await proxy.events(CHAT, ASKED)
    assert [dict(stream.request.extra) for stream in side.streams] == [{"stream_options": {"new": 1}}, {}]


async def test_a_whole_answer_can_not_be_asked_for_with_origins() -> None:
    async with proxying(server=server(PARIS)) as proxy:
        status, body = await proxy.post(CHAT, ASKED)
        assert (status, body["error"]["param"]) == (400, "stream_options.include_origin")
        status, body = await proxy.post(CHAT, {**ASKED, "stream": True, "stream_options": {"include_origin": 1}})
        assert (status, body["error"]["param"]) == (400, "include_origin")


async def test_a_raced_answer_names_its_side_and_ends_with_the_final_report() -> None:
    near, far = device([(0.0, "near"), (0.0, " by")]), server([(60.0, "far")])
    async with proxying(near, far, policy="both") as proxy:
        events = await proxy.events(CHAT, ASKED)
    assert made(events) == [("device", "device", "near by")]
    chunks = chunks_of(events)
    assert chunks[0]["streamco"]["report"]["is_final"] is False
    report = chunks[-1]["streamco"]["report"]
    assert report["is_final"] is True
    parts = {part["name"]: part for part in report["endpoints"]}
    assert (parts["device"]["outcome"], parts["server"]["outcome"]) == ("won", "lost")
    for part in parts.values():
        assert part["opened"] is not None
        assert part["stopped"] >= part["opened"], "the loser's end is known, too"
    assert events[-2].startswith(': streamco {"winner":"device"'), "the comment is where it was"
    assert events[-1] == "[DONE]"


async def test_a_hand_over_is_where_the_endpoint_changes() -> None:
    story = [f"word{number} " for number in range(80)]
    dear = server([(0.02 * number, word) for number, word in enumerate(story)], prices=TokenPrices(prompt=1e-6, completion=9e-6))
    dear.model = "m"  # type: ignore[attr-defined]
    script: list[tuple[float, Any]] = [(30.0 + 0.02 * number, word) for number, word in enumerate(story)]
    cheap = ShapedDevice("device", script, kind="device", tokens=10, capabilities=Capabilities(continuation="token_ids", pre_copy="append"))
    async with proxying(cheap, dear, policy="both", budget=1.0, pace=25) as proxy:
        events = await proxy.events(CHAT, ASKED)
    runs = made(events)
    assert [run[:2] for run in runs] == [("server", "server"), ("device", "device")]
    assert "".join(run[2] for run in runs) == "".join(story)
    (change,) = chunks_of(events)[-1]["streamco"]["report"]["hand_overs"]
    assert len(runs[0][2].split()) == change["position"]


async def test_a_speculated_answer_says_what_was_accepted_corrected_and_added() -> None:
    world = World()
    async with (
        world.scripted() as verifier,
        world.speculating(verifier, emit="draft") as client,
        serving(client) as url,
        aiohttp.ClientSession() as http,
    ):
        body = {
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_origin": True},
        }
        async with http.post(f"{url}/chat/completions", json=body) as response:
            events = parse_events(await response.read())
    world.close()
    runs = made(events)
    assert "".join(run[2] for run in runs) == world.text()
    assert {run[1] for run in runs} <= {"accepted", "corrected", "bonus"}
    assert {run[1] for run in runs} >= {"accepted", "corrected"}
    assert all((endpoint == "small") == (origin == "accepted") or endpoint == "device" for endpoint, origin, _ in runs)
    figures = chunks_of(events)[-1]["streamco"]["report"]
    assert (figures["mode"], figures["is_final"]) == ("speculate", True)


async def test_a_failure_in_the_middle_has_the_report_before_the_error() -> None:
    cut = EndpointConnectError("expected the rest, got the connection cut")
    async with proxying(server=server([(0.0, "Half an "), (0.01, cut)])) as proxy:
        events = await proxy.events(CHAT, ASKED)
        plain = await proxy.events(CHAT, HELLO)
    assert contents(events) == ["Half an "]
    report = events[-2]["streamco"]["report"]
    assert (report["ending"], report["endpoints"][0]["error_kind"]) == ("failed", "EndpointConnectError")
    assert events[-1]["error"]["code"] == plain[-1]["error"]["code"] == "endpoint_failed"
    assert all("streamco" not in event for event in plain)


async def test_a_failure_before_the_first_token_has_a_status_all_the_same() -> None:
    async with proxying(server=server([(0.0, EndpointConnectError("down"))])) as proxy:
        status, body = await proxy.post(CHAT, {**ASKED, "stream": True})
    assert (status, body["error"]["code"]) == (502, "endpoint_failed")


async def test_completions_have_the_field_too() -> None:
    async with proxying(server=server(PARIS)) as proxy:
        events = await proxy.events(TEXT, {"prompt": "Once", "stream_options": {"include_origin": True}})
    *chunks, last = chunks_of(events)
    assert [chunk["streamco"]["origin"] for chunk in chunks] == ["server"] * 3
    assert (last["object"], last["choices"], last["streamco"]["report"]["is_final"]) == ("text_completion", [], True)


async def test_usage_comes_before_the_report_and_is_null_in_it() -> None:
    async with proxying(server=server(PARIS)) as proxy:
        events = await proxy.events(CHAT, {**HELLO, "stream_options": {"include_origin": True, "include_usage": True}})
    *_, usage, last = chunks_of(events)
    assert usage["usage"]["completion_tokens"] == 2
    assert (last["usage"], last["streamco"]["report"]["tokens"]) == (None, 2)


async def test_reports_come_with_the_first_chunk_and_then_at_most_four_times_a_second() -> None:
    times = iter([10.0, 10.1, 10.24, 10.25, 10.3, 10.6])
    async with opened(server=server(words(0.0, 0.0, 0.0, 0.0, 0.0, 0.0))) as client:
        answer = client.open_chat(build_request(HELLO["messages"]))
        fields = OriginFields(answer, clock=lambda: next(times))
        described = [fields.describe(chunk) async for chunk in answer]
        last = await fields.finish()
    assert ["report" in field for field in described] == [True, False, False, True, False, True]
    assert last is not None
    assert last.is_final


def test_a_long_answers_reports_are_less_frequent() -> None:
    assert [report_interval(tokens) for tokens in (0, 10_000, 20_000, 200_000)] == [0.25, 0.25, 0.5, 5.0]


async def test_an_answer_that_never_began_has_no_report() -> None:
    async with opened(server=server()) as client:
        assert await OriginFields(client.open_chat(build_request(HELLO["messages"]))).finish() is None
