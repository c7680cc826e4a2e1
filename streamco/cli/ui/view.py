"""Where answers appear: a terminal that is drawn live, or plain text for pipes and files."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TextIO

from streamco.cli.ui.report import Section, sections_to_text, summary
from streamco.client.stream import Token
from streamco.core.report import Report

__all__ = ["PlainView", "View"]


class View(Protocol):
    """What the chat shows things on."""

    def legend(self, who: Mapping[str, str]) -> None:
        """Introduce the endpoints. ``who``: what each is, by its name."""
        ...

    def heading(self, text: str) -> None:
        """Begin a section."""
        ...

    def answering(self, report: Callable[[], Report | None]) -> AbstractAsyncContextManager[None]:
        """While an answer is on its way: shows that something happens. ``report``: its figures so far."""
        ...

    def feed(self, token: Token) -> None:
        """Show a token."""
        ...

    def end(self, report: Report | None, *, ending: str = "") -> None:
        """The answer is over: show what it was like. ``ending``: stopped | failed, "" when it is whole."""
        ...

    def note(self, text: str) -> None:
        """Tell the user something."""
        ...

    def error(self, text: str) -> None:
        """Tell the user that something went wrong."""
        ...

    def tables(self, sections: Sequence[Section]) -> None:
        """Show tables."""
        ...


class PlainView:
    """Text as it is, no escape sequences: the answers on ``out``, everything else on ``err``."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_silent = is_silent  # collect, but print no answer text
        self._at_line_start = True

    def legend(self, who: Mapping[str, str]) -> None:
        """Print on ``err``."""
        width = max(map(len, who), default=0)
        for name, what in who.items():
            self.note(f"{name.ljust(width)}  {what}")

    def heading(self, text: str) -> None:
        """Print on ``err``, after a blank line."""
        self.note(f"\n{text}")

    @asynccontextmanager
    async def answering(self, report: Callable[[], Report | None]) -> AsyncIterator[None]:
        """Nothing to animate."""
        yield

    def feed(self, token: Token) -> None:
        """Write the answer's own text at once; thinking aloud is left out."""
        if token.kind == "content" and not self._is_silent:
            self._out.write(token.text)
            self._out.flush()
            self._at_line_start = token.text.endswith("\n")

    def end(self, report: Report | None, *, ending: str = "") -> None:
        """End the line, and sum up on ``err``."""
        self._end_line()
        if report is not None:
            print(f"[{summary(report, ending=ending)}]", file=self._err, flush=True)

    def note(self, text: str) -> None:
        """Print on ``err``."""
        self._end_line()
        print(text, file=self._err, flush=True)

    def error(self, text: str) -> None:
        """Print on ``err``."""
        self.note(f"error: {text}")

    def tables(self, sections: Sequence[Section]) -> None:
        """Print on ``err``."""
        self.note(sections_to_text(sections))

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True
