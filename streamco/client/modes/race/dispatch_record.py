"""The dispatch decision for one request, from which its report, its log lines and its race are made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from streamco.client.modes.base import Obstacle
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.gate import GatePlan
from streamco.core.race.learner import CallersPolicy, Plan
from streamco.core.report_parts import DispatchReport
from streamco.endpoints.base import Endpoint, Kind
from streamco.errors import shorten
from streamco.policies.budget_control import BudgetSteering, Reservation
from streamco.policies.cost import DeviceCosts, RequestCost, Usage, request_cost
from streamco.policies.dispatch import Decision
from streamco.policies.eligibility import RequestFacts
from streamco.policies.migration import BarredMove
from streamco.profiles import Prices

__all__ = ["DispatchRecord", "endpoint_cost", "known_prices"]

_SIDE = re.compile(r"\b(?:device|server)\b")  # how the reasons of policies name the sides
_SIDE_BEFORE_COLON = re.compile(r"(?:(?<=^)|(?<=; )|(?<=, ))(?:device|server)(?=: )")  # why a side is left out; callers' words may follow


class DispatchRecord:
    """The dispatch decision for one request, and its reservation in the budget's account.

    Attributes:
        attempts: planned attempts of the race.
        device: name of the device endpoint.
        facts: facts about the request that decide which endpoints can serve it.
        obstacles: by name, why endpoints can't serve the request although others can; without a device that the request gate excludes.
        without_effect: why the policy has no effect, as a sentence, or "" if it has one.
        late: by name, why endpoints come after others (because their context is estimated to be too small for the prompt).
        resting: by name, why endpoints come after others (because they have just failed).
        waits_for: number of answers that the device has to make first, if that delays this one and the budget allows nothing else; else 0.
        shortened_to: length of the longest answer that fits into the device's context, or None if the request doesn't allow a longer one.
        unmoved: why the answer won't move to a cheaper endpoint, as a clause, or "" if it may; set by ``Dispatcher.plan_moves``.
        sides: the endpoints' names that replace "device" and "server" in reasons if two servers race; otherwise {}.
        barred: moves that would save money but aren't allowed, because the target isn't good enough; also set by ``plan_moves``.
        gate: decides whether the device's answer is good enough, or None.
        gate_reservation: the part of the reservation for a server that is asked because of a low score; None if answers aren't graded.
        not_graded: why the answer isn't graded although that was requested, as a clause; otherwise "".
        may_shadow: True if a server may write a shadow answer after the device has written this one; the budget has reserved tokens for it.
    """

    def __init__(
        self,
        decision: Decision,
        attempts: tuple[AttemptPlan, ...],
        *,
        device: str | None,
        plan: Plan,
        facts: RequestFacts,
        steering: BudgetSteering,
        reservation: Reservation,
        is_exempt: bool,
        is_named: bool,
        costs: DeviceCosts | None,
        note: str,
        logged_reason: str = "",
        obstacles: Mapping[str, Obstacle] = MappingProxyType({}),
        late: Mapping[str, str] = MappingProxyType({}),
        resting: Mapping[str, str] = MappingProxyType({}),
        waits_for: int = 0,
        without_effect: str = "",
        shortened_to: int | None = None,
        sides: Mapping[str, str] = MappingProxyType({}),
        gate: GatePlan | None = None,
        gate_reservation: Reservation | None = None,
        not_graded: str = "",
        may_shadow: bool = False,
    ) -> None:
        self.sides = sides
        self.obstacles = obstacles
        self.late = late
        self.resting = resting
        self.waits_for = waits_for
        self.without_effect = without_effect
        self.shortened_to = shortened_to
        self.unmoved = ""
        self.gate = gate
        self.gate_reservation = gate_reservation
        self.not_graded = not_graded
        self.may_shadow = may_shadow
        self.barred: Sequence[BarredMove] = ()
        self.attempts = attempts
        self.device = device
        self.facts = facts
        self.steering = steering  # the request's account; a client that learns the costs of its sides may open another one
        self.reservation = reservation
        self.is_exempt = is_exempt
        self.is_named = is_named  # True if the policy names one side
        self.plan = plan
        self._decision = decision
        self._share = steering.share if steering.requests else None
        self._costs = costs
        self._note = note
        self._logged_reason = logged_reason or decision.reason  # the decision's reason without the caller's words
        self._logged_note = note

    @property
    def is_rated(self) -> bool:
        """True if the device should report how sure it is of its tokens, for the gate or to learn from ratings."""
        return self.gate_reservation is not None

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length, as counted by the device if it can count."""
        return self.facts.prompt_tokens

    @property
    def explore(self) -> bool:
        """True if the loser runs to its first token, so that its full time is learned."""
        return self._decision.explore

    def report(self) -> DispatchReport:
        """Return the decision for the answer's report."""
        return DispatchReport(
            policy=self._decision.policy,
            constraint=self.sides.get(self.plan.constrained, self.plan.constrained),
            device_wait=self._decision.device_wait,
            server_wait=self._decision.server_wait,
            reason=self._named_reason(self._decision.reason, self._note),
            prompt_tokens=self.prompt_tokens,
            is_estimated=self.facts.is_estimated,
            budget=self.plan.budget,
            budget_share=self._share,
            is_borrowed=self.reservation.is_borrowed,
        )

    def logged_report(self) -> DispatchReport:
        """Return the decision in a form that may be logged: its reason contains no text from the caller."""
        return replace(self.report(), reason=self._named_reason(self._logged_reason, self._logged_note))

    def logged_reason(self) -> str | None:
        """Return the reason in a form that may be logged, or None if the report's reason quotes nothing."""
        if (self._logged_reason, self._logged_note) == (self._decision.reason, self._note):
            return None
        return self._named_reason(self._logged_reason, self._logged_note)

    def _named_reason(self, reason: str, note: str) -> str:
        return shorten((self._by_name(reason) or ", ".join(each.source for each in self.attempts)) + note)

    def _by_name(self, reason: str) -> str:
        """Return a reason with "device" and "server" replaced by the names of two servers that race."""
        if not self.sides or isinstance(self.plan.policy, CallersPolicy):
            return reason
        return (_SIDE_BEFORE_COLON if ": " in reason else _SIDE).sub(lambda found: self.sides[found[0]], reason)

    def may_write(self, kind: Kind) -> bool:
        """Return True if a planned hand-over may give the answer to this side. The budget may exclude the constrained side."""
        return kind != self.plan.constrained or self._decision.wait(kind) is not None

    def cost(self, endpoint: Endpoint, prompt: int, completion: int, cached: int) -> RequestCost:
        """Return the cost of tokens at an endpoint; its parts are None if prices or the model's shape aren't known.

        Args:
            endpoint: the endpoint.
            prompt: prompt tokens, including cached ones.
            completion: generated tokens.
            cached: prompt tokens that the endpoint had in its cache.
        """
        return endpoint_cost(self._costs, endpoint, prompt, completion, cached)

    def add_note(self, text: str, *, logged: str | None = None) -> None:
        """Add text to the reason in the report. ``logged`` is the text without anything from the caller; None if it is the same."""
        self._note += f"; {text}"
        self._logged_note += f"; {text if logged is None else logged}"


def endpoint_cost(costs: DeviceCosts | None, endpoint: Endpoint, prompt: int, completion: int, cached: int) -> RequestCost:
    """Return the cost of tokens at an endpoint; see ``DispatchRecord.cost``. ``costs`` has a device's costs, or is None if unknown."""
    if endpoint.kind == "device":
        return request_cost(Usage(device_prompt=prompt - cached, device_completion=completion), None, costs)
    usage = Usage(server_prompt=prompt, server_completion=completion, server_cached=cached)
    return request_cost(usage, known_prices(endpoint), None)


def known_prices(endpoint: Endpoint) -> Prices | None:
    """Return an endpoint's prices, or None if some aren't known."""
    prices = endpoint.prices
    if prices.prompt is None or prices.completion is None:
        return None
    return Prices(prompt=prices.prompt, completion=prices.completion, cached_prompt=prices.cached_prompt)
