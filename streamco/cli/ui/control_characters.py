"""Removes the characters with which text could control a terminal.

Text from a server, in answers, errors and names, is shown on the reader's terminal. Escape sequences could set its title, clear it,
write to the clipboard (OSC 52) or hide text; overrides of the writing direction could show text in a different order. Without their control
characters all of these are harmless text, even if a sequence comes in several tokens.
"""

from __future__ import annotations

import logging
import re
from typing import TextIO

__all__ = ["PlainFormatter", "escaped", "print_plain", "printable"]

# C0 except tab and line feed, DEL, C1, and the embeddings, overrides and isolates of the bidirectional algorithm
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text without control characters; tabs and line feeds stay."""
    return _CONTROLS.sub("", text)


def escaped(text: str) -> str:
    """Return JSON text with its control characters as JSON escapes, so that its values stay the same."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_plain(text: object, file: TextIO | None = None, *, end: str = "\n") -> None:
    """Print without control characters to ``file`` (by default stdout), and flush. The commands print only with this."""
    print(printable(str(text)), file=file, end=end, flush=True)


class PlainFormatter(logging.Formatter):
    """Formats log records without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        return printable(super().format(record))
