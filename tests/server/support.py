"""What the server's tests share: a server with its insides in reach, a clock in the test's hand, events read from a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from streamco.engines.base import Engine
from streamco.server.app import SERVICE, ServeOptions, Service, make_app, make_runner
from streamco.server.wakeup import Clock, WakeEvent
from streamco.testing.engine import FakeEngine

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.sleepers: list[tuple[float | None, WakeEvent]] = []

    def now(self) -> float:
        return self.time

    async def wait(self, event: WakeEvent, deadline: float | None) -> bool:
        entry = (deadline, event)
        self.sleepers.append(entry)
        try:
            await event.wait(None)
        finally:
            if entry in self.sleepers:
                self.sleepers.remove(entry)
        return deadline is None or self.time < deadline

    def advance(self, to: float) -> None:
        self.time = to
        for entry in list(self.sleepers):
            deadline, event = entry
            if deadline is not None and deadline <= to:
                self.sleepers.remove(entry)
                event.wake()

    async def asleep(self, count: int = 1) -> None:
        """Until this many readers wait."""
        await until(lambda: len(self.sleepers) >= count)


async def until(condition: Any) -> None:
    """Poll; the test's own time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)


class Running:
    """A server under test."""

    def __init__(self, client: aiohttp.ClientSession, service: Service, runner: web.AppRunner) -> None:
        self.client = client
        self.service = service
        self.runner = runner

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(path, data=data, headers={"Content-Type": "application/json", **headers}) as response:
            return response.status, json.loads(await response.read())

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All events of one stream; "[DONE]" stays text."""
        async with self.client.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            return parse_events(await response.read())


def parse_events(data: bytes) -> list[Any]:
    """Events of a body; comments are kept as text."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == "", "a stream ends with a blank line"
    return [json.loads(block[6:]) if block.startswith("data: {") else block.removeprefix("data: ") for block in blocks]


async def next_event(response: aiohttp.ClientResponse) -> str:
    """The next event or comment of a stream as text."""
    return (await response.content.readuntil(b"\n\n")).decode().strip()


def contents(events: list[Any]) -> list[str]:
    """Text of every chunk that has some."""
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    texts = [chunk["choices"][0].get("text", chunk["choices"][0].get("delta", {}).get("content")) for chunk in chunks]
    return [text for text in texts if text]


@asynccontextmanager
async def running(
    engine: Engine | None = None, *, clock: Clock | None = None, cancels: bool = True, **options: Any
) -> AsyncIterator[Running]:
    """A server on a free port and a client for it; everything but the engine is released at the end."""
    settings = ServeOptions(**options)
    app = make_app(engine or FakeEngine(), settings, clock=clock)
    runner = make_runner(app, settings) if cancels else web.AppRunner(app, access_log=None, shutdown_timeout=settings.shutdown)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield Running(client, app[SERVICE], runner)
    finally:
        await runner.cleanup()
