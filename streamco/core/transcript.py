"""What an answer consists of so far, so that another endpoint can go on with it (DiSCo 4.3, "Efficient Token Transfer").

Every token has a position. Where all tokens so far come from one vocabulary and their ids are known, ids are handed over; otherwise text,
which the target tokenizes by itself. Text never ends inside a code point: an endpoint holds the bytes of an unfinished one back, and so
they are generated anew. Thinking aloud is not part of the answer and is not handed over.
"""

from __future__ import annotations

from streamco.chunks import ChatCompletionChunk, ChunkChoice
from streamco.commands import Partial

__all__ = ["Transcript"]


class Transcript:
    """Collects batches of chunks; nothing is looked at before it is asked for, because most answers are never handed over."""

    def __init__(self) -> None:
        self.tokens = 0
        self._batches: list[tuple[str | None, list[ChatCompletionChunk]]] = []

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
        """Whether a tool call has begun: half of one can't be handed over."""
        return any(choice.delta.tool_calls or choice.delta.function_call for _, choice in self._choices())

    @property
    def ends_in_text(self) -> bool:
        """Whether what came last is the answer's own text: thoughts that go on, or half a tool call, can't be handed over."""
        newest = self._batches[-1][1] if self._batches else []
        return any(choice.delta.content for chunk in newest for choice in chunk.choices[:1]) and not any(
            choice.delta.tool_calls or choice.delta.function_call for chunk in newest for choice in chunk.choices[:1]
        )

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(choice.delta.content or "" for _, choice in self._choices())

    def partial(self) -> Partial:
        """What a target needs."""
        ids: list[int] = []
        vocabularies: set[str | None] = set()
        for vocabulary, choice in self._choices():
            if choice.delta.reasoning_content or choice.delta.reasoning:
                continue
            if choice.token_ids:
                ids += choice.token_ids
                vocabularies.add(vocabulary)
            elif choice.delta.content:
                vocabularies.add(None)
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else None
        return Partial(text=self.text, ids=None if vocabulary is None else tuple(ids), vocabulary=vocabulary, tokens=self.tokens)

    def _choices(self) -> list[tuple[str | None, ChunkChoice]]:
        return [(vocabulary, choice) for vocabulary, chunks in self._batches for chunk in chunks for choice in chunk.choices[:1]]
