"""Shows log records where answers are shown."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

__all__ = ["ViewLogHandler", "log_to_view"]


class ViewLogHandler(logging.Handler):
    """A handler that passes each formatted record to a view. Any thread may log.

    Args:
        show: shows text of one or more lines.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show the record."""
        try:
            self._show(self.format(record))
        except Exception:  # noqa: BLE001 - as in logging's own handlers, a record that can't be shown must not end the program
            self.handleError(record)


def log_to_view(show: Callable[[str], None], *, is_live: bool) -> None:
    """Show records with ``show`` instead of writing them to stderr, if they would appear in the middle of an answer.

    They would if stderr goes to the same place as stdout (``2>&1``). The root logger's handlers for stderr are replaced. Other handlers
    stay as they are, and so does everything if stderr goes somewhere else.

    Args:
        show: shows a formatted record.
        is_live: True if the view draws on a terminal, where stderr on the terminal would break the display.
    """
    if not _is_shared() and not (is_live and sys.stderr.isatty()):
        return
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
            shown = ViewLogHandler(show)
            shown.setFormatter(handler.formatter)
            shown.setLevel(handler.level)
            root.removeHandler(handler)
            root.addHandler(shown)


def _is_shared() -> bool:
    """Return True if stdout and stderr go to the same file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # a stream that isn't a file, or is closed
        return False
