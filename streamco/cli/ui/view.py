"""The views that show answers: live on a terminal, or as plain text for pipes and files."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol, TextIO

from streamco.cli.ui.control_characters import print_plain, printable
from streamco.cli.ui.status_line import fitted
from streamco.client.stream import Token
from streamco.core.report import Report
from streamco.core.report_summary import note_line, summary, summary_figures
from streamco.core.report_text import Section, sections_to_text

__all__ = ["PlainView", "View"]


class View(Protocol):
    """The interface through which the chat shows answers, notes and tables."""

    def legend(self, endpoints: Mapping[str, str]) -> None:
        """Introduce the endpoints, given as descriptions by name."""
        ...

    def heading(self, text: str) -> None:
        """Begin a section with this title."""
        ...

    def answering(self, report: Callable[[], Report | None]) -> AbstractAsyncContextManager[None]:
        """Return a context manager that shows progress while an answer is coming. ``report`` returns its figures so far."""
        ...

    def feed(self, token: Token) -> None:
        """Show one token."""
        ...

    def end(self, report: Report | None, *, ending: str = "") -> None:
        """Show the summary of a finished answer. ``ending`` is "stopped", "failed", or "" if it is complete."""
        ...

    def note(self, text: str) -> None:
        """Show a note."""
        ...

    def error(self, text: str) -> None:
        """Show an error."""
        ...

    def tables(self, sections: Sequence[Section]) -> None:
        """Show the sections, each as a table."""
        ...

    def copy(self, text: str) -> bool:
        """Ask the terminal to copy the text to its clipboard, and return False if there is no terminal."""
        ...


class PlainView:
    """A view that writes no escape sequences, not even those that a server sends. Answers go to ``out``, and everything else to ``err``."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_silent = is_silent  # collect the answer's text, but don't print it
        self._at_line_start = True
        self._notices: deque[str] = deque()  # log records that came inside a line of an answer; other threads append

    def legend(self, endpoints: Mapping[str, str]) -> None:
        """Print each endpoint and its description on ``err``."""
        width = max(map(len, endpoints), default=0)
        for name, what in endpoints.items():
            self.note(f"{name.ljust(width)}  {what}")

    def heading(self, text: str) -> None:
        """Print the title on ``err``, after a blank line."""
        self.note(f"\n{text}")

    @asynccontextmanager
    async def answering(self, report: Callable[[], Report | None]) -> AsyncIterator[None]:
        """Show no progress, because plain text has none. The answer's last line ends with the block."""
        try:
            yield
        finally:
            self._end_line()

    def feed(self, token: Token) -> None:
        """Write the answer's own text at once; reasoning is left out."""
        if token.kind == "content" and not self._is_silent:
            text = printable(token.text) if self._out.isatty() else token.text  # a file gets every character
            self._at_line_start = text.endswith("\n") if text else self._at_line_start
            self._out.write(text)
            self._out.flush()

    def end(self, report: Report | None, *, ending: str = "") -> None:
        """End the line, and print the summary on ``err``. On a terminal, print only the figures that fit on a line, and the first note."""
        self._end_line()
        if report is None:
            return
        if (columns := _columns(self._err)) is None:
            print_plain(f"[{summary(report, ending=ending)}]", self._err)
            return
        lines = [fitted(summary_figures(report, ending=ending), columns - 3), note_line(report)]
        print_plain("\n".join(f"[{line}]" for line in lines if line), self._err)

    def note(self, text: str) -> None:
        """Print the text on ``err``."""
        self._end_line()
        print_plain(text, self._err)

    def error(self, text: str) -> None:
        """Print the text on ``err``, after the word "error"."""
        self.note(f"error: {text}")

    def log(self, text: str) -> None:
        """Print a log record on stderr, at once or after the line of a running answer."""
        self._notices.append(text)
        if self._at_line_start:
            self._print_notices()

    def tables(self, sections: Sequence[Section]) -> None:
        """Print the sections on ``err``, as plain text with aligned columns."""
        self.note(sections_to_text(sections))

    def copy(self, text: str) -> bool:
        """Return False: plain text has no clipboard."""
        return False

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True
        self._print_notices()

    def _print_notices(self) -> None:
        with suppress(IndexError):  # other threads may remove and add records
            while True:
                print_plain(self._notices.popleft(), sys.stderr)


def _columns(stream: TextIO) -> int | None:
    """Return the width of the terminal that a stream goes to, or None if it isn't a terminal or has no width."""
    return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
