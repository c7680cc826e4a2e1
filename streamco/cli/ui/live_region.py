"""The bottom rows of a terminal, which are redrawn while finished rows scroll away as ordinary text.

Only rows that changed are written, in one write, so nothing flickers. Finished rows are written once and then belong to the terminal's
scrollback. A row may be longer than the terminal is wide (a line of code). The terminal wraps it, so that it is copied as one line, and
the region takes its height into account. There is no IO here: ``Region`` turns rows into the text to write.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["HIDE_CURSOR", "SHOW_CURSOR", "Region", "Row"]

HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"
BEGIN_UPDATE = "\x1b[?2026h"  # synchronised output: terminals that support it show the whole update at once, others ignore it
END_UPDATE = "\x1b[?2026l"
ERASE_LINE = "\x1b[K"
ERASE_BELOW = "\x1b[J"


class Row(Struct, frozen=True):
    """One row of text with escape sequences, and the number of cells that it covers. The terminal wraps a row that is too wide."""

    text: str
    cells: int

    def height(self, width: int) -> int:
        """Return the number of rows that it covers on a terminal of ``width`` cells."""
        return max(1, -(-self.cells // width))


class Region:
    """The rows at the bottom that may still change. The cursor stays at the end of the last one, which must not wrap.

    Args:
        width: cells of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._drawn: list[Row] = []

    def draw(self, rows: Sequence[Row], *, above: Sequence[Row] = ()) -> str:
        """Return the text that makes ``above`` final and shows ``rows`` below it, or "" if nothing changed."""
        wanted = [*above, *rows]
        drawn = self._drawn
        same = 0
        while same < len(wanted) and same < len(drawn) and wanted[same] == drawn[same]:
            same += 1
        self._drawn = list(rows)
        if same == len(wanted) == len(drawn):
            return ""
        return f"{BEGIN_UPDATE}{self._rewrite(wanted, drawn, same)}{END_UPDATE}"

    def close(self) -> str:
        """Return the text that makes the rows final, by moving the cursor to a new line."""
        rows, self._drawn = self._drawn, []
        return "\r\n" if rows else ""

    def reflow(self, width: int) -> str:
        """Return the text that erases the rows after the terminal became ``width`` cells wide and rewrapped them."""
        self._width = width
        height = self._height(self._drawn)
        self._drawn = []
        return f"{_up(height - 1)}{ERASE_BELOW}" if height else ""

    def _height(self, rows: Sequence[Row]) -> int:
        return sum(row.height(self._width) for row in rows)

    def _rewrite(self, wanted: Sequence[Row], drawn: Sequence[Row], same: int) -> str:
        body = "\r\n".join(self._written(row) for row in wanted[same:])
        if same >= len(drawn) > 0:  # everything drawn stays, and more follows
            return f"\r\n{body}"
        to_changed = _up(self._height(drawn[same:]) - 1)
        if body:
            return f"{to_changed}{body}{ERASE_BELOW if self._height(drawn) > self._height(wanted) else ''}"
        return f"{to_changed}{ERASE_BELOW}{self._end_of_row_above(wanted[-1]) if wanted else ''}"  # the last rows are gone

    def _written(self, row: Row) -> str:
        """Return the row and, unless it ends at the edge, where that would erase its last cell, the code that erases old text after it."""
        is_full = row.cells > 0 and row.cells % self._width == 0
        return row.text if is_full else row.text + ERASE_LINE

    def _end_of_row_above(self, row: Row) -> str:
        cells = row.cells - (row.height(self._width) - 1) * self._width
        return _up(1) + (f"\x1b[{cells}C" if cells else "")


def _up(rows: int) -> str:
    return f"\r\x1b[{rows}A" if rows > 0 else "\r"
