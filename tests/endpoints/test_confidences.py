"""How sure a device behind a URL was, by the log-probabilities that it is asked for."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
from msgspec.structs import replace

import streamco
from streamco import QualityGate, Race
from streamco.endpoints.base import Request
from streamco.endpoints.confidences import take_confidences
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.errors import EndpointStatusError
from streamco.events import TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChoiceLogprobs, ChunkChoice
from streamco.testing import RecordedRequest, ScriptedResponse, ScriptedServer, json_answer
from streamco.testing.responses import sse_event
from tests.client.helpers import server as remote
from tests.client.helpers import tokens_text
from tests.support.peer_servers import running_peer

HELLO = Request(messages=[{"role": "user", "content": "hello"}])
WORDS = ("Hello ", "world.")


def told(text: str, probability: float) -> dict[str, Any]:
    """A choice with a token's log-probability, as llama.cpp's server sends it."""
    logprobs = {"content": [{"token": text, "logprob": log(probability), "bytes": list(text.encode()), "top_logprobs": []}]}
    return {"index": 0, "delta": {"content": text}, "logprobs": logprobs}


def answering(probability: float, *, refuses: int = 0, why: str = "logprobs is not supported by this model") -> Any:
    """Answer with log-probabilities if they are asked for, or refuse that."""

    def answer(request: RecordedRequest) -> Any:
        asks = request.json().get("logprobs")
        if asks and refuses:
            return json_answer({"error": {"message": why, "type": "x"}}, status=refuses)
        choices = [told(word, probability) if asks else {"index": 0, "delta": {"content": word}} for word in WORDS]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        events = [sse_event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
        return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[*events, sse_event("[DONE]")])

    return answer


async def received(device: LocalServerEndpoint, request: Request) -> list[TokensReceived]:
    stream, found = device.open(request), []
    while isinstance(event := await stream.receive(), TokensReceived):
        found.append(event)
    return found


async def serving(server: ScriptedServer, answer: Any) -> LocalServerEndpoint:
    server.route("/v1/models", json_answer({"object": "list", "data": [{"id": "m", "owned_by": "library"}]}))
    server.route("/v1/chat/completions", answer)
    device = LocalServerEndpoint(server.url.removesuffix("/v1"), "m")
    await device.start()
    return device


async def test_a_graded_answer_has_confidences_and_the_caller_gets_what_it_asked_for() -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(0.25))
        plain = await received(device, HELLO)
        graded = await received(device, replace(HELLO, is_graded=True))
        asked = await received(device, replace(HELLO, is_graded=True, extra={"logprobs": True}))
        await device.aclose()
    sent = [request.json().get("logprobs") for request in server.requests if request.path == "/v1/chat/completions"]
    assert sent == [None, True, True]
    assert not any(event.confidences for event in plain)
    for events in (graded, asked):
        sure = [each for event in events for each in event.confidences]
        assert [each.probability for each in sure] == pytest.approx([0.25, 0.25])
        assert [each.ends_sentence for each in sure] == [False, True]
    for events, has in ((graded, False), (asked, True)):
        assert any(choice.logprobs for event in events for chunk in event.chunks for choice in chunk.choices) is has


NAMED = "logprobs is not supported by this model"


@pytest.mark.parametrize(
    ("status", "why"), [(400, "bad request"), (422, "bad request"), *((status, NAMED) for status in (400, 403, 404, 422, 429, 500, 503))]
)
async def test_a_server_that_refuses_them_is_asked_again_without_and_never_again_with(status: int, why: str) -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(0.25, refuses=status, why=why))
        for _ in range(2):
            events = await received(device, replace(HELLO, is_graded=True))
            assert "".join(chunk.choices[0].delta.content or "" for event in events for chunk in event.chunks) == "".join(WORDS)
        await device.aclose()
    assert [request.json().get("logprobs") for request in server.requests if request.path == "/v1/chat/completions"] == [True, None, None]


async def test_a_server_that_refuses_everything_keeps_being_asked_for_them() -> None:
    async with ScriptedServer() as server:
        device = await serving(server, json_answer({"error": {"message": "bad request"}}, status=400))
        for _ in range(2):
            with pytest.raises(EndpointStatusError):
                await received(device, replace(HELLO, is_graded=True))
        await device.aclose()
    assert [request.json().get("logprobs") for request in server.requests if request.path == "/v1/chat/completions"] == [True, None] * 2


async def test_a_server_that_is_down_for_a_moment_is_asked_for_them_again() -> None:
    asked = 0

    def answer(request: RecordedRequest) -> Any:
        nonlocal asked
        asked += 1
        return json_answer({"error": {"message": "internal"}}, status=500) if asked == 1 else answering(0.25)(request)

    async with ScriptedServer() as server:
        device = await serving(server, answer)
        assert any(event.confidences for event in await received(device, replace(HELLO, is_graded=True, max_retries=1)))
        await device.aclose()


async def test_two_fields_may_be_refused_one_after_the_other() -> None:
    def answer(request: RecordedRequest) -> Any:
        body = request.json()
        for name in ("logprobs", "stream_options"):
            if name in body:
                return json_answer({"error": {"message": f"Unsupported parameter: '{name}'.", "param": name}}, status=400)
        return answering(0.25)(request)

    async with ScriptedServer() as server:
        device = await serving(server, answer)
        assert await received(device, replace(HELLO, is_graded=True))
        await device.aclose()


@pytest.mark.parametrize("extra", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"n": 2}])
async def test_requests_that_are_never_graded_do_not_ask(extra: dict[str, Any]) -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(0.25))
        await received(device, replace(HELLO, is_graded=True, extra=extra))
        await device.aclose()
    assert "logprobs" not in server.requests[-1].json()


async def test_what_was_refused_is_noted_once() -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(0.25, refuses=400, why="bad request"))
        async with streamco.Client(device, remote([(0.0, "S")]), mode=Race(policy="device-first", quality="gate"), budget=0.9) as client:
            notes = []
            for _ in range(2):
                stream = client.stream("hello")
                assert await tokens_text(stream) == "Hello world."
                notes.append([note for note in stream.report.notes if "log-probabilities" in note])
    assert notes == [["device: log-probabilities aren't asked for any more, because a request for them was refused (400)"], []]


async def test_a_device_that_tells_after_a_while_is_graded_again() -> None:
    silent, telling, asked = answering(0.2), answering(0.2), 0

    def answer(request: RecordedRequest) -> Any:
        nonlocal asked
        asked += 1
        return (
            telling(request) if asked > 3 else silent(replace(request, body=request.body.replace(b'"logprobs":true', b'"logprobs":false')))
        )

    async with ScriptedServer() as server:
        device = await serving(server, answer)
        race = Race(policy="device-first", quality=QualityGate(min_score=0.5))
        async with streamco.Client(device, remote([(0.0, "S")]), mode=race, budget=1.0) as client:
            answers = [await tokens_text(client.stream("hello")) for _ in range(26)]
    assert answers == ["Hello world."] * 23 + ["S"] * 3


async def test_a_score_is_learned_from_ratings_of_a_device_behind_a_url() -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(0.9))
        async with streamco.Client(device, remote([(0.0, "S")]), mode=Race(policy="device-first", quality="gate"), budget=0.9) as client:
            stream = client.stream("hello")
            assert await tokens_text(stream) == "Hello world."
            assert stream.rate(True)


@pytest.mark.parametrize(("probability", "text"), [(0.9, "Hello world."), (0.2, "S")])
async def test_a_gate_grades_a_device_behind_a_url(probability: float, text: str) -> None:
    async with ScriptedServer() as server:
        device = await serving(server, answering(probability))
        race = Race(policy="device-first", quality=QualityGate(min_score=0.5))
        async with streamco.Client(device, remote([(0.0, "S")]), mode=race, budget=0.9) as client:
            stream = client.stream("hello")
            assert await tokens_text(stream) == text
            assert stream.report.grade is not None
            assert stream.report.grade.score == pytest.approx(probability)


@pytest.mark.peer
@pytest.mark.model
@pytest.mark.parametrize(("kind", "tells"), [("xllamacpp", True), ("llama-cpp-python", False)])
async def test_what_real_servers_tell(kind: str, tells: bool) -> None:
    with running_peer(kind) as url:
        device = LocalServerEndpoint(url.removesuffix("/v1"))
        race = Race(policy="device-first", quality=QualityGate(min_score=0.0))
        async with streamco.Client(device, remote([(0.0, "S")]), mode=race, budget=0.9) as client:
            stream = client.stream("Name three rivers.", max_tokens=24, temperature=0)
            assert await tokens_text(stream)
            assert stream.report.grade is not None
            assert (stream.report.grade.verdict, stream.report.grade.tokens) == (("sure", 16) if tells else ("not graded", 0))


def test_what_is_no_log_probability_is_left_out() -> None:
    def chunk(logprobs: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="x"), logprobs=logprobs)])

    second = ChunkChoice(index=1, delta=ChoiceDelta(content="y"), logprobs=ChoiceLogprobs(content=[{"logprob": -1.0}]))
    assert take_confidences([ChatCompletionChunk(choices=[second])], strips=True) == ()
    assert second.logprobs is None
    thought = ChatCompletionChunk(
        choices=[ChunkChoice(delta=ChoiceDelta(reasoning="x"), logprobs=ChoiceLogprobs(content=[{"logprob": -1.0}]))]
    )
    assert take_confidences([thought], strips=False) == ()
    odd: list[Any] = [None, [], {}, {"content": None}, {"content": [None, {}, {"logprob": None}, {"logprob": "x"}, {"logprob": 2.0}]}]
    assert take_confidences([chunk(each) for each in odd], strips=False) == ()
    (found,) = take_confidences([chunk({"content": [{"logprob": -1.5}]})], strips=True)
    assert found.probability == pytest.approx(exp(-1.5))
