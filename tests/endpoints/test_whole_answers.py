"""A model that a server doesn't stream: it is asked again without ``stream``, once, and the reader gets the whole answer."""

from __future__ import annotations

from typing import Any

import pytest

import streamco
from streamco.config import Timeouts
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointStatusError, EndpointTimeoutError
from streamco.testing import Pause, RecordedRequest, ScriptedResponse, ScriptedServer, json_answer, stream_answer
from tests.endpoints.helpers import NO_RETRIES, ask, opened

UNVERIFIED = {"message": "Your organization must be verified to stream this model.", "param": "stream", "code": "unsupported_value"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
CHAT = {
    "id": "c",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
    "usage": USAGE,
}
COMPLETION = CHAT | {"object": "text_completion", "choices": [{"index": 0, "text": "whole", "finish_reason": "stop"}]}
RESPONSE = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "whole"}]}],
    "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4},
}
MESSAGE = {
    "id": "a",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "whole"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
NOTE = "the answer came whole, because the server doesn't stream this model"


def whole_only(answer: dict[str, Any], refusal: dict[str, Any] = UNVERIFIED) -> Any:
    def respond(request: RecordedRequest) -> ScriptedResponse:
        if request.method == "GET":
            return json_answer({"object": "list", "data": []})
        return json_answer({"error": refusal}, status=400) if request.json().get("stream") else json_answer(answer)

    return respond


def endpoint_of(api: str, url: str) -> OpenAIEndpoint:
    if api == "messages":
        return AnthropicEndpoint("m", base_url=url, api_key="", retry=NO_RETRIES)
    return OpenAIEndpoint("m", base_url=url, api=api, retry=NO_RETRIES)  # type: ignore[arg-type]


ANSWERS = {"chat": CHAT, "completions": COMPLETION, "responses": RESPONSE, "messages": MESSAGE}


@pytest.mark.parametrize("api", ANSWERS)
async def test_every_api_is_asked_again_once_and_then_always(api: str) -> None:
    async with ScriptedServer(whole_only(ANSWERS[api])) as server:
        endpoint = endpoint_of(api, server.url)
        async with streamco.Client(server=endpoint) as client:
            for _ in range(2):
                stream = client.stream("hi")
                assert "".join([token.text async for token in stream]) == "whole"
                assert stream.report.notes == [f"{endpoint.name}: {NOTE}"]
                assert stream.usage.completion_tokens == 1
        sent = [request.json() for request in server.requests if request.method == "POST"]
        assert ["stream" in each for each in sent] == [True, False, False]
        assert not any("stream_options" in each for each in sent[1:])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_caller_gets_the_answer_in_the_form_that_it_asked_for(is_streamed: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(whole_only(CHAT)) as server, streamco.Client(server=endpoint_of("chat", server.url)) as client:
        if is_streamed:
            stream = await client.chat.completions.create(messages="hi", stream=True)
            chunks = [chunk async for chunk in stream]
            assert [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content] == ["whole"]
        else:
            answer = await client.chat.completions.create(messages="hi")
            assert answer.choices[0].message.content == "whole"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 1
    assert caplog.text.count(NOTE) == 1


async def test_another_model_is_still_streamed() -> None:
    def respond(request: RecordedRequest) -> ScriptedResponse:
        return whole_only(CHAT)(request) if request.json()["model"] == "m" else stream_answer(["in", " pieces"])

    async with ScriptedServer(respond) as server, streamco.Client(server=endpoint_of("chat", server.url)) as client:
        await client.chat.completions.create(messages="hi")
        answer = await client.chat.completions.create(messages="hi", model="other")
        assert answer.choices[0].message.content == "in pieces"
        assert answer.report is not None
        assert not answer.report.notes


@pytest.mark.parametrize(
    "refusal", [{"message": "Unsupported value: 'temperature'", "param": "temperature"}, {"message": "upstream said no"}]
)
async def test_another_refusal_is_no_reason_to_ask_again(refusal: dict[str, Any]) -> None:
    async with ScriptedServer(whole_only(CHAT, refusal)) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert len(server.requests) == 1


async def test_a_server_that_refuses_both_forms_is_asked_twice_and_no_more() -> None:
    def respond(request: RecordedRequest) -> ScriptedResponse:
        error = UNVERIFIED if request.json().get("stream") else {"message": "only streaming is supported: stream must not be false"}
        return json_answer({"error": error}, status=400)

    async with ScriptedServer(respond) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert "only streaming" in str(error)
        await ask(endpoint)
        assert ["stream" in request.json() for request in server.requests] == [True, False, True, False]


async def test_a_whole_answer_has_the_time_that_the_caller_gave() -> None:
    def respond(request: RecordedRequest) -> ScriptedResponse:
        if request.json().get("stream"):
            return json_answer({"error": UNVERIFIED}, status=400)
        return json_answer(CHAT, steps=[Pause(60.0)])

    short = Timeouts(connect=5, first_token=0.1, next_token=5, socket=5, cancel=1)
    async with ScriptedServer(respond) as server, opened(server.url, timeouts=short) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert error.phase == "first_token"
