"""A target server in virtual time: the live scheduler's batches and plain streams, one forward pass after the other.

A pass decodes a token of every stream, and beside that reads one batch: the scheduler's, or in turn with it a chunk of a stream's prompt.
It takes what a forward pass over so many tokens takes on the hardware. What a server has read of an answer for its stream, it needs not
read again for its session, and the other way round, as ``streamco serve`` keeps it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import simpy
from msgspec import Struct

from streamco.core.verifier.events import (
    AcceptSession,
    BatchFinished,
    BatchPart,
    DraftVerdict,
    DropSequence,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.batching import CHUNK, BatchPolicy
from streamco.sim.driver import SimulatedMachine, call_at
from streamco.sim.fleet.recorded_answer import RecordedAnswer
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["SERVE", "ForwardPass", "PassLimits", "PlainStream", "SessionAnswer", "TargetServer"]

ForwardPass = Callable[[int, int, int, int], float]
"""Seconds of a pass: streams that decode, other new tokens, tokens in all their caches, sequences that the other tokens are of."""

SessionAnswer = AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession


class PassLimits(Struct, frozen=True, kw_only=True):
    """How much goes into one forward pass, and in which order.

    Args:
        prompt: tokens of a stream's prompt.
        beside: the same, while others write.
        part: tokens of each session in a batch; of more, the batch is read in several passes. None: any number.
        writes_first: a pass is two, what streams write and behind it what is read: their tokens are told between them.
        takes_turns: prompts of streams are read side by side, a piece of each; False: one behind the other.
    """

    prompt: int = 512
    beside: int = 512
    part: int | None = None
    writes_first: bool = False
    takes_turns: bool = False


SERVE = PassLimits(prompt=128, beside=32, part=32, writes_first=True, takes_turns=True)
"""The engine of ``streamco serve``: small chunks, so that a cancelled prompt stops soon (engines/loop.py)."""


class PlainStream:
    """The target writing alone.

    Args:
        answer: what it writes.
        length: tokens of the answer it begins behind.
        emit: is given the number of each token's place.
    """

    __slots__ = ("answer", "emit", "length", "unread")

    def __init__(self, answer: RecordedAnswer, length: int, emit: Callable[[int], None]) -> None:
        self.answer = answer
        self.length = length
        self.emit = emit
        self.unread = 0  # tokens before the first step


class TargetServer(SimulatedMachine[SchedulerEvent, SchedulerCommand]):
    """A scheduler, streams, and the hardware they share.

    Args:
        forward: seconds of a pass.
        options: what the scheduler bears.
        policy: which verifications and prompts form a batch; None: the live server's.
        limits: of a pass.
        is_padded: a batch costs as if every request in it were as long as the longest.

    Attributes:
        load: requests that were sent here and haven't ended, for routing.
        busy: seconds of passes so far.
        passes: how many.
        made: tokens of streams. judged: tokens of drafts. read: others.
        refused: sessions and drafts.
    """

    def __init__(
        self,
        env: simpy.Environment,
        forward: ForwardPass,
        options: SchedulerOptions,
        policy: BatchPolicy | None = None,
        *,
        limits: PassLimits | None = None,
        is_padded: bool = False,
    ) -> None:
        super().__init__(
            env, VerificationScheduler(options, lambda tokens, context: forward(0, tokens, context, math.ceil(tokens / CHUNK)), policy)
        )
        self.load = 0
        self.busy = 0.0
        self.passes = self.made = self.judged = self.read = self.refused = 0
        self._forward = forward
        self._limits = limits or PassLimits()
        self._is_padded = is_padded
        self._emit_to: dict[str, Callable[[SessionAnswer], None]] = {}
        self._answers: dict[str, RecordedAnswer] = {}
        self._closed: list[str] = []  # in the batch that runs
        self._known: dict[int, int] = {}  # by request: tokens of prompt and answer that are in the cache, whoever had them read
        self._common = 0  # tokens with which all prompts begin, and which are in the cache for good
        self._batch: RunBatch | None = None
        self._writing: list[PlainStream] = []
        self._reading: deque[PlainStream] = deque()
        self._is_busy = False
        self._was_batch = False  # the last pass had one
        self.machine.start(now=env.now)

    @property
    def sessions(self) -> int:
        """That are open."""
        return len(self._answers)

    @property
    def known(self) -> int:
        """Requests of which something is in the cache."""
        return len(self._known)

    # Sessions

    def open(self, event: SessionOpened, answer: RecordedAnswer, emit: Callable[[SessionAnswer], None]) -> None:
        """A device wants drafts of this answer judged; ``emit`` is told what the scheduler says of it."""
        self._emit_to[event.session] = emit
        self._answers[event.session] = answer
        self.receive(event)

    def close(self, session: str) -> None:
        """A device wants nothing more of this session."""
        if session not in self._answers:
            return
        self.receive(SessionClosed(session))
        if self._batch is not None and any(part.session == session for part in self._batch.parts):
            self._closed.append(session)
        else:
            self._drop(session)

    def _drop(self, session: str) -> None:
        self._answers.pop(session, None)
        self._emit_to.pop(session, None)

    def forget(self, request: int) -> None:
        """Nothing more comes of the request of this number."""
        self._known.pop(request, None)

    def _do(self, command: SchedulerCommand) -> None:
        self.refused += isinstance(command, RefuseSession | RefuseDraft)
        match command:
            case RunBatch():
                self._batch = command
                self._begin()
            case TruncateSequence() | DropSequence():
                pass  # the scheduler's own count is what costs
            case RefuseSession(name) | ForgetSession(name):
                emit = self._emit_to[name]
                self._drop(name)
                emit(command)
            case _:
                if command.session in self._emit_to:  # otherwise it was refused, and a draft was on its way already
                    self._emit_to[command.session](command)

    # Streams

    def stream(self, stream: PlainStream) -> None:
        """Read what is before it, then write."""
        total = stream.answer.request.prompt_tokens + stream.length
        stream.unread = max(1, total - self._cached(stream.answer.request))
        self._reading.append(stream)
        self._begin()

    def stop(self, stream: PlainStream) -> None:
        """Write no more; the pass that runs is not cut short."""
        for each in (self._writing, self._reading):
            if stream in each:
                each.remove(stream)

    # Passes

    def _begin(self) -> None:
        if self._is_busy or not (self._batch or self._writing or self._reading):
            return
        batch, reading, writing = self._next_batch(), None, self._writing[:]
        context = own = sum([stream.answer.request.prompt_tokens + stream.length for stream in writing])
        tokens, found, sequences, pieces = 0, 0, 1, [0]
        if batch is not None:
            found, sequences = self._found(batch), len(batch.parts)
            context += sum([part.start for part in batch.parts])
            tokens = self._size(batch) - found
            pieces = _pieces([len(part.ids) for part in batch.parts], tokens, self._limits.part)
        elif self._reading:
            reading = self._reading[0]
            tokens = min(self._limits.beside if writing else self._limits.prompt, reading.unread)
            pieces = [tokens]
        seconds = sum([self._forward(len(writing), piece, context, sequences) for piece in pieces if piece or writing])
        self._is_busy = True
        self.busy += seconds
        self.passes += len(pieces)
        self.read += tokens
        is_written = self._limits.writes_first and tokens > 0 and len(writing) > 0
        if is_written:
            call_at(self._env, min(seconds, self._forward(len(writing), 0, own, 0)), lambda: self._write_all(writing))

        def end() -> None:
            self._is_busy = False
            if not is_written:
                self._write_all(writing)
            if reading is not None and reading in self._reading:
                self._read_on(reading, tokens)
            if batch is not None:
                self._finish(batch, seconds, found)
            self._begin()

        call_at(self._env, seconds, end)

    def _next_batch(self) -> RunBatch | None:
        """Return the scheduler's, if there is one; where a stream's prompt waits, every other pass is for that."""
        batch = None if self._reading and self._was_batch else self._batch
        self._was_batch = batch is not None
        return batch

    def _size(self, batch: RunBatch) -> int:
        """Tokens that it costs."""
        lengths = [len(part.ids) for part in batch.parts]
        return len(lengths) * max(lengths) if self._is_padded else sum(lengths)

    def _read_on(self, stream: PlainStream, tokens: int) -> None:
        stream.unread -= tokens
        if stream.unread <= 0:
            self._reading.remove(stream)
            self._writing.append(stream)
            self._write(stream)
        elif self._limits.takes_turns:
            self._reading.rotate(-1)

    def _finish(self, batch: RunBatch, seconds: float, found: int) -> None:
        self._batch = None
        verdicts = tuple(self._verify(part) for part in batch.parts if part.verify_rows)
        for part in batch.parts:
            self._record_read(part)
        closed, self._closed = self._closed, []
        for session in closed:
            self._drop(session)
        self.receive(BatchFinished(batch.number, verdicts, seconds, found=found))

    def _write_all(self, writing: Sequence[PlainStream]) -> None:
        """A token of each that is still there."""
        for stream in writing:
            if stream in self._writing:
                self._write(stream)

    def _write(self, stream: PlainStream) -> None:
        position = stream.length
        stream.length += 1
        self.made += 1
        answer = stream.answer
        self._cache(answer.request, answer.request.prompt_tokens + stream.length)
        if stream.length >= answer.tokens:
            self._writing.remove(stream)
        stream.emit(position)

    def _found(self, batch: RunBatch) -> int:
        """Tokens of a prefill that a stream of the same request has had read, or that all prompts begin with."""
        if batch.kind != "prefill" or not (self._known or self._common):
            return 0
        found = 0
        for part in batch.parts:
            found += max(0, min(len(part.ids), self._cached(self._answers[part.session].request) - part.start))
        return found

    def _cached(self, request: SimulatedRequest) -> int:
        """Tokens of its prompt and answer."""
        return max(self._known.get(request.number, 0), min(self._common, request.common_tokens))

    def _cache(self, request: SimulatedRequest, tokens: int) -> None:
        """So many of its prompt and answer have been read."""
        self._known[request.number] = max(self._known.get(request.number, 0), tokens)
        self._common = max(self._common, min(tokens, request.common_tokens))

    def _record_read(self, part: BatchPart) -> None:
        answer = self._answers.get(part.session)
        if answer is not None and not part.verify_rows:
            self._cache(answer.request, part.start + len(part.ids))

    def _verify(self, part: BatchPart) -> DraftVerdict:
        answer = self._answers[part.session]
        draft = part.ids[len(part.ids) - part.verify_rows + 1 :]
        self.judged += len(draft)
        position = part.start + len(part.ids) - len(draft) - answer.request.prompt_tokens
        return DraftVerdict(part.session, *answer.verify(draft, position))


def _pieces(lengths: Sequence[int], tokens: int, max_tokens: int | None) -> list[int]:
    """Tokens of each pass, where a batch of ``tokens`` has parts of these lengths, of which a pass reads ``max_tokens`` tokens each."""
    longest = max(lengths)
    if max_tokens is None or longest <= max_tokens:
        return [tokens]
    whole = sum(lengths)
    cut = [sum(min(max_tokens, max(0, length - start)) for length in lengths) for start in range(0, longest, max_tokens)]
    return [round(tokens * piece / whole) for piece in cut]  # what was found, and what is padded, is shared by all
