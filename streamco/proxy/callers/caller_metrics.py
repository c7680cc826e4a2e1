"""Prometheus figures about callers. The label is the caller's name, so there are as many series as callers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from streamco.proxy.callers.base import from_nanos
from streamco.proxy.callers.store import SettledCost

__all__ = ["CallerMetrics"]


class CallerMetrics:
    """The metrics of a proxy's callers.

    Args:
        registry: registry that they are added to.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "streamco_caller_requests",
            "Requests of a caller: admitted, device only (its budget covers no server), no budget, rate exceeded.",
            ["caller", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "streamco_caller_tokens",
            "Tokens read (prompt) and generated (completion) for a caller.",
            ["caller", "kind"],
            registry=registry,
        )
        self._estimated = Counter(
            "streamco_caller_estimated_tokens",
            "Those among a caller's tokens that no endpoint has counted.",
            ["caller", "kind"],
            registry=registry,
        )
        self._cost = Counter("streamco_caller_cost_usd", "Money that a caller was charged.", ["caller"], registry=registry)
        self._failures = Counter("streamco_callers_file_errors", "Calls that the callers' file failed.", registry=registry)

    def record_request(self, name: str, outcome: str) -> None:
        """Count a request."""
        self._requests.labels(name, outcome).inc()

    def record_cost(self, name: str, settled: SettledCost) -> None:
        """Add the cost of an answer that has ended."""
        self._tokens.labels(name, "prompt").inc(settled.prompt_tokens)
        self._tokens.labels(name, "completion").inc(settled.completion_tokens)
        if settled.estimated_prompt_tokens or settled.estimated_completion_tokens:
            self._estimated.labels(name, "prompt").inc(settled.estimated_prompt_tokens)
            self._estimated.labels(name, "completion").inc(settled.estimated_completion_tokens)
        self._cost.labels(name).inc(from_nanos(settled.cost))

    def record_failure(self) -> None:
        """Count a call that failed because of the file."""
        self._failures.inc()
