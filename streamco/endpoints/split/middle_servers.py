"""The servers of a split model, shared by all answers of a device: which one is in use, which answers wait, and how much was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Literal, Protocol

from streamco.config import Timeouts
from streamco.endpoints.split.middle_server import RETRY, MiddleServer
from streamco.endpoints.split.place_queue import PlaceQueue
from streamco.endpoints.verifiers.connection import VerifierAddress, VerifierConnection, load_websockets
from streamco.engines.split.tally import SplitTraffic, total_traffic
from streamco.errors import StreamcoError
from streamco.policies.chunking import SplitPath, is_link_slower
from streamco.profiles.row_costs import RowCosts
from streamco.wire.split.client import SplitClient
from streamco.wire.split.frames import LayersMark, SplitLimits, SplitWelcome
from streamco.wire.tensors import StateFormat, state_bytes

__all__ = ["MiddleServers", "ServedSession"]


class ServedSession(Protocol):
    """One answer's session with these servers."""

    @property
    def traffic(self) -> SplitTraffic:
        """What the session has sent and received so far."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...


class MiddleServers:
    """The servers of a split model, and the state that their sessions share. They are connected on one event loop at a time.

    Args:
        addresses: the servers, best first.
        mark: identifies the layers that the device expects there.
        loop: the event loop.
        form: format of the states; "auto" is f16 for answers that begin while the link is known to be slower than the server, f32 for
            others.
        timeouts: ``connect`` until the welcome, ``first_token`` until rows get a reply, ``socket`` for the reply to a ping; in seconds.
        patience: seconds that all servers may be unreachable before an answer fails.
        max_wait: seconds that an answer waits for servers that are busy with others.
        exact: True to refuse servers that aren't in exact mode.

    Attributes:
        queue: the answers that wait for a place.
        reached_at: the last time that a busy server replied, on the loop's clock.
        is_closed: True if no new session may begin.
        prompt_rows: which states of a prompt are sent back: only the ``last`` one, which is all that is needed, or ``all``, as in HAT, to
            measure what that costs.
    """

    def __init__(
        self,
        addresses: Sequence[VerifierAddress],
        mark: LayersMark,
        *,
        loop: asyncio.AbstractEventLoop,
        form: StateFormat | Literal["auto"],
        timeouts: Timeouts,
        patience: float,
        max_wait: float,
        exact: bool = False,
    ) -> None:
        self.mark = mark
        self.loop, self.timeouts = loop, timeouts
        self.patience, self.max_wait = patience, max_wait
        self.queue = PlaceQueue()
        self.reached_at = -inf
        self.servers = [MiddleServer(address, mark, timeouts, exact=exact) for address in addresses]
        self.is_closed = False
        self.prompt_rows: Literal["last", "all"] = "last"
        self._form: StateFormat | Literal["auto"] = form
        self._server = self.servers[0]  # the server that was used last
        self._welcome: SplitWelcome | None = None
        self._limits = SplitLimits()
        self._sessions: set[ServedSession] = set()
        self._ended = SplitTraffic()  # traffic of the sessions that are over

    @property
    def traffic(self) -> SplitTraffic:
        """What all answers have sent and received so far."""
        return total_traffic([self._ended, *(session.traffic for session in self._sessions)])

    @property
    def max_rows(self) -> int:
        """Maximum number of rows in a frame."""
        return self._limits.rows

    @property
    def max_positions(self) -> int:
        """Maximum number of positions in a session, which is the server's own limit once a server has been reached."""
        return self._limits.context_rows

    @property
    def round_trip(self) -> float:
        """Seconds of a round trip in which the server computes nothing, without the upload; 0 if not measured."""
        return self._server.round_trip

    @property
    def form(self) -> StateFormat:
        """Format of the states for an answer that sends its first rows now."""
        if self._form != "auto":
            return self._form
        path = self.path("f32") if self._server.meter.is_rate_measured else None
        return "f16" if path is not None and is_link_slower(path) else "f32"

    def path(self, form: StateFormat, input_costs: RowCosts | None = None) -> SplitPath | None:
        """Return what is known about the server in use and the link to it, or None if no server has sent its costs.

        If all rows come back, the download is assumed to be as fast as the upload; if only the last one does, the download is ignored.

        Args:
            form: format of the states.
            input_costs: seconds that the device's own layers take, by number of rows, or None if not known.
        """
        server, welcome = self._server, self._welcome
        if welcome is None or server.costs is None:
            return None
        return SplitPath(
            costs=server.costs,
            row_bytes=state_bytes(1, self.mark.width, form),
            upload_rate=server.meter.rate,
            download_rate=server.meter.rate if self.prompt_rows == "all" else inf,
            input_costs=input_costs,
            round_trip=server.round_trip,
            load_rows=server.load_rows,
            steady_rows=server.steady_rows,
            stages=max(1, welcome.stages),
            room=welcome.batches.room,
            max_rows=self._limits.rows,
            max_rounds=self._limits.rounds,
        )

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this event loop from now on, and forget the state on any other, which is no longer running."""
        if loop is self.loop:
            return
        self.loop, self.queue, self.reached_at = loop, PlaceQueue(), -inf
        for session in list(self._sessions):
            self.discard(session)
        for server in self.servers:
            server.forget_connection()

    async def connect(self) -> None:
        """Connect to the first server that can be reached.

        Raises:
            EndpointError, VerifyProtocolError: no server can be reached; this is the last server's error.
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
        """Use this server and its limits from now on."""
        welcome = connection.client.welcome
        assert welcome is not None, "a connection begins after its welcome"
        self._server, self._welcome, self._limits = server, welcome, connection.client.limits

    def add(self, session: ServedSession) -> None:
        """Remember an active session."""
        self._sessions.add(session)

    def discard(self, session: ServedSession) -> None:
        """Forget a session that has ended, but keep its traffic figures."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._ended = total_traffic([self._ended, session.traffic])

    def free_place(self, index: int) -> None:
        """Have the first waiting answer retry this server, because another of this device's answers has ended there."""
        self.servers[index].free()
        self.queue.report_free()

    async def wait(self, until: float, frees: int) -> None:
        """Wait until the first of the servers may be tried again, but not beyond the time ``until``.

        Args:
            until: a time on the loop's clock, in seconds.
            frees: the queue's ``frees`` before the servers were tried. If a place has become free since, there is no wait.
        """
        now = self.loop.time()
        asked = min(server.not_before for server in self.servers) - now
        await self.queue.wait(max(0.0, min(max(RETRY, asked), until - now)), frees)

    async def aclose(self) -> None:
        """End all sessions and connections; idempotent."""
        self.is_closed = True
        await self.release()

    async def release(self) -> None:
        """End all sessions and close the connections; new ones are made if the servers are used again."""
        for session in list(self._sessions):
            session.close()
        for server in self.servers:
            await server.aclose()
