"""What a client's answers are made with; ``Client.with_options`` replaces single fields."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.degradation import Degradations
from streamco.client.endpoint_set import EndpointSet
from streamco.client.modes.base import ClientPlanner, EndedAnswer, Mode, Planner
from streamco.client.observers.base import AnswerObservers
from streamco.config import Limits, ReaderPace, Timeouts
from streamco.core.race.machine import OnFailure
from streamco.core.totals import TotalsRecorder
from streamco.endpoints.base import Request
from streamco.engines.native_notice import warn_if_pure
from streamco.errors import ConfigError
from streamco.profiles import Profile

__all__ = ["ClientSettings", "check_options"]


class ClientSettings(Struct, frozen=True, kw_only=True):
    """One client's parts, which other clients may share, and its options.

    Args:
        endpoints: the device and the servers, shared by all clients from ``with_options``.
        modes: the modes that the client and those that it is made from have had, by name; the newest one of each.
        mode: what was chosen for the answers.
        planner: prepares the answers, and carries what is learned and spent.
        planners: the planners of ``modes``.
        budget: share of the work that the expensive side may do; None: each mode's own default.
        profile: what an earlier client learned; None: nothing is known.
        seed: seed of random draws; None: from the system.
        totals: adds up what the answers cost.
        pace: tokens per second at the reader; "smooth": as they come, but evenly; None: as fast as they come.
        on_failure: what becomes of an answer if its endpoint fails; None: by the request.
        limits: bounds on what may be buffered.
        timeouts: limits on waiting, for requests without their own; None: those of the endpoints.
        max_retries: further tries at each server, for requests without their own number; None: that of the endpoints.
        degradations: what the client does other than asked.
        observers: follow the answers.
    """

    endpoints: EndpointSet
    modes: Mapping[str, Mode]
    mode: Mode
    planner: ClientPlanner
    planners: Mapping[str, Planner]
    budget: float | None
    profile: Profile | None
    seed: int | None
    totals: TotalsRecorder
    pace: ReaderPace
    on_failure: OnFailure | None
    limits: Limits
    degradations: Degradations
    observers: AnswerObservers
    timeouts: Timeouts | None = None
    max_retries: int | None = None

    def with_limits(self, request: Request) -> Request:
        """Return the request with the client's timeouts and number of retries, if it has none of its own."""
        timeouts = self.timeouts if request.timeouts is None else request.timeouts
        retries = self.max_retries if request.max_retries is None else request.max_retries
        if timeouts is request.timeouts and retries == request.max_retries:
            return request
        return replace(request, timeouts=timeouts, max_retries=retries)

    def learn(self, ended: EndedAnswer) -> None:
        """Let each mode that the client has, or had before, learn from an answer."""
        for planner in self.planners.values():
            planner.learn(ended)

    @property
    def is_started(self) -> bool:
        """True if the endpoints that may be used were started."""
        return self.endpoints.is_started(self.planner.kept_out)

    async def start(self) -> None:
        """Start the endpoints, and let the modes find out what they need to know; idempotent.

        A side that is kept out is not started, and then no verifier is asked.

        Raises:
            AllEndpointsFailed: no endpoint could start.
            StreamClosed: the endpoints were closed.
            DegradedError: one of several endpoints could not start, and the client's rule is "raise".
        """
        warn_if_pure()
        kept_out = self.planner.kept_out
        await self.endpoints.start(kept_out)
        for name, error in self.endpoints.missing(kept_out).items():
            self.degradations.record_start_failure([], error, endpoint=name)
        await self.planner.start()


def check_options(limits: object, on_failure: object) -> None:
    """Check the types of a client's options; None is allowed for each.

    Raises:
        ConfigError: an option has another type, or ``on_failure`` another value.
    """
    if on_failure not in {None, "migrate", "restart", "raise"}:
        raise ConfigError(f'on_failure: expected "migrate", "restart", "raise" or None, got {on_failure!r}')
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(f"limits: expected Limits or None, got {type(limits).__name__}")
