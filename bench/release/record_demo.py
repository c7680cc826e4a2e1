"""The moving picture of README.md: ``python -m bench.release.record_demo docs/demo.svg`` runs ``streamco demo`` in a terminal and draws it.

A row of the terminal is drawn once for each time that it stood there, and shown for as long. The picture has no script: SVG's own animation
shows and hides the rows, and where that isn't known the last screen is seen.
"""

from __future__ import annotations

import argparse
import html
import importlib
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT = 104, 40  # cells
CELL, LINE = 8.4, 18.0  # pixels
STEP = 0.12  # seconds between two looks at the screen
REST = 6.0  # seconds that the last screen stays
END = "now you: ask anything"
LIMIT = 180.0  # seconds
NO_BREAK = "\u00a0"  # two spaces would become one
GROUND, INK = "#14171c", "#d7dae0"
NAMED = {"green": "#7fd18b", "cyan": "#7fb7e8", "red": "#f28b82", "yellow": "#e0c58f", "default": INK}


class Run(NamedTuple):
    """Characters of one style."""

    text: str
    color: str
    is_bold: bool


Row = tuple[Run, ...]


class Shown(NamedTuple):
    """A row and when it stood where, seconds; ``end`` None: to the last."""

    row: Row
    place: int
    begin: float
    end: float | None


def screens() -> Iterator[tuple[float, list[Row]]]:
    """Run the demo, and yield the time and the screen's rows as they change."""
    pyte: Any = importlib.import_module("pyte")
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if not pid:
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
        os.execve(sys.executable, [sys.executable, "-m", "streamco", "demo", "--theme", "dark"], environment)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    began = looked = time.monotonic()
    try:
        while (now := time.monotonic()) - began < LIMIT and not any(END in line for line in screen.display):
            if select.select([terminal], [], [], STEP)[0]:
                data = os.read(terminal, 65536)
                stream.feed(data)
                if b"\x1b[6n" in data:  # prompt_toolkit asks where the cursor is
                    os.write(terminal, b"\x1b[1;1R")
            if now - looked >= STEP:
                looked = now
                yield now - began, rows_of(screen)
        yield time.monotonic() - began, [row for row in rows_of(screen) if END not in "".join(run.text for run in row)]
    finally:
        os.write(terminal, b"\x04")
        os.close(terminal)
        os.waitpid(pid, 0)


def rows_of(screen: Any) -> list[Row]:
    """Return what stands on a screen of pyte's."""
    found = []
    for number in range(HEIGHT):
        cells = [screen.buffer[number][column] for column in range(WIDTH)]
        runs = [
            Run("".join(cell.data for cell in group), color, is_bold)
            for (color, is_bold), group in groupby(cells, key=lambda cell: (cell.fg, cell.bold))
        ]
        while runs and not runs[-1].text.strip():
            runs.pop()
        found.append(tuple([*runs[:-1], runs[-1]._replace(text=runs[-1].text.rstrip())] if runs else []))
    return found


def shown_rows(frames: Sequence[tuple[float, list[Row]]]) -> list[Shown]:
    """Return each row with its time, from screens with theirs."""
    found: list[Shown] = []
    for place in range(HEIGHT):
        begin, last = 0.0, ()
        for at, rows in frames:
            row: Row = rows[place] if place < len(rows) else ()
            if row != last:
                if last:
                    found.append(Shown(last, place, begin, at))
                begin, last = at, row
        if last:
            found.append(Shown(last, place, begin, None))
    return found


def drawn(rows: Sequence[Shown], seconds: float) -> str:
    """Return the picture."""
    width, height = WIDTH * CELL + 32, HEIGHT * LINE + 32
    font = f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14" fill="{INK}"'
    clock = f'<animate id="t" attributeName="rx" from="8" to="8" begin="0s;t.end" dur="{seconds + REST:.2f}s"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {font}>',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{GROUND}">{clock}</rect>',
    ]
    for row, place, begin, end in rows:
        x, texts = 0, []
        for text, color, is_bold in row:
            if text.strip():
                shade = NAMED.get(color, f"#{color}" if len(color) == 6 else INK)
                fill = "" if shade == INK else f' fill="{shade}"'
                bold = ' font-weight="bold"' if is_bold else ""
                words, left = text.strip(), 16 + (x + len(text) - len(text.lstrip())) * CELL
                shape = f'x="{left:.1f}" y="{30 + place * LINE:.0f}" textLength="{len(words) * CELL:.1f}"{fill}{bold}'
                texts.append(f"<text {shape}>{html.escape(words.replace('  ', 2 * NO_BREAK))}</text>")
            x += len(text)
        if end is None:
            hiding = f'<set attributeName="visibility" to="hidden" begin="t.begin" dur="{begin:.2f}s"/>' if begin else ""
            parts.append(f"<g>{hiding}{''.join(texts)}</g>")
        else:
            showing = f'<set attributeName="visibility" to="visible" begin="t.begin+{begin:.2f}s" dur="{end - begin:.2f}s"/>'
            parts.append(f'<g visibility="hidden">{showing}{"".join(texts)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Record the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="SVG file to write")
    options = parser.parse_args()
    frames = list(screens())
    first = next((at for at, rows in frames if any(rows)), 0.0)
    frames = [(at - first, rows) for at, rows in frames if at >= first]
    options.picture.write_text(drawn(shown_rows(frames), frames[-1][0]), encoding="utf-8")


if __name__ == "__main__":
    main()
