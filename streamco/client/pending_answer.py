"""One answer from its request to its driver: prepared, dispatched or speculated, and recorded when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache

from msgspec.structs import replace

from streamco.client.answer_log import REQUEST_ID_HEADER, AnswerLog, describe_error
from streamco.client.answer_notes import note_dispatch, note_moves, note_obstacle, note_race, note_settings, note_speculation
from streamco.client.degradation import OnDegraded
from streamco.client.driver import AnswerDriver
from streamco.client.race.dispatch_record import DispatchRecord
from streamco.client.race.driver import RaceDriver
from streamco.client.race.obstacles import NO_OBSTACLE, Obstacle
from streamco.client.request_facts import describe_request, takes_long
from streamco.client.settings import ClientSettings
from streamco.client.speculation.driver import SpeculationDriver
from streamco.client.speculation.planner import DOES_NOT_PAY, PreparedSpeculation
from streamco.config import ReaderPace, fixed_rate
from streamco.core.race.machine import Fatal, RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.core.report import AnswerUsage, Opening, Report, opening_of
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.network.loop_bound import run_in
from streamco.errors import ConfigError, StreamClosed, StreamcoError, StreamConsumed, UsageError
from streamco.policies.eligibility import RequestFacts

__all__ = ["PendingAnswer"]


class PendingAnswer:
    """The answer of a stream; the first read prepares and starts it.

    A stream and the generator that its reader iterates both hold this, and neither holds the other. So a dropped stream ends at once,
    without waiting for the garbage collector, and a loop goes on over a stream that nothing else holds. The driver must not hold this,
    because then a dropped stream would never be noticed.

    Args:
        request: the request, whole and checked.
        settings: what the client's answers are made with.
        pace: tokens per second at the reader; "smooth": as they come, but evenly; None: as fast as they come.
        shows_drafts: True if the reader can take text back.
        is_streamed: False: the reader gets the answer whole, and then ``pace`` is None.
        notes: sentences that the report's notes begin with.

    Attributes:
        driver: runs the answer; None: it has not started.
        is_closed: True if the stream was closed.
        source: the endpoint of the newest delivery that was read as chunks; None: none was.
    """

    def __init__(
        self,
        request: Request,
        settings: ClientSettings,
        *,
        pace: ReaderPace,
        shows_drafts: bool = False,
        is_streamed: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        self.driver: AnswerDriver | None = None
        self.is_closed = False
        self.source: str | None = None
        self._notes = list(notes)
        self._log = AnswerLog(_named_id(request.headers))
        self._request = replace(request, headers={**request.headers, REQUEST_ID_HEADER: self._log.request_id})
        self._settings = settings
        self._pace = pace
        self._shows_drafts = shows_drafts
        self._is_streamed = is_streamed
        self._facts: RequestFacts | None = None  # None: found when the answer is dispatched, because that takes no time
        self._prepared: PreparedSpeculation | None = None  # None: the answer races
        self._obstacle = NO_OBSTACLE  # why it is not speculated; none: that was not asked for
        self._loop: asyncio.AbstractEventLoop | None = None  # of the driver
        self._lock = asyncio.Lock()  # two tasks may wait for the start of one stream
        self._is_prepared = False

    async def start(self) -> AnswerDriver:
        """Return the driver, started if it was not.

        Raises:
            StreamClosed: the stream or the client was closed before.
            ConfigError: no endpoint can serve the request, or the answer has begun in another event loop.
        """
        if self.driver is None:
            try:
                await self._prepare()
                if self.is_closed:
                    raise StreamClosed("expected an open stream, got one that was closed before it began")
                if self.driver is None:
                    self._loop = asyncio.get_running_loop()
                    self.driver = self._begin()
            except BaseException as error:
                await self._abandon()
                if isinstance(error, StreamcoError) and not isinstance(error, UsageError):
                    self._settings.observers.refuse(self._request, error)
                raise
        elif self._loop is not asyncio.get_running_loop():
            raise ConfigError("stream: expected to be read in the event loop that its answer began in, got another one")
        return self.driver

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        return self.driver is not None and self.driver.was_broken_off

    async def aclose(self) -> None:
        """End the answer and wait until its work has ended; idempotent."""
        self.is_closed = True
        if self.driver is not None and self._loop is not None:
            await run_in(self._loop, self.driver.aclose)

    def report(self) -> Report:
        """Return the answer's figures so far.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got a report asked for before the first read")
        report, degradations = self.driver.report(), self._settings.degradations
        if isinstance(self.driver, RaceDriver):
            note_race(degradations, self._notes, self.driver)
        elif isinstance(self.driver, SpeculationDriver):
            note_speculation(degradations, self._notes, self.driver, report, absence=self._settings.planner.absence(self.driver))
        return replace(report, request_id=self._log.request_id, notes=list(self._notes))

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got its opening asked for before the first read")
        if isinstance(self.driver, RaceDriver):
            note_race(self._settings.degradations, self._notes, self.driver)
            return replace(self.driver.opening(), notes=list(self._notes))
        return opening_of(self.report())

    def usage(self) -> AnswerUsage:
        """Return the answer's token counts so far.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got usage asked for before the first read")
        return self.driver.usage()

    def __del__(self) -> None:
        driver = self.driver
        if driver is not None and not driver.is_over:
            driver.leave_soon()

    # Before the start

    async def _prepare(self) -> None:
        """Start the endpoints if they are not started; find out what the request needs and whether it is speculated."""
        settings = self._settings
        if not settings.is_started:
            await settings.start()
        if settings.planner.mode != "race" and settings.dispatcher.kept_out is not None:
            self._obstacle = Obstacle.of_settings(f"the {settings.dispatcher.kept_out} is kept out")
        may_speculate = settings.planner.mode != "race" and not self._obstacle.text
        if not may_speculate and not takes_long(self._request):
            return
        async with self._lock:
            if self._is_prepared:
                return
            self._facts = await _describe(self._request, *settings.endpoints.available())
            outcome = await settings.planner.prepare(self._request, self._facts) if may_speculate else self._obstacle
            self._is_prepared = True
            if isinstance(outcome, PreparedSpeculation):
                self._prepared = outcome
            else:
                self._obstacle = outcome

    async def _abandon(self) -> None:
        """Release what was prepared, because the answer does not start."""
        if self._prepared is not None:
            await self._prepared.drafter.aclose()

    # The start

    def _begin(self) -> AnswerDriver:
        self._settings.endpoints.check_open()  # the client may have been closed while the prompt was counted
        return self._race() if self._prepared is None else self._speculate(self._prepared)

    def _speculate(self, prepared: PreparedSpeculation) -> SpeculationDriver:
        settings, prompt_tokens, log, notes = self._settings, prepared.prompt_tokens, self._log, self._notes
        self._note_settings(speculates=True)
        observed = settings.observers.begin(self._request)
        active = settings.endpoints.active

        def record(driver: SpeculationDriver) -> None:
            active.discard(driver)
            settings.planner.record_verifier_outcome(driver)
            settings.dispatcher.record_prompt(prompt_tokens)
            settings.totals.record(driver.cost())
            note_speculation(settings.degradations, notes, driver, driver.report(), absence=settings.planner.absence(driver))
            report = _final_report(driver, log.request_id, notes)
            log.ended(report)
            observed.end(report)

        driver = settings.planner.make_driver(
            prepared,
            pace=self._pace,
            reader_rate=fixed_rate(self._pace) or settings.dispatch.reader_rate,
            shows_drafts=self._shows_drafts,
            may_use_device=settings.on_failure != "raise" and settings.degradations.rule != "raise",
            limits=settings.limits,
            cost=settings.dispatcher.costs(settings.endpoints.device, settings.endpoints.servers),
            on_over=record,
            log=log.speculation_steps(),
            on_open=observed.open,
        )
        self._prepared = None  # it is the driver's from here on
        active.add(driver)
        driver.start()
        return driver

    def _race(self) -> RaceDriver:
        settings, endpoints, log, notes = self._settings, self._settings.endpoints, self._log, self._notes
        active = endpoints.active
        dispatched = settings.dispatcher.decide(self._request, endpoints.device, endpoints.servers, endpoints.unavailable, self._facts)
        request, max_ahead = self._request, None
        if (rate := fixed_rate(self._pace)) is not None:
            max_ahead, kept = settings.limits.device_buffers(rate)
            request = replace(request, max_buffered=kept)
        try:
            self._check_degradations(dispatched)
            plan = self._plan_race(dispatched, max_ahead)
            self._note_settings(dispatched=dispatched)
        except BaseException:
            settings.dispatcher.abandon(dispatched)
            raise
        if log.is_detailed:
            log.dispatched(dispatched.logged_report())

        def record(driver: RaceDriver) -> None:
            active.discard(driver)
            settings.dispatcher.record(dispatched, driver.machine)
            settings.planner.record_race(driver.machine)
            note_race(settings.degradations, notes, driver)
            note_moves(
                settings.degradations, notes, settings.dispatcher.unknown_quality_moves(settings.migration, driver.machine.hand_overs)
            )
            settings.check_access(driver.machine)
            settings.totals.record(driver.cost())
            report = _final_report(driver, log.request_id, notes)
            log.ended(report, reason=dispatched.logged_reason())
            observed.end(report)

        observed = settings.observers.begin(request)
        driver = RaceDriver(
            RaceMachine(plan),
            endpoints.endpoints,
            request,
            max_unread=settings.limits.unread_tokens,
            max_ahead=max_ahead,
            record=dispatched,
            on_over=record,
            log=log.race_steps(),
            on_open=observed.open,
        )
        active.add(driver)
        settings.totals.use_budget(dispatched.steering)
        driver.start()
        return driver

    def _check_degradations(self, dispatched: DispatchRecord) -> None:
        """Record what the answer will be without.

        Raises:
            EndpointError: a server that is needed has just refused another request by 401, 403 or 404.
            DegradedError: by the client's rule.
        """
        settings, degradations, notes = self._settings, self._settings.degradations, self._notes
        refusals = {each: error for each in dispatched.attempts if (error := degradations.refusal(each.source)) is not None}
        for attempt, refusal in refusals.items():
            if attempt.wait is not None:
                raise copy(refusal)
            kind = describe_error(refusal)
            sentence = f"{attempt.source} can't take over: it has refused another request ({kind})"
            degradations.record(notes, kind=kind, endpoint=attempt.source, sentence=sentence, may_raise=False)
        note_dispatch(degradations, notes, dispatched, settings.endpoints.missing(settings.dispatcher.kept_out))
        if (obstacle := self._obstacle).text:
            dispatched.add_note(f"not speculated: {obstacle.text}", logged=f"not speculated: {obstacle.logged}")
            if obstacle.text != DOES_NOT_PAY:  # mode "auto" asked for the faster way
                note_obstacle(degradations, notes, obstacle, is_logged=obstacle.text == settings.planner.binding.problem)

    def _note_settings(self, *, speculates: bool = False, dispatched: DispatchRecord | None = None) -> None:
        """Record the client's settings that have no effect on this answer.

        Raises:
            DegradedError: by the client's rule.
        """
        settings, hides_drafts = self._settings, ""
        if speculates and settings.planner.emit == "draft":
            hides_drafts = "" if self._shows_drafts else "chunks can't be taken back"
            hides_drafts = hides_drafts if self._pace is None else "the answer has a pace"
        note_settings(
            settings.degradations,
            self._notes,
            hides_drafts=hides_drafts,
            offload=settings.planner.options.offload if speculates and settings.planner.misses_attention else "",
            is_unpaced=settings.pace is not None and not self._is_streamed,
            unmoved=dispatched.unmoved if dispatched is not None and settings.is_migration_given else "",
            barred=() if dispatched is None else dispatched.barred,
            inexact="" if getattr(settings.endpoints.device, "is_exact", True) else getattr(settings.endpoints.device, "name", ""),
        )

    def _plan_race(self, dispatched: DispatchRecord, max_ahead: int | None) -> RacePlan:
        settings, on_failure = self._settings, self._settings.failure_rule(dispatched.facts)
        fatal: Mapping[OnDegraded, Fatal] = {"warn": "refusals", "raise": "all", "ignore": "none"}
        return RacePlan(
            attempts=dispatched.attempts,
            pace=self._pace,
            explore=dispatched.explore,
            reader_rate=fixed_rate(self._pace) or settings.dispatch.reader_rate,
            on_failure=on_failure,
            max_tokens=self._request.sampling.max_tokens,
            missing=tuple(settings.endpoints.unavailable.items()),
            migration=None if on_failure == "raise" else self._plan_moves(dispatched, max_ahead),
            fatal=fatal[settings.degradations.rule],
            is_timed=self._request.timeouts is not None and self._request.timeouts.total is not None,
        )

    def _plan_moves(self, dispatched: DispatchRecord, max_ahead: int | None) -> MigrationPlan | None:
        settings = self._settings
        return settings.dispatcher.plan_moves(
            dispatched,
            settings.endpoints.endpoints,
            settings.migration,
            pace=fixed_rate(self._pace),
            capacity=settings.limits.unread_tokens if max_ahead is None else max_ahead,
            limit=self._request.sampling.max_tokens,
        )


def _final_report(driver: AnswerDriver, request_id: str, notes: list[str]) -> Callable[[], Report]:
    """Return a function that makes the report of an answer that is over, the first time it is called."""
    return cache(lambda: replace(driver.report(), request_id=request_id, notes=list(notes)))


def _named_id(headers: Mapping[str, str]) -> str:
    """Return the request id that the caller gave in the headers; "": none."""
    return next((value for name, value in headers.items() if name.lower() == REQUEST_ID_HEADER.lower()), "")


async def _describe(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> RequestFacts:
    if takes_long(request):
        return await asyncio.to_thread(describe_request, request, device, servers)
    return describe_request(request, device, servers)
