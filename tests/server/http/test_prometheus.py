"""``GET /metrics`` in Prometheus' forms, and figures of a stats page as metrics."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamco.server.http.api import make_application
from streamco.server.http.listening import listening
from streamco.server.http.options import ListenOptions
from streamco.server.http.prometheus import FigureMetric, FiguresCollector, make_registry
from tests.server.http.test_api import Echo

METRICS = (
    FigureMetric("rounds", "it_rounds", "Rounds."),
    FigureMetric("waiting", "it_waiting", "Waiting rounds.", "gauge"),
    FigureMetric("refused", "it_refusals", "Refusals.", "counter", "reason"),
)


def test_figures_are_counters_gauges_and_tables() -> None:
    registry = CollectorRegistry()
    figures: dict[str, object] = {"rounds": 3, "waiting": 1, "refused": {"busy": 2, "full": 1}, "not shown": 9}
    registry.register(FiguresCollector(lambda: figures, METRICS))
    figures["rounds"] = 4
    text = generate_latest(registry).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert (families["it_rounds"].type, families["it_waiting"].type, families["it_refusals"].type) == ("counter", "gauge", "counter")
    assert {(each.name, *each.labels.values()): each.value for family in families.values() for each in family.samples} == {
        ("it_rounds_total",): 4,
        ("it_waiting",): 1,
        ("it_refusals_total", "busy"): 2,
        ("it_refusals_total", "full"): 1,
    }
    assert "not shown" not in text
    figures["waiting"] = None
    assert "\nit_waiting " not in generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("accept", "media_type", "end"),
    [
        ("", "text/plain", "\n"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", "# EOF\n"),
        ("application/openmetrics-text; version=new", "text/plain", "\n"),
    ],
)
async def test_the_form_is_what_the_request_accepts(accept: str, media_type: str, end: str) -> None:
    registry, options = make_registry(), ListenOptions()
    Gauge("it_up", "Up.", registry=registry).set(1)
    app = make_application(Echo(), options, logger=logging.getLogger("streamco.test"), registry=registry)
    async with (
        listening(app, options) as address,
        aiohttp.ClientSession() as http,
        http.get(f"{address}/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.status == 200
        assert response.content_type == media_type
        text = await response.text()
    assert "it_up 1.0" in text
    assert "process_resident_memory_bytes" in text
    assert text.endswith(end)


async def test_metrics_need_the_key_and_a_loopback_name_like_the_api() -> None:
    for options, headers in ((ListenOptions(api_key="k"), {}), (ListenOptions(), {"Host": "evil.example"})):
        app = make_application(Echo(), options, logger=logging.getLogger("streamco.test"), registry=make_registry())
        async with (
            listening(app, options) as address,
            aiohttp.ClientSession() as http,
            http.get(f"{address}/metrics", headers=headers) as response,
        ):
            assert response.status == (401 if options.has_key else 403)
