"""From a request to a speculated answer: whether it can and should be one, and all that it is made with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random, SystemRandom

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.race.migration import CostOf
from streamco.client.speculation.driver import SpeculationDriver, Tell
from streamco.client.speculation.eligibility import acceptance_rule, resolve_sampling, why_not_speculable
from streamco.client.speculation.incremental_text import IncrementalText
from streamco.client.speculation.options import Mode, SpeculationOptions
from streamco.client.speculation.output import SpeculativeOutput
from streamco.client.speculation.report import SpeculationRecord
from streamco.client.speculation.verifier_binding import VerifierBinding
from streamco.config import Limits
from streamco.core.delivery import Delivery
from streamco.core.race.attempt import AttemptState
from streamco.core.race.estimators import is_burst
from streamco.core.race.machine import RaceMachine
from streamco.core.speculation.answer import Emit
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import Origin, SpeculationEvent
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.endpoints.base import Endpoint, EndpointStream, Request
from streamco.endpoints.device_drafter import DeviceDrafter
from streamco.endpoints.verifiers.base import Verifier, VerifierSession, continuation_seed
from streamco.engines.base import Engine
from streamco.engines.prompt_ids import pending_bytes
from streamco.errors import EngineError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.eligibility import RequestFacts
from streamco.policies.mode_switch import predict_rates

__all__ = ["PreparedSpeculation", "SpeculationPlanner", "names_of"]

_LOOK_AGAIN = 20  # answers that race in mode auto before one is speculated against the forecast


class _EventBuffer:
    """Hands events on once it is known to whom."""

    def __init__(self) -> None:
        self._waiting: list[SpeculationEvent] = []
        self._tell: Tell | None = None

    def __call__(self, event: SpeculationEvent) -> None:
        if self._tell is None:
            self._waiting.append(event)
        else:
            self._tell(event)

    def connect(self, tell: Tell) -> None:
        """From now on, to this one; what has happened is told at once."""
        self._tell = tell
        for event in self._waiting:
            tell(event)


class PreparedSpeculation(Struct):
    """A request that is going to be speculated; the device reads its prompt already.

    Args:
        request: its sampling options written out.
        drafter: on the device. relay: takes its events.
        rule: of the verifier.
        is_exact: whether that rule keeps what it promises there.
    """

    request: Request
    drafter: DeviceDrafter
    relay: Callable[[SpeculationEvent], None]
    rule: Rule
    is_exact: bool

    @property
    def prompt_tokens(self) -> int:
        """Of the request."""
        return len(self.drafter.prompt_ids)


class SpeculationPlanner:
    """What one client's speculated answers are made with.

    Args:
        pairing: the device and the verifier.
        options: how.
        mode: when.
        emit: what readers of tokens get.
        budget: share of the drafts that is judged; None: what the options say, else all.
        seed: of the dice; None: from the system.
        known: a pair with another budget, whose measurements are taken over.
    """

    def __init__(
        self,
        pairing: VerifierBinding,
        options: SpeculationOptions,
        *,
        mode: Mode,
        emit: Emit,
        budget: float | None,
        seed: int | None = None,
        known: SpeculationEstimates | None = None,
    ) -> None:
        self.pairing = pairing
        self.options = options
        self.mode = mode
        self.emit = emit
        self.budget = budget if budget is not None else 1.0 if options.budget is None else options.budget
        self.pair = options.pair(self.budget, known)
        self._seed = SystemRandom().getrandbits(64) if seed is None else seed
        self._numbers = count(1)
        self._raced = 0  # answers since one was speculated

    def copy(self, *, mode: Mode | None, emit: Emit | None, budget: float | None, options: SpeculationOptions | None) -> SpeculationPlanner:
        """Return a desk with other settings over the same pair; what is learned is shared where neither budget nor options are given."""
        told = None if options is None else options.budget
        other = SpeculationPlanner(
            self.pairing,
            options or self.options,
            mode=mode or self.mode,
            emit=emit or self.emit,
            budget=budget if budget is not None else self.budget if told is None else told,
            seed=self._seed + 1,
            known=self.pair,
        )
        if budget is None and options is None:
            other.pair = self.pair
        return other

    # Before an answer

    async def prepare(self, request: Request, facts: RequestFacts) -> PreparedSpeculation | str:
        """Return all that the answer needs, or why it races; "": nobody asked for anything else."""
        if self.mode == "race":
            return ""
        pairing = self.pairing
        await pairing.start()
        if pairing.problem:
            pairing.look_again()
            return pairing.problem
        if self.options.prior is None and pairing.rtt is not None:
            self.pair.expect_rtt(pairing.rtt)
        sampling = resolve_sampling(request.sampling)
        rule = acceptance_rule(sampling, self.budget, self.options)
        context = pairing.device.capabilities.context_tokens or 0
        if problem := why_not_speculable(request, facts, rule, pairing.facts, context=context, models=pairing.models):
            return problem
        self.pair.expect_rounds(branches=self.options.max_branches if self.options.is_parallel else 0, ahead=self._max_ahead)
        if self.mode == "auto" and not self._pays():
            return "drafting doesn't pay now"
        relay, request = _EventBuffer(), replace(request, sampling=sampling)
        try:
            drafter = await pairing.device.drafter(
                request, emit=relay, row_ids=self.options.row_tokens if rule.kind is RuleKind.SAMPLE else 0
            )
        except EngineError as error:
            return str(error)
        return PreparedSpeculation(request, drafter, relay, rule, pairing.facts.is_exact(rule))

    @property
    def _max_ahead(self) -> int:
        return min(self.options.max_ahead, self.pairing.facts.ahead) if self.pair.is_lossless else 0

    def _pays(self) -> bool:
        """Return True if drafting is faster than what a race gives, by what was measured; now and then it is tried all the same."""
        rates = predict_rates(self.pair.conditions())
        least = rates.remote if self.pair.is_lossless else min(self.pair.switch.min_rate, rates.device)
        self._raced += 1
        if rates.speculative > least or self._raced > _LOOK_AGAIN:
            self._raced = 0
            return True
        return False

    def heed(self, driver: SpeculationDriver) -> None:
        """An answer whose verifier failed, or was not to be had for longer than anybody waits, shows it for the next ones."""
        patience = min(self.options.link_patience, self.options.last_patience)
        if driver.verifier_error is not None:
            self.pairing.note_trouble(str(driver.verifier_error))
        elif driver.unconnected >= patience and self.pairing.verifier is not None:
            expected, got = ("a session", "a refusal") if driver.is_turned_away else ("a connection", "none")
            self.pairing.note_trouble(f"{self.pairing.verifier.name}: expected {expected} within {patience:g} s, got {got}")

    def learn(self, machine: RaceMachine) -> None:
        """An answer that raced shows how fast the server writes by itself."""
        server = self.pairing.server
        for attempt in (*machine.past_attempts, *machine.attempts.values()):
            if server is None or attempt.source != server.name or attempt.state is not AttemptState.ENDED or attempt.ttft is None:
                continue
            if attempt.first_token is not None and attempt.stopped is not None and attempt.tokens > 1:
                span = attempt.stopped - attempt.first_token
                if not is_burst(attempt.tokens, attempt.ttft, span):
                    self.pair.record_remote(attempt.tokens - 1, span)

    # An answer

    def begin(
        self,
        prepared: PreparedSpeculation,
        *,
        pace: float | None,
        reader_rate: float,
        shows_drafts: bool,
        may_use_device: bool,
        limits: Limits,
        cost: CostOf,
        on_over: Callable[[SpeculationDriver], None],
    ) -> SpeculationDriver:
        """Return the answer's driver, not started.

        Args:
            pace: tokens per second at the reader.
            reader_rate: of the virtual one that quality is measured with.
            shows_drafts: the reader can be told that text is taken back.
            may_use_device: the device may finish what nobody else can.
            limits: how far the answer may be ahead of its reader.
            cost: what tokens cost at an endpoint.
            on_over: called when all work has ended.
        """
        pairing, drafter, relay = self.pairing, prepared.drafter, prepared.relay
        engine, verifier = pairing.device.engine, pairing.verifier
        if engine is None or verifier is None or not isinstance(relay, _EventBuffer):
            raise AssertionError("what was prepared has a model and a verifier")
        number, sampling = next(self._numbers), prepared.request.sampling
        is_shown = shows_drafts and self.emit == "draft" and pace is None
        length = prepared.prompt_tokens
        room = max(1, self._room(engine) - length)
        options = SpeculationMachineOptions(
            end_ids=drafter.end_ids,
            max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            emit="draft" if is_shown else "verified",
            has_remote=verifier.remote is not None,
            may_use_device=may_use_device,
            is_adaptive=self.options.is_adaptive,
            is_parallel=self.options.is_parallel and self.options.max_branches > 0,
            branch_kinds=self.options.branch_kinds,
            max_branches=self.options.max_branches,
            max_ahead=self._max_ahead,
            max_draft=pairing.facts.draft_tokens,
            patience=self.options.link_patience,
            last_patience=self.options.last_patience,
            first_verdict_timeout=self.options.prompt_patience,
            verdict_timeout=self.options.verdict_patience,
        )

        def draft(tell: Tell) -> DeviceDrafter:
            relay.connect(tell)
            return drafter

        def judge(tell: Tell) -> VerifierSession:
            reserve = 0 if sampling.max_tokens is None else length + sampling.max_tokens
            return verifier.open(drafter.prompt_ids, tell, rule=prepared.rule, reserve=reserve)

        remote = verifier.remote
        return SpeculationDriver(
            SpeculationMachine(self.pair, options, Random(f"{self._seed}/{number}")),
            SpeculativeOutput(
                IncrementalText(lambda token: engine.detokenize([token]), sampling.stop, pending_bytes(engine, drafter.prompt_ids)),
                Delivery(pace, reader_rate),
                names_of(pairing.device, verifier),
                number=f"speculated-{number}",
                model=pairing.facts.model,
            ),
            drafter=draft,
            session=judge,
            remote=None if remote is None else _opener(remote, prepared),
            remote_name=verifier.name,
            prompt_tokens=length,
            max_unread=limits.unread_tokens,
            max_ahead=limits.unread_tokens if pace is None else limits.tokens_ahead(pace),
            record=SpeculationRecord(
                prompt_tokens=length,
                rule=prepared.rule,
                is_exact=prepared.is_exact,
                device=pairing.device,
                verifier=verifier,
                server=pairing.server,
                cost=cost,
                budget=self.budget,
                share=self.pair.steering.share,
            ),
            on_over=on_over,
        )

    def _room(self, engine: Engine) -> int:
        """Tokens for prompt and answer together."""
        return min(engine.info.context_tokens, self.pairing.facts.context_tokens or engine.info.context_tokens)


def names_of(device: Endpoint, verifier: Verifier) -> dict[Origin, str]:
    """Whose tokens those of an origin are."""
    makers: dict[Origin, str] = dict.fromkeys(("draft", "accepted", "device"), device.name)
    return makers | dict.fromkeys(("corrected", "bonus", "remote"), verifier.name)


def _opener(remote: Endpoint, prepared: PreparedSpeculation) -> Callable[[tuple[int, ...], int | None], EndpointStream]:
    def open_stream(ids: Sequence[int], max_tokens: int | None) -> EndpointStream:
        prompt = [*prepared.drafter.prompt_ids, *ids]
        seed = continuation_seed(prepared.request.sampling.seed, len(ids))
        sampling = replace(prepared.request.sampling, stop=(), max_tokens=max_tokens, seed=seed)  # stop strings are looked for here
        return remote.open(Request(prompt_ids=prompt, sampling=sampling, headers=prepared.request.headers))

    return open_stream
