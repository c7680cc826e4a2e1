"""The base of this package's servers and proxies: a port on the loopback, and a context manager around it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Listener"]


class Listener(ABC):
    """A server on a free port of 127.0.0.1; use it as an async context manager."""

    _server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        assert self._server is not None, f"the {type(self).__name__} is not running"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        self._server = await self._listen("127.0.0.1", 0)

    async def aclose(self) -> None:
        """Stop listening and drop every connection; idempotent."""
        if self._server is None:
            return
        self._server.close()
        await self._drop()
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @abstractmethod
    async def _listen(self, host: str, port: int) -> asyncio.Server:
        """Listen on this address, and return the server."""

    @abstractmethod
    async def _drop(self) -> None:
        """Drop every connection. Return when all are gone."""
