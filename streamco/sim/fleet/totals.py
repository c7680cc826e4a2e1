"""Totals over all answers of a simulated fleet; the answers themselves aren't kept."""

from __future__ import annotations

from streamco.core.verifier.events import SendVerdict
from streamco.sim.experiment.metrics import Quantiles
from streamco.sim.fleet.fleet import AnswerOutcome

__all__ = ["FleetTotals"]


class FleetTotals:
    """Counts and sums over all answers and verdicts. Metrics without measurements are left out."""

    def __init__(self) -> None:
        self._verdicts = Quantiles()
        self._queued = 0.0
        self._answers = self._tokens = self._rounds = self._sent = self._hits = 0
        self._drafted = self._used = self._chunks = self._offloaded = self._remote = 0
        self._bytes_up = self._frames = 0
        self._delay = self._waited = self._joules = 0.0
        self._cloud = self._compared = self._right = 0

    def record_verdict(self, verdict: SendVerdict) -> None:
        """Record a verdict that a server has sent."""
        self._verdicts.add(verdict.queued + verdict.compute)
        self._queued += verdict.queued

    def record(self, outcome: AnswerOutcome) -> None:
        """Record the outcome of a request."""
        self._answers += 1
        self._tokens += outcome.tokens
        self._waited += outcome.began - outcome.request.arrival
        traffic, report = outcome.traffic, outcome.report
        self._bytes_up += traffic.bytes_up
        self._frames += traffic.frames
        self._delay += traffic.delay
        self._joules += outcome.joules
        self._drafted += outcome.drafted
        self._compared += outcome.request.output_tokens
        if report is None:
            self._remote += outcome.tokens
            self._cloud += outcome.tokens
            self._right += outcome.request.output_tokens
            return
        self._cloud += report.target_tokens
        self._right += outcome.request.output_tokens if outcome.right is None else outcome.right
        self._rounds += report.rounds
        self._sent += sum(outcome.windows)
        self._hits += report.hits
        self._used += report.accepted + report.device
        self._chunks += report.chunks
        self._offloaded += report.offloaded
        self._remote += report.remote

    def metrics(self, server_tokens: int) -> dict[str, float]:
        """Return the metrics, by their names in ``kind.SpeculateKind``."""
        found: dict[str, float] = {}
        verdicts = self._verdicts.count
        if verdicts:
            found["verdict_mean"] = self._verdicts.mean
            found["verdict_p95"] = self._verdicts.quantile(0.95)
            found["verdict_queue"] = self._queued / verdicts
        if self._frames:
            found["network_delay"] = self._delay / self._frames
        if self._answers:
            found["device_wait"] = self._waited / self._answers
        if self._rounds:
            found["window_mean"] = self._sent / self._rounds
            found["hit_rate"] = self._hits / self._rounds
        if self._chunks:
            found["offloaded_share"] = self._offloaded / self._chunks
        if self._compared:
            found["agreement"] = self._right / self._compared
        if self._tokens:
            found["by_server_alone"] = self._remote / self._tokens
            found["bytes_up"] = self._bytes_up / self._tokens
            found["cloud_share"] = self._cloud / self._tokens
            found["drafted"] = self._drafted / self._tokens
            found["server_tokens"] = server_tokens / self._tokens
            if self._drafted:
                found["drafted_unused"] = (self._drafted - self._used) / self._tokens
            if self._joules:
                found["device_joules"] = self._joules / self._tokens
        return found
