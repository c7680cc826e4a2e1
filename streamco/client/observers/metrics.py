"""Prometheus metrics of a client's answers, made with ``prometheus_client``.

Each answer is counted once, from its final report. Names and units follow Prometheus' conventions: seconds, US
dollars, ``_total`` for counters. The buckets follow OpenTelemetry's GenAI conventions, so that both can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from streamco.client.answer_log import describe_error
from streamco.client.observers.base import PACKAGE_VERSION, ObservedAttempt
from streamco.core.buckets import DURATION_BUCKETS, FIRST_TOKEN_BUCKETS, TOKEN_BUCKETS
from streamco.core.report import Report
from streamco.core.report_parts import EndpointReport, SpeculationFigures
from streamco.endpoints.base import Request

if TYPE_CHECKING:
    from streamco.client.client import Client

__all__ = ["AnswerMetrics"]

Family = TypeVar("Family", Counter, Histogram)


class AnswerMetrics:
    """The metrics of one client's answers; an observer for ``Client(observers=[...])``.

    Args:
        registry: where to register the metrics, by default ``prometheus_client.REGISTRY``, which most exporters serve. A registry accepts
            them only once.

    Raises:
        ValueError: the registry already has these metrics.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        self.registry = registry
        self._answers = _AnswerFamilies(registry)
        self._endpoints = _EndpointFamilies(registry)
        self._speculation = _SpeculationFamilies(registry)
        self._present = Gauge("streamco_streams", "Answers under way.", registry=registry)
        Gauge("streamco_build_info", "Version of streamco.", ["version"], registry=registry).labels(PACKAGE_VERSION).set(1)

    def watch(self, client: Client) -> None:
        """Export a client's budget and failed endpoints as gauges, which are read when Prometheus scrapes them."""
        gauges: Mapping[tuple[str, str], Callable[[], float]] = {
            ("streamco_budget_limit", "Allowed share of prompt tokens at the constrained side."): lambda: _number(client.totals.budget),
            ("streamco_budget_share", "Realised share of prompt tokens there."): lambda: _number(client.totals.budget_share),
            ("streamco_degraded_endpoints", "Endpoints that failed and have not answered since."): lambda: len(client.degraded),
        }
        for (name, text), function in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(function)

    def began(self, request: Request) -> _Observation:
        """Count an answer as in progress."""
        self._present.inc()
        return _Observation(self._record)

    def refused(self, request: Request, error: Exception) -> None:
        """Count a request that wasn't sent to any endpoint."""
        self._answers.refusals(describe_error(error)).inc()

    def _record(self, report: Report) -> None:
        self._present.dec()
        self._answers.record(report)
        for part in report.endpoints:
            if part.opened is not None:
                self._endpoints.record(part)
        if report.speculation is not None:
            self._speculation.record(report.speculation)


def _labelled(family: Family) -> Callable[..., Family]:
    """Return a function that returns the family's metric for given label values, cached, because every answer needs it."""
    return cache(family.labels)


class _Observation:
    """Follows one answer, and adds it to the metrics when it has ended."""

    def __init__(self, record: Callable[[Report], None]) -> None:
        self._record = record

    def opened(self, attempt: ObservedAttempt) -> Mapping[str, str]:
        """Return no headers, and record nothing, because the report has everything that is counted."""
        return {}

    def ended(self, report: Report) -> None:
        """Add the answer to the metrics."""
        self._record(report)


class _AnswerFamilies:
    """Metrics of whole answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.first_token = _labelled(
            Histogram(
                "streamco_time_to_first_token_seconds",
                "Seconds from the request to the first token at the reader.",
                ["winner"],
                buckets=FIRST_TOKEN_BUCKETS,
                registry=registry,
            )
        )
        self.per_token = _labelled(
            Histogram(
                "streamco_time_per_output_token_seconds",
                "Seconds for each token after the first, a mean over one answer.",
                ["winner"],
                buckets=TOKEN_BUCKETS,
                registry=registry,
            )
        )
        self.duration = _labelled(
            Histogram(
                "streamco_request_duration_seconds",
                "Seconds from the request to the end of the delivery.",
                ["outcome"],
                buckets=DURATION_BUCKETS,
                registry=registry,
            )
        )
        self.requests = _labelled(
            Counter("streamco_requests", "Answers, by how they ended and how they were generated.", ["outcome", "mode"], registry=registry)
        )
        self.refusals = _labelled(Counter("streamco_refusals", "Requests that no endpoint was asked for.", ["error"], registry=registry))
        self.races = _labelled(
            Counter("streamco_races", "Answers that raced, by the endpoint that won.", ["winner", "policy"], registry=registry)
        )
        self.moves = _labelled(
            Counter("streamco_hand_overs", "Changes from one endpoint to another within an answer.", ["reason"], registry=registry)
        )
        self.grades = _labelled(
            Counter(
                "streamco_graded_answers",
                "Answers of the device that the quality gate has graded, by what it said and who answered.",
                ["verdict", "winner"],
                registry=registry,
            )
        )
        self.late = Counter("streamco_late_tokens", "Tokens that a reader waited for because of a hand-over.", registry=registry)
        self.notes = Counter("streamco_degraded_answers", "Answers that came otherwise than asked for.", registry=registry)

    def record(self, report: Report) -> None:
        """Add an answer."""
        winner, outcome = report.winner or "none", report.ending or "unfinished"
        if report.ttft is not None:
            self.first_token(winner).observe(report.ttft)
        if report.tokens_per_second:
            self.per_token(winner).observe(1.0 / report.tokens_per_second)
        self.duration(outcome).observe(report.duration)
        self.requests(outcome, report.mode).inc()
        if report.mode == "race":
            self.races(winner, report.dispatch.policy).inc()
        if report.grade is not None:
            self.grades(report.grade.verdict, winner).inc()
        for change in report.hand_overs:
            self.moves(change.reason).inc()
            self.late.inc(change.delayed_tokens)
        if report.notes:
            self.notes.inc()


class _EndpointFamilies:
    """Metrics of the requests to endpoints."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = _labelled(
            Counter("streamco_endpoint_requests", "Requests, by what became of them.", ["endpoint", "outcome"], registry=registry)
        )
        self.errors = _labelled(
            Counter("streamco_endpoint_errors", "Requests that ended in an error.", ["endpoint", "error"], registry=registry)
        )
        self.tokens = _labelled(
            Counter(
                "streamco_endpoint_tokens",
                "Tokens read (prompt) and generated (completion), and those among them that were in vain, or are estimates.",
                ["endpoint", "kind"],
                registry=registry,
            )
        )
        self.cost = _labelled(Counter("streamco_cost_usd", "Money, where prices are known.", ["endpoint"], registry=registry))
        self.energy = _labelled(
            Counter("streamco_energy_joules", "Energy of devices, measured or by the FLOPs model.", ["endpoint"], registry=registry)
        )
        self.unpriced = _labelled(Counter("streamco_unpriced_requests", "Requests without a known price.", ["endpoint"], registry=registry))

    def record(self, part: EndpointReport) -> None:
        """Add one endpoint's part in an answer."""
        self.requests(part.name, part.outcome).inc()
        if part.error_kind is not None:
            self.errors(part.name, part.error_kind).inc()
        counts = {
            "prompt": part.prompt_tokens,
            "completion": part.completion_tokens,
            "wasted_prompt": part.wasted_prompt_tokens,
            "wasted": part.wasted_tokens,
        }
        if part.is_estimated:
            counts |= {"estimated_prompt": part.prompt_tokens, "estimated_completion": part.completion_tokens}
        for kind, count in counts.items():
            self.tokens(part.name, kind).inc(count)
        if part.cost_usd is None:
            self.unpriced(part.name).inc()
        else:
            self.cost(part.name).inc(part.cost_usd)
        if part.energy_j is not None:
            self.energy(part.name).inc(part.energy_j)


class _SpeculationFamilies:
    """Metrics of speculated answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        texts = {
            "rounds": "Verdicts.",
            "draft_tokens": "Tokens drafted by the device.",
            "accepted_tokens": "Drafted tokens that the verifier accepted.",
            "target_tokens": "Tokens computed by the target model.",
            "stream_tokens": "Tokens that the target model generated alone.",
            "fallbacks": "Changes to the remote stream.",
            "refusals": "Drafts that an overloaded verifier refused.",
            "lost_connections": "Lost connections to a verifier.",
            "sent_bytes": "Bytes sent for rounds.",
            "received_bytes": "Bytes received for rounds.",
        }
        self._counters = {name: Counter(f"streamco_speculation_{name}", text, registry=registry) for name, text in texts.items()}

    def record(self, figures: SpeculationFigures) -> None:
        """Add a speculated answer."""
        counts = {
            "rounds": figures.rounds,
            "draft_tokens": figures.drafted,
            "accepted_tokens": figures.accepted,
            "target_tokens": figures.target_tokens,
            "stream_tokens": figures.remote,
            "fallbacks": figures.fallbacks,
            "refusals": figures.refusals,
            "lost_connections": figures.losses,
            "sent_bytes": figures.bytes_up,
            "received_bytes": figures.bytes_down,
        }
        for name, count in counts.items():
            self._counters[name].inc(count)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
