"""The oracle's part for OpenAI's Responses API; its rules stand in ``oracle``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.mutants.oracle.chat import check_error, error_word, is_empty, read_index
from tests.mutants.oracle.reading import Answer, AnswerFailed, CallDraft, Json, Texts

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls, and where their arguments are."""

_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "response.cancelled"})

_KINDS = {
    "output_text": "message",
    "content_part": "message",
    "refusal": "message",
    "reasoning_summary_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "reasoning_text": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
}
"""The types of the items to which events belong, by the middle of the event's name."""


@dataclass(eq=False, slots=True)
class _Item:
    """One output item: what names it, and its call if it is one."""

    type: str
    place: int | None
    ids: set[str] = field(default_factory=set)
    draft: CallDraft | None = None
    is_done: bool = False
    numbers: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})


class ResponsesOracle:
    """Reads events of responses."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._items: list[_Item] = []

    def read_event(self, name: str, data: str) -> None:
        if data.strip() in ("[DONE]", '"[DONE]"'):
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if name == "error":
            check_error(event if isinstance(event, dict) else {})
            raise AnswerFailed("failed", error_word(event) if isinstance(event, dict) else data)
        if not isinstance(event, dict):
            if not name or name in _ENDS | _FAILURES or name.removeprefix("response.").partition(".")[0] in (*_KINDS, "output_item"):
                raise AnswerFailed("malformed")
            return
        check_error(event)
        self._read_typed(str(event.get("type") or name), event)

    def _read_typed(self, kind: str, event: Json) -> None:
        _, _, rest = kind.partition("response.")
        subject, _, moment = rest.partition(".")
        response = event.get("response") if isinstance(event.get("response"), dict) else {}
        if kind in _ENDS | _FAILURES:
            self._end(kind, response or {})
        elif subject == "output_item" and isinstance(event.get("item"), dict):
            self._read_item(event["item"], read_index(event.get("output_index")), is_done=moment == "done")
        elif subject in _KINDS:
            self._read_content(subject, moment, event)
        elif rest and moment:  # hosted tools: response.web_search_call.searching and others
            self.answer.ending.record_content()

    def _read_content(self, subject: str, moment: str, event: Json) -> None:
        part = event.get("part")
        is_thought = isinstance(part, dict) and part.get("type") == "reasoning_text"
        item = self._find_item("reasoning" if is_thought else _KINDS[subject], event.get("item_id"), read_index(event.get("output_index")))
        if item.draft is not None:
            value = event.get("delta") if moment == "delta" else event.get(_CALLS[item.type])
            self._read_arguments(item.draft, value, is_whole=moment == "done")
            return
        number = read_index(event.get("content_index", event.get("summary_index"))) or 0
        if subject.endswith("_part"):
            self._read_part(item, subject, number, part)
        elif moment == "delta":
            self._number(item, subject, number)
            self.answer.add(self._texts(subject), event.get("delta"), (id(item), subject, number))
        elif moment == "done":
            self._number(item, subject, number)
            self.answer.complete(
                self._texts(subject), event.get("refusal" if subject == "refusal" else "text"), (id(item), subject, number)
            )

    def _read_parts(self, item: _Item, subject: str, parts: list[object]) -> None:
        """Read the parts of a whole item: each is the streamed one with its number, or else the first streamed one that no other is."""
        numbers = item.numbers["summary" in subject]
        exact = [number for number in range(len(parts)) if number in numbers]
        others = [number for number in numbers if number not in exact]
        for number, part in enumerate(parts):
            self._read_part(item, subject, number if number in exact or not others else others.pop(0), part)

    def _texts(self, subject: str) -> Texts:
        return {"output_text": self.answer.text, "refusal": self.answer.refusal}.get(subject, self.answer.reasoning)

    @staticmethod
    def _number(item: _Item, subject: str, number: int) -> None:
        numbers = item.numbers["summary" in subject]
        if number not in numbers:
            numbers.append(number)

    def _read_part(self, item: _Item, subject: str, number: int, part: object) -> None:
        if not isinstance(part, dict):
            return
        kind = str(part.get("type") or "")
        if subject == "reasoning_summary_part":
            kind = "summary_text"
        name = {"summary_text": "reasoning_summary_text"}.get(kind, kind)
        if name in ("output_text", "refusal", "reasoning_summary_text", "reasoning_text"):
            self._number(item, name, number)
            self.answer.complete(self._texts(name), part.get("refusal" if name == "refusal" else "text"), (id(item), name, number))

    def _read_arguments(self, draft: CallDraft, value: object, *, is_whole: bool) -> None:
        if is_whole and isinstance(value, str):
            self.answer.complete(draft.arguments, value)
        elif (not is_whole or not draft.arguments.join(is_whole=True)) and draft.add(value):
            self.answer.ending.record_content()

    def _find_item(self, kind: str, item_id: object, place: int | None) -> _Item:
        """Return the item that a delta or done event belongs to."""
        same = [item for item in self._items if item.type == kind]
        by_id = [item for item in same if item_id in item.ids]
        by_place = [item for item in same if place is not None and item.place == place]
        if by_id or by_place:
            return (by_id or by_place)[-1]
        if same and (place is None or same[-1].place is None):
            return same[-1]
        return self._begin(kind, place, {"id": item_id})

    def _begin(self, kind: str, place: int | None, item: Json) -> _Item:
        begun = _Item(kind, place)
        if kind in _CALLS:
            begun.draft = CallDraft(is_custom=kind == "custom_tool_call")
            self.answer.calls.append(begun.draft)
        self._items.append(begun)
        self._name(begun, item)
        return begun

    @staticmethod
    def _name(item: _Item, names: Json) -> None:
        item.ids |= {value for value in (names.get("id"), names.get("call_id")) if isinstance(value, str) and value}
        if item.draft is not None:
            item.draft.id = item.draft.id or names.get("call_id") or None
            item.draft.name = item.draft.name or names.get("name") or None

    def _read_item(self, item: Json, place: int | None, *, is_done: bool, is_final: bool = False) -> None:
        kind = str(item.get("type") or "")
        ids = {value for value in (item.get("id"), item.get("call_id")) if isinstance(value, str) and value}
        same = [other for other in self._items if other.type == kind]
        if is_done:
            found = [other for other in same if ids & other.ids]
            found = found or [other for other in same if place is not None and other.place == place and (is_final or not other.is_done)]
            found = found or [other for other in same if (place is None or other.place is None) and not other.is_done and not is_final]
        else:
            found = [other for other in same if item.get("id") in other.ids]
        begun = found[-1] if found else self._begin(kind, place, item)
        self._name(begun, item)
        begun.is_done = begun.is_done or is_done
        self._read_item_content(begun, item)

    def _read_item_content(self, begun: _Item, item: Json) -> None:
        if begun.draft is not None:
            if begun.draft.name or begun.draft.id:
                self.answer.ending.record_content()
            self._read_arguments(begun.draft, item.get(_CALLS[begun.type]), is_whole=True)
        elif begun.type not in ("message", "reasoning"):
            self.answer.ending.record_content()
        self._read_parts(begun, "reasoning_summary_part", item.get("summary") or [])
        self._read_parts(begun, "content_part", item.get("content") or [])
        if not is_empty(item.get("encrypted_content")):
            self.answer.ending.record_content()

    def _end(self, kind: str, response: Json) -> None:
        self.answer.counts.read(response.get("usage"))
        for place, item in enumerate(response.get("output") or []):
            self._read_item(item, place, is_done=True, is_final=True)
        if kind in _FAILURES or response.get("status") in ("failed", "cancelled"):
            raise AnswerFailed("failed", error_word(response.get("error")))
        reason = "tool_calls" if self.answer.calls else "stop"
        if kind == "response.incomplete" or response.get("status") == "incomplete":
            details = response.get("incomplete_details") or {}
            reason = "content_filter" if details.get("reason") == "content_filter" else "length"
        self.answer.ending.record_reason(reason)
        self.answer.ending.record_mark()

    def finish(self) -> None:
        """Nothing is left to read at the end."""

    def read_body(self, body: Json) -> None:
        if "status" not in body:
            check_error(body)
        self._end("response.completed", body)
