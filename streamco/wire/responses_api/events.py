"""Encodes an answer in the form of the Responses API: a ``response`` object, or a stream of events that build it up.

Source: OpenAI API reference, responses and responses/streaming. Reasoning goes into the reasoning item's ``content``, as servers of open
models send it, and ``summary`` stays empty. A failure is sent as the event ``error`` and then ``response.failed``. ``error`` holds its
fields twice: at the top, as in the reference, and in an inner object, as OpenAI's servers send them and its SDK expects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamco.openai_types import ChatCompletion, ChatCompletionChunk, CompletionUsage
from streamco.wire.answer_encoder import KEEPALIVE, CallIds, Failure, encode, named_event
from streamco.wire.openai.answer_parts import AnswerPart, AnswerParts, PartBegan, PartEnded, PartEvent, message_parts
from streamco.wire.responses_api.namespaces import NamespacedNames

__all__ = ["ResponseEvents", "response_usage"]

Json = dict[str, Any]

_PREFIXES = {"text": "msg", "refusal": "msg", "reasoning": "rs", "call": "fc"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def response_usage(usage: CompletionUsage | None) -> Json | None:
    """Return the usage in this API's form. ``is_estimated`` is only included if it is true."""
    if usage is None:
        return None
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    shown: Json = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": (prompt and prompt.cached_tokens) or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": (completion and completion.reasoning_tokens) or 0},
        "total_tokens": usage.total_tokens,
    }
    return shown | ({"is_estimated": True} if getattr(usage, "is_estimated", False) else {})


class ResponseEvents:
    """Encodes one answer as a response of this API; see ``AnswerEncoder``.

    Args:
        name: random letters and digits, from which the ids of the response and its items are made.
        model: name of the model, sent if no chunk names one.
        created: time when the answer began, in seconds since the epoch.
        echo: fields of the request that the response repeats.
        names: the request's functions in namespaces, if any.
    """

    keepalive = KEEPALIVE

    def __init__(self, *, name: str, model: str, created: int, echo: Mapping[str, Any], names: NamespacedNames | None = None) -> None:
        self._name = name
        self._names = names or NamespacedNames()
        self._head: Json = {"id": f"resp_{name}", "object": "response", "created_at": created, **echo, "model": model}
        self._parts = AnswerParts()
        self._reason: str | None = None
        self._call_ids = CallIds(f"call_{name}")
        self._sequence = 0
        self._has_begun = False

    def opening(self) -> bytes:
        """Return the events that begin a response, or b"" when called again."""
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response("in_progress")
        return self._emit("response.created", response=response) + self._emit("response.in_progress", response=response)

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Encode a chunk as events, after the opening if that hasn't been sent."""
        if not self._has_begun:
            self._head["model"] = chunk.model or self._head["model"]
        return self.opening() + self._encode(self._parts.add(chunk))

    def ending(self, reason: str | None) -> bytes:
        """Return the events that end the open items."""
        self._reason = self._parts.finish_reason or reason
        return self.opening() + self._encode(self._parts.end())

    def done(self) -> bytes:
        """Return the final event: ``response.completed``, or ``response.incomplete`` if a limit or a filter ended the answer."""
        response = self._finished(self._parts.begun, self._parts.usage)
        return self._emit(f"response.{response['status']}", response=response)

    def failing(self, failure: Failure) -> bytes:
        """Return the events that report a failure. Text and whole calls that waited for the name of another call come before them."""
        message, status = str(failure), failure.status
        code = failure.code or ("server_error" if status >= 500 else "invalid_request")
        kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        fields = {"code": code, "message": message, "param": failure.param}
        opening = self.opening() + self._encode(self._parts.fail())
        error = self._emit("error", **fields, error={"type": kind, **fields})
        named = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"  # codes that the API has
        output = [self._item(part, "incomplete" if part.is_open else "completed") for part in self._parts.begun]
        response = {**self._response("failed"), "output": output, "error": {"code": named, "message": message}}
        return opening + error + self._emit("response.failed", response=response)

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Encode a whole answer as one response object."""
        choice = answer.choices[0] if answer.choices else None
        self._reason = (choice.finish_reason if choice is not None else None) or reason
        self._head["model"] = answer.model or self._head["model"]
        parts = [] if choice is None else message_parts(choice.message, choice.logprobs)
        return encode(self._finished(parts, answer.usage))

    def _finished(self, parts: list[AnswerPart], usage: CompletionUsage | None) -> Json:
        why = _INCOMPLETE.get(self._reason or "")
        output = [self._item(part, self._status(part, len(parts))) for part in parts]
        response = self._response("incomplete" if why else "completed")
        return response | {"output": output, "usage": response_usage(usage), "incomplete_details": {"reason": why} if why else None}

    def _response(self, status: str) -> Json:
        return {**self._head, "status": status, "output": [], "usage": None, "error": None, "incomplete_details": None}

    def _status(self, part: AnswerPart, count: int) -> str:
        """Return the status of an item that has ended. The last item is incomplete if a limit or a filter ended the answer."""
        return "incomplete" if self._reason in _INCOMPLETE and part.index == count - 1 else "completed"

    def _encode(self, events: list[PartEvent]) -> bytes:
        return b"".join([self._encode_one(event) for event in events])

    def _encode_one(self, event: PartEvent) -> bytes:
        part = event.part
        place: Json = {"output_index": part.index, "item_id": self._item_id(part)}
        if part.call is None:
            place["content_index"] = 0
        if isinstance(event, PartBegan):
            return self._begun(part, place)
        if isinstance(event, PartEnded):
            return self._ended(part, place)
        more = {"logprobs": event.logprobs} if part.kind == "text" else {}
        return self._emit(f"{_event_of(part)}.delta", **place, delta=event.text, **more)

    def _begun(self, part: AnswerPart, place: Json) -> bytes:
        item = self._item(part, "in_progress", is_new=True)
        added = self._emit("response.output_item.added", output_index=part.index, item=item)
        if part.call is not None:
            return added
        return added + self._emit("response.content_part.added", **place, part=_content(part, is_new=True))

    def _ended(self, part: AnswerPart, place: Json) -> bytes:
        named = f"{_event_of(part)}.done"
        if part.call is not None:
            done = self._emit(named, **place, **{"input" if part.call.is_custom else "arguments": part.text})
        else:
            content = _content(part)
            shown = {"refusal": part.text} if part.kind == "refusal" else {"text": part.text}
            more = {"logprobs": part.logprobs} if part.kind == "text" else {}
            done = self._emit(named, **place, **shown, **more) + self._emit("response.content_part.done", **place, part=content)
        item = self._item(part, self._status(part, len(self._parts.begun)))
        return done + self._emit("response.output_item.done", output_index=part.index, item=item)

    def _item_id(self, part: AnswerPart) -> str:
        return f"{_PREFIXES[part.kind]}_{self._name}_{part.index}"

    def _item(self, part: AnswerPart, status: str, *, is_new: bool = False) -> Json:
        item: Json = {"id": self._item_id(part), "status": status}
        if part.call is not None:
            call_id = self._call_ids.of(part.index, part.call.id)
            arguments = "" if is_new else part.text
            if part.call.is_custom:
                return item | {"type": "custom_tool_call", "call_id": call_id, "name": part.call.name, "input": arguments}
            return item | {"type": "function_call", "call_id": call_id, **self._names.fields(part.call.name), "arguments": arguments}
        content = [] if is_new else [_content(part)]
        if part.kind == "reasoning":
            return item | {"type": "reasoning", "summary": [], "content": content}
        return item | {"type": "message", "role": "assistant", "content": content}

    def _emit(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named_event(kind, data)


_DELTAS = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
_CUSTOM = "response.custom_tool_call_input"


def _event_of(part: AnswerPart) -> str:
    return _CUSTOM if part.call is not None and part.call.is_custom else _DELTAS[part.kind]


def _content(part: AnswerPart, *, is_new: bool = False) -> Json:
    """Return an item's only content part. Its text is empty if the item is new."""
    text = "" if is_new else part.text
    match part.kind:
        case "refusal":
            return {"type": "refusal", "refusal": text}
        case "reasoning":
            return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [] if is_new else part.logprobs}
