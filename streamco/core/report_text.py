"""A report as text: one line under an answer, or all of it as tables."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from msgspec import Struct

from streamco.core.report import EndpointReport, HandOver, Report, SpeculationFigures, SplitFigures

__all__ = [
    "Figure",
    "Section",
    "format_joules",
    "format_saving",
    "format_seconds",
    "format_usd",
    "note_line",
    "report_sections",
    "saved_share",
    "sections_to_text",
    "speculation_figures",
    "split_figures",
    "summary",
    "summary_figures",
]

_SIDES = frozenset({"device", "server", None})  # what a budget limits if there are sides, not two servers
_OWN_COUNTERS = (None, "engine", "usage", "estimate")  # an estimate has its mark in the table


class Section(Struct, frozen=True):
    """A table: its title, its column heads (none: label and value) and its rows."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Figure(Struct, frozen=True):
    """A piece of a line about an answer. If the line is too long, the highest rank is left out first; rank 0 always stays."""

    text: str
    rank: int = 0


def format_seconds(seconds: float | None) -> str:
    """Return a time as text; "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def format_usd(dollars: float | None) -> str:
    """Return a cost as text with two significant digits; "unknown" for None."""
    if dollars is None:
        return "unknown"
    if dollars >= 0.01:
        return f"${dollars:.4f}".rstrip("0").rstrip(".")
    return f"${Decimal(f'{dollars:.1e}'):f}".rstrip("0").rstrip(".") if dollars else "$0"


def format_joules(joules: float | None) -> str:
    """Return an energy as text; "-" for None."""
    return "-" if joules is None else f"{joules:.2g} J" if joules < 10 else f"{joules:.0f} J"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def summary(report: Report, *, ending: str = "") -> str:
    """Return the figures of an answer and its first note in one line. ``ending``: stopped | failed, or "" if it is complete."""
    texts = [figure.text for figure in summary_figures(report, ending=ending)]
    return " · ".join([*texts, *filter(None, [note_line(report)])])


def summary_figures(report: Report, *, ending: str = "") -> list[Figure]:
    """Return the figures of an answer, for one line. ``ending``: stopped | failed, or "" if it is complete."""
    figures = [Figure(f"{report.winner or 'no endpoint'} answered")]
    figures += [Figure(_change(report, change), 1) for change in report.hand_overs]
    figures += [*speculation_figures(report), *split_figures(report), Figure(f"first token {format_seconds(report.ttft)}", 5)]
    if report.tokens_per_second is not None:
        figures.append(Figure(f"{report.tokens_per_second:.1f} tokens/s", 3))
    figures.append(Figure(f"{report.tokens} token{'s' if report.tokens != 1 else ''}", 8))
    figures.append(Figure("cost unknown", 9) if report.cost_usd is None else Figure(format_usd(report.cost_usd), 6))
    return [*figures, Figure(ending)] if ending else figures


def note_line(report: Report) -> str:
    """Return the answer's first note, and how many more there are; "" if there is none."""
    more = [f"{len(report.notes) - 1} more in the report"] if len(report.notes) > 1 else []
    return " · ".join([*report.notes[:1], *more])


def speculation_figures(report: Report) -> list[Figure]:
    """Return what became of the drafts; nothing if there were none.

    Tokens that the device wrote without a verdict are counted: ``326 of 406 tokens by the device alone`` if all should have been verified.
    """
    figures = report.speculation
    if figures is None:
        return []
    found = []
    if figures.acceptance is not None:
        found.append(Figure(f"{figures.acceptance:.0%} of drafts accepted", 4))
        if figures.offloaded_share is not None:
            found.append(Figure(f"{figures.offloaded_share:.0%} verified", 7))
    if figures.device and report.tokens:
        what = "tokens by the device alone" if figures.budget >= 1 else "tokens not verified"
        found.append(Figure(f"{figures.device} of {report.tokens} {what}", 1))
    return found


def split_figures(report: Report) -> list[Figure]:
    """Return what a split model's trips brought; nothing if there were none.

    If a server was lost, it says that too: ``went on at host:8001 after a loss``.
    """
    figures = report.split
    if figures is None or figures.tokens_per_trip is None:
        return []
    found = [Figure(f"{figures.tokens_per_trip:.2f} tokens a trip", 4)]
    if figures.sessions > 1:
        losses = "a loss" if figures.sessions == 2 else f"{figures.sessions - 1} losses"
        found.append(Figure(f"went on at {figures.servers[-1]} after {losses}", 1))
    return found


def _change(report: Report, change: HandOver) -> str:
    """Return a hand-over as text: ``moved to device after token 18, 82% cheaper``, compared with the answer without it."""
    if not change.is_planned:
        return f"{change.target} took over after token {change.position}"
    share = saved_share(report, change)
    saved = "" if share is None else f", {abs(share):.0%} {'cheaper' if share >= 0 else 'more expensive'}"
    return f"moved to {change.target} after token {change.position}{saved}"


def saved_share(report: Report, change: HandOver) -> float | None:
    """Return the share of the cost that a planned hand-over saved, compared with the answer without it; None if not known."""
    cost = report.cost_usd if report.unified_cost_usd is None else report.unified_cost_usd  # money alone if the energy isn't known
    if change.saved_usd is None or cost is None:
        return None
    without = cost + sum(each.saved_usd or 0.0 for each in report.hand_overs)
    return change.saved_usd / without if without > 0 else None


def report_sections(report: Report) -> list[Section]:
    """Return the whole report as tables."""
    drafts = [] if report.speculation is None else [_speculation_section(report.speculation)]
    notes = [Section("Not as asked", (), [("", note) for note in report.notes])] if report.notes else []
    trips = [] if report.split is None else [_split_section(report.split)]
    return [_answer_section(report), *notes, *drafts, *trips, _dispatch_section(report), _endpoint_section(report.endpoints)]


def _answer_section(report: Report) -> Section:
    quality = report.quality
    rows = [
        ("answered by", report.winner or "no endpoint"),
        *(row for change in report.hand_overs for row in _change_rows(report, change)),
        ("first token after", format_seconds(report.ttft)),
        ("whole answer after", format_seconds(report.duration)),
        ("tokens", f"{report.tokens} ({report.tokens_per_second:.1f}/s)" if report.tokens_per_second else str(report.tokens)),
        ("ended because of", report.finish_reason or "-"),
        ("between tokens, median and p99", f"{format_seconds(quality.gap_p50)}, {format_seconds(quality.gap_p99)}"),
        ("the same as the reader sees them", f"{format_seconds(quality.tbt_p50)}, {format_seconds(quality.tbt_p99)}"),
        ("delayed tokens, stalls", f"{quality.delayed_tokens}, {quality.stalls}"),
        ("smoothness (1: the reader never waited)", f"{quality.score:.3f}"),
        ("cost", format_usd(report.cost_usd)),
        *([("energy on this device", format_joules(report.energy_j))] if _has_device(report.endpoints) else []),
        ("tokens not delivered", str(report.wasted_tokens)),
    ]
    return Section("answer", (), list(rows))


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


def format_saving(dollars: float | None) -> str:
    """Return a difference of costs as text; below zero it was a loss."""
    return f"-{format_usd(-dollars)}" if dollars is not None and dollars < 0 else format_usd(dollars)


def _speculation_section(figures: SpeculationFigures) -> Section:
    makers = (
        ("accepted", figures.accepted),
        ("corrected", figures.corrected),
        ("bonus", figures.bonus),
        ("not verified", figures.device),
        ("by the server alone", figures.remote),
    )
    rows = [
        ("tokens", ", ".join(f"{count} {name}" for name, count in makers if count)),
        ("of verified drafts accepted", _share(figures.acceptance)),
        ("of drafts verified, their budget", f"{_share(figures.offloaded_share)}, {_share(figures.budget)}"),
        ("next draft ready with the verdict", _share(figures.hit_rate)),
        ("next draft sent ahead of it", _share(figures.ahead_rate)),
        ("rounds, bytes up and down", f"{figures.rounds}, {figures.bytes_up} and {figures.bytes_down}"),
        ("drafted, of these not in the answer", f"{figures.drafted}, {figures.wasted}"),
        ("computed by the server", f"{figures.target_tokens} tokens"),
        ("server alone, refusals, lost connections", f"{figures.fallbacks}, {figures.refusals}, {figures.losses}"),
        ("the server's own answer", "yes" if figures.is_exact else "no"),
    ]
    return Section("drafts and verdicts", (), list(rows))


def _split_section(figures: SplitFigures) -> Section:
    per_trip = "-" if figures.tokens_per_trip is None else f"{figures.tokens_per_trip:.2f}"
    rows = [
        ("sent to the server", figures.sent),
        ("up", f"{figures.rows_up} states, {figures.bytes_up} bytes"),
        ("down", f"{figures.rows_down} states, {figures.bytes_down} bytes"),
        ("trips, tokens a trip", f"{figures.trips}, {per_trip}"),
        ("messages up, states sent again", f"{figures.chunks}, {figures.repeated_rows}"),
        ("drafted, of these in the answer", f"{figures.drafted}, {figures.accepted}"),
        *_lookup_rows(figures),
        *_branch_rows(figures),
        ("servers, sessions", f"{', '.join(figures.servers) or '-'}; {figures.sessions}"),
        ("states lost nothing on the way", "yes" if figures.is_exact else "no"),
    ]
    return Section("split model", (), list(rows))


def _lookup_rows(figures: SplitFigures) -> list[tuple[str, str]]:
    """Return what was drafted from earlier text; nothing if nothing was."""
    if not figures.looked_up:
        return []
    return [("drafted from earlier text, of these in the answer", f"{figures.looked_up}, {figures.lookups_accepted}")]


def _branch_rows(figures: SplitFigures) -> list[tuple[str, str]]:
    """Return what parallel drafting did; nothing if it is off."""
    if not figures.branches:
        return []
    return [("drafted ahead, of these right, their tokens", f"{figures.branches}, {figures.branch_hits}, {figures.branch_tokens}")]


def _dispatch_section(report: Report) -> Section:
    dispatch = report.dispatch
    rows = [
        ("planned by", dispatch.policy),
        ("why", dispatch.reason),
        *_start_rows(report),
        ("prompt", f"{'~' if dispatch.is_estimated else ''}{dispatch.prompt_tokens} tokens"),
        *_budget_rows(report),
    ]
    return Section("which side starts when", (), list(rows))


def _start_rows(report: Report) -> list[tuple[str, str]]:
    """Return when each side starts; a side that has no endpoint is not named. Of two servers, the table of the endpoints says it."""
    sides = {"device": report.dispatch.device_wait, "server": report.dispatch.server_wait}
    kinds = {part.kind for part in report.endpoints}
    if report.dispatch.constraint not in _SIDES:
        return []
    return [(f"{side} starts", _start(wait)) for side, wait in sides.items() if side in kinds or not kinds]


def _budget_rows(report: Report) -> list[tuple[str, str]]:
    """Return what the budget limits; nothing if there is no second side that could do the work in its place."""
    dispatch, shares = report.dispatch, f"{_share(report.dispatch.budget)}, {_share(report.dispatch.budget_share)}"
    if dispatch.constraint not in _SIDES:
        return [("the budget limits", dispatch.constraint or ""), ("budget, share so far", shares)]
    if report.endpoints and not _has_device(report.endpoints):
        return []
    return [("constrained side", dispatch.constraint or "none"), ("its budget, its share so far", shares)]


def _has_device(endpoints: Sequence[EndpointReport]) -> bool:
    return any(part.kind == "device" for part in endpoints)


def _start(wait: float | None) -> str:
    if wait is None:
        return "only if the other side fails"
    return "at once" if wait == 0 else f"after {format_seconds(wait)}"


def _endpoint_section(endpoints: Sequence[EndpointReport]) -> Section:
    has_device = _has_device(endpoints)
    heads = ("endpoint", "outcome", "started", "TTFT", "prompt", "made", "cost", *(["energy"] if has_device else []))
    rows: list[tuple[str, ...]] = []
    for part in endpoints:
        about = "~" if part.is_estimated else ""
        counts = (f"{about}{part.prompt_tokens}", f"{about}{part.completion_tokens}")
        times = (format_seconds(part.opened), format_seconds(part.ttft))
        energy = [format_joules(part.energy_j)] if has_device else []
        rows.append((part.name, part.outcome, *times, *counts, format_usd(part.cost_usd), *energy))
    rows += [(f"{part.name}: {part.error}",) for part in endpoints if part.error]
    rows += [(f"{part.name}: tokens counted by {part.counted_by}",) for part in endpoints if part.counted_by not in _OWN_COUNTERS]
    return Section("endpoints", heads, rows)


def sections_to_text(sections: Sequence[Section]) -> str:
    """Return tables as plain text with aligned columns."""
    return "\n\n".join("\n".join([section.title, *_aligned(section)]) for section in sections)


def _aligned(section: Section) -> list[str]:
    lines = [section.heads, *section.rows] if section.heads else section.rows
    columns = [line for line in lines if len(line) > 1]  # a line of one cell runs over all columns
    widths = [max(len(line[index]) for line in columns) for index in range(len(columns[0]))] if columns else []
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
