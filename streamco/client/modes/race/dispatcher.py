"""Dispatch in the client: plans a race for each request, and learns from each race that has ended.

The decisions are made in ``streamco.policies`` and ``streamco.core.race.learner``; this file collects the facts
for them and does the accounting. It is longer than other files, because it helps to read all steps of a decision together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from random import Random, SystemRandom
from time import monotonic
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec.structs import replace

from streamco.client.answer_log import AnswerLog
from streamco.client.modes.base import CostOf
from streamco.client.modes.current_rate import CurrentRate, RateName, RateSetting, check_rate_setting
from streamco.client.modes.obstacles import find_obstacles, in_order, refusal, shortened_length, side_facts, why_without_effect
from streamco.client.modes.race.attempt_plans import names_of_two_servers, plan_attempts, resting_behind, spare_resting
from streamco.client.modes.race.dispatch_record import DispatchRecord, endpoint_cost, known_prices
from streamco.client.modes.race.endpoint_states import EndpointStates
from streamco.client.modes.race.migration import MigrationOptions, MigrationPlanner, trusted_moves, wants_moves
from streamco.client.modes.race.quality_gate import Grader, QualityGate, why_alone, why_not_graded
from streamco.client.modes.race.ways import GATED, AskedWay, RaceWays, side_terms
from streamco.client.request_facts import describe_request, facts_for_log
from streamco.config import READING, Options, check_share
from streamco.core.race.attempt import Attempt, AttemptState
from streamco.core.race.estimators import is_burst
from streamco.core.race.learner import DeviceTTFT, Learner, Plan, PolicyName, PromptLength, ServerTTFT, check_policy
from streamco.core.race.machine import RaceMachine
from streamco.core.race.migration import MigrationPlan
from streamco.core.report_parts import HandOver
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.model_identity import have_same_model
from streamco.errors import ConfigError, EndpointError
from streamco.policies.budget_control import BURST, BudgetSteering, check_burst, steer
from streamco.policies.cost import RATE_SERVER_CONSTRAINED, DeviceCosts, device_costs
from streamco.policies.dispatch import DeviceOnly, DispatchPolicy, ServerOnly, Side
from streamco.policies.dispatch_device_constrained import TAIL
from streamco.policies.eligibility import Eligibility, Gate, RequestFacts, check_eligibility, restrict
from streamco.policies.quality import AnswerFacts, LearnedScore
from streamco.policies.ways import Reading, Way, Weights
from streamco.profiles import ModelShape, Prices, Profile
from streamco.profiles.rated_answer import RatedAnswer

__all__ = ["DispatchOptions", "Dispatcher"]

_CURE = "; capabilities=Capabilities(...) of an endpoint says what it can do"
_EXCHANGE_RATE = RateName("race", "exchange_rate", "US dollars per million GFLOPs")
_WORTH = 1.0  # seconds that a busy device may be later than the server before the server is used on credit
_AT_ONCE = 0.5  # share of a server's budget for answers that it starts at once; the rest is for answers that the device is unsure of
_QUEUE_AWARE = frozenset({"auto", "disco", "server-constrained"})  # these policies consider the queue; others do what their names say
_NOTHING: Mapping[str, str] = MappingProxyType({})
_INDIFFERENT = Random(0)  # for requests that only one side can serve, whatever is drawn
_NAMED_SIDES: Mapping[str, Side] = {"device-only": "device", "device-first": "device", "server-only": "server", "server-first": "server"}


class DispatchOptions(Options, frozen=True, kw_only=True):
    """The settings of a ``Race`` that an account depends on; ``Race`` describes them."""

    policy: PolicyName | DispatchPolicy = "auto"
    constrained: Literal["device", "server"] | None = None
    tail: float = TAIL
    tail_weight: float = 0.0
    explore: float = 0.05
    gate: Gate | None = None
    hedge_tools: bool = False
    exchange_rate: RateSetting = RATE_SERVER_CONSTRAINED
    reader_rate: float = READING
    burst: int = BURST
    quality: QualityGate | Literal["gate"] | None = None

    def __post_init__(self) -> None:
        """Reject settings that the learner or a race can't use."""
        check_policy(self.policy, self.constrained)
        check_share("tail", self.tail)
        check_share("explore", self.explore)
        check_burst(self.burst)
        check_rate_setting(self.exchange_rate, _EXCHANGE_RATE)
        if not isinstance(self.tail_weight, int | float) or not self.tail_weight >= 0.0:
            raise ConfigError(f"race: tail_weight: expected 0 or more, got {self.tail_weight!r}")
        if self.gate is not None and not callable(self.gate):
            raise ConfigError(f"race: gate: expected a function of RequestFacts or None, got {type(self.gate).__name__}")
        if self.quality not in (None, "gate") and not isinstance(self.quality, QualityGate):
            raise ConfigError(f'race: quality: expected QualityGate(...), "gate" or None, got {self.quality!r}')
        if not isinstance(self.reader_rate, int | float) or not self.reader_rate > 0:
            raise ConfigError(f"race: reader_rate: expected tokens per second above 0, got {self.reader_rate!r}")


class _Survey(NamedTuple):
    """Which endpoints can serve a request.

    Args:
        device: the device; None if there is none, it could not start, or it is excluded.
        servers: the servers that have started and aren't excluded.
        able: the servers that can serve it, in order of use.
        late: by name, why servers come after others.
        facts: facts about the request.
        eligibility: which sides can serve it.
        check: returns the eligibility for other facts.
        kept_out: the side that must not be used, or None.
        without_effect: why the policy has no effect, or "" if it has one.
    """

    device: Endpoint | None
    servers: Sequence[Endpoint]
    able: Sequence[Endpoint]
    late: dict[str, str]
    facts: RequestFacts
    eligibility: Eligibility
    check: Callable[[RequestFacts], Eligibility]
    kept_out: Side | None
    without_effect: str

    @property
    def server(self) -> Endpoint | None:
        """The server to use first, or None."""
        return next(iter(self.able or self.servers), None)

    @property
    def kinds(self) -> dict[Side, Endpoint]:
        """The endpoint to use first, for each side that has one."""
        sides: tuple[tuple[Side, Endpoint | None], ...] = (("device", self.device), ("server", self.server))
        return {side: each for side, each in sides if each is not None}


class Dispatcher:
    """Decides for one client which endpoint starts when, and learns from the answers.

    Args:
        options: the policy and its options.
        budget: share of prompt tokens that the constrained side may process, 0 to 1.
        profile: what an earlier client learned, or None.
        seed: seed for the policies' random draws; None takes one from the system.
        rate: the exchange rate, if another dispatcher with the same setting already has it; None reads it now.

    Raises:
        ConfigError: a setting is out of range, or the policy is unknown.
    """

    def __init__(
        self,
        options: DispatchOptions,
        *,
        budget: float,
        profile: Profile | None = None,
        seed: int | None = None,
        rate: CurrentRate | None = None,
    ) -> None:
        self._rate = rate or CurrentRate(options.exchange_rate, _EXCHANGE_RATE, now=monotonic())
        self._options = options
        self._learner = Learner(
            budget,
            policy=options.policy,
            prior=profile,
            constrained=options.constrained,
            exchange_rate=self._rate.read(now=monotonic()),
            tail=options.tail,
            tail_weight=options.tail_weight,
            explore=options.explore,
        )
        quality = QualityGate() if options.quality == "gate" else options.quality
        self._ratings = () if profile is None else profile.ratings
        part = 1.0 if budget >= 1.0 else budget if options.policy == "device-first" else budget * (1.0 - _AT_ONCE)
        self.grader = None if quality is None else Grader(quality, part, LearnedScore(self._ratings))
        self._steering = BudgetSteering(budget, burst=options.burst)
        self._accounts: dict[Side, BudgetSteering] = {self._learner.constrained: self._steering}  # by constrained side
        self._seed = SystemRandom().randrange(1 << 63) if seed is None else seed
        self._count = 0
        self._costs: DeviceCosts | None = None
        self._told: tuple[float, ...] = ()
        self._known: tuple[Prices | None, ModelShape | None, float] | None = None
        self._migration = MigrationPlanner() if profile is None else MigrationPlanner(profile.answers, profile.quality)
        self._pair = None if profile is None else profile.pair
        self._server_rate = None if profile is None else profile.server_tokens_per_s

    def copy(self, options: DispatchOptions, *, budget: float | None) -> Dispatcher:
        """Return a dispatcher with other options that starts with what this one knows, but keeps its own account.

        Args:
            options: the policy and its options.
            budget: share of prompt tokens that the constrained side may process, 0 to 1; None keeps it.
        """
        other = Dispatcher(
            options,
            budget=self._learner.budget if budget is None else budget,
            profile=self._learner.profile(),
            seed=self._seed + 1,
            rate=self._rate if options.exchange_rate == self._options.exchange_rate else None,
        )
        other._migration = self._migration.copy()
        other._pair, other._server_rate = self._pair, self._server_rate
        other._ratings = self._known_ratings
        if other.grader is not None and self.grader is not None:
            other.grader.share(self.grader)
        elif other.grader is not None:
            other.grader.learned = LearnedScore(self._ratings)
        return other

    @property
    def reader_rate(self) -> float:
        """Reading speed, in tokens per second, of the virtual reader that is used to measure quality if no pace is set."""
        return self._options.reader_rate

    def hedges(self, facts: RequestFacts) -> bool:
        """Return True if two endpoints may be used at the same time for a request."""
        return self._options.hedge_tools or not facts.has_tools

    def profile(self) -> bytes:
        """Return what has been learned so far, as the JSON of a ``Profile``."""
        return replace(
            self._learner.profile(),
            answers=self._migration.answers,
            pair=self._pair,
            quality=dict(self._migration.quality),
            ratings=self._known_ratings,
        ).to_json()

    @property
    def _known_ratings(self) -> tuple[RatedAnswer, ...]:
        """The ratings so far; without a gate, the ratings from the profile."""
        return self._ratings if self.grader is None else tuple(self.grader.learned.examples)

    @property
    def kept_out(self) -> Side | None:
        """The side that must not be used at all, because of the policy "device-only" or "server-only" or a budget of 0; or None.

        A budget of 0 excludes the server, unless the caller names the device as the constrained side. Costs don't matter here, because a
        change of prices must not send prompts to a server.
        """
        restriction = self._restriction
        return None if restriction is None else restriction[0]

    @property
    def _restriction(self) -> tuple[Side, str] | None:
        """The excluded side and the setting that excludes it, or None."""
        policy = self._learner.policy
        if policy in {"device-only", "server-only"}:
            return "server" if policy == "device-only" else "device", f'policy="{policy}"'
        return None if self.spared is None else (self.spared, "budget=0")

    @property
    def needed(self) -> tuple[Side, str] | None:
        """The side that must have an endpoint, and the setting that requires it: the policy or a budget of 0. None if there is none."""
        policy = self._learner.policy
        if policy in _NAMED_SIDES:
            return _NAMED_SIDES[policy], f'policy="{policy}"'
        kept_out = self.spared
        return None if kept_out is None else ("server" if kept_out == "device" else "device", "budget=0")

    @property
    def spared(self) -> Side | None:
        """The side that a budget of 0 excludes, or None if the budget is above 0."""
        return (self._learner.declared_constraint or "server") if self._learner.budget == 0 else None

    # Deciding

    def decide(
        self,
        request: Request,
        device: Endpoint | None,
        servers: Sequence[Endpoint],
        unavailable: Mapping[str, EndpointError],
        facts: RequestFacts | None = None,
        *,
        resting: Mapping[str, str] = _NOTHING,
        states: EndpointStates | None = None,
        way: AskedWay | None = None,
    ) -> DispatchRecord:
        """Decide which endpoint starts when.

        Args:
            request: the request.
            device: the device, or None.
            servers: the servers in order of use: each is the fallback for the ones before it.
            unavailable: endpoints that could not start, with their errors.
            facts: the result of ``describe_request`` if it is already known; None calls it here.
            resting: by name, why endpoints are used only if others fail (because they have just failed).
            states: knows what the device has to do before this request; None if it has nothing to do.
            way: the way that was chosen by its forecast; None lets the policy decide.

        Raises:
            ConfigError: no endpoint can serve this request; the message says why each can't.
            EndpointError: one side is excluded, and the other could not start.
        """
        seen = self._survey(request, device, servers, unavailable, facts, resting=resting)
        device, server, eligibility, facts, kept_out = seen.device, seen.server, seen.eligibility, seen.facts, seen.kept_out
        plan, length = self._plan, facts.prompt_tokens
        self._count += 1
        is_one_sided = isinstance(plan.policy, DeviceOnly | ServerOnly)  # the policy names one side: no budget limits it
        has_choice = eligibility.device and eligibility.server and not is_one_sided
        rng = Random(f"{self._seed}/{self._count}") if has_choice else _INDIFFERENT  # seeding costs more than the decision
        decision = planned = restrict(plan.decide(length, rng) if way is None else way.decision, eligibility)
        others = 0 if states is None else states.queued
        may_borrow = eligibility.first != "device" and not any(each.name in resting for each in (device, server) if each is not None)
        is_queue_aware = way is None and has_choice and plan.constrained == "server" and self._learner.policy in _QUEUE_AWARE
        is_late = states is not None and others > 0 and is_queue_aware and may_borrow and states.delay(length) > _WORTH
        if is_late:
            decision = replace(decision, device_wait=None, server_wait=0.0, reason="the device has others before it", explore=False)
        both = eligibility.device and eligibility.server
        may_grade = both and (has_choice or (isinstance(plan.policy, DeviceOnly) and not plan.policy.is_strict))
        is_asked = kept_out is None and eligibility.device and decision.device_wait is not None
        not_graded = self._why_not_graded(facts, eligibility) if is_asked and (way is None or way.name == GATED) else ""
        is_graded = self.grader is not None and may_grade and not not_graded and (way is None or way.name == GATED)
        may_shadow = both and is_asked and decision.server_wait is None and self._may_shadow(facts)
        is_spent = may_shadow and self._draws_shadow()
        is_counted = plan.constrained == "server" and (is_graded or may_shadow)
        is_exempt = (is_one_sided and not is_counted) or (kept_out is None and not both)
        is_wanted = not is_exempt and decision.wait(plan.constrained) is not None
        would_ask = is_graded and not is_exempt and not is_wanted and plan.constrained == "server"
        part = None if self.grader is None else self.grader.account.reserve(length, wanted=would_ask)
        may_ask = part is not None and part.is_allowed
        takes_share = is_spent and plan.constrained == "server"
        reservation = self._steering.reserve(length, wanted=is_wanted or may_ask or takes_share, on_credit=is_late)
        if is_wanted and not reservation.is_allowed:
            decision = steer(planned, plan.constrained, is_allowed=False)
        if reservation.is_borrowed:
            decision = replace(decision, reason=f"{decision.reason}, and the budget is spent: borrowed")
        rested = spare_resting(decision, eligibility, device, seen.able, resting)
        is_exempt, decision = is_exempt or rested is not decision, rested
        loggable = facts_for_log(facts) if decision.reason == eligibility.reason else facts
        logged_reason = seen.check(loggable).reason if loggable is not facts else ""
        attempts = plan_attempts(decision, eligibility, device, seen.able)
        return DispatchRecord(
            decision,
            attempts,
            device=device.name if device is not None else None,
            plan=plan,
            facts=facts,
            steering=self._steering,
            reservation=reservation,
            is_exempt=is_exempt,
            is_named=is_one_sided,
            costs=self._costs,
            logged_reason=logged_reason,
            obstacles=find_obstacles(facts, device, seen.servers, gate=self._options.gate, shortens=not seen.able),
            late=_late(eligibility, seen.late, device, seen.able),
            resting=resting_behind(attempts, resting),
            waits_for=others if is_late and not reservation.is_allowed else 0,
            without_effect=seen.without_effect,
            shortened_to=shortened_length(facts, device) if eligibility.device else None,
            sides=names_of_two_servers(device, seen.able or seen.servers),
            gate=self.grader.plan(
                facts,
                device,
                plan,
                why_alone(plan, reservation, server, resting, may_ask=may_ask or not would_ask),
                min_score=None if way is None else way.min_score,
            )
            if self.grader and is_graded
            else None,
            gate_reservation=part,
            not_graded=not_graded,
            may_shadow=is_spent and (reservation.is_allowed or not takes_share),
            note=_note(unavailable) + "".join(f"; not for {each.name}" for each in seen.servers if seen.able and each not in seen.able),
        )

    def forecast(
        self,
        request: Request,
        device: Endpoint | None,
        servers: Sequence[Endpoint],
        unavailable: Mapping[str, EndpointError],
        *,
        facts: RequestFacts,
        reading: Reading,
        weights: Weights,
        options: MigrationOptions,
        resting: Mapping[str, str],
        states: EndpointStates,
    ) -> list[tuple[Way, AskedWay]]:
        """Return the ways in which a race can make an answer, with the predictions for each; at least one is available.

        The other arguments and the errors are the same as for ``decide``. A policy that names a side has only one way.

        Args:
            reading: how the answer is read.
            weights: the caller's weights.
            options: may declare the quality of endpoints.
        """
        seen = self._survey(request, device, servers, unavailable, facts, resting=resting)
        plan, length, policy = self._plan, facts.prompt_tokens, self._plan.policy
        only: Side | None = "device" if isinstance(policy, DeviceOnly) else "server" if isinstance(policy, ServerOnly) else None
        cost = partial(endpoint_cost, self._costs)
        ways = RaceWays(
            kinds=seen.kinds,
            eligibility=seen.eligibility,
            prompt_tokens=length,
            times=self._learner.times,
            queue=states.wait(),
            terms={
                side: side_terms(
                    each,
                    cost,
                    reading,
                    prompt_tokens=length,
                    rate=self._rate_of(side, each),
                    quality=self.quality(each, options),
                )
                for side, each in seen.kinds.items()
            },
            drawn=restrict(plan.decide(length, Random(f"{self._seed}/way/{self._count}")), seen.eligibility),
            only=only,
            constrained=plan.constrained,
            steering=self._steering,
            resting=resting,
            grader=self.grader,
            gate_share=0.0 if self.grader is None else self.grader.account.budget if plan.constrained == "server" else 1.0,
            not_graded=self._why_not_graded(facts, seen.eligibility),
            names=names_of_two_servers(device, seen.able or seen.servers),
        )
        return ways.found(weights)

    def _may_shadow(self, facts: RequestFacts) -> bool:
        """Return True if a server may write a shadow answer to a request; False if the request asks for anything but text."""
        is_text = not (facts.has_tools or facts.has_images or facts.has_json_schema or facts.other_parts or facts.choices > 1)
        return is_text and self.grader is not None and self.grader.options.shadow > 0.0

    def _draws_shadow(self) -> bool:
        """Draw whether a server should write a shadow answer."""
        share = 0.0 if self.grader is None else self.grader.options.shadow
        return Random(f"{self._seed}/shadow/{self._count}").random() < share

    def _rate_of(self, side: Side, endpoint: Endpoint) -> float | None:
        """Return how many tokens per second a side writes, or None if that isn't known."""
        known = self._migration.rate(endpoint)
        if known is not None:
            return known
        speed = self._learner.times[1]
        return self._server_rate if side == "server" else None if speed is None else speed.decode_tokens_per_s

    def quality(self, endpoint: Endpoint, options: MigrationOptions) -> float | None:
        """Return the quality of an endpoint's answers, or None if it isn't known.

        If qualities were declared or measured, the result is one of them. Otherwise it comes from ratings, in which a server's answers
        count as 1, because a rating says whether the device's answer is as good as a server's.

        Args:
            endpoint: the endpoint.
            options: may declare the quality of endpoints.
        """
        if declared := self._migration.qualities(options):
            return declared.get(endpoint.name)
        return 1.0 if endpoint.kind == "server" else None if self.grader is None else self.grader.quality

    def has_declared(self, options: MigrationOptions) -> bool:
        """Return True if qualities were declared or measured, so that ratings don't count."""
        return bool(self._migration.qualities(options))

    @property
    def budget(self) -> float:
        """Share of all prompt tokens that the constrained side may process, from 0 to 1."""
        return self._learner.budget

    def expected_tokens(self, limit: int | None) -> float:
        """Return how many tokens an answer is expected to have. ``limit`` is the maximum, or None if it isn't known."""
        return self._migration.expected_tokens(limit)

    @property
    def _plan(self) -> Plan:
        """The plan for the next answer; if the quality gate is on, the plan keeps a part of the budget for it."""
        self._learner.keep_back(0.0 if self.grader is None or self.grader.why_off else 1.0 - _AT_ONCE)
        return self._learner.plan

    def _survey(
        self,
        request: Request,
        device: Endpoint | None,
        servers: Sequence[Endpoint],
        unavailable: Mapping[str, EndpointError],
        facts: RequestFacts | None,
        *,
        resting: Mapping[str, str],
    ) -> _Survey:
        """Return which endpoints can serve a request; see ``decide``."""
        self._update_costs(device, servers)
        kept_out = self.kept_out
        without_effect = "" if kept_out is not None else why_without_effect(self._learner.policy, device, servers)
        device, servers, kept_out_by = self._keep_out(device, servers, unavailable)
        device = None if device is not None and device.name in unavailable else device
        servers = [server for server in servers if server.name not in unavailable]
        facts = facts or describe_request(request, device, servers)
        able, late = in_order(facts, servers)
        able = sorted(able, key=lambda each: each.name in resting) if resting else able
        server = next(iter(able or servers), None)
        check = partial(
            check_eligibility,
            device=None if device is None else side_facts(device, facts, shortens=not able),
            server=None if server is None else side_facts(server, facts),
            gate=self._options.gate,
            hedge_tools=self._options.hedge_tools,
            kept_out_by=kept_out_by,
        )
        eligibility = check(facts)
        if not eligibility.device and not eligibility.server:
            asked = [*([device] if device is not None and _passes(self._options.gate, facts) else []), *servers]
            more = f"{_note(unavailable)}{_CURE if servers else ''}" if kept_out is None else ""
            raise refusal(request, facts, asked, without=kept_out or "", reason=eligibility.reason, more=more)
        return _Survey(device, servers, able, late, facts, eligibility, check, kept_out, without_effect)

    def _keep_out(
        self, device: Endpoint | None, servers: Sequence[Endpoint], unavailable: Mapping[str, EndpointError]
    ) -> tuple[Endpoint | None, Sequence[Endpoint], str]:
        """Return the endpoints without the excluded side, and the setting that excludes it, or "".

        Raises:
            EndpointError: the other side could not start.
        """
        if self._restriction is None:
            return device, servers, ""
        kept_out, setting = self._restriction
        is_there = bool(servers) if kept_out == "server" else device is not None
        device, servers = (device, ()) if kept_out == "server" else (None, servers)
        _check_startable([*servers, *([device] if device is not None else [])], unavailable)
        return device, servers, setting if is_there else ""

    def abandon(self, dispatched: DispatchRecord) -> None:
        """Settle the account of a request that isn't started after all, so that it doesn't reserve any of the budget."""
        if not dispatched.reservation.is_settled:
            dispatched.steering.settle(dispatched.reservation, started=False, exempt=True)
            if self.grader is not None and dispatched.gate_reservation is not None:
                self.grader.account.settle(dispatched.gate_reservation, started=False, exempt=True)

    def costs(self, device: Endpoint | None, servers: Sequence[Endpoint]) -> CostOf:
        """Return the function that computes the cost of tokens at these endpoints, for answers that aren't dispatched."""
        self._update_costs(device, servers)
        return partial(endpoint_cost, self._costs)

    @property
    def needs_numpy(self) -> bool:
        """True if decisions are computed from earlier answers or ratings, which requires numpy."""
        return self._learner.has_samples or (self.grader is not None and self.grader.learned.is_ready)

    def take_told_times(self, servers: Sequence[Endpoint]) -> None:
        """Use the first-token times that the first server has reported, if there are any."""
        told = tuple(getattr(servers[0], "first_token_times", ())) if servers else ()
        if told != self._told:
            self._told = told
            self._learner.tell_server_ttft(told)

    def record_prompt(self, tokens: int) -> None:
        """Record the prompt length (in tokens) of an answer that wasn't dispatched."""
        self._learner.observe(PromptLength(tokens))

    def _update_costs(self, device: Endpoint | None, servers: Sequence[Endpoint]) -> None:
        known = (known_prices(servers[0]) if servers else None, _shape(device), self._rate.read(now=monotonic()))
        if known == self._known:
            return
        self._known = known
        self._learner.set_costs(*known)
        if known[1] is not None:
            self._costs = device_costs(known[1], exchange_rate=known[2])
        constrained = self._learner.constrained
        if constrained not in self._accounts:
            self._accounts[constrained] = BudgetSteering(self._learner.budget, burst=self._options.burst)
        self._steering = self._accounts[constrained]

    def plan_moves(
        self,
        dispatched: DispatchRecord,
        endpoints: Mapping[str, Endpoint],
        options: MigrationOptions,
        *,
        pace: float | None,
        capacity: int,
        limit: int | None,
        model: str | None = None,
    ) -> MigrationPlan | None:
        """Return the plan for moving an answer by planned hand-overs, or None if it won't be moved.

        Args:
            dispatched: the decision for the answer.
            endpoints: all endpoints, by name.
            options: whether and how answers move.
            pace: tokens per second at the reader, or None if unpaced.
            capacity: how many tokens a source may be ahead of the reader.
            limit: the answer's maximum number of tokens, or None if it isn't known.
            model: the remote model that the request names; None uses each server's own.
        """
        if dispatched.is_named:
            return None
        writers = [endpoints[each.source] for each in dispatched.attempts if dispatched.may_write(endpoints[each.source].kind)]
        dispatched.unmoved = self._migration.obstacle(options, writers, dispatched.cost, pace=pace)
        if dispatched.unmoved:
            dispatched.add_note(f"no planned hand-over: {dispatched.unmoved}")
        trusted = trusted_moves(writers, model) if wants_moves(options, pace) else set()
        dispatched.barred = self._migration.barred(options, writers, dispatched.cost, pace=pace, trusted=trusted)
        for move in dispatched.barred:
            dispatched.add_note(f"no planned hand-over from {move.source} to {move.target}: {move.reason}")
        plan = self._migration.plan(
            options,
            writers,
            dispatched.cost,
            prompt_tokens=dispatched.prompt_tokens,
            pace=pace,
            reader_rate=pace or self._options.reader_rate,
            capacity=capacity,
            limit=limit,
            constrained=dispatched.plan.constrained,
            trusted=trusted,
        )
        if plan is not None:
            for name in self._migration.unmetered(writers, dispatched.cost):
                dispatched.add_note(f"for hand-overs tokens at {name} count as free, because its energy is not known")
        return plan

    def unknown_quality_moves(
        self, options: MigrationOptions, hand_overs: Iterable[HandOver], endpoints: Mapping[str, Endpoint], model: str | None
    ) -> list[HandOver]:
        """Return the planned hand-overs to another model between endpoints of unknown quality, if the caller set no rule about quality.

        The arguments are the same as for ``plan_moves``.
        """
        return [
            each
            for each in hand_overs
            if each.is_planned
            and self._migration.is_unknown(options, each.source, each.target)
            and not have_same_model(endpoints[each.source], endpoints[each.target], asked=model)
        ]

    def _why_not_graded(self, facts: RequestFacts, eligibility: Eligibility) -> str:
        """Return why a device's answer to a request isn't graded, as a clause; "" if it is, or if nobody asked for that."""
        if self.grader is None:
            return ""
        if not eligibility.server:
            return "no server could answer in its place"
        return why_not_graded(facts, hedges=self.hedges(facts)) or self.grader.why_off

    # Learning

    def record(
        self,
        dispatched: DispatchRecord,
        machine: RaceMachine,
        *,
        was_alone: bool = True,
        has_shadow: bool = False,
        facts: AnswerFacts | None = None,
        log: AnswerLog | None = None,
    ) -> None:
        """Record a race that has ended: settle its account and learn from its times.

        Args:
            dispatched: the decision for the answer.
            machine: its race.
            was_alone: True if the device had no other answer when this one was requested, so that its time shows the device's speed.
            facts: what is known about the answer, if it may be rated; None if nothing is known, or the device didn't write all of it.
            has_shadow: True if a server will write a shadow answer.
            log: the answer's log, which has the key and the id by which the answer can be rated; None if it can't be rated.
        """
        attempts = [attempt for attempt in (*machine.attempts.values(), *machine.past_attempts) if attempt.opened is not None]
        sides = {attempt.source: "device" if attempt.source == dispatched.device else "server" for attempt in attempts}
        constrained = [attempt for attempt in attempts if sides[attempt.source] == dispatched.plan.constrained]
        was_planned = any(
            (attempt.plan.wait is not None or (machine.gate is not None and machine.gate.asked == attempt.source))
            and attempt.takeover_position is None
            and attempt.read_ahead is None
            for attempt in constrained
        )
        is_outage = bool(constrained) and not was_planned
        if not dispatched.reservation.is_settled:
            started = bool(constrained) or (has_shadow and dispatched.plan.constrained == "server")
            dispatched.steering.settle(dispatched.reservation, started=started, exempt=dispatched.is_exempt or is_outage)
        if self.grader is not None and dispatched.gate_reservation is not None:
            self.grader.record(dispatched.gate_reservation, machine.gate, is_exempt=dispatched.is_exempt)
        if self.grader is not None and log is not None:
            self.grader.remember(log.key, log.request_id, facts)
        self._learner.observe(PromptLength(dispatched.prompt_tokens))
        self._migration.record(machine, frozenset([dispatched.device] if dispatched.device else []), dispatched.prompt_tokens)
        for attempt in attempts:
            if was_alone or sides[attempt.source] != "device":
                self._record_ttft(attempt, sides[attempt.source], dispatched)

    def _record_ttft(self, attempt: Attempt, side: str, dispatched: DispatchRecord) -> None:
        if attempt.opened is None or attempt.takeover_position is not None or attempt.read_ahead is not None or attempt.error is not None:
            return
        if attempt.ttft is not None:
            self._learner.observe(
                _device_sample(attempt, attempt.ttft, dispatched) if side == "device" else _server_sample(attempt, attempt.ttft)
            )
        elif side == "server" and attempt.stopped is not None and not attempt.has_won:
            self._learner.observe(ServerTTFT(attempt.stopped - attempt.opened, is_censored=True))


def _device_sample(attempt: Attempt, ttft: float, dispatched: DispatchRecord) -> DeviceTTFT:
    details = attempt.usage.prompt_tokens_details if attempt.usage else None
    fresh = dispatched.prompt_tokens - ((details.cached_tokens or 0) if details else 0)
    return DeviceTTFT(max(1, fresh), ttft)


def _server_sample(attempt: Attempt, ttft: float) -> ServerTTFT:
    if attempt.state is not AttemptState.ENDED or attempt.first_token is None or attempt.stopped is None:
        return ServerTTFT(ttft)
    return ServerTTFT(ttft, is_burst=is_burst(attempt.tokens, ttft, attempt.stopped - attempt.first_token))


def _check_startable(endpoints: Sequence[Endpoint], unavailable: Mapping[str, EndpointError]) -> None:
    """Check that at least one of the endpoints that may be used has started.

    Raises:
        EndpointError: the first endpoint's error.
    """
    errors = [unavailable[each.name] for each in endpoints if each.name in unavailable]
    if errors and len(errors) == len(endpoints):
        raise copy(errors[0])


def _shape(device: Endpoint | None) -> ModelShape | None:
    """Return the device model's shape, or None if the endpoint has no engine that knows it."""
    info = getattr(getattr(device, "engine", None), "info", None)
    if info is None:
        return None
    return ModelShape(layers=info.layers, width=info.width, ffn_width=info.ffn_width, vocabulary=info.vocabulary_size, heads=info.heads)


def _passes(gate: Gate | None, facts: RequestFacts) -> bool:
    return gate is None or gate(facts)


def _late(eligibility: Eligibility, late: dict[str, str], device: Endpoint | None, able: Sequence[Endpoint]) -> dict[str, str]:
    """Return, by name, why endpoints come after others: the prompt is estimated to be too long for them."""
    if eligibility.first is None:
        return late
    after = device if eligibility.first == "server" else able[0]
    if after is None:
        raise AssertionError("a side that begins has another one after it")
    return {**late, after.name: eligibility.reason.partition(": ")[2]}


def _note(unavailable: Mapping[str, EndpointError]) -> str:
    """Return the errors of endpoints that aren't used, as text to append to a reason."""
    return "".join(f"; left out: {error}" for error in unavailable.values())
