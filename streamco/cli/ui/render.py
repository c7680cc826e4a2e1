"""Renders an answer as terminal rows: Markdown block by block, tinted by the endpoint that wrote it.

Where the endpoint changes, an invisible character is put into the Markdown source. It has no width, passes through the parser with the text
around it, and is removed when the rendered segments get their colour.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import ClassVar

import rich.theme
from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.default_styles import DEFAULT_STYLES
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from streamco.cli.ui.live_region import Row
from streamco.cli.ui.markdown import blocks, closed_end, complete, parse
from streamco.cli.ui.theme import Theme

__all__ = ["AnswerRenderer", "Frame", "make_console", "markdown_styles", "rows_of"]

WIDEST = 110  # cells; longer lines of text are hard to read
LONG_SHARE = 3  # a line of code that covers more than this fraction (1/3) of the screen's height is wrapped
_MARKS = {"\u2061": "device", "\u2062": "server", "\u2063": "local"}  # invisible operators: without width, and not used by models
_MARK_OF = {kind: mark for mark, kind in _MARKS.items()}
_TRAILING = re.compile(r"(?:\x1b\[[0-9;:]*m|\s)+$")
_ESCAPES = re.compile(r"\x1b\[[0-9;:]*m")
_UNSAFE = {code: None for code in (*range(9), *range(11, 32), 127, *range(128, 160)) if code != 9} | {ord(mark): None for mark in _MARKS}


class Frame(Struct, frozen=True):
    """Rows to show now: ``done`` rows are final and scroll away, ``open`` rows may change."""

    done: list[Row]
    open: list[Row]


class AnswerRenderer:
    """Turns an answer's text into rows.

    Args:
        console: provides width and colours; nothing is printed on it.
        theme: styles by kind of endpoint.
    """

    def __init__(self, console: Console, theme: Theme) -> None:
        self._console = console
        self._theme = theme
        self._mode = "content"
        self._source = ""  # the open block as Markdown, including marks
        self._maker = ""  # maker of the next text
        self._maker_of_source = ""  # maker of its first character
        self._mark_due = False
        self._rows_done = 0  # rows of the open block that have scrolled away already
        self._letters_done = 0  # visible characters in those rows; unlike the rows, they don't change with the width
        self._width = console.width
        self._is_first = True

    def feed(self, text: str, maker: str, mode: str = "content") -> list[Row]:
        """Add a piece of text.

        Args:
            text: text of any length, cut anywhere; control characters are dropped.
            maker: ``device``, ``server`` or ``local``.
            mode: ``content`` (Markdown) or ``reasoning`` (shown as it is, dimmed).

        Returns:
            Rows that became final because the text changed between reasoning and content.
        """
        rows: list[Row] = []
        if mode != self._mode:
            rows = self.finish()
            self._mode = mode
        if not self._source:
            text = text.lstrip("\n")
            self._maker_of_source = maker
        elif maker != self._maker:
            self._mark_due = True
        self._maker = maker
        self._append(text.translate(_UNSAFE))
        return rows

    def _append(self, text: str) -> None:
        if self._mark_due:
            place = _mark_position(self._source, text)
            if place is not None:
                text = text[:place] + _MARK_OF.get(self._maker, "") + text[place:]
                self._mark_due = False
        self._source += text

    def frame(self, max_open: int) -> Frame:
        """Return the rows to show. Open rows are at most ``max_open`` high; rows of closed blocks, and rows that don't fit, are done."""
        done: list[Row] = []
        shown = self._source
        if self._mode == "content":
            done = self._close(closed_end(self._source))
            shown = complete(self._source)
        rows = self._render(shown)
        overflow = max(self._first_that_fits(rows, max_open), self._rows_done)
        done += self._mark_done(rows, overflow)
        return Frame(done, rows[overflow:])

    def _first_that_fits(self, rows: list[Row], room: int) -> int:
        """Return the index of the first row that fits, with all rows after it, into ``room`` rows of the terminal."""
        for index in range(len(rows) - 1, -1, -1):
            room -= rows[index].height(self._console.width)
            if room < 0:
                return index + 1
        return 0

    def _mark_done(self, rows: list[Row], end: int) -> list[Row]:
        new = rows[self._rows_done : end]
        self._rows_done = end
        self._letters_done += sum(map(_letters, new))
        return new

    def _refit(self, rows: list[Row]) -> None:
        """Find the first row that hasn't scrolled away, after the width has changed."""
        totals = list(accumulate(map(_letters, rows)))
        self._rows_done = bisect_right(totals, self._letters_done) if self._letters_done else 0
        self._width = self._console.width

    def finish(self) -> list[Row]:
        """End the current text, and return its rows that weren't final yet. You may feed new text afterwards."""
        return self._close(len(self._source))

    def _close(self, end: int) -> list[Row]:
        """Return the rows of the blocks before ``end`` that haven't scrolled away yet."""
        rows: list[Row] = []
        source, self._source = self._source[:end], self._source[end:]
        for block in blocks(source) if self._mode == "content" else [source] * bool(source):
            rendered = self._render(block)
            rows += rendered[self._rows_done :]
            self._rows_done = self._letters_done = 0
            self._is_first = self._is_first and not rendered
            self._maker_of_source = _last_maker(block, self._maker_of_source)
        return rows

    def _render(self, source: str) -> list[Row]:
        """Return the rows of one block, with a blank row before it unless it is the first."""
        if not source.strip():
            return []
        block: RenderableType
        if self._mode == "content":
            block = _Tinted(_Document(source, self._theme), self._maker_of_source, self._theme)
        else:
            block = Text(source.strip().translate(dict.fromkeys(map(ord, _MARKS))), style=self._theme.thinking)
        rows = rows_of(self._console, block)
        if rows and not self._is_first:
            rows.insert(0, Row("", 0))
        if self._width != self._console.width:
            self._refit(rows)
        return rows


def _letters(row: Row) -> int:
    return sum(not character.isspace() for character in _ESCAPES.sub("", row.text))


def _mark_position(before: str, text: str) -> int | None:
    """Return a position before a letter or digit where a mark is safe, outside markers, addresses and fences. None if there is none."""
    for place, character in enumerate(text):
        if character.isalnum():
            line = (before + text[:place]).rpartition("\n")[2]
            word = line.rpartition(" ")[2]
            is_marker = character.isdigit() and not line.strip(" >")
            is_fence = line.lstrip(" >-+*").startswith(("```", "~~~"))
            return None if is_marker or is_fence or "](" in word or "://" in word else place
    return None


def _last_maker(source: str, before: str) -> str:
    return next((_MARKS[character] for character in reversed(source) if character in _MARKS), before)


def markdown_styles(theme: Theme) -> rich.theme.Theme:
    """Return the theme's Markdown styles under rich's names. Rich's other styles lose their colours, which mark the endpoints."""
    colourless = {name: style.without_color for name, style in DEFAULT_STYLES.items() if name.startswith("markdown.")}
    own = {
        "markdown.h1": f"{theme.title} underline",
        "markdown.h2": theme.title,
        "markdown.code": theme.inline_code,
        "markdown.code_block": "none",
        "markdown.block_quote": theme.quiet,
        "markdown.hr": theme.quiet,
        "markdown.item.number": "none",
        "markdown.item.bullet": "none",
        "markdown.table.border": theme.quiet,
        "markdown.table.header": theme.title,
        "markdown.link": "underline",
        "markdown.link_url": theme.quiet,
    }
    return rich.theme.Theme({**colourless, **own})


def make_console(theme: Theme, *, color: bool = True) -> Console:
    """Return a console for stdout, without colours if ``color`` is False, the theme has no tints, or ``NO_COLOR`` is set."""
    return Console(theme=markdown_styles(theme), no_color=None if color and theme.device else True, highlight=False)


def rows_of(console: Console, renderable: RenderableType) -> list[Row]:
    """Return rich's rendering as rows with one free cell, because the terminal would wrap a full row. Lines of code may be longer."""
    with console.capture() as capture:
        console.print(_RowByRow(renderable), width=_text_width(console), highlight=False, soft_wrap=False, crop=False)
    rows = [_row(line) for line in capture.get().split("\n")]
    filled = [index for index, row in enumerate(rows) if row.cells]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def _text_width(console: Console) -> int:
    return min(console.width - 1, WIDEST)


def _row(line: str) -> Row:
    text = _TRAILING.sub("", line)
    cells = cell_len(_ESCAPES.sub("", text))
    return Row(f"{text}\x1b[0m" if "\x1b" in text else text, cells) if cells else Row("", 0)


class _RowByRow:
    """Splits segments at newlines, because rich may make a wrapped paragraph one segment, and writes its style only at the beginning."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._content, options)):
            yield from line
            yield Segment.line()


class _Tinted:
    """Gives segments that have no colour the tint of the endpoint that wrote them."""

    def __init__(self, content: RenderableType, maker: str, theme: Theme) -> None:
        self._content = content
        self._maker = maker
        self._theme = theme

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        maker = self._maker
        for segment in console.render(self._content, options):
            if segment.control:
                yield segment
                continue
            for part in re.split("([\u2061-\u2063])", segment.text):
                if part in _MARKS:
                    maker = _MARKS[part]
                else:
                    yield Segment(part, Style.parse(self._theme.tint(maker)) + (segment.style or Style.null()))


class _Code(CodeBlock):
    """A code block on the terminal's own background, at the left edge and without added line breaks, so that it can be copied.

    Inside a list or quotation it is wrapped, and so are lines that would fill a large part of the screen.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        syntax = Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")
        if options.max_width < _text_width(console):
            yield syntax
            return
        most = max(options.max_width, console.width * (console.height // LONG_SHARE))
        text = syntax.highlight(code)
        text.rstrip()
        for line in text.split("\n", allow_blank=True):
            line.expand_tabs(syntax.tab_size)
            longest = most if line.cell_len == len(line.plain) else options.max_width  # a wide character may leave a cell empty at the edge
            for part in line.wrap(console, longest, overflow="fold", no_wrap=False) if line.cell_len > longest else [line]:
                yield from part.render(console, end="\n")


class _Heading(Heading):
    """A heading at the left edge."""

    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _Document(Markdown):
    """rich's Markdown with the tokens of ``parse``, so without HTML and with every newline as a line break."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
    }

    def __init__(self, source: str, theme: Theme) -> None:
        super().__init__("", code_theme=theme.code, hyperlinks=False)
        self.parsed = parse(source)
