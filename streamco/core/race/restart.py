"""An answer that is made from its beginning again: what the reader has of it is taken out, and what is new behind that goes on.

An endpoint that can't be given an answer's beginning can only be asked the whole request anew, with the caller's consent. What it writes
is compared with the answer so far from position 0 on, one for one, up to the answer's end, and never after that. Nothing is searched
for: text that repeats ("ha ha ha") is taken out as often as the reader has it, and one time more is new and is shown. Looking for the
longest end of the old text at the beginning of the new would be a guess, and would swallow a repetition that the model meant.

Text decides, by code points: it is what the reader has. Where old and new ids belong to one vocabulary they say more exactly where the new
begins: inside a chunk of several tokens, or behind a token of which no whole character exists yet. Ids that differ below the same text are
another way to write it, no departure; then the first new text goes on without ids, because those of the whole answer would not be
certain to spell it any more.

Until the overlap has ended nothing is passed on, for if the new answer departs nothing of it may be seen. Roles and reasoning before
that end led to what the reader has, and are left out.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from streamco.events import TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.partial import Partial, common_prefix_length

__all__ = ["Diverged", "RestartFilter"]

_EXCERPT = 20  # code points


class Diverged(Struct, frozen=True):
    """The new answer is not the old one's beginning again, so it can't be continued with it.

    Args:
        position: code points that were the same.
        expected: how the old answer goes on there, an excerpt.
        got: how the new one does, an excerpt; "": it ended.
    """

    position: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"answer made anew: expected {self.expected!r} at character {self.position}, got {repr(self.got) if self.got else 'its end'}"


class RestartFilter:
    """Takes what the reader has out of what an endpoint sends that was asked the whole request anew. Chunks it is fed are not changed.

    Args:
        partial: the answer so far.
        vocabulary: fingerprint of the endpoint's tokenizer; None: not known.
    """

    __slots__ = ("_diverged", "_id_position", "_ids", "_is_exact", "_is_uncertain", "_position", "_text")

    def __init__(self, partial: Partial, vocabulary: str | None = None) -> None:
        self._text = partial.text
        self._position = 0
        self._is_exact = partial.ids is not None and vocabulary is not None and vocabulary == partial.vocabulary
        self._ids = partial.ids if partial.ids is not None and self._is_exact else ()
        self._id_position = 0
        self._is_uncertain = False  # whether old ids and new ones together spell the answer: the next text goes on without
        self._diverged: Diverged | None = None

    @property
    def is_open(self) -> bool:
        """True if events are still to be fed; False: what comes from now on is passed on as it is."""
        return self._lacks_text or self._lacks_ids or self._is_uncertain

    @property
    def _lacks_text(self) -> bool:
        return self._position < len(self._text)

    @property
    def _lacks_ids(self) -> bool:
        return self._is_exact and self._id_position < len(self._ids)

    def feed(self, event: TokensReceived) -> TokensReceived | Diverged | None:
        """Return what is new of an event; None: nothing; ``Diverged``: there will never be anything."""
        if not self.is_open:
            return event
        taken = [self._take(chunk) if self.is_open else chunk for chunk in event.chunks]
        if self._diverged is not None:
            return self._diverged
        passed = [chunk for chunk in taken if chunk is not None]
        return TokensReceived(event.source, passed, _count(event, taken)) if passed else None

    def end(self) -> Diverged | None:
        """Return the stream has ended: departed, if that was before the end of what the reader has."""
        if self._diverged is None and self._lacks_text:
            self._diverge("")
        return self._diverged

    def _take(self, chunk: ChatCompletionChunk) -> ChatCompletionChunk | None:
        """Return the chunk without what the reader has; None: nothing is left of it."""
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
        delta = choice.delta if had_text else replace(choice.delta, role=None, reasoning=None, reasoning_content=None)
        delta = replace(delta, content=new or None)
        if delta == ChoiceDelta() and not (ids or choice.finish_reason or chunk.usage or chunk.choices[1:]):
            return None
        logprobs = None if taken else choice.logprobs
        return replace(chunk, choices=[replace(choice, delta=delta, token_ids=ids, logprobs=logprobs), *chunk.choices[1:]])

    def _take_text(self, choice: ChunkChoice) -> int | None:
        """Return how many code points of a choice the reader has; None: it departs."""
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
        """Return the ids of what is new in a choice; None: there are none, or they would not be its own."""
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
    """Tokens of what is passed on: by ids where there are any, the others by their share of the event's characters."""
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
    """Return how much of a choice is left."""
    if choice.token_ids and left.token_ids:
        return len(left.token_ids) / len(choice.token_ids)
    return _size(left.delta) / _size(choice.delta) if _size(choice.delta) else 0.0


def _size(delta: ChoiceDelta) -> int:
    """Characters of a delta; a piece of a tool call counts as one."""
    texts = (delta.content, delta.reasoning_content or delta.reasoning, delta.refusal)
    return sum(len(text or "") for text in texts) + len(delta.tool_calls or ()) + bool(delta.function_call)
