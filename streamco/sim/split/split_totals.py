"""Totals over all answers and batches of a simulated split model; the answers themselves aren't kept (HAT, section 4)."""

from __future__ import annotations

import math

from streamco.sim.experiment.metrics import Quantiles
from streamco.sim.split.options import SplitPolicyOptions
from streamco.sim.split.split_answer import SplitAnswerOutcome

__all__ = ["SplitTotals"]

PROMPT_UNIT, ANSWER_UNIT = 128, 10  # numbers of tokens for which section 4.2 gives its two limits


class SplitTotals:
    """Counts and sums over all answers and batches. Metrics without measurements are left out.

    Args:
        policy: the policy, which has the time limits.
        stages: number of the server's pipeline stages.
    """

    def __init__(self, policy: SplitPolicyOptions, stages: int) -> None:
        self._limits = (policy.prefill_sla_ms / 1e3, policy.decode_sla_ms / 1e3)
        self._stages = stages
        self._slas = (Quantiles(), Quantiles())
        self._in_time = [0, 0]
        self._answers = self._tokens = self._rounds = self._made = self._hits = self._drafts = self._chunks = self._prompts = 0
        self._bytes_up = self._bytes_down = 0
        self._parts = [0.0, 0.0, 0.0]
        self._batches = self._rows = 0
        self._stage = self._stage_squares = 0.0

    def record_batch(self, rows: int, seconds: float) -> None:
        """Record a batch and its seconds over all stages."""
        each = seconds / self._stages
        self._batches += 1
        self._rows += rows
        self._stage += each
        self._stage_squares += each * each

    def record(self, outcome: SplitAnswerOutcome) -> None:
        """Record the outcome of a request."""
        request = outcome.request
        self._answers += 1
        self._tokens += outcome.tokens
        self._rounds += outcome.rounds
        self._made += outcome.tokens - 1
        self._hits += outcome.hits
        self._chunks += len(outcome.chunks)
        self._prompts += request.prompt_tokens
        self._bytes_up += outcome.bytes_up
        self._bytes_down += outcome.bytes_down
        for index, seconds in enumerate((outcome.device_seconds, outcome.link_seconds, outcome.server_seconds)):
            self._parts[index] += seconds
        self._record_limit(0, (outcome.first - request.arrival) / max(1.0, request.prompt_tokens / PROMPT_UNIT))
        if outcome.tokens > 1:
            self._record_limit(1, ANSWER_UNIT * (outcome.ended - outcome.first) / (outcome.tokens - 1))

    def _record_limit(self, index: int, seconds: float) -> None:
        self._slas[index].add(seconds)
        self._in_time[index] += seconds <= self._limits[index]

    def metrics(self, server_rows: int) -> dict[str, float]:
        """Return the metrics, by their names in ``kind.SplitKind``."""
        found: dict[str, float] = {}
        if self._rounds:
            found["round_tokens"] = self._made / self._rounds
            found["hit_rate"] = self._hits / self._rounds
        if self._batches:
            mean = self._stage / self._batches
            found["stage_mean"] = mean
            found["stage_deviation"] = math.sqrt(max(0.0, self._stage_squares / self._batches - mean * mean))
            found["batch_rows"] = self._rows / self._batches
        if self._answers:
            found["chunk_rows"] = self._prompts / self._chunks
            found["prompt_device"], found["prompt_link"], found["prompt_server"] = (part / self._answers for part in self._parts)
            found["bytes_up"], found["bytes_down"] = self._bytes_up / self._answers, self._bytes_down / self._answers
            found["server_rows"] = (server_rows - self._prompts) / self._tokens
        for index, name in enumerate(("prefill", "decode")):
            quantiles = self._slas[index]
            if quantiles.count:
                found[f"{name}_in_time"] = self._in_time[index] / quantiles.count
                found |= {f"{name}_sla_p{100 * share:.0f}": quantiles.quantile(share) for share in (0.5, 0.9, 0.99)}
        return found
