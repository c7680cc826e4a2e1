"""The dispatch learner, which turns samples into immutable dispatch plans.

Learning is separate from deciding. A ``Learner`` lives as long as its client. A race uses the plan that is current when it begins, and
its own rng with its own seed; both belong in its log. Plans are made on request, and only after enough new samples.

As long as too little is known, the plan is to start both sides at once. That gives the fastest answers and teaches the most, and steering
keeps to the budget meanwhile. With a prior profile this phase is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from streamco.config import check_share
from streamco.core.race.estimators import DeviceFit, LengthWindow, ProductLimit, RecentSpeed, RecentTimes
from streamco.errors import ConfigError, UsageError
from streamco.policies.cost import RATE_SERVER_CONSTRAINED, constraint, device_costs
from streamco.policies.dispatch import BothAtOnce, Decision, DeviceOnly, DispatchPolicy, ServerOnly, Side
from streamco.policies.dispatch_device_constrained import TAIL, DeviceConstrained, ProportionalWait
from streamco.policies.dispatch_optimal import Optimal
from streamco.policies.dispatch_server_constrained import ServerConstrained
from streamco.policies.dispatch_stochastic import Stochastic
from streamco.profiles import DeviceSpeed, LengthDistribution, ModelShape, Prices, Profile, TTFTDistribution

__all__ = ["CallersPolicy", "DeviceTTFT", "Learner", "Plan", "Policy", "PolicyName", "PromptLength", "Sample", "ServerTTFT", "check_policy"]

Policy = BothAtOnce | DeviceConstrained | DeviceOnly | Optimal | ProportionalWait | ServerConstrained | ServerOnly | Stochastic
PolicyName = Literal[
    "auto",
    "both",
    "device-constrained",
    "device-first",
    "device-only",
    "disco",
    "optimal",
    "proportional-wait",
    "server-constrained",
    "server-first",
    "server-only",
    "stochastic",
]

_IMPLIED: dict[str, Side] = {"device-constrained": "device", "proportional-wait": "device", "server-constrained": "server"}
_MIN_SAMPLES = 20  # of one kind, before a plan is made from them without a prior
_MIN_EVENTS = 5  # how many of them must not be censored
_EXPLORE_LEARNING = 0.25  # while little is known, the tail of the distribution is worth more than the tokens
_OPTIMAL_SIZE = 64  # waits and lengths distinguished in a plan that is made between two requests


class ServerTTFT(Struct, frozen=True):
    """A sample of the server's time to first token.

    Args:
        seconds: seconds from the start of the attempt to its first token or, if ``is_censored``, until it was cancelled.
        is_censored: True if the attempt was cancelled before its first token arrived.
        is_burst: True if a proxy held the answer back (``estimators.is_burst``). Dispatch plans learn nothing from it.
    """

    seconds: float
    is_censored: bool = False
    is_burst: bool = False


class DeviceTTFT(Struct, frozen=True):
    """A sample of the device's time to first token: it took ``seconds`` and prefilled ``tokens`` tokens (cached ones don't count)."""

    tokens: int
    seconds: float


class PromptLength(Struct, frozen=True):
    """A sample of the prompt's length in tokens."""

    tokens: int


Sample = ServerTTFT | DeviceTTFT | PromptLength


class CallersPolicy(Struct, frozen=True, tag="own"):
    """Wraps a caller's own policy for a plan, and checks its decisions, so that a bug in it raises an error."""

    policy: DispatchPolicy

    @property
    def name(self) -> str:
        """The policy's name in messages: "own: " followed by its ``name``, or by its class's name if it has none."""
        name = getattr(self.policy, "name", None)
        return f"own: {name if isinstance(name, str) else type(self.policy).__name__}"

    def decide(self, length: int, rng: Random) -> Decision:
        """Return the policy's decision for a prompt of ``length`` tokens.

        Raises:
            UsageError: the policy didn't return a ``Decision``, or the decision has invalid waits or lets neither side start.
        """
        decision = self.policy.decide(length, rng)
        if not isinstance(decision, Decision):
            raise UsageError(f"policy {self.name}: expected decide() to return a Decision, got {type(decision).__name__}")
        waits = [wait for wait in (decision.device_wait, decision.server_wait) if wait is not None]
        if not waits or not all(isinstance(wait, int | float) and math.isfinite(wait) and wait >= 0 for wait in waits):
            got = f"{decision.device_wait!r} and {decision.server_wait!r}"
            raise UsageError(f"policy {self.name}: expected waits of 0 seconds or more, or None for one of them, got {got}")
        return decision


class Plan(Struct, frozen=True, kw_only=True):
    """The dispatch plan for new races, until the next plan is made.

    Args:
        policy: makes the decision for each race.
        constrained: the side whose tokens count against the budget.
        budget: share of prompt tokens that the constrained side may process.
        explore: probability that the loser of a race may run until its first token.
        revision: number of this plan, counted from its learner's first plan.
        basis: a summary of the samples that it was made from, for reports.
    """

    policy: Policy | CallersPolicy
    constrained: Side
    budget: float
    explore: float = 0.0
    revision: int = 0
    basis: str = ""

    def decide(self, length: int, rng: Random) -> Decision:
        """Return the decision for a prompt of ``length`` tokens."""
        decision = self.policy.decide(length, rng)
        if self.explore and decision.is_hedged and rng.random() < self.explore:
            return Decision(decision.device_wait, decision.server_wait, decision.policy, decision.reason, explore=True)
        return decision


class Learner:
    """Learns how fast one client's device and server are, and makes dispatch plans from that. The client's dispatcher owns it.

    Args:
        budget: share of prompt tokens that the constrained side may process, 0..1.
        policy: a custom policy, a policy's name, or "auto". "auto" is "optimal" if the device is the constrained side, otherwise
            Algorithm 3. Algorithm 1 finds the constrained side from the costs. "disco" is Algorithm 2 or 3, as in the paper.
        prior: a profile with earlier estimates. They count as ``prior_weight`` samples; prices and shape are also taken from it.
        constrained: the side that the budget limits. If None, it is the side that the policy's name implies, or else the costs decide.
        exchange_rate: US dollars per million GFLOPs of the device (``policies.cost``).
        tail: alpha of Algorithm 2.
        tail_weight: weight of the tail for "optimal".
        explore: probability that a losing attempt may run until its first token.
        window: number of server samples kept.
        prior_weight: number of samples that the prior counts as.
        replan_every: maximum number of samples between two plans; the first plans are made sooner.

    Raises:
        ConfigError: a setting is out of range, or the policy is unknown.
    """

    def __init__(
        self,
        budget: float = 0.3,
        *,
        policy: str | DispatchPolicy = "auto",
        prior: Profile | None = None,
        constrained: Side | None = None,
        exchange_rate: float = RATE_SERVER_CONSTRAINED,
        tail: float = TAIL,
        tail_weight: float = 0.0,
        explore: float = 0.05,
        window: int = 1000,
        prior_weight: float = 20.0,
        replan_every: int = 50,
    ) -> None:
        for name, share in (("budget", budget), ("tail", tail), ("explore", explore)):
            check_share(name, share)
        implied = check_policy(policy, constrained)
        if window < 1 or replan_every < 1 or not prior_weight >= 0:
            raise ConfigError(
                f"learner: expected window and replan_every >= 1 and prior_weight >= 0, got {window!r}, {replan_every!r}, {prior_weight!r}"
            )
        self.budget = budget
        self._own = None if isinstance(policy, str) else CallersPolicy(policy)
        self.policy = policy if isinstance(policy, str) else CallersPolicy(policy).name
        self._prior = prior or Profile()
        self._prices, self._shape = self._prior.prices, self._prior.shape
        self._constrained = constrained or implied
        self._exchange_rate = exchange_rate
        self._tail, self._tail_weight = tail, tail_weight
        self._explore = explore
        self._prior_weight = prior_weight
        self._replan_every = replan_every
        self._at_once = 1.0
        self._server = ProductLimit(window, prior_weight)
        self._recent = RecentTimes(prior_weight=prior_weight)
        self._recent_speed = RecentSpeed()
        self._device = DeviceFit()
        self._lengths = LengthWindow(2 * window)
        self._seen = self._seen_by_plan = 0
        self._plan: Plan | None = None
        self._times: tuple[TTFTDistribution | None, DeviceSpeed | None] | None = None
        self._revision = 0

    # Learning

    def observe(self, sample: Sample) -> None:
        """Add one sample. Nothing is computed until a plan is requested.

        Raises:
            UsageError: a time is negative or not finite.
        """
        match sample:
            case ServerTTFT(seconds, is_censored, is_burst):
                _check_seconds(seconds)
                self._recent.observe(seconds, is_censored=is_censored, is_burst=is_burst)
                self._times = None
                if is_burst:
                    return
                self._server.observe(seconds, is_censored=is_censored)
            case DeviceTTFT(tokens, seconds):
                _check_seconds(seconds)
                self._device.observe(tokens, seconds)
                self._recent_speed.observe(tokens, seconds)
                self._times = None
            case PromptLength(tokens):
                self._lengths.observe(tokens)
        self._seen += 1

    def tell_server_ttft(self, seconds: Sequence[float]) -> None:
        """Use the times to first token, in seconds, that the server itself reports, until there are enough measured ones.

        Profiles do not contain them.

        Raises:
            UsageError: a time is negative or not finite.
        """
        for each in seconds:
            _check_seconds(each)
        self._server.tell(seconds)
        self._plan = self._times = None

    def set_costs(self, prices: Prices | None, shape: ModelShape | None, exchange_rate: float | None = None) -> None:
        """Set the server's prices, the shape of the device's model and the exchange rate. None keeps the earlier value."""
        before = self.constrained
        self._prices, self._shape = prices or self._prices, shape or self._shape
        self._exchange_rate = self._exchange_rate if exchange_rate is None else exchange_rate
        if self.constrained != before:
            self._plan = None

    def keep_back(self, share: float) -> None:
        """Reserve this share of a server's budget, 0..1, for servers that are asked later. The next plan respects it."""
        if self._at_once != 1.0 - share:
            self._at_once, self._plan = 1.0 - share, None

    @property
    def has_samples(self) -> bool:
        """True if there are samples to make a plan from, which needs numpy."""
        return self._seen > 0 or bool(self._server.told)

    @property
    def times(self) -> tuple[TTFTDistribution | None, DeviceSpeed | None]:
        """The server's current time to first token and the device's speed, even if samples are few. Either is None if not known."""
        if self._times is None:
            server = self._recent.estimate(self._prior.server_ttft, self._server.told)
            self._times = server, self._recent_speed.estimate(self._prior.device)
        return self._times

    # Planning

    @property
    def declared_constraint(self) -> Side | None:
        """The constrained side if the caller chose it, directly or by the policy's name, or None if it follows from the costs."""
        return self._constrained

    @property
    def constrained(self) -> Side:
        """The side whose tokens count against the budget."""
        if self._constrained is not None:
            return self._constrained
        costs = None if self._shape is None else device_costs(self._shape, exchange_rate=self._exchange_rate)
        return constraint(self._prices, costs)

    @property
    def plan(self) -> Plan:
        """The current plan. A new one is made if there have been enough samples since the last one."""
        due = min(self._replan_every, 5 + self._seen_by_plan // 10)
        if self._plan is None or self._seen - self._seen_by_plan >= due:
            self._plan = self.replan()
        return self._plan

    def replan(self) -> Plan:
        """Make a plan from all samples. This takes a few milliseconds at most."""
        self._revision += 1
        self._seen_by_plan = self._seen
        policy = self._make_policy()
        is_learning = isinstance(policy, BothAtOnce) and self.policy != "both"
        self._plan = Plan(
            policy=policy,
            constrained=self.constrained,
            budget=self.budget,
            explore=max(self._explore, _EXPLORE_LEARNING) if is_learning and self._explore else self._explore,
            revision=self._revision,
            basis=self._describe(is_learning=is_learning),
        )
        return self._plan

    def profile(self, name: str = "learned") -> Profile:
        """Return the current estimates, including the prior, as a profile that can be saved and given to the next learner."""
        ttft = self._server.estimate(self._prior.server_ttft, with_told=False)
        return msgspec.structs.replace(
            self._prior,
            name=name,
            server_ttft=None if ttft is None else ttft.compress(),
            device=self._device.estimate(self._prior.device),
            lengths=self._lengths.estimate(self._prior.lengths, self._prior_weight),
            prices=self._prices,
            shape=self._shape,
        )

    @property
    def _spendable(self) -> float:
        """The part of the budget that a plan may spend."""
        return self.budget if self.constrained == "device" or self.budget >= 1.0 else self.budget * self._at_once

    def _make_policy(self) -> Policy | CallersPolicy:
        if self._own is not None:
            return self._own
        match self.policy:
            case "both":
                return BothAtOnce()
            case "device-only" | "device-first":
                return DeviceOnly(is_strict=self.policy == "device-only")
            case "server-only" | "server-first":
                return ServerOnly(is_strict=self.policy == "server-only")
            case "stochastic":
                return Stochastic.plan(self.constrained, self._spendable)
        return self._plan_from(self._known_ttft(), self._known_lengths(), self._device.estimate(self._prior.device)) or BothAtOnce()

    def _plan_from(
        self, ttft: TTFTDistribution | None, lengths: LengthDistribution | None, device: DeviceSpeed | None
    ) -> DeviceConstrained | Optimal | ProportionalWait | ServerConstrained | None:
        """Return the policy with the configured name, or None if something that it needs isn't known yet."""
        name = self.policy
        if name == "disco" or (name == "auto" and self.constrained == "server"):
            name = f"{self.constrained}-constrained"
        elif name == "auto":
            name = "optimal"
        if lengths is None:
            return None
        if name == "server-constrained":
            return ServerConstrained.plan(lengths, self._spendable)
        if ttft is None:
            return None
        if name == "device-constrained":
            return DeviceConstrained.plan(ttft, lengths, self.budget, self._tail)
        if name == "proportional-wait":
            return ProportionalWait.plan(ttft, lengths, self.budget, self._tail, device=device)
        if device is None:
            return None
        return Optimal.plan(
            ttft,
            lengths,
            device,
            self._spendable,
            constraint=self.constrained,
            tail_weight=self._tail_weight,
            candidates=_OPTIMAL_SIZE,
            groups=_OPTIMAL_SIZE,
        )

    def _known_ttft(self) -> TTFTDistribution | None:
        prior = self._prior.server_ttft
        is_enough = len(self._server) >= _MIN_SAMPLES and self._server.events >= _MIN_EVENTS
        return self._server.estimate(prior) if is_enough or prior is not None or self._server.told else None

    def _known_lengths(self) -> LengthDistribution | None:
        prior = self._prior.lengths
        is_enough = len(self._lengths) >= _MIN_SAMPLES
        return self._lengths.estimate(prior, self._prior_weight) if is_enough or prior is not None else None

    def _describe(self, *, is_learning: bool) -> str:
        seen = f"{len(self._server)} server times ({self._server.events} in full), {len(self._device)} device times, "
        seen += f"{len(self._lengths)} prompts"
        seen += f", {len(told)} server times told by it" if (told := self._server.told) else ""
        return f"too little known yet: {seen}" if is_learning else seen


def check_policy(policy: object, constrained: object) -> Side | None:
    """Check a race's policy and constrained side, and return the side that the policy's name implies, or None.

    Args:
        policy: a name, or the caller's own object with ``decide(length, rng)``.
        constrained: "device", "server" or None.

    Raises:
        ConfigError: the policy or the side is unknown, or they contradict each other.
    """
    is_own = not isinstance(policy, str) and callable(getattr(policy, "decide", None))
    if not is_own and policy not in get_args(PolicyName):
        names = ", ".join(get_args(PolicyName))
        raise ConfigError(f"policy: expected one of {names}, or an object with decide(length, rng), got {policy!r}")
    if constrained not in (None, "device", "server"):
        raise ConfigError(f'constrained: expected "device", "server" or None, got {constrained!r}')
    implied = None if not isinstance(policy, str) else _IMPLIED.get(policy)
    if constrained is not None and implied not in {None, constrained}:
        raise ConfigError(f"constrained: expected {implied!r} for policy {policy!r}, got {constrained!r}")
    return implied


def _check_seconds(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"sample: expected finite seconds >= 0, got {seconds!r}")
