"""What all modes share: how a client asks one to make an answer, and what two of them need.

A *mode* is what a user chooses, and nothing but settings: ``Race``, ``Speculate``, ``Split``, or ``Auto`` over several. Its *planner*
belongs to one client. It carries what was learned and spent, and prepares each answer, or says what is in the way. What it has prepared
starts the answer's driver, and records the answer when all its work has ended. The modes know nothing of each other.
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
"""Gives the cost of prompt, completion and cached prompt tokens at an endpoint (``DispatchRecord.cost``)."""


class Obstacle(NamedTuple):
    """The reason why an endpoint can't serve a request, or why a mode doesn't make an answer; both texts are "" if nothing is in the way.

    Args:
        text: for the caller.
        logged: the kind of reason alone, without words of the caller's.
        is_logged: it holds for all answers, and was logged when it was found.
        is_choice: the mode would have been slower, and the faster one was asked for.
    """

    text: str
    logged: str
    is_logged: bool = False
    is_choice: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts: the caller's, and the one that may be logged."""
        return self.text, self.logged

    @classmethod
    def of_settings(cls, text: str) -> Self:
        """Return a reason that quotes nothing of a request."""
        return cls(text, text)


class SettingsLike(Protocol):
    """What modes need of a client's settings; ``streamco.client.settings.ClientSettings`` explains each."""

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
        """Adds up what the answers cost."""
        ...

    @property
    def pace(self) -> ReaderPace:
        """The pace of the client's answers, though an answer may have one of its own."""
        ...

    @property
    def on_failure(self) -> OnFailure | None:
        """What becomes of an answer if its endpoint fails."""
        ...

    @property
    def limits(self) -> Limits:
        """Bounds on what may be buffered."""
        ...

    @property
    def degradations(self) -> Degradations:
        """What the client does other than asked."""
        ...

    @property
    def observers(self) -> AnswerObservers:
        """Follow the answers."""
        ...

    def learn(self, ended: EndedAnswer) -> None:
        """Let each mode of the client learn from an answer."""
        ...


class AskedAnswer:
    """One answer as it was asked for, for the modes that may make it.

    Args:
        request: the request, whole and checked.
        settings: what the client's answers are made with.
        pace: tokens per second at the reader; "smooth": as they come, but evenly; None: as fast as they come.
        shows_drafts: True if the reader can take text back.
        is_streamed: False: the reader gets the answer whole, and then ``pace`` is None.
        notes: the notes of the answer's report.
        log: the answer's log.

    Attributes:
        facts: facts of the request; None: not found yet.
        passed_over: the mode that was asked last without making the answer, and what was in its way; None: none was.
        plan: what was predicted of each way to make it; None: nothing was.
        shadow: gives the figures of a shadow answer to it; None: there is none.
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
        """Return a driver's report with what was known before the answer began, and its notes."""
        shadow = None if self.shadow is None else self.shadow()
        return replace(report, request_id=self.log.request_id, notes=list(notes), plan=self.plan, shadow=shadow)

    async def describe(self) -> RequestFacts:
        """Return the facts of the request, found once; in a thread, if that would block the event loop."""
        if self.facts is None:
            device, servers = self.settings.endpoints.available()
            if takes_long(self.request):
                self.facts = await asyncio.to_thread(describe_request, self.request, device, servers)
            else:
                self.facts = describe_request(self.request, device, servers)
        return self.facts


class EndedAnswer(NamedTuple):
    """What the other modes of a client learn from an answer of one.

    Args:
        prompt_tokens: the prompt's length.
        race: the machine of a raced answer; None: it was made in another way.
    """

    prompt_tokens: int
    race: RaceMachine | None = None


class Prepared(ABC, Generic[DriverT]):
    """An answer that is ready to start.

    Args:
        asked: the answer as it was asked for.
    """

    def __init__(self, asked: AskedAnswer) -> None:
        self.asked = asked

    @abstractmethod
    def start(self) -> DriverT:
        """Start the answer's driver, which records the answer when all its work has ended.

        Raises:
            ConfigError: no endpoint can serve the request.
            EndpointError: those that may be used could not start.
            DegradedError: the answer can't be had as it was asked for, by the client's rule.
        """

    async def aclose(self) -> None:
        """Release what was prepared, because the answer doesn't start after all; no effect once it has started."""

    @abstractmethod
    def note(self, driver: DriverT) -> None:
        """Add what happened other than asked to the answer's notes; nothing while the answer is under way."""

    def end(self, driver: DriverT, observed: ObservedAnswer, *, reason: str | None = None) -> None:
        """Add the costs of an answer that has ended to the client's, and tell log and observers.

        Args:
            driver: the answer's driver.
            observed: follows the answer.
            reason: the dispatch decision's reason without words of the caller's; None: the report's has none.
        """
        asked = self.asked
        asked.settings.totals.record(driver.cost())
        report = cache(lambda: asked.complete(driver.report(), asked.notes))
        if asked.plan is not None:
            asked.settings.planner.record(asked, report())
        asked.log.ended(report, reason=reason)
        observed.end(report)


class Planner(ABC):
    """One mode of one client, which may decline answers; clients from ``with_options`` share what it has learned.

    Attributes:
        name: the mode's.
        declined: what a report says of an answer that the mode was to make and hasn't made.
        role: what the log says is to blame for it.
    """

    name: ClassVar[str]
    declined: ClassVar[str] = ""
    role: ClassVar[str] = ""

    @property
    def parts(self) -> tuple[Planner, ...]:
        """The planners that may make an answer: this one, or those that it chooses from."""
        return (self,)

    @property
    def may_draft(self) -> bool:
        """True if a verifier may check drafts; then a server may compute more tokens than an answer has."""
        return False

    @property
    def problem(self) -> str:
        """Reason why no answer can be made in this mode now, whatever its request; "" if some can. Known after the start."""
        return ""

    async def start(self) -> None:  # noqa: B027  most modes need to know nothing
        """Find out what the mode needs to know before its first answer; idempotent."""

    @abstractmethod
    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Return the answer, ready to start, or what is in the way.

        Args:
            asked: the answer as it was asked for.
            if_faster: only if this mode is predicted to be the faster one.
        """

    async def forecast(self, asked: AskedAnswer, weights: Weights) -> Sequence[PlannedWay]:
        """Return the ways in which this mode can make an answer, and what is predicted of each."""
        return ()

    def learn(self, ended: EndedAnswer) -> None:  # noqa: B027  a mode may have nothing to learn
        """Learn from an answer, of this mode or of another."""

    def record(self, asked: AskedAnswer, report: Report) -> None:  # noqa: B027  most modes have learned from their drivers
        """Learn from the report of an answer that has ended, if the way that it was made in was chosen by weights."""


class PlannedWay(NamedTuple):
    """One way to make an answer, as a mode has predicted it.

    Args:
        way: what is predicted of it.
        prepare: returns the answer made in this way, ready to start, or what is in the way after all.
        obstacle: what is in the way of a mode that was asked for; None: nothing, or it was no mode of its own.
    """

    way: Way
    prepare: Callable[[], Awaitable[Prepared[Any] | Obstacle]]
    obstacle: Obstacle | None = None


class ClientPlanner(Planner):
    """Plans every answer of a client, and keeps the account of what is spent."""

    @property
    @abstractmethod
    def account(self) -> object:
        """What is spent and learned under a budget; two clients share their totals if it is the same."""

    @property
    @abstractmethod
    def kept_out(self) -> Kind | None:
        """The side that must not be used at all, as a promise; None: no side."""

    @property
    @abstractmethod
    def reader_rate(self) -> float:
        """Tokens per second of the virtual reader that quality is measured with, if no pace is set."""

    @abstractmethod
    def costs(self) -> CostOf:
        """Return the function that gives the cost of tokens at the client's endpoints."""

    @property
    def budget(self) -> float:
        """Share of all prompt tokens that the side under the budget may read, 0..1."""
        return 1.0

    def expected_tokens(self, limit: int | None) -> float:
        """Return the tokens that an answer is expected to have. ``limit``: maximum of them; None: not known."""
        return TYPICAL.expected(0.0, limit)

    def quality(self, endpoint: Endpoint) -> float | None:
        """Return the quality of an endpoint's answers, on one scale for all; None: not known."""
        return None

    @abstractmethod
    def profile(self) -> bytes:
        """Return what was learned so far, as the JSON of a ``Profile``."""

    def rate(self, request_id: str, *, good: bool) -> bool:
        """Learn from the rating of an answer; return False if there is nothing to be learned from it.

        Raises:
            ConfigError: answers are not graded, or ``good`` is neither True nor False.
            UsageError: there is no such answer to be rated.
        """
        if not isinstance(good, bool):
            raise ConfigError(f"good: expected True or False, got {good!r}")
        return self.learn_rating(request_id, good)

    def learn_rating(self, request_id: str, good: bool) -> bool:
        """Learn from a rating that has been checked; see ``rate``."""
        raise ConfigError("rate: expected a client with mode=Race(quality=...), which learns from ratings, got one without")


class ModeContext(NamedTuple):
    """What a client gives to the planners of its modes.

    Args:
        endpoints: the client's device and servers.
        fallback: makes the answers that a mode can't make, unless the mode names another one.
        budget: share of the work that the expensive side may do, 0 to 1; None: each mode's own default.
        profile: what an earlier client learned; None: nothing is known.
        seed: seed of random draws; None: from the system.
        further: names of endpoints that other modes of the client have.
        may_warn: problems that hold for all answers are logged.
        is_new: the budget was given anew, so that an account under it starts empty.
        known: the planners of the client that this one is made from, by the name of their mode.
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
    """What a user chooses for the answers of a client: settings that are checked, and nothing else."""

    @property
    def name(self) -> str:
        """The mode's name: "race", "speculate", "split" or "auto"."""
        ...

    @property
    def endpoint(self) -> Endpoint | None:
        """The one endpoint that makes all answers in this mode; None: the client's device and servers do."""
        ...

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer: this one, or those that it names."""
        ...

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers, which asks other modes for those that this one can't make.

        Raises:
            ConfigError: the endpoints or the budget don't go with the mode.
        """
        ...

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner of the answers in this mode alone.

        Raises:
            ConfigError: as of ``planner``.
        """
        ...


def values_of(mode: Struct, kind: type[Struct]) -> tuple[object, ...]:
    """Return the settings of a mode that this kind of options has, to compare them: an account or estimates depend on them alone."""
    return tuple(getattr(mode, name) for name in kind.__struct_fields__)


class Fallback(ClientPlanner):
    """Asks one mode after the other for an answer: the last one can make any.

    Args:
        first: asked first, in this order.
        last: makes the answers that none of them makes.
        if_faster: the first ones make an answer only if they are predicted to be the faster ones.
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
        """What is spent and learned under a budget."""
        return self.last.account

    @property
    def kept_out(self) -> Kind | None:
        """The side that must not be used at all."""
        return self.last.kept_out

    @property
    def reader_rate(self) -> float:
        """Tokens per second of the virtual reader."""
        return self.last.reader_rate

    @property
    def may_draft(self) -> bool:
        """True if a verifier may check drafts."""
        return any(each.may_draft for each in (*self.first, self.last))

    @property
    def problem(self) -> str:
        """See ``Planner``: why none of the first can make an answer."""
        problems = [each.problem for each in self.first]
        return problems[0] if problems and all(problems) else ""

    async def start(self) -> None:
        """Find out what the mode needs to know. If a side is kept out, the first ones are not asked, and need to know nothing."""
        if self.kept_out is None:
            for each in self.first:
                await each.start()
        await self.last.start()

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Return the answer, ready to start, or what is in the way."""
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
        """Return the function that gives the cost of tokens."""
        return self.last.costs()

    def expected_tokens(self, limit: int | None) -> float:
        """Return the tokens that an answer is expected to have; see ``ClientPlanner``."""
        return self.last.expected_tokens(limit)

    def quality(self, endpoint: Endpoint) -> float | None:
        """Return the quality of an endpoint's answers; see ``ClientPlanner``."""
        return self.last.quality(endpoint)

    def profile(self) -> bytes:
        """Return what was learned so far."""
        return self.last.profile()

    def learn_rating(self, request_id: str, good: bool) -> bool:
        """Learn from the rating of an answer; see ``ClientPlanner``."""
        return self.last.learn_rating(request_id, good)
