"""The ways to make an answer in a race.

They are: either side alone with the other in reserve, both sides as the policy says, or the device first with a quality gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from streamco.client.modes.base import CostOf
from streamco.client.modes.race.quality_gate import Grader
from streamco.endpoints.base import Endpoint
from streamco.policies.budget_control import BudgetSteering
from streamco.policies.dispatch import Decision, Side
from streamco.policies.eligibility import Eligibility
from streamco.policies.ways import RaceForecast, Reading, SideTerms, Way, Weights, forecast_race, least_score, race_way
from streamco.profiles import DeviceSpeed, TTFTDistribution

__all__ = ["GATED", "AskedWay", "RaceWays", "side_terms"]

RACE, GATED = "race", "gated race"
_SIDES: tuple[Side, ...] = ("device", "server")
_SPENT = "the budget is spent"
_ONE_SIDED = "the policy starts one side alone"
_UNGRADED = "its answers must have a score"


class AskedWay(NamedTuple):
    """One of the ways to make an answer, with the settings for carrying it out.

    Args:
        name: the way's name.
        decision: when each side starts.
        min_score: lowest score of a device's answer that is shown; None if it isn't graded, or to use the gate's own.
    """

    name: str
    decision: Decision
    min_score: float | None = None


class RaceWays(NamedTuple):
    """The facts about one request that determine in which ways a race can answer it.

    Args:
        kinds: the endpoint to use first, for each side.
        eligibility: which sides can serve it.
        prompt_tokens: the prompt's length.
        times: the server's time to first token and the device's speed; each is None if it isn't known.
        queue: seconds until the device gets to the prompt.
        terms: what each side's work costs, and how good it is.
        drawn: when each side starts, according to the policy.
        only: the one side that the policy names, or None.
        constrained: the side that the budget limits.
        steering: the budget's account.
        resting: by name, why endpoints are used only if others fail.
        grader: grades the device's answers, or None.
        gate_share: share of the prompt tokens that servers may process because of low scores.
        not_graded: why this answer can't be graded, as a clause, or "" if it can.
        names: names of the endpoints, if two servers race.
    """

    kinds: Mapping[Side, Endpoint]
    eligibility: Eligibility
    prompt_tokens: int
    times: tuple[TTFTDistribution | None, DeviceSpeed | None]
    queue: float
    terms: Mapping[Side, SideTerms]
    drawn: Decision
    only: Side | None
    constrained: Side
    steering: BudgetSteering
    resting: Mapping[str, str]
    grader: Grader | None
    gate_share: float
    not_graded: str
    names: Mapping[str, str]

    def found(self, weights: Weights) -> list[tuple[Way, AskedWay]]:
        """Return all ways, with the predictions for each."""
        sides = _SIDES if self.only is None else (self.only,)
        found = [self._found(AskedWay(side, self._alone(side))) for side in sides]
        if self.only is None:
            found.append(self._found(AskedWay(RACE, self.drawn)))
        if self.grader is not None and self.only != "server":
            found.append(self._found(AskedWay(GATED, self._alone("device"), self._least_score(weights))))
        return found

    def _found(self, asked: AskedWay) -> tuple[Way, AskedWay]:
        """Return the predictions for a way."""
        name, decision = self.names.get(asked.name, asked.name), asked.decision
        if obstacle := self._obstacle(asked):
            return Way(name=name, obstacle=obstacle), asked
        gate = None
        if asked.name == GATED and self.grader is not None:
            gate = self.grader.outlook(self.gate_share, asked.min_score)
        some = next(iter(self.terms.values()))
        device, server = (self.terms.get(side, some) for side in _SIDES)
        times, speed = self.times
        forecast = forecast_race(
            decision, device=speed, server=times, prompt_tokens=self.prompt_tokens, queue=self.queue, gate=gate, rate=device.rate
        )
        way = race_way(name, forecast, device, server, gate)
        measured = (asked.name,) if asked.name in _SIDES else tuple(self.kinds)
        spends = self._spends(decision, forecast)
        may_spend = spends > 0.0 or (asked.name == GATED and self.constrained == "server")
        is_closed = may_spend and self._is_full(asked.name)
        return replace(way, measured=measured, spends=spends, obstacle=_SPENT if is_closed else ""), asked

    def _spends(self, decision: Decision, forecast: RaceForecast | None) -> float:
        """Return how many prompt tokens the constrained side is expected to read; 0 if the answer doesn't count against the budget."""
        if not (self.eligibility.device and self.eligibility.server and self.only is None):
            return 0.0
        if forecast is None:
            return self.prompt_tokens * (decision.wait(self.constrained) is not None)
        return self.prompt_tokens * (forecast.server_starts if self.constrained == "server" else forecast.device_starts)

    def _is_full(self, name: str) -> bool:
        is_full = not self.steering.allows(self.prompt_tokens)
        if name == GATED and self.grader is not None and self.constrained == "server":
            return is_full or not self.grader.account.allows(self.prompt_tokens)
        return is_full

    def _obstacle(self, asked: AskedWay) -> str:
        """Return why a way isn't available, leaving the budget aside, as a clause, or "" if it is."""
        name, can = asked.name, self.eligibility
        able: list[Side] = [side for side in _SIDES if (can.device if side == "device" else can.server)]
        needed = list(_SIDES) if name == GATED else [side for side in _SIDES if asked.decision.wait(side) is not None]
        if name not in _SIDES and not can.hedge:
            return can.reason
        if name == RACE and len(needed) < 2:
            return _ONE_SIDED
        if any(side not in able for side in needed) or (name in _SIDES and can.first not in {None, name}):
            return can.reason or f"no {name}"
        rests = [self.kinds[side].name for side in needed if self.kinds[side].name in self.resting]
        if rests and any(self.kinds[side].name not in self.resting for side in able):
            return f"{rests[0]} rests, because {self.resting[rests[0]]}"
        if name == GATED:
            return self.not_graded
        is_own = self.grader is not None and self.grader.has_rule and not self.not_graded and self.only != "server"
        return _UNGRADED if is_own and "device" in needed and len(able) > 1 else ""

    def _least_score(self, weights: Weights) -> float | None:
        """Return the lowest score of a device's answer that is shown, or None to use the gate's own."""
        times, grader, server = self.times[0], self.grader, self.terms.get("server")
        if grader is None or not grader.is_calibrated or not weights.quality or times is None or server is None or not server.quality:
            return None
        least = least_score(weights, self.terms.get("device", server), server, times)
        return least if self.constrained != "server" or self.gate_share >= 1.0 else min(least, grader.steered(self.gate_share))

    def _alone(self, side: Side) -> Decision:
        if side == "device":
            return Decision(0.0, None, self.drawn.policy, "device alone, server in reserve")
        return Decision(None, 0.0, self.drawn.policy, "server alone, device in reserve")


def side_terms(
    endpoint: Endpoint, cost: CostOf, reading: Reading, *, prompt_tokens: int, rate: float | None, quality: float | None
) -> SideTerms:
    """Return what an endpoint's work costs and how good it is."""
    return SideTerms(
        rate=rate,
        late=reading.late(rate),
        quality=quality,
        prompt=cost(endpoint, prompt_tokens, 0, 0),
        completion=cost(endpoint, 0, round(reading.tokens), 0),
    )
