"""``GET /metrics``: a registry's figures in Prometheus's text format, made with ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

__all__ = ["PATH", "FigureMetric", "FiguresCollector", "make_registry", "metrics_handler"]

PATH = "/metrics"


class FigureMetric(Struct, frozen=True):
    """The Prometheus metric for one figure of a stats page.

    Args:
        figure: the figure's key on the stats page.
        name: the metric's name; for a counter, ``_total`` is added when it is shown.
        text: its meaning in one sentence.
        kind: "counter" if it only grows, else "gauge".
        label: name of the label if the figure is a table, or None if it is a number.
    """

    figure: str
    name: str
    text: str
    kind: Literal["counter", "gauge"] = "counter"
    label: str | None = None


class FiguresCollector:
    """Shows existing figures as metrics; they are read when Prometheus scrapes them.

    Args:
        figures: returns the figures by key, as numbers or tables of numbers, or None for a figure that has no value at present.
        metrics: which of them are shown, and how.
    """

    def __init__(self, figures: Callable[[], Mapping[str, object]], metrics: Sequence[FigureMetric]) -> None:
        self._figures = figures
        self._metrics = metrics

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return the current figures as metrics."""
        figures = self._figures()
        for metric in self._metrics:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            shown = family(metric.name, metric.text, labels=() if metric.label is None else (metric.label,))
            match figures[metric.figure]:
                case dict() as table:
                    for key, number in table.items():
                        shown.add_metric([str(key)], float(number))
                case None:
                    pass
                case int() | float() as number:
                    shown.add_metric([], float(number))
                case other:
                    raise AssertionError(f"a figure is a number or a table of numbers, got {type(other).__name__}")
            yield shown


def make_registry() -> CollectorRegistry:
    """Return a registry with this process's CPU time, memory and open files, which are known only on Linux."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def metrics_handler(registry: CollectorRegistry) -> Handler:
    """Return the handler of ``GET /metrics``, which uses the format that the request accepts: Prometheus's text or OpenMetrics."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            encode, media_type = choose_encoder(request.headers.get("Accept", ""))
        except TypeError:  # the version that the request accepts isn't a number
            encode, media_type = choose_encoder("")
        return web.Response(body=encode(registry), headers={"Content-Type": media_type})

    return handle
