"""Counters of a verifier, for its stats page."""

from __future__ import annotations

from collections import Counter

from streamco.core.verifier.events import RunBatch, SendVerdict
from streamco.server.http.prometheus import FigureMetric
from streamco.server.verify.batches import BatchReport
from streamco.server.verify.hosted_sessions import SessionStats

__all__ = ["VERIFY_METRICS", "VerifyStats"]

VERIFY_METRICS = (
    FigureMetric("connections", "streamco_verify_connections", "Devices that are connected.", "gauge"),
    FigureMetric("sessions", "streamco_verify_sessions", "Sessions that are remembered.", "gauge"),
    FigureMetric("session_limit", "streamco_verify_session_limit", "Sessions in use, beyond which new ones are refused.", "gauge"),
    FigureMetric("waiting_rounds", "streamco_verify_waiting_rounds", "Rounds that wait for a batch.", "gauge"),
    FigureMetric("cached_tokens", "streamco_verify_reserved_tokens", "Tokens that sessions keep in memory.", "gauge"),
    FigureMetric("opened", "streamco_verify_opened_sessions", "Sessions opened."),
    FigureMetric("resumed", "streamco_verify_resumed_sessions", "Sessions resumed after a lost connection."),
    FigureMetric("verdicts", "streamco_verify_verdicts", "Verdicts."),
    FigureMetric("accepted_tokens", "streamco_verify_accepted_tokens", "Drafted tokens that were accepted."),
    FigureMetric("queued_s", "streamco_verify_queue_seconds", "Seconds that rounds waited for their batches, added up."),
    FigureMetric("compute_s", "streamco_verify_compute_seconds", "Seconds of the batches of rounds, added up."),
    FigureMetric("refused", "streamco_verify_refusals", "Sessions and drafts refused.", "counter", "reason"),
    FigureMetric("batches", "streamco_verify_batches", "Batches, by kind.", "counter", "kind"),
    FigureMetric("batch_tokens", "streamco_verify_batch_tokens", "Rows of batches, by their kind.", "counter", "kind"),
    FigureMetric("failed_batches", "streamco_verify_failed_batches", "Batches that failed."),
    FigureMetric("aborted_batches", "streamco_verify_aborted_batches", "Batches that were stopped because no session waited for them."),
)


class VerifyStats(SessionStats):
    """Counters of a verifier."""

    def __init__(self) -> None:
        super().__init__()
        self._verdicts = self._accepted = self._late_verdicts = 0
        self._batches: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._late_batches = self._failed_batches = self._aborted_batches = self._cancelled_parts = 0

    def record_batch(self, batch: RunBatch) -> None:
        """Record the beginning of a batch."""
        self._batches[batch.kind] += 1
        self._tokens[batch.kind] += sum(len(part.ids) for part in batch.parts)

    def record_report(self, report: BatchReport) -> None:
        """Record the end of a batch."""
        self._late_batches += report.late_s > 0
        self._failed_batches += report.error is not None
        self._aborted_batches += report.is_aborted
        self._cancelled_parts += report.cancelled

    def record_verdict(self, verdict: SendVerdict, accepted: int, *, is_late: bool) -> None:
        """Record a verdict.

        Args:
            verdict: the verdict.
            accepted: number of tokens that it accepts.
            is_late: True if one of its batches took longer than the imposed step times.
        """
        self._verdicts += 1
        self._accepted += accepted
        self._late_verdicts += is_late
        self._record_times(verdict.queued, verdict.compute)

    def figures(self) -> dict[str, object]:
        """Return all counters as a JSON object."""
        return {
            "opened": self.opened,
            "resumed": self.resumed,
            "verdicts": self._verdicts,
            "accepted_tokens": self._accepted,
            "late_verdicts": self._late_verdicts,
            **self._totals(),
            "batches": dict(self._batches),
            "batch_tokens": dict(self._tokens),
            "late_batches": self._late_batches,
            "failed_batches": self._failed_batches,
            "aborted_batches": self._aborted_batches,
            "cancelled_parts": self._cancelled_parts,
        }
