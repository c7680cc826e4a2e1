"""Delivers tokens to the reader, at once or at the reader's pace, and measures the delivery in both cases."""

from __future__ import annotations

from streamco.config import ReaderPace, fixed_rate
from streamco.core.meter import Meter
from streamco.core.pacer import Pacer
from streamco.core.race.commands import DeliverTokens
from streamco.openai_types import ChatCompletionChunk

__all__ = ["Delivery"]


class Delivery:
    """Delivers the tokens of one answer to its reader; the race machine or the speculative output owns it.

    Args:
        pace: tokens per second at the reader; "smooth" for an even flow at the rate at which they arrive; None to deliver at once.
        reader_rate: reading speed of the virtual reader, by which quality is measured, in tokens per second.
    """

    def __init__(self, pace: ReaderPace, reader_rate: float) -> None:
        self.meter = Meter(reader_rate)
        self._has_rate = fixed_rate(pace) is not None
        self._pacer = None if pace is None else Pacer(pace)
        self.is_paced = self._pacer is not None
        """True if tokens may be held back."""

    @property
    def buffered(self) -> int:
        """Number of tokens held back."""
        return self._pacer.buffered if self._pacer is not None else 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is held back, not even chunks without tokens."""
        return self.next_due() is None

    def next_due(self) -> float | None:
        """Return when the next chunk is due, or None if nothing is held back."""
        return self._pacer.next_due() if self._pacer is not None else None

    def ahead(self, *, now: float) -> float:
        """Return how many tokens the reader has not reached yet. Without a fixed pace, the virtual reader's position is used."""
        if self._has_rate:
            return self.buffered
        first = self.meter.first
        return 0.0 if first is None else max(0.0, self.meter.tokens + self.buffered - self.meter.rate * (now - first))

    def take(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, *, now: float) -> list[DeliverTokens]:
        """Add chunks with ``tokens`` tokens in total from the endpoint ``source``, and return the deliveries that are due."""
        if self._pacer is None:
            if tokens:
                self.meter.record(tokens, now=now)
            return [DeliverTokens(source, chunks)]
        self._pacer.feed(source, chunks, now=now)
        return self.release(now=now)

    def release(self, *, now: float) -> list[DeliverTokens]:
        """Return the deliveries that are due."""
        if self._pacer is None:
            return []
        held = self._pacer.buffered
        return self._hand_out(self._pacer.release(now=now), held, now)

    def flush(self, *, now: float) -> list[DeliverTokens]:
        """Return all deliveries that are held back, due or not."""
        if self._pacer is None:
            return []
        held = self._pacer.buffered
        return self._hand_out(self._pacer.flush(), held, now)

    def drop(self) -> int:
        """Drop all chunks that are held back, and return their number of tokens."""
        if self._pacer is None:
            return 0
        tokens = self._pacer.buffered
        self._pacer.flush()
        return tokens

    def _hand_out(self, released: list[tuple[str, ChatCompletionChunk]], held: int, now: float) -> list[DeliverTokens]:
        """Return one delivery for each run of chunks from the same endpoint. ``held`` tokens were in the buffer before."""
        if tokens := held - self.buffered:
            self.meter.record(tokens, now=now)
        deliveries: list[DeliverTokens] = []
        start = 0
        for end in range(1, len(released) + 1):
            if end == len(released) or released[end][0] != released[start][0]:
                deliveries.append(DeliverTokens(released[start][0], [chunk for _, chunk in released[start:end]]))
                start = end
        return deliveries
