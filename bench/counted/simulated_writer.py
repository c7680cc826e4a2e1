"""A simulated model that writes a known answer, from wherever it is asked to go on.

What it is given and what it sends is what real endpoints are given and send: ids where they mean the same, else text without the spaces at
its end, code points that take several tokens, bursts, role and finish chunks, breaks between any two tokens. So whatever a hand-over loses
or doubles shows in what the reader gets, and a beginning that isn't the answer's own is an error at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import simpy

from streamco.core.race.commands import OpenStream, PrepareStream
from streamco.endpoints.continuation import BoundaryWhitespace, split_trailing_whitespace
from streamco.errors import EndpointConnectError
from streamco.events import Event, Partial, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.sim.driver import call_at
from streamco.sim.race.session import Opening, SimulatedStream

__all__ = ["Piece", "SimulatedWriter", "Spelling"]

Piece = tuple[str, tuple[int, ...]]
"""Whole code points, and the ids they take."""


class Spelling:
    """One answer in the tokens of one vocabulary.

    Args:
        vocabulary: its fingerprint.
        pieces: the answer in order.
    """

    def __init__(self, vocabulary: str, pieces: Sequence[Piece]) -> None:
        self.vocabulary = vocabulary
        self.pieces = list(pieces)
        self.text = "".join(text for text, _ in pieces)
        self.ids = tuple(token for _, ids in pieces for token in ids)
        self._unused = max(self.ids, default=0) + 1

    @classmethod
    def draw(cls, text: str, vocabulary: str, rng: random.Random) -> Spelling:
        """A text in tokens of random lengths; no id occurs twice, so that each one's place is known."""
        pieces: list[Piece] = []
        at, token = 0, rng.randrange(1000)
        while at < len(text):
            part = text[at : at + rng.choice((1, 2, 3, 4, 6))]
            size = 1 if part.isascii() else rng.randint(1, 3)
            pieces.append((part, tuple(range(token, token + size))))
            at, token = at + len(part), token + size
        return cls(vocabulary, pieces)

    def after_ids(self, count: int) -> list[Piece]:
        """What comes behind the first ids; a code point they end inside of comes whole, with its last ids."""
        rest: list[Piece] = []
        for text, ids in self.pieces:
            if count < len(ids):
                rest.append((text, ids[max(0, count) :]))
            count -= len(ids)
        return rest

    def after_text(self, length: int) -> list[Piece]:
        """What comes behind so many characters; if they end inside a token, the rest of it takes another one."""
        rest: list[Piece] = []
        for text, ids in self.pieces:
            if length <= 0:
                rest.append((text, ids))
            elif length < len(text):
                rest.append((text[length:], (self._unused + length,)))
            length -= len(text)
        return rest


class SimulatedWriter:
    """A source of the simulated world that writes an answer; see ``SimulatedSource``.

    Args:
        name: what the session calls it.
        spelling: the answer in its vocabulary.
        rng: for bursts and gaps.
        first: seconds from opening to the first event.
        gap: seconds between two events, on average.
        burst: chunks an event, at most.
        breaks: for each time it is opened, the chunks behind which it fails, None: never; further times: never.
        finish_reason: how the answer ends.
        sends_ids: False: text alone, as most servers.
        sends_ids_early: ids of a code point are told as they are made, before there is text to show.
        cancel_takes: seconds a cancel needs.

    Attributes:
        by_ids: answers it went on with behind ids. by_text: behind text.
    """

    def __init__(
        self,
        name: str,
        spelling: Spelling,
        rng: random.Random,
        *,
        first: float = 0.3,
        gap: float = 0.05,
        burst: int = 3,
        breaks: Sequence[int | None] = (),
        finish_reason: str = "stop",
        sends_ids: bool = True,
        sends_ids_early: bool = False,
        cancel_takes: float = 0.0,
    ) -> None:
        self.name = name
        self.spelling = spelling
        self.rng = rng
        self.first = first
        self.gap = gap
        self.burst = burst
        self.finish_reason = finish_reason
        self.sends_ids = sends_ids
        self.sends_ids_early = sends_ids_early and sends_ids
        self.cancel_takes = cancel_takes
        self.by_ids = self.by_text = 0
        self._breaks = list(breaks)

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Begin the answer or go on with it; a prompt that is only to be read is read in the time of a first token."""
        if isinstance(command, PrepareStream):
            return _WriterStream(env, self, emit, None)
        if isinstance(command, OpenStream):
            pieces, held = self.spelling.pieces, ""
        else:
            pieces, held = self._rest(command.partial)
        choices = [
            ChunkChoice(delta=ChoiceDelta(role="assistant", content="")),
            *(choice for text, ids in pieces for choice in self._send(text, ids)),
            ChunkChoice(finish_reason=self.finish_reason),
        ]
        return _WriterStream(env, self, emit, choices, held=held, breaks_after=self._breaks.pop(0) if self._breaks else None)

    def _rest(self, partial: Partial) -> tuple[list[Piece], str]:
        """What it writes behind a beginning, and the whitespace of it that it writes again."""
        spelling = self.spelling
        if not spelling.text.startswith(partial.text):
            raise AssertionError(f"{self.name}: expected the beginning of its own answer, got {partial.text!r}")
        if partial.ids and partial.vocabulary == spelling.vocabulary and self.sends_ids:
            if spelling.ids[: len(partial.ids)] != partial.ids:
                raise AssertionError(f"{self.name}: expected the first ids of its own answer, got {partial.ids}")
            self.by_ids += 1
            return spelling.after_ids(len(partial.ids)), ""
        self.by_text += 1
        kept, held = split_trailing_whitespace(partial.text)
        return spelling.after_text(len(kept)), held

    def _send(self, text: str, ids: tuple[int, ...]) -> list[ChunkChoice]:
        if not self.sends_ids:
            return [ChunkChoice(delta=ChoiceDelta(content=text))]
        if not self.sends_ids_early:
            return [ChunkChoice(delta=ChoiceDelta(content=text), token_ids=list(ids))]
        early = [ChunkChoice(delta=ChoiceDelta(content=""), token_ids=[token]) for token in ids[:-1]]
        return [*early, ChunkChoice(delta=ChoiceDelta(content=text), token_ids=[ids[-1]])]


class _WriterStream:
    def __init__(
        self,
        env: simpy.Environment,
        writer: SimulatedWriter,
        emit: Callable[[Event], None],
        choices: Sequence[ChunkChoice] | None,
        *,
        held: str = "",
        breaks_after: int | None = None,
    ) -> None:
        self._env = env
        self._writer = writer
        self._emit = emit
        self._choices = choices
        self._seam = BoundaryWhitespace(held)
        self._breaks_after = breaks_after
        self._at = 0
        self._is_cancelled = False
        call_at(env, writer.first, self._go_on)

    def pause(self) -> None:
        raise AssertionError("only a gate pauses")

    def resume(self) -> None:
        raise AssertionError("only a gate pauses")

    def cancel(self, released: Callable[[], None]) -> None:
        self._is_cancelled = True
        call_at(self._env, self._writer.cancel_takes, released)

    def _go_on(self) -> None:
        if self._is_cancelled:
            return
        writer, choices = self._writer, self._choices
        if choices is None:
            self._emit(StreamEnded(writer.name))
        elif self._at == len(choices):
            self._emit(StreamEnded(writer.name, writer.finish_reason))
        elif self._at == self._breaks_after:
            self._emit(StreamFailed(writer.name, EndpointConnectError("cut", endpoint=writer.name)))
        else:
            self._write(choices)
            call_at(self._env, 2 * writer.gap * writer.rng.random(), self._go_on)

    def _write(self, choices: Sequence[ChunkChoice]) -> None:
        stop = min(self._at + self._writer.rng.randint(1, self._writer.burst), len(choices))
        if self._breaks_after is not None:
            stop = min(stop, max(self._at, self._breaks_after))
        sent = choices[self._at : stop]
        self._at = stop
        tokens = sum(len(choice.token_ids) if choice.token_ids else bool(choice.delta.content) for choice in sent)
        event = TokensReceived(self._writer.name, [ChatCompletionChunk(choices=[choice]) for choice in sent], tokens)
        self._emit(self._seam.strip(event) if self._seam.is_open else event)
