"""One answer at a pool of verifiers. It uses the verifier that was chosen for it, and moves to another one if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import Protocol

from msgspec import Struct

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.base import Endpoint
from streamco.endpoints.verifiers.base import Emit, Verifier, VerifierCommand, VerifierEvent, VerifierFacts, VerifierSession
from streamco.endpoints.verifiers.pool_member import PoolMember
from streamco.engines.base import TokenVocabulary
from streamco.errors import StreamcoError, VerifierError
from streamco.policies.acceptance import Rule
from streamco.wire.verify.errors import VerifierFailedError, VerifyProtocolError

__all__ = ["AssignedVerifier", "PoolLike", "PooledSession", "VerifierMove"]

_GRACE = 0.2  # seconds until a verifier that hasn't accepted a session is asked what is wrong
_STAY = 1.0  # seconds that it may take to reply to that, and then that it may go on refusing the session, before the answer moves


class PoolLike(Protocol):
    """The part of a pool that an answer needs (``streamco.endpoints.verifiers.pool.VerifierPool``)."""

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts that apply to every verifier that was probed, or None if none was."""
        ...

    @property
    def left_out(self) -> dict[str, str]:
        """Why verifiers are currently left out, by name."""
        ...

    def choose_first(self) -> PoolMember:
        """Return the verifier for a new answer."""
        ...

    def choose(self, *, without: Collection[PoolMember] = (), needed: VerifierFacts | None = None) -> PoolMember | None:
        """Return another verifier for an answer that was planned with the facts ``needed``, or None if no working one has room."""
        ...

    def why_other_model(self, member: PoolMember) -> str:
        """Return why a verifier can't continue another one's answer, or "" if it can."""
        ...

    def record_failure(self, member: PoolMember, problem: str) -> None:
        """Leave out a verifier until it replies to a probe again."""
        ...

    async def trouble_of(self, member: PoolMember, *, within: float) -> str:
        """Return why a verifier can't be used, or "" if it responds. ``within`` is the time limit for the response, in seconds."""
        ...


class VerifierMove(Struct, frozen=True):
    """A move of an answer from one verifier to another: their names, and the reason."""

    source: str
    target: str
    why: str


class AssignedVerifier:
    """The current verifier of one answer, chosen from a pool; it may change. Implements ``Verifier``.

    Args:
        pool: the pool.

    Attributes:
        left_out: why verifiers were left out when the choice was made, by name.
        moves: the answer's moves so far.
        readers: verifiers that accepted the answer's session, and so have read its prompt.
        read_again: tokens that a verifier read after a move although an earlier verifier had already read them.
        on_move: called after each move with the verifier that the answer left. None calls nothing.
    """

    def __init__(self, pool: PoolLike) -> None:
        self.moves: list[VerifierMove] = []
        self.readers: set[PoolMember] = set()
        self.read_again = 0
        self.on_move: Callable[[Verifier], None] | None = None
        self._pool = pool
        self._needed = pool.facts
        self._member = pool.choose_first()
        self.left_out = pool.left_out  # read after the choice, which may detect another model
        self._refused_by: set[PoolMember] = set()

    @property
    def member(self) -> PoolMember:
        """The pool's record of the current verifier."""
        return self._member

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the verifiers that the answer has used, in order."""
        return (*(move.source for move in self.moves), self.name)

    @property
    def name(self) -> str:
        """Name of the current verifier."""
        return self._member.name

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts that apply to every verifier of the pool."""
        return self._needed

    @property
    def rtt(self) -> float | None:
        """Round-trip time of the current verifier in seconds, or None if not measured."""
        return self._member.verifier.rtt

    @property
    def timeouts(self) -> Timeouts:
        """Limits of the current verifier, in seconds."""
        return self._member.verifier.timeouts

    @property
    def remote(self) -> Endpoint | None:
        """Remote endpoint of the current verifier."""
        return self._member.verifier.remote

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare the current verifier; the pool has already started it."""
        await self._member.verifier.start(draft)

    async def probe(self) -> VerifierFacts:
        """Probe the current verifier; see ``Verifier.probe``."""
        return await self._member.verifier.probe()

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> PooledSession:
        """Return the answer's session; see ``Verifier.open``."""
        return PooledSession(self._pool, self, prompt_ids, emit, rule=rule, top_k=top_k, reserve=reserve)

    async def aclose(self) -> None:
        """Close nothing, because the verifiers belong to the pool."""

    def refuse(self) -> None:
        """Record that the current verifier refuses this answer, though perhaps not others, so that the answer doesn't return to it."""
        self._refused_by.add(self._member)

    def move(self, why: str) -> bool:
        """Choose another verifier; return False if no working one has room."""
        other = self._pool.choose(without={self._member, *self._refused_by}, needed=self._needed)
        if other is None:
            return False
        self.moves.append(VerifierMove(self.name, other.name, why))
        left, self._member = self._member, other
        if self.on_move is not None:
            self.on_move(left.verifier)
        return True


class PooledSession:
    """An answer's session at its assigned verifier. Implements ``VerifierSession``; made by ``AssignedVerifier.open``.

    Args:
        pool: the pool, which records verifiers that fail.
        assigned: the answer's verifier.
        prompt_ids, emit, rule, top_k, reserve: see ``Verifier.open``.
    """

    def __init__(
        self, pool: PoolLike, assigned: AssignedVerifier, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int, reserve: int
    ) -> None:
        self.assigned = assigned
        self._pool = pool
        self._emit = emit
        self._prompt_tokens = len(prompt_ids)
        self._make = partial(self._open, tuple(prompt_ids), rule, top_k, reserve)
        self._session = self._make()
        self._former: list[VerifierSession] = []
        self._offered: tuple[int, ...] | None = None  # ids of a ConnectVerifier that has no reply yet
        self._watching: asyncio.Task[None] | None = None
        self._is_over = False
        assigned.member.answers += 1

    @property
    def bytes_up(self) -> int:
        """Bytes sent to all verifiers."""
        return sum(session.bytes_up for session in self._sessions)

    @property
    def bytes_down(self) -> int:
        """Bytes received from all verifiers."""
        return sum(session.bytes_down for session in self._sessions)

    @property
    def rounds(self) -> int:
        """Number of verdicts received."""
        return sum(session.rounds for session in self._sessions)

    def run(self, command: VerifierCommand) -> None:
        """Start carrying out a command; see ``VerifierSession.run``."""
        if self._is_over:
            return
        if isinstance(command, CloseVerifier):
            self._end()
        elif isinstance(command, ConnectVerifier):
            self._offered = command.ids
            self._watch()
        self._session.run(command)

    async def aclose(self) -> None:
        """End the session at every verifier; idempotent."""
        self._end()
        if self._watching is not None:
            await asyncio.wait([self._watching])
        for session in self._sessions:
            await session.aclose()

    @property
    def _sessions(self) -> tuple[VerifierSession, ...]:
        return (*self._former, self._session)

    def _open(self, prompt_ids: tuple[int, ...], rule: Rule, top_k: int, reserve: int) -> VerifierSession:
        verifier = self.assigned.member.verifier
        return verifier.open(prompt_ids, self._take, rule=rule, top_k=top_k, reserve=reserve)

    def _take(self, event: VerifierEvent) -> None:
        """Handle an event of the current session; former sessions emit none."""
        match event:
            case VerdictReceived():
                self.assigned.member.record_queue(event.queue_depth, now=monotonic())
            case VerifierConnected() if problem := self._pool.why_other_model(self.assigned.member):
                self._session.run(CloseVerifier())
                if self._leave(error := VerifierError(problem)):
                    return  # the other verifier will reply
                event = VerifierFailed(error)
            case VerifierConnected():
                self._record_connected(event)
            case VerifierLost(retry_after) if retry_after is not None:
                self._record_refused()
                if self._move(f"it takes no session for {retry_after:g} s"):
                    event = VerifierLost()
            case VerifierFailed(error):
                was_asked = self._offered is not None
                if self._leave(error):
                    if was_asked:
                        return  # the other verifier will reply
                    event = VerifierLost()
        if isinstance(event, VerifierFailed):
            self._end()  # nothing follows it, even if another verifier recovers
        self._emit(event)

    def _record_connected(self, event: VerifierConnected) -> None:
        if self.assigned.readers - {self.assigned.member} and not self._session.rounds:
            self.assigned.read_again += self._prompt_tokens + event.length
        self.assigned.readers.add(self.assigned.member)
        self._offered = None
        self._cancel_watching()

    def _record_refused(self) -> None:
        self.assigned.member.record_busy(now=monotonic())
        if not self._session.rounds:  # the session may be used before the server has replied, and wasn't accepted
            self.assigned.readers.discard(self.assigned.member)

    def _leave(self, error: StreamcoError) -> bool:
        """Move away from a verifier that failed, and leave it out if that affects all answers; return False if there is no other."""
        if _is_about_answer(error):
            self.assigned.refuse()
        else:
            self._pool.record_failure(self.assigned.member, str(error))
        return self._move(str(error))

    def _move(self, why: str) -> bool:
        """Continue at another verifier; return False if there is none."""
        member = self.assigned.member
        if self._is_over or not self.assigned.move(why):
            return False
        member.answers -= 1
        self.assigned.member.answers += 1
        self._session.run(CloseVerifier())
        self._former.append(self._session)
        self._session = self._make()
        if self._offered is not None:
            self._watch()
            self._session.run(ConnectVerifier(self._offered))
        return True

    # A verifier that doesn't accept the session

    def _watch(self) -> None:
        self._cancel_watching()
        self._watching = asyncio.create_task(self._move_if_stuck(), name=f"streamco watch {self.assigned.name}")

    async def _move_if_stuck(self) -> None:
        """If the current verifier doesn't reply or keeps refusing the session, move as soon as there is another one."""
        await asyncio.sleep(_GRACE)
        while True:
            member = self.assigned.member
            problem = await self._pool.trouble_of(member, within=_STAY)
            if problem:
                self._pool.record_failure(member, problem)
            else:
                await asyncio.sleep(_STAY)
                member.record_busy(now=monotonic())
            if self._move(problem or f"{member.name} took no session"):
                return  # the other one is watched by its own task
            await asyncio.sleep(_STAY)

    def _cancel_watching(self) -> None:
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._cancel_watching()
            self.assigned.member.answers -= 1


def _is_about_answer(error: StreamcoError) -> bool:
    """Return True if a verifier refuses only this answer's frames, so that other answers may still work there."""
    return isinstance(error, VerifyProtocolError) and not error.is_fatal and error.code != VerifierFailedError.code
