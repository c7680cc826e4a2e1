"""Plans raced answers: which endpoint starts when, how an answer will differ from what was asked, and what is learned from it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cache, partial
from weakref import ref

from msgspec.structs import replace

from streamco.client.answer_log import REQUEST_ID_HEADER, describe_error
from streamco.client.degradation import OnDegraded
from streamco.client.endpoint_set import EndpointSet
from streamco.client.modes.base import (
    AskedAnswer,
    ClientPlanner,
    CostOf,
    EndedAnswer,
    ModeContext,
    PlannedWay,
    Prepared,
    values_of,
)
from streamco.client.modes.notes import note_unpaced
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.driver import RaceDriver
from streamco.client.modes.race.endpoint_states import EndpointStates
from streamco.client.modes.race.log import log_step
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.notes import note_dispatch, note_moves, note_passed_over, note_race, note_settings
from streamco.client.modes.race.quality_gate import facts_of
from streamco.client.modes.race.server_checks import ServerChecks
from streamco.client.modes.race.shadows import Shadow, Shadows
from streamco.client.modes.race.ways import AskedWay
from streamco.client.observers.base import ObservedAnswer
from streamco.client.request_facts import takes_long
from streamco.config import fixed_rate
from streamco.core.race.gate import GatePlan
from streamco.core.race.machine import Fatal, OnFailure, RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.endpoints.base import Endpoint, Kind, Request
from streamco.endpoints.network.http_errors import tells_trouble
from streamco.errors import ConfigError, EndpointStatusError, is_refusal
from streamco.lazy_numpy import is_numpy_loaded, load_numpy
from streamco.policies.eligibility import RequestFacts
from streamco.policies.quality import AnswerFacts
from streamco.policies.ways import Weights

__all__ = ["PreparedRace", "RacePlanner"]

_BUDGET = 0.3  # default budget: share of the prompts' tokens
_NUMPY_DELAY = 0.5  # seconds after an answer until numpy is loaded
_FATAL: Mapping[OnDegraded, Fatal] = {"warn": "refusals", "answer": "none", "raise": "all", "ignore": "none"}


class RacePlanner(ClientPlanner):
    """Plans one client's raced answers, which share an account.

    Args:
        options: the settings for dispatch. If they equal the settings of a race in the context, and no new budget is given, both share an
            account.
        context: what the client passes to its planners.
        migration: how answers move to a cheaper endpoint; None if the caller didn't say.
        checks_servers: True to identify unknown servers, and to ask servers that no answer has tested for their list of models.

    Attributes:
        options: as given.
        dispatcher: decides which endpoint starts when, and learns from each answer.

    Raises:
        ConfigError: the endpoints don't fit the policy or the budget, or a quality is given for an unknown endpoint.
    """

    name = "race"

    def __init__(self, options: DispatchOptions, context: ModeContext, *, migration: MigrationOptions | None, checks_servers: bool) -> None:
        self.options = options
        self._migration = migration
        self._endpoints = context.endpoints
        other = context.known.get("race")
        known = other if isinstance(other, RacePlanner) else None
        self.dispatcher: Dispatcher
        budget = _BUDGET if context.budget is None else context.budget
        if known is None:
            self.dispatcher = Dispatcher(options, budget=budget, profile=context.profile, seed=context.seed)
        elif context.is_new or known.budget != budget or values_of(known.options, DispatchOptions) != values_of(options, DispatchOptions):
            self.dispatcher = known.dispatcher.copy(options, budget=budget)
        else:
            self.dispatcher = known.dispatcher
        self._checks = context.endpoints.share("checks", ServerChecks) if checks_servers else None
        self._states = context.endpoints.share("states", lambda: EndpointStates(context.endpoints.device))
        self._shadows = context.endpoints.share("shadows", Shadows)
        _check_sides(self.dispatcher, context.endpoints)
        _check_quality_names(migration, (*context.endpoints.endpoints, *context.further))

    @property
    def account(self) -> object:
        """The account that tracks what is spent and learned under a budget."""
        return self.dispatcher

    @property
    def kept_out(self) -> Kind | None:
        """The side that must not be used at all."""
        return self.dispatcher.kept_out

    @property
    def reader_rate(self) -> float:
        """Reading speed of the virtual reader; see ``ClientPlanner``."""
        return self.options.reader_rate

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> PreparedRace:
        """Prepare an answer and return it. The facts about a short request are determined at dispatch, because that is quick."""
        await self._look()
        if takes_long(asked.request):
            await asked.describe()
        return self._prepared(asked, None)

    async def forecast(self, asked: AskedAnswer, weights: Weights) -> list[PlannedWay]:
        """Return the ways in which this mode can make an answer, with the predictions for each."""
        await self._look()
        facts, endpoints, options = await asked.describe(), self._endpoints, self._migration or MigrationOptions()
        found = self.dispatcher.forecast(
            asked.request,
            endpoints.device,
            endpoints.servers,
            endpoints.unavailable,
            facts=facts,
            reading=asked.reading,
            weights=weights,
            options=options,
            resting={} if asked.settings.degradations.rule == "raise" else self._states.resting(endpoints.endpoints),
            states=self._states,
        )

        async def prepared(way: AskedWay) -> PreparedRace:
            return self._prepared(asked, way)

        return [PlannedWay(way, partial(prepared, chosen)) for way, chosen in found]

    async def _look(self) -> None:
        """Use the times that the server has reported, and load numpy if a decision needs it."""
        self.dispatcher.take_told_times(self._endpoints.servers)
        if self.dispatcher.needs_numpy and not is_numpy_loaded():
            await asyncio.shield(asyncio.wrap_future(_numpy_loading()))  # shielded, because other answers may wait for it, too

    def _prepared(self, asked: AskedAnswer, way: AskedWay | None) -> PreparedRace:
        return PreparedRace(
            asked,
            self.dispatcher,
            migration=self._migration,
            checks=self._checks,
            states=self._states,
            shadows=self._shadows,
            way=way,
        )

    def costs(self) -> CostOf:
        """Return the function that computes the cost of tokens."""
        return self.dispatcher.costs(self._endpoints.device, self._endpoints.servers)

    @property
    def budget(self) -> float:
        """Share of all prompt tokens that the constrained side may read."""
        return self.dispatcher.budget

    def expected_tokens(self, limit: int | None) -> float:
        """Return how many tokens an answer is expected to have; see ``ClientPlanner``."""
        return self.dispatcher.expected_tokens(limit)

    def quality(self, endpoint: Endpoint) -> float | None:
        """Return the quality of an endpoint's answers; see ``ClientPlanner``. Ratings say nothing about another mode's endpoint."""
        found = self.dispatcher.quality(endpoint, self._migration or MigrationOptions())
        is_rated = endpoint.name in self._endpoints.endpoints or endpoint.kind == "server"
        return found if is_rated or self.dispatcher.has_declared(self._migration or MigrationOptions()) else None

    def learn(self, ended: EndedAnswer) -> None:
        """Learn from an answer that has ended. The times of a race are recorded when it ends."""
        if ended.race is None:
            self.dispatcher.record_prompt(ended.prompt_tokens)

    def profile(self) -> bytes:
        """Return what has been learned so far."""
        return self.dispatcher.profile()

    def learn_rating(self, request_id: str, good: bool) -> bool:
        """Learn from the rating of an answer; see ``ClientPlanner``."""
        if self.dispatcher.grader is None:
            return super().learn_rating(request_id, good)
        return self.dispatcher.grader.rate(request_id, good)


class PreparedRace(Prepared[RaceDriver]):
    """A raced answer that is ready to start; the dispatch decision is made when it starts.

    Args:
        asked: the request for the answer.
        dispatcher: decides which endpoint starts when, and learns from the answer.
        migration: how the answer moves to a cheaper endpoint; None if the caller didn't say.
        checks: identifies servers and finds out which ones reject their keys; None to send nothing but requests for answers.
        states: which endpoints rest, and how long the device's queue is.
        shadows: the client's shadow answers.
        way: the way that was chosen by its forecast; None lets the policy decide.
    """

    def __init__(
        self,
        asked: AskedAnswer,
        dispatcher: Dispatcher,
        *,
        migration: MigrationOptions | None,
        checks: ServerChecks | None,
        states: EndpointStates,
        shadows: Shadows,
        way: AskedWay | None = None,
    ) -> None:
        super().__init__(asked)
        self._way = way
        self._shadows = shadows
        self._dispatcher = dispatcher
        self._migration = migration or MigrationOptions()
        self._is_migration_given = migration is not None
        self._checks = checks
        self._states = states

    def start(self) -> RaceDriver:
        """Start the answer's driver."""
        asked, dispatcher = self.asked, self._dispatcher
        settings, endpoints, log = asked.settings, asked.settings.endpoints, asked.log
        active, loop = endpoints.active, asyncio.get_running_loop()
        resting = {} if settings.degradations.rule == "raise" else self._states.resting(endpoints.endpoints)
        dispatched = dispatcher.decide(
            asked.request,
            endpoints.device,
            endpoints.servers,
            endpoints.unavailable,
            asked.facts,
            resting=resting,
            states=self._states,
            way=self._way,
        )
        request, max_ahead = asked.request, None
        if (rate := fixed_rate(asked.pace)) is not None:
            max_ahead, kept = settings.limits.device_buffers(rate)
            request = replace(request, max_buffered=kept)
        unknown = self._unknown_servers(dispatched)
        try:
            self._check_degradations(dispatched)
            plan = self._plan(dispatched, max_ahead, unknown)
            self._note_settings(dispatched)
        except BaseException:
            dispatcher.abandon(dispatched)
            raise
        if log.is_detailed:
            log.dispatched(dispatched.logged_report())
        observed = settings.observers.begin(request)

        watch = self._states.watch(dispatched.prompt_tokens)

        def record(driver: RaceDriver) -> None:
            active.discard(driver)
            watch.close()
            self._record(dispatched, driver, was_alone=watch.was_alone)
            self.end(driver, observed, reason=dispatched.logged_reason())
            if not is_numpy_loaded():  # the next answer will need it, but a program that ends with this one won't
                loop.call_later(_NUMPY_DELAY, _load_numpy)

        driver = RaceDriver(
            RaceMachine(plan),
            endpoints.endpoints,
            request,
            max_unread=settings.limits.unread_tokens,
            max_ahead=max_ahead,
            record=dispatched,
            on_over=record,
            log=log.steps(partial(log_step, log)),
            on_open=partial(self._open, observed),
            watch=watch,
        )
        active.add(driver)
        settings.totals.use_budget(dispatched.steering)
        if self._checks is not None:
            self._checks.begin_answer()
        driver.start()
        if self._checks is not None:
            for name in unknown:
                question = self._checks.identify(endpoints.endpoints[name], settings.degradations)
                question.add_done_callback(partial(_tell, ref(driver), name))
        return driver

    def _open(self, observed: ObservedAnswer, name: str, endpoint: object, request: Request) -> Request:
        """Return the request that is sent to an endpoint; a shadow answer in progress there is stopped."""
        self._shadows.make_way(name)
        return observed.open(name, endpoint, request)

    def note(self, driver: RaceDriver) -> None:
        """Add a note on everything that wasn't served as asked."""
        note_race(self.asked.settings.degradations, self.asked.notes, driver)

    def _check_degradations(self, dispatched: DispatchRecord) -> None:
        """Record in what ways the answer won't be served as asked.

        Raises:
            EndpointError: a server that is needed has just refused another request with 401, 403 or 404.
            DegradedError: the client's rule is "raise".
        """
        asked, settings = self.asked, self.asked.settings
        degradations, notes = settings.degradations, asked.notes
        refusals = {each: error for each in dispatched.attempts if (error := degradations.refusal(each.source)) is not None}
        for attempt, refusal in refusals.items():
            if attempt.wait is not None:
                raise copy(refusal)
            kind = describe_error(refusal)
            sentence = f"{attempt.source} can't take over: it has refused another request ({kind})"
            degradations.record(notes, kind=kind, endpoint=attempt.source, sentence=sentence, may_raise=False)
        note_dispatch(asked, dispatched, settings.endpoints.missing(self._dispatcher.kept_out))
        note_passed_over(asked, dispatched)

    def _note_settings(self, dispatched: DispatchRecord) -> None:
        """Record the client's settings that have no effect on this answer.

        Raises:
            DegradedError: the client's rule is "raise".
        """
        asked = self.asked
        note_unpaced(asked)
        note_settings(
            asked.settings.degradations,
            asked.notes,
            unmoved=dispatched.unmoved if self._is_migration_given else "",
            barred=dispatched.barred,
        )

    def _unknown_servers(self, dispatched: DispatchRecord) -> list[str]:
        """Return the names of the servers to identify, because the answer may move to or from them."""
        endpoints, checks = self.asked.settings.endpoints.endpoints, self._checks
        if checks is None or len(dispatched.attempts) < 2:
            return []
        return [each.source for each in dispatched.attempts if checks.is_open(endpoints[each.source])]

    def _plan(self, dispatched: DispatchRecord, max_ahead: int | None, unknown: Collection[str]) -> RacePlan:
        asked, settings = self.asked, self.asked.settings
        on_failure = _failure_rule(dispatched.facts, settings.on_failure, settings.degradations.rule)
        capacity = settings.limits.unread_tokens if max_ahead is None else max_ahead
        return RacePlan(
            attempts=tuple(replace(each, is_unknown=True) if each.source in unknown else each for each in dispatched.attempts),
            pace=asked.pace,
            explore=dispatched.explore,
            reader_rate=fixed_rate(asked.pace) or self._dispatcher.reader_rate,
            on_failure=on_failure,
            max_tokens=asked.request.sampling.max_tokens,
            missing=tuple(settings.endpoints.unavailable.items()),
            migration=None if on_failure == "raise" else self._plan_moves(dispatched, capacity),
            fatal=_FATAL[settings.degradations.rule],
            hedges=self._dispatcher.hedges(dispatched.facts),
            is_timed=asked.request.timeouts is not None and asked.request.timeouts.total is not None,
            gate=self._gate(dispatched),
        )

    def _gate(self, dispatched: DispatchRecord) -> GatePlan | None:
        """Return the answer's gate, which won't use a server that has just refused another request."""
        gate, refusal = dispatched.gate, self.asked.settings.degradations.refusal
        timeouts = self.asked.request.timeouts
        if gate is not None and timeouts is not None and timeouts.total is not None:
            gate = replace(gate, until=timeouts.total / 2)
        if gate is None or gate.obstacle:
            return gate
        refusals = {each.source: refusal(each.source) for each in dispatched.attempts if each.source != gate.source and each.wait is None}
        if refusals and all(error is not None for error in refusals.values()):
            return replace(gate, obstacle=f"{next(iter(refusals))} has refused another request")
        return gate

    def _plan_moves(self, dispatched: DispatchRecord, capacity: int) -> MigrationPlan | None:
        """Return the plan for the answer's hand-overs, or None if it won't be moved.

        Args:
            dispatched: the decision for the answer.
            capacity: how many tokens a source may be ahead of the reader.
        """
        return self._dispatcher.plan_moves(
            dispatched,
            self.asked.settings.endpoints.endpoints,
            self._migration,
            pace=fixed_rate(self.asked.pace),
            capacity=capacity,
            limit=self.asked.request.sampling.max_tokens,
            model=self.asked.request.model,
        )

    # The end

    def _record(self, dispatched: DispatchRecord, driver: RaceDriver, *, was_alone: bool) -> None:
        """Learn from a race that has ended, and note the hand-overs that the caller neither allowed nor forbade.

        ``was_alone`` is True if the device had no other answer when this one was requested.
        """
        settings, notes, machine = self.asked.settings, self.asked.notes, driver.machine
        facts = None if self._dispatcher.grader is None else facts_of(dispatched, machine, self._dispatcher.grader.options.tokens)
        shadow = None if facts is None else self._shadow(dispatched, machine)
        self._dispatcher.record(dispatched, machine, was_alone=was_alone, has_shadow=shadow is not None, facts=facts, log=self.asked.log)
        if shadow is not None and facts is not None:
            self._begin(shadow, facts)
        settings.learn(EndedAnswer(dispatched.prompt_tokens, machine))
        note_race(settings.degradations, notes, driver)
        endpoints, model = settings.endpoints.endpoints, self.asked.request.model
        unknown = self._dispatcher.unknown_quality_moves(self._migration, machine.hand_overs, endpoints, model)
        note_moves(settings.degradations, notes, unknown)
        if self._checks is not None:
            self._checks.check_unseen(machine, settings.endpoints, settings.degradations)

    def _shadow(self, dispatched: DispatchRecord, machine: RaceMachine) -> Shadow | None:
        """Return the shadow answer that a server should write after the device's complete answer, or None."""
        settings, grader, asked = self.asked.settings, self._dispatcher.grader, self.asked
        if grader is None or not dispatched.may_shadow or machine.error is not None or machine.dropped or not settings.endpoints.is_open:
            return None
        if grader.options.judge is None and machine.finish_reason != "stop":
            return None  # an answer that was cut off can't be compared
        names = [each.source for each in dispatched.attempts if each.source != dispatched.device]
        if not names or any(machine.attempts[name].opened is not None for name in names if name in machine.attempts):
            return None  # the server has already read the prompt, and would read it a second time
        server = settings.endpoints.endpoints[names[0]]
        if (
            server.name in dispatched.resting
            or settings.degradations.refusal(server.name) is not None
            or not self._shadows.has_room(server)
        ):
            return None
        headers = {**asked.request.headers, REQUEST_ID_HEADER: f"{asked.log.request_id}-shadow"}
        shadow = Shadow(
            server=server,
            request=replace(asked.request, headers=headers, max_retries=0),
            text=machine.text,
            tokens=machine.meter.tokens,
            prompt_tokens=dispatched.prompt_tokens,
            judge=grader.options.judge,
            cost=dispatched.cost,
        )
        return shadow if shadow.can_be_judged else None

    def _begin(self, shadow: Shadow, facts: AnswerFacts) -> None:
        """Ask for a shadow answer. ``facts`` are what is known about the device's answer."""
        grader, settings, name = self._dispatcher.grader, self.asked.settings, shadow.server.name
        watch = self._states.watch(shadow.prompt_tokens)
        watch.opened(name)

        def ended(shadow: Shadow) -> None:
            settings.totals.record_shadow(shadow.report())
            if shadow.error is not None:
                watch.failed(name, shadow.error)
                if tells_trouble(shadow.error) or (isinstance(shadow.error, EndpointStatusError) and is_refusal(shadow.error)):
                    settings.degradations.record_failure([], shadow.error, endpoint=name, instead="no answer waited for it")
            elif shadow.has_begun:
                watch.answered(name)
            watch.close()
            if grader is not None and shadow.good is not None:
                grader.learned.observe(facts, shadow.good)

        self.asked.shadow = shadow.report
        self._shadows.begin(shadow, self.asked.log, ended)


def _tell(driver: ref[RaceDriver], name: str, _question: asyncio.Task[None]) -> None:
    """Tell an answer, if it still exists, that a server has been identified."""
    if (found := driver()) is not None:
        found.note_abilities(name)


def _load_numpy() -> None:
    if not is_numpy_loaded():
        with suppress(RuntimeError):  # the interpreter is ending
            _numpy_loading()


@cache
def _numpy_loading() -> Future[None]:
    """Load numpy in a separate thread, because all the loop's threads may be waiting for answers."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="streamco-numpy")
    loading = executor.submit(load_numpy)
    executor.shutdown(wait=False)
    return loading


def _failure_rule(facts: RequestFacts, on_failure: OnFailure | None, rule: OnDegraded) -> OnFailure:
    """Return what to do if the endpoint that writes an answer fails.

    An answer with several choices can't be handed over. Half a tool call or half a JSON text is handed over only if ``on_failure`` says so.
    """
    if facts.choices > 1 or rule == "raise":
        return "raise"
    if on_failure is not None:
        return on_failure
    return "raise" if facts.has_tools or facts.has_json_schema else "migrate"


def _check_quality_names(migration: MigrationOptions | None, endpoints: Sequence[str]) -> None:
    """Check that qualities are given only for existing endpoints: a misspelt name would count as an unknown quality.

    Raises:
        ConfigError: a name isn't the name of an endpoint.
    """
    for name in (migration and migration.quality) or ():
        if name not in endpoints:
            raise ConfigError(f"migration: quality: expected names among {', '.join(endpoints)}, got {name!r}")


def _check_sides(dispatcher: Dispatcher, endpoints: EndpointSet) -> None:
    """Check that the side that the policy or a budget of 0 requires exists, and that policy and budget don't contradict each other.

    Raises:
        ConfigError: there is no endpoint of that side, or the budget excludes it.
    """
    if dispatcher.needed is None:
        return
    side, setting = dispatcher.needed
    if side == dispatcher.spared:
        raise ConfigError(f"client: expected a budget above 0 with {setting}, got budget=0, which keeps the {side} out")
    if all(each.kind != side for each in endpoints.endpoints.values()):
        raise ConfigError(f"client: expected a {side} for {setting}, got none")
