"""The servers of a split model, seen from the device: one connection to each, and a session for every answer.

The first server that can be reached serves an answer. If it is lost, the session is resumed there, or else another server goes on with the
states that the device has kept. Only if none can within ``patience`` does the answer fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, assert_never

from msgspec import Struct

from streamco.config import Timeouts
from streamco.core.split.events import OpenSession, SendRows, SessionLost, SessionReady
from streamco.endpoints.verifiers.connection import VerifierAddress, VerifierConnection, load_websockets
from streamco.endpoints.verifiers.middle_server import MiddleServer, final_error
from streamco.endpoints.verifiers.upload_meter import SentFrame, UploadMeter
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.answer import DeepStates, LinkEvent, LinkFailed
from streamco.engines.split.tally import SplitTraffic, total_traffic
from streamco.errors import EndpointTimeoutError, StreamClosed, StreamcoError
from streamco.policies.chunking import Chunking, PromptPlan, SplitPath, plan_prompt
from streamco.wire.split.client import SplitClient
from streamco.wire.split.frames import LayersMark, Refusal, SplitLimits, SplitOpened, SplitResumed, SplitWelcome, States
from streamco.wire.tensors import StateFormat, state_bytes
from streamco.wire.verify.errors import VerifyProtocolError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ServerLink"]

_RETRY = 0.2  # seconds between two tries at all servers
_MAX_LOSSES = 3  # lost sessions at each server in a row, without an answer between them


class ServerLink:
    """The servers of a split model. Implements ``SplitLink``; made on the event loop that it belongs to.

    Args:
        addresses: the servers, best first.
        info: the device's input layers.
        form: format of the states.
        timeouts: ``connect`` until a welcome, ``first_token`` until rows are answered, ``socket`` for a ping; in seconds.
        patience: seconds that all servers may be out of reach before an answer fails.
        exact: refuse servers that aren't in exact mode.
        chunking: how prompts are cut.

    Attributes:
        prompt_rows: states of a prompt that come back: the ``last`` one, which is all that is used, or ``all``, as in HAT, to measure
            what they cost.
    """

    def __init__(
        self,
        addresses: Sequence[VerifierAddress],
        info: PartInfo,
        *,
        loop: asyncio.AbstractEventLoop,
        form: StateFormat,
        timeouts: Timeouts,
        patience: float,
        exact: bool = False,
        chunking: Chunking = "fastest",
    ) -> None:
        first = info.first_layer + info.layers
        self.mark = LayersMark(info.source, first, info.total_layers - first, info.width)
        self.loop, self.form, self.timeouts, self.patience = loop, form, timeouts, patience
        self.servers = [MiddleServer(address, self.mark, timeouts, exact=exact) for address in addresses]
        self.is_closed = False
        self.prompt_rows: Literal["last", "all"] = "last"
        self._chunking: Chunking = chunking
        self._server = self.servers[0]  # that was used last
        self._welcome: SplitWelcome | None = None
        self._limits = SplitLimits()
        self._sessions: set[_Session] = set()
        self._ended = SplitTraffic()  # of the sessions that are over

    @property
    def traffic(self) -> SplitTraffic:
        """What all answers together have sent and received so far."""
        return total_traffic([self._ended, *(session.traffic for session in self._sessions)])

    @property
    def max_rows(self) -> int:
        """Most rows of a frame."""
        return self._limits.rows

    @property
    def max_positions(self) -> int:
        """Most positions of a session; the server's, once one was reached."""
        return self._limits.context_rows

    def plan(self, rows: int) -> PromptPlan:
        """Return how a prompt is cut; in one piece while no server has sent its costs. See ``SplitLink.plan``."""
        server, welcome, limits = self._server, self._welcome, self._limits
        costs = server.costs
        if welcome is None or costs is None:
            return PromptPlan(min(rows, limits.rows))
        path = SplitPath(
            costs=costs,
            row_bytes=state_bytes(1, self.mark.width, self.form),
            upload_rate=server.meter.rate,
            round_trip=server.round_trip,
            load_rows=server.load_rows,
            steady_rows=server.steady_rows,
            stages=max(1, welcome.stages),
            room=welcome.batches.room,
            max_rows=limits.rows,
            max_rounds=limits.rounds,
        )
        return plan_prompt(rows, self._chunking, path)

    def row_seconds(self, rows: int) -> float:
        """Return what the last of so many rows of a trip costs; see ``SplitLink.row_seconds``. Both ways count as fast as the upload."""
        server, costs = self._server, self._server.costs
        if costs is None:
            return 0.0
        others = max(0, server.load_rows - rows)  # the load counts this device's rows too
        computing = costs.seconds(others + rows) - costs.seconds(others + rows - 1)
        return computing + 2 * state_bytes(1, self.mark.width, self.form) / server.meter.rate

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> _Session:
        """Return a session for one answer; see ``SplitLink.session``."""
        return _Session(self, emit, reserve)

    async def connect(self) -> None:
        """Connect to the first server that can be reached.

        Raises:
            EndpointError, VerifyProtocolError: none can; the last one's error.
        """
        await load_websockets()
        error: StreamcoError | None = None
        for server in self.servers:
            try:
                self.use(server, await server.find())
            except StreamcoError as exc:
                error = exc
            else:
                return
        if error is not None:
            raise error

    def use(self, server: MiddleServer, connection: VerifierConnection[SplitClient]) -> None:
        """Take a server as the one in use, with its limits."""
        welcome = connection.client.welcome
        assert welcome is not None, "a connection begins after its welcome"
        self._server, self._welcome, self._limits = server, welcome, connection.client.limits

    def add(self, session: _Session) -> None:
        """Remember a session that is used."""
        self._sessions.add(session)

    def discard(self, session: _Session) -> None:
        """Forget a session that has ended, but not what it has sent."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._ended = total_traffic([self._ended, session.traffic])

    def wait(self, until: float) -> float:
        """Return the seconds before the servers are tried again: as many as all of them ask for, but not after the time ``until``."""
        now = self.loop.time()
        asked = min(server.not_before for server in self.servers) - now
        return max(0.0, min(max(_RETRY, asked), until - now))

    async def aclose(self) -> None:
        """End all sessions and connections; idempotent."""
        self.is_closed = True
        for session in list(self._sessions):
            session.end()
        for server in self.servers:
            await server.aclose()


class _Sent(Struct, frozen=True):
    """Unanswered rows."""

    frame: SentFrame
    wanted: int


class _Session:
    """One answer's session. ``open``, ``send`` and ``close`` may be called from every thread, the others on the event loop."""

    def __init__(self, link: ServerLink, emit: Callable[[LinkEvent], None], reserve: int) -> None:
        self.traffic = SplitTraffic()
        self._link = link
        self._emit = emit
        self._reserve = reserve
        self._attempt = -1
        self._server = 0  # index of the one that is used
        self._connection: VerifierConnection[SplitClient] | None = None
        self._number = -1
        self._key: bytes | None = None
        self._reply: asyncio.Future[int] | None = None  # positions that the server holds
        self._unanswered: deque[_Sent] = deque()
        self._last: tuple[SentFrame, float] | None = None  # answered, and when it had arrived
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._losses = 0  # without an answer between them
        self._refused_at: float | None = None  # time of the first refusal for load that no answer has followed
        self._ask_again_at: float | None = None  # when rows that were refused for load are sent again; the session stays
        self._is_over = False

    # Every thread

    def open(self, command: OpenSession) -> None:
        """Open or resume; see ``LinkSession``."""
        self._call(self._begin, command)

    def send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        """Send rows; see ``LinkSession``."""
        self._call(self._send, command, states)

    def close(self) -> None:
        """End the session; see ``LinkSession``."""
        self._call(self.end)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop was closed, and with it all connections
            self._link.loop.call_soon_threadsafe(function, *arguments)

    # The event loop

    def end(self) -> None:
        """End the session; idempotent."""
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._detach(closes=True)
        self._link.discard(self)

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

    def _begin(self, command: OpenSession) -> None:
        if self._is_over:
            return
        if self._link.is_closed:
            self._emit(LinkFailed(StreamClosed("split servers: expected an open client, got a closed one")))
            return
        self._link.add(self)
        self._attempt = command.attempt
        if self._ask_again_at is not None:
            self._set_timer(max(0.0, self._ask_again_at - self._link.loop.time()), self._go_on)
            return
        if not command.may_resume:
            self._key = None
        self._detach(closes=True)
        self._connecting = self._link.loop.create_task(self._connect(), name="streamco split session")

    async def _connect(self) -> None:
        """Try the server in use, then the others in their order, until one takes the session or the patience is over.

        A server that asked for some time is tried again after it, or when the patience is over.
        """
        link, error = self._link, StreamcoError()
        until = link.loop.time() + link.patience
        while True:
            may_skip, has_skipped = link.loop.time() < until, False
            for index in [(self._server + offset) % len(link.servers) for offset in range(len(link.servers))]:
                if may_skip and link.servers[index].not_before > link.loop.time():
                    has_skipped = True
                    continue
                try:
                    length = await self._open_at(index)
                except StreamcoError as exc:
                    self._detach(closes=True)
                    link.servers[index].put_off(exc, link.loop.time())
                    error = exc
                else:
                    self._name_server()
                    self._emit(SessionReady(self._attempt, length))
                    return
            if link.loop.time() >= until and not has_skipped:
                self._emit(LinkFailed(final_error(error)))
                return
            await asyncio.sleep(link.wait(until))

    async def _open_at(self, index: int) -> int:
        """Resume or open the session at a server; return the positions that it holds."""
        server = self._link.servers[index]
        connection = await server.find()
        self._link.use(server, connection)
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
            async with asyncio.timeout(limit):
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

    def _send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        connection, link = self._connection, self._link
        if connection is None or command.attempt != self._attempt or self._is_over or self._ask_again_at is not None:
            return
        wanted = len(states) if link.prompt_rows == "all" else command.wanted
        try:
            connection.client.rows(self._number, command.start, states, wanted=wanted, form=link.form)
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
        self._losses, self._refused_at = 0, None
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
        if error.code == "overloaded" and error.scope == "round" and self._may_wait(error.retry_after or _RETRY):
            self._drop_unanswered()  # the server refuses those after it, too
            self._ask_again_at = self._link.loop.time() + (error.retry_after or _RETRY)
            self._emit(SessionLost(self._attempt, may_resume=True))
        else:
            self._lose(error)

    def _may_wait(self, seconds: float) -> bool:
        """Return True if a server that refuses rows for its load may be asked again after so many seconds."""
        now = self._link.loop.time()
        self._refused_at = now if self._refused_at is None else self._refused_at
        return now + seconds <= self._refused_at + self._link.patience

    def _go_on(self) -> None:
        """Go on with the session after a refusal for load."""
        connection, self._ask_again_at = self._connection, None
        assert connection is not None, "a session that is lost doesn't wait"
        self._emit(SessionReady(self._attempt, connection.client.length(self._number), is_new=False))

    def _lose(self, error: StreamcoError) -> None:
        """Give the session up; another server goes on if there is one."""
        self._detach(closes=True)
        self._key = None
        self._link.servers[self._server].put_off(error, self._link.loop.time())
        if isinstance(error, EndpointTimeoutError) or not isinstance(error, VerifyProtocolError) or error.code != "evicted":
            self._server = (self._server + 1) % len(self._link.servers)
        self._report_loss(error, may_resume=False)

    def _report_loss(self, error: StreamcoError, *, may_resume: bool) -> None:
        """Report that the session is gone; after too many losses without an answer, or if no server would have room, that is the end."""
        self._losses += 1
        is_full = isinstance(error, VerifyProtocolError) and error.code == "context_full"
        if is_full or self._losses >= _MAX_LOSSES * len(self._link.servers):
            self._emit(LinkFailed(final_error(error)))
        else:
            self._emit(SessionLost(self._attempt, may_resume=may_resume))

    def _watch(self) -> None:
        """Limit the wait for the oldest unanswered rows."""
        limit = self._link.timeouts.first_token
        if self._unanswered and limit is not None:
            text = f"expected states within {limit:g} s, got none"
            error = EndpointTimeoutError(text, phase="next_token", limit=limit, endpoint=self._name)
            self._set_timer(limit, self._lose, error)
        else:
            self._clear_timer()

    def _set_timer(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        self._clear_timer()
        self._timer = self._link.loop.call_later(seconds, function, *arguments)

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
