"""Handles Ctrl-C and the keyboard while an answer is being written."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["on_interrupt", "quiet_keyboard"]


@contextmanager
def on_interrupt(callback: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` on the event loop for each Ctrl-C inside the block, instead of ending the program.

    If the loop can't watch signals (Windows), Ctrl-C ends the program as usual.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, callback)
    except (NotImplementedError, ValueError, RuntimeError):  # not on this loop, or not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def quiet_keyboard(file: TextIO | None = None) -> Iterator[None]:
    """Keep keys that are pressed inside the block out of the answer on the screen. They are kept for the next prompt."""
    stdin = file or sys.stdin
    if sys.platform == "win32" or not stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(stdin)
    quiet = termios.tcgetattr(stdin)
    quiet[0] &= ~(termios.ICRNL | termios.INLCR)  # Enter stays Enter for the next prompt
    quiet[3] &= ~(termios.ECHO | termios.ICANON)  # ISIG stays: Ctrl-C is a signal
    termios.tcsetattr(stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
