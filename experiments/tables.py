"""What experiments share: all cores, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

__all__ = ["run_all", "show_table"]


def run_all(function: Callable[..., Any], jobs: Iterable[Sequence[Any]], processes: int | None) -> list[Any]:
    """On all cores; in order."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*jobs, strict=True)))


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
