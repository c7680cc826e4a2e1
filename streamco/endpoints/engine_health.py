"""A check of an engine's thread: one round through it, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import EngineError

__all__ = ["PingedEngine", "check_engine"]


class PingedEngine(Protocol):
    """Any engine with a thread that can be asked for a sign of life."""

    def ping(self, wake: Callable[[], None], /) -> None:
        """Call ``wake`` on the engine's thread."""
        ...


async def check_engine(engine: PingedEngine, seconds: float) -> str | None:
    """Return None if the engine's thread answers, else one sentence that says what happens instead.

    Args:
        engine: the engine; its thread is asked in its next round, between two decodes.
        seconds: time that it has.
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
