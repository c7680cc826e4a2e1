"""Helpers of the client's tests: scripted sides, whole answers, a client that is closed again and leaves nothing open."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from streamco.client.client import Client
from streamco.client.stream import ChatStream, TokenStream
from streamco.endpoints.base import Capabilities
from streamco.engines.base import ModelInfo
from streamco.testing.endpoint import ScriptedEndpoint
from tests.support.leaks import holding_nothing_new
from tests.support.modes import client_options

HELLO = [{"role": "user", "content": "hello"}]
EVERYTHING = Capabilities(tools=True, json_schema=True, images=True, choices=True)


def words(*times: float, prefix: str = "w") -> list[tuple[float, str]]:
    """A word at each of these seconds."""
    return [(time, f"{prefix}{index} ") for index, time in enumerate(times)]


def server(script: Iterable[tuple[float, Any]] = ((0.0, "S"),), name: str = "server", **options: Any) -> ScriptedEndpoint:
    options.setdefault("capabilities", EVERYTHING)
    return ScriptedEndpoint(name, list(script), **options)


def device(script: Iterable[tuple[float, Any]] = ((0.0, "D"),), name: str = "device", **options: Any) -> ScriptedEndpoint:
    options.setdefault("tokens", 10)
    return ScriptedEndpoint(name, list(script), kind="device", **options)


class ShapedDevice(ScriptedEndpoint):
    """A scripted device; its model has a shape, so that its energy can be computed."""

    @property
    def engine(self) -> Any:
        """Only ``info`` is asked for."""
        info = ModelInfo(
            name="m",
            vocabulary_size=49152,
            vocabulary="49152:x",
            context_tokens=2048,
            has_chat_template=True,
            parameters=135_000_000,
            layers=30,
            width=576,
            heads=9,
            ffn_width=1536,
        )
        return type("Engine", (), {"info": info})


@asynccontextmanager
async def opened(device: Any = None, server: Any = None, **options: Any) -> AsyncIterator[Client]:
    """A client over these sides; afterwards nothing of it is left in this process."""
    options.setdefault("seed", 1)
    async with holding_nothing_new(), Client(device, server, **client_options(options)) as client:
        yield client


async def chunks_text(stream: ChatStream) -> str:
    """The text of all chunks."""
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def tokens_text(stream: TokenStream) -> str:
    """The text of all tokens."""
    return "".join([token.text async for token in stream])


async def ask(client: Client, prompt: str = "hello", **options: Any) -> str:
    """One whole answer as text."""
    return await tokens_text(client.stream(prompt, **options))


class Collector(logging.Handler):
    """Adds each record to a list."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def recorded_log() -> Iterator[list[logging.LogRecord]]:
    """The records of the logger ``streamco``."""
    records: list[logging.LogRecord] = []
    handler = Collector(records)
    logger = logging.getLogger("streamco")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
