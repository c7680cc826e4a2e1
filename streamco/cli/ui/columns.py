"""Shows two answers side by side, each with a clock until its first word: live on a terminal, elsewhere one below the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from msgspec import Struct, field

from streamco.cli.ui.control_characters import printable
from streamco.cli.ui.view import PlainView, View

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from streamco.cli.ui.terminal import TerminalView
    from streamco.cli.ui.theme import Theme

__all__ = ["Column", "show_columns"]

FRAME = 0.08  # seconds between two drawings
NARROWEST = 72  # cells; in fewer, two columns would be hard to read


class Column(Struct):
    """One of the two answers, with the text that has come so far.

    Args:
        title: who answers.
        first: seconds until the first word, or None if it hasn't come yet.
        parts: the pieces of text in order, each with who wrote it (``device`` or ``server``).
        failure: what ended the answer early, or "" if nothing did.
        ended: seconds until the answer ended, or None if it hasn't.
        is_timed: True if the first word's time is shown.
    """

    title: str
    first: float | None = None
    parts: list[tuple[str, str]] = field(default_factory=list)
    failure: str = ""
    ended: float | None = None
    is_timed: bool = True

    def feed(self, kind: str, text: str, since: float) -> None:
        """Add a piece of text.

        Args:
            kind: ``device`` or ``server``.
            text: the text.
            since: seconds since the request.
        """
        if self.first is None and text.strip():
            self.first = since
        self.parts.append((kind, printable(text)))

    @property
    def text(self) -> str:
        """The text so far, without whitespace at its ends."""
        return "".join(text for _, text in self.parts).strip()


@asynccontextmanager
async def show_columns(
    view: View, columns: tuple[Column, Column], *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Callable[[], float]]:
    """Show two answers while the block fills their columns, and yield a function that returns the seconds since the block began.

    Args:
        view: where they are shown; without a terminal, they are shown one after the other after the block.
        columns: the left and the right answer.
        clock: returns a monotonic time in seconds.
    """
    screen = None if isinstance(view, PlainView) else cast("TerminalView", view)
    began = clock()
    if screen is None or screen.console.width < NARROWEST:
        yield lambda: clock() - began
        for column in columns:
            view.note(_line(column))
            view.note(f"  {column.text}" + (f"\n  {column.failure}" if column.failure else ""))
        return
    from rich.live import Live

    with Live(console=screen.console, auto_refresh=False, vertical_overflow="visible") as live:

        def draw() -> None:
            live.update(_drawn(columns, screen.theme, clock() - began), refresh=True)

        drawing = asyncio.create_task(_keep(draw))
        try:
            yield lambda: clock() - began
        finally:
            drawing.cancel()
            draw()


async def _keep(draw: Callable[[], None]) -> None:
    while True:
        draw()
        await asyncio.sleep(FRAME)


def _line(column: Column, since: float | None = None) -> str:
    if not column.is_timed:
        return column.title
    if column.first is not None:
        return f"{column.title}: first word after {column.first:.2f} s"
    waited = "no word" if since is None or column.ended is not None else f"{since:.1f} s"
    return f"{column.title}: {waited}"


def _drawn(columns: tuple[Column, Column], theme: Theme, since: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(expand=True, padding=(0, 2))
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row(*(Text(_line(column, since), style=theme.title) for column in columns))
    table.add_row(*(_body(column, theme) for column in columns))
    return table


def _body(column: Column, theme: Theme) -> Text:
    from rich.text import Text

    body = Text()
    for number, (kind, text) in enumerate(column.parts):
        shown = text.replace("**", "")  # Markdown's bold markers
        body.append(shown if number else shown.lstrip(), style=theme.tint(kind))
    body.rstrip()
    if column.failure:
        body.append(f"\n{column.failure}" if column.parts else column.failure, style=theme.error)
    elif column.ended is None and column.parts:
        body.append(" ▌", style=theme.quiet)
    return body
