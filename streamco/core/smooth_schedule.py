"""Smooths text that arrives in bursts, so that it goes out evenly, each piece within 0.4 seconds of its arrival.

No rate is set. The text goes out at the rate at which it arrived in the last second, so the buffer is just empty when the next burst
arrives. If that rate is not known yet, or is too low, each burst is spread over the time left until it must be out. Text that arrives
evenly is not held, because each piece arrives just when the one before it has had its time. The exception is the first frame: if several
chunks arrive in it, they are held, because they may be one burst.
The part of the buffer that was not needed in the last 0.4 seconds, which is the least that was held at any arrival, is drained within
another 0.4 seconds or so (the standing queue of CoDel, RFC 8289).

A pause longer than 0.4 seconds can't be bridged. After it the rate is measured from scratch, as at the beginning, and the first piece goes
out at once.

Only the content of the first choice is held. A long chunk of it is cut, but never inside a character. A chunk with log-probabilities or
token ids stays whole, because they belong to its text. Everything else is passed on unchanged and in order. Reasoning, tool calls,
refusals and other choices aren't held, so the text before them goes out at once. A chunk with nothing to read, such as the one with the
finish reason, follows the text before it.

All amounts are in tokens as ``weigh_chunk`` counts them; a piece has a share of its chunk's amount.
"""

from __future__ import annotations

from msgspec import Struct

from streamco._native import PacedRing
from streamco.core.arrival_rate import ArrivalRate
from streamco.core.graphemes import cut_evenly
from streamco.core.meter import FRAME
from streamco.core.pieces import MAX_TOKEN_CHARACTERS, cut_chunk, weigh_chunk
from streamco.openai_types import ChatCompletionChunk

__all__ = ["MAX_ADDED_DELAY", "SmoothSchedule"]

MAX_ADDED_DELAY = 0.4  # seconds from a piece's arrival, as in huggingface/chat-ui
_SPREAD = MAX_ADDED_DELAY - FRAME  # seconds over which a burst is spread, since a timer may be a frame late
_MAX_PIECES = 20  # of one chunk; spread over that time they are more than a frame apart
_DRAIN = 0.4  # seconds: the time constant with which a standing buffer is drained


class _Burst(Struct):
    """Text that arrived together and must go out by ``latest``.

    Args:
        latest: a time in seconds.
        pieces: number of all pieces of the answer, up to the last one of this burst.
        amount: the total amount of these pieces.
        last: the amount of the last one.
    """

    latest: float
    pieces: int = 0
    amount: float = 0.0
    last: float = 0.0


class SmoothSchedule:
    """Fills a ring with the text of one answer, and chooses the speed at which it goes out. The pacer owns it."""

    def __init__(self) -> None:
        self.ring = PacedRing[tuple[str, ChatCompletionChunk]](None, 1.0, early=FRAME, late=FRAME)
        self._bursts: list[_Burst] = []  # bursts of which something may still be held
        self._amount = 0.0  # of the text that was pushed so far
        self._arrivals = ArrivalRate(pause=MAX_ADDED_DELAY)

    def feed(self, source: str, chunks: list[ChatCompletionChunk], *, now: float) -> None:
        """Add chunks after the ones already held, and choose the speed again."""
        ring = self.ring
        before, held = self._amount, ring.amount
        for chunk in chunks:
            self._add(source, chunk, now)
        if (added := self._amount - before) > 0:
            left = max(0.0, ring.earliest - now) / ring.gap  # of the piece that was released last
            is_first = self._arrivals.record(added, held=held + left, now=now)
            self._choose_speed(0.0 if is_first else left, now)

    def _add(self, source: str, chunk: ChatCompletionChunk, now: float) -> None:
        ring = self.ring
        tokens, text = weigh_chunk(chunk), _smoothed_text(chunk)
        if not text:
            ring.push(tokens, (source, chunk), now, 0.0)
            if tokens:
                ring.hurry(now)
            return
        burst = self._open_burst(now)
        characters = counted = 0
        for piece in _cut(chunk, text, tokens):
            size = len(piece.choices[0].delta.content or "")
            characters += size
            upto = tokens * characters // len(text)
            burst.last = tokens * size / len(text)
            self._amount += burst.last
            ring.push(upto - counted, (source, piece), now, burst.last, now + _SPREAD)
            counted = upto
        burst.amount, burst.pieces = self._amount, ring.released + len(ring)

    def _open_burst(self, now: float) -> _Burst:
        """Return the newest burst if it arrived within the last frame and isn't out yet, otherwise a new one."""
        self._bursts = [burst for burst in self._bursts if burst.pieces > self.ring.released]
        latest = now + _SPREAD
        if not self._bursts or latest > self._bursts[-1].latest + FRAME:
            self._bursts.append(_Burst(latest))
        return self._bursts[-1]

    def _choose_speed(self, left: float, now: float) -> None:
        """Choose the speed at which the held text goes out: the speed at which it arrived, or more if a burst would be late otherwise."""
        arrivals, ring = self._arrivals, self.ring
        speed = arrivals.rate * min(1.0, (left + ring.amount) / arrivals.burst) + arrivals.standing / _DRAIN
        ahead = left + ring.amount - self._amount
        for burst in self._bursts:
            if burst.latest > now:
                speed = max(speed, (ahead + burst.amount - burst.last) / (burst.latest - now))
        speed = speed or (left + ring.amount) / _SPREAD
        ring.gap = 1.0 / speed
        ring.earliest = now + left / speed
        if arrivals.rate:  # no gap is longer than the gaps in which the text arrives
            ring.earliest = min(ring.earliest, max(now, ring.last + arrivals.interval))


def _smoothed_text(chunk: ChatCompletionChunk) -> str:
    """Return the text of a chunk if it may be held, or "" if the chunk is passed on unchanged."""
    if len(chunk.choices) != 1:
        return ""
    choice = chunk.choices[0]
    delta = choice.delta
    if choice.index or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls or delta.function_call:
        return ""
    return delta.content or ""


def _cut(chunk: ChatCompletionChunk, text: str, tokens: int) -> list[ChatCompletionChunk]:
    choice = chunk.choices[0]
    if len(text) <= MAX_TOKEN_CHARACTERS or choice.logprobs is not None or choice.token_ids:
        return [chunk]
    return cut_chunk(chunk, cut_evenly(text, min(tokens, _MAX_PIECES)))
