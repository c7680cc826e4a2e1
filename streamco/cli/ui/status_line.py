"""The status line under a running answer: which endpoints are writing, how fast, since when, and at what cost."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from streamco.core.report_summary import Figure
from streamco.core.report_text import format_seconds

__all__ = ["Progress", "fitted"]

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS = 10  # steps a second
SILENCE = 2.0  # seconds without a token before the line says so


def fitted(figures: Sequence[Figure], width: int | None = None) -> str:
    """Return the figures in one line.

    Args:
        figures: from left to right. Until the line fits, the figure with the highest rank is left out (of several, the last one).
        width: cells that the line may have, or None for no limit. The line is longer only if the figures of rank 0 are.
    """
    kept = list(figures)
    while True:
        line = " · ".join(figure.text for figure in kept)
        least = max(reversed(kept), key=lambda figure: figure.rank, default=Figure(""))
        if width is None or _cells(line) <= width or not least.rank:
            return line
        kept = [figure for figure in kept if figure is not least]


def _cells(text: str) -> int:
    """Return the cells of a terminal that a text covers. rich can count them, too, but plain output doesn't need rich."""
    return sum(0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


class Progress:
    """Counts an answer's tokens as they come. Times are seconds on the caller's clock.

    Args:
        now: time when the prompt was sent.
    """

    def __init__(self, *, now: float) -> None:
        self.began = now
        self.first: float | None = None
        self.last = now
        self.counts: dict[str, int] = {}

    def record(self, source: str, *, now: float) -> None:
        """Count one token from this endpoint."""
        if self.first is None:
            self.first = now
        self.last = now
        self.counts[source] = self.counts.get(source, 0) + 1

    @property
    def tokens(self) -> int:
        """Tokens counted so far."""
        return sum(self.counts.values())

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first token, or None below two tokens."""
        if self.first is None or self.tokens < 2 or self.last <= self.first:
            return None
        return (self.tokens - 1) / (self.last - self.first)

    def waiting_line(self, asked: Sequence[str], *, now: float, width: int | None = None) -> str:
        """Return the status line before the first token.

        Args:
            asked: endpoints that are working on the answer.
            now: current time in seconds.
            width: cells of the line, or None for no limit.
        """
        names = " and ".join(asked) or "an answer"
        figures = (Figure(f"{self._spin(now)} waiting for {names}"), Figure(f"{now - self.began:.1f} s", 1), Figure("Ctrl-C stops", 2))
        return fitted(figures, width)

    def line(self, *, now: float, drafts: Sequence[Figure] = (), cost: str = "", width: int | None = None) -> str:
        """Return the status line.

        Args:
            now: current time in seconds.
            drafts: figures so far about drafts, or about trips to a split model's servers.
            cost: cost of the answer so far.
            width: cells of the line, or None for no limit. The hint how to stop is left out first, then the figures that the line under the
                answer will show anyway.
        """
        first = format_seconds(None if self.first is None else self.first - self.began)
        figures = [Figure(f"{self._spin(now)} {self._makers()}"), Figure(f"first token {first}", 7)]
        if self.rate is not None:
            figures.append(Figure(f"{self.rate:.1f} tokens/s", 2))
        figures.append(Figure(f"{self.tokens} token{'s' if self.tokens != 1 else ''}", 5))
        if is_silent := now - self.last >= SILENCE:
            figures.append(Figure(f"nothing for {now - self.last:.0f} s"))
        figures += [*drafts, *([Figure(cost, 8)] if cost else [])]
        return fitted([*figures, Figure("Ctrl-C stops", 1 if is_silent else 9)], width)

    def _spin(self, now: float) -> str:
        return SPINNER[int((now - self.began) * SPINS) % len(SPINNER)]

    def _makers(self) -> str:
        if len(self.counts) == 1:
            return next(iter(self.counts))
        return " + ".join(f"{source} {count}" for source, count in self.counts.items())
