"""Answers that are read as objects of pydantic classes, and answers as events: as OpenAI's SDK does it, which some tests compare with."""

from __future__ import annotations

import enum
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar

import pydantic
import pytest
from pydantic.dataclasses import dataclass

from streamco.client.client import Client
from streamco.client.response_schema import schema_format
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import ConfigError, EndpointError, UnparsedAnswer
from streamco.testing import DONE, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from streamco.testing.responses import sse_event
from tests.client.helpers import EVERYTHING, HELLO, opened

openai = pytest.importorskip("openai")

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(pydantic.BaseModel):
    """A part of a whole."""

    name: str
    colour: Colour = pydantic.Field(description="its colour")
    parts: list[Part] = []


class Animal(pydantic.BaseModel):
    name: Literal["ant", "cat"]
    legs: int = pydantic.Field(ge=0)
    nick: str | None = None


class Holder(pydantic.BaseModel, Generic[T]):
    held: T
    best: Part = pydantic.Field(description="the best one")
    extra: dict[str, int] | None = None


@dataclass
class Point:
    x: float
    y: float = 0.0


KINDS: list[type] = [Part, Animal, Holder[int], Holder[Animal], Point]
TEXT = '{"name": "cat", "legs": 4, "nick": null}'


def pieces(text: str = TEXT, reason: str = "stop", size: int = 7) -> ScriptedResponse:
    """A server's answer with this text, and this end."""
    steps = [chunk_event(text[start : start + size]) for start in range(0, len(text), size)]
    return ScriptedResponse(steps=[chunk_event("", role="assistant"), *steps, chunk_event(finish_reason=reason), DONE])


@asynccontextmanager
async def asked(*answers: ScriptedResponse) -> AsyncIterator[tuple[Client, ScriptedServer]]:
    async with ScriptedServer(*answers) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", capabilities=EVERYTHING)
        async with opened(server=remote) as client:
            yield client, scripted


# What is asked for


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_class_is_asked_for_as_openais_sdk_does(kind: type) -> None:
    from openai.lib._parsing import type_to_response_format_param

    theirs = json.loads(json.dumps(type_to_response_format_param(kind)))
    theirs["json_schema"]["name"] = theirs["json_schema"]["name"].replace("[", "_").replace("]", "_")  # which OpenAI would refuse
    assert schema_format(kind) == theirs


async def test_create_and_stream_take_a_class_too() -> None:
    async with asked(pieces(), pieces()) as (client, scripted):
        answer = await client.chat.completions.create(messages=HELLO, response_format=Animal)
        assert answer.choices[0].message.content == TEXT
        assert "".join([token.text async for token in client.stream(HELLO, response_format=Animal)]) == TEXT
        assert [request.json()["response_format"] for request in scripted.requests] == [schema_format(Animal)] * 2


class Endless(pydantic.BaseModel):
    inner: Endless = pydantic.Field(description="another one")


class Unspeakable(pydantic.BaseModel):
    call: Any = None
    kind: type[object] = object


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (int, "response_format: expected a mapping or a class of pydantic, got the class int"),
        (dict, "got the class dict"),
        (Endless, "expected a class whose schema ends, got Endless"),
        (Unspeakable, "expected a class with a JSON schema, got Unspeakable"),
    ],
)
async def test_a_class_that_can_not_be_asked_for_is_refused_before_anything_is_sent(kind: type, expected: str) -> None:
    async with asked(pieces()) as (client, scripted):
        for ask in (client.chat.completions.parse, client.chat.completions.create):
            with pytest.raises(ConfigError, match=expected):
                await ask(messages=HELLO, response_format=kind)
        with pytest.raises(ConfigError, match=expected):
            client.chat.completions.stream(messages=HELLO, response_format=kind)
        assert not scripted.requests


def test_pydantic_is_imported_for_pydantic_classes_alone() -> None:
    code = (
        "import sys, streamco\n"
        "from streamco.client.arguments import build_request\n"
        "client = streamco.Client(server=streamco.OpenAIEndpoint('m', base_url='http://127.0.0.1:9'))\n"
        "client.chat.completions.stream(messages='x', response_format={'type': 'json_object'})\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


# Whole answers


async def test_an_answer_is_read_as_an_object() -> None:
    async with asked(pieces()) as (client, _):
        answer = await client.chat.completions.parse(messages=HELLO, response_format=Animal, temperature=0)
        message = answer.choices[0].message
        assert message.parsed == Animal(name="cat", legs=4)
        assert (message.content, message.role, answer.choices[0].finish_reason) == (TEXT, "assistant", "stop")
        assert answer.report is not None
        assert answer.usage is not None
        assert "parsed" not in message.to_dict(), "a message that is sent back has its text once"
        assert pickle.loads(pickle.dumps(answer)) == answer


async def test_a_dataclass_of_pydantic_is_read_too() -> None:
    async with asked(pieces('{"x": 1.5}')) as (client, _):
        answer = await client.chat.completions.parse(messages=HELLO, response_format=Point)
        assert answer.choices[0].message.parsed == Point(1.5)


async def test_without_a_class_nothing_is_read() -> None:
    async with asked(pieces(), pieces()) as (client, scripted):
        for given in (None, {"type": "json_object"}):
            answer = await client.chat.completions.parse(messages=HELLO, response_format=given)
            assert (answer.choices[0].message.content, answer.choices[0].message.parsed) == (TEXT, None)
        assert [request.json().get("response_format") for request in scripted.requests] == [None, {"type": "json_object"}]


def refusing() -> ScriptedResponse:
    return ScriptedResponse(steps=[chunk_event(refusal="No."), chunk_event(finish_reason="stop"), DONE])


async def test_a_refusal_is_no_object_and_no_error() -> None:
    async with asked(refusing(), refusing()) as (client, _):
        message = (await client.chat.completions.parse(messages=HELLO, response_format=Animal)).choices[0].message
        assert (message.refusal, message.parsed) == ("No.", None)
        async with client.chat.completions.stream(messages=HELLO, response_format=Animal) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
        assert [event.type for event in events if event.type.startswith("refusal")] == ["refusal.delta", "refusal.done"]
        assert (final.choices[0].message.refusal, final.choices[0].message.parsed) == ("No.", None)


@pytest.mark.parametrize(
    ("text", "reason", "code", "expected"),
    [
        (
            TEXT[:20],
            "length",
            "length",
            "expected a whole answer, got one that was cut off at its limit of tokens",
        ),
        (TEXT[:20], "content_filter", "content_filter", "expected a whole answer, got one that a content filter cut off"),
        ("Here it is:", "stop", "invalid", "expected JSON of Animal, got .*Invalid JSON"),
        (TEXT.replace("cat", "cow"), "stop", "invalid", "expected JSON of Animal, got .*name"),
    ],
)
async def test_what_is_no_object_is_an_error_with_the_text(text: str, reason: str, code: str, expected: str) -> None:
    async with asked(pieces(text, reason), pieces(text, reason)) as (client, _):
        with pytest.raises(UnparsedAnswer, match=f"(?s)^server: {expected}") as caught:
            await client.chat.completions.parse(messages=HELLO, response_format=Animal)
        errors = [caught.value]
        async with client.chat.completions.stream(messages=HELLO, response_format=Animal) as stream:
            with pytest.raises(UnparsedAnswer) as caught:
                await stream.get_final_completion()
        errors.append(caught.value)
    for error in errors:
        assert isinstance(error, EndpointError)
        assert (error.partial, error.code, error.endpoint) == (text, code, "server")
        assert error.completion.choices[0].message.content == text
        assert error.completion.report.winner == "server"
        assert isinstance(error.__cause__, pydantic.ValidationError) == (code == "invalid")
        assert pickle.loads(pickle.dumps(error)).partial == text


# Events


def events_of(stream: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return what events of this package and of OpenAI's SDK have in common."""
    names = ("type", "delta", "snapshot", "content", "refusal", "parsed", "name", "index", "arguments", "arguments_delta")
    found = []
    for event in stream:
        values = [getattr(event, name, None) for name in names]
        if event.type == "chunk":
            values = ["chunk", event.chunk.choices[0].delta.content if event.chunk.choices else None]
        found.append(tuple(str(value) if isinstance(value, list) else value for value in values))
    return found


def called(index: int, arguments: str, name: str = "") -> bytes:
    head = {"id": f"call_{index}", "type": "function"} if name else {}
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return chunk_event(tool_calls=[{"index": index, "function": function, **head}])


def calling() -> ScriptedResponse:
    calls = [called(0, "", "f"), called(0, '{"a"'), called(0, ": 1}"), called(1, '{"b": 2}', "g")]
    return ScriptedResponse(steps=[chunk_event("Wait."), *calls, chunk_event(finish_reason="tool_calls"), DONE])


@pytest.mark.parametrize(("answer", "kind"), [(pieces, Animal), (pieces, None), (calling, None), (refusing, Animal)])
async def test_events_are_those_of_openais_helper(answer: Any, kind: type | None) -> None:
    options: dict[str, Any] = {} if kind is None else {"response_format": kind}
    async with asked(answer(), answer()) as (client, scripted):
        async with client.chat.completions.stream(messages=HELLO, **options) as stream:
            ours = [event async for event in stream]
        theirs_client = openai.AsyncOpenAI(api_key="k", base_url=scripted.url)
        async with theirs_client, theirs_client.chat.completions.stream(model="m", messages=HELLO, **options) as other:
            theirs = [event async for event in other]
    assert events_of(ours) == events_of(theirs)


async def test_the_whole_answer_is_there_after_the_events_and_without_them() -> None:
    async with asked(pieces(), pieces(), pieces()) as (client, _):
        for most in (0, 3, 1000):
            async with client.chat.completions.stream(messages=HELLO, response_format=Animal) as stream:
                seen = 0
                async for event in stream:
                    seen += 1
                    if event.type == "chunk":
                        assert event.snapshot.choices[0].message.content is not None
                    if seen > most:
                        break
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == Animal(name="cat", legs=4)
            assert final.report == stream.report
            assert final.usage is not None
            assert stream.current_completion_snapshot.choices[0].message.content == TEXT


async def test_a_server_that_sends_no_reason_for_its_end_has_the_last_events_too() -> None:
    answer = ScriptedResponse(steps=[chunk_event(TEXT), DONE])
    async with asked(answer) as (client, _), client.chat.completions.stream(messages=HELLO, response_format=Animal) as stream:
        assert [event.type async for event in stream] == ["chunk", "content.delta", "content.done"]
        assert (await stream.get_final_completion()).choices[0].message.parsed == Animal(name="cat", legs=4)


async def test_a_chunk_of_usage_is_shown_if_it_was_asked_for() -> None:
    async with asked(pieces(), pieces()) as (client, _):
        for wanted in (False, True):
            async with client.chat.completions.stream(messages=HELLO, stream_options={"include_usage": wanted}) as stream:
                chunks = [event.chunk async for event in stream if event.type == "chunk"]
            assert [bool(chunk.choices) for chunk in chunks[:-1]] == [True] * (len(chunks) - 1)
            assert bool(chunks[-1].choices) is not wanted


async def test_leaving_the_events_ends_the_work() -> None:
    async with asked(stream_answer(["word "] * 1000, gap=0.01)) as (client, _):
        async with client.chat.completions.stream(messages=HELLO) as stream:
            await anext(stream)
        assert client.totals.left == 1


async def test_log_probabilities_have_events() -> None:
    def chunk(text: str) -> bytes:
        entry = {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry], "refusal": None}, "finish_reason": None}
        return sse_event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})

    answer = ScriptedResponse(steps=[chunk("a"), chunk("b"), chunk_event(finish_reason="stop"), DONE])
    async with asked(answer) as (client, _), client.chat.completions.stream(messages=HELLO, logprobs=True) as stream:
        found: list[Any] = [event async for event in stream if event.type.startswith("logprobs")]
    assert [(event.type, "".join(each.token for each in event.content)) for event in found] == [
        ("logprobs.content.delta", "a"),
        ("logprobs.content.delta", "b"),
        ("logprobs.content.done", "ab"),
    ]
    assert [each.token for each in found[1].snapshot] == ["a", "b"]


@pytest.fixture
def packaged() -> DeviceEndpoint:
    return DeviceEndpoint(packaged_model(), options=EngineOptions(context_tokens=512, threads=1, max_sequences=1))


@pytest.mark.model
async def test_the_device_writes_what_is_read(packaged: DeviceEndpoint) -> None:
    async with Client(packaged) as client:
        answer = await client.chat.completions.parse(messages="Name an animal.", response_format=Animal, temperature=0, max_tokens=80)
        assert answer.choices[0].message.parsed is not None
        assert answer.choices[0].message.parsed.name in {"ant", "cat"}
