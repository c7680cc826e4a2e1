"""Runs a program that a model has written, in a child process that can compute and nothing else (Linux).

The child is Python without the environment, site-packages or an open file. Before it reads the program it loads the modules that solutions
use, takes limits of memory and processor time, and gives up all system calls except those that computing needs (a seccomp allow-list, see
``sandboxed_child``). So there is no network, no file, no other process and no signal; a denied call is a ``PermissionError`` inside. The
child is killed with its process group when its time is over. A machine without seccomp runs nothing: that is an error.

It shields the machine, and not the score: a program that wants to be counted as right can find a way to say so.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["USUAL", "Limits", "Outcome", "SandboxError", "run_program"]

Outcome = Literal["passed", "failed", "timed out"]
_CHILD = Path(__file__).with_name("sandboxed_child.py")
_UNUSABLE = 77  # the child's exit status if it could not lock itself in, and has written nothing
_LOCKED = b"."  # what it writes before the program runs, which may end with any status


class SandboxError(RuntimeError):
    """The program was not run, because the child could not be locked in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a program.

    Args:
        seconds: of the clock, start of Python included; also the limit of processor time, rounded up.
        memory: bytes of address space.
    """

    seconds: float = 10.0
    memory: int = 512 << 20


USUAL = Limits()


def run_program(source: str, limits: Limits = USUAL) -> Outcome:
    """Run a Python program; "passed" if it comes to its end.

    Raises:
        SandboxError: this machine can't lock it in.
    """
    mark = secrets.token_hex(16)
    readable, writable = os.pipe()
    try:
        try:
            child = subprocess.Popen(  # noqa: S603  # the interpreter itself, with a file of this folder
                [sys.executable, "-I", "-S", "-B", str(_CHILD), mark, str(writable), str(limits.memory), str(limits.seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writable],
                env={},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(writable)
        try:
            child.communicate(source.encode("utf-8", "surrogatepass"), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            _kill(child)
        written = os.read(readable, 64)
        if child.returncode == _UNUSABLE and not written:
            raise SandboxError("sandbox: expected Linux with seccomp on x86_64 or aarch64, got a machine that refused the filter")
        return "passed" if written == _LOCKED + mark.encode() else "failed"
    finally:
        os.close(readable)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's process group and wait for the child."""
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
