"""Reasoning of the model on this machine: apart from its answer, in reports, and when another endpoint goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import streamco
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.errors import EngineError
from streamco.events import Partial, StreamEnded
from streamco.openai_types import ChatCompletionChunk
from streamco.testing import FakeEngine
from tests.client.helpers import server

HI = [{"role": "user", "content": "hello"}]
THOUGHT = ["<think>", "\n", "It", " is", " far", ".", "\n", "</think>", "\n\n", "The", " sky", " is", " blue", "."]


def engine(script: Sequence[str] = THOUGHT, *, is_open: bool = False, **options: Any) -> FakeEngine:
    """An engine of a model that thinks; ``is_open``: its template ends prompts with the tag."""
    made = FakeEngine(list(script), **options)
    made.info = replace(made.info, has_reasoning=True)
    if is_open:
        plain: Callable[..., str] = made.apply_template

        def open_template(messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
            return plain(messages, add_generation_prompt=add_generation_prompt) + " <think>\n" * add_generation_prompt

        made.apply_template = open_template  # type: ignore[method-assign]
    made.takes_grammars = True  # type: ignore[attr-defined]
    return made


async def read(made: FakeEngine, request: Request) -> tuple[str, str, list[ChatCompletionChunk], int, StreamEnded]:
    """Reasoning, content, chunks, number of tokens and end of one answer."""
    endpoint = DeviceEndpoint(made)
    stream = endpoint.open(request)
    chunks: list[ChatCompletionChunk] = []
    tokens = 0
    while not isinstance(event := await stream.receive(), StreamEnded):
        chunks += event.chunks
        tokens += event.tokens
    await endpoint.aclose()
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    return "".join(d.reasoning_content or "" for d in deltas), "".join(d.content or "" for d in deltas), chunks, tokens, event


@pytest.mark.parametrize("mode", ["instant", "thread"])
async def test_reasoning_is_apart_and_every_token_is_counted(mode: Any) -> None:
    reasoning, content, chunks, tokens, end = await read(engine(mode=mode), Request(messages=HI))
    assert (reasoning, content) == ("It is far.", "The sky is blue.")
    ids = [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()]
    assert ids == engine().tokenize("") + [engine().vocabulary.id_of(text) for text in THOUGHT]
    assert end.usage is not None
    assert tokens == end.usage.completion_tokens == len(THOUGHT)


async def test_a_template_that_opens_reasoning_needs_no_tag() -> None:
    made = await read(engine(THOUGHT[2:], is_open=True), Request(messages=HI))
    assert made[:2] == ("It is far.", "The sky is blue.")


async def test_an_answer_that_only_thinks_has_no_content() -> None:
    reasoning, content, chunks, *_ = await read(engine(THOUGHT[:5]), Request(messages=HI))
    assert (reasoning, content) == ("It is far", "")
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "request_",
    [
        Request(prompt="user: hello <think>"),
        Request(messages=HI, partial=Partial(text="Well,", ids=None, vocabulary=None, tokens=1)),
        Request(messages=HI, extra={"response_format": {"type": "json_object"}}),
    ],
)
async def test_what_is_begun_or_has_a_form_or_no_messages_is_content(request_: Request) -> None:
    reasoning, content, *_ = await read(engine(is_open=True), request_)
    assert (reasoning, content) == ("", "".join(THOUGHT))


async def test_a_model_that_does_not_think_may_write_tags() -> None:
    reasoning, content, *_ = await read(FakeEngine(THOUGHT), Request(messages=HI))
    assert (reasoning, content) == ("", "".join(THOUGHT))


@pytest.mark.parametrize("by_ids", [True, False])
def test_an_answer_goes_on_after_its_reasoning_is_closed(by_ids: bool) -> None:
    made = engine(is_open=True)
    ids = tuple(made.tokenize(" The sky"))
    partial = Partial(text=" The sky", ids=ids if by_ids else None, vocabulary=made.info.vocabulary, tokens=2)
    asked = made.detokenize(request_ids(made, Request(messages=HI, partial=partial))).decode()
    assert asked == "user: hello\nassistant: <think>\n\n</think>\n\n The sky"
    nothing = Partial(text="", ids=None, vocabulary=None, tokens=0)
    assert made.detokenize(request_ids(made, Request(messages=HI, partial=nothing))) == b"user: hello\nassistant: <think>\n"
    formed = Request(messages=HI, extra={"response_format": {"type": "json_object"}})
    assert made.detokenize(request_ids(made, formed)).endswith(b"<think>\n\n</think>\n\n")


async def test_log_probabilities_are_those_of_the_content() -> None:
    _, _, chunks, *_ = await read(engine(), Request(messages=HI, extra={"logprobs": True}))
    listed: list[Any] = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    assert [entry["token"] for each in listed for entry in each["content"]] == THOUGHT[9:]


async def test_the_client_gives_reasoning_as_it_does_for_a_server() -> None:
    async with streamco.Client(DeviceEndpoint(engine())) as client:
        whole = await client.chat.completions.create(model="streamco", messages=HI)
        stream = client.stream(HI)
        tokens = [(token.kind, token.text) async for token in stream if token.text]
    message = whole.choices[0].message
    assert (message.reasoning_content, message.content) == ("It is far.", "The sky is blue.")
    assert "".join(text for kind, text in tokens if kind == "content") == "The sky is blue."
    assert "".join(text for kind, text in tokens if kind == "reasoning") == "It is far."


@pytest.mark.parametrize("failing_after", [4, 8, 11])
async def test_a_server_goes_on_with_the_answer_alone(failing_after: int) -> None:
    """Reasoning isn't handed over, as with servers: the next endpoint gets the prompt and what the reader has of the answer."""
    rest = server([(0.0, " more")] * 20, capabilities=Capabilities(continuation="prefix"))
    device = DeviceEndpoint(engine(fail_after=failing_after))
    async with streamco.Client(device=device, server=rest, mode=Race(policy="device-first"), on_failure="migrate") as client:
        stream = client.stream(HI)
        text = "".join([token.text async for token in stream if token.kind == "content"])
    begun = "".join(THOUGHT[9:failing_after])
    assert text.startswith(begun + " more")
    assert text.replace(" more", "") == begun
    (asked,) = [each.request.partial for each in rest.streams]
    assert asked is not None
    assert asked.text == begun


async def test_a_device_that_thinks_goes_on_with_a_servers_answer() -> None:
    made = engine([" sky", " is", " blue", "."], is_open=True)
    cut = server([(0.0, "The"), (0.0, EngineError("cut"))])
    async with streamco.Client(device=DeviceEndpoint(made), server=cut, mode=Race(policy="server-first"), on_failure="migrate") as client:
        stream = client.stream(HI)
        tokens = [(token.kind, token.text) async for token in stream]
    assert "".join(text for _, text in tokens) == "The sky is blue."
    assert {kind for kind, _ in tokens} == {"content"}
    assert made.detokenize(made.requests[-1].prompt_ids).decode().endswith("<think>\n\n</think>\n\nThe")


async def test_an_error_has_the_content_so_far() -> None:
    endpoint = DeviceEndpoint(engine(fail_after=11))
    stream = endpoint.open(Request(messages=HI))
    await stream.receive()
    with pytest.raises(EngineError) as caught:
        await stream.receive()
    assert caught.value.partial == "The sky"
    await endpoint.aclose()
