"""The oracle's part for Anthropic's Messages API; its rules stand in ``oracle``."""

from __future__ import annotations

import json

from tests.mutants.oracle.chat import check_error, error_word, is_empty, read_index
from tests.mutants.oracle.reading import Answer, AnswerFailed, CallDraft, Json

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_TYPES = frozenset({"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"})


class MessagesOracle:
    """Reads events of messages."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._blocks: list[tuple[int | None, CallDraft | None, Json]] = []

    def read_event(self, name: str, data: str) -> None:
        ending = self.answer.ending
        if data.strip() in ("[DONE]", '"[DONE]"'):
            if ending.last_reason is not None:
                ending.record_mark()
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if name == "error":
            check_error(event if isinstance(event, dict) else {})
            raise AnswerFailed("failed", error_word(event) if isinstance(event, dict) else data)
        if not isinstance(event, dict):
            if not name or name in _TYPES:
                raise AnswerFailed("malformed")
            return
        check_error(event)
        self._read_typed(event.get("type") or name, event)

    def _read_typed(self, kind: str, event: Json) -> None:
        answer = self.answer
        match kind:
            case "message_start":
                answer.counts.read((event.get("message") or {}).get("usage"), has_completion=False)
            case "content_block_start":
                self._start(read_index(event.get("index")), event.get("content_block") or {})
            case "content_block_delta":
                self._read_delta(read_index(event.get("index")), event.get("delta") or {})
            case "content_block_stop":
                self._finish_inputs(read_index(event.get("index")))
            case "message_delta":
                answer.counts.read(event.get("usage"))
                self._read_reason((event.get("delta") or {}).get("stop_reason"))
            case "message_stop":
                answer.ending.record_mark()

    def _start(self, index: int | None, block: Json) -> None:
        answer = self.answer
        kind = block.get("type")
        draft = None
        if kind == "tool_use":
            draft = CallDraft(block.get("name") or None, block.get("id") or None)
            answer.calls.append(draft)
        self._blocks.append((index, draft, block))
        if kind == "text":
            answer.add(answer.text, block.get("text"))
        elif kind == "thinking":
            answer.add(answer.reasoning, block.get("thinking"))
        elif kind:
            answer.ending.record_content()

    def _read_delta(self, index: int | None, delta: Json) -> None:
        answer = self.answer
        match delta.get("type"):
            case "text_delta":
                answer.add(answer.text, delta.get("text"))
            case "thinking_delta":
                answer.add(answer.reasoning, delta.get("thinking"))
            case "input_json_delta":
                piece = delta.get("partial_json")
                drafts = [draft for place, draft, _ in self._blocks if place == index] or [draft for _, draft, _ in self._blocks]
                if drafts and drafts[-1] is not None:
                    drafts[-1].add(piece)
                if not is_empty(piece):
                    answer.ending.record_content()
            case _:
                if any(not is_empty(value) for key, value in delta.items() if key != "type"):
                    answer.ending.record_content()

    def _read_reason(self, reason: object) -> None:
        self.answer.ending.record_reason(_REASONS.get(reason, reason) if isinstance(reason, str) else reason)

    def finish(self) -> None:
        """Take the inputs of blocks that nothing ended."""
        for index, _, _ in self._blocks:
            self._finish_inputs(index)

    def _finish_inputs(self, index: int | None) -> None:
        """Take the inputs of the starts where no delta brought any."""
        for place, draft, block in self._blocks:
            if place == index and draft is not None and not draft.arguments.join(is_whole=True) and not is_empty(block.get("input")):
                draft.add(block["input"])

    def read_body(self, body: Json) -> None:
        check_error(body)
        self.answer.counts.read(body.get("usage"))
        for block in body.get("content") or []:
            self._start(None, block)
        self._read_reason(body.get("stop_reason"))
