"""Turns a session machine's record into a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamco.chunks import CompletionUsage
from streamco.core.legs import Leg, LegState
from streamco.core.report import READ, AnswerUsage, Ending, EndpointReport, Outcome, Report
from streamco.core.session import SessionMachine
from streamco.core.totals import Bill
from streamco.endpoints.base import Endpoint
from streamco.errors import EndpointConnectError, EndpointStatusError

if TYPE_CHECKING:
    from streamco.client.dispatcher import Dispatched

__all__ = ["build_bill", "build_report", "describe_leg", "describe_usage"]


def build_report(
    machine: SessionMachine, dispatched: Dispatched, endpoints: Mapping[str, Endpoint], *, now: float, was_left: bool = False
) -> Report:
    """The figures of an answer, finished or not.

    Args:
        now: on the machine's clock, seconds.
        was_left: its reader went before its end.
    """
    meter = machine.meter
    bill = build_bill(machine, dispatched, endpoints, was_left=was_left)
    span = (meter.last - meter.first) if meter.first is not None and meter.last is not None else 0.0
    return Report(
        winner=machine.winner,
        ttft=None if meter.first is None else meter.first - machine.began,
        duration=(now if machine.finished is None else machine.finished) - machine.began,
        tokens=bill.tokens,
        tokens_per_second=(meter.tokens - 1) / span if meter.tokens > 1 and span > 0 else None,
        finish_reason=machine.finish_reason,
        dispatch=dispatched.report(),
        endpoints=bill.endpoints,
        quality=meter.quality(),
        cost_usd=bill.cost_usd,
        unified_cost_usd=bill.unified_cost_usd,
        energy_j=bill.energy_j,
        hand_overs=list(machine.hand_overs),
        wasted_tokens=bill.wasted_tokens,
        wasted_prompt_tokens=bill.wasted_prompt_tokens,
        usage=describe_usage(machine, dispatched.prompt_tokens),
        ending=bill.ending,
        is_final=machine.is_over,
    )


def build_bill(machine: SessionMachine, dispatched: Dispatched, endpoints: Mapping[str, Endpoint], *, was_left: bool = False) -> Bill:
    """What the answer has taken so far; costs nothing for each token, as its quality does."""
    parts = [describe_leg(leg, endpoints[leg.source], dispatched) for leg in (*machine.past_legs, *machine.legs.values())]
    for name, error in machine.plan.missing:
        parts.append(EndpointReport(name=name, kind=endpoints[name].kind, outcome="failed", error=str(error)))
    worked = [part for part in parts if part.opened is not None]
    joules = [part.energy_j for part in worked if part.energy_j is not None]
    return Bill(
        endpoints=parts,
        ending=_ending(machine, was_left=was_left),
        hand_overs=len(machine.hand_overs),
        tokens=machine.meter.tokens,
        cost_usd=_total([part.cost_usd for part in worked]),
        unified_cost_usd=_total([part.unified_cost_usd for part in worked]),
        energy_j=sum(joules) if joules else None,
        wasted_tokens=_wasted(machine, parts),
        wasted_prompt_tokens=sum(part.prompt_tokens for part in parts if part.outcome not in READ),
    )


def describe_usage(machine: SessionMachine, prompt_tokens: int) -> AnswerUsage:
    """Tokens of the answer as it was delivered.

    The endpoint that wrote all of it tells them. Behind a hand-over the last one's prompt holds the beginning of the answer, so the
    request's own length counts, and what was made before is counted as it came.

    Args:
        prompt_tokens: of the request, where no endpoint tells.
    """
    last = None if machine.writing is None else machine.legs[machine.writing]
    begun = machine.hand_overs[-1].position if machine.hand_overs else 0
    if last is not None and machine.hand_overs and last.takes_over_at is None:
        last = None  # chosen to go on, but it never did
    usage = None if last is None else last.usage
    if usage is not None and not begun and not machine.dropped:
        return _told(usage)
    completion = begun + (0 if last is None else usage.completion_tokens if usage else last.tokens)
    if machine.dropped:
        completion = round(completion * machine.meter.tokens / (machine.meter.tokens + machine.dropped))
    prompt = usage.prompt_tokens if usage is not None and not begun else prompt_tokens
    return AnswerUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, is_estimated=True)


def _told(usage: CompletionUsage) -> AnswerUsage:
    return AnswerUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=usage.prompt_tokens_details,
        completion_tokens_details=usage.completion_tokens_details,
    )


def describe_leg(leg: Leg, endpoint: Endpoint, dispatched: Dispatched) -> EndpointReport:
    """One endpoint's part; usage it did not report is estimated from the prompt's length and the tokens that came."""
    usage = leg.usage
    prompt = usage.prompt_tokens if usage else dispatched.prompt_tokens + (leg.takes_over_at or 0)
    completion = usage.completion_tokens if usage else leg.tokens
    cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage and usage.prompt_tokens_details else 0
    if not _has_worked(leg):
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
        is_estimated=usage is None and _has_worked(leg),
        cost_usd=cost.server,
        energy_j=cost.device_joules if endpoint.kind == "device" else None,
        unified_cost_usd=cost.total,
        error=None if leg.error is None else str(leg.error),
    )


def _total(costs: list[float | None]) -> float | None:
    """The sum, unless a part of it is not known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _has_worked(leg: Leg) -> bool:
    """Whether it did anything that is paid for; whoever refuses a connection or a request did not."""
    if leg.opened is None:
        return False
    return bool(leg.tokens) or not isinstance(leg.error, EndpointConnectError | EndpointStatusError)


def _ending(machine: SessionMachine, *, was_left: bool) -> Ending | None:
    if was_left:
        return "left"
    if machine.error is not None:
        return "failed"
    return None if machine.finished is None else "complete"


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
    lost = sum(part.completion_tokens for part in parts if part.outcome not in READ)
    if not machine.dropped:
        return lost
    won = sum(part.completion_tokens for part in parts if part.outcome in READ)
    return lost + round(won * machine.dropped / (machine.meter.tokens + machine.dropped))
