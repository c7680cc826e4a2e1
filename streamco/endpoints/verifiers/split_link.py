"""The servers of a split model, seen from the device: one connection to each, and a session for every answer.

The first server that can be reached serves an answer. If it is lost, the session is resumed there, or else another server goes on with the
states that the device has kept. Only if none can be reached within ``patience`` does the answer fail. If those that can are busy with other
answers, it waits ``max_wait``, and the device's answers get the places in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from streamco.config import Timeouts
from streamco.endpoints.verifiers.connection import VerifierAddress, VerifierConnection, load_websockets
from streamco.endpoints.verifiers.middle_server import RETRY, MiddleServer
from streamco.endpoints.verifiers.place_queue import PlaceQueue
from streamco.endpoints.verifiers.split_session import ServerSession
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.answer import LinkEvent
from streamco.engines.split.tally import SplitTraffic, total_traffic
from streamco.errors import StreamcoError
from streamco.policies.chunking import Chunking, PromptPlan, SplitPath, plan_prompt
from streamco.profiles.row_costs import RowCosts
from streamco.wire.split.client import SplitClient
from streamco.wire.split.frames import LayersMark, SplitLimits, SplitWelcome
from streamco.wire.tensors import StateFormat, state_bytes

__all__ = ["ServerLink"]


class ServerLink:
    """The servers of a split model. Implements ``SplitLink``; its connections are on one event loop at a time.

    Args:
        addresses: the servers, best first.
        info: the device's input layers.
        form: format of the states.
        timeouts: ``connect`` until a welcome, ``first_token`` until rows are answered, ``socket`` for a ping; in seconds.
        patience: seconds that all servers may be out of reach before an answer fails.
        max_wait: seconds that an answer waits for servers that are busy with others.
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
        max_wait: float,
        exact: bool = False,
        chunking: Chunking = "fastest",
    ) -> None:
        first = info.first_layer + info.layers
        self.mark = LayersMark(info.source, first, info.total_layers - first, info.width)
        self.loop, self.form, self.timeouts = loop, form, timeouts
        self.patience, self.max_wait = patience, max_wait
        self.queue = PlaceQueue()
        self.reached_at = -inf  # time at which a busy server answered last
        self.servers = [MiddleServer(address, self.mark, timeouts, exact=exact) for address in addresses]
        self.is_closed = False
        self.prompt_rows: Literal["last", "all"] = "last"
        self._chunking: Chunking = chunking
        self._server = self.servers[0]  # that was used last
        self._welcome: SplitWelcome | None = None
        self._limits = SplitLimits()
        self._sessions: set[ServerSession] = set()
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

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        """Return how a prompt is cut; in one piece while no server has sent its costs. See ``SplitLink.plan``.

        The download counts as fast as the upload.
        """
        server, welcome, limits = self._server, self._welcome, self._limits
        costs = server.costs
        if welcome is None or costs is None:
            return PromptPlan(min(rows, limits.rows))
        path = SplitPath(
            costs=costs,
            row_bytes=state_bytes(1, self.mark.width, self.form),
            upload_rate=server.meter.rate,
            download_rate=server.meter.rate if self.prompt_rows == "all" else inf,
            input_costs=input_costs,
            round_trip=server.round_trip,
            load_rows=server.load_rows,
            steady_rows=server.steady_rows,
            stages=max(1, welcome.stages),
            room=welcome.batches.room,
            max_rows=limits.rows,
            max_rounds=limits.rounds,
        )
        return plan_prompt(rows, self._chunking, path, computed=computed)

    def row_seconds(self, rows: int) -> float:
        """Return what the last of so many rows of a trip costs; see ``SplitLink.row_seconds``. Both ways count as fast as the upload."""
        server, costs = self._server, self._server.costs
        if costs is None:
            return 0.0
        others = max(0, server.load_rows - rows)  # the load counts this device's rows too
        computing = costs.seconds(others + rows) - costs.seconds(others + rows - 1)
        return computing + 2 * state_bytes(1, self.mark.width, self.form) / server.meter.rate

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> ServerSession:
        """Return a session for one answer; see ``SplitLink.session``."""
        return ServerSession(self, emit, reserve)

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be used on this event loop from now on; what was on another one, which doesn't run any more, is forgotten."""
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

    def add(self, session: ServerSession) -> None:
        """Remember a session that is used."""
        self._sessions.add(session)

    def discard(self, session: ServerSession) -> None:
        """Forget a session that has ended, but not what it has sent."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._ended = total_traffic([self._ended, session.traffic])

    def free_place(self, index: int) -> None:
        """Let the first answer that waits ask this server again: another one of this device has ended there."""
        self.servers[index].free()
        self.queue.report_free()

    async def wait(self, until: float, frees: int) -> None:
        """Wait before the servers are tried again: as long as all of them ask for, but not after the time ``until``.

        Args:
            until: the loop's time, in seconds.
            frees: the queue's ``frees`` before the servers were tried. A place that has become free since is asked for at once.
        """
        now = self.loop.time()
        asked = min(server.not_before for server in self.servers) - now
        await self.queue.wait(max(0.0, min(max(RETRY, asked), until - now)), frees)

    async def aclose(self) -> None:
        """End all sessions and connections; idempotent."""
        self.is_closed = True
        await self.release()

    async def release(self) -> None:
        """End all sessions, and close the connections; others are made if the link is used again."""
        for session in list(self._sessions):
            session.end()
        for server in self.servers:
            await server.aclose()
