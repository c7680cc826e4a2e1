"""A split server in a process of its own whose middle layers take imposed times and compute nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from streamco.engines.llamacpp.model_parts import read_part
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle
from streamco.testing import FakeLayers

__all__ = ["imposed_server"]

CELLS = 2560
SESSIONS = 16


@asynccontextmanager
async def imposed_server(middle: Path, setup: float, per_row: float, *, room: int | None = None) -> AsyncIterator[str]:
    """Run the server inside the block and yield its address.

    Args:
        middle: the middle part's file, of which only the description counts.
        setup, per_row: seconds of a batch, and of each of its rows.
        room: most rows of a batch; None: the default of ``streamco serve --middle``.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(middle, setup, per_row, room, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield await asyncio.to_thread(ours.recv)
    finally:
        ours.close()
        await asyncio.to_thread(process.join)


def _serve(middle: Path, setup: float, per_row: float, room: int | None, pipe: Connection) -> None:
    asyncio.run(_serve_until_closed(middle, setup, per_row, room, pipe))


async def _serve_until_closed(middle: Path, setup: float, per_row: float, room: int | None, pipe: Connection) -> None:
    layers = FakeLayers(read_part(middle), lambda rows: setup + per_row * rows, cells=CELLS, sequences=SESSIONS, batch_rows=CELLS)
    async with serving_middle(layers, ServeOptions(port=0), room=room) as url:
        pipe.send(url)
        await asyncio.to_thread(_wait_for_end, pipe)
    layers.close()


def _wait_for_end(pipe: Connection) -> None:
    try:
        pipe.recv()
    except EOFError:
        return
