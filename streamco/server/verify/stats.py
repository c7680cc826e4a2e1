"""What a verifier has done so far, as numbers."""

from __future__ import annotations

from collections import Counter

from streamco.core.verifier.events import RunBatch, SendVerdict
from streamco.server.verify.batches import BatchReport

__all__ = ["VerifyStats"]


class VerifyStats:
    """Counts since the server began.

    Attributes:
        opened: sessions.
        resumed: sessions, once for each time.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.resumed = 0
        self._verdicts = self._accepted = self._late_verdicts = 0
        self._queued = self._computed = 0.0
        self._refused: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._late_batches = self._failed_batches = 0

    def note_batch(self, batch: RunBatch) -> None:
        """A batch begins."""
        self._batches[batch.kind] += 1
        self._tokens[batch.kind] += sum(len(part.ids) for part in batch.parts)

    def note_report(self, report: BatchReport) -> None:
        """A batch has ended."""
        self._late_batches += report.late_s > 0
        self._failed_batches += report.error is not None

    def note_verdict(self, verdict: SendVerdict, *, is_late: bool) -> None:
        """A draft was judged; ``is_late``: a batch of it took longer than the imposed step times."""
        self._verdicts += 1
        self._accepted += verdict.accepted
        self._late_verdicts += is_late
        self._queued += verdict.queued
        self._computed += verdict.compute

    def note_refusal(self, reason: str) -> None:
        """A session or a draft was refused."""
        self._refused[reason] += 1

    def figures(self) -> dict[str, object]:
        """Return all of it, for JSON."""
        return {
            "opened": self.opened,
            "resumed": self.resumed,
            "verdicts": self._verdicts,
            "accepted_tokens": self._accepted,
            "late_verdicts": self._late_verdicts,
            "queued_s": round(self._queued, 6),
            "compute_s": round(self._computed, 6),
            "refused": dict(self._refused),
            "batches": dict(self._batches),
            "batch_tokens": dict(self._tokens),
            "late_batches": self._late_batches,
            "failed_batches": self._failed_batches,
        }
