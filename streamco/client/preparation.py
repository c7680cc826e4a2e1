"""What is found out about a request before its answer begins: its facts, and whether it races or is speculated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamco.client.endpoint_set import EndpointSet
from streamco.client.request_facts import describe_request, takes_long
from streamco.client.speculation.planner import PreparedSpeculation, SpeculationPlanner
from streamco.endpoints.base import Endpoint, Request
from streamco.policies.eligibility import RequestFacts

__all__ = ["AnswerPreparation"]


class AnswerPreparation:
    """One answer's.

    Args:
        request: what is asked.
        shared: the endpoints.
        desk: says whether it is speculated.

    Attributes:
        facts: of the request, where they take long to find, or somebody asked for them.
        prepared: None: it races.
        note: why it isn't speculated; "": nobody wanted that.
        has_begun: what was prepared belongs to the answer's driver.
    """

    def __init__(self, request: Request, shared: EndpointSet, desk: SpeculationPlanner) -> None:
        self.request = request
        self.facts: RequestFacts | None = None
        self.prepared: PreparedSpeculation | None = None
        self.note = ""
        self.has_begun = False
        self._shared = shared
        self._desk = desk
        self._lock = asyncio.Lock()  # two tasks may wait for one stream to begin
        self._is_ready = False

    async def get_ready(self) -> None:
        """Find out; the endpoints were started before."""
        if self._desk.mode == "race" and not takes_long(self.request):
            return
        async with self._lock:
            if self._is_ready:
                return
            self.facts = await _describe(self.request, *self._shared.available())
            outcome = await self._desk.prepare(self.request, self.facts)
            self._is_ready = True
            if isinstance(outcome, PreparedSpeculation):
                self.prepared = outcome
            else:
                self.note = outcome

    async def abandon(self) -> None:
        """Release what was got ready; the answer doesn't begin."""
        if self.prepared is not None and not self.has_begun:
            await self.prepared.drafter.aclose()


async def _describe(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> RequestFacts:
    if takes_long(request):
        return await asyncio.to_thread(describe_request, request, device, servers)
    return describe_request(request, device, servers)
