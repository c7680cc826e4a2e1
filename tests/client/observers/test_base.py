"""Observers of answers: what they are shown, in which order, and that they can't cost a reader the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from streamco.client.observers.base import AnswerObservers, ObservedAttempt, describe_attempt
from streamco.core.report import Report
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError, EndpointError
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, chunk_event
from streamco.testing.engine import FakeEngine
from tests.client.helpers import ask, device, opened, recorded_log, server, tokens_text, words
from tests.client.speculating import PROMPT, World


class Recorder:
    """Keeps what it is shown.

    Args:
        headers: sent with every request.
        fails_in: name of the method that raises.
    """

    def __init__(self, headers: Mapping[str, str] | None = None, fails_in: str = "") -> None:
        self.headers = headers or {}
        self.fails_in = fails_in
        self.begun: list[Request] = []
        self.attempts: list[ObservedAttempt] = []
        self.reports: list[Report] = []
        self.refusals: list[Exception] = []

    def began(self, request: Request) -> Recorder:
        self._fail("began")
        self.begun.append(request)
        return self

    def refused(self, request: Request, error: Exception) -> None:
        self._fail("refused")
        self.refusals.append(error)

    def opened(self, attempt: ObservedAttempt) -> Mapping[str, str]:
        self._fail("opened")
        self.attempts.append(attempt)
        return self.headers

    def ended(self, report: Report) -> None:
        self._fail("ended")
        self.reports.append(report)

    def _fail(self, name: str) -> None:
        if self.fails_in == name:
            raise RuntimeError(f"a defect in {name}")


async def test_an_observer_sees_each_request_and_the_final_report() -> None:
    seen = Recorder()
    async with opened(device(), server([(5.0, "S")]), policy="both", budget=1.0, observers=[seen]) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        await stream.aclose()
    assert [each.messages for each in seen.begun] == [[{"role": "user", "content": "hello"}]]
    assert {(each.endpoint, each.kind) for each in seen.attempts} == {("device", "device"), ("server", "server")}
    (report,) = seen.reports
    assert report.is_final
    assert report.request_id == stream.report.request_id
    assert {each.name: each.outcome for each in report.endpoints} == {"device": "won", "server": "lost"}
    assert all(each.stopped is not None and each.opened is not None and each.stopped >= each.opened for each in report.endpoints)


async def test_headers_of_an_observer_reach_the_server_and_replace_those_of_the_same_name() -> None:
    seen = Recorder({"traceparent": "new"})
    side = server()
    async with opened(server=side, observers=[seen]) as client:
        await ask(client, extra_headers={"Traceparent": "old", "X-Mine": "1"})
    headers = dict(side.streams[0].request.headers)
    assert headers["traceparent"] == "new"
    assert "Traceparent" not in headers
    assert headers["X-Mine"] == "1"


async def test_a_request_that_no_endpoint_serves_is_refused_and_begins_nothing() -> None:
    seen = Recorder()
    async with opened(device(capabilities=Capabilities()), observers=[seen]) as client:
        with pytest.raises(ConfigError, match="tools"):
            await ask(client, tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    assert len(seen.refusals) == 1
    assert not seen.begun


async def test_a_stream_that_is_closed_before_it_begins_is_no_refusal() -> None:
    seen = Recorder()
    async with opened(device(), observers=[seen]) as client:
        stream = client.stream("hello")
        await stream.aclose()
    assert not seen.refusals
    assert not seen.begun


async def test_answers_that_fail_and_that_are_left_end_once() -> None:
    seen = Recorder()
    async with opened(server=server([(0.0, EndpointConnectError("down"))]), observers=[seen]) as client:
        with pytest.raises((AllEndpointsFailed, EndpointError)):
            await ask(client)
    async with opened(server=server([(0.0, "a"), (60.0, "b")]), observers=[seen]) as client:
        stream = client.stream("hello")
        async for _token in stream:
            break
        await stream.aclose()
    assert [each.ending for each in seen.reports] == ["failed", "left"]
    assert [each.endpoints[0].error_kind for each in seen.reports] == ["EndpointConnectError", None]


async def test_both_sides_of_a_hand_over_are_opened() -> None:
    seen = Recorder()
    cut = ScriptedResponse(steps=[chunk_event("One "), chunk_event("two "), Cut()])
    async with ScriptedServer(cut) as scripted:
        first = OpenAIEndpoint("m", base_url=scripted.url, name="first")
        second = server(words(0.0, 0.0, 0.0), name="second", capabilities=Capabilities(continuation="prefix"))
        async with opened(None, [first, second], observers=[seen]) as client:
            await ask(client)
        url = scripted.url
    assert [each.endpoint for each in seen.attempts] == ["first", "second"]
    assert seen.attempts[0].base_url == url
    assert seen.reports[0].hand_overs[0].target == "second"


async def test_a_speculated_answer_opens_its_verifier_and_ends() -> None:
    seen, world = Recorder({"traceparent": "new"}), World()
    try:
        async with world.scripted() as verifier, world.speculating(verifier, observers=[seen]) as client:
            assert await ask(client, PROMPT, temperature=0) == world.text()
    finally:
        world.close()
    (attempt,), (report,) = seen.attempts, seen.reports
    assert attempt.endpoint == report.endpoints[1].name
    assert (report.mode, report.endpoints[0].outcome, report.endpoints[1].outcome) == ("speculate", "drafted", "verified")
    assert all(each.stopped is not None for each in report.endpoints)


@pytest.mark.parametrize("method", ["began", "opened", "ended"])
async def test_a_defect_of_an_observer_is_logged_and_costs_nothing_else(method: str) -> None:
    broken, whole = Recorder(fails_in=method), Recorder()
    with recorded_log() as records:
        async with opened(device(), observers=[broken, whole]) as client:
            assert await ask(client) == "D"
    assert any("an observer of answers has failed" in each.getMessage() for each in records)
    assert len(whole.reports) == 1


def test_a_defect_in_a_refusal_is_logged_too() -> None:
    with recorded_log() as records:
        AnswerObservers([Recorder(fails_in="refused")]).refuse(Request(prompt="x"), ValueError("no"))
    assert len(records) == 1


async def test_an_observer_can_come_and_go_and_derived_clients_share_it() -> None:
    seen = Recorder()
    async with opened(device()) as client:
        await ask(client)
        client.observers.add(seen)
        await ask(client)
        await ask(client.with_options(budget=1.0))
        client.observers.remove(seen)
        await ask(client)
    assert len(seen.reports) == 2


def test_facts_of_endpoints_are_described() -> None:
    request = Request(prompt="x", model="asked-for")
    remote: Any = OpenAIEndpoint("m", base_url="https://api.deepseek.com/v1", api_key="k")
    assert describe_attempt("it", remote, request) == ObservedAttempt(
        endpoint="it", kind="server", model="asked-for", provider="deepseek", base_url="https://api.deepseek.com/v1", request=request
    )
    engine = FakeEngine(name="small")
    local = describe_attempt("device", DeviceEndpoint(engine), request)
    assert (local.kind, local.model, local.provider, local.base_url) == ("device", "small", "llama.cpp", None)
    bare = describe_attempt("v", object(), Request(prompt="x"))
    assert (bare.kind, bare.model, bare.provider, bare.base_url) == ("server", None, None, None)
    engine.close()
