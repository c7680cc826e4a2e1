"""The status line under a running answer: which endpoints write, how fast, since when, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from streamco.core.report_text import format_seconds

__all__ = ["Progress"]

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS = 10  # steps a second
SILENCE = 2.0  # seconds without a token before the line says so


class Progress:
    """Counts an answer's tokens as they come; times are seconds on the caller's clock.

    Args:
        now: when the prompt was sent.
    """

    def __init__(self, *, now: float) -> None:
        self.began = now
        self.first: float | None = None
        self.last = now
        self.counts: dict[str, int] = {}

    def record(self, source: str, *, now: float) -> None:
        """Count one token of this endpoint."""
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
        """Tokens a second after the first; None below two tokens."""
        if self.first is None or self.tokens < 2 or self.last <= self.first:
            return None
        return (self.tokens - 1) / (self.last - self.first)

    def waiting_line(self, asked: Sequence[str], *, now: float) -> str:
        """Return the status line before the first token. ``asked``: endpoints that work on it."""
        names = " and ".join(asked) or "an answer"
        return f"{self._spin(now)} waiting for {names} · {now - self.began:.1f} s · Ctrl-C stops"

    def line(self, *, now: float, drafts: str = "", cost: str = "") -> str:
        """Return the status line. ``drafts`` and ``cost`` are texts about the answer so far."""
        first = format_seconds(None if self.first is None else self.first - self.began)
        parts = [f"{self._spin(now)} {self._makers()}", f"first token {first}"]
        if self.rate is not None:
            parts.append(f"{self.rate:.1f} tokens/s")
        parts.append(f"{self.tokens} token{'s' if self.tokens != 1 else ''}")
        if now - self.last >= SILENCE:
            parts.append(f"nothing for {now - self.last:.0f} s")
        parts += [text for text in (drafts, cost) if text]
        return " · ".join([*parts, "Ctrl-C stops"])

    def _spin(self, now: float) -> str:
        return SPINNER[int((now - self.began) * SPINS) % len(SPINNER)]

    def _makers(self) -> str:
        if len(self.counts) == 1:
            return next(iter(self.counts))
        return " + ".join(f"{source} {count}" for source, count in self.counts.items())
