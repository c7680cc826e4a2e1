"""The Responses API's streamed answers: bytes in, chat chunks out.

Text, refusals, reasoning (its text, else its summary), function calls and calls of custom tools become deltas, whether they come in deltas,
in events that say that something is done, or only in the finished response. Items of hosted tools, and annotations, have no form in a chat
chunk: they are in the further fields ``output_items`` and ``annotations`` of the delta.
"""

from __future__ import annotations

from typing import Any

from streamco.openai_types import ChoiceDelta, CustomDelta, FunctionDelta, ToolCallDelta, with_further
from streamco.wire.event_stream_parser import EventStreamParser, count_of, object_of, text_of
from streamco.wire.openai.lenient_decode import build_usage
from streamco.wire.responses_api.given_texts import GivenTexts, TextKind

__all__ = ["ResponseStreamParser"]

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_FAILED = ("failed", "cancelled")
_TEXTS: dict[str, TextKind] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "summary",
}
_PARTS: dict[str, TextKind] = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning", "summary_text": "summary"}
_INPUTS = {"function_call": "arguments", "custom_tool_call": "input"}


class _Call:
    """A call: its number among the calls, and whether it is one of a custom tool."""

    __slots__ = ("index", "is_custom", "pieces")

    def __init__(self, index: int, is_custom: bool) -> None:
        self.index = index
        self.is_custom = is_custom
        self.pieces: list[str] = []


class ResponseStreamParser(EventStreamParser):
    """Turns the body of one streamed response into chunks; see ``EventStreamParser``."""

    first_event = "response.created"
    foreign_types = ("message_", "content_block_")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._given = GivenTexts()
        self._calls: dict[str, _Call] = {}  # by the ids of their items, their own ids and, as text, the numbers of their items
        self._number = 0  # of calls
        self._paragraphs: set[tuple[int, int]] = set()  # parts of a summary before which there is a blank line
        self._items: set[str] = set()  # those of hosted tools that were given

    def _decode(self, kind: str, value: dict[str, Any]) -> bool:
        name = kind.removeprefix("response.")
        if name == kind:
            if kind == "error":
                fields = value.get("error") or {name: value.get(name) for name in ("code", "message", "param")}
                self._fail_with({"error": fields})
            return kind == "error"
        subject, _, what = name.rpartition(".")
        match name:
            case "created" | "in_progress" | "queued":
                self._begin_with(object_of(value.get("response")))
            case "completed" | "incomplete" | "failed" | "cancelled" | "done":
                self._end_with(name, object_of(value.get("response")))
            case "output_item.added" | "output_item.done":
                self._read_item(_place(value, "output_index"), object_of(value.get("item")), is_done=what == "done")
            case "content_part.done" | "reasoning_summary_part.done":
                place = _place(value, "summary_index" if "summary" in name else "content_index")
                self._finish_part(_place(value, "output_index"), place, object_of(value.get("part")))
            case "reasoning_summary_part.added":
                self._begin_paragraph(_place(value, "output_index"), _place(value, "summary_index"))
            case "output_text.annotation.added":
                self._emit(with_further(ChoiceDelta(), {"annotations": [value.get("annotation")]}))
            case "content_part.added":
                pass
            case _ if subject in _TEXTS:
                self._read_text(_TEXTS[subject], what, value)
            case _ if subject in {"function_call_arguments", "custom_tool_call_input"}:
                self._read_input(what, value)
            case _:
                self.has_progress = True
        return True

    def _decode_whole(self, value: dict[str, Any]) -> bool:
        if value.get("object") != "response" and not isinstance(value.get("output"), list):
            return False
        self._begin_with(value)
        self._end_with(text_of(value.get("status")) or "completed", value)
        return True

    def _begin_with(self, response: dict[str, Any]) -> None:
        if not self._has_begun:
            self._begin(response.get("id"), response.get("model"), response.get("created_at"))

    # Texts

    def _read_text(self, kind: TextKind, what: str, value: dict[str, Any]) -> None:
        item, part = _place(value, "output_index"), _place(value, "summary_index" if kind == "summary" else "content_index")
        logprobs = value.get("logprobs")
        if what == "delta" and (piece := text_of(value.get("delta"))):
            self._given.add((kind, item, part), piece)
            self._write(kind, piece, logprobs)
        elif what == "done":
            self._finish_text(kind, item, part, text_of(value.get("refusal" if kind == "refusal" else "text")), logprobs)

    def _finish_text(self, kind: TextKind, item: int, part: int, whole: str, logprobs: Any = None) -> None:
        """Emit what a text that is done has beyond its deltas."""
        rest = self._given.take_rest((kind, item, part), whole)
        if rest:
            if kind == "summary":
                self._begin_paragraph(item, part)
            self._write(kind, rest, logprobs if len(rest) == len(whole) else None)

    def _finish_part(self, item: int, place: int, part: dict[str, Any]) -> None:
        kind = _PARTS.get(text_of(part.get("type")))
        if kind is not None:
            self._finish_text(kind, item, place, text_of(part.get("refusal" if kind == "refusal" else "text")), part.get("logprobs"))

    def _write(self, kind: TextKind, text: str, logprobs: Any = None) -> None:
        shown: dict[str, Any] = {"logprobs": {"content": logprobs}} if isinstance(logprobs, list) and logprobs else {}
        match kind:
            case "text":
                self._emit(ChoiceDelta(content=text), **shown)
            case "refusal":
                self._emit(ChoiceDelta(refusal=text))
            case _:
                self._emit(ChoiceDelta(reasoning_content=text))

    def _begin_paragraph(self, item: int, part: int) -> None:
        """Emit a blank line before each part of a summary but the first."""
        if part and (item, part) not in self._paragraphs:
            self._paragraphs.add((item, part))
            self._emit(ChoiceDelta(reasoning_content="\n\n"))

    # Items

    def _read_item(self, place: int, item: dict[str, Any], *, is_done: bool) -> None:
        match item.get("type"):
            case "function_call" | "custom_tool_call":
                self._finish_call(self._begin_call(place, item), text_of(item.get(_INPUTS[item["type"]])), is_done=is_done)
            case "message" if is_done:
                self._finish_parts(place, item.get("content"))
            case "reasoning" if is_done:
                self._finish_parts(place, item.get("summary"))
                self._finish_parts(place, item.get("content"))
            case str(kind) if kind not in {"message", "reasoning"}:
                self.has_progress = True
                key = text_of(item.get("id")) or f"{kind} {place}"
                if is_done and key not in self._items:
                    self._items.add(key)
                    self._emit(with_further(ChoiceDelta(), {"output_items": [item]}))

    def _finish_parts(self, place: int, parts: Any) -> None:
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            self._finish_part(place, number, object_of(part))

    def _begin_call(self, place: int, item: dict[str, Any]) -> _Call:
        """Return the call of an item; a new one is emitted with its name."""
        own, item_id = text_of(item.get("call_id")), text_of(item.get("id"))
        call = self._calls.get(own) if own else self._calls.get(item_id) if item_id else self._calls.get(str(place))
        if call is None:
            call = _Call(self._number, item.get("type") == "custom_tool_call")
            self._number += 1
            self._calls[str(place)] = call
            self._emit_call(call, "", name=text_of(item.get("name")), call_id=own or item_id)
        self._calls.update({key: call for key in (own, item_id) if key})
        return call

    def _read_input(self, what: str, value: dict[str, Any]) -> None:
        call = self._calls.get(text_of(value.get("item_id"))) or self._calls.get(str(_place(value, "output_index")))
        if call is None:
            self.has_progress = True
        elif what == "delta" and (piece := text_of(value.get("delta"))):
            call.pieces.append(piece)
            self._emit_call(call, piece)
        elif what == "done":
            self._finish_call(call, text_of(value.get("input" if call.is_custom else "arguments")), is_done=True)

    def _finish_call(self, call: _Call, whole: str, *, is_done: bool) -> None:
        """Emit what the whole text of a call's input has beyond its deltas."""
        before = "".join(call.pieces)
        if whole and whole.startswith(before) and (is_done or not before):
            call.pieces = [whole]
            if rest := whole[len(before) :]:
                self._emit_call(call, rest)

    def _emit_call(self, call: _Call, text: str, *, name: str | None = None, call_id: str | None = None) -> None:
        delta = ToolCallDelta(index=call.index, id=call_id)
        if call.is_custom:
            delta.type = None if call_id is None else "custom"
            delta.custom = CustomDelta(name, text)
        else:
            delta.type = None if call_id is None else "function"
            delta.function = FunctionDelta(name, text)
        self._emit(ChoiceDelta(tool_calls=[delta]))

    # The end

    def _end_with(self, name: str, response: dict[str, Any]) -> None:
        status = name if name != "done" else text_of(response.get("status"))
        if status in _FAILED or response.get("status") in _FAILED:
            self._fail_with({"error": response.get("error") or {"message": f"the response is {response.get('status') or status}"}})
            return
        self._take_rest()
        output = response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else ()):
            self._read_item(place, object_of(item), is_done=True)
        reason = "tool_calls" if self._number else "stop"
        if status == "incomplete" or response.get("status") == "incomplete":
            reason = _REASONS.get(text_of(object_of(response.get("incomplete_details")).get("reason")), "length")
        self._emit(ChoiceDelta(), reason, usage=build_usage(response.get("usage")))
        if self.error is None:
            self._end()


def _place(value: dict[str, Any], name: str) -> int:
    return count_of(value.get(name))
