"""A report in one line, to be shown under an answer."""

from __future__ import annotations

from msgspec import Struct

from streamco.core.report import Report, saved_share
from streamco.core.report_parts import Grade, HandOver
from streamco.core.report_text import format_grade, format_seconds, format_usd

__all__ = ["Figure", "note_line", "speculation_figures", "split_figures", "summary", "summary_figures"]


class Figure(Struct, frozen=True):
    """A piece of the line about an answer. If the line is too long, the highest rank is left out first; rank 0 always stays."""

    text: str
    rank: int = 0


def summary(report: Report, *, ending: str = "") -> str:
    """Return the figures of an answer and its first note in one line. ``ending`` is "stopped", "failed", or "" if it is complete."""
    texts = [figure.text for figure in summary_figures(report, ending=ending)]
    return " · ".join([*texts, *filter(None, [note_line(report)])])


def summary_figures(report: Report, *, ending: str = "") -> list[Figure]:
    """Return the figures for the line about an answer. ``ending`` is "stopped", "failed", or "" if it is complete."""
    figures = [Figure(f"{report.winner or 'no endpoint'} answered")]
    figures += [Figure(_change(report, change), 1) for change in report.hand_overs]
    figures += [
        *(_confidence_figures(report) if report.grade is None else _grade_figures(report, report.grade)),
        *speculation_figures(report),
        *split_figures(report),
        Figure(f"first token {format_seconds(report.ttft)}", 5),
    ]
    if report.tokens_per_second is not None:
        figures.append(Figure(f"{report.tokens_per_second:.1f} tokens/s", 3))
    figures.append(Figure(f"{report.tokens} token{'s' if report.tokens != 1 else ''}", 8))
    figures.append(Figure("cost unknown", 9) if report.cost_usd is None else Figure(format_usd(report.cost_usd), 6))
    return [*figures, Figure(ending)] if ending else figures


def _confidence_figures(report: Report) -> list[Figure]:
    """Return how sure the model that began the answer was, or nothing if that isn't known."""
    found = next((part.confidence for part in report.endpoints if part.name == report.winner), None)
    return [] if found is None else [Figure(f"{found.beginning:.2f} sure of its beginning", 6)]


def _grade_figures(report: Report, grade: Grade) -> list[Figure]:
    """Return how sure the device was when its answer was graded: ``sure, 0.91``, or ``the device was unsure, 0.34``."""
    winner = next((part.kind for part in report.endpoints if part.name == report.winner), "device")
    subject = "" if winner == "device" else "the device was "
    return [Figure(f"{subject}{format_grade(grade)}", 2)]


def note_line(report: Report) -> str:
    """Return the answer's first note, and how many more there are, or "" if there is none."""
    more = [f"{len(report.notes) - 1} more in the report"] if len(report.notes) > 1 else []
    return " · ".join([*report.notes[:1], *more])


def speculation_figures(report: Report) -> list[Figure]:
    """Return how many of the drafts were accepted and verified, or nothing if there were no drafts.

    Another figure counts the tokens without a verdict: ``326 of 406 tokens by the device alone``, if all should have been verified.
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
    """Return the figures of a split model's trips, or nothing if there were none.

    If a server was lost, another figure says so: ``went on at host:8001 after a loss``.
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
    """Describe a hand-over: ``moved to device after token 18, 82% cheaper``, compared with the answer without it."""
    if not change.is_planned:
        return f"{change.target} took over after token {change.position}"
    share = saved_share(report, change)
    saved = "" if share is None else f", {abs(share):.0%} {'cheaper' if share >= 0 else 'more expensive'}"
    return f"moved to {change.target} after token {change.position}{saved}"
