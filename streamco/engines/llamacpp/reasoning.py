"""The reasoning in a model's text: what it thinks between ``<think>`` and ``</think>`` before it answers.

Servers of such models send reasoning separately from the content (DeepSeek's ``reasoning_content``). A model in this process writes one
text, which is split here. Only the beginning of an answer is reasoning: either the model writes ``<think>`` first, or its chat template has
ended the prompt with it. A tag that comes later is content, because the model may be writing about tags.

The tags, and the whitespace around them, are in neither part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from streamco.engines.base import Engine, ReasoningFormat, TextPiece

__all__ = ["TAGS", "ReasoningSplitter", "closed_prompt", "has_reasoning", "opens_reasoning", "splits_reasoning"]

OPEN, CLOSE = TAGS = "<think>", "</think>"
_CLOSING = "\n</think>\n\n"  # ends reasoning that hasn't begun, as templates do for answers without any
_TAIL = 32  # how many tokens at a prompt's end to look at: the tag, if it's spelled out in several tokens, and whitespace
_NAMES = re.compile(r"deepseek[-_ .]?r1|(?<![a-z])(qwq|think(er|ing)?|reason(er|ing))(?![a-z])", re.IGNORECASE)

_State = Literal["start", "lead", "reasoning", "gap", "content"]


def has_reasoning(name: str, template: str) -> bool:
    """Return True if a model thinks before it answers, judging by its name or the source of its chat template."""
    return CLOSE in template or _NAMES.search(name) is not None


def splits_reasoning(form: ReasoningFormat, *, has_reasoning: bool) -> bool:
    """Return True if reasoning is separated from content, given the option and whether the model is known to reason."""
    return form == "deepseek" or (form == "auto" and has_reasoning)


def opens_reasoning(engine: Engine, ids: Sequence[int]) -> bool:
    """Return True if a prompt ends with ``<think>``, so that the answer begins inside the reasoning.

    Only the text after the last control token counts: what comes before it may be a message that ends with the tag.
    """
    return engine.info.has_reasoning and engine.detokenize(_after_control(engine, ids[-_TAIL:])).rstrip().endswith(OPEN.encode())


def _after_control(engine: Engine, ids: Sequence[int]) -> Sequence[int]:
    """Return the ids after the last control token, which is recognised by having no bytes."""
    return ids[next((end for end in range(len(ids), 0, -1) if not engine.detokenize(ids[end - 1 : end])), 0) :]


def closed_prompt(engine: Engine, ids: list[int]) -> list[int]:
    """Return a prompt with its reasoning closed, for an answer whose content has begun or must have a certain format."""
    return [*ids, *engine.tokenize(_CLOSING, special=True)] if opens_reasoning(engine, ids) else ids


class ReasoningSplitter:
    """Separates the reasoning of one answer from its content. Only the text of the tags and of the whitespace around them is lost.

    Ids stay with the text that they belong to. Tags and the whitespace around them become pieces that have ids but no text. If a token ends
    with content but begins with something else, that content has no id.

    Args:
        is_open: the prompt ends with ``<think>``.
    """

    __slots__ = ("_held", "_is_open", "_state", "_text")

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._state: _State = "start"
        self._held: list[TextPiece] = []
        self._text = ""  # of the held pieces

    def split(self, pieces: Sequence[TextPiece]) -> list[TextPiece]:
        """Return the pieces that are now known to be reasoning or content, in order."""
        return list(pieces) if self._state == "content" else [each for piece in pieces for each in self._add(piece)]

    def flush(self) -> list[TextPiece]:
        """Return the pieces that are still held back at the end, since half a tag is text, too."""
        is_reasoning = self._state in {"lead", "reasoning"} or (self._state == "start" and self._is_open)
        return list(self._take(len(self._text), is_reasoning=is_reasoning))

    def _add(self, piece: TextPiece) -> Iterator[TextPiece]:
        if self._state == "content":
            yield piece
            return
        self._held.append(piece)
        self._text += piece.text
        state: _State | None = None
        while state != self._state:
            state = self._state
            yield from self._step()

    def _step(self) -> Iterator[TextPiece]:
        """Yield the pieces that the current state allows, and move on to the next state if this one is over."""
        text = self._text
        begun = text.lstrip()
        match self._state:
            case "start":
                if begun.startswith(OPEN):
                    yield from self._drop(len(text) - len(begun) + len(OPEN))
                    self._state = "lead"
                elif not OPEN.startswith(begun):
                    self._state = "lead" if self._is_open else "content"
            case "lead" | "gap":
                yield from self._drop(len(text) - len(begun))
                if begun:
                    self._state = "reasoning" if self._state == "lead" else "content"
            case "reasoning":
                end = text.find(CLOSE)
                if end >= 0:
                    yield from self._take(len(text[:end].rstrip()), is_reasoning=True)
                    yield from self._drop(len(self._text) - len(text) + end + len(CLOSE))
                    self._state = "gap"
                else:
                    yield from self._take(_settled(text), is_reasoning=True, is_whole=True)
            case "content":
                yield from self._take(len(text), is_reasoning=False)

    def _drop(self, length: int) -> Iterator[TextPiece]:
        """Take this many characters out of the text, keeping only their ids."""
        for piece in self._take(length, is_reasoning=True):
            if piece.ids or piece.is_cut:
                yield replace(piece, text="")

    def _take(self, length: int, *, is_reasoning: bool, is_whole: bool = False) -> Iterator[TextPiece]:
        """Take this many characters from the held pieces, or fewer with ``is_whole``, if they would end inside a piece."""
        while self._held and (self._text[:length] or not self._held[0].text):
            piece = self._held[0]
            size = len(piece.text)
            if size <= length:
                self._held.pop(0)
                yield replace(piece, is_reasoning=is_reasoning)
            elif is_whole:
                return
            else:
                size = length
                self._held[0] = TextPiece(piece.text[size:], (), None, piece.is_cut)
                yield TextPiece(piece.text[:size], piece.ids, piece.tops, is_reasoning=is_reasoning)
            self._text = self._text[size:]
            length -= size


def _settled(text: str) -> int:
    """Return how much of a text is reasoning whatever follows: all except whitespace and the beginning of a closing tag at its end."""
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if text.endswith(CLOSE[:length]):
            text = text[:-length]
            break
    return len(text.rstrip())
