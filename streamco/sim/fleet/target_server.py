"""A target server in virtual time: it runs the live scheduler's batches and remote streams in one forward pass after another.

A pass decodes a token for every stream, and also reads one batch: alternately one of the scheduler's and a chunk of a stream's prompt. It
takes the time of a forward pass over these tokens on the hardware. Tokens that were read for an answer's stream needn't be read again for
its session, and vice versa, as in ``streamco serve``.
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
    CancelPart,
    DraftReceived,
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
from streamco.policies.serving.batching import CHUNK, BatchPolicy
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import SimulatedMachine, call_at
from streamco.sim.fleet.recorded_answer import RecordedAnswer
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["SERVE", "CoLocatedDraft", "ForwardPass", "PassLimits", "PlainStream", "SessionAnswer", "TargetServer"]

ForwardPass = Callable[[int, int, int, int], float]
"""Function that returns how many seconds a pass takes. Its arguments are the number of streams that decode, the number of other new tokens,
the number of tokens in all caches, and the number of sequences that the other new tokens belong to."""

SessionAnswer = AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession


class CoLocatedDraft(Struct, frozen=True):
    """A draft model on the hardware of a target server; the two models compute in turns.

    Args:
        forward: returns the seconds of a pass of the draft model.
        window: tokens that it drafts for each stream in a round.
    """

    forward: ForwardPass
    window: int


class PassLimits(Struct, frozen=True, kw_only=True):
    """The limits of one forward pass, its order, and the costs that devices know.

    Args:
        max_prompt: maximum tokens of a stream's prompt.
        max_prompt_beside: maximum tokens of a stream's prompt while other streams write.
        max_part: maximum tokens of each session in a batch, or None for no limit; longer parts are read in several passes.
        writes_first: True if a pass is two passes, one that writes and one that reads, with the streams' tokens emitted in between.
        takes_turns: True if the prompts of streams are read in turns, a piece of each; False if they are read one after the other.
        drafting: draft model with which streams are written, if any; a pass is then a round (DSD section 3.3, fused mode).
        row_costs: costs of a pass by its rows, for devices that plan their drafts with them, or None if devices don't know them.
    """

    max_prompt: int = 512
    max_prompt_beside: int = 512
    max_part: int | None = None
    writes_first: bool = False
    takes_turns: bool = False
    drafting: CoLocatedDraft | None = None
    row_costs: RowCosts | None = None


SERVE = PassLimits(max_prompt=128, max_prompt_beside=32, max_part=32, writes_first=True, takes_turns=True)
"""The limits of the engine in ``streamco serve``, with small chunks, so that a cancelled prompt stops soon (``streamco.engines.loop``)."""


class PlainStream:
    """A remote stream at the server.

    Args:
        answer: the answer that it writes.
        length: number of the answer's tokens after which it begins.
        emit: called with the position of each token.
    """

    __slots__ = ("answer", "emit", "length", "unread")

    def __init__(self, answer: RecordedAnswer, length: int, emit: Callable[[int], None]) -> None:
        self.answer = answer
        self.length = length
        self.emit = emit
        self.unread = 0  # tokens still to be read before the first step


class TargetServer(SimulatedMachine[SchedulerEvent, SchedulerCommand]):
    """A target server, with the live scheduler, streams, and the hardware that they share.

    Args:
        forward: returns how many seconds a pass takes.
        options: limits of the scheduler.
        policy: forms batches of verifications and prompts, or None for the live server's policy.
        limits: limits of a pass.
        is_padded: True if a batch costs as if every request in it were as long as the longest.

    Attributes:
        load: number of requests that were sent to this server and haven't ended, for routing.
        busy: seconds that all passes so far took together.
        passes: number of passes so far.
        made: tokens that streams wrote.
        verified: tokens of drafts that were verified.
        read: tokens of prompts, contexts and drafts in all passes, including padding.
        refused: number of refused sessions and drafts.
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
        self.passes = self.made = self.verified = self.read = self.refused = 0
        self._forward = forward
        self._limits = limits or PassLimits()
        self._is_padded = is_padded
        self._emit_to: dict[str, Callable[[SessionAnswer], None]] = {}
        self._answers: dict[str, RecordedAnswer] = {}
        self._closed: list[str] = []  # sessions that were closed while the running batch reads them
        self._known: dict[int, int] = {}  # by request, tokens of prompt and answer in the cache, read for its session or its stream
        self._common = 0  # tokens that all prompts begin with, and that stay in the cache
        self._batch: RunBatch | None = None
        self._writing: list[PlainStream] = []
        self._reading: deque[PlainStream] = deque()
        self._is_busy = False
        self._was_batch = False  # the last pass read a batch of the scheduler
        self.machine.start(now=env.now)

    @property
    def row_costs(self) -> RowCosts | None:
        """The costs of a pass by its rows, as devices know them, or None if they don't."""
        return self._limits.row_costs

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._answers)

    @property
    def known(self) -> int:
        """Number of requests with tokens in the cache."""
        return len(self._known)

    # Sessions

    def open(self, event: SessionOpened, answer: RecordedAnswer, emit: Callable[[SessionAnswer], None]) -> None:
        """Open a session that verifies drafts of this answer. ``emit`` is called with the scheduler's commands for it."""
        self._emit_to[event.session] = emit
        self._answers[event.session] = answer
        self.receive(event)

    def receive(self, event: SchedulerEvent) -> None:
        """Pass an event to the scheduler, and keep the parents of a draft for its verdict."""
        if isinstance(event, DraftReceived) and event.session in self._answers:
            self._answers[event.session].parents = event.parents
        super().receive(event)

    def close(self, session: str) -> None:
        """Close a session."""
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
        """Drop the cached tokens of the request with this number."""
        self._known.pop(request, None)

    def _do(self, command: SchedulerCommand) -> None:
        self.refused += isinstance(command, RefuseSession | RefuseDraft)
        match command:
            case RunBatch():
                self._batch = command
                self._begin()
            case TruncateSequence() | DropSequence():
                pass  # costs follow from the scheduler's own count
            case CancelPart():
                pass  # it is read to the end, as on a GPU
            case RefuseSession(name) | ForgetSession(name):
                emit = self._emit_to[name]
                self._drop(name)
                emit(command)
            case _:
                if command.session in self._emit_to:  # otherwise it was refused while a draft was on its way
                    self._emit_to[command.session](command)

    # Streams

    def stream(self, stream: PlainStream) -> None:
        """Start a stream: read the prompt and the answer so far, then write."""
        total = stream.answer.request.prompt_tokens + stream.length
        stream.unread = max(1, total - self._cached(stream.answer.request))
        self._reading.append(stream)
        self._begin()

    def stop(self, stream: PlainStream) -> None:
        """Stop a stream. The running pass isn't cut short."""
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
            pieces = _pieces([len(part.ids) for part in batch.parts], tokens, self._limits.max_part)
        elif self._reading:
            reading = self._reading[0]
            tokens = min(self._limits.max_prompt_beside if writing else self._limits.max_prompt, reading.unread)
            pieces = [tokens]
        seconds = sum([self._seconds(len(writing), piece, context, sequences) for piece in pieces if piece or writing])
        self._is_busy = True
        self.busy += seconds
        self.passes += len(pieces)
        self.read += tokens
        is_written = self._limits.writes_first and tokens > 0 and len(writing) > 0
        if is_written:
            call_at(self._env, min(seconds, self._seconds(len(writing), 0, own, 0)), lambda: self._write_all(writing))

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

    def _seconds(self, writing: int, tokens: int, context: int, sequences: int) -> float:
        """Return how many seconds a pass takes. With a draft model it is a round, which makes a draft for each stream and verifies it."""
        if self._limits.drafting is None:
            return self._forward(writing, tokens, context, sequences)
        window, draft = self._limits.drafting.window, self._limits.drafting.forward
        seconds = self._forward(0, writing * (window + 1) + tokens, context, writing + (sequences if tokens else 0))
        if writing:
            seconds += window * draft(writing, 0, context, 1)
        if tokens:
            seconds += draft(0, tokens, 0, sequences)  # the draft model reads prompts as well
        return seconds

    def _next_batch(self) -> RunBatch | None:
        """Return the scheduler's batch, if there is one. If a stream's prompt waits, every other pass is for that prompt."""
        batch = None if self._reading and self._was_batch else self._batch
        self._was_batch = batch is not None
        return batch

    def _size(self, batch: RunBatch) -> int:
        """Return how many tokens a batch costs."""
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
        """Write the tokens of each stream that wasn't stopped."""
        for stream in writing:
            if stream in self._writing:
                for _ in range(self._round_tokens(stream)):
                    self._write(stream)

    def _round_tokens(self, stream: PlainStream) -> int:
        """Return the number of tokens that a stream gets in a pass: one and, with a draft model, the accepted tokens before it."""
        if self._limits.drafting is None:
            return 1
        position, accepted = stream.length, stream.answer.request.accepted
        end = min(position + self._limits.drafting.window, stream.answer.tokens - 1)
        self.verified += self._limits.drafting.window
        return 1 + next((index for index in range(end - position) if not accepted[position + index]), end - position)

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
        """Return how many tokens of a prefill are in the cache already, read for a stream of the same request or common to all prompts."""
        if batch.kind != "prefill" or not (self._known or self._common):
            return 0
        found = 0
        for part in batch.parts:
            found += max(0, min(len(part.ids), self._cached(self._answers[part.session].request) - part.start))
        return found

    def _cached(self, request: SimulatedRequest) -> int:
        """Return how many tokens of a request's prompt and answer are in the cache."""
        return max(self._known.get(request.number, 0), min(self._common, request.common_tokens))

    def _cache(self, request: SimulatedRequest, tokens: int) -> None:
        """Record that this many tokens of a request's prompt and answer have been read."""
        self._known[request.number] = max(self._known.get(request.number, 0), tokens)
        self._common = max(self._common, min(tokens, request.common_tokens))

    def _record_read(self, part: BatchPart) -> None:
        answer = self._answers.get(part.session)
        if answer is not None and not part.verify_rows:
            self._cache(answer.request, part.start + len(part.ids))

    def _verify(self, part: BatchPart) -> DraftVerdict:
        answer = self._answers[part.session]
        draft = part.ids[len(part.ids) - part.verify_rows + 1 :]
        self.verified += len(draft)
        position = part.start + len(part.ids) - len(draft) - answer.request.prompt_tokens
        return DraftVerdict(part.session, *answer.verify(draft, position, answer.parents))


def _pieces(lengths: Sequence[int], tokens: int, max_tokens: int | None) -> list[int]:
    """Return the tokens of each pass over a batch.

    Args:
        lengths: tokens of the batch's parts.
        tokens: total tokens that are computed.
        max_tokens: maximum tokens of each part that a pass reads, or None for no limit.
    """
    longest = max(lengths)
    if max_tokens is None or longest <= max_tokens:
        return [tokens]
    whole = sum(lengths)
    cut = [sum(min(max_tokens, max(0, length - start)) for length in lengths) for start in range(0, longest, max_tokens)]
    return [round(tokens * piece / whole) for piece in cut]  # cached tokens and padding are spread over all passes
