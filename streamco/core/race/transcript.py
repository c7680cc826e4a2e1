"""Keeps the text and tokens of an answer so far, so that another endpoint can continue it (DiSCo 4.3, "Efficient Token Transfer").

Every token has a position. If all tokens so far come from one vocabulary and their ids are known, the ids are handed over. Otherwise the
text is handed over, and the target tokenizes it itself.

Text never ends inside a code point. Most endpoints hold back the bytes of an unfinished code point, so its tokens are generated again. vLLM
sends the first ids of a code point before its text. These ids are dropped too: if the ids of a prompt end inside a code point, vLLM may
return the whole prompt along with the rest of that code point.

Reasoning is not part of the answer and is not handed over.
"""

from __future__ import annotations

from streamco.events import Partial, TextRepeated
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

__all__ = ["Transcript"]


class Transcript:
    """Stores the batches of chunks that make up an answer. It reads them only for a hand-over, because most answers need none."""

    __slots__ = ("_batches", "_dropped", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self._batches: list[tuple[str | None, list[ChatCompletionChunk] | TextRepeated]] = []
        self._dropped: set[int] = set()  # positions of choices that the target generated again

    def add(self, chunks: list[ChatCompletionChunk] | TextRepeated, tokens: int, vocabulary: str | None) -> None:
        """Add a batch of chunks.

        Args:
            chunks: the chunks, or an event that stands for a single chunk.
            tokens: number of content tokens in the chunks.
            vocabulary: fingerprint of the endpoint's tokenizer; None if not known.
        """
        self.tokens += tokens
        self._batches.append((vocabulary, chunks))

    @property
    def is_text_alone(self) -> bool:
        """True if the answer so far contains only text and reasoning. Half of a tool call, refusal or audio output can't be handed over."""
        deltas = [choice.delta for _, choice in self._choices()]
        return not any(delta.tool_calls or delta.function_call or delta.refusal or delta.audio for delta in deltas)

    @property
    def ends_in_text(self) -> bool:
        """True if the newest batch is answer text, and the answer is not finished.

        Unfinished reasoning, half a tool call and the last words of an answer can't be handed over.
        """
        newest = [choice for chunk in (_chunks_of(self._batches[-1][1]) if self._batches else []) for choice in chunk.choices[:1]]
        return any(choice.delta.content for choice in newest) and not any(
            choice.delta.tool_calls or choice.delta.function_call or choice.finish_reason for choice in newest
        )

    @property
    def text(self) -> str:
        """Text of the answer so far."""
        return "".join(choice.delta.content or "" for _, choice in self._choices())

    def partial(self) -> Partial:
        """Return the beginning of the answer that a target needs to continue it, in whole code points."""
        ids: list[int] = []
        vocabularies: set[str | None] = set()
        incomplete = self._incomplete()
        has_thought, is_counted = False, True
        for position, (vocabulary, choice) in enumerate(self._choices()):
            if position in incomplete or position in self._dropped:
                continue
            is_counted = is_counted and (bool(choice.token_ids) or _is_silent(choice.delta))
            if choice.delta.reasoning_content or choice.delta.reasoning:
                has_thought = True
                continue
            if choice.token_ids:
                ids += choice.token_ids
            if choice.token_ids or choice.delta.content:  # ids without text after reasoning are the mark of its end, not part of the answer
                is_known = bool(choice.token_ids) and (bool(choice.delta.content) or not has_thought)
                vocabularies.add(vocabulary if is_known else None)
                has_thought = has_thought and not choice.delta.content
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else None
        tokens = self.tokens - sum(incomplete.values())
        known_ids = None if vocabulary is None else tuple(ids)
        return Partial(
            text=self.text,
            ids=known_ids,
            vocabulary=vocabulary,
            tokens=tokens,
            is_counted=is_counted and tokens > 0,
            blank_tokens=self._blank_tokens(),
        )

    def _blank_tokens(self) -> int:
        """Return how many tokens at the end of the text are only whitespace."""
        count = 0
        for _, choice in reversed(self._choices()):
            text = choice.delta.content
            if text and text.strip():
                break
            if text and choice.token_ids:
                count += len(choice.token_ids)
        return count

    def drop_incomplete(self) -> None:
        """Drop ids at the end that have no text yet, because the target continues from ``partial`` and generates them again."""
        incomplete = self._incomplete()
        self._dropped.update(incomplete)
        self.tokens -= sum(incomplete.values())

    def _incomplete(self) -> dict[int, int]:
        """Find the last choices that have ids but no text yet, and return how many ids each has, by position."""
        incomplete: dict[int, int] = {}
        for position, (_, choice) in reversed(list(enumerate(self._choices()))):
            if position in self._dropped or choice.delta.content or choice.delta.reasoning_content or choice.delta.reasoning:
                break
            if choice.token_ids:
                incomplete[position] = len(choice.token_ids)
        return incomplete

    def _choices(self) -> list[tuple[str | None, ChunkChoice]]:
        return [(vocabulary, choice) for vocabulary, batch in self._batches for chunk in _chunks_of(batch) for choice in chunk.choices[:1]]


def _chunks_of(batch: list[ChatCompletionChunk] | TextRepeated) -> list[ChatCompletionChunk]:
    return batch.chunks if isinstance(batch, TextRepeated) else batch


def _is_silent(delta: ChoiceDelta) -> bool:
    """Return True if a delta contains nothing that was generated, such as only a role or the end of the stream."""
    return not (delta.content or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls or delta.function_call)
