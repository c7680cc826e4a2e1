"""The form of an answer, from a request's ``response_format`` to a client's text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import streamco
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import boundary_whitespace, generation_request, is_short, request_ids
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointError, EngineError
from streamco.events import Partial, TokensReceived
from streamco.testing.engine import FakeEngine

OBJECT = {"type": "json_object"}
RIVER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "km": {"type": "integer", "minimum": 1, "maximum": 9999},
        "banks": {"type": "array", "items": {"enum": ["left", "right"]}, "maxItems": 2},
    },
    "required": ["name", "km", "banks"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "river", "schema": RIVER, "strict": True}}
ASKED: Any = [{"role": "user", "content": "Name a river in France, as JSON with name, km and banks."}]


class GrammarEngine(FakeEngine):
    """A scripted engine that says it keeps to grammars."""

    takes_grammars = True


def test_text_needs_no_grammar_and_no_thread() -> None:
    engine = FakeEngine()
    request = Request(prompt="Hello", extra={"response_format": {"type": "text"}})
    assert generation_request(engine, request, [], top=0).grammar is None
    assert is_short(Request(prompt="Hello"))
    assert not is_short(request)


def test_a_format_becomes_a_grammar_for_the_answer_and_not_for_what_is_read_ahead() -> None:
    engine = GrammarEngine()
    request = Request(prompt="Hello", extra={"response_format": OBJECT})
    assert generation_request(engine, request, [], top=0).grammar == '{"type": "object"}'
    assert generation_request(engine, replace(request, prefill_only=True), [], top=0).grammar is None


def test_the_beginning_of_an_answer_counts_for_its_grammar() -> None:
    engine = GrammarEngine()
    request = Request(prompt="Hello", extra={"response_format": OBJECT}, partial=Partial(text='{"é": ', tokens=3))
    assert generation_request(engine, request, [], top=0).begun == '{"é": '.encode()
    ids = tuple(engine.tokenize('{"a": 1'))
    request = replace(request, partial=Partial(text='{"a": 1', tokens=2, ids=ids, vocabulary=engine.info.vocabulary))
    assert generation_request(engine, request, [], top=0).begun == b'{"a": 1'
    assert generation_request(engine, replace(request, extra={}), [], top=0).begun == b""


@pytest.mark.parametrize("form", [OBJECT, SCHEMA])
def test_whitespace_at_the_end_of_half_a_json_text_is_not_held_back(form: Any) -> None:
    engine, text = GrammarEngine(), '{"a": 1\n'
    request = Request(prompt="Hello", extra={"response_format": form}, partial=Partial(text=text, tokens=3))
    assert engine.detokenize(request_ids(engine, request)) == b"Hello" + text.encode()
    assert boundary_whitespace(engine, request) == ""
    assert generation_request(engine, request, [], top=0).begun == text.encode()
    for extra in ({}, {"response_format": {"type": "text"}}):
        plain = replace(request, extra=extra)
        assert engine.detokenize(request_ids(engine, plain)) == b'Hello{"a": 1'
        assert boundary_whitespace(engine, plain) == "\n"


async def test_a_reader_gets_the_whitespace_of_a_json_text_that_the_device_writes() -> None:
    request = Request(prompt="Hello", extra={"response_format": OBJECT}, partial=Partial(text='{"a": 1\n', tokens=3))
    endpoint = DeviceEndpoint(GrammarEngine(["\n", "}"]))
    stream, made = endpoint.open(request), ""
    while isinstance(event := await stream.receive(), TokensReceived):
        made += "".join(choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices)
    assert made == "\n}"
    await endpoint.aclose()


@pytest.mark.parametrize(("text", "begun"), [('\r\n\t {"a"', '{"a"'), ("\n ", ""), ('\u00a0{"a"', '\u00a0{"a"'), ("\v{", "\v{")])
def test_whitespace_before_json_is_none_of_its_grammar(text: str, begun: str) -> None:
    engine = GrammarEngine()
    request = Request(prompt="Hello", extra={"response_format": OBJECT}, partial=Partial(text=text, tokens=3))
    assert generation_request(engine, request, [], top=0).begun == begun.encode()
    ids = tuple(engine.tokenize(text))
    request = replace(request, partial=Partial(text=text, tokens=3, ids=ids, vocabulary=engine.info.vocabulary))
    assert generation_request(engine, request, [], top=0).begun == begun.encode()


def test_an_engine_without_grammars_refuses_and_says_so() -> None:
    with pytest.raises(ConfigError, match="response_format: expected text from this engine, got json_object"):
        generation_request(FakeEngine(), Request(prompt="Hello", extra={"response_format": OBJECT}), [], top=0)
    assert not DeviceEndpoint(FakeEngine()).capabilities.json_schema
    assert DeviceEndpoint(GrammarEngine()).capabilities.json_schema
    assert DeviceEndpoint("model.gguf").capabilities.json_schema


async def test_a_schema_that_the_device_alone_cannot_hold_to_is_refused_by_name() -> None:
    unknown = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True}}}
    async with streamco.Client(DeviceEndpoint(GrammarEngine())) as client:
        with pytest.raises(ConfigError, match=r"response_format: schema: expected .* got .*uniqueItems"):
            await client.chat.completions.create(messages=ASKED, response_format=unknown)


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    pytest.importorskip("llama_cpp")
    made = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=512, max_sequences=2))
    yield made
    made.close()


@pytest.mark.long("after the first case")
@pytest.mark.model
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 4}, {"temperature": 1.0, "seed": 5, "top_k": 0}])
async def test_a_devices_answers_are_of_the_schema(engine: LlamaEngine, options: dict[str, Any]) -> None:
    async with streamco.Client(DeviceEndpoint(engine)) as client:
        answer = await client.chat.completions.create(messages=ASKED, max_tokens=150, response_format=SCHEMA, **options)
        assert answer.choices[0].finish_reason == "stop"
        value = json.loads(answer.choices[0].message.content or "")
        assert list(value) == ["name", "km", "banks"]
        assert isinstance(value["name"], str)
        assert 1 <= value["km"] <= 9999
        assert set(value["banks"]) <= {"left", "right"}
        answer = await client.chat.completions.create(messages=ASKED, max_tokens=150, response_format=OBJECT, **options)
        text = answer.choices[0].message.content or ""
        assert answer.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)
        assert text.startswith("{")


@pytest.mark.model
async def test_an_answer_that_is_cut_ends_with_length(engine: LlamaEngine) -> None:
    async with streamco.Client(DeviceEndpoint(engine)) as client:
        answer = await client.chat.completions.create(messages=ASKED, max_tokens=5, temperature=0, response_format=SCHEMA)
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.model
async def test_an_answer_goes_on_from_its_beginning_or_is_refused(engine: LlamaEngine) -> None:
    endpoint = DeviceEndpoint(engine)
    sampling = SamplingOptions(temperature=0, max_tokens=100)
    request = Request(messages=ASKED, sampling=sampling, extra={"response_format": SCHEMA})

    async def rest_of(text: str) -> str:
        stream, made = endpoint.open(replace(request, partial=Partial(text=text, tokens=5))), ""
        while isinstance(event := await stream.receive(), TokensReceived):
            made += "".join(choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices)
        return made

    begun = '{\n  "name": "Loi'
    assert json.loads(begun + await rest_of(begun))["name"].startswith("Loi")
    with pytest.raises(EngineError, match="expected an answer that begins as asked for"):
        await rest_of("Sure! Here is")
    await endpoint.aclose()


@pytest.mark.model
async def test_ignore_eos_is_refused_with_a_format(engine: LlamaEngine) -> None:
    async with streamco.Client(DeviceEndpoint(engine)) as client:
        with pytest.raises((ConfigError, EndpointError, AllEndpointsFailed), match="ignore_eos: expected false"):
            await client.chat.completions.create(messages=ASKED, response_format=OBJECT, extra_body={"ignore_eos": True})
