"""Parses the Responses API's streamed answers: bytes go in, chat chunks come out.

Text, refusals, reasoning and its summary, function calls and calls of custom tools become deltas, whether they come in deltas, in events
that say that something is done, or only in the finished response. A chat chunk can't express annotations and items of hosted tools, so they
are in the delta's additional fields ``annotations`` and ``output_items``.
"""

from __future__ import annotations

from typing import Any

from streamco.openai_types import ChoiceDelta, CustomDelta, FunctionDelta, ToolCallDelta, with_further
from streamco.wire.event_stream_parser import EventStreamParser
from streamco.wire.json_values import json_text_of, number_of, object_of, text_of
from streamco.wire.openai.lenient_decode import build_usage
from streamco.wire.responses_api.given_texts import GivenTexts, TextKind
from streamco.wire.responses_api.output_items import OutputItem, OutputItems
from streamco.wire.text_halves import HALF

__all__ = ["ResponseStreamParser"]

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_PREFIX = "response."
_ERRORS = ("error", "response.error")
_FAILED = ("failed", "cancelled")
_SUBJECTS: dict[str, TextKind] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "summary",
}
_TEXTS: dict[str, tuple[TextKind, str]] = {
    f"response.{subject}.{what}": (kind, what) for subject, kind in _SUBJECTS.items() for what in ("delta", "done")
}
"""Events that hold text, each with the kind of text and whether it is a delta or the finished text."""
_PARTS: dict[str, TextKind] = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning", "summary_text": "summary"}
_PLAIN = frozenset({"", "text"})
"""Types of parts in which some gateways send an item's text, whatever the item's type."""
_ITEMS: dict[TextKind, str] = {"text": "message", "refusal": "message", "reasoning": "reasoning", "summary": "reasoning"}
_INPUTS = {"function_call_arguments": "function_call", "custom_tool_call_input": "custom_tool_call"}
_ENVELOPE = frozenset(
    {"type", "sequence_number", "response", "response_id", "event_id", "id", "created_at", "timestamp", "status", "obfuscation"}
)
"""Fields that say nothing about the answer. An unknown event with only these fields counts as a keep-alive."""


class ResponseStreamParser(EventStreamParser):
    """Turns the body of one streamed response into chat chunks; see ``EventStreamParser``."""

    first_event = "response.created"
    foreign_types = ("message_", "content_block_")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._given = GivenTexts()
        self._items = OutputItems()
        self._calls = 0
        self._paragraphs: set[tuple[int, int]] = set()  # parts of a summary that follow a blank line

    def _decode(self, kind: str, value: dict[str, Any]) -> bool:
        if (text := _TEXTS.get(kind)) is not None:
            self._read_text(*text, value)
        elif kind in _ERRORS:
            self._fail_with({"error": value.get("error") or {name: value.get(name) for name in ("code", "message", "param")}})
        elif kind.startswith(_PREFIX):
            self._decode_named(kind.removeprefix(_PREFIX), value)
        else:
            return False
        return True

    def _decode_named(self, name: str, value: dict[str, Any]) -> None:
        """Emit the content of an event that isn't one of the text events. ``name`` is its type without the prefix."""
        subject, _, what = name.rpartition(".")
        match name:
            case "created" | "in_progress" | "queued":
                self._begin_with(object_of(value.get("response")))
            case "completed" | "incomplete" | "failed" | "cancelled" | "done":
                self._end_with(name, object_of(value.get("response")))
            case "output_item.added" | "output_item.done":
                self._read_item(number_of(value.get("output_index")), object_of(value.get("item")), is_done=what == "done")
            case "content_part.done" | "reasoning_summary_part.done":
                is_reasoning = self._items.has("reasoning", value.get("item_id"))
                self._finish_part_of(value, "summary" if subject != "content_part" else "reasoning" if is_reasoning else "text")
            case "reasoning_summary_part.added":
                self._begin_paragraph(self._item_of("reasoning", value), _part_of(value))
            case "output_text.annotation.added":
                self._emit(with_further(ChoiceDelta(), {"annotations": [value.get("annotation")]}))
            case _ if subject in _INPUTS:
                self._read_input(self._item_of(_INPUTS[subject], value), what, value)
            case _ if name != "content_part.added" and value.keys() - _ENVELOPE:
                self.has_progress = True

    def _decode_whole(self, value: dict[str, Any]) -> bool:
        if value.get("object") != "response" and not isinstance(value.get("output"), list):
            return False
        self._begin_with(value)
        self._end_with(text_of(value.get("status")) or "completed", value)
        return True

    def _begin_with(self, response: dict[str, Any]) -> None:
        if not self._has_begun:
            self._begin(response.get("id"), response.get("model"), response.get("created_at"))

    def _item_of(self, kind: str, event: dict[str, Any]) -> OutputItem:
        return self._items.find(kind, event.get("item_id"), number_of(event.get("output_index")))

    # Texts

    def _read_text(self, kind: TextKind, what: str, value: dict[str, Any]) -> None:
        item, part, logprobs = self._item_of(_ITEMS[kind], value), _part_of(value), value.get("logprobs")
        if what == "done":
            self._finish_text(kind, item, part, text_of(value.get("refusal" if kind == "refusal" else "text")), logprobs)
        elif isinstance(piece := value.get("delta"), str):
            if not piece.isascii() or self._halves.is_open:
                piece = self._join((kind, item.number), piece)
            if piece:
                self._given.add((kind, item.number, part), piece)
            if piece or logprobs:
                self._write(kind, piece, logprobs)
        elif piece:
            self.ends.record_choice(has_unread=True)

    def _finish_text(
        self, kind: TextKind, item: OutputItem, part: int, whole: str, logprobs: Any = None, *, is_listed: bool = False
    ) -> None:
        """Emit the part of a finished text that hasn't come in deltas."""
        if whole:
            self._halves.give_up((kind, item.number))
        rest = self._given.take_rest((kind, item.number, part), whole, is_listed=is_listed)
        if rest:
            if kind == "summary":
                self._begin_paragraph(item, part)
            self._write(kind, rest, logprobs if len(rest) == len(whole) else None)

    def _finish_part_of(self, event: dict[str, Any], default: TextKind) -> None:
        part = event.get("part")
        kind = _PARTS.get(text_of(object_of(part).get("type")), default)
        self._finish_part(self._item_of(_ITEMS[kind], event), _part_of(event), part, default)

    def _finish_part(self, item: OutputItem, number: int, part: Any, default: TextKind, *, is_listed: bool = False) -> None:
        """Emit the content of a finished part that hasn't come in deltas.

        Args:
            item: the item that the part belongs to.
            number: the part's number in the item.
            part: the part as the server sent it. Some servers send just a string.
            default: kind of the part's text, used if the part's type doesn't give it.
            is_listed: see ``GivenTexts.take_rest``.
        """
        fields = {"text": part} if isinstance(part, str) else object_of(part)
        name = text_of(fields.get("type"))
        kind = default if name in _PLAIN else _PARTS.get(name)
        whole = None if kind is None else fields.get("refusal" if kind == "refusal" else "text")
        if kind is not None and isinstance(whole, str):
            self._finish_text(kind, item, number, whole, fields.get("logprobs"), is_listed=is_listed)
        elif part:
            self.ends.record_choice(has_unread=True)

    def _write(self, kind: TextKind, text: str, logprobs: Any = None) -> None:
        if kind == "text":
            self._emit_text(text, {"content": logprobs} if logprobs and isinstance(logprobs, list) else None)
        elif kind == "refusal":
            self._emit(ChoiceDelta(refusal=text))
        else:
            self._emit(ChoiceDelta(reasoning_content=text))

    def _begin_paragraph(self, item: OutputItem, part: int) -> None:
        """Emit a blank line before each part of a summary except the first."""
        if part and (item.number, part) not in self._paragraphs:
            self._paragraphs.add((item.number, part))
            self._emit(ChoiceDelta(reasoning_content="\n\n"))

    # Items

    def _read_item(self, place: int | None, fields: dict[str, Any], *, is_done: bool, is_final: bool = False) -> None:
        kind = text_of(fields.get("type")) or ("message" if "content" in fields else "")
        item = self._items.finish(kind, fields, place, is_final=is_final) if is_done else self._items.begin(kind, fields, place)
        match kind:
            case "function_call" | "custom_tool_call":
                self._name_call(item, fields)
                self._finish_input(item, fields.get("input" if item.is_custom else "arguments"), is_done=is_done)
            case "message" if is_done:
                self._finish_parts(item, fields.get("content"), "text")
            case "reasoning" if is_done:
                self._finish_parts(item, fields.get("summary"), "summary")
                self._finish_parts(item, fields.get("content"), "reasoning")
                if fields.get("encrypted_content") and not item.is_given:
                    item.is_given = True
                    self._emit(with_further(ChoiceDelta(), {"output_items": [fields]}))
            case _ if kind not in {"message", "reasoning"}:
                self.has_progress = True
                self.ends.record_output()
                if is_done and not item.is_given:
                    item.is_given = True
                    self._emit(with_further(ChoiceDelta(), {"output_items": [fields]}))

    def _finish_parts(self, item: OutputItem, parts: Any, default: TextKind) -> None:
        """Emit the content of a finished item's parts that hasn't come in deltas. Some servers send one part without a list."""
        for number, part in enumerate(parts if isinstance(parts, list) else [parts]):
            self._finish_part(item, number, part, default, is_listed=True)

    def _name_call(self, item: OutputItem, fields: dict[str, Any]) -> None:
        """Emit a call's name and id, unless the reader already has them."""
        name = "" if item.name else text_of(fields.get("name"))
        call_id = "" if item.call_id else text_of(fields.get("call_id")) or text_of(fields.get("id"))
        if name or call_id:
            item.name, item.call_id = item.name or name, item.call_id or call_id
            self._emit_call(item, "", name=name or None, call_id=call_id or None)

    def _read_input(self, item: OutputItem, what: str, value: dict[str, Any]) -> None:
        if what == "delta" and (piece := self._join(item, json_text_of(value.get("delta")))):
            item.input.add(piece)
            self._emit_call(item, piece)
        elif what == "done":
            self._finish_input(item, value.get("input" if item.is_custom else "arguments"), is_done=True)

    def _finish_input(self, item: OutputItem, given: Any, *, is_done: bool) -> None:
        """Emit the part of a call's input that hasn't come in deltas. The input of an unfinished call counts only if no delta came."""
        whole = json_text_of(given)
        if is_done and whole:
            self._halves.give_up(item)
        if (is_done or not item.input.size) and (rest := item.input.take_rest(whole)):
            self._emit_call(item, rest)

    def _emit_call(self, item: OutputItem, text: str, *, name: str | None = None, call_id: str | None = None) -> None:
        if item.call < 0:
            item.call, self._calls = self._calls, self._calls + 1
        delta = ToolCallDelta(index=item.call, id=call_id)
        if call_id is not None:
            delta.type = "custom" if item.is_custom else "function"
        if item.is_custom:
            delta.custom = CustomDelta(name, text)
        else:
            delta.function = FunctionDelta(name, text)
        self._emit(ChoiceDelta(tool_calls=[delta]))

    # The end

    def _close_parts(self) -> None:
        """Emit a replacement character for each text that ends with half a character."""
        for text in self._halves.give_up_all():
            if isinstance(text, OutputItem):
                self._emit_call(text, HALF)
            else:
                self._write(text[0], HALF)

    def _end_with(self, name: str, response: dict[str, Any]) -> None:
        status = name if name != "done" else text_of(response.get("status"))
        if status in _FAILED or response.get("status") in _FAILED:
            self._fail_with({"error": response.get("error") or {"message": f"the response is {response.get('status') or status}"}})
            return
        self._read_output(response)
        self._close_parts()
        reason = "tool_calls" if self._calls else "stop"
        if status == "incomplete" or response.get("status") == "incomplete":
            reason = _REASONS.get(text_of(object_of(response.get("incomplete_details")).get("reason")), "length")
        self._emit(ChoiceDelta(), reason, usage=build_usage(response.get("usage")))
        if self.error is None:
            self._end()

    def _read_output(self, response: dict[str, Any]) -> None:
        """Emit the parts of a finished response that haven't come before. ``output_text`` counts only if nothing else has text."""
        output = response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else [output]):
            if isinstance(item, dict):
                self._read_item(place, item, is_done=True, is_final=True)
            elif item:
                self.ends.record_choice(has_unread=True)
        text = response.get("output_text")
        if isinstance(text, str) and text and not self._text:
            self._write("text", text)


def _part_of(event: dict[str, Any]) -> int:
    """Return the number of an event's part in its item."""
    number = event.get("summary_index", event.get("content_index"))
    return number if type(number) is int else number_of(number) or 0
