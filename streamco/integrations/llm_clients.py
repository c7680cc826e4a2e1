"""The clients of the plugin for ``llm``: made from a prompt's options, and kept on an event loop in a separate thread.

``llm`` calls its models from code without an event loop, and from code with any number of them. Here one loop serves them all, so that
each model is loaded once per process, and keeps the conversation that it has read.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.loop_thread import call_at_exit
from streamco.endpoints.address import is_url
from streamco.endpoints.model_files import PACKAGED
from streamco.errors import ConfigError, StreamClosed
from streamco.proxy.config import DeviceSection, ProxyConfig, ServerSection, load_config
from streamco.proxy.from_config import build_client, keep_profile

__all__ = ["CLIENTS", "ClientThread", "PluginSettings", "parse_settings"]

T = TypeVar("T")
Ask = Callable[[Client], AsyncGenerator[T, None]]

KEY_VARIABLE = "STREAMCO_LLM_KEY"  # name under which a key from llm is looked up; no process's environment has it

_CLOSED = "the clients are closed"


class PluginSettings(Struct, frozen=True, kw_only=True):
    """The options of a prompt that choose its client. Prompts with the same options share a client.

    Args:
        default: the file that is read, if it exists, when neither ``config`` nor an endpoint is given.
        key: the server's key or, without a server, the key of a device at a URL.
    """

    default: str
    config: str | None = None
    device: str | None = None
    device_model: str | None = None
    server: str | None = None
    base_url: str | None = None
    key: str | None = None
    budget: float | None = None
    policy: str | None = None
    pace: float | Literal["reading", "listening"] | None = None
    mode: Literal["race", "speculate", "auto"] | None = None
    verifier: str | None = None


def parse_settings(settings: PluginSettings) -> ProxyConfig:
    """Return the configuration that a prompt's options describe: a file's, or one made from the given endpoints.

    Raises:
        ConfigError: the file is invalid, or an option has no effect.
    """
    named = [name for name in ("device", "device_model", "server", "base_url", "key") if getattr(settings, name) is not None]
    path = settings.config
    if path is None and not named and Path(settings.default).is_file():
        path = settings.default
    if path is None:
        config = ProxyConfig(device=_device(settings), server=_servers(settings))
    elif named:
        raise ConfigError(f"{named[0]}: can't be combined with config, whose file names the endpoints and their keys")
    else:
        config = load_config(Path(path).expanduser())
    given = {name: value for name in ("budget", "policy", "pace") if (value := getattr(settings, name)) is not None}
    drafting = {name: value for name in ("mode", "verifier") if (value := getattr(settings, name)) is not None}
    if settings.budget is not None and drafting.get("mode", config.speculate.mode) != "race":
        drafting["budget"] = settings.budget
    return replace(config, dispatch=replace(config.dispatch, **given), speculate=replace(config.speculate, **drafting))


def _device(settings: PluginSettings) -> DeviceSection | None:
    is_at_url = settings.device is not None and is_url(settings.device)
    if settings.device_model is not None and not is_at_url:
        raise ConfigError("device_model: only valid with the URL of a server as device")
    if is_at_url:
        key = KEY_VARIABLE if settings.key is not None and settings.server is None else None
        return DeviceSection(base_url=settings.device, model=settings.device_model, api_key_env=key)
    if settings.key is not None and settings.server is None:
        raise ConfigError("key: only valid with server, or with the URL of a server as device")
    if settings.device is None and settings.server is not None:
        return None
    return DeviceSection(model=settings.device or PACKAGED)


def _servers(settings: PluginSettings) -> tuple[ServerSection, ...]:
    if settings.server is not None:
        key = None if settings.key is None else KEY_VARIABLE
        return (ServerSection(model=settings.server, base_url=settings.base_url, api_key_env=key),)
    if settings.base_url is not None:
        raise ConfigError("base_url: only valid with server")
    return ()


class _KeptClient:
    """A client, the configuration that it was made from, and the number of its answers in progress."""

    def __init__(self, settings: PluginSettings) -> None:
        self.config = parse_settings(settings)
        environ = dict(os.environ) if settings.key is None else {**os.environ, KEY_VARIABLE: settings.key}
        self._owner = build_client(self.config, environ)
        # a person reads the answers: a server that refuses its key doesn't keep a device from answering
        self.client = self._owner.with_options(on_degraded="answer")
        self.answers = 0

    async def aclose(self) -> None:
        try:
            keep_profile(self.client, self.config)
        finally:
            await self._owner.aclose()

    async def start(self) -> None:
        await self._owner.start()


class _Reader(Generic[T]):
    """Reads an async generator on another thread's loop, item by item.

    Cancelling a read ends the generator; ``end`` waits until it has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, items: AsyncGenerator[T, None]) -> None:
        self._loop = loop
        self._items = items
        self._reading: asyncio.Task[T | None] | None = None
        self._is_ended = False

    def read(self) -> Future[T | None]:
        """Start reading the next item. The future's result is None at the end.

        Raises:
            StreamClosed: the clients were closed. A read that is waiting at that time also fails with it.
        """
        if self._is_ended:
            raise StreamClosed(_CLOSED)
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop)

    def end(self) -> Future[None]:
        """Start ending the generator and whatever it is waiting for; idempotent."""
        if self._is_ended:  # the loop may have ended, too
            ended: Future[None] = Future()
            ended.set_result(None)
            return ended
        return asyncio.run_coroutine_threadsafe(self.aclose(), self._loop)

    async def _read(self) -> T | None:
        if self._is_ended:
            raise StreamClosed(_CLOSED)
        self._reading = asyncio.current_task()
        try:
            return await anext(self._items, None)
        except asyncio.CancelledError:
            if self._is_ended:
                raise StreamClosed(_CLOSED) from None
            raise

    async def aclose(self) -> None:
        """End the generator; must run on its loop. Idempotent."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._reading is not None:
            if not self._reading.cancelling():  # a second cancel would interrupt the clean-up that the first one began
                self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._items.aclose()


class ClientThread:
    """Keeps clients by their settings, on an event loop in a separate thread, which starts with the first answer.

    A client is closed as soon as another one is used and it has no answer in progress, so that unused models aren't kept in memory. The
    last one is closed by ``close``, or when the process ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._kept: dict[PluginSettings, _KeptClient] = {}
        self._latest: PluginSettings | None = None
        self._readers: set[_Reader[Any]] = set()
        self._ends_with_process = False

    def iterate(self, settings: PluginSettings, ask: Ask[T]) -> Iterator[T]:
        """Yield the items of an answer, waiting for each.

        Args:
            settings: the client's settings.
            ask: sends the request to the client and yields the answer's items; runs on this thread's loop.
        """
        reader = self._open_reader(settings, ask)
        try:
            while (item := reader.read().result()) is not None:
                yield item
        finally:
            self._readers.discard(reader)
            ended = reader.end()
            if threading.current_thread() is not self._thread:  # the garbage collector may run on any thread
                ended.result()

    async def aiterate(self, settings: PluginSettings, ask: Ask[T]) -> AsyncGenerator[T, None]:
        """Do the same as ``iterate`` for a caller that has its own event loop, without blocking it."""
        reader = self._open_reader(settings, ask)
        try:
            while (item := await asyncio.wrap_future(reader.read())) is not None:
                yield item
        finally:
            self._readers.discard(reader)
            await asyncio.wrap_future(reader.end())

    def close(self) -> None:
        """End all answers, close all clients, and end the loop and its thread. Idempotent. The next answer starts them again.

        Code that is reading an answer at that time gets ``StreamClosed``.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close_clients(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _open_reader(self, settings: PluginSettings, ask: Ask[T]) -> _Reader[T]:
        reader = _Reader(self._running_loop(), self._answer(settings, ask))
        self._readers.add(reader)
        return reader

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="streamco-llm", daemon=True)
                self._thread.start()
            if not self._ends_with_process:
                self._ends_with_process = True
                call_at_exit(self.close)
            return self._loop

    async def _answer(self, settings: PluginSettings, ask: Ask[T]) -> AsyncGenerator[T, None]:
        async with self._client(settings) as client, aclosing(ask(client)) as items:
            async for item in items:
                yield item

    @asynccontextmanager
    async def _client(self, settings: PluginSettings) -> AsyncIterator[Client]:
        kept = self._kept.get(settings)
        if kept is None:
            kept = self._kept[settings] = _KeptClient(settings)
        kept.answers += 1
        self._latest = settings
        try:
            for other in [other for other, each in self._kept.items() if not each.answers]:
                await self._kept.pop(other).aclose()
            await kept.start()
            yield kept.client
        finally:
            kept.answers -= 1
            if not kept.answers and self._latest != settings and self._kept.pop(settings, None) is not None:
                await kept.aclose()

    async def _close_clients(self) -> None:
        for reader in list(self._readers):
            await reader.aclose()
        self._readers.clear()
        kept = list(self._kept.values())
        self._kept.clear()
        results = await asyncio.gather(*(each.aclose() for each in kept), return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()
        for error in results:
            if error is not None:
                raise error


CLIENTS = ClientThread()
"""The clients of this process."""
