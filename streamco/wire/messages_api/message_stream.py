"""The Messages API's streamed answers: bytes in, chat chunks out.

Text, thinking and tool calls become deltas. Signatures, citations and blocks of Anthropic's own tools have no form in a chat chunk and are
left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, CompletionUsage, FunctionDelta, PromptTokensDetails, ToolCallDelta
from streamco.wire.event_stream_parser import EventStreamParser, count_of, text_of

__all__ = ["MessageStreamParser"]

_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


class MessageStreamParser(EventStreamParser):
    """Turns the body of one streamed message into chunks; see ``EventStreamParser``."""

    first_event = "message_start"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._counts: dict[str, int] = {}  # as the server named them; later ones are sums and replace earlier ones
        self._calls: dict[int, int] = {}  # number of a call, by the index of its block

    def _decode(self, kind: str, value: dict[str, Any]) -> ChatCompletionChunk | None:
        match kind:
            case "content_block_delta":
                return self._delta(count_of(value.get("index")), value.get("delta"))
            case "content_block_start":
                return self._block(count_of(value.get("index")), value.get("content_block"))
            case "message_start":
                message = value.get("message")
                message = message if isinstance(message, dict) else {}
                self._take_counts(message.get("usage"))
                return self._begin(message.get("id"), message.get("model"))
            case "message_delta":
                self._take_counts(value.get("usage"))
                return self._stop(value.get("delta"))
            case "message_stop":
                self.is_done = True
            case "error":
                self._fail_with(value)
        return None

    def _block(self, index: int, block: Any) -> ChatCompletionChunk | None:
        match block:
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                self._calls[index] = len(self._calls)
                given = block.get("input")
                arguments = msgspec.json.encode(given).decode() if given else ""  # whole input is sent by some gateways
                return self._call(index, arguments, name=name, call_id=call_id)
            case {"type": "text", "text": str(text)} if text:
                return self._chunk(ChoiceDelta(content=text))
            case {"type": "thinking", "thinking": str(text)} if text:
                return self._chunk(ChoiceDelta(reasoning_content=text))
        return None

    def _delta(self, index: int, delta: Any) -> ChatCompletionChunk | None:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return self._chunk(ChoiceDelta(content=text))
            case {"type": "thinking_delta", "thinking": str(text)}:
                return self._chunk(ChoiceDelta(reasoning_content=text))
            case {"type": "input_json_delta", "partial_json": str(text)} if index in self._calls:
                return self._call(index, text)
        return None

    def _call(self, index: int, arguments: str, *, name: str | None = None, call_id: str | None = None) -> ChatCompletionChunk:
        kind = None if call_id is None else "function"
        function = FunctionDelta(name=name, arguments=arguments)
        return self._chunk(ChoiceDelta(tool_calls=[ToolCallDelta(index=self._calls[index], id=call_id, type=kind, function=function)]))

    def _stop(self, delta: Any) -> ChatCompletionChunk | None:
        delta = delta if isinstance(delta, dict) else {}
        reason = text_of(delta.get("stop_reason"))
        if not reason:
            return None
        return self._finish(_REASONS.get(reason, "stop"), self._usage(), stop_reason=text_of(delta.get("stop_sequence")) or None)

    def _take_counts(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts.update({name: count_of(usage[name]) for name in _COUNTS if usage.get(name) is not None})

    def _usage(self) -> CompletionUsage | None:
        counts = self._counts
        if not counts:
            return None
        cached = counts.get("cache_read_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + counts.get("cache_creation_input_tokens", 0) + cached
        completion = counts.get("output_tokens", 0)
        return CompletionUsage(prompt, completion, prompt + completion, PromptTokensDetails(cached_tokens=cached))
