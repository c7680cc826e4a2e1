"""What the tests of callers share: a file with callers in it, a proxy over it, and a clock in the test's hand."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from streamco.endpoints.base import TokenPrices
from streamco.openai_types import CompletionUsage
from streamco.proxy.callers.access import CallerAccess
from streamco.proxy.callers.base import Caller, DayFigures, to_nanos
from streamco.proxy.callers.keys import make_key
from streamco.proxy.callers.store import CallerStore
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import server
from tests.proxy.support import CHAT, HELLO, TEXT, RunningProxy, proxying
from tests.server.support import until

NOON = 1_795_780_800.0  # 2026-11-27 12:00 UTC
DAY = 86_400.0
PRICES = TokenPrices(prompt=1e-6, completion=2e-6)
FREE = TokenPrices(prompt=0.0, completion=0.0)
USAGE = CompletionUsage(10, 3, 13)  # 0.000016 $
SMALL: dict[str, Any] = {**HELLO, "max_tokens": 5}
RESPONSES, MESSAGES, COUNT, USED = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/streamco/usage"
PAID = [CHAT, TEXT, RESPONSES, MESSAGES]


def new_store(path: Path, **options: Any) -> CallerStore:
    """The store of a new file."""
    store = CallerStore(path, **options)
    store.create()
    return store


def add_caller(store: CallerStore, name: str = "alice", *, budget: float | None = 1.0, **limits: Any) -> str:
    """Add a caller; return its key. ``budget``: US dollars."""
    key, key_hash = make_key()
    store.add(Caller(name=name, budget=None if budget is None else to_nanos(budget), **limits), key_hash)
    return key


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock for writing, as another process."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def asking(path: str) -> dict[str, Any]:
    """A small request of each API."""
    return {
        CHAT: SMALL,
        TEXT: {"prompt": "Hello", "max_tokens": 5},
        RESPONSES: {"input": "Hello", "max_output_tokens": 5},
        MESSAGES: {**HELLO, "max_tokens": 5},
        COUNT: HELLO,
    }[path]


def paid(script: Any = ((0.0, "S"),), **options: Any) -> ScriptedEndpoint:
    """A server with prices."""
    return server(script, prices=options.pop("prices", PRICES), usage=options.pop("usage", USAGE), **options)


def caller(path: Path, name: str = "alice", **limits: Any) -> dict[str, str]:
    """Add a caller; return the header with its key."""
    store = CallerStore(path)
    key = add_caller(store, name, **limits)
    store.close()
    return {"Authorization": f"Bearer {key}"}


def access_of(proxy: RunningProxy) -> CallerAccess:
    """What the proxy keeps of its callers."""
    assert proxy.proxy.access is not None
    return proxy.proxy.access


def today(proxy: RunningProxy, path: Path, name: str = "alice") -> DayFigures:
    """A caller's figures, as another process sees them. Not for polling: opening the file locks it for a moment."""
    store = CallerStore(path)
    _, figures = store.figures(name, access_of(proxy)._accounts.clock())
    store.close()
    return figures


async def until_settled(proxy: RunningProxy, path: Path, name: str = "alice") -> None:
    """Wait until nothing of a caller is reserved."""
    store = CallerStore(path)
    try:
        await until(lambda: not store.figures(name, access_of(proxy)._accounts.clock())[1].reserved)
    finally:
        store.close()


@asynccontextmanager
async def serving(
    path: Path, near: ScriptedEndpoint | None = None, far: Any = None, *, now: float = NOON, **options: Any
) -> AsyncIterator[RunningProxy]:
    async with proxying(near, far, callers=path, **options) as proxy:
        access_of(proxy)._accounts.clock = lambda: now
        yield proxy
