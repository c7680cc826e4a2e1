"""The tool calls of an answer from their pieces, as real servers send them."""

from __future__ import annotations

import msgspec

from streamco.openai_types import ChoiceDelta, ChunkChoice, CustomDelta, FunctionDelta, ToolCallDelta, further_fields
from streamco.wire.openai.further_parts import FurtherParts

__all__ = ["CallParts", "ChoiceNumbers", "ToolCalls", "is_json", "text_of"]


_THINKING = ("reasoning_text", "thinking")  # GitHub Copilot; gateways to Anthropic


class CallParts:
    """One tool call so far; ``arguments`` are the pieces of its JSON text, or of a custom tool's input."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        """Number of the call in the answer."""
        self.id = ""
        self.kind = ""
        self.name = ""
        self.is_custom = False
        """True for the call of a custom tool, whose input is any text."""
        self.repeats_name = False
        """True if its name has come again."""
        self.arguments: list[str] = []
        self.further = FurtherParts(are_deltas=False)
        self.function_further = FurtherParts(are_deltas=False)


class ToolCalls:
    """The tool calls in deltas as real servers send them, in the order in which they began.

    A delta belongs to the call with its index. Without an index it belongs to the call with its id, without either to the last call.

    A call begins with a new index. Some servers give every parallel call the same index, or none. There, a new call begins with a new id
    that comes with a name, or, without an id, with a name after arguments that are a whole JSON value. A new id without a name begins
    none, because some servers make a new id for each delta. Nor does the same name alone, if it was repeated before.
    """

    def __init__(self) -> None:
        self.calls: list[CallParts] = []
        self._by_index: dict[int, CallParts] = {}
        self._by_id: dict[str, CallParts] = {}

    def add(self, delta: ToolCallDelta) -> CallParts:
        """Add a piece, and return the call that it belongs to."""
        part = _part_of(delta)
        call = self._find(delta, part) or self._begin()
        if delta.index is not None:
            self._by_index[delta.index] = call
        if delta.id and not call.id:
            call.id = delta.id
            self._by_id.setdefault(delta.id, call)
        call.kind = delta.type or call.kind
        if further := further_fields(delta):
            call.further.add(further)
        if part is None:
            return call
        if further := further_fields(part):
            call.function_further.add(further)
        if part.name == call.name:
            call.repeats_name = bool(call.name)
        else:
            call.name += part.name or ""  # some servers split it
        call.is_custom = call.is_custom or isinstance(part, CustomDelta)
        if text := _text_of(part):
            call.arguments.append(text)
        return call

    def settle(self, delta: ToolCallDelta) -> None:
        """Add a piece, and make it one that can be joined to the others by its index alone, as those of OpenAI's own servers.

        Its index becomes the call's number. An id or a name that the call has already, and an empty ``custom``, are taken out.
        """
        part = _part_of(delta)
        known = self._find(delta, part)
        known_id, known_name = (known.id, known.name) if known is not None else ("", "")
        call = self.add(delta)
        delta.index = call.index
        if known_id:
            delta.id = None
        if part is not None and part.name == known_name:
            part.name = None
        if part is not delta.custom:
            delta.custom = None

    def _find(self, delta: ToolCallDelta, part: FunctionDelta | CustomDelta | None) -> CallParts | None:
        name = part.name if part is not None else None
        if delta.index is not None:
            call = self._by_index.get(delta.index)
            if call is not None and delta.id and call.id and delta.id != call.id:
                return self._by_id.get(delta.id) or (None if name else call)
        elif delta.id:
            return self._by_id.get(delta.id) or (None if name or not self.calls else self.calls[-1])
        else:
            call = self.calls[-1] if self.calls else None
        if call is None or delta.id or part is None or not name or not call.name:
            return call
        is_repeated = call.repeats_name and name == call.name and not _text_of(part)
        return call if is_repeated or not call.arguments or not (call.is_custom or is_json("".join(call.arguments))) else None

    def _begin(self) -> CallParts:
        self.calls.append(CallParts(len(self.calls)))
        return self.calls[-1]


class ChoiceNumbers:
    """Numbers the choices and the calls in them, as OpenAI's own servers do."""

    def __init__(self, *, is_one: bool) -> None:
        self._is_one = is_one
        self._calls: dict[int, ToolCalls] = {}

    def settle(self, choice: ChunkChoice) -> None:
        """Change what some servers number otherwise, and name the thinking as most do, beside the name that it came under."""
        if self._is_one:
            choice.index = 0
        delta = choice.delta
        if type(delta) is not ChoiceDelta and not (delta.reasoning_content or delta.reasoning):
            further = further_fields(delta)
            delta.reasoning_content = next((text for name in _THINKING if isinstance(text := further.get(name), str) and text), None)
        for call in choice.delta.tool_calls or ():
            self._calls.setdefault(choice.index, ToolCalls()).settle(call)


def is_json(text: str) -> bool:
    """Return True if a text is one whole JSON value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def _part_of(delta: ToolCallDelta) -> FunctionDelta | CustomDelta | None:
    """Return the piece of the function's or the custom tool's call. Some servers send an empty ``custom`` beside each function."""
    custom = delta.custom
    return custom if custom is not None and (delta.function is None or custom.name or custom.input) else delta.function


def text_of(delta: ToolCallDelta) -> str | None:
    """Return the piece of the arguments or of the input in a delta; None: it has none."""
    part = _part_of(delta)
    return None if part is None else _text_of(part)


def _text_of(part: FunctionDelta | CustomDelta) -> str | None:
    return part.arguments if isinstance(part, FunctionDelta) else part.input
