"""Sets up the export of spans with OpenTelemetry's SDK, as OTLP over HTTP to the address in its usual environment variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from streamco.client.observers.base import AnswerObserver
from streamco.errors import ConfigError

__all__ = ["exporting"]

SERVICE_NAME = "streamco-proxy"  # if neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES has one


@asynccontextmanager
async def exporting(*, is_on: bool) -> AsyncIterator[Sequence[AnswerObserver]]:
    """Yield the observer that makes spans, or none if ``is_on`` is False. Spans are exported in batches, the last ones at the end.

    Raises:
        ConfigError: OpenTelemetry's packages aren't installed.
    """
    if not is_on:
        yield ()
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from streamco.client.observers.spans import AnswerSpans
    except ImportError as error:
        raise ConfigError(f"--otel: expected OpenTelemetry's SDK and OTLP exporter, got {error}; pip install 'streamco[otel]'") from error
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if is_named else {"service.name": SERVICE_NAME}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield (AnswerSpans(provider),)
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends the remaining spans, and waits for the collector
