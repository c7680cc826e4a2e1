"""When an answer is generated again, the restart filter drops the text that the reader already has, and passes on the rest.

An endpoint that can't be given the beginning of an answer can only be sent the whole request again, with the caller's consent. Its text is
compared with the answer so far, character by character from position 0 to the end of that answer. Nothing else is tried. So if text
repeats ("ha ha ha"), it is dropped as often as the reader has it, and one more repetition is new and is shown. Searching for the longest
overlap between the end of the old text and the beginning of the new one would be a guess, and would drop intended repetitions.

The text decides, in code points, because text is what the reader has. If old and new ids come from one vocabulary, they show more: where
the new part begins inside a chunk of several tokens, or after a token that doesn't complete a character. Different ids for the same text
are a different spelling, not a divergence. Then the first new text has no ids, because all ids together might not spell the whole answer.

Nothing is passed on before the new answer has reached the end of the old one, because the reader must not see any of an answer that
diverges. Roles and reasoning before that point belong to text that the reader has, so they are dropped.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from streamco.events import Partial, TokensReceived, common_prefix_length
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

__all__ = ["Diverged", "RestartFilter"]

_EXCERPT = 20  # code points


class Diverged(Struct, frozen=True):
    """A restarted answer differs from the text that the reader has, so it can't supply the rest.

    Args:
        position: number of code points that were the same.
        expected: an excerpt of the old answer after that position.
        got: an excerpt of the new answer after that position; "" if the new answer ended there.
    """

    position: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"restarted answer: expected {self.expected!r} at character {self.position}, got {repr(self.got) if self.got else 'its end'}"


class RestartFilter:
    """Drops text that the reader already has from a restarted answer. The attempt owns it. It doesn't change the chunks it is fed.

    Args:
        partial: the answer so far.
        vocabulary: fingerprint of the endpoint's tokenizer; None if not known.
    """

    __slots__ = ("_diverged", "_id_position", "_ids", "_is_exact", "_is_uncertain", "_position", "_text")

    def __init__(self, partial: Partial, vocabulary: str | None = None) -> None:
        self._text = partial.text
        self._position = 0
        self._is_exact = partial.ids is not None and vocabulary is not None and vocabulary == partial.vocabulary
        self._ids = partial.ids if partial.ids is not None and self._is_exact else ()
        self._id_position = 0
        self._is_uncertain = False  # old and new ids together may not spell the answer, so the next text has no ids
        self._diverged: Diverged | None = None

    @property
    def is_open(self) -> bool:
        """True while events must still be fed. Once it is False, everything that follows is new."""
        return self._lacks_text or self._lacks_ids or self._is_uncertain

    @property
    def _lacks_text(self) -> bool:
        return self._position < len(self._text)

    @property
    def _lacks_ids(self) -> bool:
        return self._is_exact and self._id_position < len(self._ids)

    def feed(self, event: TokensReceived) -> TokensReceived | Diverged | None:
        """Return the new part of an event, None if nothing is new yet, or ``Diverged`` if the answer differs and can't be used."""
        if not self.is_open:
            return event
        taken = [self._take(chunk) if self.is_open else chunk for chunk in event.chunks]
        if self._diverged is not None:
            return self._diverged
        passed = [chunk for chunk in taken if chunk is not None]
        return TokensReceived(event.source, passed, _count(event, taken)) if passed else None

    def end(self) -> Diverged | None:
        """Handle the end of the stream. Return ``Diverged`` if the new answer is shorter than the reader's text, or had diverged before."""
        if self._diverged is None and self._lacks_text:
            self._diverge("")
        return self._diverged

    def _take(self, chunk: ChatCompletionChunk) -> ChatCompletionChunk | None:
        """Return the chunk without the text that the reader has, or None if nothing is left."""
        if self._diverged is not None or not chunk.choices:
            return None if self._lacks_text else chunk
        choice = chunk.choices[0]
        had_text = not self._lacks_text
        taken = self._take_text(choice)
        if taken is None:
            return None
        new = (choice.delta.content or "")[taken:]
        ids = self._take_ids(choice, taken, new)
        if self._lacks_text:
            if choice.finish_reason is not None:
                self._diverge("")
            return None
        self._is_uncertain = self._is_uncertain and not new
        delta = (
            choice.delta if had_text else replace(choice.delta, role=None, reasoning=None, reasoning_content=None, reasoning_details=None)
        )
        delta = replace(delta, content=new or None)
        if delta == ChoiceDelta() and not (ids or choice.finish_reason or chunk.usage or chunk.choices[1:]):
            return None
        logprobs = None if taken else choice.logprobs
        return replace(chunk, choices=[replace(choice, delta=delta, token_ids=ids, logprobs=logprobs), *chunk.choices[1:]])

    def _take_text(self, choice: ChunkChoice) -> int | None:
        """Return how many code points of a choice the reader has, or None if the text diverges."""
        delta = choice.delta
        text = delta.content or ""
        wanted = self._text[self._position : self._position + len(text)]
        same = len(wanted) if text.startswith(wanted) else common_prefix_length(wanted, text)
        self._position += same
        if same < len(wanted):
            self._diverge(text[same:])
            return None
        if self._lacks_text and (delta.tool_calls or delta.function_call or delta.refusal):
            self._diverge(delta.refusal or "a tool call")
            return None
        return same

    def _take_ids(self, choice: ChunkChoice, taken: int, new: str) -> list[int] | None:
        """Return the ids of the new text in a choice, or None if there are none or they would not spell exactly that text."""
        given = choice.token_ids or []
        if not self._is_exact:
            return None if taken or self._is_uncertain else choice.token_ids
        wanted = self._ids[self._id_position : self._id_position + len(given)]
        self._id_position += len(wanted)
        rest = given[len(wanted) :]
        if tuple(given[: len(wanted)]) != wanted or (new and self._lacks_ids) or (rest and self._lacks_text):
            self._is_exact, self._is_uncertain = False, True
            return None
        return rest or None

    def _diverge(self, got: str) -> None:
        self._diverged = Diverged(self._position, self._text[self._position : self._position + _EXCERPT], got[:_EXCERPT])


def _count(event: TokensReceived, taken: list[ChatCompletionChunk | None]) -> int:
    """Return how many tokens are passed on, counted by their ids or, for text without ids, by its share of the event's characters."""
    ids = size = kept_ids = kept_size = 0.0
    for chunk, left in zip(event.chunks, taken, strict=True):
        for choice in chunk.choices[:1]:
            share = 0.0 if left is None else 1.0 if left is chunk else _share(choice, left.choices[0])
            if choice.token_ids:
                ids, kept_ids = ids + len(choice.token_ids), kept_ids + share * len(choice.token_ids)
            else:
                size, kept_size = size + _size(choice.delta), kept_size + share * _size(choice.delta)
    others = max(0.0, event.tokens - ids)
    return math.ceil(kept_ids + (others * kept_size / size if size else 0.0) - 1e-9)


def _share(choice: ChunkChoice, left: ChunkChoice) -> float:
    """Return which share of a choice is left, 0..1."""
    if choice.token_ids and left.token_ids:
        return len(left.token_ids) / len(choice.token_ids)
    return _size(left.delta) / _size(choice.delta) if _size(choice.delta) else 0.0


def _size(delta: ChoiceDelta) -> int:
    """Return the number of characters in a delta. A piece of a tool call counts as one character."""
    texts = (delta.content, delta.reasoning_content or delta.reasoning, delta.refusal)
    return sum(len(text or "") for text in texts) + len(delta.tool_calls or ()) + bool(delta.function_call)
