"""A terminal small enough to read: it understands the sequences that streamco writes, and no more."""

from __future__ import annotations

import re

__all__ = ["Emulator", "painted", "plain"]

_PIECE = re.compile(r"\x1b\[(\??)([0-9;:]*)([A-Za-z])|\r|\n|[^\x1b\r\n]", re.DOTALL)


def plain(text: str) -> str:
    """A text without escape sequences."""
    return re.sub(r"\x1b\[[?0-9;:]*[A-Za-z]", "", text)


def painted(text: str) -> list[tuple[str, str]]:
    """Each character with the style that it is written in: the parameters since the last reset, "" for none."""
    characters: list[tuple[str, str]] = []
    style: list[str] = []
    for match in _PIECE.finditer(text):
        if match[3] == "m":
            first, *more = match[2].split(";")
            style = more if first in {"", "0"} else [*style, first, *more]
        elif not match[3]:
            characters.append((match[0], ";".join(style)))
    return characters


class Emulator:
    """Rows of characters with a cursor; what scrolls off the top is kept in ``lines`` as well. Colours are ignored.

    Attributes:
        lines: scroll-back and screen together.
        written: how many rows were touched, to tell a redraw of everything from a small change.
    """

    def __init__(self, height: int = 24, width: int = 80) -> None:
        self.height = height
        self.width = width
        self.lines: list[list[str]] = [[]]
        self.row = 0
        self.column = 0
        self.touched: set[int] = set()

    @property
    def text(self) -> str:
        """Everything, as a person who scrolls back reads it."""
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip("\n")

    @property
    def screen(self) -> list[str]:
        """What is visible."""
        return ["".join(line).rstrip() for line in self.lines[-self.height :]]

    def resize(self, width: int) -> None:
        """Change the width; rows that are too long now are wrapped, as most terminals do."""
        self.width = width
        self.lines = [line[start : start + width] for line in self.lines for start in range(0, max(1, len(line)), width)]
        self.row = len(self.lines) - 1
        self.column = len(self.lines[-1])

    def write(self, text: str) -> None:
        """Interpret; an unknown sequence is an error."""
        position = 0
        while position < len(text):
            match = _PIECE.match(text, position)
            if match is None:
                raise AssertionError(f"unknown sequence at {text[position : position + 10]!r}")
            position = match.end()
            if match[3]:
                self._control(match[1], match[2], match[3])
            elif match[0] == "\r":
                self.column = 0
            elif match[0] == "\n":
                self._down()
            else:
                self._put(match[0])

    def _put(self, character: str) -> None:
        if self.column >= self.width:  # as terminals do: the next character after a full row wraps, not the full row itself
            self.column = 0
            self._down()
        line = self.lines[self.row]
        line.extend(" " * (self.column + 1 - len(line)))
        line[self.column] = character
        self.column += 1
        self.touched.add(self.row)

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def _control(self, private: str, number: str, letter: str) -> None:
        count = int(number or 1) if number.isdigit() or not number else 1
        if private or letter == "m":
            return
        if letter == "A":
            top = max(0, len(self.lines) - self.height)
            if self.row - count < top:
                raise AssertionError(f"cursor moves {count} rows up from row {self.row - top} of the screen")
            self.row -= count
        elif letter == "C":
            self.column += count
        elif letter == "K":
            del self.lines[self.row][self.column :]
        elif letter == "J":
            del self.lines[self.row][self.column :]
            for line in self.lines[self.row + 1 :]:
                line.clear()
            del self.lines[self.row + 1 :]
        else:
            raise AssertionError(f"unknown control {letter}")
