"""Prompts as tokens, within the server's limits."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streamco.errors import EngineError
from streamco.server.http.errors import RequestError
from streamco.server.http.middleware import JSON
from streamco.server.options import ServeOptions
from streamco.server.prompts import build_generation, render, tokenize_request, unpack_ids
from streamco.server.requests import ChatRequest, CompletionRequest, parse
from streamco.testing import FakeEngine
from streamco.wire.openai.msgpack_body import MSGPACK, encode_msgpack
from streamco.wire.token_frames import TokenCodec
from tests.server.support import CHAT, HELLO, TEXT, running

CONTEXT = 20


class BosEngine(FakeEngine):
    """A model that wants a begin token."""

    begin = 7

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        return ([self.begin] if bos else []) + super().tokenize(text, special=special)


class RefusingEngine(FakeEngine):
    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        raise EngineError("chat template: expected alternating roles")


class StrippingEngine(FakeEngine):
    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        return "".join(f"<{message['content'].strip()}>" for message in messages)


class ForgetfulEngine(FakeEngine):
    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        return str(messages[0]["content"])


def text(prompt: Any, **fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": prompt, **fields}).encode(), CompletionRequest)


def chat(*contents: str, **fields: Any) -> ChatRequest:
    messages = [{"role": "user" if number % 2 == 0 else "assistant", "content": content} for number, content in enumerate(contents)]
    return parse(json.dumps({"messages": messages, **fields}).encode(), ChatRequest)


def shown(engine: FakeEngine, request: ChatRequest | CompletionRequest) -> str:
    return engine.detokenize(tokenize_request(engine, request)).decode()


async def limit(request: ChatRequest | CompletionRequest, **options: Any) -> int | None:
    generation = await build_generation(FakeEngine(context_tokens=CONTEXT), request, ServeOptions(**options), 10)
    return generation.sampling.max_tokens


def test_messages_go_through_the_chat_template() -> None:
    assert shown(FakeEngine(), chat("Hello")) == "user: Hello\nassistant:"


def test_without_a_generation_prompt_the_answer_is_not_opened() -> None:
    assert shown(FakeEngine(), chat("Hello", add_generation_prompt=False)).strip() == "user: Hello"


def test_a_final_message_can_be_continued() -> None:
    assert shown(FakeEngine(), chat("Say it", "It begins", continue_final_message=True)) == "user: Say it\nassistant: It begins"


def test_a_final_message_is_continued_though_the_template_strips_it() -> None:
    assert shown(StrippingEngine(), chat("Say it", " It begins ", continue_final_message=True)) == "<Say it>< It begins "


@pytest.mark.parametrize("content", ["", " ", ">", "<", "\ue000", "\n"])
def test_a_final_message_is_not_mistaken_for_what_the_template_writes_after_it(content: str) -> None:
    request = chat("Say it", content, continue_final_message=True)
    assert render(StrippingEngine(), request) == "<Say it><"
    assert shown(StrippingEngine(), request) == f"<Say it><{content}"
    assert request.messages[-1]["content"] == content


def test_a_final_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(RequestError, match="continue_final_message: expected the chat template to show the last message"):
        render(ForgetfulEngine(), chat("Say it", "It begins", continue_final_message=True))


def test_text_and_ids_are_the_same_prompt() -> None:
    engine = FakeEngine()
    ids = engine.tokenize("Hello there")
    assert tokenize_request(engine, text("Hello there")) == tokenize_request(engine, text(ids)) == ids


def test_a_begin_token_comes_first_and_once() -> None:
    engine = BosEngine()
    engine.begin = 60_000  # no word's id: fake engines share a vocabulary, which other tests fill
    ids = FakeEngine().tokenize("Hello there")
    assert tokenize_request(engine, text("Hello there")) == [60_000, *ids]
    assert tokenize_request(engine, chat("Hello"))[0] == 60_000
    engine.begin = ids[0]
    assert tokenize_request(engine, text("Hello there")) == ids
    assert tokenize_request(engine, text([5, 6])) == [5, 6]


@pytest.mark.parametrize("prompt", ["", [[]], [-1, 5], [5, 1 << 16]])
def test_no_tokens_and_foreign_ids_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError, match="prompt") as caught:
        tokenize_request(FakeEngine(), text(prompt))
    assert caught.value.status == 400


def test_messages_the_template_refuses_are_the_clients_fault() -> None:
    with pytest.raises(RequestError, match="alternating roles") as caught:
        tokenize_request(RefusingEngine(), chat("Hello"))
    assert (caught.value.status, caught.value.param) == (400, "messages")


async def test_a_long_body_is_tokenised_off_the_loop() -> None:
    generation = await build_generation(FakeEngine(), text("Hello there"), ServeOptions(), 1 << 20)
    assert len(generation.prompt_ids) == 2


async def test_the_answer_is_limited_by_request_server_and_context_whichever_is_least() -> None:
    assert await limit(text("one two", max_tokens=5)) == 5
    assert await limit(text("one two", max_tokens=500)) == CONTEXT - 2
    assert await limit(text("one two")) == CONTEXT - 2
    assert await limit(text("one two"), max_tokens=7) == 7
    assert await limit(chat("one", max_completion_tokens=3, max_tokens=9), max_tokens=7) == 3


async def test_more_than_the_servers_limit_is_refused_by_the_name_the_client_used() -> None:
    with pytest.raises(RequestError, match="max_completion_tokens: expected at most 7, got 8"):
        await limit(chat("one", max_completion_tokens=8), max_tokens=7)


@pytest.mark.parametrize(("words", "options"), [(CONTEXT, {}), (6, {"max_prompt_tokens": 5})])
async def test_a_prompt_that_is_too_long_is_refused_with_openais_code(words: int, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        await limit(text(" ".join(["word"] * words)), **options)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "prompt")


async def test_log_probabilities_ask_the_engine_for_as_many_tokens_as_are_sent_and_for_one_at_least() -> None:
    for request, top in ((text("a"), 0), (text("a", logprobs=0), 1), (chat("a", logprobs=True, top_logprobs=2), 2), (chat("a"), 0)):
        assert (await build_generation(FakeEngine(), request, ServeOptions(), 10)).top == top


async def test_ignoring_the_end_token_is_passed_on() -> None:
    assert (await build_generation(FakeEngine(), text("a", ignore_eos=True), ServeOptions(), 10)).ignore_eos
    assert not (await build_generation(FakeEngine(), text("a"), ServeOptions(), 10)).ignore_eos


async def test_prefill_only_reaches_the_engine() -> None:
    assert (await build_generation(FakeEngine(), text("a", prefill_only=True), ServeOptions(), 10)).prefill_only
    assert not (await build_generation(FakeEngine(), text("a"), ServeOptions(), 10)).prefill_only


# Packed token ids in requests: what they stand behind, and what is refused by the field's name


ENGINE = FakeEngine()
CODEC = TokenCodec(ENGINE.info.vocabulary, ENGINE.info.vocabulary_size)
IDS = ENGINE.tokenize("It begins here")
FRAME = CODEC.encode(IDS)


def packed(frame: bytes = FRAME) -> str:
    return b64encode(frame).decode()


def told(engine: FakeEngine) -> str:
    """The prompt that the engine got last."""
    return engine.detokenize(engine.requests[-1].prompt_ids).decode()


def test_a_frame_gives_its_ids() -> None:
    assert unpack_ids(ENGINE, "prompt_tokens_packed", FRAME) == IDS


async def test_a_beginning_stands_behind_the_rendered_template() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, body = await server.post(CHAT, {**HELLO, "continuation_tokens_packed": packed()})
    assert status == 200
    assert told(engine) == "user: Hello\nassistant:It begins here"
    assert body["usage"]["prompt_tokens"] == len(engine.requests[-1].prompt_ids)


@pytest.mark.parametrize("prompt", ["Once upon", ENGINE.tokenize("Once upon")])
async def test_a_beginning_stands_behind_a_prompt_of_text_or_ids(prompt: Any) -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, _ = await server.post(TEXT, {"prompt": prompt, "continuation_tokens_packed": packed()})
    assert (status, told(engine)) == (200, "Once uponIt begins here")


async def test_a_prompt_may_be_packed_too() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, _ = await server.post(TEXT, {"prompt_tokens_packed": packed(), "continuation_tokens_packed": packed(CODEC.encode([]))})
    assert (status, list(engine.requests[-1].prompt_ids)) == (200, IDS)


async def test_a_frame_from_another_vocabulary_is_refused_with_a_code_of_its_own() -> None:
    other = TokenCodec("9:0000000000000000", CODEC.vocabulary_size).encode(IDS)
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, "continuation_tokens_packed": packed(other)})
    error = body["error"]
    assert (status, error["param"], error["code"]) == (400, "continuation_tokens_packed", "vocabulary_mismatch")
    assert error["type"] == "invalid_request_error"
    assert "expected vocabulary" in error["message"]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "expected a header"),
        (b"XX" + FRAME[2:], "must begin with"),
        (FRAME[:2] + b"\x02" + FRAME[3:], "expected version"),
        (FRAME[:12], "expected a header"),
        (FRAME[:-1], "expected"),
        (FRAME + b"\0", "more"),
        (FRAME[:16] + b"\0\0\0\0" + FRAME[20:], "checksum"),
    ],
)
@pytest.mark.parametrize("field", ["prompt_tokens_packed", "continuation_tokens_packed"])
async def test_a_damaged_frame_is_refused_by_the_fields_name(field: str, frame: bytes, reason: str) -> None:
    async with running() as server:
        body = {field: packed(frame), **({"prompt": "x"} if field.startswith("continuation") else {})}
        status, answer = await server.post(TEXT, body)
    error = answer["error"]
    assert (status, error["param"], error["code"]) == (400, field, None)
    assert error["message"].startswith(f"{field}: token frame")
    assert reason in error["message"]


async def test_a_frame_that_is_not_base64_is_refused() -> None:
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, "continuation_tokens_packed": "*"})
    assert (status, body["error"]["param"]) == (400, "continuation_tokens_packed")


def test_the_error_keeps_its_cause() -> None:
    with pytest.raises(RequestError) as caught:
        unpack_ids(ENGINE, "prompt_tokens_packed", b"nonsense")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_beginning_in_messagepack_is_the_same_in_less(path: str) -> None:
    engine = FakeEngine()
    fields = HELLO if path == CHAT else {"prompt": "Hello"}
    async with running(engine) as server:
        for media_type, body in ((JSON, json.dumps({**fields, "continuation_tokens_packed": packed()}).encode()),
                                 (MSGPACK, encode_msgpack({**fields, "continuation_tokens_packed": CODEC.encode_short(IDS)}))):  # fmt: skip
            status, _ = await server.post(path, body, **{"Content-Type": media_type})
            assert status == 200
    assert engine.requests[0].prompt_ids == engine.requests[1].prompt_ids


@pytest.mark.parametrize("frame", [b"", CODEC.encode_short(IDS)[:-1], CODEC.encode_short(IDS)[:3] + b"?", b"\xff", 5])
async def test_a_damaged_beginning_in_messagepack_is_refused_by_the_fields_name(frame: Any) -> None:
    async with running() as server:
        body = encode_msgpack({**HELLO, "continuation_tokens_packed": frame})
        status, answer = await server.post(CHAT, body, **{"Content-Type": MSGPACK})
    assert (status, answer["error"]["param"]) == (400, "continuation_tokens_packed")


async def test_the_model_card_tells_what_a_frame_needs() -> None:
    async with running() as server, server.client.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert TokenCodec(card["vocabulary"], card["vocabulary_size"]).encode(IDS) == FRAME
    assert card["media_types"] == [JSON, MSGPACK]


async def test_ids_that_end_inside_a_code_point_have_it_shown_whole() -> None:
    """The engine is told which bytes are open; see ``engines.text`` for what it makes of them."""

    class Bytes(FakeEngine):
        def detokenize(self, ids: Any) -> bytes:
            return bytes(ids)

    engine = Bytes()
    async with running(engine) as server:
        status, _ = await server.post(TEXT, {"prompt": list("a🐈".encode()[:3])})
    assert (status, engine.requests[-1].pending_bytes) == (200, b"\xf0\x9f")


async def test_penalties_and_biases_reach_the_engine() -> None:
    asked = chat("hi", frequency_penalty=1, presence_penalty=0.5, logit_bias={"5": -100})
    sampling = (await build_generation(FakeEngine(), asked, ServeOptions(), 10)).sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.logit_bias) == (1, 0.5, ((5, -100),))


async def test_a_bias_for_a_token_that_the_model_does_not_have_is_refused_by_name() -> None:
    engine = FakeEngine()
    asked = chat("hi", logit_bias={str(engine.info.vocabulary_size): 1})
    with pytest.raises(RequestError, match="expected token ids from 0") as caught:
        await build_generation(engine, asked, ServeOptions(), 10)
    assert caught.value.param == "logit_bias"
