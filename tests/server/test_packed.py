"""Packed token ids in requests: what they stand behind, and what is refused by the field's name."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from streamco.server.packed import unpack_ids
from streamco.server.http_errors import RequestError
from streamco.testing import FakeEngine
from streamco.wire.token_frames import TokenCodec
from tests.server.support import CHAT, HELLO, TEXT, running

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
        (b"XX" + FRAME[2:], "expected it to begin"),
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


async def test_the_model_card_tells_what_a_frame_needs() -> None:
    async with running() as server, server.client.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert TokenCodec(card["vocabulary"], card["vocabulary_size"]).encode(IDS) == FRAME


async def test_ids_that_end_inside_a_code_point_have_it_shown_whole() -> None:
    """The engine is told which bytes are open; see ``engines.text`` for what it makes of them."""

    class Bytes(FakeEngine):
        def detokenize(self, ids: Any) -> bytes:
            return bytes(ids)

    engine = Bytes()
    async with running(engine) as server:
        status, _ = await server.post(TEXT, {"prompt": list("a🐈".encode()[:3])})
    assert (status, engine.requests[-1].opened) == (200, b"\xf0\x9f")
