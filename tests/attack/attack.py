"""An attack, the row of the table that it becomes, and the check that whatever was attacked still serves the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

__all__ = ["Attack", "Harm", "Outcome", "Register", "Victim", "carry_out", "table"]

LIMIT = 90.0  # seconds in which every attack is over


class Harm(Exception):
    """The attack did what it must not."""


class Victim(Protocol):
    """A running program that is attacked."""

    async def check(self) -> str:
        """Return "" if the next ordinary request is answered, else what happened instead."""
        ...


class Attack(Struct, frozen=True):
    """One attack.

    Args:
        name: what is done.
        expected: what must come of it.
        run: does it and returns what was seen; raises ``Harm``. Size 0 is short, and no time is checked; larger ones do it more often.
    """

    name: str
    expected: str
    run: Callable[[Any, int], Awaitable[str]]


class Outcome(Struct, frozen=True):
    """A row of the table."""

    listener: str
    attack: str
    expected: str
    seen: str
    is_harmless: bool


class Register:
    """The attacks on one listener, in the order of their definition."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.attacks: list[Attack] = []

    def __call__(self, name: str, expected: str) -> Callable[[Callable[[Any, int], Awaitable[str]]], Callable[[Any, int], Awaitable[str]]]:
        """Return a decorator that adds an attack."""

        def add(run: Callable[[Any, int], Awaitable[str]]) -> Callable[[Any, int], Awaitable[str]]:
            self.attacks.append(Attack(name, expected, run))
            return run

        return add


async def carry_out(listener: str, attack: Attack, victim: Victim, size: int) -> Outcome:
    """Carry one attack out, then ask the victim for an ordinary answer."""
    is_harmless = True
    try:
        async with asyncio.timeout(LIMIT):
            seen = await attack.run(victim, size)
            if problem := await victim.check():
                raise Harm(f"{seen}; afterwards {problem}")
    except Harm as harm:
        seen, is_harmless = str(harm), False
    except TimeoutError:
        seen, is_harmless = f"nothing within {LIMIT:g} s", False
    except Exception as error:  # noqa: BLE001  the table shows it, and the exit status
        seen, is_harmless = f"{type(error).__name__}: {error}"[:200], False
    return Outcome(listener, attack.name, attack.expected, seen, is_harmless)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as lines of text."""
    rows = [("", "listener", "attack", "expected", "seen")]
    rows += [("ok" if each.is_harmless else "HARM", each.listener, each.attack, each.expected, each.seen) for each in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows)
