"""One answer's session with the servers of a split model, and how it continues after a loss or a refusal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from streamco.core.split.events import OpenSession, SendRows, SessionLost, SessionReady
from streamco.endpoints.network.peer_timeout import PeerTimeout, PeerTimer
from streamco.endpoints.split.base import DeepStates, LinkEvent, LinkFailed
from streamco.endpoints.split.middle_server import RETRY, final_error, is_busy
from streamco.endpoints.split.middle_servers import MiddleServers
from streamco.endpoints.split.upload_meter import SentFrame, UploadMeter
from streamco.endpoints.verifiers.connection import VerifierConnection
from streamco.engines.split.tally import SplitTraffic
from streamco.errors import EndpointTimeoutError, StreamClosed, StreamcoError
from streamco.wire.split.client import SplitClient
from streamco.wire.split.frames import Refusal, SplitOpened, SplitResumed, States
from streamco.wire.verify.errors import SessionLimitError, VerifyProtocolError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ServerSession"]

_MAX_LOSSES = 3  # consecutive lost sessions at each server, without a reply in between


class _Sent(Struct, frozen=True):
    """Rows that have no reply yet."""

    frame: SentFrame
    wanted: int


class ServerSession:
    """One answer's session with a split model's servers. Implements ``LinkSession``; it may call ``emit`` during a call or later."""

    def __init__(self, link: MiddleServers, emit: Callable[[LinkEvent], None], reserve: int) -> None:
        self.traffic = SplitTraffic()
        self._link = link
        self._emit = emit
        self._reserve = reserve
        self._attempt = -1
        self._server = 0  # index of the server in use
        self._connection: VerifierConnection[SplitClient] | None = None
        self._number = -1
        self._key: bytes | None = None
        self._reply: asyncio.Future[int] | None = None  # result: positions that the server holds
        self._unanswered: deque[_Sent] = deque()
        self._last: tuple[SentFrame, float] | None = None  # the last frame with a reply, and when it had arrived
        self._timer: asyncio.TimerHandle | PeerTimer | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._losses = 0  # without a reply in between
        self._busy_since: float | None = None  # when it began to wait for busy servers; no reply since
        self._refused_at: float | None = None  # time of this server's first refusal of rows since a reply
        self._ask_again_at: float | None = None  # when rows that were refused because of load are resent; the session stays
        self._lost_place: int | None = None  # server where the session was lost; waiting answers don't know yet
        self._is_over = False

    def close(self) -> None:
        """End the session; see ``LinkSession``."""
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        had_place = self._connection is not None
        self._detach(closes=True)
        self._link.discard(self)
        if had_place:
            self._link.free_place(self._server)
        self._report_lost_place()

    def frame_received(self, frame: SplitOpened | SplitResumed | States | Refusal, size: int) -> None:
        """Handle a frame for this session; see ``SessionListener``."""
        self.traffic.bytes_down += size
        match frame:
            case SplitOpened():
                self._key = frame.key
                self._set_reply(0)
            case SplitResumed():
                self._set_reply(frame.length)
            case States():
                self._handle_states(frame)
            case Refusal():
                self._handle_refusal(frame.error())
            case _ as never:
                assert_never(never)

    def connection_lost(self, error: StreamcoError) -> None:
        """Handle the end of the connection; see ``SessionListener``."""
        self._detach(closes=False)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        elif not self._is_over:
            self._report_loss(error, may_resume=self._key is not None)

    def open(self, command: OpenSession) -> None:
        """Open or resume the session; see ``LinkSession``."""
        if self._is_over:
            return
        if self._link.is_closed:
            self._emit(LinkFailed(StreamClosed("split servers: the client is closed")))
            return
        self._link.add(self)
        self._attempt = command.attempt
        if self._ask_again_at is not None:
            self._clear_timer()
            self._timer = self._link.loop.call_later(max(0.0, self._ask_again_at - self._link.loop.time()), self._go_on)
            return
        if not command.may_resume:
            self._key = None
        self._detach(closes=True)
        self._connecting = self._link.loop.create_task(self._connect(), name="streamco split session")

    async def _connect(self) -> None:
        """Try the servers until one accepts the session or the time is up."""
        link, began = self._link, self._link.loop.time()
        if (not link.queue.is_empty and self._key is None) or await self._try_servers(began) is not None:
            await self._queue(began)
        self._report_lost_place()

    async def _queue(self, began: float) -> None:
        """Queue with the other answers that are waiting for a place; an answer that has begun goes ahead of those that haven't."""
        queue = self._link.queue
        with queue.ticket(has_begun=bool(self.traffic.servers)) as ticket:
            if not queue.is_first(ticket):
                self._report_lost_place()
            while True:
                await queue.turn(ticket)
                frees = queue.frees
                until = await self._try_servers(began)
                if until is None:
                    return
                await self._link.wait(until, frees)

    def _report_lost_place(self) -> None:
        """Wake the first waiting answer if this one has lost a place and hasn't got it back."""
        index, self._lost_place = self._lost_place, None
        if index is not None and (self._connection is None or self._server != index):
            self._link.queue.report_free()

    async def _try_servers(self, began: float) -> float | None:
        """Try the server in use, then the others in order.

        A server that asked for a wait is skipped until the wait is over, or the time is up.

        Returns:
            The time until which the servers may be tried again, or None if one accepted the session or the time is up.
        """
        link, error = self._link, StreamcoError()
        busy: StreamcoError | None = None
        may_skip, has_skipped = link.loop.time() < self._last_wait(began), False
        for index in [(self._server + offset) % len(link.servers) for offset in range(len(link.servers))]:
            server = link.servers[index]
            if may_skip and server.not_before > link.loop.time():
                has_skipped = True
                continue
            frees = server.frees
            try:
                length = await self._open_at(index)
            except StreamcoError as exc:
                self._detach(closes=True)
                if server.frees == frees or not is_busy(exc):  # otherwise a place has become free since it was asked
                    server.put_off(exc, link.loop.time())
                busy, error = (exc if is_busy(exc) else busy), exc
            else:
                self._name_server()
                self._emit(SessionReady(self._attempt, length))
                return None
        until = max(began, link.reached_at) + link.patience
        if busy is not None or has_skipped:
            self._busy_since = began if self._busy_since is None else self._busy_since
            link.reached_at, until = link.loop.time(), self._last_wait(began)
        if link.loop.time() < until or has_skipped:
            return until
        self._emit(LinkFailed(final_error(busy or error, link.max_wait)))
        return None

    def _last_wait(self, began: float) -> float:
        """Return the time until which the session waits for servers that have been busy since ``began``."""
        return (began if self._busy_since is None else self._busy_since) + self._link.max_wait

    async def _open_at(self, index: int) -> int:
        """Resume or open the session at a server; return how many positions it holds."""
        server = self._link.servers[index]
        connection = await server.find()
        self._link.use(server, connection)
        if not connection.client.has_room:
            limit = connection.client.limits.sessions
            raise SessionLimitError(f"connection: {server.address.name} allows {limit} answers at a time, and all of them are in use")
        if index != self._server:
            self._server, self._key = index, None
        if self._key is not None:
            try:
                return await self._ask(connection, connection.client.resume(self._key))
            except VerifyProtocolError:
                self._key = None
                self._detach(closes=True)
        return await self._ask(connection, connection.client.open(reserve=self._reserve))

    async def _ask(self, connection: VerifierConnection[SplitClient], number: int) -> int:
        self._connection, self._number = connection, number
        self._reply = self._link.loop.create_future()
        connection.add_session(number, self)
        self.traffic.bytes_up += connection.flush()
        limit = self._link.timeouts.connect
        try:
            async with PeerTimeout(limit):
                return await self._reply
        except TimeoutError:
            raise EndpointTimeoutError(
                f"expected a session within {limit:g} s, got none", phase="connect", limit=limit or 0.0, endpoint=self._name
            ) from None
        finally:
            self._reply = None

    @property
    def _name(self) -> str:
        return self._link.servers[self._server].address.name

    def _name_server(self) -> None:
        if self.traffic.servers[-1:] != [self._name]:
            self.traffic.servers.append(self._name)

    @property
    def _meter(self) -> UploadMeter:
        return self._link.servers[self._server].meter

    def _set_reply(self, length: int) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(length)

    def send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        """Send rows; see ``LinkSession``."""
        connection, link = self._connection, self._link
        if connection is None or command.attempt != self._attempt or self._is_over or self._ask_again_at is not None:
            return
        wanted = len(states) if link.prompt_rows == "all" else command.wanted
        form = self.traffic.states = self.traffic.states or link.form  # the same format for the whole answer
        try:
            connection.client.rows(self._number, command.start, states, wanted=wanted, form=form)
        except VerifyProtocolError as exc:
            self._emit(LinkFailed(exc))
            return
        size = connection.flush()
        self.traffic.bytes_up += size
        self.traffic.rows_up += len(states)
        self._unanswered.append(_Sent(self._meter.record_sent(size, now=link.loop.time()), command.wanted))
        self._watch()

    def _handle_states(self, frame: States) -> None:
        server = self._link.servers[self._server]
        sent = self._unanswered.popleft()
        self._losses, self._busy_since, self._refused_at = 0, None, None
        self.traffic.rows_down += len(frame.states)
        self.traffic.trips += len(frame.states) > 0
        assert self._connection is not None, "frames come on a connection"
        server.record(self._connection.client, frame)
        at_server = (frame.queue_us + frame.compute_us) / 1e6
        self._last = server.meter.record_answer(sent.frame, at_server, self._last, now=self._link.loop.time())
        self._watch()
        self._emit(DeepStates(self._attempt, frame.states[len(frame.states) - sent.wanted :]))

    def _handle_refusal(self, error: VerifyProtocolError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
            return
        if error.code == "overloaded" and error.scope == "round":
            self._handle_load(error)
        else:
            self._lose(error)

    def _handle_load(self, error: VerifyProtocolError) -> None:
        """Wait if the server refuses rows because of its load.

        Another server is tried after the patience or after this server's share of the maximum wait, whichever is shorter, or at once if the
        server asks for more time than that.
        """
        link, now = self._link, self._link.loop.time()
        share = min(link.patience, link.max_wait / len(link.servers))
        link.reached_at = now
        self._refused_at = now if self._refused_at is None else self._refused_at
        self._busy_since = now if self._busy_since is None else self._busy_since
        next_try, last = now + (error.retry_after or RETRY), self._last_wait(now)
        if len(link.servers) > 1 and now <= last and next_try > min(last, self._refused_at + share):
            self._refused_at, self._losses = None, self._losses - 1  # it doesn't count as a loss, because the time is limited
            self._lose(error)
        elif next_try > last:
            self._emit(LinkFailed(final_error(error, link.max_wait)))
        else:
            self._drop_unanswered()  # the server also refuses the rows after it
            self._ask_again_at = next_try
            self._emit(SessionLost(self._attempt, may_resume=True))

    def _go_on(self) -> None:
        """Continue the session after a refusal because of load."""
        connection, self._ask_again_at = self._connection, None
        assert connection is not None, "a session that is lost doesn't wait"
        self._emit(SessionReady(self._attempt, connection.client.length(self._number), is_new=False))

    def _lose(self, error: StreamcoError) -> None:
        """Give up the session and its place; another server continues if there is one."""
        server = self._link.servers[self._server]
        self._detach(closes=True)
        self._key, self._lost_place = None, self._server
        server.free()
        server.put_off(error, self._link.loop.time())
        if isinstance(error, EndpointTimeoutError) or not isinstance(error, VerifyProtocolError) or error.code != "evicted":
            self._server = (self._server + 1) % len(self._link.servers)
        self._report_loss(error, may_resume=False)

    def _report_loss(self, error: StreamcoError, *, may_resume: bool) -> None:
        """Report that the session is lost. The answer fails if that happens too often, or if it is too long for the server."""
        self._losses += 1
        is_full = isinstance(error, VerifyProtocolError) and error.code == "context_full"
        if is_full or self._losses >= _MAX_LOSSES * len(self._link.servers):
            self._emit(LinkFailed(final_error(error)))
        else:
            self._emit(SessionLost(self._attempt, may_resume=may_resume))

    def _watch(self) -> None:
        """Set the time limit for the oldest rows without a reply."""
        self._clear_timer()
        limit = self._link.timeouts.first_token
        if self._unanswered and limit is not None:
            text = f"expected states within {limit:g} s, got none"
            error = EndpointTimeoutError(text, phase="next_token", limit=limit, endpoint=self._name)
            self._timer = PeerTimer(self._link.loop, limit, partial(self._lose, error))

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_unanswered(self) -> None:
        self._meter.record_lost(len(self._unanswered))
        self._unanswered.clear()
        self._last = None
        self._watch()

    def _detach(self, *, closes: bool) -> None:
        connection, self._connection = self._connection, None
        self._ask_again_at = None
        self._drop_unanswered()
        if connection is not None:
            connection.remove_session(self._number)
            if closes and not connection.is_over:
                connection.client.close(self._number)
                connection.flush()
