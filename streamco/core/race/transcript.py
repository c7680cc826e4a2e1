"""What an answer consists of so far, so that another endpoint can go on with it (DiSCo 4.3, "Efficient Token Transfer").

Every token has a position. Where all tokens so far come from one vocabulary and their ids are known, ids are handed over; otherwise text,
which the target tokenizes by itself. Text never ends inside a code point: an endpoint holds the bytes of an unfinished one back, and so
they are generated anew. Some endpoints tell a code point's first ids before its text (vLLM). They are made anew too: a server that gets a
prompt of ids that ends inside a code point may write the whole prompt out with its rest (vLLM again). Thinking aloud is not part of the
answer and is not handed over.
"""

from __future__ import annotations

from streamco.openai_types import ChatCompletionChunk, ChunkChoice
from streamco.partial import Partial

__all__ = ["Transcript"]


class Transcript:
    """Collects batches of chunks; nothing is looked at before it is asked for, because most answers are never handed over."""

    def __init__(self) -> None:
        self.tokens = 0
        self._batches: list[tuple[str | None, list[ChatCompletionChunk]]] = []
        self._dropped: set[int] = set()  # choices, by their place, that somebody else made anew

    def add(self, chunks: list[ChatCompletionChunk], tokens: int, vocabulary: str | None) -> None:
        """Take what an endpoint made.

        Args:
            tokens: how many they are.
            vocabulary: fingerprint of the endpoint's tokenizer; None: not known.
        """
        self.tokens += tokens
        self._batches.append((vocabulary, chunks))

    @property
    def has_calls(self) -> bool:
        """True if a tool call has begun: half of one can't be handed over."""
        return any(choice.delta.tool_calls or choice.delta.function_call for _, choice in self._choices())

    @property
    def ends_in_text(self) -> bool:
        """True if what came last is the answer's own text: thoughts that go on, half a tool call or its last words can't be handed over."""
        newest = [choice for chunk in (self._batches[-1][1] if self._batches else []) for choice in chunk.choices[:1]]
        return any(choice.delta.content for choice in newest) and not any(
            choice.delta.tool_calls or choice.delta.function_call or choice.finish_reason for choice in newest
        )

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(choice.delta.content or "" for _, choice in self._choices())

    def partial(self) -> Partial:
        """Return what a target needs."""
        ids: list[int] = []
        vocabularies: set[str | None] = set()
        ahead = self._ahead()
        has_thought = False
        for place, (vocabulary, choice) in enumerate(self._choices()):
            if place in ahead or place in self._dropped:
                continue
            if choice.delta.reasoning_content or choice.delta.reasoning:
                has_thought = True
                continue
            if choice.token_ids:
                ids += choice.token_ids
            if choice.token_ids or choice.delta.content:  # without text behind a thought: the mark that ends it is none of the answer
                is_known = bool(choice.token_ids) and (bool(choice.delta.content) or not has_thought)
                vocabularies.add(vocabulary if is_known else None)
                has_thought = has_thought and not choice.delta.content
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else None
        tokens = self.tokens - sum(ahead.values())
        return Partial(text=self.text, ids=None if vocabulary is None else tuple(ids), vocabulary=vocabulary, tokens=tokens)

    def settle(self) -> None:
        """Somebody else goes on behind ``partial``: what was told ahead of its text will not be completed."""
        ahead = self._ahead()
        self._dropped.update(ahead)
        self.tokens -= sum(ahead.values())

    def _ahead(self) -> dict[int, int]:
        """Choices at the end, by their place, that have ids and no text yet, with the number of the ids."""
        ahead: dict[int, int] = {}
        for place, (_, choice) in reversed(list(enumerate(self._choices()))):
            if place in self._dropped or choice.delta.content or choice.delta.reasoning_content or choice.delta.reasoning:
                break
            if choice.token_ids:
                ahead[place] = len(choice.token_ids)
        return ahead

    def _choices(self) -> list[tuple[str | None, ChunkChoice]]:
        return [(vocabulary, choice) for vocabulary, chunks in self._batches for chunk in chunks for choice in chunk.choices[:1]]
