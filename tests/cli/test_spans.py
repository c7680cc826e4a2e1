"""Spans of ``streamco proxy --otel`` at a real receiver of OTLP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streamco.cli.spans import exporting
from streamco.errors import ConfigError
from tests.client.helpers import ask, device, opened, server


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP: its address, and what it got."""
    received: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", received
    finally:
        await runner.cleanup()


async def test_spans_arrive_at_a_collector_with_the_services_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        async with exporting(is_on=True) as observers, opened(device(), server([(5.0, "S")]), policy="both", observers=observers) as client:
            await ask(client)
    resources = [each for request in received for each in request.resource_spans]
    names = {pair.value.string_value for each in resources for pair in each.resource.attributes if pair.key == "service.name"}
    assert names == {"streamco-proxy"}
    spans = [span for each in resources for scope in each.scope_spans for span in scope.spans]
    (top,) = [each for each in spans if not each.parent_span_id]
    assert top.name == "chat streamco"
    below = [each for each in spans if each is not top]
    assert len(below) == 2
    assert {each.parent_span_id for each in below} == {top.span_id}


async def test_a_services_name_from_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "kitchen")
        async with exporting(is_on=True) as observers, opened(device(), observers=observers) as client:
            await ask(client)
    attributes = received[0].resource_spans[0].resource.attributes
    assert [pair.value.string_value for pair in attributes if pair.key == "service.name"] == ["kitchen"]


async def test_off_means_no_observer() -> None:
    async with exporting(is_on=False) as observers:
        assert not observers


async def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamco\[otel\]'"):
        async with exporting(is_on=True):
            raise AssertionError("expected an error before this")


async def test_a_collector_that_is_not_there_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with exporting(is_on=True) as observers, opened(device(), observers=observers) as client:
        assert await ask(client) == "D"
