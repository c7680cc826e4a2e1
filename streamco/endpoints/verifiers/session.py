"""One answer's session at a verifier that speaks our protocol: opened, lost, resumed by its key, opened anew.

::

    idle ──connect──▶ connecting ──opened, resumed──▶ open ──connection lost, evicted──▶ idle
                          ▲ └──── tried again, after a while ────┘

A session that is opened for the first time is used before the server has answered: the context, and the first draft behind it, take one
round trip together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol, assert_never

from msgspec import Struct
from msgspec.structs import replace

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    Candidates,
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.core.verifier.events import FULL_QUEUE
from streamco.endpoints.retry import Backoff
from streamco.endpoints.verifiers.base import Emit, VerifierCommand, continuation_seed
from streamco.endpoints.verifiers.connection import VerifierConnection, is_lasting
from streamco.endpoints.verifiers.rounds import OpenRounds
from streamco.errors import EndpointError, EndpointTimeoutError, StreamcoError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import Opened, Refusal, Resumed, VerdictFrame
from streamco.wire.verify.topk import TopK

__all__ = ["Links", "RemoteVerifierSession"]

_PIECE = 4096  # ids of a context in one frame: other sessions' rounds find room between them
_WORTH_A_TRY = frozenset({"overloaded", "too_many_sessions", "evicted", "failed", "unknown_session", "not_resumable"})
_MOST_FAILURES = 3  # of the target, one behind the other, without a verdict between them
_LONGEST_REFUSAL = 60.0  # seconds that a server's word is taken for


class Links(Protocol):
    """Where sessions get their connection from."""

    async def find(self) -> VerifierConnection:
        """Return the connection, a new one where there is none.

        Raises:
            EndpointError: there is none to be had.
            VerifyProtocolError: the server doesn't want us.
        """
        ...


class _SessionRequest(Struct, frozen=True):
    """What a session is opened for; see ``Verifier.open``."""

    prompt: tuple[int, ...]
    rule: Rule
    top_k: int
    reserve: int


class _Refusals:
    """The server's refusals of one session, and what they mean for its next try."""

    __slots__ = ("failures", "is_refused", "not_before")

    def __init__(self) -> None:
        self.failures = 0  # of the target model, without a verdict between them
        self.not_before = 0.0  # time of the loop, in seconds, before which no try is worth it
        self.is_refused = False  # the last try: the next one waits for its answer

    def record(self, error: VerifyProtocolError, now: float) -> float | None:
        """Record a refusal of the session; return the seconds to wait before the next try. None: the server gave none."""
        self.is_refused = error.code != "not_resumable"
        if error.retry_after is None:
            return None
        seconds = min(error.retry_after, _LONGEST_REFUSAL)
        self.not_before = now + seconds
        return seconds

    def is_worth_a_try(self, error: VerifyProtocolError) -> bool:
        """Return True if another try may succeed; counts failures of the target model."""
        self.failures += error.code == "failed"
        return error.code in _WORTH_A_TRY and self.failures < _MOST_FAILURES


class RemoteVerifierSession:
    """Implements ``VerifierSession``.

    Args:
        links: gives the connection.
        name: the verifier's, for errors.
        prompt_ids, emit, rule, top_k, reserve: as ``Verifier.open`` has them.
        timeouts: ``first_token`` bounds the waits in which a context is read, ``next_token`` the others.
        backoff: waits between tries to connect, made anew for each ``ConnectVerifier``.
    """

    def __init__(
        self,
        links: Links,
        *,
        name: str,
        prompt_ids: Sequence[int],
        emit: Emit,
        rule: Rule,
        top_k: int,
        reserve: int,
        timeouts: Timeouts,
        backoff: tuple[float, float, Random],
    ) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self.rounds = 0
        self.is_over = False
        self._links = links
        self._name = name
        self._wanted = _SessionRequest(tuple(prompt_ids), rule, top_k, reserve)
        self._emit = emit
        self._timeouts = timeouts
        self._backoff = backoff
        self._loop = asyncio.get_running_loop()
        self._link: VerifierConnection | None = None  # while the session lives on it
        self._number = -1
        self._is_open = False  # drafts may be sent
        self._key: bytes | None = None
        self._open_rounds = OpenRounds(self._loop, timeouts, self._give_up_round)
        self._refusals = _Refusals()
        self._answer: asyncio.Future[Opened | Resumed | VerifyProtocolError] | None = None
        self._connecting: asyncio.Task[None] | None = None

    def run(self, command: VerifierCommand) -> None:
        """See ``VerifierSession.run``."""
        if self.is_over:
            return
        match command:
            case SendDraft():
                self._send(command)
            case ConnectVerifier():
                self._cancel_connecting()
                self._connecting = self._loop.create_task(self._connect(command.ids), name=f"streamco verifier session {self._name}")
            case CloseVerifier():
                self._end()
            case _ as never:
                assert_never(never)

    async def aclose(self) -> None:
        """Give the session up; idempotent."""
        self._end()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    # What the connection tells

    def take(self, frame: Opened | Resumed | VerdictFrame | Refusal, size: int) -> None:
        """What the server said."""
        self.bytes_down += size
        match frame:
            case VerdictFrame():
                self._take_verdict(frame)
            case Opened():
                self._key = frame.key
                self._settle(frame)
            case Resumed():
                self._settle(frame)
            case Refusal():
                self._take_refusal(frame.error())
            case _ as never:
                assert_never(never)

    def end(self, error: StreamcoError) -> None:
        """The connection is over."""
        was_open = self._is_open
        self._forget_link()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        elif is_lasting(error):
            self._fail(error)
        elif was_open:
            self._emit(VerifierLost())

    def _take_verdict(self, verdict: VerdictFrame) -> None:
        number = self._open_rounds.end()
        if number is None:
            return
        self.rounds += 1
        self._open_rounds.has_verdict, self._refusals.failures = True, 0
        event = VerdictReceived(
            round=number,
            accepted=verdict.accepted,
            token=verdict.token,
            rows=tuple(_candidates(row) for row in verdict.rows),
            queue_depth=min(1.0, verdict.queue_depth / FULL_QUEUE),
            queue_seconds=verdict.queue_us / 1e6,
            compute_seconds=verdict.compute_us / 1e6,
        )
        self._open_rounds.last_verdict = event.outcome
        self._begin_ahead()
        self._emit(event)

    def _begin_ahead(self) -> None:
        """The draft that was sent ahead for just this verdict is the round that is out."""
        link, ahead = self._link, self._open_rounds.ahead
        self._open_rounds.ahead = {}
        begun = None if link is None else link.client.pending_round(self._number)
        if begun is not None:
            self._open_rounds.begin(ahead[begun])

    def _take_refusal(self, error: VerifyProtocolError) -> None:
        if error.scope == "round":
            self._take_round_refusal(error)
            return
        was_open = self._is_open
        if error.code not in {"evicted", "overloaded"}:
            self._key = None
        self._forget_link()
        seconds = self._refusals.record(error, self._loop.time())
        if self._answer is not None and not self._answer.done():
            self._settle(error)
        elif not self._refusals.is_worth_a_try(error):
            self._fail(error)
        elif was_open:
            self._emit(VerifierLost(seconds))

    def _take_round_refusal(self, error: VerifyProtocolError) -> None:
        number = self._open_rounds.end()
        if number is None:
            return
        self._open_rounds.ahead.clear()
        if error.code == "overloaded" or (error.code == "failed" and self._refusals.is_worth_a_try(error)):
            self._emit(DraftRefused(number, error.retry_after))
        else:
            self._fail(error)

    # Connecting

    async def _connect(self, ids: tuple[int, ...]) -> None:
        first, longest, rng = self._backoff
        backoff = Backoff(first, longest, rng)
        whole = (*self._wanted.prompt, *ids)
        await self._leave()
        while not self.is_over:
            wished = None
            try:
                await asyncio.sleep(self._refusals.not_before - self._loop.time())
                link = await self._links.find()
                if await self._enter(link, whole):
                    self._emit(VerifierConnected(len(ids)))
                    return
            except StreamcoError as error:
                self._forget_link()
                if not self._may_go_on(error):
                    self._fail(error)
                    return
                wished = getattr(error, "retry_after", None)
            await asyncio.sleep(backoff.next_wait(wished))

    def _may_go_on(self, error: StreamcoError) -> bool:
        """Return True if another try may help: to connect, about this session, or after the server's good-bye."""
        match error:
            case VerifyProtocolError():
                return error.code == "shutting_down" or (not error.is_fatal and self._refusals.is_worth_a_try(error))
            case EndpointError():
                return not is_lasting(error)
        return False

    async def _leave(self) -> None:
        """Give up the session that seems to be there: nobody asks for another one while it is well."""
        link = self._link
        if link is None:
            return
        self._is_open = False
        self._open_rounds.clear()
        if await link.check() and self._link is link:
            link.leave(self._number)
            link.client.close(self._number)
            self.bytes_up += link.flush()
            self._key = None
        self._forget_link()

    async def _enter(self, link: VerifierConnection, whole: tuple[int, ...]) -> bool:
        """Resume or open on this connection; False: it was over before it began, perhaps right behind the answer.

        Raises:
            EndpointError, VerifyProtocolError: it was not to be.
        """
        if link.is_over:
            return False
        if self._key is None:
            await self._open(link, whole)
            return self._is_open
        number = link.client.resume(self._key, whole, top_k=self._top_k_at(link))
        self._join(link, number)
        await self._answered()
        if self._link is link:
            self._add(link, number, whole)
            self._is_open = True
        return self._is_open

    async def _open(self, link: VerifierConnection, whole: tuple[int, ...]) -> None:
        self._open_rounds.has_verdict = False
        wanted = self._wanted
        rule = replace(wanted.rule, seed=continuation_seed(wanted.rule.seed, len(whole) - len(wanted.prompt)))
        number = link.client.open(whole[:_PIECE], rule, top_k=self._top_k_at(link), reserve=max(wanted.reserve, len(whole)))
        self._join(link, number)
        self._add(link, number, whole)
        if self._refusals.is_refused:
            await self._answered()
        if self._link is link:
            self._refusals.is_refused = False
            self._is_open = True

    def _add(self, link: VerifierConnection, number: int, whole: tuple[int, ...]) -> None:
        """Send what the server's context is short of."""
        for place in range(link.client.length(number), len(whole), _PIECE):
            link.client.extend(number, place, whole[place : place + _PIECE])
        self.bytes_up += link.flush()

    def _join(self, link: VerifierConnection, number: int) -> None:
        self._link, self._number = link, number
        link.join(number, self)
        self.bytes_up += link.flush()

    async def _answered(self) -> None:
        """Wait for what becomes of an open or a resume.

        Raises:
            EndpointError, VerifyProtocolError: nothing.
        """
        self._answer = self._loop.create_future()
        limit = self._timeouts.first_token
        try:
            async with asyncio.timeout(limit):
                answer = await self._answer
        except TimeoutError:
            self._key = None  # it may be what the server doesn't come to terms with
            self._close()
            text = f"expected the session to be opened within {limit:g} s, got nothing"
            raise EndpointTimeoutError(text, phase="first_token", limit=limit or 0.0, endpoint=self._name) from None
        finally:
            self._answer = None
        if isinstance(answer, VerifyProtocolError):
            raise answer

    def _settle(self, answer: Opened | Resumed | VerifyProtocolError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _top_k_at(self, link: VerifierConnection) -> int:
        return min(self._wanted.top_k, link.client.limits.top_k)

    # Rounds

    def _send(self, command: SendDraft) -> None:
        link = self._link
        if link is None or not self._is_open:
            return  # it was lost, and that was told
        wanted, rounds = self._wanted, self._open_rounds
        rows = tuple(row for row in command.rows if isinstance(row, TopK)) if wanted.rule.kind is RuleKind.SAMPLE else ()
        condition, base = command.if_verdict, len(wanted.prompt) + command.base
        try:
            if condition is not None and condition.round == rounds.number:
                number = link.client.follow(self._number, condition.accepted, condition.token, command.ids, rows=rows)
                rounds.ahead[number] = command.round
            # If the condition is the last verdict, the speculator sent this draft before it received that verdict.
            elif condition is None or (rounds.number is None and condition == rounds.last_verdict):
                link.client.draft(self._number, base, (*command.given, *command.ids), given=len(command.given), rows=rows)
                rounds.begin(command.round)
        except VerifyProtocolError as error:  # beyond the server's limits
            self._loop.call_soon(self._fail, error)
            return
        self.bytes_up += link.flush()

    def _give_up_round(self) -> None:
        """No verdict came: the session is not well, or the connection is dead; whoever connects again finds out."""
        self._is_open = False
        self._emit(VerifierLost())

    # Ending

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._cancel_connecting()
        self._close()
        self._forget_link()

    def _close(self) -> None:
        """Tell the server that the session is not wanted any more."""
        link = self._link
        if link is not None and not link.is_over:
            link.client.close(self._number)
            self.bytes_up += link.flush()

    def _fail(self, error: StreamcoError) -> None:
        if not self.is_over:
            self._end()
            self._emit(VerifierFailed(error))

    def _forget_link(self) -> None:
        self._open_rounds.clear()
        if self._link is not None:
            self._link.leave(self._number)
        self._link, self._is_open = None, False

    def _cancel_connecting(self) -> None:
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()


def _candidates(row: TopK) -> Candidates:
    total = sum(row.weights) + row.rest
    return tuple((token, weight / total) for token, weight in zip(row.ids, row.weights, strict=True))
