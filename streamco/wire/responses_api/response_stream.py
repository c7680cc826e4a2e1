"""The Responses API's streamed answers: bytes in, chat chunks out.

Text, refusals, reasoning (its text, else its summary) and function calls become deltas. Items of hosted tools and annotations have no form
in a chat chunk and are left out.
"""

from __future__ import annotations

from typing import Any

from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    CompletionTokensDetails,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
)
from streamco.wire.event_stream_parser import EventStreamParser, count_of, text_of

__all__ = ["ResponseStreamParser"]

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


class _Call:
    """A function call: its number among the calls, and whether its arguments have come."""

    __slots__ = ("has_arguments", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.has_arguments = False


class ResponseStreamParser(EventStreamParser):
    """Turns the body of one streamed response into chunks; see ``EventStreamParser``."""

    first_event = "response.created"

    def _decode(self, kind: str, value: dict[str, Any]) -> ChatCompletionChunk | None:
        match kind:
            case "response.output_text.delta":
                logprobs = value.get("logprobs")
                shown: dict[str, Any] = {"logprobs": {"content": logprobs}} if isinstance(logprobs, list) and logprobs else {}
                return self._chunk(ChoiceDelta(content=text_of(value.get("delta"))), **shown)
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                return self._chunk(ChoiceDelta(reasoning_content=text_of(value.get("delta"))))
            case "response.reasoning_summary_part.added" if count_of(value.get("summary_index")):
                return self._chunk(ChoiceDelta(reasoning_content="\n\n"))
            case "response.refusal.delta":
                return self._chunk(ChoiceDelta(refusal=text_of(value.get("delta"))))
            case "response.created":
                response = _object(value.get("response"))
                return self._begin(response.get("id"), response.get("model"), response.get("created_at"))
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._end(kind, _object(value.get("response")))
            case "error":
                self._fail_with({"error": value.get("error") or {name: value.get(name) for name in ("code", "message", "param")}})
                return None
        return self._decode_call(kind, value)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._calls: dict[int, _Call] = {}  # by the index of their items

    def _decode_call(self, kind: str, value: dict[str, Any]) -> ChatCompletionChunk | None:
        place = count_of(value.get("output_index"))
        match kind:
            case "response.output_item.added" | "response.output_item.done":
                item = _object(value.get("item"))
                if item.get("type") != "function_call" or place in self._calls:
                    return None
                call = self._calls[place] = _Call(len(self._calls))
                arguments = text_of(item.get("arguments"))
                call.has_arguments = bool(arguments)
                name, call_id = text_of(item.get("name")), text_of(item.get("call_id")) or text_of(item.get("id"))
                return self._call(call, arguments, name=name, call_id=call_id)
            case "response.function_call_arguments.delta":
                known = self._calls.get(place)
                return None if known is None else self._call(known, text_of(value.get("delta")))
            case "response.function_call_arguments.done":
                known = self._calls.get(place)
                if known is not None and not known.has_arguments:  # some servers send no deltas
                    return self._call(known, text_of(value.get("arguments")))
        return None

    def _call(self, call: _Call, arguments: str, *, name: str | None = None, call_id: str | None = None) -> ChatCompletionChunk:
        call.has_arguments = call.has_arguments or bool(arguments)
        kind = None if call_id is None else "function"
        delta = ToolCallDelta(index=call.index, id=call_id, type=kind, function=FunctionDelta(name=name, arguments=arguments))
        return self._chunk(ChoiceDelta(tool_calls=[delta]))

    def _end(self, kind: str, response: dict[str, Any]) -> ChatCompletionChunk | None:
        if kind == "response.failed":
            self._fail_with({"error": response.get("error") or {"message": "the response failed"}})
            return None
        self.is_done = True
        reason = "tool_calls" if self._calls else "stop"
        if kind == "response.incomplete":
            reason = _REASONS.get(text_of(_object(response.get("incomplete_details")).get("reason")), "length")
        return self._finish(reason, _usage(response.get("usage")))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _usage(value: Any) -> CompletionUsage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = count_of(value.get("input_tokens")), count_of(value.get("output_tokens"))
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=count_of(value.get("total_tokens")) or prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=count_of(_object(value.get("input_tokens_details")).get("cached_tokens"))),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=count_of(_object(value.get("output_tokens_details")).get("reasoning_tokens"))
        ),
    )
