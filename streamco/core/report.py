"""The report of an answer: its figures, ready for JSON, and the same figures as tables for people.

``Report`` is what users read. Its parts are in ``streamco.core.report_parts``, and their tables in ``streamco.core.report_text``.
"""

from __future__ import annotations

from msgspec import Struct, field

from streamco.core.confidence import Confidence
from streamco.core.meter import Quality
from streamco.core.report_parts import (
    AnswerMode,
    AnswerPlan,
    AnswerUsage,
    DispatchReport,
    Ending,
    EndpointReport,
    Grade,
    HandOver,
    ShadowReport,
    SpeculationFigures,
    SplitFigures,
)
from streamco.core.report_text import (
    Section,
    endpoint_section,
    format_confidence,
    format_joules,
    format_saving,
    format_seconds,
    format_share,
    format_usd,
    grade_rows,
    plan_section,
    sections_to_text,
    shadow_rows,
    speculation_section,
    split_section,
)

__all__ = ["Opening", "Report", "opening_of", "report_sections", "saved_share"]

_ALONE = frozenset({"", "device: no device", "server: no server"})  # reasons that tell the owner of the client nothing
_SIDES = frozenset({"device", "server", None})  # what a budget limits if there are sides, not two servers


class Report(Struct, frozen=True, kw_only=True):
    """The figures of one answer. Times are in seconds.

    Args:
        winner: the endpoint that began the answer, even after a hand-over; None while undecided. For a speculated answer, every endpoint
            that wrote a part of it.
        ttft: time from the request to the first token at the reader; None if there was none.
        duration: time from the request to the end of the delivery.
        tokens: tokens delivered to the reader.
        tokens_per_second: delivery rate after the first token; None for fewer than two tokens.
        cost_usd: cost of all endpoints together; None if an endpoint that worked on it has no known price.
        energy_j: the device's energy in joules; None if it isn't known, or if the device did nothing.
        is_energy_measured: True if all of that energy was measured (see ``EndpointReport``), False if any part of it is an estimate.
        unified_cost_usd: money and energy together; None if either isn't known for an endpoint that worked on it.
        hand_overs: all hand-overs, in order.
        wasted_tokens: completion tokens that the reader never got.
        wasted_prompt_tokens: prompt tokens that endpoints read for nothing.
        usage: tokens of the answer as it was delivered; ``endpoints`` shows the work that each endpoint did for it.
        ending: whether the answer is complete, failed, or was left by its reader before its end; None while it is in progress.
        is_final: True once no figure will change any more, because all work has ended.
        mode: how it was generated; if it could have been speculated but wasn't, ``dispatch.reason`` says why.
        speculation: figures of drafting and verifying; None if it was not speculated.
        split: figures of a split model's trips; None if no split model had a part in it.
        grade: the quality gate's verdict on the device's answer; None if there is no gate, or if the device had written nothing when the
            winner began.
        shadow: a server's answer that nobody reads, requested after this one ended; None if there is none. No other figure includes its
            cost.
        plan: the choice between the ways to make the answer, with a forecast for each; None if no way was chosen by the weights of
            ``Auto``.
        request_id: the id in the answer's log lines, which is also sent to servers as ``X-Client-Request-Id``.
        notes: one sentence for each part of the request that was not served as asked; empty if there was none.
    """

    winner: str | None
    ttft: float | None
    duration: float
    tokens: int
    tokens_per_second: float | None
    finish_reason: str | None
    dispatch: DispatchReport
    endpoints: list[EndpointReport] = field(default_factory=list)
    quality: Quality
    cost_usd: float | None = None
    energy_j: float | None = None
    is_energy_measured: bool = False
    unified_cost_usd: float | None = None
    hand_overs: list[HandOver] = field(default_factory=list)
    wasted_tokens: int = 0
    wasted_prompt_tokens: int = 0
    usage: AnswerUsage = field(default_factory=AnswerUsage)
    ending: Ending | None = None
    is_final: bool = False
    mode: AnswerMode = "race"
    speculation: SpeculationFigures | None = None
    split: SplitFigures | None = None
    grade: Grade | None = None
    shadow: ShadowReport | None = None
    plan: AnswerPlan | None = None
    request_id: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def confidence(self) -> Confidence | None:
        """How sure the winner was of the text that it wrote, as in its part of ``endpoints``; None if not known."""
        return next((part.confidence for part in self.endpoints if part.name == self.winner), None)

    def to_text(self, *, is_short: bool = False) -> str:
        """Return the report as text tables. ``is_short`` leaves out rows that say little, as ``str`` does."""
        return sections_to_text(report_sections(self, is_short=is_short))

    def __str__(self) -> str:
        """Return the short report. ``to_text`` returns the whole one, and ``repr`` and JSON contain the fields."""
        return self.to_text(is_short=True)


class Opening(Struct, frozen=True, kw_only=True):
    """The part of a report that is known at the first token. It takes far less time to make than a whole report.

    Args:
        winner, ttft, dispatch, mode, grade, notes: as in ``Report``.
        winner_kind: "device" or "server"; None if there is no winner yet, or several wrote the answer.
    """

    winner: str | None
    winner_kind: str | None
    ttft: float | None
    dispatch: DispatchReport
    mode: AnswerMode = "race"
    grade: Grade | None = None
    notes: list[str] = field(default_factory=list)


def opening_of(report: Report) -> Opening:
    """Return the part of a report that is known at the first token."""
    kind = next((part.kind for part in report.endpoints if part.name == report.winner), None)
    return Opening(
        winner=report.winner,
        winner_kind=kind,
        ttft=report.ttft,
        dispatch=report.dispatch,
        mode=report.mode,
        grade=report.grade,
        notes=report.notes,
    )


def report_sections(report: Report, *, is_short: bool = False) -> list[Section]:
    """Return the report as tables.

    Args:
        report: the report.
        is_short: leave out rows that are normal or follow from another row, such as the gaps if nobody had to wait, a budget that changed
            nothing, estimates of energy, counts of zero, and the table of a single endpoint.
    """
    drafts = [] if report.speculation is None else [speculation_section(report.speculation, is_short=is_short)]
    notes = [Section("Not as asked", (), [("", note) for note in report.notes])] if report.notes else []
    trips = [] if report.split is None else [split_section(report.split, is_short=is_short)]
    plan = [] if report.plan is None else [plan_section(report.plan)]
    begin = [_short_section(report)] if is_short else [_answer_section(report)]
    end = [] if is_short else [_dispatch_section(report)]
    endpoints = [endpoint_section(report.endpoints, is_short=is_short)] if len(report.endpoints) > 1 or not is_short else []
    return [*begin, *notes, *plan, *drafts, *trips, *end, *endpoints]


def _short_section(report: Report) -> Section:
    dispatch = report.dispatch
    wasted = [("tokens not delivered", str(report.wasted_tokens))] if report.wasted_tokens else []
    energy = [("energy on this device", _energy(report))] if report.is_energy_measured else []
    ended = [("ended because of", report.finish_reason)] if report.finish_reason not in (None, "stop") else []
    alone = report.endpoints[0] if len(report.endpoints) == 1 else None
    confidence = [("confidence", format_confidence(alone.confidence))] if alone and alone.confidence else []
    error = [("error", alone.error)] if alone and alone.error else []
    is_limited = dispatch.is_borrowed or "budget" in dispatch.reason
    rows = [
        ("answered by", report.winner or "no endpoint"),
        *([("why", dispatch.reason)] if dispatch.reason not in _ALONE else []),
        *error,
        *confidence,
        *grade_rows(report.grade),
        *(row for change in report.hand_overs for row in _change_rows(report, change)),
        *_time_rows(report),
        *ended,
        *(_waiting_rows(report) if report.quality.delayed_tokens or report.quality.stalls else []),
        ("prompt", _prompt(report)),
        ("cost", format_usd(report.cost_usd)),
        *shadow_rows(report.shadow),
        *energy,
        *wasted,
        *(_budget_rows(report) if is_limited else []),
    ]
    return Section("answer", (), list(rows))


def _time_rows(report: Report) -> list[tuple[str, str]]:
    return [
        ("first token after", format_seconds(report.ttft)),
        ("whole answer after", format_seconds(report.duration)),
        ("tokens", f"{report.tokens} ({report.tokens_per_second:.1f}/s)" if report.tokens_per_second else str(report.tokens)),
    ]


def _waiting_rows(report: Report) -> list[tuple[str, str]]:
    quality = report.quality
    return [
        ("between tokens, median and p99", f"{format_seconds(quality.gap_p50)}, {format_seconds(quality.gap_p99)}"),
        ("the same as the reader sees them", f"{format_seconds(quality.tbt_p50)}, {format_seconds(quality.tbt_p99)}"),
        ("delayed tokens, stalls", f"{quality.delayed_tokens}, {quality.stalls}"),
        ("smoothness (1: the reader never waited)", f"{quality.score:.3f}"),
    ]


def _prompt(report: Report) -> str:
    return f"{'~' if report.dispatch.is_estimated else ''}{report.dispatch.prompt_tokens} tokens"


def _answer_section(report: Report) -> Section:
    rows = [
        ("answered by", report.winner or "no endpoint"),
        *grade_rows(report.grade),
        *(row for change in report.hand_overs for row in _change_rows(report, change)),
        *_time_rows(report),
        ("ended because of", report.finish_reason or "-"),
        *_waiting_rows(report),
        ("cost", format_usd(report.cost_usd)),
        *shadow_rows(report.shadow),
        *([("energy on this device", _energy(report))] if _has_device(report) else []),
        ("tokens not delivered", str(report.wasted_tokens)),
    ]
    return Section("answer", (), list(rows))


def _energy(report: Report) -> str:
    if report.energy_j is None:
        return format_joules(None)
    how = "measured, the whole processor's" if report.is_energy_measured else "estimated"
    return f"{format_joules(report.energy_j)} ({how})"


def _change_rows(report: Report, change: HandOver) -> list[tuple[str, str]]:
    rows = [
        ("then", f"{change.target}, after token {change.position} ({change.reason})"),
        ("its first token, tokens in hand, delayed", f"{format_seconds(change.pause)}, {change.buffered}, {change.delayed_tokens}"),
    ]
    if change.is_planned:
        share = saved_share(report, change)
        is_whole = change.saved_usd is None or report.unified_cost_usd is not None or report.energy_j is not None
        label = "saved by it, energy included" if is_whole else "saved by it, energy not known"
        rows.append((label, format_saving(change.saved_usd) + ("" if share is None else f" ({share:.0%})")))
    return rows


def saved_share(report: Report, change: HandOver) -> float | None:
    """Return which share of the cost a planned hand-over saved, compared with the answer without it, or None if not known."""
    cost = report.cost_usd if report.unified_cost_usd is None else report.unified_cost_usd  # money alone if the energy isn't known
    if change.saved_usd is None or cost is None:
        return None
    without = cost + sum(each.saved_usd or 0.0 for each in report.hand_overs)
    return change.saved_usd / without if without > 0 else None


def _dispatch_section(report: Report) -> Section:
    dispatch = report.dispatch
    rows = [
        ("planned by", dispatch.policy),
        ("why", dispatch.reason),
        *_start_rows(report),
        ("prompt", _prompt(report)),
        *_budget_rows(report),
    ]
    return Section("which side starts when", (), list(rows))


def _start_rows(report: Report) -> list[tuple[str, str]]:
    """Return a row for each side that has an endpoint, saying when it starts. Two servers have no rows, as their table shows this."""
    sides = {"device": report.dispatch.device_wait, "server": report.dispatch.server_wait}
    kinds = {part.kind for part in report.endpoints}
    if report.dispatch.constraint not in _SIDES:
        return []
    return [(f"{side} starts", _start(wait)) for side, wait in sides.items() if side in kinds or not kinds]


def _budget_rows(report: Report) -> list[tuple[str, str]]:
    """Return the rows about the budget, or none if there is no second side that could do the work instead."""
    dispatch, shares = report.dispatch, f"{format_share(report.dispatch.budget)}, {format_share(report.dispatch.budget_share)}"
    shares += " (on credit)" if dispatch.is_borrowed else ""
    if dispatch.constraint not in _SIDES:
        return [("the budget limits", dispatch.constraint or ""), ("budget, share so far", shares)]
    if report.endpoints and not _has_device(report):
        return []
    return [("constrained side", dispatch.constraint or "none"), ("its budget, its share so far", shares)]


def _has_device(report: Report) -> bool:
    return any(part.kind == "device" for part in report.endpoints)


def _start(wait: float | None) -> str:
    if wait is None:
        return "only if the other side fails"
    return "at once" if wait == 0 else f"after {format_seconds(wait)}"
