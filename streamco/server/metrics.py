"""Prometheus figures about a server's own generations: first token, pace, duration, tokens."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamco.core.buckets import DURATION_BUCKETS, FIRST_TOKEN_BUCKETS, TOKEN_BUCKETS
from streamco.engines.base import GenerationEnd

__all__ = ["ServerMetrics"]


class ServerMetrics:
    """The metrics of one server over an engine.

    Args:
        registry: registry that they are added to.
        present: returns the number of requests in progress.
    """

    def __init__(self, registry: CollectorRegistry, present: Callable[[], int]) -> None:
        self.first_token = Histogram(
            "streamco_server_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.per_token = Histogram(
            "streamco_server_time_per_output_token_seconds",
            "Seconds of computing for each token after the prompt, a mean over one generation.",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.queued = Histogram(
            "streamco_server_queue_seconds",
            "Seconds that a generation waited for a place.",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.duration = Histogram(
            "streamco_server_request_duration_seconds",
            "Seconds from a request's arrival to the end of its generation.",
            ["outcome"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.prompt = Counter("streamco_server_prompt_tokens", "Prompt tokens, those found in memory included.", registry=registry)
        self.cached = Counter("streamco_server_cached_prompt_tokens", "Prompt tokens that were found in memory.", registry=registry)
        self.generated = Counter("streamco_server_generation_tokens", "Generated tokens.", registry=registry)
        self.drafted = Counter("streamco_server_draft_tokens", "Draft tokens of answers that were verified.", registry=registry)
        self.accepted = Counter("streamco_server_accepted_draft_tokens", "Draft tokens that are in answers.", registry=registry)
        Gauge("streamco_server_requests", "Requests that are queued or answered.", registry=registry).set_function(present)

    def record(self, end: GenerationEnd | None, *, seconds: float, first_token: float | None) -> None:
        """Add a generation that has ended.

        Args:
            end: its end, or None if its reader disconnected or the server stopped.
            seconds: seconds since the request's arrival.
            first_token: seconds from the arrival to the first token, or None if there was none.
        """
        self.duration.labels("left" if end is None else end.reason).observe(seconds)
        if first_token is not None:
            self.first_token.observe(first_token)
        if end is None:
            return
        timings = end.timings
        self.queued.observe(timings.queued_s)
        self.prompt.inc(timings.prompt_tokens)
        self.cached.inc(timings.reused_tokens)
        self.generated.inc(timings.completion_tokens)
        self.drafted.inc(timings.drafted_tokens)
        self.accepted.inc(timings.accepted_tokens)
        if timings.completion_tokens > 1:
            self.per_token.observe(timings.decode_s / timings.completion_tokens)
