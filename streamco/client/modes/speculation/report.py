"""Builds the report of a speculated answer: which endpoints made its tokens, their cost, and the figures on drafting and verifying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, field

from streamco.client.answer_log import describe_error
from streamco.client.cost_totals import answer_ending, total_cost
from streamco.client.modes.base import CostOf
from streamco.client.modes.speculation.remote_stream import RemoteStreamPart
from streamco.core.meter import Meter
from streamco.core.report import Report
from streamco.core.report_parts import AnswerUsage, DispatchReport, EndpointReport, SpeculationFigures
from streamco.core.speculation.report import SpeculationReport
from streamco.core.totals import AnswerCost
from streamco.endpoints.base import Endpoint
from streamco.endpoints.verifiers.base import Verifier
from streamco.endpoints.verifiers.pool_session import AssignedVerifier
from streamco.errors import StreamcoError
from streamco.policies.acceptance import Rule

__all__ = [
    "priced_endpoint",
    "SpeculationProgress",
    "SpeculationRecord",
    "speculation_cost",
    "speculation_figures",
    "speculation_report",
    "speculation_usage",
]


class _VerifierCounts(Struct, frozen=True, kw_only=True):
    """An answer's counts up to the time when it left a verifier, or up to now, including earlier verifiers.

    Args:
        remote: the verifier's remote endpoint, which has its prices.
        verified: tokens computed for verdicts.
        given: committed tokens that rounds sent only for the verifier to read.
        has_read: True if one of the verifiers has read the prompt.
        read_again: tokens that were read again because the answer had moved.
        streams: remote streams that were opened.
    """

    remote: Endpoint | None
    verified: int
    given: int
    has_read: bool
    read_again: int
    streams: int


class _VerifierWork(NamedTuple):
    """The work of one verifier for an answer: tokens that it read, how many of them were cached, and tokens that it computed."""

    remote: Endpoint | None
    read: int
    cached: int
    computed: int


class SpeculationProgress(Struct, frozen=True, kw_only=True):
    """How far an answer has come, as its driver records it. Times are in seconds on the driver's clock.

    Args:
        report: the machine's own figures.
        meter: measures the text that the reader gets.
        streams: the tokens that the remote streams read and generated, in order.
        bytes_up, bytes_down: bytes sent to the verifiers and received from them.
        began, finished: when the answer began and ended for its reader; ``finished`` is None until then.
        first: when the first token reached the reader; None until then.
        finish_reason: "stop" or "length"; None if the answer hasn't finished, or has failed.
        dropped: tokens that were held for the pace when the reader left.
        error: the error that the answer ended with, or None.
        was_left: True if the reader left before the end.
        is_final: True if the answer and all its work have ended.
    """

    report: SpeculationReport
    meter: Meter
    streams: Sequence[RemoteStreamPart]
    bytes_up: int
    bytes_down: int
    began: float
    finished: float | None
    first: float | None
    finish_reason: str | None
    dropped: int
    error: StreamcoError | None
    was_left: bool
    is_final: bool


class SpeculationRecord(Struct, kw_only=True):
    """The data that the report of a speculated answer needs besides the answer's progress.

    Args:
        prompt_tokens: number of tokens in the prompt.
        rule: the verifier's acceptance rule.
        is_exact: True if this verifier applies the rule exactly.
        is_lookup: True if drafts are looked up, which takes no energy and reads no prompt.
        device: the endpoint that drafts.
        verifier: the verifier of the drafts.
        server: the server whose prices apply if the verifier has none, or None.
        cost: returns the cost of tokens at an endpoint.
        budget: share of the drafts to be verified, 0 to 1.
        share: this client's actual share so far, or None if nothing has been drafted.
        left: the answer's counts each time that it moved away from a verifier.
    """

    prompt_tokens: int
    rule: Rule
    is_exact: bool
    is_lookup: bool = False
    device: Endpoint
    verifier: Verifier
    server: Endpoint | None
    cost: CostOf
    budget: float
    share: float | None
    left: list[_VerifierCounts] = field(default_factory=list)

    def leave(self, verifier: Verifier, progress: SpeculationProgress) -> None:
        """Record that the answer moves away from a verifier."""
        self.left.append(_counts_at(verifier.remote, progress, self))


def speculation_report(progress: SpeculationProgress, record: SpeculationRecord, *, now: float) -> Report:
    """Return the report of an answer, finished or not. ``now`` is in seconds on the driver's clock."""
    meter, cost = progress.meter, speculation_cost(progress, record)
    first = progress.first
    span = (meter.last - meter.first) if meter.first is not None and meter.last is not None else 0.0
    device, verifier = cost.endpoints
    return Report(
        winner=None if first is None else _makers(progress, device.name, verifier.name),
        ttft=None if first is None else first - progress.began,
        duration=(now if progress.finished is None else progress.finished) - progress.began,
        tokens=cost.tokens,
        tokens_per_second=(meter.tokens - 1) / span if meter.tokens > 1 and span > 0 else None,
        finish_reason=progress.finish_reason,
        dispatch=DispatchReport(
            policy="speculate",
            constraint=None,
            device_wait=0.0,
            server_wait=0.0,
            reason=_reason(progress.report, device.name, verifier.name, record.rule.kind.name.lower()),
            prompt_tokens=record.prompt_tokens,
            budget=record.budget,
            budget_share=record.share,
        ),
        endpoints=cost.endpoints,
        quality=meter.quality(),
        cost_usd=cost.cost_usd,
        unified_cost_usd=cost.unified_cost_usd,
        energy_j=cost.energy_j,
        wasted_tokens=cost.wasted_tokens,
        usage=speculation_usage(progress, record),
        ending=cost.ending,
        is_final=progress.is_final,
        mode="speculate",
        speculation=_figures(progress, record),
    )


def speculation_usage(progress: SpeculationProgress, record: SpeculationRecord) -> AnswerUsage:
    """Return the token counts of the answer as it was delivered."""
    prompt, completion = record.prompt_tokens, progress.meter.tokens
    return AnswerUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def speculation_cost(progress: SpeculationProgress, record: SpeculationRecord) -> AnswerCost:
    """Return the cost of the answer so far."""
    parts = [_device_part(progress, record), _verifier_part(progress, record)]
    costs = [part.cost_usd for part in parts]
    unified = [part.unified_cost_usd for part in parts]
    return AnswerCost(
        endpoints=parts,
        ending=answer_ending(was_left=progress.was_left, error=progress.error, finished=progress.finished),
        hand_overs=0,
        tokens=progress.meter.tokens,
        cost_usd=total_cost(costs),
        unified_cost_usd=total_cost(unified),
        energy_j=parts[0].energy_j,
        wasted_tokens=sum(part.wasted_tokens for part in parts),
        wasted_prompt_tokens=0,
    )


def _reason(report: SpeculationReport, device: str, verifier: str, rule: str) -> str:
    """Return how the answer is generated and, if no draft has been verified, why not."""
    if report.remote and not report.verified:
        return f"{verifier} generates alone: {report.why_remote}"
    return f"{device} drafts, {verifier} verifies by {rule}"


def _makers(progress: SpeculationProgress, device: str, verifier: str) -> str:
    report = progress.report
    drafted, put = report.accepted + report.device, report.corrected + report.bonus + report.remote
    return f"{device} with {verifier}" if drafted and put else verifier if put else device


def _device_part(progress: SpeculationProgress, record: SpeculationRecord) -> EndpointReport:
    report, device = progress.report, record.device
    wasted, _ = _waste(progress)
    prompt, computed = (0, 0) if record.is_lookup else (record.prompt_tokens, report.drafted)
    cost = record.cost(device, prompt, computed, 0)
    return EndpointReport(
        name=device.name,
        kind="device",
        outcome="drafted",
        opened=0.0,
        stopped=None if progress.finished is None else progress.finished - progress.began,
        prompt_tokens=prompt,
        completion_tokens=report.drafted,
        counted_by="engine",
        wasted_tokens=wasted,
        cost_usd=cost.server,
        energy_j=cost.device_joules,
        unified_cost_usd=cost.total,
    )


def _verifier_part(progress: SpeculationProgress, record: SpeculationRecord) -> EndpointReport:
    """Return the verifier's part in the report. Every token that it computed counts as a completion token.

    The prompt counts once, and as cached whenever the remote stream continued the answer. Committed tokens that the verifier only had to
    read count with the prompt, and so do tokens that another verifier had to read because the answer moved to it. If the answer moved, the
    tokens and the cost are the sums over all its verifiers.
    """
    report, verifier, parts = progress.report, record.verifier, progress.streams
    works = _verifier_works(progress, record)
    cost_usd, unified = _cost_of(works, record)
    _, wasted = _waste(progress)
    return EndpointReport(
        name=verifier.name,
        kind="server",
        outcome="verified",
        opened=0.0,
        stopped=None if progress.finished is None else progress.finished - progress.began,
        prompt_tokens=sum(work.read for work in works),
        completion_tokens=report.target_tokens,
        counted_by="estimate" if any(part.is_estimated for part in parts) else "usage" if parts else "token ids",
        wasted_tokens=wasted,
        is_estimated=any(part.is_estimated for part in parts),
        cost_usd=cost_usd,
        unified_cost_usd=unified,
        error=None if progress.error is None else str(progress.error),
        error_kind=None if progress.error is None else describe_error(progress.error),
    )


def _verifier_works(progress: SpeculationProgress, record: SpeculationRecord) -> list[_VerifierWork]:
    """Return the work of each verifier that the answer used, in order. A remote stream counts for the verifier where it was opened."""
    report, parts = progress.report, progress.streams
    was_asked = progress.bytes_up > 0 or report.rounds > 0
    unread = max(0, report.device - report.given)
    last = _counts_at(record.verifier.remote, progress, record)
    streamed = report.target_tokens - last.verified
    before = _VerifierCounts(remote=None, verified=0, given=0, has_read=False, read_again=0, streams=0)
    prompt, works = record.prompt_tokens * was_asked, []
    for counts in (*record.left, last):
        opened, verified = parts[before.streams : counts.streams], counts.verified - before.verified
        made = streamed if counts is last else min(streamed, sum(part.made for part in opened))
        first_read = prompt * counts.has_read + counts.read_again - before.read_again
        works.append(
            _VerifierWork(
                counts.remote,
                read=first_read + counts.given - before.given + sum(part.read for part in opened),
                cached=_cached(opened, was_asked=first_read > 0 or verified > 0, unread=unread),
                computed=verified + made,
            )
        )
        before, prompt, streamed = counts, prompt * (not counts.has_read), streamed - made
    return works


def _cost_of(works: Sequence[_VerifierWork], record: SpeculationRecord) -> tuple[float | None, float | None]:
    """Return the money and the unified cost of the verifiers' work, each at its own prices; None if a price isn't known."""
    costs = []
    for work in [work for work in works if work.read or work.computed] or works[-1:]:
        priced = priced_endpoint(work.remote, record.server)
        if priced is None:
            return None, None
        costs.append(record.cost(priced, work.read, work.computed, work.cached))
    return total_cost([cost.server for cost in costs]), total_cost([cost.total for cost in costs])


def _counts_at(remote: Endpoint | None, progress: SpeculationProgress, record: SpeculationRecord) -> _VerifierCounts:
    """Return an answer's counts so far. ``remote`` is the remote endpoint of its current verifier."""
    report = progress.report
    return _VerifierCounts(
        remote=remote,
        verified=report.verified + report.siblings + report.rounds,  # the row after each draft is computed too
        given=report.given,
        has_read=not isinstance(record.verifier, AssignedVerifier) or bool(record.verifier.readers),
        read_again=_read_again(record.verifier),
        streams=len(progress.streams),
    )


def _read_again(verifier: Verifier) -> int:
    return verifier.read_again if isinstance(verifier, AssignedVerifier) else 0


def _waste(progress: SpeculationProgress) -> tuple[int, int]:
    """Return how many tokens the device and the server generated that were never delivered.

    Tokens that were still held when the reader left count for the device, up to the number that it drafted, and then for the server.
    """
    report = progress.report
    wasted = max(0, report.wasted) + progress.dropped
    drafted = min(report.drafted, wasted)
    kept = report.accepted + report.corrected + report.bonus + report.remote
    return drafted, min(report.target_tokens, max(0, report.target_tokens - kept) + wasted - drafted)


def _cached(parts: Sequence[RemoteStreamPart], *, was_asked: bool, unread: int) -> int:
    """Return how many of the tokens read by remote streams were cached: as many as the server reports, or else all it had seen before.

    Args:
        parts: the remote streams.
        was_asked: True if the verifier was asked for verdicts.
        unread: tokens of the answer that the device committed but the server never received.
    """
    cached, is_known = 0, was_asked
    for part in parts:
        if not part.is_estimated:
            cached += part.cached
        elif is_known:
            cached += max(0, part.read - unread)
        is_known = is_known or part.made > 0
    return cached


def priced_endpoint(remote: Endpoint | None, server: Endpoint | None) -> Endpoint | None:
    """Return the endpoint whose prices apply to the verifier's tokens: the verifier's own if it has prices, or else the server."""
    return remote if remote is not None and remote.prices.completion is not None else server or remote


def _figures(progress: SpeculationProgress, record: SpeculationRecord) -> SpeculationFigures:
    return speculation_figures(
        progress.report,
        budget=record.budget,
        bytes_up=progress.bytes_up,
        bytes_down=progress.bytes_down,
        retracted=progress.report.retracted,
        is_exact=record.is_exact,
        verifiers=record.verifier.served if isinstance(record.verifier, AssignedVerifier) else (record.verifier.name,),
    )


def speculation_figures(
    report: SpeculationReport,
    *,
    budget: float,
    bytes_up: int,
    bytes_down: int,
    retracted: int,
    is_exact: bool,
    verifiers: tuple[str, ...] = (),
) -> SpeculationFigures:
    """Return a machine's report as users see it. ``is_exact`` is True if the verifier applies its rule exactly."""
    return SpeculationFigures(
        acceptance=report.acceptance,
        offloaded_share=report.offloaded_share,
        budget=budget,
        hit_rate=report.hit_rate,
        ahead_rate=report.ahead_rate,
        rounds=report.rounds,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        drafted=report.drafted,
        wasted=max(0, report.wasted),
        accepted=report.accepted,
        corrected=report.corrected,
        bonus=report.bonus,
        device=report.device,
        remote=report.remote,
        target_tokens=report.target_tokens,
        fallbacks=report.fallbacks,
        refusals=report.refusals,
        losses=report.losses,
        retracted=retracted,
        is_exact=is_exact and report.is_exact and not report.device,
        verifiers=verifiers,
    )
