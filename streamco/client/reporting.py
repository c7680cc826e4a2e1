"""Turns a session machine's record into a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamco.core.report import EndpointReport, Outcome, Report
from streamco.core.session import Leg, LegState, SessionMachine
from streamco.endpoints.base import Endpoint

if TYPE_CHECKING:
    from streamco.client.dispatcher import Dispatched

__all__ = ["build_report", "describe_leg"]

_READ: tuple[Outcome, ...] = ("won", "took over")  # whose tokens went to the reader


def build_report(machine: SessionMachine, dispatched: Dispatched, endpoints: Mapping[str, Endpoint], *, now: float) -> Report:
    """The figures of an answer, finished or not."""
    meter = machine.meter
    parts = [describe_leg(leg, endpoints[leg.source], dispatched) for leg in (*machine.past_legs, *machine.legs.values())]
    for name, error in machine.plan.missing:
        parts.append(EndpointReport(name=name, kind=endpoints[name].kind, outcome="failed", error=str(error)))
    span = (meter.last - meter.first) if meter.first is not None and meter.last is not None else 0.0
    worked = [part for part in parts if part.opened is not None]
    joules = [part.energy_j for part in worked if part.energy_j is not None]
    return Report(
        winner=machine.winner,
        ttft=None if meter.first is None else meter.first - machine.began,
        duration=(now if machine.finished is None else machine.finished) - machine.began,
        tokens=meter.tokens,
        tokens_per_second=(meter.tokens - 1) / span if meter.tokens > 1 and span > 0 else None,
        finish_reason=machine.finish_reason,
        dispatch=dispatched.report(),
        endpoints=parts,
        quality=meter.quality(),
        cost_usd=_total([part.cost_usd for part in worked]),
        unified_cost_usd=_total([part.unified_cost_usd for part in worked]),
        energy_j=sum(joules) if joules else None,
        hand_overs=list(machine.hand_overs),
        wasted_tokens=_wasted(machine, parts),
        is_final=machine.is_over,
    )


def describe_leg(leg: Leg, endpoint: Endpoint, dispatched: Dispatched) -> EndpointReport:
    """One endpoint's part; usage it did not report is estimated from the prompt's length and the tokens that came."""
    usage = leg.usage
    prompt = usage.prompt_tokens if usage else dispatched.prompt_tokens + (leg.takes_over_at or 0)
    completion = usage.completion_tokens if usage else leg.tokens
    cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage and usage.prompt_tokens_details else 0
    if leg.opened is None:
        prompt = completion = cached = 0
    cost = dispatched.cost(endpoint, prompt, completion, cached)
    return EndpointReport(
        name=leg.source,
        kind=endpoint.kind,
        outcome=_outcome(leg),
        opened=leg.opened,
        ttft=leg.ttft,
        prompt_tokens=prompt,
        completion_tokens=completion,
        is_estimated=usage is None and leg.opened is not None,
        cost_usd=cost.server,
        energy_j=cost.device_joules if endpoint.kind == "device" else None,
        unified_cost_usd=cost.total,
        error=None if leg.error is None else str(leg.error),
    )


def _total(costs: list[float | None]) -> float | None:
    """The sum, unless a part of it is not known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _outcome(leg: Leg) -> Outcome:
    if leg.opened is None:
        return "not started"
    if leg.has_won:
        return "won"
    if leg.takes_over_at is not None and leg.tokens:
        return "took over"
    return "failed" if leg.state is LegState.FAILED else "lost"


def _wasted(machine: SessionMachine, parts: Sequence[EndpointReport]) -> int:
    """Tokens that nobody read: the losers', and of the winner's those that were held for a reader who left."""
    lost = sum(part.completion_tokens for part in parts if part.outcome not in _READ)
    if not machine.dropped:
        return lost
    won = sum(part.completion_tokens for part in parts if part.outcome in _READ)
    return lost + round(won * machine.dropped / (machine.meter.tokens + machine.dropped))
