"""The process that ``sandbox.run_program`` starts: locks itself in, then runs the program from its standard input.

Arguments: the mark that it writes when the program has come to its end, the descriptor to write it to, bytes of memory, seconds. Before the
program runs it writes a dot. It imports nothing of the project, because it runs without its path.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import NoReturn

__all__ = ["main"]

UNUSABLE = 77
LOCKED = b"."  # written before the program runs
# Modules that are loaded before the files are out of reach: what solutions of HumanEval import, and what these import late.
MODULES = (
    *("array", "bisect", "cmath", "collections", "collections.abc", "copy", "datetime", "decimal", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string", "sys"),
    *("textwrap", "time", "traceback", "types", "typing", "unicodedata"),
)
# Computing needs memory, clocks, locks, random bytes, and to read, write and close what is open. Numbers by machine.
ALLOWED = {
    "x86_64": (
        *(0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 60, 79, 96, 102, 104, 107, 108, 131, 186, 201, 202, 204),
        *(219, 228, 229, 230, 231, 273, 318, 324, 334),
    ),
    "aarch64": (
        *(17, 57, 62, 63, 64, 73, 80, 93, 94, 98, 99, 101, 113, 114, 115, 123, 124, 128, 132, 134, 135, 139, 169, 172, 174, 175),
        *(176, 177, 178, 214, 215, 216, 222, 226, 233, 278, 283, 293),
    ),
}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000  # SECCOMP_RET_KILL_PROCESS, ERRNO with EPERM, ALLOW
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 22, 38, 9


def main(mark: str, descriptor: str, memory: str, seconds: str) -> NoReturn:
    """Run the program from standard input, and end with the mark if it came to its end."""
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    for name in MODULES:
        import_module(name)
    limit(int(memory), float(seconds))
    if not lock_in():
        os._exit(UNUSABLE)
    write, leave = os.write, os._exit  # the program may replace those of ``os``
    write(int(descriptor), LOCKED)
    try:
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102  # this is what the child is for
    except BaseException:  # noqa: BLE001  # whatever it is, the program has not come to its end
        leave(1)
    write(int(descriptor), mark.encode())
    leave(0)


def limit(memory: int, seconds: float) -> None:
    """Take limits of address space, processor time, written files and core dumps."""
    of_time = int(seconds) + 1
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, of_time),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def lock_in() -> bool:
    """Give up all system calls that aren't allowed; False: this machine can't."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in ALLOWED:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(_filter(_ARCHITECTURES[machine], ALLOWED[machine]))
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: number of instructions (16 bits), padding, pointer
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), zero, zero, zero)
    is_fixed = not libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero)
    return is_fixed and not libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), program, zero, zero)


def _filter(architecture: int, allowed: Iterable[int]) -> Iterable[bytes]:
    """Give the instructions: another architecture's calls kill, calls that aren't allowed fail with EPERM."""
    numbers = list(allowed)
    yield _instruction(_LOAD, 4)  # seccomp_data.arch
    yield _instruction(_EQUALS, architecture, when_true=1)
    yield _instruction(_RETURN, _KILL)
    yield _instruction(_LOAD, 0)  # seccomp_data.nr
    for place, number in enumerate(numbers):
        yield _instruction(_EQUALS, number, when_true=len(numbers) - place)
    yield _instruction(_RETURN, _ERROR)
    yield _instruction(_RETURN, _ALLOW)


def _instruction(code: int, operand: int, *, when_true: int = 0) -> bytes:
    return struct.pack("HBBI", code, when_true, 0, operand)


if __name__ == "__main__":
    main(*sys.argv[1:])
