"""The output of a speculated answer: text in chunks, paced for the reader and measured.

The quality figures count text that wasn't retracted, at the time when it was first shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from streamco.client.driver import Batch, SpeculatedChunk
from streamco.client.modes.speculation.incremental_text import IncrementalText, TextAdded, TextCommitted, TextEvent, TextRetracted
from streamco.core.delivery import Delivery
from streamco.core.race.commands import DeliverTokens
from streamco.core.speculation.events import CommitIds, DeliverIds, RetractIds
from streamco.engines.base import TextPiece
from streamco.events import Origin
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

__all__ = ["SpeculativeOutput"]


class SpeculativeOutput:
    """Turns the machine's commands into chunks for the reader of a speculated answer.

    Args:
        text: turns tokens into text.
        delivery: paces and measures the output. It must be unpaced if drafts are shown.
        names: for each origin, the name of the endpoint that makes its tokens.
        number: the answer's id in its chunks.
        model: name of the model in its chunks.

    Attributes:
        delivery: paces and measures the output.
        first: when the first text was shown, in seconds, or None if none was.
    """

    def __init__(self, text: IncrementalText, delivery: Delivery, names: Mapping[Origin, str], *, number: str, model: str) -> None:
        self.delivery = delivery
        self.first: float | None = None
        self._text = text
        self._names = names
        self._number, self._created, self._model = number, int(time.time()), model
        self._shown: deque[tuple[float, TextPiece]] = deque()  # provisional pieces, and when they were first shown
        self._final: list[str] = []
        self._has_begun = False

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found."""
        return self._text.is_stopped

    @property
    def text(self) -> str:
        """Final text so far, including what is held for the pace."""
        return "".join(self._final)

    def show(self, command: DeliverIds | CommitIds | RetractIds, *, now: float) -> list[Batch]:
        """Return the chunks that a command produces for the reader."""
        match command:
            case DeliverIds(ids, origin):
                events = self._text.deliver(ids, origin)
            case CommitIds(count, origin):
                events = self._text.commit(count, origin)
            case RetractIds(count):
                events = self._text.retract(count)
        return [batch for event in events for batch in self._show_text(event, now)]

    def finish(self, reason: str | None, *, now: float) -> list[Batch]:
        """Return the last chunks. ``reason`` is "stop" or "length", or None if the answer failed."""
        batches = [batch for event in self._text.finish() for batch in self._show_text(event, now)]
        if reason is not None:
            last = self._chunk([ChunkChoice(finish_reason="stop" if self.is_stopped else reason)], None)
            batches += self._hand_on(self._names["accepted"], [last], 0, now)
        return batches

    def release(self, *, now: float) -> list[Batch]:
        """Return the chunks that are due according to the pace."""
        return self._batches(self.delivery.release(now=now), now)

    def flush(self, *, now: float) -> list[Batch]:
        """Return all chunks that are held, whether they are due or not."""
        return self._batches(self.delivery.flush(now=now), now)

    def _show_text(self, event: TextEvent, now: float) -> list[Batch]:
        match event:
            case TextCommitted(pieces, characters, origin):
                for _ in range(pieces):
                    since, piece = self._shown.popleft()
                    self.delivery.meter.record(len(piece.ids), now=since)
                    self._final.append(piece.text)
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
                    self._final.append(piece.text)
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
