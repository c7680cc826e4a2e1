"""The settings that a client makes its answers with; ``Client.with_options`` replaces some of them."""

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

__all__ = ["ClientSettings", "check_has_effect", "check_options"]


class ClientSettings(Struct, frozen=True, kw_only=True):
    """A client's parts, which other clients may share, and its options.

    Args:
        endpoints: the device and the servers, shared by all clients from ``with_options``.
        modes: the newest mode of each name that the client, or a client that it was derived from, has had.
        mode: the chosen mode.
        planner: prepares the answers, and keeps track of what is learned and spent.
        planners: the planners of ``modes``.
        budget: share of the work that the expensive side may do; None uses each mode's default.
        profile: what an earlier client learned, or None.
        seed: seed for random draws; None takes one from the system.
        totals: adds up the costs of the answers.
        pace: how fast the reader gets text: a number of tokens per second, "smooth" to spread it evenly at the rate at which it arrives, or
            None to send it as soon as it arrives.
        on_failure: what to do if an answer's endpoint fails; with None, it depends on the request.
        limits: bounds on what may be buffered.
        timeouts: limits on waiting, for requests that set none; None uses the endpoints' limits.
        max_retries: retries at each server, for requests that set no number; None uses the endpoints' number.
        degradations: records the requests that aren't served as asked.
        observers: objects that follow the answers.
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
        """Return the request with the client's timeouts and number of retries, unless it sets its own."""
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
        """True if the endpoints that may be used have started."""
        return self.endpoints.is_started(self.planner.kept_out)

    async def start(self) -> None:
        """Start the endpoints, and let the modes gather what they need to know; idempotent.

        If a side is excluded, its endpoints aren't started, and no verifier is asked.

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
        ConfigError: an option has the wrong type, or ``on_failure`` has an unknown value.
    """
    if on_failure not in {None, "migrate", "restart", "raise"}:
        raise ConfigError(f'on_failure: expected "migrate", "restart", "raise" or None, got {on_failure!r}')
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(f"limits: expected Limits or None, got {type(limits).__name__}")


def check_has_effect(mode: Mode, settings: Mapping[str, object]) -> None:
    """Reject settings for several endpoints in a mode where one endpoint makes all answers; None counts as not given.

    Raises:
        ConfigError: such a setting is given.
    """
    for name, value in settings.items():
        if value is not None:
            alone = f"{type(mode).__name__}(...), in which one endpoint makes all answers"
            raise ConfigError(f"{name}: can't be combined with {alone}, got {value!r}")
