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

from collections import deque
from math import inf

from msgspec import Struct

from streamco.core.arrival_rate import ArrivalRate
from streamco.core.graphemes import cut_evenly
from streamco.core.meter import FRAME
from streamco.core.pacer import MAX_TOKEN_CHARACTERS, cut_chunk, weigh_chunk
from streamco.openai_types import ChatCompletionChunk

__all__ = ["MAX_ADDED_DELAY", "SmoothPacer"]

MAX_ADDED_DELAY = 0.4  # seconds from a piece's arrival, as in huggingface/chat-ui
_SPREAD = MAX_ADDED_DELAY - FRAME  # seconds over which a burst is spread, since a timer may be a frame late
_MAX_PIECES = 20  # of one chunk; spread over that time they are more than a frame apart
_DRAIN = 0.4  # seconds: the time constant with which a standing buffer is drained


class _Piece(Struct):
    """A chunk or a part of one, held since ``arrived``. ``amount`` is 0 if it is passed on unchanged and not held."""

    source: str
    chunk: ChatCompletionChunk
    tokens: int
    amount: float
    arrived: float


class _Burst(Struct):
    """Pieces that arrived together and must go out by ``latest``; ``last`` is the newest piece's amount."""

    latest: float
    pieces: int = 0
    amount: float = 0.0
    last: float = 0.0


class SmoothPacer:
    """Smooths the text of one answer. The delivery owns it, and it has the same methods as ``Pacer``.

    Attributes:
        buffered: number of tokens held.
    """

    def __init__(self) -> None:
        self.buffered = 0
        self._held: deque[_Piece] = deque()
        self._bursts: deque[_Burst] = deque()  # bursts of which something is still held
        self._amount = 0.0  # of the held text
        self._passing = 0  # number of the oldest pieces, which aren't held
        self._arrivals = ArrivalRate(pause=MAX_ADDED_DELAY)
        self._speed = 1.0  # tokens per second, chosen again at each arrival
        self._last = -inf  # due time of the piece that was released last
        self._next = -inf  # when that piece has had its time

    def feed(self, source: str, chunks: list[ChatCompletionChunk], *, now: float) -> None:
        """Add chunks after the ones already held."""
        before = self._amount
        for chunk in chunks:
            self._add(source, chunk, now)
        if (added := self._amount - before) > 0:
            left = max(0.0, self._next - now) * self._speed  # of the piece that was released last
            is_first = self._arrivals.record(added, held=before + left, now=now)
            self._choose_speed(0.0 if is_first else left, now)

    def next_due(self) -> float | None:
        """Return when the next piece is due, or None if nothing is held."""
        return self._due(self._held[0]) if self._held else None

    def release(self, *, now: float) -> list[tuple[str, ChatCompletionChunk]]:
        """Remove the pieces that are due, and return them with their endpoints, in order.

        Pieces that are due within one display frame go out too, because the eye sees no difference and fewer timers are needed.
        """
        released: list[tuple[str, ChatCompletionChunk]] = []
        while self._held and (due := self._due(piece := self._held[0])) <= now + FRAME:
            self._held.popleft()
            released.append((piece.source, piece.chunk))
            self.buffered -= piece.tokens
            if piece.amount:
                self._count_released(piece, now if self._passing else max(due, now - FRAME))
            self._passing = max(0, self._passing - 1)
        return released

    def flush(self) -> list[tuple[str, ChatCompletionChunk]]:
        """Remove all pieces, due or not, and return them with their endpoints."""
        released = [(piece.source, piece.chunk) for piece in self._held]
        self._held.clear()
        self._bursts.clear()
        self.buffered = self._passing = 0
        self._amount = 0.0
        return released

    def _add(self, source: str, chunk: ChatCompletionChunk, now: float) -> None:
        tokens, text = weigh_chunk(chunk), _smoothed_text(chunk)
        self.buffered += tokens
        if not text:
            self._held.append(_Piece(source, chunk, tokens, 0.0, now))
            if tokens:
                self._passing = len(self._held)
            return
        burst = self._open_burst(now)
        characters = counted = 0
        for piece in _cut(chunk, text, tokens):
            size = len(piece.choices[0].delta.content or "")
            characters += size
            upto = tokens * characters // len(text)
            burst.last = tokens * size / len(text)
            burst.amount += burst.last
            burst.pieces += 1
            self._amount += burst.last
            self._held.append(_Piece(source, piece, upto - counted, burst.last, now))
            counted = upto

    def _open_burst(self, now: float) -> _Burst:
        """Return the newest burst if it arrived within the last frame, otherwise a new one."""
        latest = now + _SPREAD
        if not self._bursts or latest > self._bursts[-1].latest + FRAME:
            self._bursts.append(_Burst(latest))
        return self._bursts[-1]

    def _choose_speed(self, left: float, now: float) -> None:
        """Choose the speed at which the held text goes out: the speed at which it arrived, or more if a burst would be late otherwise."""
        arrivals = self._arrivals
        speed = arrivals.rate * min(1.0, (left + self._amount) / arrivals.burst) + arrivals.standing / _DRAIN
        ahead = left
        for burst in self._bursts:
            ahead += burst.amount
            if burst.latest > now:
                speed = max(speed, (ahead - burst.last) / (burst.latest - now))
        self._speed = speed or (left + self._amount) / _SPREAD
        self._next = now + left / self._speed
        if arrivals.rate:  # no gap is longer than the gaps in which the text arrives
            self._next = min(self._next, max(now, self._last + arrivals.interval))

    def _due(self, piece: _Piece) -> float:
        if self._passing or not piece.amount:
            return piece.arrived
        return min(self._next, piece.arrived + _SPREAD)

    def _count_released(self, piece: _Piece, due: float) -> None:
        self._last, self._next = due, due + piece.amount / self._speed
        self._amount -= piece.amount
        burst = self._bursts[0]
        burst.amount -= piece.amount
        burst.pieces -= 1
        if not burst.pieces:
            self._bursts.popleft()
            if not self._bursts:
                self._amount = 0.0  # exactly, after sums of fractions


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
