"""Plans speculated answers: decides whether a request can and should be speculated, and creates the parts of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random, SystemRandom
from time import monotonic

from msgspec.structs import replace

from streamco.client.answer_log import describe_error
from streamco.client.modes.base import AskedAnswer, EndedAnswer, ModeContext, Obstacle, PlannedWay, Planner, Prepared, values_of
from streamco.client.modes.current_rate import CurrentRate, RateSetting
from streamco.client.modes.notes import note_unpaced
from streamco.client.modes.speculation.driver import DrafterLike, EmitEvent, SpeculationDriver
from streamco.client.modes.speculation.eligibility import acceptance_rule, resolve_sampling, why_not_speculable
from streamco.client.modes.speculation.incremental_text import IncrementalText
from streamco.client.modes.speculation.log import log_step
from streamco.client.modes.speculation.notes import note_settings, note_speculation
from streamco.client.modes.speculation.options import SECOND, SpeculationOptions
from streamco.client.modes.speculation.output import SpeculativeOutput
from streamco.client.modes.speculation.report import SpeculationRecord, priced_endpoint
from streamco.client.modes.speculation.verifier_binding import VerifierBinding, VerifierSetting, reserve_places
from streamco.client.observers.base import ObservedAnswer
from streamco.config import SamplingOptions, fixed_rate
from streamco.core.answer_times import AnswerTimes
from streamco.core.delivery import Delivery
from streamco.core.race.attempt import AttemptState
from streamco.core.race.estimators import is_burst
from streamco.core.report import Report
from streamco.core.speculation.answer import Emit
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import SpeculationEvent
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.endpoints.base import Endpoint, EndpointStream, Request, new_completion_id
from streamco.endpoints.device_drafter import DeviceDrafter
from streamco.endpoints.lookup_drafter import LookupDrafter, LookupEndpoint
from streamco.endpoints.verifiers.base import Verifier, VerifierSession, continuation_seed
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.pool_session import AssignedVerifier
from streamco.engines.base import TokenVocabulary
from streamco.engines.prompt_ids import pending_bytes
from streamco.errors import EndpointError, EndpointStatusError, EngineError
from streamco.events import Origin
from streamco.machine_driver import clock_of
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.mode_switch import predict_rates
from streamco.policies.ways import Way, Weights

__all__ = ["PreparedSpeculation", "SpeculationPlanner", "names_of"]

_DOES_NOT_PAY = "drafting doesn't pay now"
_REASONS = "the model reasons before it answers, and looked-up drafts don't keep that apart"
_MOST_WORTH = 3600.0  # seconds that a drafted token's energy counts as, if a second is worth nothing
_RETRY_AFTER = 20  # answers made in another, faster mode before one is speculated despite the forecast, to measure again


class _EventBuffer:
    """Buffers a drafter's events until the answer's driver takes them."""

    def __init__(self) -> None:
        self._waiting: list[SpeculationEvent] = []
        self._emit: EmitEvent | None = None

    def __call__(self, event: SpeculationEvent) -> None:
        if self._emit is None:
            self._waiting.append(event)
        else:
            self._emit(event)

    def connect(self, emit: EmitEvent) -> None:
        """Pass the buffered events to ``emit`` now, and later events as they occur."""
        self._emit = emit
        for event in self._waiting:
            emit(event)


class SpeculationPlanner(Planner):
    """Plans one client's speculated answers, which share their estimates.

    Args:
        given: the options for speculation. If the context has a planner with equal options, and no new budget is given, the two share
            their estimates.
        context: what the client passes to its planners.
        emit: what the readers of token streams get.
        verifier: verifies the drafts; None uses the first server.
        known: another planner for the client's endpoints to share estimates with if the context has none, or None.

    Attributes:
        binding: the device and the verifier.
        options: as given, with the profile's measurements.
        budget: share of the drafted tokens that are verified, 0..1.
        estimates: the current estimates for the pair of models.

    Raises:
        ConfigError: the verifier's URL is invalid, or ``joules_per_second_saved`` is a function that fails.
    """

    name = "speculate"
    declined = "not speculated"
    role = "verifier"

    def __init__(
        self,
        given: SpeculationOptions,
        context: ModeContext,
        *,
        emit: Emit,
        verifier: VerifierSetting,
        known: SpeculationPlanner | None = None,
    ) -> None:
        known = next((each for each in context.known.values() if isinstance(each, SpeculationPlanner)), known)
        self._given: tuple[object, ...] = values_of(given, SpeculationOptions)
        same = known if known is not None and known._given == self._given else None
        pair = None if context.profile is None else context.profile.pair
        self.options: SpeculationOptions = given.with_profile(pair) if same is None else same.options
        if known is not None and known.options.drafter != self.options.drafter:
            known = None
        self.emit = emit
        self.budget = _budget(self.options, context)
        self._verifier = verifier
        self.binding = self._bind(context)
        self.estimates: SpeculationEstimates
        if same is not None and same.binding is self.binding and same.budget == self.budget and not context.is_new:
            self.estimates = same.estimates
        else:
            self.estimates = self.options.estimates(self.budget, None if known is None else known.estimates)
        self._worth = _worth(self.options.joules_per_second_saved, known)
        seed = SystemRandom().getrandbits(64) if context.seed is None else context.seed
        self._seed: int = (seed if known is None else known._seed) + bool(context.known)  # so that the draws differ from the first client's
        self._numbers = count(1)
        self._raced = 0  # answers since the last speculated one
        self._times: AnswerTimes = AnswerTimes() if known is None else known._times

    def _bind(self, context: ModeContext) -> VerifierBinding:
        device, servers = context.endpoints.device, context.endpoints.servers
        is_lookup = self.options.is_lookup
        if not is_lookup:
            reserve_places(device, self.budget, offload=self.options.offload, branches=self.options.max_branches)
        several = self._verifier if isinstance(self._verifier, (list, tuple)) else [self._verifier]
        names = (each if isinstance(each, str) else id(each) for each in several)  # the binding keeps the objects alive
        key = ("verifier", is_lookup, *names)
        return context.endpoints.share(
            key, lambda: VerifierBinding(self._verifier, device, servers, is_lookup=is_lookup, may_warn=context.may_warn)
        )

    def is_like(self, other: SpeculationPlanner) -> bool:
        """Return True if the other planner has the same settings, budget and verifier."""
        mine, its = ((each._given, each.emit, each.budget) for each in (self, other))
        return mine == its and self.binding is other.binding

    @property
    def may_draft(self) -> bool:
        """True if a verifier may check drafts."""
        return True

    @property
    def problem(self) -> str:
        """Why no answer can be made in this mode at present."""
        return self.binding.problem

    async def start(self) -> None:
        """Ask the verifier for its properties. See ``Planner``."""
        await self.binding.start()

    # Before an answer

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> PreparedSpeculation | Obstacle:
        """Prepare an answer and return it, or return the reason why it can't be made."""
        terms = await self._terms(asked)
        if isinstance(terms, Obstacle):
            return terms
        if if_faster and not self._pays():
            return Obstacle(_DOES_NOT_PAY, _DOES_NOT_PAY, is_choice=True)
        binding, (sampling, rule) = self.binding, terms
        events, request = _EventBuffer(), replace(asked.request, sampling=sampling)
        source, is_sampled = binding.drafter, rule.kind is RuleKind.SAMPLE
        drafter: DeviceDrafter | LookupDrafter
        asked_at = clock_of(asyncio.get_running_loop())()
        try:
            if isinstance(source, LookupEndpoint):
                drafter = await source.drafter(request, emit=events, is_sampled=is_sampled, patience=self.options.patience)
            else:
                row_ids = self.options.tuning.row_tokens if is_sampled else 0
                drafter = await source.drafter(request, emit=events, row_ids=row_ids)
        except EndpointError as error:
            if not _is_about_prompt(error):
                binding.record_problem(_problem_of(error))
            return Obstacle(str(error), describe_error(error))  # an error from a chat template may quote the prompt
        return PreparedSpeculation(asked, self, request=request, drafter=drafter, events=events, rule=rule, asked_at=asked_at)

    async def forecast(self, asked: AskedAnswer, weights: Weights) -> list[PlannedWay]:
        """Return speculation as a way to make an answer, with its predictions."""
        terms, settings = await self._terms(asked), asked.settings
        prepare = partial(self.prepare, asked)
        if isinstance(terms, Obstacle):
            return [PlannedWay(Way(name=self.name, obstacle=terms.text), prepare, terms)]
        binding, planner, times, length = self.binding, settings.planner, self._times, (await asked.describe()).prompt_tokens
        tokens = asked.reading.tokens
        rate = times.rate(max(predict_rates(each.conditions()).best for each in self._candidates()))
        server = priced_endpoint(None if binding.verifier is None else binding.verifier.remote, binding.server)
        read, drafts = (0, 0) if self.options.is_lookup else (length, round(tokens * times.computed("device")))
        device = planner.costs()(binding.drafter, read, drafts, 0)
        bill = None if server is None else planner.costs()(server, length, round(tokens * times.computed("server")), 0)
        best = binding.server or server
        ends = (planner.quality(binding.drafter), None if best is None else planner.quality(best))
        way = Way(
            name=self.name,
            first_word=times.first_word(length),
            late=asked.reading.late(rate),
            rate=rate,
            dollars=None if bill is None else bill.server,
            joules=device.device_joules,
            energy_usd=device.device,
            quality=_between(*ends, self.budget),
            measured=(self.name,),
        )
        return [PlannedWay(way, prepare)]

    def record(self, asked: AskedAnswer, report: Report) -> None:
        """Learn the times of an answer that was speculated; see ``Planner``."""
        if report.mode == "speculate":
            self._times.record(report, is_paced=asked.pace is not None)

    async def _terms(self, asked: AskedAnswer) -> tuple[SamplingOptions, Rule] | Obstacle:
        """Return an answer's complete sampling options and its acceptance rule, or the reason why it can't be speculated."""
        binding, request, facts = self.binding, asked.request, await asked.describe()
        await binding.start()
        if binding.problem:
            problem = binding.problem
            binding.probe_again()
            return Obstacle(problem, problem, is_logged=True)
        limits = (request.timeouts, None if binding.verifier is None else binding.verifier.timeouts)
        if any(each is not None and each.total is not None for each in limits):
            return Obstacle.of_settings("a limit on the whole answer's time")
        self.estimates.energy = self._token_energy(asked)
        if binding.verifier is not None:
            self.expect(self.estimates, binding.verifier)
        sampling = resolve_sampling(request.sampling)
        if sampling.max_tokens is None:  # a server's part of the answer isn't known in advance, so its limit is the whole answer's
            sampling = replace(sampling, max_tokens=request.server_limit)
        rule = acceptance_rule(sampling, self.budget, self.options)
        context_tokens = binding.drafter.capabilities.context_tokens or 0
        check = partial(why_not_speculable, request, facts, rule, binding.facts, context_tokens=context_tokens, models=binding.models)
        if problem := check():
            return Obstacle(problem, check(is_logged=True))
        if self.options.is_lookup and request.messages is not None and binding.vocabulary.info.has_reasoning:
            return Obstacle(_REASONS, _REASONS)
        self.estimates.expect_rounds(branches=self.options.max_branches if self.options.is_parallel else 0, ahead=self.max_ahead)
        return sampling, rule

    @property
    def misses_attention(self) -> bool:
        """True if a filter needs the importance of drafts but the device doesn't read attention, so that only confidence decides."""
        needs_it = self.budget < 1.0 and self.options.offload in {"combined", "importance"}
        return needs_it and not getattr(self.binding.vocabulary, "reads_attention", True)

    @property
    def max_ahead(self) -> int:
        """How many drafts per round are sent before the verdict that they assume."""
        return min(self.options.tuning.max_ahead, self.binding.facts.max_ahead) if self.estimates.is_lossless else 0

    def _pays(self) -> bool:
        """Return True if speculation is predicted to be faster than the race, or after 20 raced answers, so that it is measured again."""
        self._raced += 1
        if any(map(_is_faster, self._candidates())) or self._raced > _RETRY_AFTER:
            self._raced = 0
            return True
        return False

    # Estimates

    def _candidates(self) -> list[SpeculationEstimates]:
        """Return the estimates for each verifier that the next answer may go to."""
        verifier = self.binding.verifier
        found = (
            [self.estimates_at(each.verifier) for each in verifier.members if not each.problem]
            if isinstance(verifier, VerifierPool)
            else []
        )
        return found or [self.estimates]

    def estimates_at(self, verifier: Verifier) -> SpeculationEstimates:
        """Return the estimates for an answer at one of several verifiers."""
        estimates = self.estimates.at(verifier.name)
        self.expect(estimates, verifier)
        return estimates

    def expect(self, estimates: SpeculationEstimates, verifier: Verifier) -> None:
        """Set the cost of a verifier's rounds and the round-trip time to it, as measured by probes."""
        if self.options.tuning.prior is None and verifier.rtt is not None:
            estimates.expect_rtt(verifier.rtt)
        estimates.expect_row_costs(None if verifier.facts is None else verifier.facts.row_costs)

    def _token_energy(self, asked: AskedAnswer) -> float:
        """Return how many seconds the energy of a drafted token is worth; 0 if energy doesn't count."""
        if self._worth is None or self.options.is_lookup:
            return 0.0
        joules, rate = asked.settings.planner.costs()(self.binding.device, 0, 1, 0).device_joules, self._worth.read(now=monotonic())
        if not joules:  # the model's shape isn't known
            return 0.0
        return min(_MOST_WORTH, joules / rate) if rate else _MOST_WORTH

    # After an answer

    def record_verifier_outcome(self, driver: SpeculationDriver) -> None:
        """Mark the verifier as unusable if it failed during this answer or was unreachable for longer than the patience."""
        if (error := driver.failures.get("verifier")) is not None:
            self.binding.record_problem(str(error))
        elif (problem := self.absence(driver)) and self.binding.verifier is not None:
            self.binding.record_problem(f"{self.binding.verifier.name}: {problem}")

    def absence(self, driver: SpeculationDriver) -> str:
        """Return how long an answer waited for a missing verifier, as a clause, or "" if it waited no longer than the patience."""
        patience = min(self.options.patience, self.options.last_patience)
        if driver.unconnected < patience:
            return ""
        expected, got = ("a session", "a refusal") if driver.was_refused else ("a connection", "none")
        return f"expected {expected} within {patience:g} s, got {got}"

    def learn(self, ended: EndedAnswer) -> None:
        """Learn how fast the server generated alone in an answer that raced. See ``Planner``."""
        server, machine = self.binding.server, ended.race
        if server is None or machine is None:
            return
        for attempt in (*machine.past_attempts, *machine.attempts.values()):
            if attempt.source != server.name or attempt.state is not AttemptState.ENDED or attempt.ttft is None:
                continue
            if attempt.first_token is not None and attempt.stopped is not None and attempt.tokens > 1:
                span = attempt.stopped - attempt.first_token
                if not is_burst(attempt.tokens, attempt.ttft, span):
                    self.estimates.record_remote(attempt.tokens - 1, span)

    def next_draws(self) -> Random:
        """Return the random generator for the next answer."""
        return Random(f"{self._seed}/{next(self._numbers)}")


class PreparedSpeculation(Prepared[SpeculationDriver]):
    """A speculated answer that is ready to start. The device is already reading its prompt.

    Args:
        asked: the request for the answer.
        planner: the client's planner.
        request: the request, with complete sampling options.
        drafter: drafts on the device.
        events: the drafter's events.
        rule: the verifier's acceptance rule.
        asked_at: when the drafter began to read the prompt, in seconds on the loop's clock.
    """

    def __init__(
        self,
        asked: AskedAnswer,
        planner: SpeculationPlanner,
        *,
        request: Request,
        drafter: DeviceDrafter | LookupDrafter,
        events: _EventBuffer,
        rule: Rule,
        asked_at: float,
    ) -> None:
        super().__init__(asked)
        self._asked_at = asked_at
        self._planner = planner
        self._request = request
        self._drafter = drafter
        self._events = events
        self._rule = rule
        self._has_started = False

    def start(self) -> SpeculationDriver:
        """Start the answer's driver."""
        asked, planner = self.asked, self._planner
        settings, active = asked.settings, asked.settings.endpoints.active
        note_settings(
            settings.degradations,
            asked.notes,
            hides_drafts=self._why_without_drafts(),
            offload=planner.options.offload if planner.misses_attention else "",
        )
        note_unpaced(asked)
        observed = settings.observers.begin(asked.request)

        def record(driver: SpeculationDriver) -> None:
            active.discard(driver)
            planner.record_verifier_outcome(driver)
            settings.learn(EndedAnswer(self._prompt_tokens))
            self.note(driver)
            self.end(driver, observed)

        driver = self._make_driver(record, observed)
        self._has_started = True
        active.add(driver)
        driver.start()
        return driver

    def note(self, driver: SpeculationDriver) -> None:
        """Add a note on everything that wasn't served as asked."""
        degradations, notes = self.asked.settings.degradations, self.asked.notes
        note_speculation(degradations, notes, driver, driver.report(), absence=self._planner.absence(driver))

    async def aclose(self) -> None:
        """Release what was prepared."""
        if not self._has_started:  # otherwise the drafter belongs to the driver
            await self._drafter.aclose()

    @property
    def _prompt_tokens(self) -> int:
        return len(self._drafter.prompt_ids)

    @property
    def _may_use_device(self) -> bool:
        """True if the device may finish an answer that nothing else can continue."""
        settings = self.asked.settings
        is_able = not self._planner.options.is_lookup
        return is_able and settings.on_failure != "raise" and settings.degradations.rule != "raise"

    def _why_without_drafts(self) -> str:
        """Return why the reader gets no drafts although ``emit`` is "draft"; "" if it gets them, or didn't ask for them."""
        if self._planner.emit != "draft":
            return ""
        if self.asked.pace is not None:
            return "the answer has a pace"
        return "" if self.asked.shows_drafts else "chunks can't be taken back"

    def _make_driver(self, record: Callable[[SpeculationDriver], None], observed: ObservedAnswer) -> SpeculationDriver:
        """Return the answer's driver without starting it.

        Args:
            record: called when all work has ended.
            observed: the observers' records of the answer.
        """
        asked, planner, binding, limits = self.asked, self._planner, self._planner.binding, self.asked.settings.limits
        vocabulary, verifier = binding.vocabulary, binding.assign()
        draws, remote = planner.next_draws(), verifier.remote
        self._request = observed.open(verifier.name, remote or verifier, self._request)
        sampling, length, names = self._request.sampling, self._prompt_tokens, names_of(binding.drafter, verifier)
        drafter, events, rule, pace = self._drafter, self._events, self._rule, asked.pace
        estimates = planner.estimates
        if isinstance(verifier, AssignedVerifier):
            estimates = planner.estimates_at(verifier.member.verifier)

            def move(left: Verifier) -> None:
                tally.leave(left, driver.progress())
                names.update(names_of(binding.drafter, verifier))
                estimates.move_to(verifier.name)
                planner.expect(estimates, verifier.member.verifier)

            verifier.on_move = move

        def connect_drafter(emit: EmitEvent) -> DrafterLike:
            events.connect(emit)
            return drafter

        def open_session(emit: EmitEvent) -> VerifierSession:
            reserve = 0 if sampling.max_tokens is None else length + sampling.max_tokens
            return verifier.open(drafter.prompt_ids, emit, rule=rule, reserve=reserve)

        tally = SpeculationRecord(
            prompt_tokens=length,
            rule=rule,
            is_exact=binding.facts.is_exact(rule),
            is_lookup=planner.options.is_lookup,
            device=binding.drafter,
            verifier=verifier,
            server=binding.server,
            cost=asked.settings.planner.costs(),
            budget=planner.budget,
            share=planner.estimates.steering.share,
        )
        driver = SpeculationDriver(
            SpeculationMachine(estimates, self._machine_options(vocabulary, verifier), draws),
            SpeculativeOutput(
                IncrementalText(lambda token: vocabulary.detokenize([token]), sampling.stop, pending_bytes(vocabulary, drafter.prompt_ids)),
                Delivery(pace, fixed_rate(pace) or asked.settings.planner.reader_rate),
                names,
                number=new_completion_id(),
                model=binding.facts.model,
            ),
            drafter=connect_drafter,
            session=open_session,
            remote=None if remote is None else _opener(lambda: verifier.remote, self._request, drafter.prompt_ids),
            remote_name=verifier.name,
            prompt_tokens=length,
            vocabulary_size=vocabulary.info.vocabulary_size,
            max_unread=limits.unread_tokens,
            max_ahead=limits.unread_tokens if (rate := fixed_rate(pace)) is None else limits.tokens_ahead(rate),
            asked_at=self._asked_at,
            record=tally,
            on_over=record,
            log=asked.log.steps(partial(log_step, asked.log)),
        )
        return driver

    def _machine_options(self, vocabulary: TokenVocabulary, verifier: Verifier) -> SpeculationMachineOptions:
        planner, options, facts, timeouts = self._planner, self._planner.options, self._planner.binding.facts, verifier.timeouts
        held = vocabulary.info.context_tokens
        context_tokens = min(held, facts.context_tokens or held)  # for prompt and answer
        free_tokens, max_tokens = max(1, context_tokens - self._prompt_tokens), self._request.sampling.max_tokens
        shows_drafts = planner.emit == "draft" and not self._why_without_drafts()
        return SpeculationMachineOptions(
            end_ids=self._drafter.end_ids,
            max_tokens=free_tokens if max_tokens is None else min(max_tokens, free_tokens),
            emit="draft" if shows_drafts else "verified",
            has_remote=verifier.remote is not None,
            may_use_device=self._may_use_device,
            is_lookup=options.is_lookup,
            is_adaptive=options.is_adaptive,
            may_begin_by_stream=options.tuning.may_begin_by_stream and not options.is_lookup,
            is_parallel=options.is_parallel and (planner.max_ahead > 0 or not options.is_lookup),  # looking up again takes no time
            branch_kinds=options.tuning.branch_kinds,
            max_branches=options.max_branches,
            max_ahead=planner.max_ahead,
            max_siblings=facts.max_paths - 1 if options.tuning.has_trees else 0,
            max_draft=facts.draft_tokens,
            patience=options.patience,
            last_patience=options.patience_before_the_end(timeouts, may_use_device=self._may_use_device),
            first_verdict_timeout=options.first_verdict_timeout,
            verdict_timeout=options.verdict_timeout,
            first_silence=None if timeouts.first_token is None else 2.0 * timeouts.first_token + options.patience,
            silence=None if timeouts.next_token is None else 2.0 * timeouts.next_token + options.patience,
        )


def _is_about_prompt(error: EndpointError) -> bool:
    """Return True if only this prompt was refused, so that others may work."""
    return isinstance(error, EngineError) or (isinstance(error, EndpointStatusError) and 400 <= error.status < 500)


def _problem_of(error: EndpointError) -> str:
    """Return why prompts can't be read, for the log: without a server's error message, which may quote the prompt."""
    if isinstance(error, EndpointStatusError):
        return f"{error.endpoint}: expected a prompt's ids, got {describe_error(error)}"
    return str(error)


def _budget(options: SpeculationOptions, context: ModeContext) -> float:
    """Return the share of the drafted tokens that are verified, 0..1. A budget that the client has just been given takes precedence."""
    if options.is_lookup:
        return 1.0
    given = context.budget if context.is_new or options.budget is None else options.budget
    return 1.0 if given is None else given


def _between(device: float | None, server: float | None, share: float) -> float | None:
    """Return the quality of answers if a server verifies a share of them: interpolated linearly, for lack of measurements."""
    if share >= 1.0:
        return server
    return None if device is None or server is None else device + share * (server - device)


def _is_faster(estimates: SpeculationEstimates) -> bool:
    """Return True if speculation is predicted to be faster than the race."""
    rates = predict_rates(estimates.conditions())
    return rates.speculative > (rates.remote if estimates.is_lossless else min(estimates.switch.min_rate, rates.device))


def names_of(device: Endpoint, verifier: Verifier) -> dict[Origin, str]:
    """Return, for each origin, the name of the endpoint that makes its tokens."""
    names: dict[Origin, str] = dict.fromkeys(("draft", "accepted", "device"), device.name)
    return names | dict.fromkeys(("corrected", "bonus", "remote"), verifier.name)


def _worth(setting: RateSetting | None, known: SpeculationPlanner | None) -> CurrentRate | None:
    """Return the value of a second; clients of one device share it, so that a function isn't called more often."""
    if setting is None:
        return None
    if known is not None and known.options.joules_per_second_saved == setting and known._worth is not None:
        return known._worth
    return CurrentRate(setting, SECOND, now=monotonic())


def _opener(
    find_remote: Callable[[], Endpoint | None], asked: Request, prompt_ids: Sequence[int]
) -> Callable[[tuple[int, ...], int | None], EndpointStream]:
    def open_stream(ids: Sequence[int], max_tokens: int | None) -> EndpointStream:
        remote = find_remote()  # an answer that has moved to another verifier has another one
        if remote is None:
            raise EndpointError("expected a server that generates alone, got none")
        sampling = replace(asked.sampling, stop=(), max_tokens=max_tokens)  # the client looks for stop strings
        if sampling.fixed_seed is not None:
            sampling = replace(sampling, seed=continuation_seed(sampling.fixed_seed, len(ids)))
        prompt = [*prompt_ids, *ids]
        return remote.open(Request(prompt_ids=prompt, sampling=sampling, headers=asked.headers, server_limit=asked.server_limit))

    return open_stream
