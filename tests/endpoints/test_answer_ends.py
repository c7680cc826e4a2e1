"""Where a streamed answer ends, over a real socket: taken back reasons, graces, cuts, silences, and what is progress meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.config import Timeouts
from streamco.errors import EndpointError, EndpointProtocolError, EndpointStatusError, EndpointTimeoutError
from streamco.events import StreamEnded
from streamco.testing import DONE, Cut, Pause, Reset, ScriptedResponse, ScriptedServer, Stall, chunk_event, sse_event
from tests.endpoints.helpers import HELLO, NO_RETRIES, ask, opened

SHORT = Timeouts(connect=5, first_token=0.2, next_token=0.2, socket=5, cancel=1)


def body(*steps: Any, **options: Any) -> ScriptedResponse:
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps, **options)


def blank(text: str = "", reason: str = "") -> bytes:
    return sse_event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


@pytest.mark.parametrize("reason", ["", "null", "stop"])
@pytest.mark.parametrize("end", [Cut(), Reset(), Stall()])
async def test_a_reason_in_every_chunk_makes_no_cut_answer_whole(reason: str, end: Any) -> None:
    answer = body(blank("The", reason), Pause(0.01), blank(" sky", reason), Pause(0.02), end)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=SHORT, retry=NO_RETRIES) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError if isinstance(end, Stall) else EndpointProtocolError)
        assert error.partial == "The sky"


@pytest.mark.parametrize("end", [Cut(), Reset(), Stall()])
async def test_without_any_output_a_reason_has_no_grace(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.openai_stream._END_GRACE", 0.01)
    answer = body(chunk_event(role="assistant", finish_reason="stop"), Pause(0.05), end)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=SHORT, retry=NO_RETRIES) as endpoint:
        assert isinstance((await ask(endpoint)).failure(), EndpointError)


async def test_what_comes_within_the_grace_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.openai_stream._END_GRACE", 0.1)
    steps = [blank("The", "stop"), Pause(0.02), blank(" sky"), Pause(0.3), blank(" is blue."), DONE]
    async with ScriptedServer(body(*steps)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert (answered.text, answered.end) == ("The sky is blue.", StreamEnded("remote", "stop", None))


@pytest.mark.parametrize(("framing", "is_whole"), [("chunked", True), ("length", True), ("close", False)])
async def test_a_contradicted_reason_needs_a_body_whose_end_is_known(framing: Any, is_whole: bool) -> None:
    answer = body(blank("The", "stop"), blank(" sky", "stop"), framing=framing)
    async with ScriptedServer(answer) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "The sky"
        assert (answered.end is not None) == is_whole


@pytest.mark.parametrize("reason", ["abort", "network_error", "insufficient_system_resource", "error"])
async def test_a_reason_that_means_a_failure_is_retried_before_the_text_and_keeps_the_text_after_it(reason: str) -> None:
    empty, half = (
        body(chunk_event(finish_reason=reason), DONE),
        body(chunk_event("Half"), Pause(0.01), chunk_event(finish_reason=reason), DONE),
    )
    async with ScriptedServer(empty, half) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert (error.partial, reason in str(error), len(server.requests)) == ("Half", True, 2)


@pytest.mark.parametrize("status", [200, 201, 202, 299])
@pytest.mark.parametrize("kind", ["text/event-stream", "text/html; charset=utf-8", "application/json", "text/plain"])
async def test_any_status_of_success_and_any_type_may_carry_an_answer(status: int, kind: str) -> None:
    answer = ScriptedResponse(
        status=status, headers={"Content-Type": kind}, steps=[chunk_event("Hi"), chunk_event(finish_reason="stop"), DONE]
    )
    async with ScriptedServer(answer) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        assert (await ask(endpoint)).text == "Hi"


DELTAS: list[dict[str, Any]] = [
    {"audio": {"data": "AAAA"}},
    {"images": [{"url": "data:"}]},
    {"reasoning_text": "hm"},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
    {"tool_calls": [{"index": 0, "id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
]


@pytest.mark.parametrize("delta", DELTAS, ids=lambda delta: next(iter(delta)))
async def test_output_that_is_no_text_is_given_at_once_and_is_no_silence(delta: dict[str, Any]) -> None:
    piece = sse_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    steps = [chunk_event(role="assistant"), *[step for _ in range(4) for step in (Pause(0.1), piece)]]
    async with (
        ScriptedServer(body(*steps, chunk_event(finish_reason="stop"), DONE)) as server,
        opened(server.url, timeouts=SHORT) as endpoint,
    ):
        answered = await ask(endpoint)
        assert answered.end is not None
        assert len(answered.batches) >= 4  # not all at the end
        assert len(server.requests) == 1


async def test_output_that_is_no_text_keeps_a_silent_server_within_its_limit() -> None:
    piece = sse_event({"choices": [{"index": 0, "delta": {"audio": {"data": "AAAA"}}, "finish_reason": None}]})
    async with ScriptedServer(body(piece, Stall())) as server, opened(server.url, timeouts=SHORT) as endpoint:
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, len(answered.chunks), len(server.requests)) == ("next_token", 1, 1)


async def test_output_that_came_with_an_error_is_given_once() -> None:
    piece = sse_event({"choices": [{"index": 0, "delta": {"audio": {"data": "AAAA"}}, "finish_reason": None}]})
    answer = body(piece + sse_event({"error": {"code": 503, "message": "busy"}}))
    async with ScriptedServer(answer, answer) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert isinstance(answered.failure(), EndpointStatusError)
        assert (len(answered.chunks), len(server.requests)) == (1, 1)


async def test_the_number_of_choices_that_were_asked_for_says_what_an_index_is() -> None:
    def pieces(*indexes: int) -> list[bytes]:
        return [sse_event({"choices": [{"index": index, "delta": {"content": f"{index} "}, "finish_reason": None}]}) for index in indexes]

    answer = body(*pieces(0, 1, 2), DONE)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        one = await ask(endpoint)
        assert {choice.index for chunk in one.chunks for choice in chunk.choices} == {0}
        request = type(HELLO)(messages=HELLO.messages, extra={"n": 3})
        three = await ask(endpoint, request)
        assert {choice.index for chunk in three.chunks for choice in chunk.choices} == {0, 1, 2}
