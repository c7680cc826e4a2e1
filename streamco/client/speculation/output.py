"""A speculated answer as its reader gets it: text in chunks, at the reader's pace, measured.

Quality counts the text that stayed, at the time when it was first shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from streamco.client.driver import Batch
from streamco.client.speculation.incremental_text import IncrementalText, TextAdded, TextCommitted, TextRetracted, Words
from streamco.core.delivery import Delivery
from streamco.core.race.commands import DeliverTokens
from streamco.core.speculation.events import CommitIds, DeliverIds, Origin, RetractIds
from streamco.engines.base import TextPiece
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

__all__ = ["SpeculativeOutput", "SpeculatedChunk"]


class SpeculatedChunk(ChatCompletionChunk, kw_only=True, gc=False):
    """A chunk that says who made its text, or what became of text that was provisional.

    Args:
        origin: who made it; ``draft``: provisional.
        settled: so many characters, the oldest provisional ones, are final.
        retracted: so many, the newest provisional ones, are taken back.
    """

    origin: Origin | None = None
    settled: int = 0
    retracted: int = 0


class SpeculativeOutput:
    """The reader's end of a speculated answer.

    Args:
        wording: tokens to text.
        delivery: pace and meter; unpaced where drafts are shown.
        names: the endpoint that made the tokens of an origin.
        number: the answer's, as chunks have it.
        model: the name in them.

    Attributes:
        delivery: as given.
        first: when the first text was shown; None: none was.
    """

    def __init__(self, wording: IncrementalText, delivery: Delivery, names: Mapping[Origin, str], *, number: str, model: str) -> None:
        self.delivery = delivery
        self.first: float | None = None
        self._wording = wording
        self._names = names
        self._number, self._created, self._model = number, int(time.time()), model
        self._shown: deque[tuple[float, TextPiece]] = deque()  # provisional ones, and since when
        self._texts: list[str] = []
        self._has_begun = False

    @property
    def is_stopped(self) -> bool:
        """A stop string was found."""
        return self._wording.is_stopped

    @property
    def text(self) -> str:
        """What is final so far, what is held for the pace with it."""
        return "".join(self._texts)

    def show(self, command: DeliverIds | CommitIds | RetractIds, *, now: float) -> list[Batch]:
        """Return what the reader gets of this."""
        match command:
            case DeliverIds(ids, origin):
                words = self._wording.deliver(ids, origin)
            case CommitIds(count, origin):
                words = self._wording.settle(count, origin)
            case RetractIds(count):
                words = self._wording.retract(count)
        return [batch for word in words for batch in self._say(word, now)]

    def finish(self, reason: str | None, *, now: float) -> list[Batch]:
        """Return the end; ``reason`` None: it failed."""
        batches = [batch for word in self._wording.finish() for batch in self._say(word, now)]
        if reason is not None:
            last = self._chunk([ChunkChoice(finish_reason="stop" if self.is_stopped else reason)], None)
            batches += self._hand_on(self._names["accepted"], [last], 0, now)
        return batches

    def release(self, *, now: float) -> list[Batch]:
        """Return what is due."""
        return self._batches(self.delivery.release(now=now), now)

    def flush(self, *, now: float) -> list[Batch]:
        """Everything that is held, due or not."""
        return self._batches(self.delivery.flush(now=now), now)

    def _say(self, word: Words, now: float) -> list[Batch]:
        match word:
            case TextCommitted(pieces, characters, origin):
                for _ in range(pieces):
                    since, piece = self._shown.popleft()
                    self.delivery.meter.record(len(piece.ids), now=since)
                    self._texts.append(piece.text)
                return self._hand_on(self._names[origin], [self._chunk([], origin, settled=characters)], 0, now)
            case TextRetracted(pieces, characters):
                for _ in range(pieces):
                    self._shown.pop()
                return self._hand_on(self._names["draft"], [self._chunk([], None, retracted=characters)], 0, now)
            case TextAdded(piece, origin):
                choice = ChunkChoice(delta=ChoiceDelta(content=piece.text), token_ids=None if piece.is_cut else list(piece.ids))
                if self.first is None:
                    self.first = now
                if origin == "draft":
                    self._shown.append((now, piece))
                else:
                    self._texts.append(piece.text)
                return self._hand_on(self._names[origin], [self._chunk([choice], origin)], 0 if origin == "draft" else len(piece.ids), now)

    def _hand_on(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> list[Batch]:
        if not self._has_begun:
            self._has_begun = True
            chunks.insert(0, self._chunk([ChunkChoice(delta=ChoiceDelta(role="assistant", content=""))], None))
        return self._batches(self.delivery.take(source, chunks, tokens, now=now), now)

    def _chunk(self, choices: list[ChunkChoice], origin: Origin | None, *, settled: int = 0, retracted: int = 0) -> SpeculatedChunk:
        return SpeculatedChunk(
            id=self._number,
            choices=choices,
            created=self._created,
            model=self._model,
            origin=origin,
            settled=settled,
            retracted=retracted,
        )

    def _batches(self, commands: Sequence[DeliverTokens], now: float) -> list[Batch]:
        return [(command.source, command.chunks, now) for command in commands]
