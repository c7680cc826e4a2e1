"""The token buffer between an endpoint and the reader (DiSCo 4.3, "token buffer"; 2.2 for the rates).

There is one ring of pieces with due times, and a schedule that fills it. This module has the schedule for a fixed rate, and
``smooth_schedule`` has the one without a rate.

At a fixed rate, the first token fixes the reader's timeline: token n is due at ``t_first + n / rate``, so lateness never adds up. If the
buffer is empty when a token is due, that token goes out as soon as it arrives. The tokens after it follow at ``catch_up`` times the rate
until the timeline is reached again, so a burst after a stall is smoothed. The first token is never held back.

A server's chunk may contain a whole burst of tokens. Such a chunk is cut at word ends, so that its words keep the pace too. Chunks without
content stay in order between the tokens.
"""

from __future__ import annotations

from typing import Literal, Protocol

from streamco._native import PacedRing
from streamco.core.pieces import split_chunk, weigh_chunk
from streamco.core.smooth_schedule import SmoothSchedule
from streamco.openai_types import ChatCompletionChunk

__all__ = ["Pacer"]


class _Schedule(Protocol):
    """Decides when the pieces of an answer are due."""

    @property
    def ring(self) -> PacedRing[tuple[str, ChatCompletionChunk]]: ...

    def feed(self, source: str, chunks: list[ChatCompletionChunk], *, now: float) -> None: ...


class _FixedSchedule:
    """The timeline of a fixed rate.

    Args:
        rate: tokens per second at the reader, > 0.
        catch_up: how many times faster than ``rate`` overdue tokens may follow one another, >= 1.
    """

    def __init__(self, rate: float, catch_up: float) -> None:
        period = 1.0 / rate
        self.ring = PacedRing[tuple[str, ChatCompletionChunk]](period, period / catch_up)

    def feed(self, source: str, chunks: list[ChatCompletionChunk], *, now: float) -> None:
        for chunk in chunks:
            for piece in split_chunk(chunk):
                self.ring.push(weigh_chunk(piece), (source, piece), now)


class Pacer:
    """Holds chunks until they are due. The delivery owns it.

    Args:
        pace: tokens per second at the reader, > 0, or "smooth" for the rate at which the text arrives.
        catch_up: how many times faster than a fixed rate overdue tokens may follow one another, >= 1. It has no meaning for "smooth".
    """

    def __init__(self, pace: float | Literal["smooth"], *, catch_up: float = 2.0) -> None:
        self._schedule: _Schedule = SmoothSchedule() if pace == "smooth" else _FixedSchedule(pace, catch_up)
        self._ring = self._schedule.ring

    @property
    def buffered(self) -> int:
        """Number of tokens held."""
        return self._ring.buffered

    def feed(self, source: str, chunks: list[ChatCompletionChunk], *, now: float) -> None:
        """Add chunks after the ones already held."""
        self._schedule.feed(source, chunks, now=now)

    def next_due(self) -> float | None:
        """Return when the next piece is due, or None if nothing is held."""
        return self._ring.next_due()

    def release(self, *, now: float) -> list[tuple[str, ChatCompletionChunk]]:
        """Remove the pieces that are due, and return them with their endpoints, in order.

        Smooth text that is due within one display frame goes out too, because the eye sees no difference and fewer timers are needed.
        """
        return self._ring.release(now)

    def flush(self) -> list[tuple[str, ChatCompletionChunk]]:
        """Remove all pieces, due or not, and return them with their endpoints."""
        return self._ring.flush()
