"""Checks that an engine's thread responds within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import EngineError

__all__ = ["PingedEngine", "check_engine"]


class PingedEngine(Protocol):
    """Any engine whose thread can be pinged."""

    def ping(self, wake: Callable[[], None], /) -> None:
        """Call ``wake`` on the engine's thread."""
        ...


async def check_engine(engine: PingedEngine, seconds: float) -> str | None:
    """Return None if the engine's thread responds, or else a sentence that says what is wrong.

    Args:
        engine: the engine, whose thread responds between two decodes.
        seconds: the time limit.
    """
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def settle() -> None:
        if not answered.done():
            answered.set_result(None)

    def wake() -> None:
        loop.call_soon_threadsafe(settle)

    try:
        engine.ping(wake)
        async with PeerTimeout(seconds):
            await answered
    except EngineError as error:
        return str(error)
    except TimeoutError:
        return f"engine: expected its thread to answer within {seconds:g} s, got nothing"
    return None
