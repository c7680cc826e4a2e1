"""OpenTelemetry spans of a client's answers: one span for each answer, with a child span for each request to an endpoint.

Names and attributes follow the GenAI semantic conventions; attributes that they don't define begin with ``streamco.``. The span of a
request to a server is a CLIENT span; for a model in this process it is INTERNAL. The loser of a race isn't an error: its span has
``streamco.outcome`` "lost" and no ``error.type``. Spans contain no prompts and no answers. But the reason for a dispatch and the notes may
quote, in shortened form, what prevents an endpoint from serving a request, such as a part of its JSON schema.

The answer's span continues the caller's trace: the current one in the caller's task, or the one in the request's ``traceparent`` header.
Each server gets the ``traceparent`` of its own request's span.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from streamco.client.answer_log import describe_error
from streamco.client.observers.base import PACKAGE_VERSION, ObservedAttempt
from streamco.core.report import Report
from streamco.core.report_parts import EndpointReport, HandOver
from streamco.endpoints.base import Kind, Request

__all__ = ["AnswerSpans"]

_PROVIDERS = {"azure": "azure.ai.openai", "mistral": "mistral_ai", "xai": "x_ai"}  # where the conventions use another name
_NANOSECONDS = 1_000_000_000


class AnswerSpans:
    """An observer that makes spans, for ``Client(observers=[...])``.

    Args:
        provider: the tracer provider, by default the global one, which the program or ``opentelemetry-instrument`` has set.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("streamco", PACKAGE_VERSION, tracer_provider=provider)

    def began(self, request: Request) -> _Observation:
        """Start the span of an answer."""
        return _Observation(self._tracer, request, self._start(request))

    def refused(self, request: Request, error: Exception) -> None:
        """Make the span of a request that wasn't sent to any endpoint."""
        span = self._start(request)
        _set_error(span, describe_error(error))
        span.end()

    def _start(self, request: Request) -> Span:
        operation = _operation(request)
        attributes = {"gen_ai.operation.name": operation, **_settings(request)}
        if request.model is not None:
            attributes["gen_ai.request.model"] = request.model
        return self._tracer.start_span(f"{operation} streamco", context=_caller(request), kind=SpanKind.INTERNAL, attributes=attributes)


class _Observation:
    """The spans of one answer.

    Args:
        tracer: starts the spans of requests.
        request: the answer's request.
        span: the answer's span.
    """

    def __init__(self, tracer: Tracer, request: Request, span: Span) -> None:
        self._tracer = tracer
        self._request = request
        self._span = span
        self._began = time.time_ns()
        self._context = trace.set_span_in_context(span)
        self._open: defaultdict[str, list[Span]] = defaultdict(list)  # by endpoint, in the order in which they started
        self._kinds: dict[str, Kind] = {}  # kinds of these endpoints

    def opened(self, attempt: ObservedAttempt) -> Mapping[str, str]:
        """Start the span of a request; return the headers that let the server continue the trace."""
        span = self._start(attempt.endpoint, attempt.model, is_local=attempt.kind == "device" and attempt.base_url is None)
        span.set_attributes(_facts(attempt))
        self._open[attempt.endpoint].append(span)
        self._kinds[attempt.endpoint] = attempt.kind
        headers: dict[str, str] = {}
        propagate.inject(headers, context=trace.set_span_in_context(span, Context()))  # without the caller's baggage
        return headers

    def ended(self, report: Report) -> None:
        """End all spans, with the figures of the report."""
        for part in report.endpoints:
            if part.opened is None:
                continue
            opened = self._began + round(part.opened * _NANOSECONDS)
            span = self._take(part, report) or self._start(part.name, None, is_local=part.kind == "device", at=opened)
            _describe_part(span, part, report)
            stopped = report.duration if part.stopped is None else part.stopped
            span.end(self._began + round(stopped * _NANOSECONDS))
        for span in (span for spans in self._open.values() for span in spans):
            span.end()
        _describe_answer(self._span, report, self._began)
        self._span.end(self._began + round(report.duration * _NANOSECONDS))

    def _take(self, part: EndpointReport, report: Report) -> Span | None:
        """Return the span that belongs to a part of the report, or None if no span was started for it.

        A speculated answer can move from one verifier to another. The report then names the last verifier, but the span names the first.
        """
        if waiting := self._open[part.name]:
            return waiting.pop(0)
        named = {each.name for each in report.endpoints}
        moved = [spans for name, spans in self._open.items() if spans and name not in named and self._kinds[name] == part.kind]
        if not moved:
            return None
        span = moved[0].pop(0)
        span.set_attribute("streamco.endpoint", part.name)
        return span

    def _start(self, endpoint: str, model: str | None, *, is_local: bool, at: int | None = None) -> Span:
        operation = _operation(self._request)
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "streamco.endpoint": endpoint,
            **_settings(self._request),
        }
        return self._tracer.start_span(
            f"{operation} {model or endpoint}",
            context=self._context,
            kind=SpanKind.INTERNAL if is_local else SpanKind.CLIENT,
            attributes=attributes,
            start_time=at,
        )


def _operation(request: Request) -> str:
    return "text_completion" if request.messages is None else "chat"


def _caller(request: Request) -> Context | None:
    """Return the context from the request's headers, or None to use the current task's context."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return propagate.extract(headers) if "traceparent" in headers else None


def _settings(request: Request) -> dict[str, AttributeValue]:
    """Return the request's settings as attributes, under the names that the conventions use."""
    sampling = request.sampling
    found: dict[str, AttributeValue | None] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.stream": True,
    }
    return {name: value for name, value in found.items() if value is not None}


def _facts(attempt: ObservedAttempt) -> dict[str, AttributeValue]:
    """Return what is known about the endpoint, as attributes."""
    found: dict[str, AttributeValue] = {}
    if attempt.model is not None:
        found["gen_ai.request.model"] = attempt.model
    if attempt.provider is not None:
        found["gen_ai.provider.name"] = _PROVIDERS.get(attempt.provider, attempt.provider)
    if attempt.base_url is not None:
        parts = urlsplit(attempt.base_url)
        if parts.hostname:
            found["server.address"] = parts.hostname
            found["server.port"] = parts.port or (443 if parts.scheme in {"https", "wss"} else 80)
    return found


def _describe_part(span: Span, part: EndpointReport, report: Report) -> None:
    span.set_attributes(
        {
            "streamco.outcome": part.outcome,
            "gen_ai.usage.input_tokens": part.prompt_tokens,
            "gen_ai.usage.output_tokens": part.completion_tokens,
            "streamco.usage.is_estimated": part.is_estimated,
        }
    )
    if part.ttft is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", part.ttft)
    if part.cost_usd is not None:
        span.set_attribute("streamco.cost.usd", part.cost_usd)
    if report.finish_reason is not None and part.name == report.winner:
        span.set_attribute("gen_ai.response.finish_reasons", [report.finish_reason])
    if part.error_kind is not None:
        _set_error(span, part.error_kind)


def _describe_answer(span: Span, report: Report, began: int) -> None:
    dispatch, speculation = report.dispatch, report.speculation
    found: dict[str, AttributeValue | None] = {
        "streamco.mode": report.mode,
        "streamco.winner": report.winner,
        "streamco.ending": report.ending,
        "streamco.dispatch.policy": dispatch.policy,
        "streamco.dispatch.reason": dispatch.reason,
        "streamco.dispatch.device_wait": dispatch.device_wait,
        "streamco.dispatch.server_wait": dispatch.server_wait,
        "streamco.budget.share": dispatch.budget_share,
        "streamco.cost.usd": report.cost_usd,
        "streamco.grade.verdict": None if report.grade is None else report.grade.verdict,
        "streamco.grade.score": None if report.grade is None else report.grade.score,
        "streamco.hand_over.count": len(report.hand_overs),
        "gen_ai.response.time_to_first_chunk": report.ttft,
        "gen_ai.response.finish_reasons": None if report.finish_reason is None else [report.finish_reason],
        "gen_ai.usage.input_tokens": report.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": report.usage.completion_tokens,
        "streamco.usage.is_estimated": report.usage.is_estimated,
    }
    if speculation is not None:
        found |= {
            "streamco.speculation.rounds": speculation.rounds,
            "streamco.speculation.drafted": speculation.drafted,
            "streamco.speculation.accepted": speculation.accepted,
            "streamco.speculation.offloaded_share": speculation.offloaded_share,
        }
    span.set_attributes({name: value for name, value in found.items() if value is not None})
    for change in report.hand_overs:
        _add_hand_over(span, change, began)
    for note in report.notes:
        span.add_event("streamco.note", {"streamco.note": note})
    if report.ending == "failed":
        _set_error(span, next((part.error_kind for part in reversed(report.endpoints) if part.error_kind is not None), "StreamcoError"))


def _add_hand_over(span: Span, change: HandOver, began: int) -> None:
    attributes: dict[str, AttributeValue] = {
        "streamco.hand_over.source": change.source,
        "streamco.hand_over.target": change.target,
        "streamco.hand_over.position": change.position,
        "streamco.hand_over.reason": change.reason,
    }
    span.add_event("streamco.hand_over", attributes, began + round(change.at * _NANOSECONDS))


def _set_error(span: Span, kind: str) -> None:
    """Mark a span as failed; ``kind`` is an error's class with its status, if it has one. The conventions then want only the status."""
    last = kind.rpartition(" ")[2]
    span.set_attribute("error.type", last if last.isdigit() else kind)
    span.set_status(Status(StatusCode.ERROR))
