"""A split server in a process of its own whose middle layers take imposed times and compute nothing.

With recorded texts it answers with their states, so a device writes these texts greedily: each row that it reads follows tokens of the text
alone. Which text it is the server finds by its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.fake_layers import FakeLayers
from streamco.engines.llamacpp.model_parts import PartFiles, read_part
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart, StateRun
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle

__all__ = ["RecordedText", "Replay", "imposed_server", "record_text"]

CELLS = 2560
SESSIONS = 16
SAME = 0.02  # two rows are one if they differ by less than this share of the largest number in them

States = NDArray[np.float32]


class RecordedText(Struct, frozen=True, eq=False):
    """The states of prompt and answer before and after the middle layers, shape (tokens, width)."""

    shallow: States
    deep: States


def record_text(files: PartFiles, prompt: str, most: int) -> RecordedText:
    """Answer a prompt greedily in this process."""
    with InputPart(files.input, cells=CELLS) as first, MiddlePart(files.middle, cells=CELLS) as middle, HeadPart(files.head) as head:
        ids = head.model.tokenize(head.model.apply_template([{"role": "user", "content": prompt}]), special=True)
        shallow, deep = list[States](), list[States]()
        for _ in range(most):
            position = sum(map(len, shallow))
            shallow.append(first.run(head.embed(ids), position))
            deep.append(middle.run(shallow[-1], position))
            ids = [int(head.logits(deep[-1][-1]).argmax())]
    return RecordedText(np.concatenate(shallow), np.concatenate(deep))


class Replay:
    """Returns the recorded states of the text to which rows belong. Rows after its end get zeros.

    Args:
        texts: at least one.
    """

    def __init__(self, texts: Sequence[RecordedText]) -> None:
        self._texts = texts

    def __call__(self, run: StateRun) -> States:
        """Return the deep states at a run's positions."""
        text = max(self._texts, key=lambda each: _common_rows(each.shallow[run.position :], run.states))
        found = np.zeros_like(run.states)
        rows = text.deep[run.position : run.position + len(found)]
        found[: len(rows)] = rows
        return found


def _common_rows(one: States, other: States) -> int:
    rows = min(len(one), len(other))
    limit = SAME * np.abs(other[:rows]).max(axis=1)
    return int((np.abs(one[:rows] - other[:rows]).max(axis=1) < limit).sum())


@asynccontextmanager
async def imposed_server(
    middle: Path, setup: float, per_row: float, *, room: int | None = None, texts: Sequence[RecordedText] = ()
) -> AsyncIterator[str]:
    """Run the server inside the block and yield its address.

    Args:
        middle: the middle part's file, of which only the description counts.
        setup, per_row: seconds of a batch, and of each of its rows.
        room: most rows of a batch; None: the default of ``streamco serve --middle``.
        texts: whose states it answers with; none: it returns the rows that came.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(middle, (setup, per_row), room, texts, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield await asyncio.to_thread(ours.recv)
    finally:
        ours.close()
        await asyncio.to_thread(process.join)


def _serve(middle: Path, times: tuple[float, float], room: int | None, texts: Sequence[RecordedText], pipe: Connection) -> None:
    setup, per_row = times
    layers = FakeLayers(
        read_part(middle),
        lambda rows: setup + per_row * rows,
        cells=CELLS,
        sequences=SESSIONS,
        batch_rows=CELLS,
        compute=Replay(texts) if texts else None,
    )
    asyncio.run(_serve_until_closed(layers, room, pipe))


async def _serve_until_closed(layers: FakeLayers, room: int | None, pipe: Connection) -> None:
    async with serving_middle(layers, ServeOptions(port=0), room=room) as url:
        pipe.send(url)
        await asyncio.to_thread(_wait_for_end, pipe)
    layers.close()


def _wait_for_end(pipe: Connection) -> None:
    try:
        pipe.recv()
    except EOFError:
        return
