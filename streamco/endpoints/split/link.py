"""The servers of a split model, as seen from the device: a session for every answer, and plans based on measurements.

The first server that can be reached serves an answer. If the connection is lost, the session is resumed there, or else another server
continues with the states that the device has kept. The answer fails only if no server can be reached within ``patience``. If the servers
that can be reached are busy with other answers, it waits up to ``max_wait``, and the device's answers get free places in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from streamco.config import Timeouts
from streamco.endpoints.split.base import LinkEvent
from streamco.endpoints.split.middle_servers import MiddleServers
from streamco.endpoints.split.session import ServerSession
from streamco.endpoints.verifiers.connection import VerifierAddress
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.policies.chunking import Chunking, PromptPlan, plan_prompt
from streamco.profiles.row_costs import RowCosts
from streamco.wire.split.frames import LayersMark
from streamco.wire.tensors import StateFormat, state_bytes

__all__ = ["ServerLink"]


class ServerLink(MiddleServers):
    """The servers of a split model. Implements ``SplitLink``.

    Args:
        info: the device's input layers.
        chunking: how prompts are cut.
        addresses, loop, form, timeouts, patience, max_wait, exact: see ``MiddleServers``.
    """

    def __init__(
        self,
        addresses: Sequence[VerifierAddress],
        info: PartInfo,
        *,
        loop: asyncio.AbstractEventLoop,
        form: StateFormat | Literal["auto"],
        timeouts: Timeouts,
        patience: float,
        max_wait: float,
        exact: bool = False,
        chunking: Chunking = "fastest",
    ) -> None:
        first = info.first_layer + info.layers
        mark = LayersMark(info.source, first, info.total_layers - first, info.width)
        super().__init__(addresses, mark, loop=loop, form=form, timeouts=timeouts, patience=patience, max_wait=max_wait, exact=exact)
        self._chunking: Chunking = chunking

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        """Return how to cut a prompt into chunks; it isn't cut before a server has sent its costs. See ``SplitLink.plan``."""
        path = self.path(self.form, input_costs)
        if path is None:
            return PromptPlan(min(rows, self._limits.rows))
        return plan_prompt(rows, self._chunking, path, computed=computed)

    def row_seconds(self, rows: int) -> float:
        """Return how many seconds the last of ``rows`` rows adds to a round trip, if the download is as fast as the upload."""
        server, costs = self._server, self._server.costs
        if costs is None:
            return 0.0
        others = max(0, server.load_rows - rows)  # the load includes this device's rows
        computing = costs.seconds(others + rows) - costs.seconds(others + rows - 1)
        return computing + 2 * state_bytes(1, self.mark.width, self.form) / server.meter.rate

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> ServerSession:
        """Return a session for one answer; see ``SplitLink.session``."""
        return ServerSession(self, emit, reserve)
