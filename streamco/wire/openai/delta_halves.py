"""Joins halves of characters in the deltas of a chat answer, where a text continues in later deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from streamco.openai_types import (
    ChoiceDelta,
    ChunkChoice,
    CustomDelta,
    FunctionDelta,
    ResponseModel,
    ToolCallDelta,
    further_fields,
    with_further,
)
from streamco.wire.openai.tool_calls import THINKING
from streamco.wire.text_halves import HALF, TextHalves, whole_values

__all__ = ["DeltaHalves", "make_whole"]

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")

_Model = TypeVar("_Model", bound=ResponseModel)
_Text = tuple[int, str, int]
"""Identifies a text: the number of its choice, its name and, for a call's text, the call's number, otherwise 0."""


class DeltaHalves:
    """Joins the halves of characters in the deltas of one answer. Each parser owns one.

    If a choice continues with another text, a half is given up and becomes U+FFFD, because servers that cut characters write one text
    after the other.
    """

    def __init__(self) -> None:
        self._halves = TextHalves()
        self._open: dict[int, set[_Text]] = {}  # texts with a held half, by choice
        self.is_open = False
        """True if a half is waiting for its other half."""

    def join(self, choice: ChunkChoice) -> bool:
        """Make the characters in a choice's delta whole. Returns True if a text ends with half a character, which is held back.

        Args:
            choice: the choice. It and its calls must already have the numbers that the reader gets.
        """
        before = self._open.pop(choice.index, set())
        held: set[_Text] = set()
        has_text = False
        for (name, number), owner, key in _pieces(choice.delta):
            piece = owner[key] if isinstance(owner, dict) else getattr(owner, key)
            if not (isinstance(piece, str) and piece):
                continue
            has_text = True
            text = (choice.index, name, number)
            piece = self._halves.join(text, piece)
            if isinstance(owner, dict):
                owner[key] = piece
            else:
                setattr(owner, key, piece)
            if self._halves.holds(text):
                held.add(text)
            before.discard(text)
        make_whole(choice.delta)
        make_whole(choice)
        if has_text:
            for text in sorted(before):
                self._halves.give_up(text)
                choice.delta = _with_half(choice.delta, text)
            before = set()
        if before or held:
            self._open[choice.index] = before | held
        self.is_open = bool(self._open)
        return bool(held)

    def give_up_all(self) -> list[tuple[int, ChoiceDelta]]:
        """Drop all held halves. Returns one delta for each choice that had some, with the choice's number, to end its texts with U+FFFD."""
        self._open.clear()
        self.is_open = False
        ends: dict[int, ChoiceDelta] = {}
        for text in self._halves.give_up_all():
            ends[text[0]] = _with_half(ends.get(text[0]) or ChoiceDelta(), text)
        return list(ends.items())


def make_whole(model: _Model) -> _Model:
    """Replace halves of characters in an object's additional fields, where no other half can follow, and return the object."""
    further = further_fields(model)
    further.update({name: whole_values(value) for name, value in further.items()})
    return model


def _pieces(delta: ChoiceDelta) -> Iterator[tuple[tuple[str, int], Any, str]]:
    """Yield each place in a delta that may hold text: the text's name and number, the object with the field, and the field's name."""
    for name in _TEXTS:
        yield (name, 0), delta, name
    further = further_fields(delta)
    for name in further.keys() & THINKING:
        yield (name, 0), further, name
    for call in delta.tool_calls or ():
        if call.function is not None:
            yield ("arguments", call.index or 0), call.function, "arguments"
        if call.custom is not None:
            yield ("input", call.index or 0), call.custom, "input"
    if delta.function_call is not None:
        yield ("function_call", 0), delta.function_call, "arguments"


def _with_half(delta: ChoiceDelta, text: _Text) -> ChoiceDelta:
    """Add U+FFFD to a delta, as the end of a text of which the delta has no piece."""
    _, name, number = text
    match name:
        case "arguments":
            delta.tool_calls = [ToolCallDelta(index=number, function=FunctionDelta(arguments=HALF)), *(delta.tool_calls or ())]
        case "input":
            delta.tool_calls = [ToolCallDelta(index=number, custom=CustomDelta(input=HALF)), *(delta.tool_calls or ())]
        case "function_call":
            function = delta.function_call or FunctionDelta()
            function.arguments = HALF + (function.arguments or "")
            delta.function_call = function
        case _ if name in THINKING:
            return with_further(delta, {name: HALF})
        case _:
            setattr(delta, name, HALF)
    return delta
