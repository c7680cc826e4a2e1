"""Builds the report of a raced answer from its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from streamco.client.answer_log import describe_error
from streamco.client.cost_totals import answer_ending, total_cost
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.server_bill import billed_completion, has_counted, has_counted_prompt, own_bill
from streamco.core.race.attempt import Attempt, AttemptState
from streamco.core.race.machine import RaceMachine
from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage, EndpointReport, Grade, HandOver, Outcome, SplitFigures, is_energy_measured
from streamco.core.totals import AnswerCost
from streamco.endpoints.base import Endpoint
from streamco.endpoints.known_servers.providers import server_kind
from streamco.errors import EndpointConnectError, EndpointStatusError
from streamco.events import TextCount
from streamco.openai_types import CompletionUsage, without_further
from streamco.policies.cost import RequestCost

__all__ = ["build_cost", "build_opening", "build_report", "describe_hand_overs", "describe_usage", "with_split_figures"]

Counts = Mapping[Attempt, TextCount]
_NO_COUNTS: Counts = {}
Joules = Mapping[Attempt, float | None]
_NO_JOULES: Joules = {}


def build_report(
    machine: RaceMachine,
    dispatched: DispatchRecord,
    endpoints: Mapping[str, Endpoint],
    cost: AnswerCost,
    *,
    now: float,
) -> Report:
    """Return the report of an answer, finished or not.

    Args:
        machine: the race.
        dispatched: the decision for the answer.
        endpoints: all endpoints, by name.
        cost: the cost of the answer so far, from ``build_cost``.
        now: the current time, in seconds on the machine's clock.
    """
    meter = machine.meter
    span = (meter.last - meter.first) if meter.first is not None and meter.last is not None else 0.0
    return Report(
        winner=machine.winner,
        ttft=_first_token_time(machine),
        duration=(now if machine.finished is None else machine.finished) - machine.began,
        tokens=cost.tokens,
        tokens_per_second=(meter.tokens - 1) / span if meter.tokens > 1 and span > 0 else None,
        finish_reason=machine.finish_reason,
        dispatch=dispatched.report(),
        endpoints=cost.endpoints,
        quality=meter.quality(),
        cost_usd=cost.cost_usd,
        unified_cost_usd=cost.unified_cost_usd,
        energy_j=cost.energy_j,
        is_energy_measured=is_energy_measured(cost.endpoints),
        hand_overs=describe_hand_overs(machine, dispatched, endpoints),
        wasted_tokens=cost.wasted_tokens,
        wasted_prompt_tokens=cost.wasted_prompt_tokens,
        usage=describe_usage(machine, dispatched.prompt_tokens),
        ending=cost.ending,
        is_final=machine.is_over,
        grade=_grade(machine),
    )


def _grade(machine: RaceMachine) -> Grade | None:
    held = machine.gate
    if held is None or held.verdict is None or held.graded_at is None:
        return None
    return Grade(
        verdict=held.verdict,
        score=held.score,
        min_score=held.plan.min_score,
        tokens=held.graded_tokens,
        at=held.graded_at,
        asked=held.asked,
        shown_because=held.passed_because,
    )


def build_opening(machine: RaceMachine, dispatched: DispatchRecord, endpoints: Mapping[str, Endpoint]) -> Opening:
    """Return what is known about an answer at its first token; the arguments are the same as for ``build_report``."""
    winner = machine.winner
    kind = None if winner is None else endpoints[winner].kind
    return Opening(winner=winner, winner_kind=kind, ttft=_first_token_time(machine), dispatch=dispatched.report(), grade=_grade(machine))


def _first_token_time(machine: RaceMachine) -> float | None:
    return None if machine.meter.first is None else machine.meter.first - machine.began


def with_split_figures(report: Report, streams: Sequence[SplitFigures | None]) -> Report:
    """Return the report with the figures of a split model that took part in the answer.

    Args:
        report: the report without them.
        streams: the figures of each stream of the answer, or None for a stream that isn't a split model's.
    """
    figures = next((each for each in streams if each is not None), None)
    if figures is None:
        return report
    if len(report.endpoints) > 1:
        return replace(report, split=figures)
    dispatch = replace(report.dispatch, policy="split", constraint=None, reason=figures.makers(report.endpoints[0].name), budget=1.0)
    return replace(report, split=figures, mode="split", dispatch=dispatch)


def build_cost(
    machine: RaceMachine,
    dispatched: DispatchRecord,
    endpoints: Mapping[str, Endpoint],
    *,
    was_left: bool = False,
    counts: Counts = _NO_COUNTS,
    joules: Joules = _NO_JOULES,
) -> AnswerCost:
    """Return the cost of the answer so far. This is cheap even for long answers, unlike a report, which computes the quality.

    Args:
        machine: the race.
        dispatched: the decision for the answer.
        endpoints: all endpoints, by name.
        was_left: True if the reader left before the end.
        counts: tokens generated by attempts that reported no usage, if they could be counted.
        joules: measured energy of attempts that have ended, or None where it wasn't measured.
    """
    work = {attempt: _count(attempt, dispatched.prompt_tokens, counts) for attempt in _all_attempts(machine)}
    parts = [
        _describe_attempt(attempt, endpoints[attempt.source], dispatched, work[attempt], wasted, counts=counts, joules=joules.get(attempt))
        for attempt, wasted in _waste(machine, work).items()
    ]
    for name, error in machine.plan.missing:
        kind = endpoints[name].kind
        parts.append(EndpointReport(name=name, kind=kind, outcome="failed", error=str(error), error_kind=describe_error(error)))
    worked = [part for part in parts if part.opened is not None]
    energies = [part.energy_j for part in worked if part.energy_j is not None]
    return AnswerCost(
        endpoints=parts,
        ending=answer_ending(was_left=was_left, error=machine.error, finished=machine.finished),
        hand_overs=len(machine.hand_overs),
        tokens=machine.meter.tokens,
        cost_usd=total_cost([part.cost_usd for part in worked]),
        unified_cost_usd=total_cost([part.unified_cost_usd for part in worked]),
        energy_j=sum(energies) if energies else None,
        wasted_tokens=sum(part.wasted_tokens for part in parts),
        wasted_prompt_tokens=sum(part.wasted_prompt_tokens for part in parts),
    )


def describe_hand_overs(machine: RaceMachine, dispatched: DispatchRecord, endpoints: Mapping[str, Endpoint]) -> list[HandOver]:
    """Return the hand-overs, with the delays that the reader noticed and the money that planned ones saved."""
    described = []
    source, since = next((attempt for attempt in _all_attempts(machine) if attempt.has_won), None), 0.0
    for at, hand_over in enumerate(machine.hand_overs):
        later = machine.hand_overs[at + 1].position if at + 1 < len(machine.hand_overs) else None
        target = _taker(machine, hand_over)
        pause = None if target is None or target.first_token is None else target.first_token - hand_over.at
        delayed = machine.meter.delayed(hand_over.position, later)
        saved = None
        if hand_over.is_planned and source is not None and target is not None:
            parts = [*_readings(machine, target.source, since, hand_over.at), target]
            saved = _saved(machine, source, parts, dispatched, endpoints)
        described.append(replace(hand_over, pause=pause, delayed_tokens=delayed, saved_usd=saved))
        source, since = target, hand_over.at
    return described


def _all_attempts(machine: RaceMachine) -> list[Attempt]:
    return [*machine.past_attempts, *machine.attempts.values()]


def _readings(machine: RaceMachine, name: str, since: float, until: float) -> list[Attempt]:
    """Return the attempts of an endpoint that read in advance and were opened between two times."""
    readings = [attempt for attempt in _all_attempts(machine) if attempt.read_ahead is not None and attempt.source == name]
    return [attempt for attempt in readings if attempt.opened is not None and since <= attempt.opened <= until]


def _taker(machine: RaceMachine, hand_over: HandOver) -> Attempt | None:
    """Return the attempt that continued the answer, or None if it never started."""
    attempts = _all_attempts(machine)
    return next(
        (attempt for attempt in attempts if attempt.source == hand_over.target and attempt.takeover_position == hand_over.position), None
    )


def _saved(
    machine: RaceMachine, source: Attempt, parts: Sequence[Attempt], dispatched: DispatchRecord, endpoints: Mapping[str, Endpoint]
) -> float | None:
    """Return how many US dollars a planned hand-over saved.

    Args:
        source: the attempt that wrote before the hand-over.
        parts: the target's attempts: the ones that read in advance, followed by the one that wrote.
    """
    counts = [_count(attempt, dispatched.prompt_tokens) for attempt in parts]
    written = counts[-1].completion - _late(parts[-1], counts[-1])
    late = _late(source, _count(source, dispatched.prompt_tokens))
    without = dispatched.cost(endpoints[source.source], 0, written - late, 0).known
    target = endpoints[parts[-1].source]
    taken = total_cost([dispatched.cost(target, count.prompt, count.completion, count.cached).known for count in counts])
    return None if without is None or taken is None else without - taken


def describe_usage(machine: RaceMachine, prompt_tokens: int) -> AnswerUsage:
    """Return the tokens of the answer as it was delivered.

    If one endpoint wrote the whole answer, its own usage is returned. After a hand-over, the last endpoint's prompt includes the
    beginning of the answer. So the prompt's own length is used, and tokens from before the hand-over are counted as they arrived.

    Args:
        machine: the race.
        prompt_tokens: the prompt's length, in case no endpoint reported it; a reported zero is ignored.
    """
    last = None if machine.writer is None else machine.attempts[machine.writer]
    begun = machine.hand_overs[-1].position if machine.hand_overs else 0
    if last is not None and machine.hand_overs and last.takeover_position is None:
        last = None  # it was chosen to continue, but never did
    usage = None if last is None else last.usage
    late = 0 if last is None else last.late
    is_counted = last is not None and has_counted(usage, last.tokens)
    if usage is not None and usage.prompt_tokens and is_counted and not begun and not machine.dropped and not late:
        return _as_reported(usage)
    made = 0 if last is None else usage.completion_tokens if usage is not None and is_counted else last.tokens
    completion = begun + max(0, made - late)
    if machine.dropped:
        completion = round(completion * machine.meter.tokens / (machine.meter.tokens + machine.dropped))
    prompt = usage.prompt_tokens if usage is not None and usage.prompt_tokens and not begun else prompt_tokens
    return AnswerUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, is_estimated=True)


def _as_reported(usage: CompletionUsage) -> AnswerUsage:
    return AnswerUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=without_further(usage.prompt_tokens_details),
        completion_tokens_details=without_further(usage.completion_tokens_details),
    )


def _describe_attempt(
    attempt: Attempt, endpoint: Endpoint, dispatched: DispatchRecord, count: _Count, wasted: _Waste, *, counts: Counts, joules: float | None
) -> EndpointReport:
    """Return one attempt's part in the report.

    Args:
        attempt: the attempt.
        endpoint: its endpoint.
        dispatched: the decision for the answer.
        count: its tokens.
        wasted: how many of them were wasted.
        counts: as in ``build_cost``.
        joules: its measured energy, or None to estimate it.
    """
    cost = dispatched.cost(endpoint, count.prompt, count.completion, count.cached)
    bill = own_bill(attempt.usage)
    if bill == 0 and count.is_estimated:
        bill = None  # a server that counted nothing bills nothing
    if bill is not None:  # a bill includes more than the price list: discounts, tiers, fees
        cost = RequestCost(server=bill, device_joules=cost.device_joules, device=0.0, total=bill)
    return EndpointReport(
        name=attempt.source,
        kind=endpoint.kind,
        outcome=_outcome(attempt),
        server=server_kind(endpoint),
        opened=attempt.opened,
        stopped=attempt.stopped,
        ttft=attempt.ttft,
        prompt_tokens=count.prompt,
        completion_tokens=count.completion,
        wasted_prompt_tokens=wasted.prompt,
        wasted_tokens=wasted.completion,
        is_estimated=count.is_estimated,
        counted_by=_counted_by(attempt, endpoint, counts),
        cost_usd=cost.server,
        cost_source=None if cost.server is None else "server" if bill is not None else "prices",
        energy_j=None if endpoint.kind != "device" else cost.device_joules if joules is None else joules,
        is_energy_measured=joules is not None,
        unified_cost_usd=cost.total,
        confidence=attempt.confidence.confidence,
        error=None if attempt.trouble is None else str(attempt.trouble),
        error_kind=None if attempt.trouble is None else describe_error(attempt.trouble),
    )


def _counted_by(attempt: Attempt, endpoint: Endpoint, counts: Counts) -> str | None:
    """Return what counted the tokens that an attempt generated, or None if it did no work."""
    if not _has_worked(attempt):
        return None
    if endpoint.kind == "device" and hasattr(endpoint, "engine"):
        return "engine"
    if has_counted(attempt.usage, attempt.tokens):
        return "usage"
    return counts[attempt].counter if attempt in counts else "estimate"


class _Count(NamedTuple):
    """Tokens of one attempt; ``cached`` are prompt tokens that the endpoint had in its cache."""

    prompt: int
    cached: int
    completion: int
    is_estimated: bool = False


class _Waste(NamedTuple):
    """Wasted tokens of one attempt: prompt tokens of no use to the answer, and completion tokens that the reader didn't get."""

    prompt: int
    completion: int


def _count(attempt: Attempt, prompt_tokens: int, counts: Counts = _NO_COUNTS) -> _Count:
    """Return an attempt's tokens as reported by the endpoint, or else estimated. A reported zero is ignored if text arrived."""
    if not _has_worked(attempt):
        return _Count(0, 0, 0)
    usage, length = attempt.usage, prompt_tokens + attempt.given
    made = counts[attempt].tokens if attempt in counts else attempt.tokens
    is_made, is_read = has_counted(usage, attempt.tokens), has_counted_prompt(usage, attempt.tokens)
    is_estimated = not (is_made and is_read)
    if usage is not None and is_made:
        made = billed_completion(usage)
    if usage is not None and is_read:
        details = usage.prompt_tokens_details
        return _Count(usage.prompt_tokens, (details.cached_tokens or 0) if details else 0, made, is_estimated)
    return _Count(length, 0 if attempt.kept is None else min(length, prompt_tokens + attempt.kept), made, is_estimated)


def _has_worked(attempt: Attempt) -> bool:
    """Return True if the attempt did work that is paid for; a refused connection or request isn't paid for."""
    if attempt.opened is None:
        return False
    return bool(attempt.tokens) or not isinstance(attempt.error, EndpointConnectError | EndpointStatusError)


def _outcome(attempt: Attempt) -> Outcome:
    if attempt.opened is None:
        return "not started"
    if attempt.has_won:
        return "won"
    if attempt.takeover_position is not None and attempt.tokens:
        return "took over"
    if attempt.state is AttemptState.FAILED or attempt.trouble is not None:
        return "failed"
    return "read ahead" if attempt.read_ahead is not None else "lost"


def _has_written(attempt: Attempt) -> bool:
    """Return True if the attempt's tokens went to the reader."""
    return _outcome(attempt) in {"won", "took over"}


def _waste(machine: RaceMachine, work: Mapping[Attempt, _Count]) -> dict[Attempt, _Waste]:
    """Return the wasted tokens of each attempt. ``work`` contains the tokens of all attempts."""
    written = {attempt: count for attempt, count in work.items() if _has_written(attempt)}
    writers = {attempt.source for attempt in written}
    unread = _unread(machine, written)
    waste = {}
    for attempt, count in work.items():
        if attempt in unread:
            waste[attempt] = _Waste(0, unread[attempt])
        else:  # reading in advance was useful if the endpoint took over
            is_used = attempt.read_ahead is not None and attempt.source in writers
            waste[attempt] = _Waste(0 if is_used else count.prompt, count.completion)
    return waste


def _unread(machine: RaceMachine, written: Mapping[Attempt, _Count]) -> dict[Attempt, int]:
    """Return, for each attempt that wrote, how many of its tokens never reached the reader."""
    unread = {attempt: _late(attempt, count) for attempt, count in written.items()}
    if machine.dropped:  # tokens that were held when the reader left: the newest ones
        made = sum(count.completion for count in written.values())
        held = round((made - sum(unread.values())) * machine.dropped / (machine.meter.tokens + machine.dropped))
        for attempt in sorted(written, key=lambda attempt: attempt.takeover_position or 0, reverse=True):
            more = min(held, written[attempt].completion - unread[attempt])
            unread[attempt] += more
            held -= more
    return unread


def _late(attempt: Attempt, count: _Count) -> int:
    """Return how many of the attempt's tokens came after the hand-over, or after the reader had left."""
    return min(attempt.late, count.completion)
