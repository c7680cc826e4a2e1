"""Joins an answer's tool calls from their pieces, in all the forms in which real servers send them."""

from __future__ import annotations

import re

import msgspec

from streamco.openai_types import ChoiceDelta, ChunkChoice, CustomDelta, FunctionDelta, ToolCallDelta, further_fields
from streamco.wire.openai.further_parts import FurtherParts
from streamco.wire.text_halves import join_pairs

__all__ = ["THINKING", "CallParts", "ChoiceNumbers", "JSONPieces", "ToolCalls", "arguments_of"]

_MARKS = re.compile(r'["\[\]{}]|\\.?', re.DOTALL)
_MAX_SCALAR = 32  # pieces of a number or a word


class JSONPieces:
    """Tells whether a text that comes in pieces is already one whole JSON value. Each piece is read only once, however often you ask.

    Args:
        pieces: the pieces so far. The object keeps this list, to which you may only append.
    """

    __slots__ = ("_depth", "_has_begun", "_is_closed", "_is_scalar", "_is_text", "_read", "_rest", "_verdict", "pieces")

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self._read = 0  # number of pieces
        self._rest = ""  # a backslash whose character hasn't come
        self._depth = 0
        self._is_text = False  # within a string
        self._has_begun = False
        self._is_scalar = False
        self._is_closed = False  # True once the first value has ended
        self._verdict: bool | None = None  # whether the text is JSON, once the value has ended; None if not known yet

    @property
    def is_whole(self) -> bool:
        """True if the pieces together are one JSON value."""
        for piece in self.pieces[self._read :]:
            self._add(piece)
        self._read = len(self.pieces)
        if self._is_scalar:
            return self._read <= _MAX_SCALAR and _is_json("".join(self.pieces))
        if self._is_closed and self._verdict is None:
            self._verdict = _is_json("".join(self.pieces))
        return bool(self._verdict)

    def _add(self, piece: str) -> None:
        if self._is_closed or self._is_scalar:
            self._end(piece)
            return
        if not self._has_begun:
            piece = piece.lstrip()
            self._has_begun = bool(piece)
            self._is_scalar = self._has_begun and piece[0] not in '{["'
        text, self._rest = self._rest + piece, ""
        for mark in _MARKS.finditer(text):
            if self._closes(mark[0]):
                self._is_closed = True
                self._end(text[mark.end() :])
                return

    def _closes(self, mark: str) -> bool:
        """Process a quotation mark, a bracket or a backslash. Returns True if the first value ends there."""
        if mark == '"':
            self._is_text = not self._is_text
        elif mark == "\\":
            self._rest = mark
        elif mark in "{[" and not self._is_text:
            self._depth += 1
        elif mark in "}]" and not self._is_text:
            self._depth -= 1
        return not self._is_text and self._depth <= 0 and mark in '"}]'

    def _end(self, after: str) -> None:
        """Check the text after the first value, which may only be blank."""
        if self._is_closed and after.strip():
            self._verdict = False


THINKING = ("reasoning_text", "thinking")
"""Additional fields of a delta in which GitHub Copilot and gateways to Anthropic send thinking."""


class CallParts:
    """One tool call so far. ``arguments`` are the pieces of its JSON text, or of a custom tool's input."""

    def __init__(self, index: int = 0, name: str = "") -> None:
        self.index = index
        """Number of the call in the answer."""
        self.id = ""
        self.kind = ""
        self.is_custom = False
        """True if this is a call of a custom tool, whose input can be any text."""
        self.repeats_name = False
        """True if the server has sent the call's name again."""
        self.has_index = False
        """True if the server has given the call an index."""
        self.arguments: list[str] = []
        self.json = JSONPieces(self.arguments)
        self.further = FurtherParts(are_deltas=False)
        self.function_further = FurtherParts(are_deltas=False)
        self._names = [name]
        self._name_length = len(name)

    @property
    def name(self) -> str:
        """The tool's name, joined from its pieces, because some servers split it."""
        if len(self._names) > 1:
            self._names = ["".join(self._names)]
        return self._names[0]

    def add_name(self, piece: str) -> None:
        """Add a piece of the name."""
        self._names.append(piece)
        self._name_length += len(piece)

    def is_named(self, name: str) -> bool:
        """Return True if ``name`` equals the call's name so far."""
        return len(name) == self._name_length and name == self.name

    @property
    def has_name(self) -> bool:
        """True if any part of the name has come."""
        return self._name_length > 0


class ToolCalls:
    """Collects the tool calls in an answer's deltas, in the order in which they began.

    A delta belongs to the call with its index. Without an index it belongs to the call with its id, and without either to the last call. A
    new index continues a call without an index if it comes with that call's id. It also continues the last call if it comes with neither
    id nor name.

    Otherwise a new index begins a call. Some servers give every parallel call the same index, or none. There, a new call begins with a new
    id that comes with a name. If there is no id, it begins with a name that comes after arguments that are a whole JSON value. The input of
    a custom tool can be any text and may continue at any time, so only a different name begins a new call after it. A new id without a name
    begins no call, because some servers make a new id for each delta. Nor does the same name alone, if it was repeated before.
    """

    def __init__(self) -> None:
        self.calls: list[CallParts] = []
        self._by_index: dict[int, CallParts] = {}
        self._by_id: dict[str, CallParts] = {}

    def add(self, delta: ToolCallDelta) -> CallParts:
        """Add a piece, and return the call that it belongs to."""
        part = _part_of(delta)
        call = self._find(delta, part) or self._begin()
        self._add(delta, part, call)
        return call

    def settle(self, delta: ToolCallDelta) -> None:
        """Add a piece, and change it so that its index alone tells which call it belongs to, as with OpenAI's servers.

        The index becomes the call's number. An id or a name that the call already has is removed, and so is an empty ``custom``.
        """
        if self._add_plain(delta):
            return
        part = _part_of(delta)
        call = self._find(delta, part) or self._begin()
        has_id = bool(call.id)
        is_repeated = part is not None and part.name is not None and call.is_named(part.name)
        self._add(delta, part, call)
        delta.index = call.index
        if has_id:
            delta.id = None
        if is_repeated and part is not None:
            part.name = None
        if part is not delta.custom:
            delta.custom = None

    def _add_plain(self, delta: ToolCallDelta) -> bool:
        """Add a piece that has only arguments and its call's index, as most pieces do. Returns False for any other piece."""
        function = delta.function
        if type(delta) is not ToolCallDelta or type(function) is not FunctionDelta or delta.index is None:
            return False
        if delta.id is not None or delta.type is not None or delta.custom is not None or function.name is not None:
            return False
        call = self._by_index.get(delta.index)
        if call is None or call.is_custom:
            return False
        if function.arguments:
            call.arguments.append(function.arguments)
        delta.index = call.index
        return True

    def _add(self, delta: ToolCallDelta, part: FunctionDelta | CustomDelta | None, call: CallParts) -> None:
        if delta.index is not None:
            self._by_index[delta.index] = call
            call.has_index = True
        if delta.id and not call.id:
            call.id = delta.id
            self._by_id.setdefault(delta.id, call)
        call.kind = delta.type or call.kind
        if further := further_fields(delta):
            call.further.add(further)
        if part is None:
            return
        if further := further_fields(part):
            call.function_further.add(further)
        if part.name:
            if call.is_named(part.name):
                call.repeats_name = True
            else:
                call.add_name(part.name)
        call.is_custom = call.is_custom or isinstance(part, CustomDelta)
        if text := _text_of(part):
            call.arguments.append(text)

    def _find(self, delta: ToolCallDelta, part: FunctionDelta | CustomDelta | None) -> CallParts | None:
        """Return the call that a piece belongs to, or None if the piece begins a new call."""
        name = part.name if part is not None else None
        last = self.calls[-1] if self.calls else None
        if delta.index is not None:
            call = self._by_index.get(delta.index)
            if call is None:
                known = self._by_id.get(delta.id) if delta.id else None if name else last
                return known if known is not None and not known.has_index else None
            if delta.id and call.id and delta.id != call.id:
                return self._by_id.get(delta.id) or (None if name else call)
        elif delta.id:
            return self._by_id.get(delta.id) or (None if name else last)
        else:
            call = last
        if call is None or delta.id or part is None or not name or not call.has_name:
            return call
        return None if self._begins(part, name, call) else call

    def _begins(self, part: FunctionDelta | CustomDelta, name: str, call: CallParts) -> bool:
        """Return True if a name without an id begins a new call after ``call``, which already has a name."""
        if not call.arguments:
            return False  # the name is split
        if call.is_custom:
            return not call.is_named(name)
        if call.repeats_name and not _text_of(part) and call.is_named(name):
            return False
        return call.json.is_whole

    def _begin(self) -> CallParts:
        self.calls.append(CallParts(len(self.calls)))
        return self.calls[-1]


class ChoiceNumbers:
    """Numbers an answer's choices and their calls as OpenAI's own servers do."""

    def __init__(self, *, is_one: bool) -> None:
        self._is_one = is_one
        self._calls: dict[int, ToolCalls] = {}

    def settle(self, choice: ChunkChoice) -> None:
        """Correct the numbers of a choice and its calls, and copy thinking to ``reasoning_content`` if it came under another name."""
        if self._is_one:
            choice.index = 0
        delta = choice.delta
        if type(delta) is not ChoiceDelta and not (delta.reasoning_content or delta.reasoning):
            further = further_fields(delta)
            delta.reasoning_content = next((text for name in THINKING if isinstance(text := further.get(name), str) and text), None)
        if delta.tool_calls:
            calls = self._calls.get(choice.index)
            if calls is None:
                calls = self._calls[choice.index] = ToolCalls()
            for call in delta.tool_calls:
                calls.settle(call)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(join_pairs(text).encode("utf-8", "replace"))  # the pieces that readers get are joined later
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def _part_of(delta: ToolCallDelta) -> FunctionDelta | CustomDelta | None:
    """Return a delta's ``function`` or ``custom``, whichever has content. Some servers send an empty ``custom`` with each function."""
    custom = delta.custom
    return custom if custom is not None and (delta.function is None or custom.name or custom.input) else delta.function


def arguments_of(delta: ToolCallDelta) -> str | None:
    """Return the piece of arguments or input in a delta, or None if it has none."""
    part = _part_of(delta)
    return None if part is None else _text_of(part)


def _text_of(part: FunctionDelta | CustomDelta) -> str | None:
    return part.arguments if isinstance(part, FunctionDelta) else part.input
