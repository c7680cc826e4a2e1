"""How long does a model take to load, and then to its first token? DiSCo's Appendix B, Table 4, for the models that are on this machine.

Each load is in a process of its own. *Cold* means that the file's pages are dropped from the system's cache before, so that it is read from
the disk again (Linux; the paper cleared the graphics card's cache alone). One thread, the paper's prompt.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.fetch_models import MODELS, fetched
from bench.tables import run_all, table_lines
from streamco import Client, DeviceEndpoint
from streamco.engines import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model

__all__ = ["drop_from_cache", "load_once", "loading_lines", "loading_rows"]

PROMPT = "How to use GitHub?"
RUNS = 10
OPTIONS = EngineOptions(threads=1, context_tokens=512)

Rows = Sequence[Mapping[str, Any]]


def loading_rows(_: int = 1, *, models: Iterable[Path] | None = None, runs: int = RUNS) -> Rows:
    """Return the seconds of each model from a cold and a cached file.

    Args:
        models: their files; None: the packaged one and the pair of ``make models``.
        runs: loads of each, at least 1.
    """
    rows = []
    for path in models or _all_models():
        for is_cold in (True, False):
            found = [_in_a_process(path, is_cold=is_cold) for _ in range(runs)]
            load, first = ([round(seconds, 4) for seconds in column] for column in zip(*found, strict=True))
            rows.append({"model": path.stem, "bytes": path.stat().st_size, "is_cold": is_cold, "load": load, "first_token": first})
    return rows


def _all_models() -> list[Path]:
    """Return the packaged model and the fetched pair.

    Raises:
        SystemExit: the pair was not fetched.
    """
    if missing := [name for name in MODELS if fetched(name) is None]:
        raise SystemExit(f"loading: expected the models of `make models`, got no {' and no '.join(missing)}")
    return [packaged_model(), *filter(None, map(fetched, MODELS))]


def loading_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each model and file: medians, with the lowest and the highest."""
    rows = (
        [row["model"], f"{row['bytes'] / 1e6:,.0f}", "cold" if row["is_cold"] else "cached", *map(_span, (row["load"], row["first_token"]))]
        for row in results["rows"]
    )
    yield from table_lines(["model", "MB", "file", "load [s]", "first token after that [s]"], rows)


def _span(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _in_a_process(path: Path, *, is_cold: bool) -> tuple[float, float]:
    if is_cold:
        drop_from_cache(path)
    seconds: tuple[float, float] = run_all(_load, [(path,)], 1)[0]
    return seconds


def _load(path: Path) -> tuple[float, float]:
    return asyncio.run(load_once(path))


def drop_from_cache(path: Path) -> None:
    """Have the system forget what it has of a file in memory, where it offers that."""
    if not hasattr(os, "posix_fadvise"):
        raise SystemExit("cold loads: expected a system with posix_fadvise, such as Linux")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def load_once(path: Path) -> tuple[float, float]:
    """Return the seconds of loading, and those from the prompt to its first token."""
    engine = await asyncio.to_thread(LlamaEngine, path, OPTIONS)
    async with Client(DeviceEndpoint(engine)) as client:
        stream = client.stream(PROMPT, max_tokens=1, temperature=0)
        async for _ in stream:
            pass
        ttft = stream.report.ttft
    await asyncio.to_thread(engine.close)
    if ttft is None:
        raise AssertionError("an answer without an error has a first token")
    return engine.load_seconds, ttft
