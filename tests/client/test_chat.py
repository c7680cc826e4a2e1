"""OpenAI's shapes at the client: requests as servers get them, chunks and whole answers as callers read them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.client.chat import Answer
from streamco.client.client import Client
from streamco.client.stream import ChatStream
from streamco.core.report_parts import AnswerUsage
from streamco.endpoints.base import Capabilities
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import (
    AllEndpointsFailed,
    ConfigError,
    EndpointConnectError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    UsageError,
)
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.testing import DONE, Cut, Pause, ScriptedServer, chunk_event, json_answer, stream_answer
from streamco.testing import ScriptedResponse as HttpAnswer
from streamco.testing.endpoint import text_chunk
from streamco.testing.engine import FakeEngine
from streamco.testing.responses import Step
from tests.client.helpers import EVERYTHING, HELLO, chunks_text, device, opened, server, tokens_text, words
from tests.support.calls import function_of

USAGE = CompletionUsage(prompt_tokens=5, completion_tokens=2, total_tokens=7)


async def create(client: Client, **options: Any) -> ChatStream:
    stream: ChatStream = await client.chat.completions.create(messages=HELLO, stream=True, **options)
    return stream


async def whole(client: Client, **options: Any) -> Answer:
    answer: Answer = await client.chat.completions.create(messages=HELLO, **options)
    return answer


@asynccontextmanager
async def answering(*answers: HttpAnswer) -> AsyncIterator[tuple[Client, ScriptedServer]]:
    """A client and the HTTP server that gives it these answers."""
    async with ScriptedServer(*answers) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", capabilities=EVERYTHING)
        async with opened(server=remote) as client:
            yield client, scripted


def able_server(url: str, name: str) -> OpenAIEndpoint:
    """One that can go on with an answer."""
    return OpenAIEndpoint("m", base_url=url, name=name, capabilities=Capabilities(continuation="continue_final_message"))


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from typing import assert_type

import streamco
from streamco.client.chat import Answer
from streamco.client.stream import ChatStream
from streamco.openai_types import ChatCompletionMessage


async def use(client: streamco.Client, flag: bool, said: ChatCompletionMessage) -> None:
    ask = client.chat.completions.create
    assert_type(await ask(messages=[{"role": "user", "content": "x"}, said]), Answer)
    assert_type(await ask(messages=[], stream=True, temperature=0, timeout=5), ChatStream)
    assert_type(await ask(messages=[], stream=flag, timeout=None), ChatStream | Answer)
    await ask(messages=[], temprature=0)  # wrong
    await ask(messages=[], temperature="hot")  # wrong
    client.stream("x", max_tokens=3, logit_bias={"5": 1})
    client.stream("x", max_token=3)  # wrong
    client.with_options(timeout=3, max_retries=2)
    messages: list[streamco.Message] = [{"role": "user", "content": "x"}]
    answer = await ask(messages=messages)
    messages.append(answer.choices[0].message)
    messages += [said, {"role": "user", "content": "y"}]
    await ask(messages=messages, stream=True, pace="smooth")
    messages.append("y")  # wrong
    messages.append(5)  # wrong
    client.stream(messages, pace="smoth")  # wrong
    streamco.Client(mode=streamco.Race(policy="server-only"), pace="reading")
    streamco.Client(mode=streamco.Race(policy="server-olny"))  # wrong
    streamco.Client(pace="brisk")  # wrong
    if answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None:
        assert_type(answer.choices[0].logprobs.content[0].logprob, float)
        assert_type(answer.choices[0].logprobs.content[0].top_logprobs[0].token, str)
"""


# What goes out


async def test_the_server_gets_openais_request() -> None:
    async with answering() as (client, scripted):
        stream = await create(
            client,
            model="other",
            temperature=0.5,
            top_p=0.9,
            max_tokens=20,
            seed=7,
            stop=["\n", "END"],
            user="somebody",
            logit_bias=None,
            extra_body={"provider": {"order": ["x"]}},
            extra_headers={"X-Trace": "1"},
        )
        assert await chunks_text(stream) == "Hello world"
    (request,) = scripted.requests
    body = request.json()
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-trace"] == "1"
    assert body["messages"] == HELLO
    expected = {"model": "other", "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["\n", "END"], "user": "somebody", "stream": True}
    assert {name: body[name] for name in expected} == expected
    assert 20 in {body.get("max_tokens"), body.get("max_completion_tokens")}
    assert body["provider"] == {"order": ["x"]}
    assert "logit_bias" not in body, "None means not given, as in OpenAI's SDK"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("includes_usage", [{}, {"include_usage": True}, {"include_usage": False}])
async def test_further_stream_options_reach_the_server_and_usage_is_always_asked_for(includes_usage: dict[str, bool]) -> None:
    options = {"continuous_usage_stats": True, "include_obfuscation": False, **includes_usage}
    async with answering() as (client, scripted):
        await chunks_text(await create(client, stream_options=options))
        await whole(client, stream_options=options)
        await tokens_text(client.stream(HELLO, stream_options=options))
        assert [request.json()["stream_options"] for request in scripted.requests] == [{**options, "include_usage": True}] * 3


async def test_without_further_stream_options_only_usage_is_asked_for() -> None:
    async with answering() as (client, scripted):
        for given in ({"include_usage": False}, {}, None):
            await chunks_text(await create(client, stream_options=given))
        assert [request.json()["stream_options"] for request in scripted.requests] == [{"include_usage": True}] * 3


async def test_further_stream_options_keep_no_device_out() -> None:
    one = device(words(0.0))
    async with opened(one) as client:
        assert (await whole(client, stream_options={"include_obfuscation": False})).choices[0].message.content == "w0 "


async def test_max_completion_tokens_is_max_tokens_by_its_newer_name() -> None:
    both = server(), device()
    async with opened(both[1], both[0], policy="both", budget=1.0) as client:
        await whole(client, max_completion_tokens=9)
    assert both[0].streams[0].request.sampling.max_tokens == 9


# What comes back, streamed


async def test_chunks_read_as_openais() -> None:
    async with answering(stream_answer(["Hello", " world"], usage=msgspec.to_builtins(USAGE))) as (client, _scripted):
        stream = await create(client)
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hello", " world", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk.usage is None for chunk in chunks), "usage was not asked for: no chunk without choices"
    assert stream.report.finish_reason == "stop"


async def test_usage_is_the_last_chunk_when_it_is_asked_for_whoever_wins() -> None:
    sides = [server([(0.0, "a"), (0.0, "b")], usage=USAGE), device([(0.0, "a"), (0.0, "b")], usage=USAGE)]
    for winner in sides:
        async with opened(**{winner.kind: winner}) as client:
            *chunks, last = [chunk async for chunk in await create(client, stream_options={"include_usage": True})]
            assert last.choices == []
            assert last.usage == USAGE
            assert last.id == chunks[-1].id
            assert all(chunk.choices for chunk in chunks)
            assert all(chunk.choices for chunk in [c async for c in await create(client)])
            assert all(chunk.choices for chunk in [c async for c in await create(client, stream_options={"include_usage": False})])


async def test_usage_on_the_wire_is_not_given_twice() -> None:
    async with answering(stream_answer(["Hi"], usage=msgspec.to_builtins(USAGE))) as (client, _scripted):
        chunks = [chunk async for chunk in await create(client, stream_options={"include_usage": True})]
    assert [chunk.usage for chunk in chunks if chunk.usage is not None] == [USAGE]


async def test_the_last_usage_on_the_wire_is_the_answers() -> None:
    def event(choices: list[dict[str, Any]], completion: int) -> bytes:
        usage = {"prompt_tokens": 14, "completion_tokens": completion, "total_tokens": 14 + completion}
        return b"data: " + msgspec.json.encode({"id": "c", "model": "m", "choices": choices, "usage": usage}) + b"\n\n"

    words = [event([{"index": 0, "delta": {"content": "Hi"}}], 1), event([{"index": 0, "delta": {}, "finish_reason": "stop"}], 2)]
    for after, completion in (([], 2), ([event([], 3), event([], 270)], 270)):
        body = HttpAnswer(headers={"Content-Type": "text/event-stream"}, steps=[event([], 0), *words, *after, b"data: [DONE]\n\n"])
        async with answering(body) as (client, _scripted):
            *_, last = [chunk async for chunk in await create(client, stream_options={"include_usage": True})]
            answer = await whole(client)
        assert [each.usage.completion_tokens for each in (last, answer) if each.usage] == [completion, completion]


async def test_usage_that_no_endpoint_told_is_estimated_and_says_so() -> None:
    async with answering(stream_answer(["Hi", " there"])) as (client, _scripted):
        *_, last = [chunk async for chunk in await create(client, stream_options={"include_usage": True})]
        answer = await whole(client)
    assert last.choices == []
    assert isinstance(last.usage, AnswerUsage)
    assert last.usage.is_estimated
    assert last.usage.completion_tokens == 2
    assert b'"is_estimated":true' in msgspec.json.encode(last)
    assert answer.usage == last.usage


async def test_usage_behind_a_hand_over_is_the_whole_answers() -> None:
    """Of both kinds of servers: those that send usage in a chunk of its own, and those that send it with the finish reason."""
    usage = {"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32}
    apart = stream_answer([" there", "."], usage=usage)
    within = HttpAnswer(
        headers=apart.headers, steps=[chunk_event(" there"), chunk_event(".", finish_reason="stop", usage=usage), chunk_event(), DONE]
    )
    for ending in (apart, within):
        dying = HttpAnswer(steps=[chunk_event("You"), chunk_event(" over"), Cut()])
        async with ScriptedServer(dying) as first, ScriptedServer(ending) as second:
            sides = [able_server(first.url, "first"), able_server(second.url, "second")]
            async with opened(server=sides) as client:
                stream = await create(client, stream_options={"include_usage": True})
                *chunks, last = [chunk async for chunk in stream]
                report = stream.report
        assert all(chunk.usage is None for chunk in chunks), "what the second one told is not this answer's"
        assert isinstance(last.usage, AnswerUsage)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (report.dispatch.prompt_tokens, 4)
        assert last.usage.total_tokens == report.dispatch.prompt_tokens + 4
        assert last.usage.is_estimated
        assert last.usage == stream.usage == report.usage
        assert report.endpoints[1].prompt_tokens == 30, "the endpoint's own work is in its part"


async def test_create_returns_when_the_first_token_is_there_and_not_later() -> None:
    async with answering(HttpAnswer(steps=[chunk_event("a"), Pause(30), chunk_event("b")])) as (client, _scripted):
        async with await create(client) as stream:
            assert (await anext(stream)).choices[0].delta.content == "a"
            assert stream.report.ttft is not None
        assert stream.report.winner == "server"


async def test_an_answer_that_can_not_begin_is_an_error_of_create() -> None:
    async with answering(json_answer({"error": {"message": "no such model"}}, status=404)) as (client, _scripted):
        with pytest.raises(EndpointStatusError, match="no such model") as caught:
            await create(client)
        assert caught.value.status == 404


async def test_a_cancelled_create_leaves_nothing_behind() -> None:
    silent, idle = server([(0.0, None)]), device([(0.0, None)])
    async with opened(idle, silent, policy="both", budget=1.0) as client:
        asking = asyncio.ensure_future(create(client))
        await asyncio.sleep(0.01)
        assert (silent.active, idle.active) == (1, 1)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert (silent.active, idle.active) == (0, 0)


async def test_a_client_closed_while_create_waits_ends_it() -> None:
    silent = server([(0.0, None)])
    async with opened(server=silent) as client:
        asking = asyncio.ensure_future(create(client))
        await asyncio.sleep(0.01)
        await client.aclose()
        with pytest.raises(StreamClosed):
            await asking


async def test_choices_beyond_the_first_come_through() -> None:
    choices = [ChatCompletionChunk(choices=[ChunkChoice(index=index % 2, delta=ChoiceDelta(content=f"{index}"))]) for index in range(6)]
    several = server([(0.0, choice) for choice in choices])
    async with opened(server=several) as client:
        chunks = [chunk async for chunk in await create(client, n=2)]
        assert [chunk.choices[0].index for chunk in chunks] == [0, 1, 0, 1, 0, 1]
        answer = await whole(client, n=2)
        assert [choice.message.content for choice in answer.choices] == ["024", "135"]
    assert several.streams[0].request.extra == {"n": 2}


# What comes back, whole


async def test_a_whole_answer_reads_as_openais_with_the_report_beside_it() -> None:
    async with answering(stream_answer(["Hello", " world"], usage=msgspec.to_builtins(USAGE))) as (client, _scripted):
        answer = await whole(client)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage == USAGE
    assert answer.object == "chat.completion"
    assert answer.id == "chatcmpl-1"
    assert answer.report is not None
    assert answer.report.winner == "server"
    assert answer.report.is_final
    assert b'"content":"Hello world"' in msgspec.json.encode(answer)


async def test_a_whole_answer_of_the_device_has_usage_too() -> None:
    async with opened(device([(0.0, "Hi")], usage=USAGE)) as client:
        assert (await whole(client)).usage == USAGE


async def test_tool_calls_are_assembled_in_a_whole_answer() -> None:
    def call(**fields: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[ToolCallDelta(**fields)]))])

    pieces = [
        call(index=0, id="call_1", type="function", function=FunctionDelta(name="weather", arguments="")),
        call(index=0, function=FunctionDelta(arguments='{"city":')),
        call(index=1, id="call_2", type="function", function=FunctionDelta(name="time", arguments="{}")),
        call(index=0, function=FunctionDelta(arguments='"Oslo"}')),
        text_chunk("", finish_reason="tool_calls"),
    ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "time")]
    steps: list[Step] = [_event(piece) for piece in pieces]
    async with answering(HttpAnswer(steps=steps)) as (client, scripted):
        answer = await whole(client, tools=tools)
        streamed = [chunk async for chunk in await create(client, tools=tools)]
    assert scripted.requests[0].json()["tools"] == tools
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(c.id, function_of(c).name, function_of(c).arguments) for c in choice.message.tool_calls or ()] == [
        ("call_1", "weather", '{"city":"Oslo"}'),
        ("call_2", "time", "{}"),
    ]
    assert sum(bool(chunk.choices[0].delta.tool_calls) for chunk in streamed) == 4, "streamed pieces come as they are"


async def test_a_stream_of_tokens_fails_at_a_tool_call_and_keeps_the_text_before_it() -> None:
    call = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[ToolCallDelta(index=0, id="call_1")]))])
    async with answering(HttpAnswer(steps=[_event(text_chunk("I look.")), _event(call), DONE])) as (client, _):
        with pytest.raises(UsageError, match="expected text, got a tool call") as caught:
            await tokens_text(client.stream("hello", tools=[{"type": "function", "function": {"name": "f"}}]))
    assert caught.value.partial == "I look."


def _event(chunk: ChatCompletionChunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


async def test_thinking_text_is_kept_apart_from_the_answer() -> None:
    steps: list[Step] = [chunk_event(reasoning_content="Let me see. "), chunk_event("42"), chunk_event(finish_reason="stop")]
    async with answering(HttpAnswer(steps=steps)) as (client, _scripted):
        answer = await whole(client)
    assert answer.choices[0].message.content == "42"
    assert answer.choices[0].message.reasoning_content == "Let me see. "


async def test_an_answer_that_breaks_off_is_an_error_with_the_text_so_far() -> None:
    steps: list[Step] = [chunk_event("Once "), chunk_event("upon "), Cut()]
    async with answering(HttpAnswer(steps=steps)) as (client, _scripted):
        with pytest.raises(EndpointProtocolError) as caught:
            await whole(client)
        assert caught.value.partial == "Once upon "


async def test_all_failing_is_one_error_for_whole_answers_as_well() -> None:
    broken = [server([(0.0, EndpointConnectError("refused", endpoint=name))], name=name) for name in ("a", "b")]
    async with opened(server=broken) as client:
        with pytest.raises(AllEndpointsFailed, match="a: refused; b: refused"):
            await whole(client)


async def test_a_cancelled_whole_answer_leaves_nothing_behind() -> None:
    silent = server([(0.0, "a"), (0.0, None)])
    async with opened(server=silent) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await whole(client)
        assert silent.active == 0


async def test_an_empty_answer_is_an_answer() -> None:
    async with opened(server=server([(0.0, text_chunk("", finish_reason="stop"))])) as client:
        answer = await whole(client)
        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "stop"
        assert len([chunk async for chunk in await create(client)]) == 1


async def test_the_callers_messages_are_not_changed_and_later_changes_do_not_count() -> None:
    messages = [{"role": "user", "content": "one"}]
    scripted = server(words(0.0, 0.01))
    async with opened(server=scripted) as client:
        stream = await client.chat.completions.create(messages=messages, stream=True)
        messages.append({"role": "user", "content": "two"})
        await chunks_text(stream)
    assert len(scripted.streams[0].request.messages or ()) == 1
    assert messages[0] == {"role": "user", "content": "one"}


async def test_wrong_stream_options_are_refused() -> None:
    client = Client(server=server())
    with pytest.raises(ConfigError, match="stream_options: expected a mapping, got bool"):
        await create(client, stream_options=True)


# Limits and addresses of one request


async def test_a_query_is_added_to_the_url() -> None:
    async with answering() as (client, scripted):
        await whole(client, extra_query={"trace": "a b"})
    assert scripted.requests[0].path == "/v1/chat/completions?trace=a+b"


async def test_a_timeout_of_one_request_is_kept() -> None:
    async with answering(HttpAnswer(steps=[Pause(30)])) as (client, _):
        with pytest.raises(EndpointTimeoutError, match="within 0"):
            await create(client, timeout=0.05)


async def test_a_clients_timeout_and_retries_hold_unless_a_request_has_its_own() -> None:
    refused = HttpAnswer(status=500, steps=[b"busy"])
    async with answering(refused, refused, HttpAnswer(steps=[Pause(30)])) as (client, scripted):
        strict = client.with_options(timeout=0.05, max_retries=0)
        with pytest.raises(EndpointStatusError):
            await whole(strict)
        assert len(scripted.requests) == 1
        with pytest.raises(EndpointTimeoutError, match="within 0"):
            await create(strict, max_retries=1)
        assert len(scripted.requests) == 3


async def test_a_timeout_holds_at_the_device_too() -> None:
    stuck = FakeEngine(["x"] * 3, mode="manual")
    async with opened(device=DeviceEndpoint(stuck)) as client:
        with pytest.raises(EndpointTimeoutError, match="within 0"):
            await create(client, timeout=0.05)


async def test_a_misspelt_argument_is_named_with_its_call() -> None:
    async with answering() as (client, _):
        with pytest.raises(TypeError, match=r"^create\(\) got an unexpected keyword argument 'temprature'"):
            await create(client, temprature=0)
        with pytest.raises(TypeError, match=r"^stream\(\) got an unexpected keyword argument 'temprature'"):
            client.stream("hi", temprature=0)  # type: ignore[call-arg]


@pytest.mark.long
def test_a_type_checker_knows_the_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    errors = [int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    assert sorted(set(errors)) == wrong, found.stdout + found.stderr


async def test_close_is_aclose() -> None:
    scripted = device(words(0.0, 60.0))
    client = Client(scripted)
    stream = await create(client)
    await stream.close()
    assert scripted.active == 0
    await client.close()
    with pytest.raises(StreamClosed):
        await create(client)


async def test_a_pace_for_an_answer_that_is_not_streamed_is_refused() -> None:
    async with opened(device()) as client:
        with pytest.raises(ConfigError, match="pace: only valid with stream=True"):
            await whole(client, pace=5.0)
        assert await whole(client, pace=None)
