"""Plans the answers of a split model: whether it can make one, and how the answer will differ from what was asked."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

from msgspec.structs import replace

from streamco.client.modes.base import AskedAnswer, ClientPlanner, CostOf, ModeContext, Obstacle, PlannedWay, Prepared
from streamco.client.modes.notes import note_shortened, note_unpaced
from streamco.client.modes.obstacles import refusal, shortened_length, side_facts
from streamco.client.modes.split.driver import SplitAnswerDriver
from streamco.client.modes.split.notes import note_split
from streamco.client.modes.split.report import PromptFacts, split_endpoint_cost
from streamco.config import READING, fixed_rate
from streamco.core.answer_times import AnswerTimes
from streamco.core.report import Report
from streamco.endpoints.base import Endpoint, Kind
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.errors import EndpointError, VerifierError
from streamco.policies.cost import RequestCost
from streamco.policies.eligibility import RequestFacts, check_eligibility
from streamco.policies.ways import Way, Weights
from streamco.profiles import Profile

__all__ = ["PreparedSplit", "SplitPlanner"]

_REST = 30.0  # seconds after a failed start before the model may be started again


class _Starting(LoopState):
    """The start in progress on one event loop."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """See ``LoopState``."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


class _Starts:
    """Starts a split model that a client has in addition to other endpoints; it is closed with them.

    Args:
        endpoint: the model.

    Attributes:
        problem: why it could not start, or "" if it has started.
    """

    def __init__(self, endpoint: SplitEndpoint) -> None:
        self.problem = "it has not started"
        self._endpoint = endpoint
        self._starting = LoopBound(_Starting, owner="client")
        self._rests_until = 0.0
        self._is_closed = False

    async def start(self) -> None:
        """Start the model; concurrent calls share one start."""
        starting = self._starting.get()
        if starting.task is None or starting.task.done():
            starting.task = asyncio.create_task(self._start(), name=f"streamco start {self._endpoint.name}")
        await asyncio.shield(starting.task)

    def try_again(self) -> None:
        """Start it again in the background, if the last attempt was a while ago."""
        starting = self._starting.get()
        if not self._is_closed and monotonic() >= self._rests_until and (starting.task is None or starting.task.done()):
            starting.task = asyncio.create_task(self._start(), name=f"streamco start {self._endpoint.name}")

    async def _start(self) -> None:
        try:
            await self._endpoint.start()
            self.problem = ""
        except (EndpointError, VerifierError) as error:
            self.problem, self._rests_until = str(error), monotonic() + _REST
        except Exception as error:  # noqa: BLE001  a defect is reported, and retried later
            self.problem, self._rests_until = f"{type(error).__name__}: {error}", monotonic() + _REST

    async def aclose(self) -> None:
        """Close the model; idempotent."""
        self._is_closed = True
        await self._starting.aclose()
        await self._endpoint.aclose()


class SplitPlanner(ClientPlanner):
    """Plans the answers of one client's split model. It learns only their times, by which ``Auto`` compares the model with other ways.

    Args:
        endpoint: the model.
        context: what the client passes to its planners.
    """

    name = "split"
    declined = "not by the split model"
    role = "split model"

    def __init__(self, endpoint: SplitEndpoint, context: ModeContext) -> None:
        self._endpoint = endpoint
        known = context.known.get(self.name)
        same = known if isinstance(known, SplitPlanner) and known._endpoint is endpoint else None
        self._times: AnswerTimes = AnswerTimes() if same is None else same._times
        self._starts: _Starts | None = None  # None if the client starts its only endpoint itself
        if context.endpoints.device is not endpoint:
            self._starts = context.endpoints.share(("split", id(endpoint)), lambda: _Starts(endpoint))

    @property
    def account(self) -> object:
        """The account that tracks what is spent and learned under a budget."""
        return self._endpoint

    @property
    def kept_out(self) -> Kind | None:
        """The side that must not be used at all."""
        return None

    @property
    def reader_rate(self) -> float:
        """Reading speed of the virtual reader; see ``ClientPlanner``."""
        return READING

    @property
    def problem(self) -> str:
        """Why the model can't make answers as one of several modes, or "" if it can."""
        return "" if self._starts is None else self._starts.problem

    async def start(self) -> None:
        """Start the endpoint, if it isn't the client's only one. See ``Planner``."""
        if self._starts is not None:
            await self._starts.start()

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> PreparedSplit:
        """Prepare an answer and return it."""
        return PreparedSplit(asked, self._endpoint, await asked.describe())

    async def forecast(self, asked: AskedAnswer, weights: Weights) -> list[PlannedWay]:
        """Return the split model as a way to make an answer, with its predictions."""
        facts, endpoint, reading = await asked.describe(), self._endpoint, asked.reading
        prepare, obstacle = partial(self.prepare, asked), self.problem
        if obstacle and self._starts is not None:
            self._starts.try_again()
        eligibility = check_eligibility(facts, device=side_facts(endpoint, facts, shortens=True), server=None)
        if not obstacle and not eligibility.device:
            obstacle = eligibility.reason
        if obstacle:
            return [PlannedWay(Way(name=self.name, obstacle=obstacle), prepare, Obstacle(obstacle, "the split model can't make it"))]
        cost = split_endpoint_cost(endpoint, facts.prompt_tokens, round(reading.tokens), 0)
        way = Way(
            name=self.name,
            first_word=self._times.first_word(facts.prompt_tokens),
            late=reading.late(self._times.rate()),
            rate=self._times.rate(),
            dollars=0.0,
            joules=cost.device_joules,
            energy_usd=cost.device,
            quality=asked.settings.planner.quality(endpoint),
            measured=(self.name,),
        )
        return [PlannedWay(way, prepare)]

    def record(self, asked: AskedAnswer, report: Report) -> None:
        """Learn the times of an answer of the split model; see ``Planner``."""
        if report.mode == "split":
            self._times.record(report, is_paced=asked.pace is not None)

    def costs(self) -> CostOf:
        """Return the function that computes the cost of tokens."""

        def cost(_: Endpoint, prompt: int, completion: int, cached: int) -> RequestCost:
            return split_endpoint_cost(self._endpoint, prompt, completion, cached)

        return cost

    def profile(self) -> bytes:
        """Return what has been learned so far."""
        return Profile().to_json()


class PreparedSplit(Prepared[SplitAnswerDriver]):
    """A split model's answer that is ready to start.

    Args:
        asked: the request for the answer.
        endpoint: the model.
        facts: facts about the request.
    """

    def __init__(self, asked: AskedAnswer, endpoint: SplitEndpoint, facts: RequestFacts) -> None:
        super().__init__(asked)
        self._endpoint = endpoint
        self._facts = facts

    def start(self) -> SplitAnswerDriver:
        """Start the answer's driver."""
        asked, settings, endpoint = self.asked, self.asked.settings, self._endpoint
        self._check()
        active = settings.endpoints.active
        request, max_held = asked.request, settings.limits.unread_tokens
        if (rate := fixed_rate(asked.pace)) is not None:
            max_ahead, kept = settings.limits.device_buffers(rate)
            request, max_held = replace(request, max_buffered=kept), min(max_ahead, max_held)
        observed = settings.observers.begin(request)

        def record(driver: SplitAnswerDriver) -> None:
            active.discard(driver)
            self.note(driver)
            self.end(driver, observed)

        driver = SplitAnswerDriver(
            endpoint,
            request,
            facts=PromptFacts(prompt_tokens=self._facts.prompt_tokens, is_estimated=self._facts.is_estimated),
            pace=asked.pace,
            max_held=max_held,
            on_over=record,
            on_open=observed.open,
            write_line=asked.log.debug if asked.log.is_detailed else None,
        )
        active.add(driver)
        driver.start()
        return driver

    def note(self, driver: SplitAnswerDriver) -> None:
        """Add a note on everything that wasn't served as asked."""
        note_split(self.asked.settings.degradations, self.asked.notes, driver)

    def _check(self) -> None:
        """Check that the model can make the answer, and note in what ways it won't be served as asked.

        Raises:
            ConfigError: the model can't make the answer.
            DegradedError: the client's rule is "raise".
            EngineError: the model isn't loaded.
        """
        asked, facts, endpoint = self.asked, self._facts, self._endpoint
        eligibility = check_eligibility(facts, device=side_facts(endpoint, facts, shortens=True), server=None)
        if not eligibility.device:
            raise refusal(asked.request, facts, [endpoint], without="", reason=eligibility.reason, more="")
        if (tokens := shortened_length(facts, endpoint)) is not None:
            note_shortened(asked, facts, device=endpoint.name, tokens=tokens)
        note_unpaced(asked)
        endpoint.parts()  # raises any error that would prevent the driver, before observers are told that the answer begins
