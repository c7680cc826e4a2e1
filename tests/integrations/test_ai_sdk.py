"""The UI message stream of Vercel's AI SDK: the codec, a browser's messages, and the real package under Node."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import streamco
from streamco.errors import ConfigError, EndpointError
from streamco.integrations.ai_sdk import UI_STREAM_HEADERS, UIMessageEncoder, encode_ui_stream, public_report, read_ui_messages
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CustomDelta, FunctionDelta, ToolCallDelta
from streamco.testing import DONE, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from tests.client.helpers import HELLO, opened, server
from tests.support.programs import AI_SDK, install

HERE = Path(__file__).parent


def chunk(**delta: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(**delta))])


def piece(index: int | None, identity: str | None = None, name: str | None = None, arguments: str | None = None) -> ChatCompletionChunk:
    return chunk(tool_calls=[ToolCallDelta(index=index, id=identity, function=FunctionDelta(name=name, arguments=arguments))])


def parts(data: bytes) -> list[Any]:
    """Return the parts in server-sent events; "[DONE]" stays a text."""
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event[6:] if event == "data: [DONE]" else json.loads(event[6:]) for event in events]


def types(data: bytes) -> list[str]:
    return [part if isinstance(part, str) else part["type"] for part in parts(data)]


def encoded(*chunks: ChatCompletionChunk, finish_reason: str | None = "stop") -> bytes:
    encoder = UIMessageEncoder()
    return b"".join([encoder.begin(), *map(encoder.encode, chunks), encoder.end(finish_reason)])


def test_a_custom_tools_input_is_text_as_the_model_wrote_it() -> None:
    calls = [
        ToolCallDelta(index=0, id="c1", type="custom", custom=CustomDelta("shell", "ls")),
        ToolCallDelta(index=0, custom=CustomDelta(None, " -l")),
    ]
    found = parts(encoded(*[chunk(tool_calls=[call]) for call in calls], finish_reason="tool_calls"))
    assert found[2:6] == [
        {"type": "tool-input-start", "toolCallId": "c1", "toolName": "shell"},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": "ls"},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": " -l"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "shell", "input": "ls -l"},
    ]


def test_text_is_one_block() -> None:
    assert parts(encoded(chunk(role="assistant"), chunk(content="Hel"), chunk(content="lo\n\n"))) == [
        {"type": "start"},
        {"type": "start-step"},
        {"type": "text-start", "id": "text-1"},
        {"type": "text-delta", "id": "text-1", "delta": "Hel"},
        {"type": "text-delta", "id": "text-1", "delta": "lo\n\n"},
        {"type": "text-end", "id": "text-1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
        "[DONE]",
    ]


def test_thinking_and_text_are_blocks_in_their_order() -> None:
    found = parts(encoded(chunk(reasoning_content="a"), chunk(reasoning="b"), chunk(content="c"), chunk(reasoning_content="d")))
    assert [(part["type"], part["id"]) for part in found if not isinstance(part, str) and "id" in part] == [
        ("reasoning-start", "reasoning-1"),
        ("reasoning-delta", "reasoning-1"),
        ("reasoning-delta", "reasoning-1"),
        ("reasoning-end", "reasoning-1"),
        ("text-start", "text-2"),
        ("text-delta", "text-2"),
        ("text-end", "text-2"),
        ("reasoning-start", "reasoning-3"),
        ("reasoning-delta", "reasoning-3"),
        ("reasoning-end", "reasoning-3"),
    ]


def test_a_refusal_is_shown_as_text() -> None:
    assert {"type": "text-delta", "id": "text-1", "delta": "No."} in parts(encoded(chunk(refusal="No.")))


def test_a_tool_call_is_shown_while_its_input_arrives() -> None:
    found = parts(
        encoded(
            chunk(content="Let me look."), piece(0, "call_1", "weather", ""), piece(0, arguments='{"city":'), piece(0, arguments='"Oslo"}')
        )
    )
    assert found[4:-3] == [
        {"type": "text-end", "id": "text-1"},
        {"type": "tool-input-start", "toolCallId": "call_1", "toolName": "weather"},
        {"type": "tool-input-delta", "toolCallId": "call_1", "inputTextDelta": '{"city":'},
        {"type": "tool-input-delta", "toolCallId": "call_1", "inputTextDelta": '"Oslo"}'},
        {"type": "tool-input-available", "toolCallId": "call_1", "toolName": "weather", "input": {"city": "Oslo"}},
    ]


def test_a_tool_call_without_index_id_and_arguments_is_shown_too() -> None:
    (start, available) = [part for part in parts(encoded(piece(None, name="now"))) if "toolName" in part]
    assert start["toolCallId"].startswith("call_")
    assert available == {"type": "tool-input-available", "toolCallId": start["toolCallId"], "toolName": "now", "input": {}}


def test_a_tool_call_waits_for_its_name_and_is_left_out_without_one() -> None:
    found = parts(encoded(piece(0, "a", None, "{"), piece(0, None, "late", "}"), piece(1, "b", None, "{}")))
    assert [(part["type"], part["toolCallId"]) for part in found if "toolCallId" in part] == [
        ("tool-input-start", "a"),
        ("tool-input-delta", "a"),
        ("tool-input-available", "a"),
    ]
    assert next(part["inputTextDelta"] for part in found if "inputTextDelta" in part) == "{}"


def test_input_that_is_no_json_is_an_error_of_the_tool() -> None:
    found = parts(encoded(piece(0, "a", "weather", "{city")))
    (error,) = [part for part in found if not isinstance(part, str) and part["type"] == "tool-input-error"]
    assert (error["input"], error["errorText"]) == ("{city", "The tool's input isn't JSON.")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content-filter"), ("tool_calls", "tool-calls"), (None, "other")],
)
def test_the_finish_reason_has_the_sdks_words(reason: str | None, shown: str) -> None:
    assert parts(encoded(finish_reason=reason))[-2] == {"type": "finish", "finishReason": shown}


def test_a_message_has_the_id_and_metadata_that_it_was_given() -> None:
    encoder = UIMessageEncoder(message_id="msg_1")
    assert parts(encoder.begin())[0] == {"type": "start", "messageId": "msg_1"}
    assert parts(encoder.end("stop", {"cost": 1}))[1] == {"type": "finish", "finishReason": "stop", "messageMetadata": {"cost": 1}}


async def body_of(client: streamco.Client, **options: Any) -> bytes:
    stream = await client.chat.completions.create(messages=HELLO, stream=True)
    return b"".join([data async for data in encode_ui_stream(stream, **options)])


async def test_an_answer_ends_with_its_report_in_the_metadata() -> None:
    async with opened(server=server([(0.0, "Hello "), (0.0, "there")])) as client:
        found = parts(await body_of(client, message_id="msg_1"))
        assert [part["delta"] for part in found if "delta" in part] == ["Hello ", "there"]
        report = found[-2]["messageMetadata"]["report"]
        assert (report["winner"], report["ending"], report["is_final"]) == ("server", "complete", True)
        assert "messageMetadata" not in parts(await body_of(client, metadata=None))[-2]
        assert parts(await body_of(client, metadata=lambda report: report.winner))[-2]["messageMetadata"] == "server"


async def test_a_failure_tells_the_browser_nothing_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    failing = server([(0.0, "One "), (0.0, EndpointError("the key sk-secret of 10.0.0.1 is wrong"))])
    async with opened(server=failing) as client:
        data = await body_of(client)
        assert types(data)[-4:] == ["text-end", "message-metadata", "error", "[DONE]"]
        assert parts(data)[-2]["errorText"] == "The answer could not be finished."
        assert b"sk-secret" not in data
        assert parts(data)[-3]["messageMetadata"]["report"]["endpoints"][0]["error_kind"] == "EndpointError"
        assert b"sk-secret" in await body_of(client, error_text=str, metadata=None)
    assert "an answer to a browser failed: EndpointError" in caplog.text


async def test_metadata_has_no_text_of_errors_and_notes() -> None:
    async with opened(server=server()) as client:
        answer = await client.chat.completions.create(messages=HELLO)
    assert answer.report is not None
    shown = public_report(answer.report)["report"]
    assert "notes" not in shown
    assert all("error" not in endpoint for endpoint in shown["endpoints"])


async def test_a_reader_that_leaves_stops_the_work() -> None:
    side = server([(0.0, "One "), (60.0, "late")])
    async with opened(server=side) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        async with aclosing(encode_ui_stream(stream)) as events:
            async for data in events:
                if b"One" in data:
                    break
        assert side.active == 0


def user(*parts: Any) -> dict[str, Any]:
    return {"id": "1", "role": "user", "parts": list(parts)}


def assistant(*parts: Any) -> dict[str, Any]:
    return {"id": "2", "role": "assistant", "parts": list(parts)}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


PICTURE = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}


def test_messages_of_a_browser_become_a_conversation() -> None:
    call = {"type": "tool-weather", "toolCallId": "a", "state": "output-available", "input": {"city": "Oslo"}, "output": {"sky": "clear"}}
    failed = {"type": "dynamic-tool", "toolName": "time", "toolCallId": "b", "state": "output-error", "input": {}, "errorText": "no clock"}
    unfinished = {"type": "tool-weather", "toolCallId": "c", "state": "input-available", "input": {}}
    step = {"type": "step-start"}
    found = read_ui_messages(
        [
            user(text("What is it like "), text("in Oslo?"), {"type": "data-mood", "data": 1}),
            assistant(step, {"type": "reasoning", "text": "Hm."}, text("Let me look."), call, failed, unfinished, step, text("Clear.")),
            user(text("And this?"), PICTURE),
        ]
    )
    weather = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    clock = {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    assert found == [
        {"role": "user", "content": "What is it like in Oslo?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [weather, clock]},
        {"role": "tool", "tool_call_id": "a", "content": '{"sky": "clear"}'},
        {"role": "tool", "tool_call_id": "b", "content": "no clock"},
        {"role": "assistant", "content": "Clear."},
        {"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": PICTURE["url"]}}]},
    ]


def test_system_messages_are_taken_only_if_they_are_allowed() -> None:
    message = {"role": "system", "parts": [text("Be brief.")]}
    assert read_ui_messages([message], allows_system=True) == [{"role": "system", "content": "Be brief."}]
    with pytest.raises(ConfigError, match=r"messages\[0\].role: expected user or assistant, got a different role"):
        read_ui_messages([message])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        (None, "messages: expected a list, got NoneType"),
        (["secret"], r"messages\[0\]: expected an object, got str"),
        ([{"parts": []}], r"messages\[0\].role: expected a value, got none"),
        ([{"role": "user"}], r"messages\[0\].parts: expected a value, got none"),
        ([{"role": "user", "parts": {}}], r"messages\[0\].parts: expected a list, got dict"),
        ([user("secret")], r"messages\[0\].parts\[0\]: expected an object, got str"),
        ([user({"type": 7})], r"messages\[0\].parts\[0\].type: expected a string, got int"),
        ([user({"type": "text"})], r"messages\[0\].parts\[0\].text: expected a value, got none"),
        ([user(PICTURE | {"mediaType": "application/pdf"})], r"messages\[0\].parts\[0\].mediaType: expected an image, got a different"),
        ([user(PICTURE | {"url": "file:///etc/secret"})], r"messages\[0\].parts\[0\].url: expected an image inside the message"),
        ([user(PICTURE | {"url": "http://10.0.0.1/secret"})], r"messages\[0\].parts\[0\].url: expected an image inside the message"),
        ([assistant({"type": "tool-x", "state": "output-available"})], r"messages\[0\].parts\[0\].toolCallId: expected a value, got none"),
        ([{"role": "root", "parts": []}], r"messages\[0\].role: expected user or assistant, got a different role"),
    ],
)
def test_a_malformed_message_is_refused_without_quoting_it(messages: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_ui_messages(messages)
    assert "secret" not in str(caught.value)


# With the real package


@pytest.fixture(scope="session")
def package() -> Path:
    """A folder with the npm package: ``STREAMCO_AI_SDK`` names it, else it is in the cache, into which it is installed once."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    if given := os.environ.get("STREAMCO_AI_SDK"):
        return Path(given)
    try:
        return install(AI_SDK, limit=60)
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"needs the npm package ai {AI_SDK.version}, which npm could not install: {type(error).__name__}")


@asynccontextmanager
async def chat_of(client: streamco.Client) -> AsyncIterator[tuple[str, list[Any]]]:
    """An endpoint for browsers over a client, and the conversations that it was asked for."""
    asked: list[Any] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        messages = read_ui_messages((await request.json())["messages"])
        asked.append(messages)
        stream = await client.chat.completions.create(messages=messages, stream=True)
        response = web.StreamResponse(headers=UI_STREAM_HEADERS)
        await response.prepare(request)
        async with aclosing(encode_ui_stream(stream)) as events:
            async for data in events:
                await response.write(data)
        return response

    app = web.Application()
    app.router.add_post("/api/chat", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/api/chat", asked
    finally:
        await runner.cleanup()


async def read_by_sdk(package: Path, api: str, *messages: Any) -> Any:
    """What a page would show, as the AI SDK reads it."""
    words = ["node", str(HERE / "read_ui_stream.cjs"), str(package), api, json.dumps(messages)]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


Answered = Callable[..., Any]


@asynccontextmanager
async def page_over(package: Path, *steps: Any) -> AsyncIterator[tuple[Answered, list[Any]]]:
    """A page over a client of a scripted server with these events."""
    script = stream_answer() if not steps else ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[*steps, DONE])
    async with (
        ScriptedServer(script) as remote,
        streamco.Client(server=streamco.OpenAIEndpoint("m", base_url=remote.url), max_retries=0) as client,
        chat_of(client) as (api, asked),
    ):
        yield lambda *messages: read_by_sdk(package, api, *messages), asked


@pytest.mark.peer
async def test_the_sdk_shows_the_text_as_it_comes_and_gets_the_report(package: Path) -> None:
    async with page_over(package) as (ask, asked):
        shown = await ask(user(text("Hello?")))
    message = shown["message"]
    assert message["role"] == "assistant"
    assert [(part["type"], part.get("text"), part.get("state")) for part in message["parts"]] == [
        ("step-start", None, None),
        ("text", "Hello world", "done"),
    ]
    assert "Hello" in shown["texts"]
    assert (message["metadata"]["report"]["finish_reason"], shown["errors"]) == ("stop", [])
    assert asked == [[{"role": "user", "content": "Hello?"}]]


@pytest.mark.peer
async def test_the_sdk_shows_thinking_and_a_tool_call_and_sends_its_result(package: Path) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city"'}}
    rest = {"index": 0, "function": {"arguments": ': "Oslo"}'}}
    steps = [chunk_event(reasoning_content="Hm."), chunk_event(tool_calls=[call]), chunk_event(tool_calls=[rest])]
    async with page_over(package, *steps, chunk_event(finish_reason="tool_calls")) as (ask, asked):
        message = (await ask(user(text("Oslo?"))))["message"]
        _, thinking, tool = message["parts"]
        assert (thinking["type"], thinking["text"], tool["type"], tool["state"]) == ("reasoning", "Hm.", "tool-weather", "input-available")
        assert tool["input"] == {"city": "Oslo"}
        tool |= {"state": "output-available", "output": "sunny"}
        await ask(user(text("Oslo?")), message)
    assert asked[1][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    assert asked[1][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


@pytest.mark.peer
async def test_the_sdk_shows_the_text_so_far_and_an_error(package: Path) -> None:
    failure = b'data: {"error": {"message": "overloaded", "type": "server_error", "code": 503}}\n\n'
    async with page_over(package, chunk_event("One "), failure) as (ask, _):
        shown = await ask(user(text("Count.")))
    assert shown["errors"] == ["The answer could not be finished."]
    assert shown["texts"][-1] == "One "
    assert shown["message"]["metadata"]["report"]["ending"] == "failed"
