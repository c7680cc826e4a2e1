"""One running generation: the engine's side writes pieces, the consumer's side takes them.

The two sides share the ring, ``is_cancelled`` and ``_end``; everything else belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from streamco._native import FILLED, FULL, WAKE, Ring
from streamco.engines.base import GenerationEnd, GenerationRequest, GenerationTimings, TextPiece
from streamco.engines.detokenizer import StopMatcher, TextAssembler
from streamco.engines.kv_slots import Slot
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.sampling import Sampler, top_probabilities

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RunningGeneration"]

_WHOLE = ("stop", "length")


class RunningGeneration:
    """Implements ``Generation``.

    Args:
        request: what to generate.
        model: for its vocabulary.
        limit: completion tokens at most.
        room: pieces buffered before the sequence is parked.
        wake: tells the consumer that there is something to take; when it raises, the generation is cancelled, and its end has the error.
        nudge: tells the engine that something changed on this side.
        interrupt: stops the decode that runs, if everybody whose rows are in it was cancelled.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: LlamaModel,
        *,
        limit: int,
        room: int,
        wake: Callable[[], None],
        notify: Callable[[], None],
        interrupt: Callable[[object], None],
    ) -> None:
        self.request = request
        self.prompt = list(request.prompt_ids)
        self.slot: Slot | None = None
        self.asked_at = perf_counter()
        self.late_s = 0.0
        self.next_token: int | None = None  # drawn and shown, but not yet decoded
        self.is_cancelled = False
        self.is_parked = False
        self._wake = wake
        self._notify = notify
        self._interrupt = interrupt
        self._ring: Ring[TextPiece] = Ring(room)
        self._backlog: list[TextPiece] = []
        self._end: GenerationEnd | None = None
        self._tail: list[TextPiece] = []
        self._limit = limit
        self._end_ids = model.end_ids
        self._sampler = Sampler(request.sampling)
        self._assembler = TextAssembler(model.token_bytes, request.pending_bytes)
        self._stops = StopMatcher(request.sampling.stop)
        self._wake_failure: Exception | None = None
        self._made = 0
        self._reused = 0
        self._admitted = self._prefilled = 0.0

    # The consumer's side

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return all pieces since the last call and, with the last of them, the end. Never blocks."""
        pieces = self._ring.drain()  # before the end is read: an end set later than this wakes again
        end = self._end
        if end is not None:
            pieces += self._ring.drain()
            pieces += self._tail
            self._tail = []
        elif self._ring.take_unpark():
            self._notify()
        return pieces, end

    def cancel(self) -> None:
        """Ask to stop; idempotent, never blocks."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._interrupt(self)
            self._notify()

    # The engine's side

    @property
    def is_done(self) -> bool:
        """The engine has ended it."""
        return self._end is not None

    @property
    def missing(self) -> int:
        """Prompt tokens still to be decoded."""
        return len(self.prompt) - len(self.slot.ids) if self.slot is not None else len(self.prompt)

    @property
    def wants_logits(self) -> bool:
        """Those of the prompt's last token."""
        return not self.request.prefill_only

    def logits_needed(self, rows: int) -> int:
        """Of how many of the next so many rows it wants the logits: the prompt's last."""
        return int(rows == self.missing and self.wants_logits)

    def admit(self, slot: Slot) -> None:
        """It has a slot, with a part of the prompt already in it."""
        self.slot = slot
        self._reused = len(slot.ids)
        self._admitted = perf_counter()

    def record_cached(self, count: int) -> None:
        """So many more tokens of the prompt are in the slot without having been decoded for it."""
        self._reused += count

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Draw the next token from the logits of the last one and show what it completes; may finish the generation."""
        if self._prefilled == 0.0:
            self._prefilled = perf_counter()
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
        top = top_probabilities(logits, self.request.top) if self.request.top else None
        piece = self._assembler.add(token, top)
        if piece is not None:
            pieces, has_stopped = self._stops.add(piece)
            if has_stopped:
                self.finish("stop", pieces)
                return
            self._show(pieces)
        if self._made >= self._limit:
            self.finish("length")

    def end_prefill(self) -> None:
        """The prompt is decoded, and that was all."""
        self.finish("length")

    def _show(self, pieces: list[TextPiece]) -> None:
        if self._backlog:
            self._backlog += pieces
            return
        for index, piece in enumerate(pieces):
            flags = self._ring.push(piece)
            if flags & WAKE:
                self._call_wake()
            if flags == FULL or flags & FILLED:
                self._backlog = pieces[index + (flags != FULL) :]  # a full ring did not keep this one
                self.is_parked = True
                return

    def unpark(self) -> None:
        """Go on if the consumer has made room."""
        if self.is_parked and 2 * len(self._ring) <= self._ring.capacity:
            self.is_parked = False
            backlog, self._backlog = self._backlog, []
            self._show(backlog)

    def finish(self, reason: str, pieces: list[TextPiece] | None = None, *, error: Exception | None = None) -> None:
        """End it.

        ``pieces``: what to show last. None: everything that was held back if the answer is whole, else nothing: whoever goes on with a
        broken one makes the rest of its last code point and decides about the stop string.
        """
        if self._end is not None:
            return
        if pieces is None:
            pieces = self._flush() if reason in _WHOLE else []
        self._tail = self._backlog + pieces
        self._end = GenerationEnd(reason, self._timings(), error or self._wake_failure)
        if self._ring.finish() & WAKE:
            self._call_wake()

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception as exc:  # noqa: BLE001  # the consumer's fault: it must not end the others' generations
            self.is_cancelled = True
            self._wake_failure = self._wake_failure or exc

    def _flush(self) -> list[TextPiece]:
        last = self._assembler.flush()
        if last is None:
            return self._stops.flush()
        pieces, has_stopped = self._stops.add(last)
        return pieces if has_stopped else pieces + self._stops.flush()

    def _timings(self) -> GenerationTimings:
        now = perf_counter()
        admitted = self._admitted or now
        prefilled = self._prefilled or now
        return GenerationTimings(
            prompt_tokens=len(self.prompt),
            reused_tokens=self._reused,
            completion_tokens=self._made,
            prefill_s=prefilled - admitted,
            decode_s=now - prefilled,
            queued_s=admitted - self.asked_at,
        )
