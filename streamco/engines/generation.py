"""One running generation: the engine's side writes pieces, and the consumer's side takes them.

The two sides share the ring, ``is_cancelled``, ``_is_paused`` and ``_end``. Everything else belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco._native import FILLED, FULL, WAKE, Ring
from streamco.engines.base import GenerationEnd, GenerationRequest, GenerationTimings, TextPiece
from streamco.engines.consumer import Consumer, EngineSignals
from streamco.engines.detokenizer import IncrementalDetokenizer
from streamco.engines.kv_slots import Slot
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.rapl import EnergyMeter, WorkEnergy
from streamco.engines.sampling import Sampler, top_probabilities
from streamco.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RunningGeneration"]

_WHOLE = ("stop", "length")


class _Prefill(Struct):
    """When the prompt was admitted and decoded (``perf_counter()``, 0.0 until then), and how many of its tokens were in the KV cache."""

    admitted_at: float = 0.0
    ended_at: float = 0.0
    cached_tokens: int = 0


class RunningGeneration:
    """Implements ``Generation``, and ``SequenceWork`` for the engine's thread.

    Args:
        request: what to generate.
        model: the model; its vocabulary is used.
        limit: maximum number of completion tokens.
        buffered: number of generated tokens, not yet taken, at which the sequence is parked. Tokens that have no text yet count too, but
            they alone don't park it, because there is nothing to take.
        wake: called when there is something to take. If it raises an error, the generation is cancelled and ends with that error.
        engine: notified of changes on the consumer's side.
        meter: measures the energy that the generation uses, except while it is parked; None to measure nothing.

    Attributes:
        drafted: number of draft tokens that were verified for this generation.
        accepted: how many of them were drawn.

    Raises:
        ConfigError: a sampling option is out of range, or the grammar can't be read or enforced.
        EngineError: the beginning of the answer doesn't fit the grammar.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: LlamaModel,
        *,
        limit: int,
        buffered: int,
        wake: Callable[[], None],
        engine: EngineSignals,
        meter: EnergyMeter | None = None,
    ) -> None:
        if request.grammar is not None and request.ignore_eos:
            raise ConfigError("ignore_eos: expected false with a response_format, by which an answer has an end, got true")
        self.request = request
        self.prompt = list(request.prompt_ids)
        self.slot: Slot | None = None
        self.requested_at = perf_counter()
        self.late_s = 0.0
        self.next_token: int | None = None  # drawn and emitted, but not yet decoded
        self.is_cancelled = False
        self.is_parked = False
        self._is_paused = False  # set by the consumer's side
        self._was_paused = False  # parked because of that, not because pieces wait
        self._consumer = Consumer(wake)
        self._engine = engine
        self._ring: Ring[TextPiece] = Ring(buffered)
        self._backlog: list[TextPiece] = []  # pieces that found the ring full
        self._tail: list[TextPiece] = []  # pieces that come with the end
        self._end: GenerationEnd | None = None
        self._limit = limit
        self._end_ids = model.end_ids
        grammar = None if request.grammar is None else model.grammar(request.grammar, request.begun)
        self._sampler = Sampler(request.sampling, grammar)
        self._text = IncrementalDetokenizer(model.token_bytes, request.sampling.stop, request.pending_bytes)
        self._made = 0
        self.drafted = 0
        self.accepted = 0
        self._prefill = _Prefill()
        self._energy = WorkEnergy(meter)

    # The consumer's side

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return all pieces since the last call and, with the last of them, the end. Never blocks."""
        pieces = self._ring.drain()  # before the end is read, because an end that is set later wakes the consumer again
        end = self._end
        if end is not None:
            pieces += self._ring.drain()
            pieces += self._tail
            self._tail = []
        self._consumer.taken += sum(len(piece.ids) for piece in pieces)
        if end is None and (self._ring.take_unpark() or self.is_parked):  # read after the drain: see ``_park_if_full``
            self._engine.notify()
        return pieces, end

    def cancel(self) -> None:
        """Ask to stop; idempotent, never blocks."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._engine.interrupt(self)
            self._engine.notify()

    def pause(self) -> None:
        """Ask to be parked after the next token, until ``resume`` or until others need its place; never blocks."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue after ``pause``; never blocks."""
        self._is_paused = False
        self._engine.notify()

    # The engine's side

    @property
    def is_done(self) -> bool:
        """True once the engine has ended the generation."""
        return self._end is not None

    @property
    def made(self) -> int:
        """Number of tokens that were drawn."""
        return self._made

    @property
    def room(self) -> int:
        """Number of tokens that may still be drawn."""
        return self._limit - self._made

    @property
    def most_tokens(self) -> int:
        """Maximum number of tokens of prompt and answer together."""
        return len(self.prompt) + self._limit

    @property
    def missing(self) -> int:
        """Number of prompt tokens still to be decoded."""
        return len(self.prompt) - len(self.slot.ids) if self.slot is not None else len(self.prompt)

    @property
    def wants_logits(self) -> bool:
        """True if the logits of the prompt's last token are needed."""
        return not self.request.prefill_only

    def logits_needed(self, rows: int) -> int:
        """Return how many of the next ``rows`` rows need logits: 1 if they end the prompt, otherwise 0."""
        return int(rows == self.missing and self.wants_logits)

    def admit(self, slot: Slot) -> None:
        """Give the generation a slot, which may already hold the beginning of the prompt."""
        self.slot = slot
        self._prefill.cached_tokens = len(slot.ids)
        self._prefill.admitted_at = perf_counter()
        self._energy.resume(now=self._prefill.admitted_at)

    def record_cached(self, count: int) -> None:
        """Count ``count`` more prompt tokens that are in the slot and were not decoded for this generation."""
        self._prefill.cached_tokens += count

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Draw the next token from the logits of the last one and emit the text it completes; may finish the generation."""
        if not self._made:
            self._prefill.ended_at = perf_counter()
        if self._made >= self._limit:
            self.finish("length")
            return
        if self.request.ignore_eos:
            for token in self._end_ids:
                logits[token] = -float("inf")
        token = self._sampler.draw(logits)
        if token in self._end_ids:
            self.finish("stop")
            return
        self._made += 1
        self.next_token = token
        top = top_probabilities(logits, self.request.top, token) if self.request.top else None
        completed = self._text.add(token, top)
        if completed is not None:
            pieces, has_stopped = completed
            if has_stopped:
                self.finish("stop", pieces)
                return
            self._emit(pieces)
        if self._sampler.is_over:  # only the end token is left
            self.finish("stop")
            return
        self._park_if_full()
        if self._made >= self._limit:
            self.finish("length")

    def end_prefill(self) -> None:
        """End the generation, because the prompt is decoded and nothing else was requested."""
        self.finish("length")

    def _emit(self, pieces: list[TextPiece]) -> None:
        if self._backlog:
            self._backlog += pieces
            return
        for index, piece in enumerate(pieces):
            flags = self._ring.push(piece)
            if flags & WAKE and not self._consumer.wake():
                self.is_cancelled = True
            if flags == FULL or flags & FILLED:
                self._backlog = pieces[index + (flags != FULL) :]  # a full ring did not keep this one
                self.is_parked = True
                self._energy.pause(now=perf_counter())
                return

    def _park_if_full(self) -> None:
        """Park if the consumer has asked to pause, or if the maximum number of tokens is waiting, however few pieces they form."""
        if self._is_paused and not self.is_parked:
            self.is_parked = self._was_paused = True
            self._energy.pause(now=perf_counter())
        if not self.is_parked and self._made - self._consumer.taken >= self._ring.capacity and len(self._ring):
            self.is_parked = True
            if not len(self._ring):  # taken meanwhile, maybe before the consumer could see a parked sequence, so it may never come back
                self.is_parked = False
            else:
                self._energy.pause(now=perf_counter())

    def unpark(self) -> None:
        """Continue if the consumer has taken everything and has not asked to pause."""
        if self.is_parked and not self._is_paused and (self._was_paused or not len(self._ring)):
            self.is_parked = self._was_paused = False
            if not self.is_done:
                self._energy.resume(now=perf_counter())
            backlog, self._backlog = self._backlog, []
            self._emit(backlog)
            self._park_if_full()

    def end_pause(self) -> None:
        """Continue after ``pause``, because others are waiting for the slot."""
        self._is_paused = False
        self.unpark()

    def finish(self, reason: str, pieces: list[TextPiece] | None = None, *, error: Exception | None = None) -> None:
        """End the generation; idempotent.

        Args:
            reason: see ``GenerationEnd``.
            pieces: the last pieces to emit. None emits all held-back text if the answer is complete, and otherwise nothing, because an
                endpoint that continues a broken answer generates the rest of its last code point and decides about the stop string.
            error: what made the generation fail, if anything.
        """
        if self._end is not None:
            return
        if pieces is None:
            pieces = self._text.flush() if reason in _WHOLE else []
        self._tail = self._backlog + pieces
        stop = self._text.found_stop if reason == "stop" else None
        self._end = GenerationEnd(reason, self._timings(), error or self._consumer.failure, stop)
        if self._ring.finish() & WAKE and not self._consumer.wake():
            self.is_cancelled = True

    def _timings(self) -> GenerationTimings:
        now = perf_counter()
        self._energy.pause(now=now)
        admitted = self._prefill.admitted_at or now
        prefilled = self._prefill.ended_at or now
        return GenerationTimings(
            prompt_tokens=len(self.prompt),
            reused_tokens=self._prefill.cached_tokens,
            completion_tokens=self._made,
            prefill_s=prefilled - admitted,
            decode_s=now - prefilled,
            queued_s=admitted - self.requested_at,
            joules=self._energy.joules,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
        )
