"""A verifier and its devices in virtual time: the live scheduler, an engine that only takes time, devices that draft.

The engine keeps the ids that it has read, as a real one keeps their keys and values, and refuses a part that doesn't begin at the end of
the cache. Each device sends ids of its own, so a token in the wrong sequence is found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

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
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import StepSeconds
from streamco.sim.driver import SimulatedMachine, call_at

__all__ = ["Drafting", "SequenceCache", "SimulatedDrafter", "SimulatedVerifier"]

Answer = AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession


class SequenceCache:
    """The ids in the cache of each sequence.

    Attributes:
        ids: ids by session.
        max_tokens: largest number of tokens that it held at one time.
    """

    def __init__(self) -> None:
        self.ids: dict[str, list[int]] = {}
        self.max_tokens = 0

    @property
    def tokens(self) -> int:
        """Number of tokens that it holds."""
        return sum(map(len, self.ids.values()))

    def read(self, part: BatchPart) -> None:
        """Append a part of a batch."""
        ids = self.ids.setdefault(part.session, [])
        if len(ids) != part.start:
            raise AssertionError(f"{part.session}: expected ids after the {len(ids)} in the cache, got them for position {part.start}")
        ids += part.ids

    def truncate(self, session: str, length: int) -> None:
        """Keep the first ``length`` ids."""
        ids = self.ids[session]
        if len(ids) < length:
            raise AssertionError(f"{session}: expected to keep at most {len(ids)} tokens, got {length}")
        del ids[length:]

    def drop(self, session: str) -> None:
        """Drop the ids of a session."""
        self.ids.pop(session, None)


class SimulatedVerifier(SimulatedMachine[SchedulerEvent, SchedulerCommand]):
    """A scheduler over an engine that takes time.

    Args:
        step: real seconds of a batch.
        verify: function from the ids before a draft and the draft to (accepted tokens, next token).

    Attributes:
        cache: the engine's cache.
        batches: (start, seconds, command) of each batch.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: VerificationScheduler,
        step: StepSeconds,
        verify: Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, int]],
    ) -> None:
        super().__init__(env, scheduler)
        self.cache = SequenceCache()
        self.batches: list[tuple[float, float, RunBatch]] = []
        self._step = step
        self._verify = verify
        self._emits: dict[str, Callable[[Answer], None]] = {}
        self._cancelled: set[str] = set()  # sessions whose part of the running batch is cancelled
        scheduler.start(now=env.now)

    def receive(self, event: SchedulerEvent, emit: Callable[[Answer], None] | None = None) -> None:
        """Feed an event to the scheduler now. ``emit`` receives the answers about a session that this event opens."""
        if isinstance(event, SessionOpened) and emit is not None:
            self._emits[event.session] = emit
        super().receive(event)

    def _do(self, command: SchedulerCommand) -> None:
        match command:
            case RunBatch():
                self._run(command)
            case TruncateSequence(session, length):
                self.cache.truncate(session, length)
            case DropSequence(session):
                self.cache.drop(session)
            case CancelPart(session):
                self._cancelled.add(session)
            case _:
                self._emits[command.session](command)

    def _run(self, command: RunBatch) -> None:
        tokens, context = sum(len(part.ids) for part in command.parts), sum(part.start for part in command.parts)
        seconds = self._step(tokens, context)
        self.batches.append((self._env.now, seconds, command))
        for part in command.parts:
            self.cache.read(part)
        self.cache.max_tokens = max(self.cache.max_tokens, self.cache.tokens)
        verdicts = tuple(self._verdict(part) for part in command.parts if part.verify_rows)

        def end() -> None:
            cancelled, self._cancelled = self._cancelled, set()
            failed = tuple(part.session for part in command.parts if part.session in cancelled)
            left = tuple(verdict for verdict in verdicts if verdict.session not in cancelled)
            self.receive(BatchFinished(command.number, left, seconds, failed, is_cut=bool(failed)))

        call_at(self._env, seconds, end)

    def _verdict(self, part: BatchPart) -> DraftVerdict:
        ids = tuple(self.cache.ids[part.session])
        border = len(ids) - part.verify_rows + 1
        return DraftVerdict(part.session, *self._verify(ids[:border], ids[border:]))


class Drafting(Struct, frozen=True, kw_only=True):
    """Workload of a device.

    Args:
        context_tokens: minimum and maximum tokens of a prompt.
        answer_tokens: tokens of an answer.
        rate: tokens per second that it drafts.
        window: tokens in a draft.
        budget: share of drafts that are sent for verification; the others are given with the next one.
        round_trip: seconds of a round trip of the network.
        pause: mean seconds between an answer and the next prompt.
    """

    context_tokens: tuple[int, int] = (100, 500)
    answer_tokens: int = 128
    rate: float = 10.0
    window: int = 4
    budget: float = 0.3
    round_trip: float = 0.06
    pause: float = 5.0


class SimulatedDrafter:
    """A device that opens one session after the other and waits for each verdict.

    Args:
        number: number of the device; its name and its ids contain it.

    Attributes:
        first: seconds from the first draft of each answer to its verdict, including the prompt.
        latencies: seconds from each other draft to its verdict, refusals left out.
        answers: number of finished sessions.
        refused: drafts and sessions that were refused, with the seconds to wait.
    """

    def __init__(self, env: simpy.Environment, verifier: SimulatedVerifier, number: int, drafting: Drafting, rng: Random) -> None:
        self.name = f"device{number}"
        self.first: list[float] = []
        self.latencies: list[float] = []
        self.answers = 0
        self.refused: list[RefuseSession | RefuseDraft] = []
        self._env = env
        self._verifier = verifier
        self._drafting = drafting
        self._rng = rng
        self._next_id = number << 32
        self._answered: simpy.Event = env.event()

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Generate answers for ever, as a SimPy process."""
        yield self._env.timeout(self._rng.random() * self._drafting.pause)
        number = 0
        while True:
            number += 1
            yield from self._answer(f"{self.name}-{number}")
            yield self._env.timeout(self._rng.expovariate(1 / self._drafting.pause))

    def _answer(self, session: str) -> Generator[simpy.Event, Any, None]:
        drafting = self._drafting
        text = self._write(self._rng.randint(*drafting.context_tokens))
        end = len(text) + drafting.answer_tokens
        while isinstance(refusal := (yield from self._ask(SessionOpened(session, self.name, tuple(text)))), RefuseSession):
            self.refused.append(refusal)
            yield self._env.timeout(refusal.retry_after or 0.0)
        base, round_number, verified = len(text), 0, 0
        while len(text) < end:
            yield self._env.timeout(drafting.window / drafting.rate)
            draft = self._write(drafting.window)
            if self._rng.random() >= drafting.budget:
                text += draft
                continue
            verdict = None
            while not isinstance(verdict, SendVerdict):
                round_number += 1
                asked = self._env.now
                event = DraftReceived(session=session, round=round_number, base=base, given=tuple(text[base:]), draft=tuple(draft))
                verdict = yield from self._ask(event)
                if isinstance(verdict, RefuseDraft):
                    self.refused.append(verdict)
                    yield self._env.timeout(verdict.retry_after or 0.0)
            (self.latencies if verified else self.first).append(self._env.now - asked)
            verified += 1
            token = verdict.verdict.token
            assert token is not None, "the context has room for a token"
            text += [*draft[: verdict.verdict.accepted], token]
            base = len(text)
            if verdict.position != base:
                raise AssertionError(f"{session}: expected a text of {base} tokens, got {verdict.position}")
        self._verifier.receive(SessionClosed(session))
        self.answers += 1

    def _ask(self, event: SessionOpened | DraftReceived) -> Generator[simpy.Event, Any, Answer]:
        yield self._env.timeout(self._drafting.round_trip / 2)
        self._answered = self._env.event()
        self._verifier.receive(event, self._receive)
        answer: Answer = yield self._answered
        yield self._env.timeout(self._drafting.round_trip / 2)
        return answer

    def _receive(self, answer: Answer) -> None:
        self._answered.succeed(answer)

    def _write(self, tokens: int) -> list[int]:
        """Return ids that are used once in the simulation."""
        first, self._next_id = self._next_id, self._next_id + tokens
        return list(range(first, self._next_id))
