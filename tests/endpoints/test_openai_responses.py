"""OpenAIEndpoint with the Responses API: what it sends, what it reads, what it can't do."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError
from streamco.openai_types import CompletionUsage
from streamco.server.app import ServeOptions, serving
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, json_answer, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.engine import FakeEngine
from tests.client.helpers import words
from tests.endpoints.helpers import HELLO, NO_RETRIES, ask, opened
from tests.wire.recorded import recordings
from tests.wire.test_event_stream_parser import event

CREATED = event("response.created", response={"id": "resp_1", "model": "m", "created_at": 5})
DELTA = event("response.output_text.delta", delta="Hi", logprobs=[])
COMPLETED = event("response.completed", response={"usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}})


def streamed(*steps: Any) -> ScriptedResponse:
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


async def test_a_request_goes_to_its_path_and_the_answer_comes_as_chunks() -> None:
    async with ScriptedServer(streamed(CREATED, DELTA, COMPLETED)) as server, opened(server.url, api="responses", api_key="k") as endpoint:
        answered = await ask(endpoint, Request(messages=[{"role": "user", "content": "hello"}], extra={"reasoning_effort": "low"}))
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/responses", "Bearer k")
    assert request.json() == {
        "model": "m",
        "input": [{"role": "user", "content": "hello"}],
        "stream": True,
        "store": False,
        "reasoning": {"effort": "low"},
    }
    assert (answered.text, answered.usage) == ("Hi", CompletionUsage(5, 2, 7, *answered_details(answered)))
    assert answered.end is not None
    assert answered.end.finish_reason == "stop"


def answered_details(answered: Any) -> tuple[Any, Any]:
    return answered.usage.prompt_tokens_details, answered.usage.completion_tokens_details


async def test_of_the_stream_options_this_api_gets_the_one_it_has() -> None:
    async with ScriptedServer(streamed(CREATED, DELTA, COMPLETED)) as server, opened(server.url, api="responses", api_key="k") as endpoint:
        for options in ({"include_obfuscation": False, "continuous_usage_stats": True}, {"continuous_usage_stats": True}, None):
            await ask(endpoint, Request(messages=[], extra={"stream_options": options}))
    assert [request.json().get("stream_options") for request in server.requests] == [{"include_obfuscation": False}, None, None]


async def test_a_prompt_is_a_users_message() -> None:
    async with ScriptedServer(streamed(CREATED, DELTA, COMPLETED)) as server, opened(server.url, api="responses") as endpoint:
        await ask(endpoint, Request(prompt="hello"))
    assert server.requests[0].json()["input"] == [{"role": "user", "content": "hello"}]


async def test_recorded_answers_are_read_over_a_socket() -> None:
    found = recordings(apis=("responses",))[:6]
    bodies = [ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[recording.body]) for recording in found]
    async with ScriptedServer(*bodies) as server, opened(server.url, api="responses") as endpoint:
        answers = [await ask(endpoint) for _ in found]
    assert all(answer.error is None for answer in answers)
    assert all(answer.usage is not None for answer in answers)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (json_answer({"error": {"message": "no such field", "code": "unknown_parameter"}}, status=400), EndpointStatusError),
        (streamed(CREATED, DELTA, Cut()), EndpointError),
        (streamed(CREATED, event("error", code="server_error", message="broke")), EndpointStatusError),
        (stream_answer(["chat"]), EndpointProtocolError),
    ],
)
async def test_failures_are_the_usual_errors(response: ScriptedResponse, kind: type[EndpointError]) -> None:
    async with ScriptedServer(response) as server, opened(server.url, api="responses", retry=NO_RETRIES) as endpoint:
        answered = await ask(endpoint)
    assert isinstance(answered.failure(), kind)


async def test_a_message_without_a_form_is_refused_before_anything_is_sent() -> None:
    async with ScriptedServer() as server, opened(server.url, api="responses") as endpoint:
        answered = await ask(endpoint, Request(messages=[{"role": "user", "content": [{"type": "video"}]}]))
    assert "expected parts of type text, image_url, file or input_audio, got 'video'" in str(answered.failure())
    assert not server.requests


def test_no_answer_is_continued_with_this_api() -> None:
    usual = OpenAIEndpoint("m", provider="vllm", base_url="http://127.0.0.1:1/v1")
    endpoint = OpenAIEndpoint("m", provider="vllm", base_url="http://127.0.0.1:1/v1", api="responses")
    assert usual.capabilities.continuation != "none"
    assert (endpoint.capabilities.continuation, endpoint.capabilities.pre_copy) == ("none", "none")
    assert not endpoint.capabilities.takes_token_ids
    declared = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1", api="responses", capabilities=Capabilities(tools=True))
    assert declared.capabilities == Capabilities(tools=True)


async def test_it_races_and_falls_back_like_every_server() -> None:
    broken = ScriptedEndpoint("device", [(0.0, EndpointConnectError("gone"))], kind="device", tokens=3)
    async with (
        serving(FakeEngine("one two three"), ServeOptions(api_key="k")) as url,
        Client(
            broken, OpenAIEndpoint("fake", base_url=url, api_key="k", api="responses", name="far"), mode=Race(policy="both"), seed=1
        ) as client,
    ):
        answer = await client.chat.completions.create(messages=[{"role": "user", "content": "Hello"}], max_tokens=2)
        assert answer.choices[0].message.content == "one two"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2


async def test_a_slow_answer_of_this_api_loses_a_race() -> None:
    near = ScriptedEndpoint("device", words(0.0, 0.0), kind="device", tokens=3)
    async with ScriptedServer() as server:
        far = OpenAIEndpoint("m", base_url=server.url, api="responses", name="far")
        async with Client(near, far, mode=Race(policy="both"), seed=1) as client:
            answer = await client.chat.completions.create(messages=list(HELLO.messages or ()))
    assert answer.choices[0].message.content == "w0 w1 "
