"""The bottom rows of a terminal, which are redrawn while finished rows scroll away as ordinary text.

Only rows that changed are written, in one write, so nothing flickers. Finished rows are written once and then belong to the terminal's
scroll-back. There is no IO here: ``Region`` turns rows into the text to write.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["HIDE_CURSOR", "SHOW_CURSOR", "Region", "Row"]

HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"
BEGIN_UPDATE = "\x1b[?2026h"  # synchronised output: terminals that know it show the whole update at once, others ignore it
END_UPDATE = "\x1b[?2026l"
ERASE_LINE = "\x1b[K"
ERASE_BELOW = "\x1b[J"


class Row(Struct, frozen=True):
    """One row of the screen: text with escape sequences, and the cells it covers (less than the terminal's width)."""

    text: str
    cells: int


class Region:
    """The rows at the bottom that may still change. The cursor rests at the end of the last one."""

    def __init__(self) -> None:
        self._drawn: list[Row] = []

    def draw(self, rows: Sequence[Row], *, above: Sequence[Row] = ()) -> str:
        """Return the text that makes ``above`` final and shows ``rows`` below it; "" if nothing changed."""
        wanted = [*above, *rows]
        drawn = self._drawn
        same = 0
        while same < len(wanted) and same < len(drawn) and wanted[same] == drawn[same]:
            same += 1
        self._drawn = list(rows)
        if same == len(wanted) == len(drawn):
            return ""
        return f"{BEGIN_UPDATE}{self._rewrite(wanted, len(drawn), same)}{END_UPDATE}"

    def close(self) -> str:
        """Return the text that makes the rows final: the cursor goes to a line of its own."""
        rows, self._drawn = self._drawn, []
        return "\r\n" if rows else ""

    def reflow(self, width: int) -> str:
        """Return the text that wipes the rows after the terminal became ``width`` cells wide and wrapped them again."""
        heights = [max(1, -(-row.cells // width)) for row in self._drawn]
        self._drawn = []
        return f"{_up(sum(heights) - 1)}{ERASE_BELOW}" if heights else ""

    @staticmethod
    def _rewrite(wanted: Sequence[Row], drawn: int, same: int) -> str:
        body = "\r\n".join(row.text + ERASE_LINE for row in wanted[same:])
        if same >= drawn > 0:  # everything drawn stays, more follows
            return f"\r\n{body}"
        to_changed = _up(drawn - 1 - same)
        if body:
            return f"{to_changed}{body}{ERASE_BELOW if drawn > len(wanted) else ''}"
        return f"{to_changed}{ERASE_BELOW}{_end_of_row_above(wanted[-1]) if wanted else ''}"  # the last rows went away


def _end_of_row_above(row: Row) -> str:
    return _up(1) + (f"\x1b[{row.cells}C" if row.cells else "")


def _up(rows: int) -> str:
    return f"\r\x1b[{rows}A" if rows > 0 else "\r"
