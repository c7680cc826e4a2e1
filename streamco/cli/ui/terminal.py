"""The live view: Markdown and a status line, drawn as they change."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamco.cli.ui.control_characters import printable
from streamco.cli.ui.interrupt import quiet_keyboard
from streamco.cli.ui.live_region import HIDE_CURSOR, SHOW_CURSOR, Region, Row
from streamco.cli.ui.render import AnswerRenderer, rows_of
from streamco.cli.ui.status_line import Progress, fitted
from streamco.cli.ui.theme import Theme
from streamco.client.stream import Token
from streamco.core.report import Report
from streamco.core.report_summary import note_line, speculation_figures, split_figures, summary_figures
from streamco.core.report_text import Section, format_usd
from streamco.events import Origin

__all__ = ["TerminalView"]

FRAME = 0.04  # least seconds between two drawings
SPIN = 0.1  # most seconds between two drawings, so that the spinner turns
NOTICES = 2  # newest log records shown while an answer comes; all are printed after it
BELOW = 3  # rows that open text doesn't use: a blank one, the status line, and one for the terminal's cursor
_MAKERS: dict[Origin, str] = {
    "draft": "device",
    "accepted": "device",
    "device": "local",
    "corrected": "server",
    "bonus": "server",
    "remote": "server",
}
DRAW_SHARE = 4  # drawing takes at most a fifth of the time, however long the open block has become


class TerminalView:
    """Draws on a rich console.

    Args:
        console: what to draw on.
        theme: styles by kind of endpoint.
        kinds: ``device`` or ``server`` by endpoint name.
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, console: Console, theme: Theme, kinds: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.theme = theme
        self._kinds = kinds
        self._clock = clock
        self._report: Callable[[], Report | None] = lambda: None
        self._changed = asyncio.Event()
        self._is_live = False
        self._notices: list[str] = []  # log records that came during the answer; other threads append
        self._reset()

    def _reset(self) -> None:
        self._renderer = AnswerRenderer(self.console, self.theme)
        self._region = Region(self.console.width)
        self._width = self.console.width
        self._done: list[Row] = []
        self._progress = Progress(now=self._clock())

    @asynccontextmanager
    async def answering(self, report: Callable[[], Report | None]) -> AsyncIterator[None]:
        """Draw inside the block, with the cursor and the keyboard's echo hidden."""
        self._reset()
        self._report = report
        drawing = asyncio.create_task(self._keep_drawing())
        try:
            with quiet_keyboard():
                self._write(f"\r\n{HIDE_CURSOR}")
                self._is_live = True
                yield
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing
            self._settle()
            self._write(SHOW_CURSOR)
            self._is_live = False
            self._print_notices()

    async def _keep_drawing(self) -> None:
        while True:
            began = self._clock()
            self._draw()
            spent = self._clock() - began
            await asyncio.sleep(max(FRAME, DRAW_SHARE * spent))
            with suppress(TimeoutError):
                async with asyncio.timeout(SPIN):
                    await self._changed.wait()
            self._changed.clear()

    def _draw(self) -> None:
        if self.console.width != self._width:
            self._width = self.console.width
            self._write(self._region.reflow(self._width))
        notices = [self._one_row(self._notice(text)) for text in self._notices[-NOTICES:]]
        frame = self._renderer.frame(self.console.height - BELOW - len(notices))
        above, self._done = [*self._done, *frame.done], []
        gap = [Row("", 0)] if frame.open or above or self._progress.first is not None else []
        self._write(self._region.draw([*frame.open, *gap, *notices, self._status()], above=above))

    def _status(self) -> Row:
        progress, report, width = self._progress, self._report(), self._line_width
        if progress.first is None:
            asked = [part.name for part in report.endpoints if part.opened is not None] if report else []
            line = progress.waiting_line(asked, now=self._clock(), width=width)
        else:
            cost = format_usd(report.cost_usd) if report and report.cost_usd is not None else ""
            drafts = [*speculation_figures(report), *split_figures(report)] if report else []
            line = progress.line(now=self._clock(), drafts=drafts, cost=cost, width=width)
        return self._one_row(self._tinted(line))

    def _tinted(self, line: str) -> Text:
        text = Text(printable(line), style=self.theme.quiet)
        for name, kind in self._kinds.items():
            text.highlight_words([name], style=f"not dim {self.theme.tint(kind)}")
        return text

    def _notice(self, text: str) -> Text:
        return Text(" ".join(text.split()), style=self.theme.notice)

    def _print_notices(self) -> None:
        notices, self._notices = self._notices, []
        if notices:
            self.console.print()
        for text in notices:
            self.console.print(Text(text, style=self.theme.notice))

    @property
    def _line_width(self) -> int:
        """Cells of a line that isn't wrapped; one cell is left free."""
        return self.console.width - 1

    def _one_row(self, text: Text) -> Row:
        text.truncate(self._line_width, overflow="ellipsis")
        return rows_of(self.console, text)[0]

    def _settle(self) -> None:
        """Make all rows final, and remove the status line."""
        rows = [*self._done, *self._renderer.finish()]
        self._done = []
        self._write(self._region.draw([], above=rows) + "\r\n" if rows else self._region.draw([]))
        self._region = Region(self.console.width)

    def _write(self, text: str) -> None:
        if text:
            self.console.file.write(text)
            self.console.file.flush()

    # Views

    def legend(self, endpoints: Mapping[str, str]) -> None:
        """Print each endpoint with its tint."""
        self.console.print()
        width = max(map(len, endpoints), default=0)
        for name, what in endpoints.items():
            tint = self.theme.tint(self._kinds.get(name, "")) or self.theme.title
            self.console.print(Text.assemble((f"■ {name.ljust(width)}", tint), (f"  {printable(what)}", self.theme.quiet)))

    def heading(self, text: str) -> None:
        """Print the text in bold."""
        self.console.print()
        self.console.print(Text(printable(text), self.theme.title))

    def feed(self, token: Token) -> None:
        """Add a token; the drawing task shows it."""
        self._progress.record(token.source, now=self._clock())
        maker = _MAKERS[token.origin] if token.origin is not None else self._kinds.get(token.source, "")
        self._done += self._renderer.feed(printable(token.text), maker, token.kind)
        self._changed.set()

    def end(self, report: Report | None, *, ending: str = "") -> None:
        """Print under the answer the figures that fit on one line, and below them the answer's first note."""
        self.console.print()
        if report is not None:
            line = self._tinted(fitted(summary_figures(report, ending=ending), self._line_width))
            line.truncate(self._line_width, overflow="ellipsis")
            self.console.print(line)
            if note := note_line(report):
                has_failed = any(part.error for part in report.endpoints)
                self.console.print(Text(printable(note), style=self.theme.error if has_failed else self.theme.quiet))
            self.console.print()

    def note(self, text: str) -> None:
        """Print the text dimmed."""
        self.console.print(Text(printable(text), style=self.theme.quiet))

    def error(self, text: str) -> None:
        """Print the text as an error."""
        self.console.print(Text.assemble(("error: ", self.theme.error), printable(text)))

    def log(self, text: str) -> None:
        """Show a log record under a running answer and in full after it, or at once if no answer is running."""
        self._notices.append(printable(text))
        if not self._is_live:
            self._print_notices()

    def tables(self, sections: Sequence[Section]) -> None:
        """Print tables in columns."""
        for section in sections:
            self.console.print()
            self.console.print(Text(section.title, style=self.theme.title))
            self.console.print(self._table(section))
            for row in section.rows:
                if section.heads and len(row) == 1:  # a sentence, which would make the first column wide
                    self.console.print(Text(f" {printable(row[0])}", self.theme.quiet))
        self.console.print()

    def copy(self, text: str) -> bool:
        """Send the text to the terminal's clipboard with OSC 52. The terminal doesn't say whether it accepted it."""
        self._write(f"\x1b]52;c;{base64.b64encode(printable(text).encode()).decode()}\x07")
        return True

    def _table(self, section: Section) -> Table:
        table = Table(box=None, show_header=bool(section.heads), header_style=self.theme.quiet, padding=(0, 1))
        for head in section.heads or ("", ""):
            table.add_column(head, overflow="fold")
        for row in [row for row in section.rows if len(row) > 1 or not section.heads]:
            kind = self._kinds.get(row[0], "")
            style = self.theme.tint(kind) if kind else self.theme.quiet
            table.add_row(*(Text(printable(cell), style if index == 0 else "") for index, cell in enumerate(row)))
        return table
