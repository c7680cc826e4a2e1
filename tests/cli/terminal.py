"""Drives a program through a real pseudo-terminal, as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cli.emulator import plain

__all__ = ["Terminal", "terminal"]

ROOT = Path(__file__).resolve().parents[2]
TAKE_TERMINAL = (  # so that Ctrl-C typed here is a signal there
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
CURSOR_REPORT = b"\x1b[6n"  # prompt_toolkit asks where the cursor is, and waits for the answer


def _inherited() -> dict[str, str]:
    """This process's environment without the size of a terminal, which a parallel test runner sets: the pseudo-terminal has its own."""
    return {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal.

    Attributes:
        raw: everything it wrote.
        process: the program.
    """

    def __init__(self, *words: str, width: int = 80, height: int = 24, env: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        self.resize(width, height)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**_inherited(), "TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "", **(env or {})},
            start_new_session=True,
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    def resize(self, width: int, height: int) -> None:
        """Change the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def expect(self, text: str, limit: float = 10.0) -> str:
        """Wait until the program has written this (colours aside) since the last ``expect``; what came before it."""
        deadline = time.monotonic() + limit
        while text not in (fresh := plain(self.raw)[self._seen :]):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"expected {text!r}, got {fresh!r}")
        before = fresh[: fresh.index(text)]
        self._seen += len(before) + len(text)
        return before

    def wait(self, limit: float = 10.0) -> int:
        """The exit code."""
        deadline = time.monotonic() + limit
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, limit: float) -> bool:
        if limit <= 0 or not select.select([self._master], [], [], limit)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        if CURSOR_REPORT in data:
            self.type("\x1b[1;1R")
        self.raw += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        """End the program."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@contextlib.contextmanager
def terminal(*words: str, width: int = 80, height: int = 24, env: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """A program in a terminal, ended at the end of the block."""
    driven = Terminal(*words, width=width, height=height, env=env)
    try:
        yield driven
    finally:
        driven.close()
