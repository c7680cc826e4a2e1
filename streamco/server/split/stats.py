"""Counters of a split server, for its stats page."""

from __future__ import annotations

from streamco.core.verifier.events import RunBatch
from streamco.server.http.prometheus import FigureMetric
from streamco.server.verify.hosted_sessions import SessionStats

__all__ = ["SPLIT_METRICS", "SplitStats"]

SPLIT_METRICS = (
    FigureMetric("connections", "streamco_split_connections", "Devices that are connected.", "gauge"),
    FigureMetric("sessions", "streamco_split_sessions", "Sessions that are remembered.", "gauge"),
    FigureMetric("opened", "streamco_split_opened_sessions", "Sessions opened."),
    FigureMetric("resumed", "streamco_split_resumed_sessions", "Sessions resumed after a lost connection."),
    FigureMetric("evicted", "streamco_split_evicted_sessions", "Times that a session lost its rows to another one."),
    FigureMetric("rounds", "streamco_split_rounds", "Rounds answered."),
    FigureMetric("rows", "streamco_split_rows", "Rows computed."),
    FigureMetric("batches", "streamco_split_batches", "Batches computed."),
    FigureMetric("failed_batches", "streamco_split_failed_batches", "Batches that failed."),
    FigureMetric("queued_s", "streamco_split_queue_seconds", "Seconds that rounds waited for their batches, added up."),
    FigureMetric("compute_s", "streamco_split_compute_seconds", "Seconds of the batches of rounds, added up."),
    FigureMetric("refused", "streamco_split_refusals", "Sessions and rounds refused.", "counter", "reason"),
)


class SplitStats(SessionStats):
    """Counters of a split server.

    Attributes:
        evicted: number of times that a session lost its rows to another one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evicted = 0
        self._rounds = self._rows = self._returned = self._batches = self._mixed = self._merged = self._failed = 0

    def record_batch(self, batch: RunBatch) -> None:
        """Record the beginning of a batch."""
        self._batches += 1
        self._rows += sum(len(part.ids) for part in batch.parts)
        self._mixed += len(batch.parts) > 1

    def record_part(self, rounds: int) -> None:
        """Record a session's part of a batch, whose rows belong to this number of rounds."""
        self._merged += rounds - 1

    def record_failure(self) -> None:
        """Record a batch that failed."""
        self._failed += 1

    def record_round(self, returned: int, *, queued: float, computed: float) -> None:
        """Record an answered round.

        Args:
            returned: rows that came back.
            queued: seconds that it waited while none of its batches ran.
            computed: seconds that its batches took.
        """
        self._rounds += 1
        self._returned += returned
        self._record_times(queued, computed)

    def figures(self) -> dict[str, object]:
        """Return all counters as a JSON object."""
        return {
            "opened": self.opened,
            "resumed": self.resumed,
            "evicted": self.evicted,
            "rounds": self._rounds,
            "rows": self._rows,
            "returned_rows": self._returned,
            "batches": self._batches,
            "shared_batches": self._mixed,
            "merged_rounds": self._merged,
            "failed_batches": self._failed,
            **self._totals(),
        }
