"""An answer's report, as headers of a whole answer, or as a comment in a stream, which event parsers skip."""

from __future__ import annotations

import msgspec

from streamco.core.report import Opening, Report, opening_of
from streamco.core.report_parts import SpeculationFigures, SplitFigures
from streamco.core.report_text import format_grade

__all__ = ["comment", "headers", "model_header", "opening_headers"]

_MAX_LENGTH = 500  # characters of one header; reasons don't quote prompts, but they may name many endpoints


def headers(report: Report) -> dict[str, str]:
    """Return the ``x-streamco-*`` headers for a whole answer. Unknown values are left out."""
    cost = {} if report.cost_usd is None else {"x-streamco-cost-usd": f"{report.cost_usd:.9f}"}
    return opening_headers(opening_of(report)) | cost | _draft_headers(report.speculation) | _split_headers(report.split)


def _draft_headers(figures: SpeculationFigures | None) -> dict[str, str]:
    if figures is None:
        return {}
    shares = {"acceptance": figures.acceptance, "offloaded-share": figures.offloaded_share, "hit-rate": figures.hit_rate}
    values = {f"x-streamco-{name}": f"{share:.4f}" for name, share in shares.items() if share is not None}
    return values | {"x-streamco-rounds": str(figures.rounds), "x-streamco-exact": "true" if figures.is_exact else "false"}


def _split_headers(figures: SplitFigures | None) -> dict[str, str]:
    if figures is None:
        return {}
    per_trip = {} if figures.tokens_per_trip is None else {"x-streamco-tokens-per-trip": f"{figures.tokens_per_trip:.4f}"}
    values = {"trips": figures.trips, "bytes-up": figures.bytes_up, "bytes-down": figures.bytes_down, "sessions": figures.sessions}
    exact = {"x-streamco-exact": "true" if figures.is_exact else "false"}
    return {f"x-streamco-{name}": str(value) for name, value in values.items()} | per_trip | exact


def opening_headers(opening: Opening) -> dict[str, str]:
    """Return the headers that are known at the first token."""
    values = {
        "mode": opening.mode,
        "winner": opening.winner,
        "ttft-ms": None if opening.ttft is None else f"{opening.ttft * 1000:.1f}",
        "policy": opening.dispatch.policy,
        "reason": opening.dispatch.reason,
        "grade": None if opening.grade is None else format_grade(opening.grade),
        "notes": "; ".join(opening.notes),
    }
    return {f"x-streamco-{name}": _plain(text) for name, text in values.items() if text}


def model_header(opening: Opening, unknown: str) -> dict[str, str]:
    """Return a header that says the device answered a request for another model, or {} if it didn't.

    Args:
        opening: what is known about the answer at its first token.
        unknown: the requested model if the proxy doesn't have it, otherwise "".
    """
    if not unknown or opening.winner_kind != "device":
        return {}
    return {"x-streamco-model-note": _plain(f"{opening.winner} answered with its own model, not with {unknown}")}


def comment(report: Report) -> bytes:
    """Return the whole report as a comment with JSON on one line: ``: streamco {...}``."""
    return b": streamco %b\n\n" % msgspec.json.encode(report)


def _plain(text: str) -> str:
    """Return the text in a form that is safe in a header: printable ASCII as it is, everything else escaped."""
    if text.isascii() and text.isprintable():
        return text[:_MAX_LENGTH]
    shown = "".join([character if character.isprintable() else f"\\u{ord(character):04x}" for character in text])
    return shown.encode("ascii", "backslashreplace").decode()[:_MAX_LENGTH]
