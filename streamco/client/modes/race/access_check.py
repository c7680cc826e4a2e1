"""Finding out that a server refuses its key though no answer has shown it, because another endpoint is always faster.

A server that loses each race is cancelled before it has answered, so that a wrong key stays unknown until the server is needed. After an
answer that shows nothing of a server, its list of models is asked for with its key, in the background: that costs no tokens and delays no
answer. A server that answers such a request isn't asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from streamco.client.degradation import Degradations
from streamco.client.endpoint_set import EndpointSet
from streamco.core.race.machine import RaceMachine
from streamco.endpoints.base import Endpoint
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.errors import EndpointStatusError

__all__ = ["AccessCheck"]

_INSTEAD = "other endpoints have answered in its place"


@runtime_checkable
class _Checkable(Protocol):
    """An endpoint that can find out whether it may be used."""

    @property
    def name(self) -> str: ...

    async def check_access(self) -> EndpointStatusError | None: ...


class _Checks(LoopState):
    """The checks of one event loop that are under way."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """See ``LoopState``."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def forget(self, task: asyncio.Task[None]) -> None:
        """Forget a check that is over."""
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


class AccessCheck:
    """The checks of one client's servers, shared by clients from ``with_options``."""

    def __init__(self) -> None:
        self._known: set[str] = set()  # endpoints that have answered, or are being asked
        self._checks = LoopBound(_Checks, owner="client")
        self._is_closed = False

    def record_answered(self, names: Iterable[str]) -> None:
        """Record endpoints that have answered or failed by themselves: they needn't be asked."""
        self._known.update(names)

    def begin(self, endpoints: Iterable[Endpoint], degradations: Degradations) -> None:
        """Ask the endpoints in the background of which nothing is known; what they refuse is recorded.

        Args:
            endpoints: endpoints that an answer has shown nothing of. They may be used: none is kept out by a promise.
            degradations: the client's.
        """
        for endpoint in endpoints:
            if isinstance(endpoint, _Checkable) and endpoint.name not in self._known and not self._is_closed:
                self._known.add(endpoint.name)
                task = asyncio.create_task(self._check(endpoint, degradations), name=f"streamco check the access to {endpoint.name}")
                checks = self._checks.get()
                checks.tasks.add(task)
                task.add_done_callback(checks.forget)

    def check_unseen(self, machine: RaceMachine, endpoints: EndpointSet, degradations: Degradations) -> None:
        """Check the servers that a race has shown nothing of, because another endpoint answered first.

        A server that is kept out is none of the race's endpoints, so a promise holds for the check, too.
        """
        if machine.winner is None or not endpoints.is_open:
            return
        attempts = (*machine.past_attempts, *machine.attempts.values())
        shown = {each.source for each in attempts if each.ttft is not None or each.error is not None}
        self.record_answered(shown)
        self.begin((endpoints.endpoints[each.source] for each in attempts if each.source not in shown), degradations)

    async def aclose(self) -> None:
        """End the checks; idempotent."""
        self._is_closed = True
        await self._checks.aclose()

    async def _check(self, endpoint: _Checkable, degradations: Degradations) -> None:
        error = await endpoint.check_access()
        if error is None:
            return
        if error.status == 401:
            self._known.discard(endpoint.name)  # to be asked again after the next answer that shows nothing of it
            degradations.record_failure([], error, endpoint=endpoint.name, instead=_INSTEAD)
        else:
            sentence = f"{endpoint.name} may refuse answers: it refuses its list of models ({error.status}); {_INSTEAD}"
            degradations.record([], kind=f"list refused {error.status}", endpoint=endpoint.name, sentence=sentence, may_raise=False)
