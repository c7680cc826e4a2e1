"""A check of an engine's thread: one round through it, with a time limit."""

from __future__ import annotations

import asyncio

from streamco.engines.base import Engine
from streamco.errors import EngineError

__all__ = ["check_engine"]


async def check_engine(engine: Engine, seconds: float) -> str | None:
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
        async with asyncio.timeout(seconds):
            await answered
    except EngineError as error:
        return str(error)
    except TimeoutError:
        return f"engine: expected its thread to answer within {seconds:g} s, got nothing"
    return None
