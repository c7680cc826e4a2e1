"""Encodes an answer in the form of Anthropic's Messages API: a ``message`` object, or a stream of events that build it up.

Source: Anthropic API reference, messages and messages/streaming. Reasoning becomes a ``thinking`` block without a signature, and a
refusal becomes text. The prompt's length is only known at the end, so ``message_start`` says 0 and ``message_delta`` has the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from streamco.openai_types import ChatCompletion, ChatCompletionChunk, CompletionUsage
from streamco.wire.answer_encoder import KEEPALIVE, AnswerFormError, CallIds, Failure, encode, named_event
from streamco.wire.messages_api.errors import message_error
from streamco.wire.openai.answer_parts import AnswerPart, AnswerParts, PartBegan, PartEnded, PartEvent, message_parts

__all__ = ["MessageEvents", "message_usage"]

Json = dict[str, Any]

_PING = named_event("ping", {"type": "ping"})
_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def message_usage(usage: CompletionUsage | None) -> Json:
    """Return the usage in this API's form, which counts cached prompt tokens separately. ``is_estimated`` is only included if true."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    details = usage.prompt_tokens_details
    cached = min((details and details.cached_tokens) or 0, usage.prompt_tokens)
    shown: Json = {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
    return shown | ({"is_estimated": True} if getattr(usage, "is_estimated", False) else {})


class MessageEvents:
    """Encodes one answer as a message of this API; see ``AnswerEncoder``.

    Args:
        name: random letters and digits, from which the message's id is made.
        model: name of the model, sent if no chunk names one.
        created: ignored, because this API's answers have no such field.
        skips_reasoning: True to leave out reasoning.
    """

    def __init__(self, *, name: str, model: str, created: int, skips_reasoning: bool = False) -> None:
        self._name = name
        self._model = model
        self._skips_reasoning = skips_reasoning
        self._parts = AnswerParts(skips_reasoning=skips_reasoning, is_sequential=True)
        self._reason: str | None = None
        self._has_begun = False
        self._call_ids = CallIds(f"toolu_{name}")

    @property
    def keepalive(self) -> bytes:
        """A ``ping`` event, or a comment if ``message_start`` hasn't been sent, because readers expect that event first."""
        return _PING if self._has_begun else KEEPALIVE

    def opening(self) -> bytes:
        """Return the event that begins a message, or b"" when called again."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return _emit("message_start", message=self._message([], None, message_usage(None)))

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Encode a chunk as events, after the opening if that hasn't been sent."""
        if not self._has_begun:
            self._model = chunk.model or self._model
        return self.opening() + self._encode(self._parts.add(chunk))

    def ending(self, reason: str | None) -> bytes:
        """Return the events that end the open content blocks."""
        self._reason = self._parts.finish_reason or reason
        return self.opening() + self._encode(self._parts.end())

    def done(self) -> bytes:
        """Return the events with the stop reason and the usage, and the end event."""
        stop = self._parts.matched_stop
        delta = {"stop_reason": _stop_reason(self._reason, stop, self._parts.begun), "stop_sequence": stop}
        return _emit("message_delta", delta=delta, usage=message_usage(self._parts.usage)) + _emit("message_stop")

    def failing(self, failure: Failure) -> bytes:
        """Return the event that reports a failure. Text and whole calls that waited for the end of another call come before it."""
        return self._encode(self._parts.fail()) + named_event("error", message_error(failure.status, str(failure), code=failure.code))

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Encode a whole answer as one message object.

        Raises:
            AnswerFormError: the arguments of a tool call aren't a JSON object, although the answer ended by itself.
        """
        choice = answer.choices[0] if answer.choices else None
        self._model = answer.model or self._model
        parts: list[AnswerPart] = []
        stop = None
        if choice is not None:
            reason = choice.finish_reason or reason
            parts = message_parts(choice.message, skips_reasoning=self._skips_reasoning)
            stop = next((each for each in (choice.stop_reason, choice.matched_stop) if isinstance(each, str) and each), None)
        content = [self._block(part, _input(part, is_cut=reason == "length")) for part in parts]
        named = _stop_reason(reason, stop, parts)
        return encode(self._message(content, named, message_usage(answer.usage)) | {"stop_sequence": stop})

    def _message(self, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
        return {
            "id": f"msg_{self._name}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _encode(self, events: list[PartEvent]) -> bytes:
        return b"".join([self._encode_one(event) for event in events])

    def _encode_one(self, event: PartEvent) -> bytes:
        part = event.part
        if isinstance(event, PartBegan):
            return _emit("content_block_start", index=part.index, content_block=self._block(part, {}, is_new=True))
        if isinstance(event, PartEnded):
            return _emit("content_block_stop", index=part.index)
        kind, field = _DELTAS[part.kind]
        return _emit("content_block_delta", index=part.index, delta={"type": kind, field: event.text})

    def _block(self, part: AnswerPart, given: Json, *, is_new: bool = False) -> Json:
        text = "" if is_new else part.text
        if part.call is not None:
            return {"type": "tool_use", "id": self._call_ids.of(part.index, part.call.id), "name": part.call.name, "input": given}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        return {"type": "text", "text": text}


_DELTAS = {
    "text": ("text_delta", "text"),
    "refusal": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _emit(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def _stop_reason(reason: str | None, stop: str | None, parts: Sequence[AnswerPart]) -> str:
    kinds = {part.kind for part in parts} if reason in (None, "stop") else set()
    if "call" in kinds:  # some servers end tool calls this way, or without a reason
        return "tool_use"
    if "refusal" in kinds:
        return "refusal"
    if reason == "stop" and stop is not None:
        return "stop_sequence"
    return _REASONS.get(reason or "stop", "end_turn")


def _input(part: AnswerPart, *, is_cut: bool) -> Json:
    """Return the decoded arguments of a tool call, or {} if there are none, the part isn't a call, or a limit cut them off."""
    if part.call is None or not part.text:
        return {}
    try:
        value = msgspec.json.decode(part.text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    if is_cut:
        return {}
    raise AnswerFormError(f"tool call {part.call.name[:100]}: expected arguments that are a JSON object, got other text")
