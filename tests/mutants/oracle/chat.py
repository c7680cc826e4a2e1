"""The oracle's part for chat completions; its rules stand in ``oracle``."""

from __future__ import annotations

import json
from typing import Any

from tests.mutants.oracle.reading import Answer, AnswerFailed, CallDraft, Json

_KNOWN_KEYS = frozenset(
    {
        "index",
        "delta",
        "message",
        "text",
        "finish_reason",
        "logprobs",
        "usage",
        "error",
        "native_finish_reason",
        "stop_reason",
        "matched_stop",
    }
    | {"content_filter_results", "content_filter_result", "content_filter_offsets", "seed", "token_ids"}
)
"""Keys of a choice that don't make an empty answer suspicious."""

_REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking")


def is_empty(value: object) -> bool:
    """Return True for null and for empty texts, lists and objects."""
    return value is None or value in ("", [], {})


def _could_be_text(value: object) -> bool:
    """Return True for a value that the text of an answer could stand in."""
    if isinstance(value, dict):
        is_named = any(not is_empty(value.get(key)) for key in ("text", "content", "parts"))
        return is_named or any(_could_be_text(each) for each in value.values() if not isinstance(each, str))
    if isinstance(value, list):
        return any(_could_be_text(each) for each in value)
    return isinstance(value, str) and value != ""


def read_index(value: object) -> int | None:
    """Return the number of an index, also of one that is a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def check_error(event: Json) -> None:
    """Raise for an object that is an error in the forms that all APIs share."""
    error = event.get("error")
    if not is_empty(error):
        raise AnswerFailed("failed", error_word(error))
    is_bare = isinstance(event.get("message"), str) and "code" in event
    is_bare = "choices" not in event and (is_bare or ("detail" in event and "type" not in event))
    if event.get("object") == "error" or event.get("type") == "error" or is_bare:
        raise AnswerFailed("failed", error_word(event))


def error_word(error: object) -> str:
    """Return the server's sentence."""
    if isinstance(error, dict):
        return next((error[key] for key in ("message", "detail") if isinstance(error.get(key), str)), "")
    return error if isinstance(error, str) else ""


def _is_read(key: str, value: object) -> bool:
    """Return True for a field of a delta that is read by its own rule."""
    kinds = {"content": str | list, "refusal": str, "tool_calls": list, **dict.fromkeys(_REASONING, str)}
    return key in kinds and isinstance(value, kinds[key])


class ChatOracle:
    """Reads chunks."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._indexes: list[int | None] = []

    def read_event(self, name: str, data: str) -> None:
        if data.strip() in ("[DONE]", '"[DONE]"'):
            self.answer.ending.record_mark()
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if name == "error":
            check_error(chunk if isinstance(chunk, dict) else {})
            raise AnswerFailed("failed", error_word(chunk) if isinstance(chunk, dict) else data)
        if isinstance(chunk, dict):
            self.read_body(chunk)
        elif not name:
            raise AnswerFailed("malformed")

    def read_body(self, chunk: Json) -> None:
        """Read a chunk or a body that isn't streamed: their choices differ in the name of the message alone."""
        groq = chunk.get("x_groq")
        self.answer.counts.read(groq.get("usage") if isinstance(groq, dict) else None)
        self.answer.counts.read(chunk.get("usage"))
        choices = [choice for choice in chunk.get("choices") or [] if isinstance(choice, dict)]
        for choice in choices:
            self._read_content(choice)
        check_error(chunk)
        for choice in choices:
            check_error({"choices": [], "error": choice.get("error")})
            self.answer.ending.record_reason(choice.get("finish_reason"))

    def _read_content(self, choice: Json) -> None:
        ending = self.answer.ending
        if any(_could_be_text(value) for key, value in choice.items() if key not in _KNOWN_KEYS):
            ending.has_other_keys = True
        self.answer.counts.read(choice.get("usage"))
        delta = next((choice[key] for key in ("delta", "message") if isinstance(choice.get(key), dict)), None)
        if delta is None:
            delta = {"content": choice.get("text")}
        self._read_delta(delta)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            self.answer.logprobs += [entry["logprob"] for entry in logprobs.get("content") or []]

    def _read_delta(self, delta: Json) -> None:
        answer = self.answer
        answer.add(answer.reasoning, next((delta[key] for key in _REASONING if isinstance(delta.get(key), str) and delta[key]), None))
        content = delta.get("content")
        for part in content if isinstance(content, list) else []:
            self._read_part(part)
        answer.add(answer.text, content)
        answer.add(answer.refusal, delta.get("refusal"))
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else []:
            self._read_call(entry)
        if any(not is_empty(value) for key, value in delta.items() if key != "role" and not _is_read(key, value)):
            answer.ending.record_content()

    def finish(self) -> None:
        """Nothing is left to read at the end."""

    def _read_part(self, part: Any) -> None:
        answer = self.answer
        if not isinstance(part, dict):
            return
        if part.get("type") == "thinking":
            inner = part.get("thinking")
            for each in inner if isinstance(inner, list) else [{"text": inner}]:
                answer.add(answer.reasoning, each.get("text"))
        elif part.get("type") == "text":
            answer.add(answer.text, part.get("text"))
        else:
            answer.ending.record_content()

    def _read_call(self, entry: Json) -> None:
        function, custom = entry.get("function") or {}, entry.get("custom") or {}
        inner = custom or function
        name, call_id = inner.get("name") or None, entry.get("id") or None
        draft, is_new = self._find(read_index(entry.get("index")), call_id, name)
        draft.is_custom = draft.is_custom or bool(custom)
        says_something = is_new and bool(name or call_id)
        if draft.id is None and call_id:
            draft.id = call_id
            says_something = True
        if draft.name is None and name:
            draft.name = name
            says_something = True
        if draft.add(inner.get("input") if custom else inner.get("arguments")) or says_something:
            self.answer.ending.record_content()

    def _find(self, index: int | None, call_id: str | None, name: str | None) -> tuple[CallDraft, bool]:
        """Return the call that an entry belongs to, and True if the entry begins it."""
        calls = self.answer.calls
        places = [place for place, other in enumerate(self._indexes) if index in (None, other)]
        if not places and (place := self._place_without_index(call_id, name)) is not None:
            self._indexes[place] = index
            return calls[place], False
        if places:
            latest = calls[places[-1]]
            if call_id:
                known = [calls[place] for place in places if calls[place].id == call_id]
                if known:
                    return known[-1], False
                begins = bool(name)
            else:
                begins = bool(name) and latest.name is not None and latest.may_end_before(name)
            if not begins:
                return latest, False
        calls.append(CallDraft())
        self._indexes.append(index)
        return calls[-1], True

    def _place_without_index(self, call_id: str | None, name: str | None) -> int | None:
        """Return the place of a call that goes on with a new index (C2)."""
        open_places = [place for place, index in enumerate(self._indexes) if index is None]
        if call_id:
            open_places = [place for place in open_places if self.answer.calls[place].id == call_id]
        elif name or open_places[-1:] != [len(self._indexes) - 1]:
            return None
        return open_places[-1] if open_places else None
