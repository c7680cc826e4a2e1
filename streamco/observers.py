"""Observers of a client's answers: metrics for Prometheus, spans for OpenTelemetry, and the interface for writing your own."""

from __future__ import annotations

from streamco.client.observers.base import AnswerObservation, AnswerObserver, ObservedAttempt
from streamco.client.observers.metrics import AnswerMetrics
from streamco.client.observers.spans import AnswerSpans

__all__ = [
    "AnswerMetrics",
    "AnswerObservation",
    "AnswerObserver",
    "AnswerSpans",
    "ObservedAttempt",
]
