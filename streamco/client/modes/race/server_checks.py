"""Background checks of a client's servers: which software they run, and whether they accept the key.

An unknown server is identified during the first answer, once it isn't itself writing one, so that another endpoint can hand an answer over
to it and vice versa. That costs no tokens and delays no answer, except for a hand-over that must wait until the server has replied.

A server that loses every race is cancelled before it has answered, so a wrong key would go unnoticed until the server is needed. After an
answer that didn't test a server, the client requests its list of models with its key. A server that replies isn't checked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from streamco.client.answer_log import describe_error
from streamco.client.degradation import Degradations
from streamco.client.endpoint_set import EndpointSet
from streamco.core.race.machine import RaceMachine
from streamco.endpoints.base import Capabilities, Endpoint
from streamco.endpoints.known_servers.probe import ServerInfo
from streamco.endpoints.network.http_errors import tells_trouble
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.errors import ConfigError, EndpointError, EndpointStatusError

__all__ = ["ServerChecks"]

_log = logging.getLogger("streamco")

_INSTEAD = "other endpoints have answered in its place"
_DELAY = 0.05  # seconds, so that the answer's own request goes first and gets the ready connection
_MOST_DELAYS = 1200  # a minute in which a server isn't asked while it answers: llama-cpp-python would abort the answer
_ASK_AGAIN = 30.0  # seconds after which a server that didn't reply is asked again what it is


@runtime_checkable
class _Checkable(Protocol):
    """An endpoint that can check whether its key is accepted."""

    @property
    def name(self) -> str: ...

    async def check_access(self) -> EndpointError | str | None: ...


class _Identifiable(Protocol):
    """An endpoint whose server can be asked what it is."""

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def identify(self) -> ServerInfo: ...

    def lacks_model(self, listed: Sequence[str]) -> str | None: ...

    def credentials(self) -> tuple[str, object]: ...


class _Checks(LoopState):
    """The checks in progress on one event loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.identifying: dict[str, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        """See ``LoopState``."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def begin(self, check: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a check."""
        task = asyncio.create_task(check, name=f"streamco {name}")
        self.tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


class ServerChecks:
    """The checks of one client's servers, shared by clients from ``with_options``."""

    def __init__(self) -> None:
        self._known: set[str] = set()  # endpoints that have answered, or are being checked
        self._working: set[str] = set()  # endpoints that have sent a token
        self._found: dict[str, EndpointError | str] = {}  # problems with servers, kept until an answer has ended without testing them
        self._answers = 0  # answers in progress
        self._silent: dict[str, float] = {}  # endpoints that didn't say what they are, and when
        self._checks = LoopBound(_Checks, owner="client")
        self._is_closed = False

    # What they are

    def is_open(self, endpoint: Endpoint) -> bool:
        """Return True if the endpoint's server isn't identified yet, and ``identify`` would ask it."""
        if self._is_closed or not getattr(endpoint, "is_unknown", False):
            return False
        return monotonic() - self._silent.get(endpoint.name, -_ASK_AGAIN) >= _ASK_AGAIN

    def identify(self, endpoint: Endpoint, degradations: Degradations) -> asyncio.Task[None]:
        """Ask a server in the background what it is, and return the task. If it rejects the key, that is recorded.

        Args:
            endpoint: an endpoint for which ``is_open`` returns True and that answers may use, so it isn't excluded by a promise.
            degradations: the client's degradations.
        """
        checks = self._checks.get()
        task = checks.identifying.get(endpoint.name)
        if task is None or task.done():
            self._known.add(endpoint.name)
            task = checks.begin(self._ask_what_it_is(endpoint, degradations), f"ask what {endpoint.name} is")  # type: ignore[arg-type]
            checks.identifying[endpoint.name] = task
        return task

    async def _ask_what_it_is(self, endpoint: _Identifiable, degradations: Degradations) -> None:
        for _ in range(_MOST_DELAYS):
            await asyncio.sleep(_DELAY)
            if not getattr(endpoint, "is_answering", False):
                break
        try:
            info = await endpoint.identify()
        except (EndpointError, ConfigError) as error:  # answers meet the same error, and report it
            self._silent[endpoint.name] = monotonic()
            if not isinstance(error, EndpointStatusError):
                self._known.discard(endpoint.name)
            _log.info("%s does not say what it is (%s)", endpoint.name, describe_error(error))
            is_keyless = isinstance(error, EndpointStatusError) and endpoint.credentials()[1] == ""  # perhaps only the list needs one
            if isinstance(error, EndpointError) and tells_trouble(error) and not is_keyless:
                self._note(endpoint.name, error, degradations)
            return
        if (why := endpoint.lacks_model(info.models)) is not None:
            self._note(endpoint.name, why, degradations)
        can = endpoint.capabilities
        _log.info(
            "%s is %s, context %s, goes on with begun answers: %s",
            endpoint.name,
            endpoint.provider,
            can.context_tokens or "not known",
            can.continuation,
        )

    def _note(self, name: str, found: EndpointError | str, degradations: Degradations) -> None:
        """Record a problem with a server, unless an answer shows that it works. Wait for answers in progress first."""
        if name in self._working:
            return
        if self._answers:
            self._found[name] = found
        else:
            self._record(name, found, degradations)

    # Whether they take the key

    def begin_answer(self) -> None:
        """Record that an answer begins; ``check_unseen`` records its end."""
        self._answers += 1

    def record_answered(self, names: Iterable[str]) -> None:
        """Record endpoints that have answered or failed on their own, so that they don't have to be checked."""
        self._known.update(names)

    def check_access(self, endpoints: Iterable[Endpoint], degradations: Degradations) -> None:
        """Check the endpoints that nothing is known about, in the background, and record refusals.

        Args:
            endpoints: endpoints that an answer hasn't tested, without any that are excluded by a promise.
            degradations: the client's degradations.
        """
        for endpoint in endpoints:
            if isinstance(endpoint, _Checkable) and endpoint.name not in self._known and not self._is_closed:
                self._known.add(endpoint.name)
                self._checks.get().begin(self._check_access(endpoint, degradations), f"check the access to {endpoint.name}")

    def check_unseen(self, machine: RaceMachine, endpoints: EndpointSet, degradations: Degradations) -> None:
        """Check the servers that a race hasn't tested, because another endpoint answered first.

        A server that must not be used isn't among the race's endpoints, so it isn't checked either.
        """
        self._answers -= 1
        attempts = (*machine.past_attempts, *machine.attempts.values())
        self._working.update(each.source for each in attempts if each.ttft is not None)
        if machine.winner is None or not endpoints.is_open:
            return
        shown = {each.source for each in attempts if each.ttft is not None or each.error is not None}
        self.record_answered(shown)
        for name in [name for name in self._found if any(each.source == name for each in attempts)]:
            found = self._found.pop(name)
            if name not in shown and name not in self._working:
                self._record(name, found, degradations)
        self.check_access((endpoints.endpoints[each.source] for each in attempts if each.source not in shown), degradations)

    async def aclose(self) -> None:
        """End the checks; idempotent."""
        self._is_closed = True
        await self._checks.aclose()

    async def _check_access(self, endpoint: _Checkable, degradations: Degradations) -> None:
        self._record(endpoint.name, await endpoint.check_access(), degradations)

    def _record(self, name: str, found: EndpointError | str | None, degradations: Degradations) -> None:
        """Record a problem with a server, if there is one."""
        if found is None:
            return
        if isinstance(found, EndpointStatusError) and found.status != 401:
            found = f"it refuses its list of models ({found.status})"
        if isinstance(found, EndpointError):
            self._known.discard(name)  # so that it is checked again after the next answer that doesn't test it
            degradations.record_failure([], found, endpoint=name, instead=_INSTEAD)
        else:
            sentence = f"{name} may refuse answers: {found}; {_INSTEAD}"
            degradations.record([], kind=f"may refuse: {found}", endpoint=name, sentence=sentence, may_raise=False)
