"""Leniently decodes chunks that don't fit OpenAI's types.

The typed decoder refuses a whole chunk if one field has another type. The functions here decode without types. They keep all fields that
they understand, and undeclared fields too. That costs 15 to 30 times as much, but only for such chunks.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    CustomDelta,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
    with_further,
)
from streamco.wire.completeness import read_reason
from streamco.wire.openai.further_fields import unknown_fields
from streamco.wire.text_halves import whole_values

__all__ = [
    "CumulativeText",
    "build_chunk",
    "build_usage",
    "check_depth",
    "decode_object",
    "find_usage",
    "has_many_brackets",
    "is_plausible",
    "newer_usage",
]

_MAX_LEVELS = 100  # real answers have ten; walking a value recurses once per level, on the caller's stack
_MAX_DIGITS = 18  # integers of up to 18 digits fit 64 bits

_Details = TypeVar("_Details", PromptTokensDetails, CompletionTokensDetails)


def decode_object(data: bytes, *, has_pieces: bool = False) -> Any:
    """Decode JSON that may hold invalid UTF-8, lone surrogates, NaN or raw control characters.

    Args:
        data: the JSON to decode.
        has_pieces: True if the JSON is an event of a stream. Halves of characters in its pieces of text are then kept, and others become
            U+FFFD.

    Raises:
        ValueError: the data isn't JSON at all, or is nested more than 100 levels deep.
    """
    try:
        value = check_depth(_decode_strict(data), data)
        if value is None:
            value = check_depth(json.loads(data.decode("utf-8", "replace"), strict=False, parse_int=_read_integer), data)
            return whole_values(value, has_pieces=has_pieces)
        return value
    except RecursionError as exc:
        raise _too_deep() from exc


def _decode_strict(data: bytes) -> Any:
    """Return the decoded value, or None if it is null or the JSON is faulty."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _read_integer(digits: str) -> int | float:
    """Return an integer, or a float if there are many digits, because ``int`` refuses thousands of digits and no answer needs them."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def check_depth(value: Any, data: bytes) -> Any:
    """Return a decoded value unless it is nested too deep. This is checked only if its JSON has enough brackets.

    Raises:
        ValueError: the value is nested more than 100 levels deep.
    """
    if not has_many_brackets(data):
        return value
    level = [value]
    for _ in range(_MAX_LEVELS + 1):
        holders = [item for item in level if isinstance(item, dict | list)]
        level = [item for holder in holders for item in (holder.values() if isinstance(holder, dict) else holder)]
    if level:
        raise _too_deep()
    return value


def has_many_brackets(data: bytes) -> bool:
    """Return True if the JSON has enough brackets to be nested more than 100 levels deep."""
    return data.count(b"[") + data.count(b"{") > _MAX_LEVELS


def _too_deep() -> ValueError:
    return ValueError(f"expected JSON of at most {_MAX_LEVELS} levels, got more")


def build_chunk(value: dict[str, Any]) -> ChatCompletionChunk:
    """Build a chunk from a decoded object. Chat deltas, whole messages and the ``text`` of legacy completions all become deltas."""
    choices = value.get("choices")
    chunk = ChatCompletionChunk(
        id=_text(value.get("id")) or "",
        choices=[_build_choice(choice) for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else [],
        created=_count(value.get("created")),
        model=_text(value.get("model")) or "",
        usage=find_usage(value),
        system_fingerprint=_text(value.get("system_fingerprint")),
        service_tier=_text(value.get("service_tier")),
        provider=value.get("provider"),
        obfuscation=value.get("obfuscation"),
        p=value.get("p"),
        stream_options=value.get("stream_options"),
        moderation=value.get("moderation"),
    )
    return with_further(chunk, unknown_fields(ChatCompletionChunk, value))


_MAX_COUNT = 1 << 24  # tokens; the longest contexts have 10 million


def find_usage(value: dict[str, Any]) -> CompletionUsage | None:
    """Find a decoded chunk's ``usage``, which may also be in ``x_groq`` (Groq) or in a choice (Moonshot). Returns None if there is none.

    A usage with both counts is preferred to a usage in which one count is zero.
    """
    choices = value.get("choices")
    holders = [value, value.get("x_groq"), *(choices if isinstance(choices, list) else ())]
    found = [usage for holder in holders if (usage := build_usage(_get(holder, "usage"))) is not None]
    return next((usage for usage in found if usage.prompt_tokens and usage.completion_tokens), found[0] if found else None)


def is_plausible(usage: CompletionUsage) -> bool:
    """Return False if a count is below 0 or above 16 million, which no request has. The usage is then estimated instead."""
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if min(prompt, completion, total) < 0 or max(prompt, completion, total) > _MAX_COUNT:
        return False
    for details in (usage.prompt_tokens_details, usage.completion_tokens_details):
        if details is not None:
            counts = [getattr(details, name) for name in details.__struct_fields__]
            if not all(0 <= count <= _MAX_COUNT for count in counts if isinstance(count, int | float)):
                return False
    return True


def newer_usage(known: CompletionUsage | None, new: CompletionUsage | None) -> CompletionUsage | None:
    """Return the new usage if it is plausible and has a count above zero, otherwise None.

    A zero that comes after a count isn't a correction but means that the server doesn't count. So the known count replaces it in ``new``.
    """
    if new is None or not is_plausible(new) or not (new.prompt_tokens or new.completion_tokens):
        return None
    if known is not None and not (new.prompt_tokens and new.completion_tokens):
        new.prompt_tokens = new.prompt_tokens or known.prompt_tokens
        new.completion_tokens = new.completion_tokens or known.completion_tokens
        new.total_tokens = new.prompt_tokens + new.completion_tokens
    return new


def build_usage(value: Any) -> CompletionUsage | None:
    """Build the token counts from a decoded ``usage``. Returns None if it isn't an object, has no counts, or isn't plausible.

    The Responses and Messages APIs, and some servers of the chat API, call the two counts ``input_tokens`` and ``output_tokens``.
    """
    if not isinstance(value, dict):
        return None
    if any(isinstance(count, int | float) and not 0 <= count <= _MAX_COUNT for name, count in value.items() if name.endswith("_tokens")):
        return None
    prompt, completion = _first_count(value, "prompt_tokens", "input_tokens"), _first_count(value, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    usage = CompletionUsage(
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        total_tokens=_count(value.get("total_tokens")) or (prompt or 0) + (completion or 0),
        prompt_tokens_details=_details(PromptTokensDetails, value.get("prompt_tokens_details") or value.get("input_tokens_details")),
        completion_tokens_details=_details(
            CompletionTokensDetails, value.get("completion_tokens_details") or value.get("output_tokens_details")
        ),
        cost=value.get("cost"),
    )
    return with_further(usage, unknown_fields(CompletionUsage, value, excluding=_RENAMED)) if is_plausible(usage) else None


_RENAMED = ("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")


def _first_count(value: dict[str, Any], *names: str) -> int | None:
    """Return the first non-zero count under one of several names, zero if all counts are zero, or None if there are none."""
    counts = [_count(count) for name in names if (count := value.get(name)) is not None and isinstance(count, int | float | str)]
    return next((count for count in counts if count), counts[0] if counts else None)


def _details(kind: type[_Details], value: Any) -> _Details | None:
    if not isinstance(value, dict):
        return None
    counts = {name: _count(value[name]) for name in kind.__struct_fields__ if isinstance(value.get(name), int | float)}
    return with_further(kind(**counts), unknown_fields(kind, value))


def _build_choice(value: dict[str, Any]) -> ChunkChoice:
    delta, read = value.get("delta"), "delta"
    if not isinstance(delta, dict):
        delta, read = value.get("message"), "message"  # a whole message: Perplexity, and answers that were not streamed
    if not isinstance(delta, dict):
        delta, read = {"content": value.get("text")}, "text"  # legacy completions
    token_ids = value.get("token_ids")
    choice = ChunkChoice(
        delta=_build_delta(delta),
        index=_count(value.get("index")),
        finish_reason=read_reason(value.get("finish_reason")),
        logprobs=value.get("logprobs"),
        token_ids=token_ids if isinstance(token_ids, list) and all(type(token) is int for token in token_ids) else None,
        native_finish_reason=value.get("native_finish_reason"),
        content_filter_results=value.get("content_filter_results"),
        stop_reason=value.get("stop_reason"),
        matched_stop=value.get("matched_stop"),
    )
    return with_further(choice, unknown_fields(ChunkChoice, value, excluding=(read,)))


def _build_delta(value: dict[str, Any]) -> ChoiceDelta:
    content, thinking = _split_content(value.get("content"))
    reasoning_content = _text(value.get("reasoning_content"))
    calls = value.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    delta = ChoiceDelta(
        content=content,
        role=_text(value.get("role")),
        refusal=_text(value.get("refusal")),
        reasoning_content=thinking if reasoning_content is None else reasoning_content,
        reasoning=_text(value.get("reasoning")),
        tool_calls=[_build_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else None,
        function_call=_build_function(value.get("function_call")),
        reasoning_details=value.get("reasoning_details"),
        channel=value.get("channel"),
        audio=value.get("audio"),
    )
    return with_further(delta, unknown_fields(ChoiceDelta, value))


def _split_content(value: Any) -> tuple[str | None, str | None]:
    """Return the text and the thinking in ``content``, which may be a list of parts (Mistral: ``text`` and nested ``thinking`` parts)."""
    if not isinstance(value, list):
        return _text(value), None
    text: list[str] = []
    thinking: list[str] = []
    for part in value:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            if "thinking" in part:
                thinking.append("".join(piece or "" for piece in _split_content(part["thinking"])))
            else:
                text.append(_text(part.get("text")) or "")
    return "".join(text) or None, "".join(thinking) or None


def _build_call(value: dict[str, Any]) -> ToolCallDelta:
    call = ToolCallDelta(
        index=_index(value.get("index")),
        id=_text(value.get("id")),
        type=_text(value.get("type")),
        function=_build_function(value.get("function")),
        custom=_build_custom(value.get("custom")),
    )
    return with_further(call, unknown_fields(ToolCallDelta, value))


def _build_function(value: Any) -> FunctionDelta | None:
    if not isinstance(value, dict):
        return None
    function = FunctionDelta(name=_text(value.get("name")), arguments=_text_or_json(value.get("arguments")))
    return with_further(function, unknown_fields(FunctionDelta, value))


def _build_custom(value: Any) -> CustomDelta | None:
    if not isinstance(value, dict):
        return None
    custom = CustomDelta(name=_text(value.get("name")), input=_text_or_json(value.get("input")))
    return with_further(custom, unknown_fields(CustomDelta, value))


def _text_or_json(value: Any) -> str | None:
    """Return the value if it is a string. An object or a list (Ollama's arguments) is written as JSON."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else _text(value)


def _text(value: Any) -> str | None:
    """Return the value if it is a string. A number or boolean is written as JSON, and anything else becomes None."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else None


def _count(value: Any) -> int:
    """Return the integer that is written as 3, 3.0 or "3", or 0 for anything else and for impossibly large numbers."""
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    return int(value) if isinstance(value, int | float) and abs(value) < 10**_MAX_DIGITS else 0


def _index(value: Any) -> int | None:
    """Return the index that is written as 3, 3.0 or "3", or None for anything else, so that the delta has no index."""
    is_number = value.isascii() and value.isdigit() if isinstance(value, str) else type(value) in {int, float}
    return _count(value) if is_number else None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


class CumulativeText:
    """Turns chunks whose content repeats the text so far into chunks with only the new text.

    Text that was passed on can't be taken back. If the server revises its text, nothing is passed on until a chunk continues the text that
    was passed on before. Some servers send only new text in the same form. If an answer's second chunk doesn't repeat the first, all its
    chunks count as new text.
    """

    def __init__(self) -> None:
        self._passed: dict[int, str] = {}  # text passed on so far, by choice
        self._repeats: bool | None = None  # None if not known yet

    @property
    def has_begun(self) -> bool:
        """True if any text of the first choice has been passed on."""
        return 0 in self._passed

    def begin(self, text: str) -> None:
        """Set the text that the first choice got from real deltas before the server began to repeat it."""
        self._passed[0] = text
        self._repeats = True if text else None

    def keep_new(self, chunk: ChatCompletionChunk) -> None:
        """Cut the content of a chunk's choices, which is the whole text so far, down to the new text."""
        for choice in chunk.choices:
            content = choice.delta.content
            if not content:
                continue
            known = self._passed.get(choice.index, "")
            if known and self._repeats is None:
                self._repeats = content.startswith(known)
            if self._repeats is False:
                continue
            if self._repeats and "\ud800" <= content[-1] <= "\udbff":  # half a character, which will be repeated
                content = choice.delta.content = content[:-1]
            if content.startswith(known):
                self._passed[choice.index] = content
                choice.delta.content = content[len(known) :]
            else:
                choice.delta.content = None
