"""What do metrics and spans cost a client?

CPU time of this process per streamed event, over real HTTP from a server in a process of its own, with no observer, with metrics, and with
metrics and spans that are exported in batches. Observers are called a few times for each answer and never for a token, but the final report
has figures over all tokens. The server sends as fast as it can, so an event is as cheap as it can be: one that has a wake-up of its own, as
those of real answers, takes some 40 us (``bench.timed.stream``).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import streamco
from bench.report import Row, add_arguments, emit, rows_from
from bench.timed.stream import MESSAGES, server

BENCH = "observing"
EVENTS = (20, 200, 1000)
CONTENDERS: dict[str, Callable[[TracerProvider], list[streamco.observers.AnswerObserver]]] = {
    "no observer": lambda _provider: [],
    "metrics": lambda _provider: [streamco.observers.AnswerMetrics(CollectorRegistry())],
    "metrics and spans": lambda provider: [streamco.observers.AnswerMetrics(CollectorRegistry()), streamco.observers.AnswerSpans(provider)],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    with server() as port:
        emit(asyncio.run(_measure(port, rounds=5 if options.quick else 41)), options.json, against="no observer")


async def _measure(port: int, *, rounds: int) -> list[Row]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    rows = []
    for events in EVENTS:
        samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for turn in range(rounds + 1):
            for name in _turned(list(CONTENDERS), turn):
                cost = await _answers(port, CONTENDERS[name](provider), events)
                exporter.clear()
                if turn:  # the first round warms up
                    samples[name].append(cost)
        rows += rows_from(BENCH, f"answers of {events} events", "CPU an event", "us", samples)
    provider.shutdown()
    return rows


def _turned(names: list[str], turn: int) -> list[str]:
    """The names in an order that begins with another one each round, so that no contender always follows the same one."""
    cut = turn % len(names)
    return names[cut:] + names[:cut]


async def _answers(port: int, observers: Sequence[streamco.observers.AnswerObserver], events: int, answers: int = 20) -> float:
    """Return microseconds of CPU time for each event."""
    endpoint = streamco.OpenAIEndpoint("bench", base_url=f"http://127.0.0.1:{port}/v1")
    async with streamco.Client(server=endpoint, observers=observers) as client:
        await _read(client, events)
        began = time.process_time()
        for _ in range(answers):
            await _read(client, events)
        return (time.process_time() - began) / answers / events * 1e6


async def _read(client: streamco.Client, events: int) -> None:
    async for chunk in await client.chat.completions.create(messages=MESSAGES, model=f"bulk-{events}", stream=True):
        for choice in chunk.choices:
            _ = choice.delta.content, choice.finish_reason


if __name__ == "__main__":
    main()
