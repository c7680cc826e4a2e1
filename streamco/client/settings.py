"""What a client's answers are made with; ``Client.with_options`` replaces single fields."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.degradation import Degradations
from streamco.client.endpoint_set import EndpointSet
from streamco.client.observers.base import AnswerObservers
from streamco.client.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.race.migration import MigrationOptions
from streamco.client.speculation.planner import SpeculationPlanner
from streamco.config import Limits, ReaderPace, Timeouts
from streamco.core.race.machine import OnFailure, RaceMachine
from streamco.core.totals import TotalsRecorder
from streamco.endpoints.base import Request
from streamco.engines.native_notice import warn_if_pure
from streamco.errors import ConfigError
from streamco.policies.eligibility import RequestFacts

__all__ = ["ClientSettings", "check_options", "check_quality_names", "check_sides"]


class ClientSettings(Struct, frozen=True, kw_only=True):
    """One client's parts, which other clients may share, and its options.

    Args:
        endpoints: the device and the servers, shared by all clients from ``with_options``.
        dispatcher: decides which endpoint starts when, and learns from each answer.
        planner: decides whether an answer is speculated, and assembles it.
        totals: adds up what the answers cost.
        pace: tokens per second at the reader; "smooth": as they come, but evenly; None: as fast as they come.
        on_failure: what becomes of an answer if its endpoint fails; None: by the request (``failure_rule``).
        migration: options for planned hand-overs.
        is_migration_given: the caller has given them, so that it is noted if they have no effect.
        dispatch: options for dispatch.
        limits: bounds on what may be buffered.
        timeouts: limits on waiting, for requests without their own; None: those of the endpoints.
        max_retries: further tries at each server, for requests without their own number; None: that of the endpoints.
        degradations: what the client does other than asked.
        observers: follow the answers.
        is_split: the client is one of mode "split", in which settings for two sides have no effect.
    """

    endpoints: EndpointSet
    dispatcher: Dispatcher
    planner: SpeculationPlanner
    totals: TotalsRecorder
    pace: ReaderPace
    on_failure: OnFailure | None
    migration: MigrationOptions
    dispatch: DispatchOptions
    limits: Limits
    degradations: Degradations
    observers: AnswerObservers
    is_migration_given: bool = False
    timeouts: Timeouts | None = None
    max_retries: int | None = None
    is_split: bool = False

    def with_limits(self, request: Request) -> Request:
        """Return the request with the client's timeouts and number of retries, if it has none of its own."""
        timeouts = self.timeouts if request.timeouts is None else request.timeouts
        retries = self.max_retries if request.max_retries is None else request.max_retries
        if timeouts is request.timeouts and retries == request.max_retries:
            return request
        return replace(request, timeouts=timeouts, max_retries=retries)

    @property
    def is_started(self) -> bool:
        """True if the endpoints that may be used were started."""
        return self.endpoints.is_started(self.dispatcher.kept_out)

    async def start(self) -> None:
        """Start the endpoints and, unless all answers race, ask the verifier for its properties; idempotent.

        A side that is kept out is not started, and then no verifier is asked.

        Raises:
            AllEndpointsFailed: no endpoint could start.
            StreamClosed: the endpoints were closed.
            DegradedError: one of several endpoints could not start, and the client's rule is "raise".
        """
        warn_if_pure()
        kept_out = self.dispatcher.kept_out
        await self.endpoints.start(kept_out)
        for name, error in self.endpoints.missing(kept_out).items():
            self.degradations.record_start_failure([], error, endpoint=name)
        if self.planner.mode != "race" and kept_out is None:
            await self.planner.binding.start()

    def check_access(self, machine: RaceMachine) -> None:
        """Have the servers checked that a race has shown nothing of, because another endpoint answered first.

        A server that is kept out is none of the race's endpoints, so a promise holds for the check, too.
        """
        access = self.endpoints.access
        if access is None or machine.winner is None or not self.endpoints.is_open:
            return
        attempts = (*machine.past_attempts, *machine.attempts.values())
        shown = {each.source for each in attempts if each.ttft is not None or each.error is not None}
        access.record_answered(shown)
        access.begin((self.endpoints.endpoints[each.source] for each in attempts if each.source not in shown), self.degradations)

    def failure_rule(self, facts: RequestFacts) -> OnFailure:
        """Return what becomes of this request's answer if its endpoint fails.

        Several choices can't be handed over. Half a tool call or half a JSON text is handed over only if ``on_failure`` asks for it.
        """
        if facts.choices > 1 or self.degradations.rule == "raise":
            return "raise"
        if self.on_failure is not None:
            return self.on_failure
        return "raise" if facts.has_tools or facts.has_json_schema else "migrate"


def check_options(migration: object, dispatch: object, limits: object, on_failure: object) -> None:
    """Check the types of a client's options; None is allowed for each.

    Raises:
        ConfigError: an option has another type, or ``on_failure`` another value.
    """
    if on_failure not in {None, "migrate", "restart", "raise"}:
        raise ConfigError(f'on_failure: expected "migrate", "restart", "raise" or None, got {on_failure!r}')
    settings = (("migration", migration, MigrationOptions), ("dispatch", dispatch, DispatchOptions), ("limits", limits, Limits))
    for name, value, kind in settings:
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}: expected {kind.__name__} or None, got {type(value).__name__}")


def check_quality_names(migration: MigrationOptions | None, endpoints: EndpointSet) -> None:
    """Check that qualities that were given are those of endpoints which exist: a misspelt name would count as an unknown quality.

    Raises:
        ConfigError: a name is none of an endpoint.
    """
    for name in (migration and migration.quality) or ():
        if name not in endpoints.endpoints:
            raise ConfigError(f"migration: quality: expected names among {', '.join(endpoints.endpoints)}, got {name!r}")


def check_sides(dispatcher: Dispatcher, endpoints: EndpointSet) -> None:
    """Check that the side exists that the policy or a budget of 0 asks for, and that the two don't contradict each other.

    Raises:
        ConfigError: there is no endpoint of that side, or the budget keeps it out.
    """
    if dispatcher.needed is None:
        return
    side, setting = dispatcher.needed
    if side == dispatcher.spared:
        raise ConfigError(f"client: expected a budget above 0 with {setting}, got budget=0, which keeps the {side} out")
    if all(each.kind != side for each in endpoints.endpoints.values()):
        raise ConfigError(f"client: expected a {side} for {setting}, got none")
