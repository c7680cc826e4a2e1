"""One answer's session at a verifier with streamco's protocol: it is opened, lost, resumed with its key, or reopened.

::

    idle ──connect──▶ connecting ──opened, resumed──▶ open ──connection lost, evicted──▶ idle
                          ▲ └──── tried again, after a while ────┘

A session that is opened for the first time is used before the server has replied. So the context and the first draft after it take only one
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
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.endpoints.retry import Backoff
from streamco.endpoints.verifiers.base import Emit, VerifierCommand, continuation_seed
from streamco.endpoints.verifiers.connection import VerifierConnection, is_lasting
from streamco.endpoints.verifiers.rounds import OpenRounds
from streamco.errors import EndpointError, EndpointTimeoutError, StreamcoError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.drafts.tree_acceptance import leaves
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import Opened, Refusal, Resumed, VerdictFrame
from streamco.wire.verify.topk import MAX_WEIGHT, TopK

__all__ = ["ConnectionSource", "RemoteVerifierSession"]

_MAX_FRAME_IDS = 4096  # maximum ids of a context in one frame, so that other sessions' rounds fit in between
_RETRYABLE = frozenset({"overloaded", "too_many_sessions", "evicted", "failed", "unknown_session", "not_resumable"})
_MAX_FAILURES = 3  # consecutive failures of the target model, without a verdict in between
_MAX_RETRY_AFTER = 60.0  # seconds; a server that asks for a longer wait is retried after this long


class ConnectionSource(Protocol):
    """The owner of the connection that sessions share."""

    async def find(self) -> VerifierConnection[VerifyClient]:
        """Return the connection; create one if there is none.

        Raises:
            EndpointError: connecting failed.
            VerifyProtocolError: the server refuses this client.
        """
        ...


class _SessionRequest(Struct, frozen=True):
    """The settings for opening a session; see ``Verifier.open``."""

    prompt: tuple[int, ...]
    rule: Rule
    top_k: int
    reserve: int


class _Refusals:
    """The server's refusals of one session, and what they mean for its next attempt."""

    __slots__ = ("failures", "is_refused", "not_before")

    def __init__(self) -> None:
        self.failures = 0  # consecutive failures of the target model, without a verdict in between
        self.not_before = 0.0  # no attempt can succeed before this time, in seconds on the loop's clock
        self.is_refused = False  # the last attempt was refused, so the next one waits for its reply

    def record(self, error: VerifyProtocolError, now: float) -> float | None:
        """Record a refusal of the session; return the seconds to wait before the next attempt, or None if the server didn't say."""
        self.is_refused = error.code != "not_resumable"
        if error.retry_after is None:
            return None
        seconds = min(error.retry_after, _MAX_RETRY_AFTER)
        self.not_before = now + seconds
        return seconds

    def may_retry(self, error: VerifyProtocolError) -> bool:
        """Return True if another attempt may succeed; counts failures of the target model."""
        self.failures += error.code == "failed"
        return error.code in _RETRYABLE and self.failures < _MAX_FAILURES


class RemoteVerifierSession:
    """A session at a verifier with streamco's protocol. Implements ``VerifierSession``; created by ``VerifierEndpoint.open``.

    Args:
        source: provides the connection.
        name: the verifier's name, for errors.
        prompt_ids, emit, rule, top_k, reserve: see ``Verifier.open``.
        timeouts: ``first_token`` limits the waits in which a context is read, ``next_token`` the others; in seconds.
        backoff: the arguments of ``Backoff`` for the waits between attempts to connect; each ``ConnectVerifier`` starts a new one.
    """

    def __init__(
        self,
        source: ConnectionSource,
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
        self._source = source
        self._name = name
        self._request = _SessionRequest(tuple(prompt_ids), rule, top_k, reserve)
        self._emit = emit
        self._timeouts = timeouts
        self._backoff = backoff
        self._loop = asyncio.get_running_loop()
        self._connection: VerifierConnection[VerifyClient] | None = None  # set while the session is on it
        self._session = -1
        self._is_open = False  # True if drafts may be sent
        self._key: bytes | None = None
        self._open_rounds = OpenRounds(self._loop, timeouts, self._expire_round)
        self._refusals = _Refusals()
        self._reply: asyncio.Future[Opened | Resumed | VerifyProtocolError] | None = None
        self._connecting: asyncio.Task[None] | None = None

    def run(self, command: VerifierCommand) -> None:
        """Start carrying out a command; see ``VerifierSession.run``."""
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
        """End the session; idempotent."""
        self._end()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    # From the connection

    def frame_received(self, frame: Opened | Resumed | VerdictFrame | Refusal, size: int) -> None:
        """Handle a frame for this session; see ``SessionListener``."""
        self.bytes_down += size
        match frame:
            case VerdictFrame():
                self._handle_verdict(frame)
            case Opened():
                self._key = frame.key
                self._set_reply(frame)
            case Resumed():
                self._set_reply(frame)
            case Refusal():
                self._handle_refusal(frame.error())
            case _ as never:
                assert_never(never)

    def connection_lost(self, error: StreamcoError) -> None:
        """Handle the end of the connection; see ``SessionListener``."""
        was_open = self._is_open
        self._detach()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        elif is_lasting(error):
            self._fail(error)
        elif was_open:
            self._emit(VerifierLost())

    def _handle_verdict(self, verdict: VerdictFrame) -> None:
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
        """Begin the round of the draft that was sent in advance for exactly this verdict, if there is one."""
        connection, ahead = self._connection, self._open_rounds.ahead
        self._open_rounds.ahead = {}
        begun = None if connection is None else connection.client.pending_round(self._session)
        if begun is not None:
            self._open_rounds.begin(ahead[begun])

    def _handle_refusal(self, error: VerifyProtocolError) -> None:
        if error.scope == "round":
            self._handle_round_refusal(error)
            return
        was_open = self._is_open
        if error.code not in {"evicted", "overloaded"}:
            self._key = None
        self._detach()
        seconds = self._refusals.record(error, self._loop.time())
        if self._reply is not None and not self._reply.done():
            self._set_reply(error)
        elif not self._refusals.may_retry(error):
            self._fail(error)
        elif was_open:
            self._emit(VerifierLost(seconds))

    def _handle_round_refusal(self, error: VerifyProtocolError) -> None:
        number = self._open_rounds.end()
        if number is None:
            return
        self._open_rounds.ahead.clear()
        if error.code == "overloaded" or (error.code == "failed" and self._refusals.may_retry(error)):
            self._emit(DraftRefused(number, error.retry_after))
        else:
            self._fail(error)

    # Connecting

    async def _connect(self, ids: tuple[int, ...]) -> None:
        first, max_wait, rng = self._backoff
        backoff = Backoff(first, max_wait, rng)
        context = (*self._request.prompt, *ids)
        await self._close_former()
        while not self.is_over:
            retry_after = None
            try:
                await asyncio.sleep(self._refusals.not_before - self._loop.time())
                connection = await self._source.find()
                if await self._open_or_resume(connection, context):
                    self._emit(VerifierConnected(len(ids)))
                    return
            except StreamcoError as error:
                self._detach()
                if not self._may_retry(error):
                    self._fail(error)
                    return
                retry_after = getattr(error, "retry_after", None)
            await asyncio.sleep(backoff.next_wait(retry_after))

    def _may_retry(self, error: StreamcoError) -> bool:
        """Return True if another attempt to connect or to use this session may succeed, perhaps after the server was restarted."""
        match error:
            case VerifyProtocolError():
                return error.code == "shutting_down" or (not error.is_fatal and self._refusals.may_retry(error))
            case EndpointError():
                return not is_lasting(error)
        return False

    async def _close_former(self) -> None:
        """Close the current session, if there is one. The speculator asks for a new one only if this one is broken."""
        connection = self._connection
        if connection is None:
            return
        self._is_open = False
        self._open_rounds.clear()
        if await connection.check_alive() and self._connection is connection:
            connection.remove_session(self._session)
            connection.client.close(self._session)
            self.bytes_up += connection.flush()
            self._key = None
        self._detach()

    async def _open_or_resume(self, connection: VerifierConnection[VerifyClient], context: tuple[int, ...]) -> bool:
        """Resume or open the session on this connection; return False if it ended at once, perhaps just after the reply.

        Raises:
            EndpointError, VerifyProtocolError: the session couldn't be opened.
        """
        if connection.is_over:
            return False
        if self._key is None:
            await self._open(connection, context)
            return self._is_open
        number = connection.client.resume(self._key, context, top_k=self._top_k_at(connection))
        self._attach(connection, number)
        await self._wait_for_reply()
        if self._connection is connection:
            self._send_context(connection, number, context)
            self._is_open = True
        return self._is_open

    async def _open(self, connection: VerifierConnection[VerifyClient], context: tuple[int, ...]) -> None:
        self._open_rounds.has_verdict = False
        request = self._request
        rule = replace(request.rule, seed=continuation_seed(request.rule.seed, len(context) - len(request.prompt)))
        number = connection.client.open(
            context[:_MAX_FRAME_IDS], rule, top_k=self._top_k_at(connection), reserve=max(request.reserve, len(context))
        )
        self._attach(connection, number)
        self._send_context(connection, number, context)
        if self._refusals.is_refused:
            await self._wait_for_reply()
        if self._connection is connection:
            self._refusals.is_refused = False
            self._is_open = True

    def _send_context(self, connection: VerifierConnection[VerifyClient], number: int, context: tuple[int, ...]) -> None:
        """Send the ids that the server's context lacks."""
        for position in range(connection.client.length(number), len(context), _MAX_FRAME_IDS):
            connection.client.extend(number, position, context[position : position + _MAX_FRAME_IDS])
        self.bytes_up += connection.flush()

    def _attach(self, connection: VerifierConnection[VerifyClient], number: int) -> None:
        self._connection, self._session = connection, number
        connection.add_session(number, self)
        self.bytes_up += connection.flush()

    async def _wait_for_reply(self) -> None:
        """Wait for the reply to opening or resuming.

        Raises:
            EndpointError, VerifyProtocolError: the reply was a refusal, or there was none.
        """
        self._reply = self._loop.create_future()
        limit = self._timeouts.first_token
        try:
            async with PeerTimeout(limit):
                answer = await self._reply
        except TimeoutError:
            self._key = None  # this key may be what makes the server fail
            self._close_remote()
            text = f"expected the session to be opened within {limit:g} s, got nothing"
            raise EndpointTimeoutError(text, phase="first_token", limit=limit or 0.0, endpoint=self._name) from None
        finally:
            self._reply = None
        if isinstance(answer, VerifyProtocolError):
            raise answer

    def _set_reply(self, answer: Opened | Resumed | VerifyProtocolError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(answer)

    def _top_k_at(self, connection: VerifierConnection[VerifyClient]) -> int:
        return min(self._request.top_k, connection.client.limits.top_k)

    # Rounds

    def _send(self, command: SendDraft) -> None:
        connection = self._connection
        if connection is None or not self._is_open:
            return  # it was lost, and VerifierLost was emitted
        if command.parents and len(leaves(command.parents)) > connection.client.limits.paths:
            command = _as_chain(command)  # it isn't the server that was probed
        request, rounds = self._request, self._open_rounds
        rows = _sampled_rows(command) if request.rule.kind is RuleKind.SAMPLE else ()
        condition, base = command.if_verdict, len(request.prompt) + command.base
        try:
            if condition is not None and condition.round == rounds.number:
                if condition.accepted > connection.client.pending_length(self._session):
                    return  # that round's siblings were left out, so its verdict can't end in one
                accepted, token, parents = condition.accepted, condition.token, command.parents
                number = connection.client.follow(self._session, accepted, token, command.ids, rows=rows, parents=parents)
                rounds.ahead[number] = command.round
            # If the condition is the last verdict, the speculator sent this draft before it received that verdict.
            elif condition is None or (rounds.number is None and condition == rounds.last_verdict):
                ids, given = (*command.given, *command.ids), len(command.given)
                connection.client.draft(self._session, base, ids, given=given, rows=rows, parents=command.parents)
                rounds.begin(command.round)
        except VerifyProtocolError as error:  # it exceeds the server's limits
            self._loop.call_soon(self._fail, error)
            return
        self.bytes_up += connection.flush()

    def _expire_round(self) -> None:
        """Report a session without a verdict as lost: it is broken, or the connection is dead. The next attempt will show which."""
        self._is_open = False
        self._emit(VerifierLost())

    # Ending

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._cancel_connecting()
        self._close_remote()
        self._detach()

    def _close_remote(self) -> None:
        """Close the session at the server, so that it can free the context."""
        connection = self._connection
        if connection is not None and not connection.is_over:
            connection.client.close(self._session)
            self.bytes_up += connection.flush()

    def _fail(self, error: StreamcoError) -> None:
        if not self.is_over:
            self._end()
            self._emit(VerifierFailed(error))

    def _detach(self) -> None:
        self._open_rounds.clear()
        if self._connection is not None:
            self._connection.remove_session(self._session)
        self._connection, self._is_open = None, False

    def _cancel_connecting(self) -> None:
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()


def _as_chain(command: SendDraft) -> SendDraft:
    """Return a draft without the siblings after its chain; its verdict numbers the chain's tokens in the same way."""
    length = next((number for number, parent in enumerate(command.parents) if parent != number), len(command.parents))
    return replace(command, ids=command.ids[:length], rows=command.rows[:length], parents=())


def _sampled_rows(command: SendDraft) -> tuple[TopK, ...]:
    """Return the row that each token was drawn from; for a sibling, which wasn't drawn, a row with only itself."""
    if not command.parents:
        return tuple(row for row in command.rows if isinstance(row, TopK))
    pairs = zip(command.ids, command.rows, strict=True)
    return tuple(row if isinstance(row, TopK) else TopK((token,), (MAX_WEIGHT,)) for token, row in pairs)


def _candidates(row: TopK) -> Candidates:
    total = sum(row.weights) + row.rest
    return tuple((token, weight / total) for token, weight in zip(row.ids, row.weights, strict=True))
