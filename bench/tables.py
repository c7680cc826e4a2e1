"""What experiments share: all cores, and tables in Markdown, printed or in a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

__all__ = ["Means", "format_table", "means_of", "replace_marked", "replace_table", "run_all", "show_table", "show_tables"]
__all__ += ["table_lines"]

Means = Mapping[tuple[Any, ...], Mapping[Any, float]]
"""Of one figure: by the values of all swept settings but one, then by that one's."""


def run_all(function: Callable[..., Any], jobs: Iterable[Sequence[Any]], processes: int | None) -> list[Any]:
    """On all cores; in order."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*jobs, strict=True)))


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown."""
    print(format_table(title, head, rows))


def format_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with an empty line before its title."""
    return "\n".join((f"\n{title}\n", *table_lines(head, rows)))


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def replace_marked(page: str, name: str, text: str) -> str:
    """Return a page with a text between its marks ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"page: expected the marks {begin} and {end}, got none")
    return f"{before}{begin}{text}{end}{after}"


def show_tables(tables: Mapping[str, str], page: Path | None) -> None:
    """Print tables, or put each between the marks of its name on a page."""
    if page is None:
        print("\n\n".join(tables.values()))
        return
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        text = replace_table(text, name, lines)
    page.write_text(text, encoding="utf-8")


def replace_table(page: str, name: str, text: str) -> str:
    """Return a page with a text between the two marks of a table.

    Raises:
        ValueError: the page has no marks.
    """
    return replace_marked(page, name, f"\n\n{text.strip()}\n\n")


def means_of(scenarios: Iterable[Mapping[str, Any]], column: str, figure: str) -> Means:
    """A figure of ``results.json``, a mean over the seeds; ``column`` is the setting that stands apart. All in the order of the file.

    Raises:
        KeyError: there is no such setting or figure.
    """
    found: dict[tuple[Any, ...], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for scenario in scenarios:
        point = dict(scenario["point"])
        place = point.pop(column)
        found[tuple(point.values())][place].append(scenario["system"][figure])
    return {case: {place: fmean(values) for place, values in places.items()} for case, places in found.items()}
