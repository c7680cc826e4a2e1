"""Reading a mutant with the parsers of ``wire``, in pieces, and comparing what they say with the oracle's reading."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from streamco.config import Limits
from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, ToolCall
from streamco.wire.answer_parser import AnswerParser
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from tests.mutants.mutant import Mutant
from tests.mutants.oracle import read_answer
from tests.mutants.oracle.reading import Call, Reading

__all__ = ["SMALL_BYTES", "WAYS", "differences", "find_differences", "observe", "pieces_of", "reading_of", "right_reading"]

Parser = AnswerParser | ChatStreamParser

SMALL_BYTES = 20_000
"""Bodies up to this size go byte by byte, larger ones in pieces of 64 KiB."""

WAYS = ("whole", "bytes", "random")
"""How a body is cut into reads."""

_PIECE = 64 << 10
_LIMITS = Limits()
_REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking")


def make_parser(api: str, *, is_lenient: bool = False) -> Parser:
    """Return the parser of an API; ``is_lenient``: one of the chat API that decodes each event without types."""
    if api == "responses":
        return ResponseStreamParser(limits=_LIMITS)
    if api == "messages":
        return MessageStreamParser(limits=_LIMITS)
    parser = ChatStreamParser(limits=_LIMITS, choices=1)
    if is_lenient:
        parser._extended.usual = _refuse
    return parser


def _refuse(_payload: bytes) -> ChatCompletionChunk:
    raise msgspec.DecodeError("decoded without types")


def pieces_of(body: bytes, way: str, seed: int) -> Iterable[bytes]:
    """Cut a body: "whole", "bytes" or "random"."""
    match way:
        case "whole":
            return [body] if body else []
        case "bytes":
            size = 1 if len(body) <= SMALL_BYTES else _PIECE
            return (body[start : start + size] for start in range(0, len(body), size))
    return _random_pieces(body, random.Random(seed))


def _random_pieces(body: bytes, rng: random.Random) -> Iterator[bytes]:
    start = 0
    longest = max(2, len(body) // rng.choice([3, 10, 40]))
    while start < len(body):
        end = start + rng.randint(1, longest)
        yield body[start:end]
        start = end


def observe(mutant: Mutant, pieces: Iterable[bytes], *, is_lenient: bool = False) -> Reading:
    """Return what the parser makes of a mutant, as the endpoint would use it."""
    parser = make_parser(mutant.api, is_lenient=is_lenient)
    chunks: list[ChatCompletionChunk] = []
    error: EndpointError | None = None
    for piece in pieces:
        chunks += parser.feed(piece)
        if parser.is_done or parser.error is not None:
            break
    if not parser.is_done and parser.error is None and mutant.ends == "clean":
        try:
            chunks += parser.close()
        except EndpointError as failure:
            error = failure
    elif mutant.ends != "clean" and not parser.is_done and parser.error is None and parser.is_complete:
        chunks += parser.finish()
        return reading_of(chunks, is_whole=True, error=None, usage=parser.usage, reason=parser.finish_reason)
    error = error or parser.error
    is_whole = error is None and (parser.is_complete or parser.is_done)
    assert error is None or error.partial == parser.partial_text()
    return reading_of(chunks, is_whole=is_whole, error=error, usage=parser.usage, reason=parser.finish_reason)


def reading_of(chunks: list[ChatCompletionChunk], *, is_whole: bool, error: Exception | None, usage: Any, reason: str | None) -> Reading:
    """Return what a reader of chunks has read."""
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    logprobs = [choice.logprobs for chunk in chunks for choice in chunk.choices if isinstance(choice.logprobs, dict)]
    choices = assemble(chunks).choices
    calls = choices[0].message.tool_calls or [] if choices else []
    return Reading(
        text="".join(delta.content or "" for delta in deltas),
        reasoning="".join(_reasoning(delta) for delta in deltas),
        refusal="".join(delta.refusal or "" for delta in deltas),
        calls=tuple(_call(call, is_whole=is_whole) for call in calls),
        reason=reason,
        prompt_tokens=(usage.prompt_tokens or None) if usage is not None else None,
        completion_tokens=(usage.completion_tokens or None) if usage is not None else None,
        logprobs=tuple(entry["logprob"] for each in logprobs for entry in each.get("content") or ()),
        whole=is_whole,
        word="" if error is None else str(error),
    )


def _reasoning(delta: Any) -> str:
    texts = (getattr(delta, name, None) for name in _REASONING)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _call(call: ToolCall, *, is_whole: bool) -> Call:
    if call.custom is not None:
        return Call(call.custom.name, call.custom.input, call.id, is_custom=True)
    assert call.function is not None
    arguments = call.function.arguments
    return Call(call.function.name, "{}" if is_whole and not arguments.strip() else arguments, call.id)


def right_reading(mutant: Mutant) -> Reading:
    """Return the oracle's reading."""
    return read_answer(mutant.body, mutant.api, status=mutant.status, ends=mutant.ends)


def differences(expected: Reading, got: Reading, *, api: str) -> list[str]:
    """Return in which fields a reading differs from the oracle's, with both values."""
    found = []

    def check(name: str, wanted: Any, had: Any, *, are_same: Callable[[Any, Any], bool] = lambda a, b: bool(a == b)) -> None:
        if not are_same(wanted, had):
            found.append(f"{name}: expected {_shown(wanted)}, got {_shown(had)}")

    check("whole", expected.whole, got.whole)
    check("text", expected.text, got.text)
    # The parts of a summary are paragraphs; the oracle joins them with nothing between.
    blank = "\n\n" if api == "responses" else ""
    check(
        "reasoning",
        expected.reasoning.replace(blank, "") if blank else expected.reasoning,
        got.reasoning.replace(blank, "") if blank else got.reasoning,
    )
    check("refusal", expected.refusal, got.refusal)
    check("number of calls", len(expected.calls), len(got.calls))
    for wanted, had in zip(expected.calls, got.calls, strict=False):
        check("name", wanted.name, had.name)
        check("custom", wanted.is_custom, had.is_custom)
        is_begun = wanted.arguments or had.arguments != "{}" or expected.whole  # a call without arguments may end within a broken answer
        check("arguments", wanted.arguments if is_begun else "{}", had.arguments, are_same=_same_text if wanted.is_exact else _same_json)
        if wanted.id is not None:
            check("id", wanted.id, had.id)
    check("logprobs", expected.logprobs, got.logprobs)
    if expected.whole and got.whole:
        if expected.reason is not None:
            check("reason", expected.reason, got.reason)
        check("prompt tokens", expected.prompt_tokens, got.prompt_tokens)
        check("completion tokens", expected.completion_tokens, got.completion_tokens)
    if expected.word and expected.word not in got.word:
        check("the server's word", expected.word, got.word)
    return found


def _same_text(wanted: str, had: str) -> bool:
    return wanted == had


def _same_json(wanted: str, had: str) -> bool:
    try:
        return bool(json.loads(wanted) == json.loads(had))
    except ValueError:
        return wanted.replace(" ", "") == had.replace(" ", "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-80:]}"


def find_differences(mutant: Mutant, *, ways: Sequence[str] = WAYS) -> list[str]:
    """Read a mutant in several ways with each decoder, and return what differs from the oracle; [] if nothing does."""
    expected = right_reading(mutant)
    for way in ways:
        for is_lenient in (False, True) if mutant.api == "chat" else (False,):
            got = observe(mutant, pieces_of(mutant.body, way, mutant.seed), is_lenient=is_lenient)
            if found := differences(expected, got, api=mutant.api):
                return [f"{way}, {'without types' if is_lenient else 'typed'}: {each}" for each in found]
    return []
