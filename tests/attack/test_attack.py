"""The runner itself: what counts as harm, and what the table shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attack.attack import Harm, Register, carry_out, table

register = Register("door")


class House:
    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    async def check(self) -> str:
        return self.problem


@register("knock", "no answer")
async def knock(victim: Any, size: int) -> str:
    return f"{size} times"


@register("break in", "nothing")
async def break_in(victim: Any, size: int) -> str:
    raise Harm("the window is open")


@register("trip", "nothing")
async def trip(victim: Any, size: int) -> str:
    raise ZeroDivisionError("a step")


@pytest.mark.parametrize(
    ("number", "problem", "seen", "is_harmless"),
    [
        (0, "", "3 times", True),
        (0, "the house is gone", "3 times; afterwards the house is gone", False),
        (1, "", "the window is open", False),
        (2, "", "ZeroDivisionError: a step", False),
    ],
)
async def test_harm_is_what_an_attack_says_what_it_raises_and_what_comes_afterwards(
    number: int, problem: str, seen: str, is_harmless: bool
) -> None:
    outcome = await carry_out("door", register.attacks[number], House(problem), 3)
    assert (outcome.seen, outcome.is_harmless) == (seen, is_harmless)


async def test_the_table_has_a_row_for_each_attack() -> None:
    lines = table([await carry_out("door", attack, House(), 1) for attack in register.attacks]).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ok", "HARM", "HARM"]
    assert lines[1].endswith("1 times")
