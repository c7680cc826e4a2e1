"""Planning a speculated answer: whether a request can and should be speculated, and the parts that its answer is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random, SystemRandom

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.answer_log import describe_error
from streamco.client.race.migration import CostOf
from streamco.client.race.obstacles import NO_OBSTACLE, Obstacle
from streamco.client.speculation.driver import EmitEvent, SpeculationDriver
from streamco.client.speculation.eligibility import acceptance_rule, resolve_sampling, why_not_speculable
from streamco.client.speculation.incremental_text import IncrementalText
from streamco.client.speculation.options import Mode, SpeculationOptions
from streamco.client.speculation.output import SpeculativeOutput
from streamco.client.speculation.report import SpeculationRecord
from streamco.client.speculation.verifier_binding import VerifierBinding
from streamco.config import Limits, ReaderPace, Timeouts, fixed_rate
from streamco.core.delivery import Delivery
from streamco.core.race.attempt import AttemptState
from streamco.core.race.estimators import is_burst
from streamco.core.race.machine import RaceMachine
from streamco.core.speculation.answer import Emit
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import Origin, SpeculationCommand, SpeculationEvent
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.endpoints.base import Endpoint, EndpointStream, Request, new_completion_id
from streamco.endpoints.device_drafter import DeviceDrafter
from streamco.endpoints.verifiers.base import Verifier, VerifierSession, continuation_seed
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.pool_session import AssignedVerifier
from streamco.engines.base import Engine
from streamco.engines.prompt_ids import pending_bytes
from streamco.errors import EndpointError, EngineError
from streamco.machine_driver import StepLog
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.eligibility import RequestFacts
from streamco.policies.mode_switch import predict_rates

__all__ = ["PreparedSpeculation", "SpeculationPlanner", "names_of"]

_RETRY_AFTER = 20  # answers that race in mode "auto" before one is speculated against the forecast, to measure again


class _EventBuffer:
    """Events of a drafter, kept until the answer's driver takes them."""

    def __init__(self) -> None:
        self._waiting: list[SpeculationEvent] = []
        self._emit: EmitEvent | None = None

    def __call__(self, event: SpeculationEvent) -> None:
        if self._emit is None:
            self._waiting.append(event)
        else:
            self._emit(event)

    def connect(self, emit: EmitEvent) -> None:
        """Pass the events that have waited to ``emit`` now, and later events as they come."""
        self._emit = emit
        for event in self._waiting:
            emit(event)


DOES_NOT_PAY = "drafting doesn't pay now"


class PreparedSpeculation(Struct):
    """The inputs of a speculated answer. The device reads its prompt already.

    Args:
        request: the request, with its sampling options written out.
        drafter: drafts on the device.
        events: takes the drafter's events.
        rule: the verifier's acceptance rule.
        is_exact: the verifier keeps that rule exactly.
    """

    request: Request
    drafter: DeviceDrafter
    events: Callable[[SpeculationEvent], None]
    rule: Rule
    is_exact: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.drafter.prompt_ids)


class SpeculationPlanner:
    """The plans of one client's speculated answers, and the estimates that they share.

    Args:
        binding: the device and the verifier.
        options: how answers are speculated.
        mode: the client's mode: whether an answer races, is speculated, or the faster of both.
        emit: what the readers of token streams get.
        budget: share of the drafted tokens that is verified, 0..1; None: what the options say, else 1.
        seed: seed of the random draws; None: from the system.
        known: estimates under another budget, to begin with.
    """

    def __init__(
        self,
        binding: VerifierBinding,
        options: SpeculationOptions,
        *,
        mode: Mode,
        emit: Emit,
        budget: float | None,
        seed: int | None = None,
        known: SpeculationEstimates | None = None,
    ) -> None:
        self.binding = binding
        self.options = options
        self.mode = mode
        self.emit = emit
        self.budget = budget if budget is not None else 1.0 if options.budget is None else options.budget
        self.estimates = options.estimates(self.budget, known)
        self._seed = SystemRandom().getrandbits(64) if seed is None else seed
        self._numbers = count(1)
        self._raced = 0  # answers since one was speculated

    def copy(self, *, mode: Mode | None, emit: Emit | None, budget: float | None, options: SpeculationOptions | None) -> SpeculationPlanner:
        """Return a planner with other settings; None keeps one. With the same budget and options both share their estimates."""
        default = self.budget if options is None or options.budget is None else options.budget
        other = SpeculationPlanner(
            self.binding,
            options or self.options,
            mode=mode or self.mode,
            emit=emit or self.emit,
            budget=default if budget is None else budget,
            seed=self._seed + 1,
            known=self.estimates,
        )
        if budget is None and options is None:
            other.estimates = self.estimates
        return other

    # Before an answer

    async def prepare(self, request: Request, facts: RequestFacts) -> PreparedSpeculation | Obstacle:
        """Return the inputs of a speculated answer, or the reason why the answer races; none: the client's mode is "race"."""
        if self.mode == "race":
            return NO_OBSTACLE
        binding = self.binding
        await binding.start()
        if binding.problem:
            binding.probe_again()
            return Obstacle.of_settings(binding.problem)
        limits = (request.timeouts, None if binding.verifier is None else binding.verifier.timeouts)
        if any(each is not None and each.total is not None for each in limits):
            return Obstacle.of_settings("a limit on the whole answer's time")
        if binding.verifier is not None:
            self._expect(self.estimates, binding.verifier)
        sampling = resolve_sampling(request.sampling)
        if sampling.max_tokens is None:  # a server's part in the answer is not known before, so that its limit is that of the whole
            sampling = replace(sampling, max_tokens=request.server_limit)
        rule = acceptance_rule(sampling, self.budget, self.options)
        context_tokens = binding.device.capabilities.context_tokens or 0
        check = partial(why_not_speculable, request, facts, rule, binding.facts, context_tokens=context_tokens, models=binding.models)
        if problem := check():
            return Obstacle(problem, check(is_logged=True))
        self.estimates.expect_rounds(branches=self.options.max_branches if self.options.is_parallel else 0, ahead=self._max_ahead)
        if self.mode == "auto" and not self._pays():
            return Obstacle.of_settings(DOES_NOT_PAY)
        events, request = _EventBuffer(), replace(request, sampling=sampling)
        row_ids = self.options.tuning.row_tokens if rule.kind is RuleKind.SAMPLE else 0
        try:
            drafter = await binding.device.drafter(request, emit=events, row_ids=row_ids)
        except EngineError as error:
            return Obstacle(str(error), describe_error(error))  # a chat template's own error may quote the prompt
        return PreparedSpeculation(request, drafter, events, rule, binding.facts.is_exact(rule))

    @property
    def misses_attention(self) -> bool:
        """True if a filter needs the importance of drafts and the device's engine doesn't read it, so that confidence decides alone."""
        needs_it = self.budget < 1.0 and self.options.offload in {"combined", "importance"}
        return needs_it and not getattr(self.binding.device.engine, "reads_attention", True)

    @property
    def _max_ahead(self) -> int:
        return min(self.options.tuning.max_ahead, self.binding.facts.max_ahead) if self.estimates.is_lossless else 0

    def _pays(self) -> bool:
        """Return True if speculation is predicted to beat the race, or every 20th answer, to measure again."""
        self._raced += 1
        if any(map(_is_faster, self._candidates())) or self._raced > _RETRY_AFTER:
            self._raced = 0
            return True
        return False

    # Estimates

    def _candidates(self) -> list[SpeculationEstimates]:
        """Return the estimates at each verifier that the next answer may go to."""
        verifier = self.binding.verifier
        found = (
            [self._estimates_at(each.verifier) for each in verifier.members if not each.problem]
            if isinstance(verifier, VerifierPool)
            else []
        )
        return found or [self.estimates]

    def _estimates_at(self, verifier: Verifier) -> SpeculationEstimates:
        """Return the estimates of an answer at one of several verifiers."""
        estimates = self.estimates.at(verifier.name)
        self._expect(estimates, verifier)
        return estimates

    def _expect(self, estimates: SpeculationEstimates, verifier: Verifier) -> None:
        """Set what a verifier's rounds cost and how far it is, as probes found."""
        if self.options.tuning.prior is None and verifier.rtt is not None:
            estimates.expect_rtt(verifier.rtt)
        estimates.expect_row_costs(None if verifier.facts is None else verifier.facts.row_costs)

    # After an answer

    def record_verifier_outcome(self, driver: SpeculationDriver) -> None:
        """Mark the verifier as unusable if it failed in this answer or stayed unreachable beyond the patience."""
        if (error := driver.failures.get("verifier")) is not None:
            self.binding.record_problem(str(error))
        elif (problem := self.absence(driver)) and self.binding.verifier is not None:
            self.binding.record_problem(f"{self.binding.verifier.name}: {problem}")

    def absence(self, driver: SpeculationDriver) -> str:
        """Return how long the verifier was expected in vain when an answer ended; "": not beyond the patience."""
        patience = min(self.options.patience, self.options.last_patience)
        if driver.unconnected < patience:
            return ""
        expected, got = ("a session", "a refusal") if driver.was_refused else ("a connection", "none")
        return f"expected {expected} within {patience:g} s, got {got}"

    def record_race(self, machine: RaceMachine) -> None:
        """Record how fast the server generated alone in an answer that raced."""
        server = self.binding.server
        for attempt in (*machine.past_attempts, *machine.attempts.values()):
            if server is None or attempt.source != server.name or attempt.state is not AttemptState.ENDED or attempt.ttft is None:
                continue
            if attempt.first_token is not None and attempt.stopped is not None and attempt.tokens > 1:
                span = attempt.stopped - attempt.first_token
                if not is_burst(attempt.tokens, attempt.ttft, span):
                    self.estimates.record_remote(attempt.tokens - 1, span)

    # An answer

    def make_driver(
        self,
        prepared: PreparedSpeculation,
        *,
        pace: ReaderPace,
        reader_rate: float,
        shows_drafts: bool,
        may_use_device: bool,
        limits: Limits,
        cost: CostOf,
        on_over: Callable[[SpeculationDriver], None],
        log: StepLog[SpeculationEvent, SpeculationCommand] | None = None,
        on_open: Callable[[str, object, Request], Request] | None = None,
    ) -> SpeculationDriver:
        """Return the answer's driver, not started.

        Args:
            prepared: the inputs.
            pace: tokens per second at the reader; "smooth": as they come, but evenly; None: as fast as they come.
            reader_rate: tokens per second of the virtual reader that quality is measured with.
            shows_drafts: the reader can take text back.
            may_use_device: the device may finish an answer that nothing else can continue.
            limits: how far the answer may be ahead of its reader.
            cost: what tokens cost at an endpoint.
            on_over: called when all work has ended.
            log: takes the steps of the answer's machine; None: none is kept.
            on_open: returns the request with the headers for an endpoint of this name; None: without further ones.
        """
        binding, drafter, events = self.binding, prepared.drafter, prepared.events
        engine, verifier = binding.device.engine, binding.assign()
        if engine is None or not isinstance(events, _EventBuffer):
            raise AssertionError("what was prepared has a model")
        number, sampling, remote = next(self._numbers), prepared.request.sampling, verifier.remote
        if on_open is not None:
            prepared.request = on_open(verifier.name, remote or verifier, prepared.request)
        length, names = prepared.prompt_tokens, names_of(binding.device, verifier)
        estimates = self.estimates
        if isinstance(verifier, AssignedVerifier):
            estimates = self._estimates_at(verifier.member.verifier)

            def move(left: Verifier) -> None:
                record.leave(left, driver)
                names.update(names_of(binding.device, verifier))
                estimates.move_to(verifier.name)
                self._expect(estimates, verifier.member.verifier)

            verifier.on_move = move

        def connect_drafter(emit: EmitEvent) -> DeviceDrafter:
            events.connect(emit)
            return drafter

        def open_session(emit: EmitEvent) -> VerifierSession:
            reserve = 0 if sampling.max_tokens is None else length + sampling.max_tokens
            return verifier.open(drafter.prompt_ids, emit, rule=prepared.rule, reserve=reserve)

        options = self._machine_options(
            prepared,
            verifier.timeouts,
            free_tokens=max(1, self._context_tokens(engine) - length),
            shows_drafts=shows_drafts and self.emit == "draft" and pace is None,
            has_remote=remote is not None,
            may_use_device=may_use_device,
        )
        record = SpeculationRecord(
            prompt_tokens=length,
            rule=prepared.rule,
            is_exact=prepared.is_exact,
            device=binding.device,
            verifier=verifier,
            server=binding.server,
            cost=cost,
            budget=self.budget,
            share=self.estimates.steering.share,
        )
        driver = SpeculationDriver(
            SpeculationMachine(estimates, options, Random(f"{self._seed}/{number}")),
            SpeculativeOutput(
                IncrementalText(lambda token: engine.detokenize([token]), sampling.stop, pending_bytes(engine, drafter.prompt_ids)),
                Delivery(pace, reader_rate),
                names,
                number=new_completion_id(),
                model=binding.facts.model,
            ),
            drafter=connect_drafter,
            session=open_session,
            remote=None if remote is None else _opener(lambda: verifier.remote, prepared),
            remote_name=verifier.name,
            prompt_tokens=length,
            max_unread=limits.unread_tokens,
            max_ahead=limits.unread_tokens if (rate := fixed_rate(pace)) is None else limits.tokens_ahead(rate),
            record=record,
            on_over=on_over,
            log=log,
        )
        return driver

    def _machine_options(
        self,
        prepared: PreparedSpeculation,
        timeouts: Timeouts,
        *,
        free_tokens: int,
        shows_drafts: bool,
        has_remote: bool,
        may_use_device: bool,
    ) -> SpeculationMachineOptions:
        options, max_tokens = self.options, prepared.request.sampling.max_tokens
        return SpeculationMachineOptions(
            end_ids=prepared.drafter.end_ids,
            max_tokens=free_tokens if max_tokens is None else min(max_tokens, free_tokens),
            emit="draft" if shows_drafts else "verified",
            has_remote=has_remote,
            may_use_device=may_use_device,
            is_adaptive=options.is_adaptive,
            may_begin_by_stream=options.tuning.may_begin_by_stream,
            is_parallel=options.is_parallel,
            branch_kinds=options.tuning.branch_kinds,
            max_branches=options.max_branches,
            max_ahead=self._max_ahead,
            max_siblings=self.binding.facts.max_paths - 1 if self.options.tuning.has_trees else 0,
            max_draft=self.binding.facts.draft_tokens,
            patience=options.patience,
            last_patience=options.patience_before_the_end(timeouts, may_use_device=may_use_device),
            first_verdict_timeout=options.first_verdict_timeout,
            verdict_timeout=options.verdict_timeout,
            first_silence=None if timeouts.first_token is None else 2.0 * timeouts.first_token + options.patience,
            silence=None if timeouts.next_token is None else 2.0 * timeouts.next_token + options.patience,
        )

    def _context_tokens(self, engine: Engine) -> int:
        """Return how many tokens prompt and answer may have together."""
        return min(engine.info.context_tokens, self.binding.facts.context_tokens or engine.info.context_tokens)


def _is_faster(estimates: SpeculationEstimates) -> bool:
    """Return True if speculation is predicted to beat the race."""
    rates = predict_rates(estimates.conditions())
    return rates.speculative > (rates.remote if estimates.is_lossless else min(estimates.switch.min_rate, rates.device))


def names_of(device: Endpoint, verifier: Verifier) -> dict[Origin, str]:
    """Return the name of the endpoint that makes the tokens of each origin."""
    names: dict[Origin, str] = dict.fromkeys(("draft", "accepted", "device"), device.name)
    return names | dict.fromkeys(("corrected", "bonus", "remote"), verifier.name)


def _opener(
    find_remote: Callable[[], Endpoint | None], prepared: PreparedSpeculation
) -> Callable[[tuple[int, ...], int | None], EndpointStream]:
    def open_stream(ids: Sequence[int], max_tokens: int | None) -> EndpointStream:
        remote = find_remote()  # an answer that has moved has another one
        if remote is None:
            raise EndpointError("expected a server that generates alone, got none")
        prompt = [*prepared.drafter.prompt_ids, *ids]
        sampling = replace(prepared.request.sampling, stop=(), max_tokens=max_tokens)  # the client looks for stop strings
        if sampling.fixed_seed is not None:
            sampling = replace(sampling, seed=continuation_seed(sampling.fixed_seed, len(ids)))
        asked = prepared.request
        return remote.open(Request(prompt_ids=prompt, sampling=sampling, headers=asked.headers, server_limit=asked.server_limit))

    return open_stream
