"""A report's figures as text, and its parts as tables."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from msgspec import Struct

from streamco.core.confidence import BEGINNING, Confidence
from streamco.core.report_parts import AnswerPlan, EndpointReport, Grade, ShadowReport, SpeculationFigures, SplitFigures

__all__ = [
    "Section",
    "endpoint_section",
    "format_confidence",
    "format_grade",
    "format_joules",
    "format_saving",
    "format_seconds",
    "format_share",
    "format_usd",
    "grade_rows",
    "plan_section",
    "sections_to_text",
    "shadow_rows",
    "speculation_section",
    "split_section",
]

_SHORT_SPLIT = frozenset({"sent to the server", "up", "down", "trips, tokens a trip", "drafted, of these in the answer"})
_OWN_COUNTERS = (None, "engine", "usage", "estimate")  # an estimate has its mark in the table


class Section(Struct, frozen=True):
    """A table with its title, its column heads and its rows. There are no heads if the columns are just label and value."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def format_seconds(seconds: float | None) -> str:
    """Return a time as text, or "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def format_usd(dollars: float | None) -> str:
    """Return a cost as text, with two significant digits if it is below a cent, or "unknown" for None."""
    if dollars is None:
        return "unknown"
    if dollars >= 0.01:
        return f"${dollars:.4f}".rstrip("0").rstrip(".")
    return f"${Decimal(f'{dollars:.1e}'):f}".rstrip("0").rstrip(".") if dollars else "$0"


def format_saving(dollars: float | None) -> str:
    """Return a difference between two costs as text. A negative difference is a loss."""
    return f"-{format_usd(-dollars)}" if dollars is not None and dollars < 0 else format_usd(dollars)


def format_joules(joules: float | None) -> str:
    """Return an amount of energy as text, or "-" for None."""
    return "-" if joules is None else f"{joules:.2g} J" if joules < 10 else f"{joules:.0f} J"


def format_share(share: float | None) -> str:
    """Return a share as a percentage, or "-" for None."""
    return "-" if share is None else f"{share:.1%}"


def plan_section(plan: AnswerPlan) -> Section:
    """Return a table of the ways in which an answer could have been made, with a forecast for each, and the ways that were ruled out."""
    heads = ("way", "first word", "tokens/s", "cost", "energy", "quality", "weighed")
    rows: list[tuple[str, ...]] = []
    for way in plan.ways:
        if not way.obstacle:
            rate = "-" if way.rate is None else f"{way.rate:.1f}"
            quality = "-" if way.quality is None or way.is_unknown else f"{way.quality:.2f}"
            cost = "-" if way.is_unknown else format_usd(way.dollars)
            weighed = "-" if way.cost is None else f"{way.cost:.3g}"
            name = f"{way.name} <" if way.name == plan.way else way.name
            rows.append((name, format_seconds(way.first_word), rate, cost, format_joules(way.joules), quality, weighed))
    rows += [(f"{way.name}: {way.obstacle}",) for way in plan.ways if way.obstacle]
    rows.append((f"{plan.way}: {plan.reason}",))
    return Section(f"ways to make an answer of about {plan.tokens:.0f} tokens", heads, rows)


def speculation_section(figures: SpeculationFigures, *, is_short: bool = False) -> Section:
    """Return the table of a speculated answer: who wrote its tokens and, unless ``is_short``, the counts of drafts and rounds."""
    makers = (
        ("accepted", figures.accepted),
        ("corrected", figures.corrected),
        ("bonus", figures.bonus),
        ("not verified", figures.device),
        ("by the server alone", figures.remote),
    )
    losses = (figures.fallbacks, figures.refusals, figures.losses)
    begin = [
        ("tokens", ", ".join(f"{count} {name}" for name, count in makers if count)),
        ("of verified drafts accepted", format_share(figures.acceptance)),
    ]
    verified = ("of drafts verified, their budget", f"{format_share(figures.offloaded_share)}, {format_share(figures.budget)}")
    lost = ("server alone, refusals, lost connections", ", ".join(map(str, losses)))
    own = ("the server's own answer", "yes" if figures.is_exact else "no")
    if is_short:
        return Section(
            "drafts and verdicts", (), [*begin, *([verified] if figures.budget < 1 else []), *([lost] if any(losses) else []), own]
        )
    rows = [
        *begin,
        verified,
        ("next draft ready with the verdict", format_share(figures.hit_rate)),
        ("next draft sent ahead of it", format_share(figures.ahead_rate)),
        ("rounds, bytes up and down", f"{figures.rounds}, {figures.bytes_up} and {figures.bytes_down}"),
        ("drafted, of these not in the answer", f"{figures.drafted}, {figures.wasted}"),
        ("computed by the server", f"{figures.target_tokens} tokens"),
        lost,
        own,
    ]
    return Section("drafts and verdicts", (), list(rows))


def split_section(figures: SplitFigures, *, is_short: bool = False) -> Section:
    """Return the table of a split model's answer, about its traffic with the servers; if ``is_short``, only bytes, trips and drafts."""
    per_trip = "-" if figures.tokens_per_trip is None else f"{figures.tokens_per_trip:.2f}"
    rows = [
        ("sent to the server", figures.sent),
        ("up", f"{figures.rows_up} states, {figures.bytes_up} bytes"),
        ("down", f"{figures.rows_down} states, {figures.bytes_down} bytes"),
        ("trips, tokens a trip", f"{figures.trips}, {per_trip}"),
        ("messages up, states sent again", f"{figures.chunks}, {figures.repeated_rows}"),
        ("drafted, of these in the answer", f"{figures.drafted}, {figures.accepted}"),
        *([] if is_short else _further_split_rows(figures)),
    ]
    return Section("split model", (), [row for row in rows if not is_short or row[0] in _SHORT_SPLIT])


def _further_split_rows(figures: SplitFigures) -> list[tuple[str, str]]:
    return [
        *_lookup_rows(figures),
        *_branch_rows(figures),
        ("servers, sessions", f"{', '.join(figures.servers) or '-'}; {figures.sessions}"),
        ("states lost nothing on the way", "yes" if figures.is_exact else "no"),
    ]


def _lookup_rows(figures: SplitFigures) -> list[tuple[str, str]]:
    """Return a row about the tokens drafted from earlier text, or nothing if there were none."""
    if not figures.looked_up:
        return []
    return [("drafted from earlier text, of these in the answer", f"{figures.looked_up}, {figures.lookups_accepted}")]


def _branch_rows(figures: SplitFigures) -> list[tuple[str, str]]:
    """Return a row about parallel drafting, or nothing if no branch was drafted."""
    if not figures.branches:
        return []
    return [("drafted ahead, of these right, their tokens", f"{figures.branches}, {figures.branch_hits}, {figures.branch_tokens}")]


def format_confidence(confidence: Confidence) -> str:
    """Describe a confidence: "0.91 sure of its first 16 tokens, 0.62 of its most doubtful sentence"."""
    beginning = f"{confidence.beginning:.2f} sure of its first {min(confidence.tokens, BEGINNING)} tokens"
    worst = confidence.worst_sentence
    return beginning if worst is None else f"{beginning}, {worst:.2f} of its most doubtful sentence"


def format_grade(grade: Grade) -> str:
    """Return the quality gate's verdict as text: "sure, 0.91", "unsure, 0.34" or "not graded"."""
    return grade.verdict if grade.score is None else f"{grade.verdict}, {grade.score:.2f}"


def grade_rows(grade: Grade | None) -> list[tuple[str, str]]:
    """Return rows about the quality gate's verdict and the endpoint it asked, or nothing if there was no gate."""
    if grade is None:
        return []
    said = f"{format_grade(grade)} by {grade.tokens} tokens, good enough from {grade.min_score:.2f} on"
    asked = [("asked because of that", grade.asked)] if grade.asked else []
    return [("device's answer before it was shown", said if grade.score is not None else grade.verdict), *asked]


def shadow_rows(shadow: ShadowReport | None) -> list[tuple[str, str]]:
    """Return a row about the shadow answer, its result and its cost, or nothing if there was none."""
    if shadow is None:
        return []
    said = shadow.why_not or ("not compared yet" if shadow.good is None else "as good" if shadow.good else "better than the device's")
    return [("shadow answer", f"{shadow.endpoint}: {said}, {format_usd(shadow.cost_usd)}")]


def endpoint_section(endpoints: Sequence[EndpointReport], *, is_short: bool = False) -> Section:
    """Return the table of an answer's endpoints: one row each, then the errors, then where token counts came from if not from the endpoint.

    ``is_short`` leaves out estimates of energy, the servers' kinds and the sources of the counts.
    """
    has_energy = any(part.is_energy_measured if is_short else part.kind == "device" for part in endpoints)
    heads = ("endpoint", "outcome", "started", "TTFT", "prompt", "made", "cost", *(["energy"] if has_energy else []))
    rows: list[tuple[str, ...]] = []
    for part in endpoints:
        about = "~" if part.is_estimated else ""
        counts = (f"{about}{part.prompt_tokens}", f"{about}{part.completion_tokens}")
        times = (format_seconds(part.opened), format_seconds(part.ttft))
        energy = [format_joules(part.energy_j)] if has_energy else []
        rows.append((part.name, part.outcome, *times, *counts, format_usd(part.cost_usd), *energy))
    rows += [(f"{part.name}: its server is {part.server}",) for part in endpoints if part.server and not is_short]
    rows += [(f"{part.name}: {format_confidence(part.confidence)}",) for part in endpoints if part.confidence is not None]
    rows += [(f"{part.name}: {part.error}",) for part in endpoints if part.error]
    counted = [] if is_short else [part for part in endpoints if part.counted_by not in _OWN_COUNTERS]
    rows += [(f"{part.name}: tokens counted by {part.counted_by}",) for part in counted]
    return Section("endpoints", heads, rows)


def sections_to_text(sections: Sequence[Section]) -> str:
    """Return tables as plain text with aligned columns."""
    return "\n\n".join("\n".join([section.title, *_aligned(section)]) for section in sections)


def _aligned(section: Section) -> list[str]:
    lines = [section.heads, *section.rows] if section.heads else section.rows
    columns = [line for line in lines if len(line) > 1]  # a line of one cell spans all columns
    widths = [max(len(line[index]) for line in columns) for index in range(len(columns[0]))] if columns else []
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
