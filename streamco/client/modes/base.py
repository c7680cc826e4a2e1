"""What all modes share: the interface through which a client asks a mode for an answer, and helpers that several modes need.

A *mode* is what a user chooses, and consists only of settings: ``Race``, ``Speculate``, ``Split``, or ``Auto`` with several modes. Its
*planner* belongs to one client. It keeps track of what was learned and spent, and prepares each answer, or says why it can't. The prepared
answer starts the answer's driver, and records the answer when all its work has ended. The modes don't know about each other.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.request_facts import describe_request, takes_long
from streamco.config import Limits, ReaderPace, fixed_rate
from streamco.core.race.answer_lengths import TYPICAL
from streamco.core.race.machine import OnFailure, RaceMachine
from streamco.core.report import Report
from streamco.core.report_parts import AnswerPlan, ShadowReport
from streamco.core.totals import TotalsRecorder
from streamco.endpoints.base import Endpoint, Kind, Request
from streamco.errors import ConfigError
from streamco.policies.cost import RequestCost
from streamco.policies.eligibility import RequestFacts
from streamco.policies.ways import Reading, Way, Weights
from streamco.profiles import Profile

if TYPE_CHECKING:
    from streamco.client.answer_log import AnswerLog
    from streamco.client.degradation import Degradations
    from streamco.client.driver import AnswerDriver
    from streamco.client.endpoint_set import EndpointSet
    from streamco.client.observers.base import AnswerObservers, ObservedAnswer

__all__ = [
    "AskedAnswer",
    "ClientPlanner",
    "CostOf",
    "EndedAnswer",
    "Fallback",
    "Mode",
    "ModeContext",
    "Obstacle",
    "PlannedWay",
    "Planner",
    "Prepared",
    "SettingsLike",
    "values_of",
]

DriverT = TypeVar("DriverT", bound="AnswerDriver")

CostOf = Callable[[Endpoint, int, int, int], RequestCost]
"""A function that returns the cost of prompt, completion and cached prompt tokens at an endpoint (``DispatchRecord.cost``)."""


class Obstacle(NamedTuple):
    """The reason why an endpoint can't serve a request, or a mode doesn't make an answer; both texts are "" if there is no obstacle.

    Args:
        text: the reason as the caller sees it.
        logged: the reason for the log, without any text from the caller.
        is_logged: True if it applies to all answers, and was logged when it was found.
        is_choice: True if the mode would have been slower, and the faster one was requested.
    """

    text: str
    logged: str
    is_logged: bool = False
    is_choice: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts: the one for the caller, and the one that may be logged."""
        return self.text, self.logged

    @classmethod
    def of_settings(cls, text: str) -> Self:
        """Return an obstacle whose reason quotes nothing from a request and so may be logged."""
        return cls(text, text)


class SettingsLike(Protocol):
    """The part of a client's settings that modes need; ``streamco.client.settings.ClientSettings`` describes each of them."""

    @property
    def endpoints(self) -> EndpointSet:
        """The device and the servers."""
        ...

    @property
    def planner(self) -> ClientPlanner:
        """Prepares the client's answers."""
        ...

    @property
    def totals(self) -> TotalsRecorder:
        """Adds up the costs of the answers."""
        ...

    @property
    def pace(self) -> ReaderPace:
        """The default pace of the client's answers."""
        ...

    @property
    def on_failure(self) -> OnFailure | None:
        """What to do if an answer's endpoint fails."""
        ...

    @property
    def limits(self) -> Limits:
        """Bounds on what may be buffered."""
        ...

    @property
    def degradations(self) -> Degradations:
        """Records the requests that aren't served as asked."""
        ...

    @property
    def observers(self) -> AnswerObservers:
        """The observers of the answers."""
        ...

    def learn(self, ended: EndedAnswer) -> None:
        """Let each mode of the client learn from an answer."""
        ...


class AskedAnswer:
    """One answer that was asked for: its request, and the data that the modes need to make it.

    Args:
        request: the complete, validated request.
        settings: the client's settings.
        pace: how fast the reader gets text: a number of tokens per second, "smooth" to spread it evenly at the rate at which it arrives, or
            None to send it as soon as it arrives.
        shows_drafts: True if the reader can take text back.
        is_streamed: False if the reader gets the answer in one piece; then ``pace`` is None.
        notes: the notes of the answer's report.
        log: the answer's log.

    Attributes:
        facts: facts about the request, or None if they haven't been determined.
        passed_over: the last mode that was asked but didn't make the answer, and why; None if there was none.
        plan: the predictions for each way to make it, or None if none were made.
        shadow: returns the figures of its shadow answer; None if there is none.
    """

    def __init__(
        self,
        request: Request,
        settings: SettingsLike,
        *,
        pace: ReaderPace,
        shows_drafts: bool,
        is_streamed: bool,
        notes: list[str],
        log: AnswerLog,
    ) -> None:
        self.request = request
        self.settings = settings
        self.pace = pace
        self.shows_drafts = shows_drafts
        self.is_streamed = is_streamed
        self.notes = notes
        self.log = log
        self.facts: RequestFacts | None = None
        self.passed_over: tuple[Planner, Obstacle] | None = None
        self.plan: AnswerPlan | None = None
        self.shadow: Callable[[], ShadowReport] | None = None

    @property
    def reading(self) -> Reading:
        """How the answer is read, and how long it is expected to be."""
        planner = self.settings.planner
        tokens = planner.expected_tokens(self.request.sampling.max_tokens)
        return Reading(tokens, fixed_rate(self.pace) or planner.reader_rate, self.is_streamed)

    def complete(self, report: Report, notes: Sequence[str]) -> Report:
        """Return a driver's report with the notes, and with what was known before the answer began."""
        shadow = None if self.shadow is None else self.shadow()
        return replace(report, request_id=self.log.request_id, notes=list(notes), plan=self.plan, shadow=shadow)

    async def describe(self) -> RequestFacts:
        """Return the facts about the request; they are determined once, in a thread if that would block the event loop."""
        if self.facts is None:
            device, servers = self.settings.endpoints.available()
            if takes_long(self.request):
                self.facts = await asyncio.to_thread(describe_request, self.request, device, servers)
            else:
                self.facts = describe_request(self.request, device, servers)
        return self.facts


class EndedAnswer(NamedTuple):
    """What a client's other modes learn from an answer that one mode has made.

    Args:
        prompt_tokens: the prompt's length.
        race: the machine of a raced answer, or None if it was made in another way.
    """

    prompt_tokens: int
    race: RaceMachine | None = None


class Prepared(ABC, Generic[DriverT]):
    """An answer that is ready to start.

    Args:
        asked: the request for the answer.
    """

    def __init__(self, asked: AskedAnswer) -> None:
        self.asked = asked

    @abstractmethod
    def start(self) -> DriverT:
        """Start the answer's driver, which records the answer when all its work has ended.

        Raises:
            ConfigError: no endpoint can serve the request.
            EndpointError: the endpoints that may be used could not start.
            DegradedError: the request can't be served as asked, and the client's rule makes that an error.
        """

    async def aclose(self) -> None:
        """Release what was prepared if the answer isn't started after all; no effect once it has started."""

    @abstractmethod
    def note(self, driver: DriverT) -> None:
        """Add a note on everything that wasn't served as asked. Most of it is known only when the answer has ended."""

    def end(self, driver: DriverT, observed: ObservedAnswer, *, reason: str | None = None) -> None:
        """Add the costs of an answer that has ended to the client's totals, and tell the log and the observers.

        Args:
            driver: the answer's driver.
            observed: the observers' records of the answer.
            reason: the reason for the dispatch decision, without any text from the caller; None if the report's reason has no such text.
        """
        asked = self.asked
        asked.settings.totals.record(driver.cost())
        report = cache(lambda: asked.complete(driver.report(), asked.notes))
        if asked.plan is not None:
            asked.settings.planner.record(asked, report())
        asked.log.ended(report, reason=reason)
        observed.end(report)


class Planner(ABC):
    """Plans one client's answers in one mode, and may decline to make one; clients from ``with_options`` share what it has learned.

    Attributes:
        name: the mode's name.
        declined: what a report says about an answer that the mode should have made but didn't.
        role: the name under which it is recorded that this mode didn't make an answer, such as "verifier".
    """

    name: ClassVar[str]
    declined: ClassVar[str] = ""
    role: ClassVar[str] = ""

    @property
    def parts(self) -> tuple[Planner, ...]:
        """The planners that may make an answer: this one, or the ones that it chooses from."""
        return (self,)

    @property
    def may_draft(self) -> bool:
        """True if a verifier may check drafts; then a server may compute more tokens than an answer contains."""
        return False

    @property
    def problem(self) -> str:
        """Why no answer can be made in this mode at present, whatever its request; "" if some can be. Known once the client has started."""
        return ""

    async def start(self) -> None:  # noqa: B027  most modes have nothing to find out
        """Find out what the mode needs to know before its first answer; idempotent."""

    @abstractmethod
    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Prepare an answer and return it, or return the reason why this mode doesn't make it.

        Args:
            asked: the request for the answer.
            if_faster: True to make it only if this mode is predicted to be faster than the one it would replace, or if it is due to be
                measured again.
        """

    async def forecast(self, asked: AskedAnswer, weights: Weights) -> Sequence[PlannedWay]:
        """Return the ways in which this mode can make an answer, with the predictions for each."""
        return ()

    def learn(self, ended: EndedAnswer) -> None:  # noqa: B027  a mode may have nothing to learn
        """Learn from an answer that this mode or another one has made."""

    def record(self, asked: AskedAnswer, report: Report) -> None:  # noqa: B027  most modes have learned from their drivers
        """Learn from the report of an answer that has ended, if the way to make it was chosen by weights."""


class PlannedWay(NamedTuple):
    """One way to make an answer, with a mode's predictions for it.

    Args:
        way: the predictions.
        prepare: prepares the answer in this way and returns it, or the reason why it can't be made in this way after all.
        obstacle: why a mode that was requested can't be used; None if it can, or if this isn't a mode that can be requested.
    """

    way: Way
    prepare: Callable[[], Awaitable[Prepared[Any] | Obstacle]]
    obstacle: Obstacle | None = None


class ClientPlanner(Planner):
    """Plans every answer of a client, and keeps track of what is spent."""

    @property
    @abstractmethod
    def account(self) -> object:
        """The account that tracks what is spent and learned under a budget; two clients with the same account share their totals."""

    @property
    @abstractmethod
    def kept_out(self) -> Kind | None:
        """The side that the client promises not to use at all, or None."""

    @property
    @abstractmethod
    def reader_rate(self) -> float:
        """Reading speed, in tokens per second, of the virtual reader that is used to measure quality if no pace is set."""

    @abstractmethod
    def costs(self) -> CostOf:
        """Return the function that computes the cost of tokens at the client's endpoints."""

    @property
    def budget(self) -> float:
        """Share of all prompt tokens that the constrained side may read, 0..1."""
        return 1.0

    def expected_tokens(self, limit: int | None) -> float:
        """Return how many tokens an answer is expected to have. ``limit`` is the maximum, or None if it isn't known."""
        return TYPICAL.expected(0.0, limit)

    def quality(self, endpoint: Endpoint) -> float | None:
        """Return the quality of an endpoint's answers, on the same scale for all endpoints, or None if it isn't known."""
        return None

    @abstractmethod
    def profile(self) -> bytes:
        """Return what has been learned so far, as the JSON of a ``Profile``."""

    def rate(self, request_id: str, *, good: bool) -> bool:
        """Learn from the rating of an answer; return False if there is nothing to be learned from it.

        Raises:
            ConfigError: answers aren't graded, or ``good`` is neither True nor False.
            UsageError: there is no such answer to rate.
        """
        if not isinstance(good, bool):
            raise ConfigError(f"good: expected True or False, got {good!r}")
        return self.learn_rating(request_id, good)

    def learn_rating(self, request_id: str, good: bool) -> bool:
        """Learn from a rating that has been checked; see ``rate``."""
        raise ConfigError("rate: expected a client with mode=Race(quality=...), which learns from ratings, got one without")


class ModeContext(NamedTuple):
    """What a client passes to the planners of its modes.

    Args:
        endpoints: the client's device and servers.
        fallback: makes the answers that a mode can't make, unless the mode names another one.
        budget: share of the work that the expensive side may do, 0 to 1; None uses each mode's default.
        profile: what an earlier client learned, or None.
        seed: seed for random draws; None takes one from the system.
        further: names of endpoints that other modes of the client use.
        may_warn: True if problems that apply to all answers are logged.
        is_new: True if a new budget was given, so that its account starts empty.
        known: the planners of the client that this one is derived from, by the name of their mode.
    """

    endpoints: EndpointSet
    fallback: Mode
    budget: float | None = None
    profile: Profile | None = None
    seed: int | None = None
    may_warn: bool = True
    is_new: bool = False
    known: Mapping[str, Planner] = {}
    further: frozenset[str] = frozenset()


class Mode(Protocol):
    """How a client makes its answers, as chosen by the user. It consists of validated settings and nothing else."""

    @property
    def name(self) -> str:
        """The mode's name: "race", "speculate", "split" or "auto"."""
        ...

    @property
    def endpoint(self) -> Endpoint | None:
        """The one endpoint that makes all answers in this mode, or None if the client's device and servers do."""
        ...

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer: this one, or the ones that it lists."""
        ...

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers, which asks other modes for answers that this one can't make.

        Raises:
            ConfigError: the endpoints or the budget don't fit the mode.
        """
        ...

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner for this mode's own answers.

        Raises:
            ConfigError: as for ``planner``.
        """
        ...


def values_of(mode: Struct, kind: type[Struct]) -> tuple[object, ...]:
    """Return the mode's settings that an options class declares, to find out whether two modes may share an account or estimates."""
    return tuple(getattr(mode, name) for name in kind.__struct_fields__)


class Fallback(ClientPlanner):
    """Asks one mode after another for an answer; the last one makes any answer that the others don't make.

    Args:
        first: the planners to ask first, in this order.
        last: makes the answers that none of the first planners makes.
        if_faster: True if the first ones make an answer only if they are predicted to be faster, or are due to be measured again.
    """

    name = "fallback"

    def __init__(self, first: tuple[Planner, ...], last: ClientPlanner, *, if_faster: bool) -> None:
        self.first = first
        self.last = last
        self._if_faster = if_faster

    @property
    def parts(self) -> tuple[Planner, ...]:
        """The planners that may make an answer."""
        return tuple(part for each in (*self.first, self.last) for part in each.parts)

    @property
    def account(self) -> object:
        """The account that tracks what is spent and learned under a budget."""
        return self.last.account

    @property
    def kept_out(self) -> Kind | None:
        """The side that must not be used at all."""
        return self.last.kept_out

    @property
    def reader_rate(self) -> float:
        """Reading speed of the virtual reader; see ``ClientPlanner``."""
        return self.last.reader_rate

    @property
    def may_draft(self) -> bool:
        """True if a verifier may check drafts."""
        return any(each.may_draft for each in (*self.first, self.last))

    @property
    def problem(self) -> str:
        """Why none of the first planners can make an answer; see ``Planner``."""
        problems = [each.problem for each in self.first]
        return problems[0] if problems and all(problems) else ""

    async def start(self) -> None:
        """Find out what the modes need to know. If a side is excluded, the first ones aren't used, so they don't need to know anything."""
        if self.kept_out is None:
            for each in self.first:
                await each.start()
        await self.last.start()

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Prepare an answer and return it, or return the reason why it can't be made."""
        for planner in self.first:
            if self.kept_out is not None:
                outcome: Prepared[Any] | Obstacle = Obstacle.of_settings(f"the {self.kept_out} is kept out")
            else:
                outcome = await planner.prepare(asked, if_faster=if_faster or self._if_faster)
            if isinstance(outcome, Prepared):
                return outcome
            asked.passed_over = planner, outcome
        return await self.last.prepare(asked)

    def costs(self) -> CostOf:
        """Return the function that computes the cost of tokens."""
        return self.last.costs()

    def expected_tokens(self, limit: int | None) -> float:
        """Return how many tokens an answer is expected to have; see ``ClientPlanner``."""
        return self.last.expected_tokens(limit)

    def quality(self, endpoint: Endpoint) -> float | None:
        """Return the quality of an endpoint's answers; see ``ClientPlanner``."""
        return self.last.quality(endpoint)

    def profile(self) -> bytes:
        """Return what has been learned so far."""
        return self.last.profile()

    def learn_rating(self, request_id: str, good: bool) -> bool:
        """Learn from the rating of an answer; see ``ClientPlanner``."""
        return self.last.learn_rating(request_id, good)
