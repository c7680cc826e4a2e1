"""Translates the input of a request to the Responses API into chat messages.

Adjacent function calls, with an assistant message before or between them, become one chat message, because chat servers expect the outputs
right after it. The role ``developer`` becomes ``system``, which every chat template knows. Reasoning is sent back only with the calls of
the last turn (``keep_open_reasoning``). Images in outputs move into a user message (``place_images``).
"""

from __future__ import annotations

from typing import Any

from streamco.wire.request_fields import FieldError, Fields, name_of, unoffered
from streamco.wire.responses_api.namespaces import NamespacedNames
from streamco.wire.translated_request import keep_open_reasoning, place_images, tool_message

__all__ = ["read_input"]

Json = dict[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_ITEMS = "message, function_call, function_call_output or reasoning"
_PARTS = "input_text, output_text, refusal, input_image, input_file or input_audio"


def read_input(value: Any, instructions: str | None, names: NamespacedNames | None = None) -> list[Json]:
    """Return the chat messages of a request.

    Args:
        value: the decoded field ``input``, or None if it isn't given.
        instructions: text of a system message that is put first, or None.
        names: the request's functions in namespaces, if any.

    Raises:
        FieldError: an item can't be served.
    """
    conversation = _Conversation(names or NamespacedNames())
    if instructions is not None:
        conversation.messages.append({"role": "system", "content": instructions})
    match value:
        case str():
            conversation.messages.append({"role": "user", "content": value})
        case [_, *_]:
            for index, item in enumerate(value):
                conversation.add(Fields(item, f"input[{index}]"))
        case []:
            raise FieldError("input", "expected at least one item, got none")
        case _:
            raise FieldError("input", f"expected a string or a list of items, got {'none' if value is None else name_of(value)}")
    keep_open_reasoning(conversation.messages)
    return place_images(conversation.messages)


class _Conversation:
    def __init__(self, names: NamespacedNames) -> None:
        self.messages: list[Json] = []
        self._names = names
        self._reasoning = ""  # from the items before the next item of the assistant

    def add(self, item: Fields) -> None:
        kind = item.text("type") or "message"
        match kind:
            case "message":
                self._add_message(item)
            case "function_call":
                self._add_call(item)
            case "function_call_output":
                self._add_output(item)
            case "reasoning":
                self._reasoning += "".join([part.needed_text("text") for part in item.objects("content")])
            case _:
                raise FieldError(item.where("type"), f"expected {_ITEMS}, got {kind[:100]}", code="unsupported_parameter")

    def _add_message(self, item: Fields) -> None:
        named = item.needed_text("role")
        role = _ROLES.get(named)
        if role is None:
            raise FieldError(item.where("role"), f"expected {', '.join(_ROLES)}, got {named[:100]}")
        where = item.where("content")
        content = item.take("content")
        message: Json = {"role": role}
        if role == "assistant":
            message |= _answer_content(content, where)
            if self.messages and "tool_calls" in self.messages[-1]:
                _join(self.messages[-1], message)
                message = self.messages.pop()
            self._give_reasoning(message)
        else:
            message["content"] = _content(content, where)
            self._reasoning = ""
        self.messages.append(message)

    def _add_call(self, item: Fields) -> None:
        name = self._names.chat_name(item.text("namespace"), item.needed_text("name"))
        function = {"name": name, "arguments": item.needed_text("arguments")}
        call = {"id": item.needed_text("call_id"), "type": "function", "function": function}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        message = self.messages[-1]
        self._give_reasoning(message)
        message.setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Fields) -> None:
        output = item.take("output")
        where = item.where("output")
        result = output if isinstance(output, str) else [_part(part, is_result=True) for part in _parts(output, where)]
        self.messages.append(tool_message(item.needed_text("call_id"), result))

    def _give_reasoning(self, message: Json) -> None:
        if self._reasoning:
            message["reasoning_content"] = message.get("reasoning_content", "") + self._reasoning
            self._reasoning = ""


def _join(earlier: Json, later: Json) -> None:
    """Append the texts of a message to an earlier message."""
    for name in ("content", "refusal"):
        if (text := later.get(name)) is not None:
            earlier[name] = (earlier.get(name) or "") + text


def _parts(value: Any, where: str) -> list[Fields]:
    if not isinstance(value, list):
        raise FieldError(where, f"expected a string or a list of parts, got {'none' if value is None else name_of(value)}")
    return [Fields(each, f"{where}[{index}]") for index, each in enumerate(value)]


def _content(value: Any, where: str) -> Any:
    """Translate the content of a message that isn't from the assistant. Returns a string if it is a single text, otherwise parts."""
    if isinstance(value, str):
        return value
    parts = [_part(part) for part in _parts(value, where)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Fields, *, is_result: bool = False) -> Json:
    """Translate a part of a message, or of a function's output, which may only have texts and images."""
    kind = part.needed_text("type")
    match kind:
        case "input_text" | "output_text":
            return {"type": "text", "text": part.needed_text("text")}
        case "input_image":
            return {"type": "image_url", "image_url": _image(part)}
        case "input_file" if not is_result:
            return {"type": "file", "file": _file(part)}
        case "input_audio" if not is_result:
            return {"type": "input_audio", "input_audio": part.needed_object("input_audio")}
    expected = "input_text or input_image" if is_result else _PARTS
    raise FieldError(part.where("type"), f"expected {expected}, got {kind[:100]}", code="unsupported_parameter")


def _image(part: Fields) -> Json:
    if part.take("file_id") is not None:
        raise unoffered(part.where("file_id"))
    detail = part.text("detail")
    return {"url": part.needed_text("image_url")} | ({} if detail is None else {"detail": detail})


def _file(part: Fields) -> Json:
    for name in ("file_id", "file_url"):
        if part.take(name) is not None:
            raise unoffered(part.where(name))
    filename = part.text("filename")
    return {"file_data": part.needed_text("file_data")} | ({} if filename is None else {"filename": filename})


def _answer_content(value: Any, where: str) -> Json:
    """Return the chat fields ``content`` and ``refusal`` of an assistant message, each as one text."""
    if isinstance(value, str):
        return {"content": value}
    texts, refusals = [], []
    for part in _parts(value, where):
        kind = part.needed_text("type")
        if kind == "refusal":
            refusals.append(part.needed_text("refusal"))
        elif kind in {"output_text", "input_text"}:
            texts.append(part.needed_text("text"))
        else:
            raise FieldError(part.where("type"), f"expected output_text or refusal, got {kind[:100]}", code="unsupported_parameter")
    content = "".join(texts) if texts or not refusals else None
    return {"content": content} | ({"refusal": "".join(refusals)} if refusals else {})
