"""Rounds without a verdict, and how long a session waits for one; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from streamco.config import Timeouts
from streamco.endpoints.verifiers.rounds import OpenRounds
from streamco.testing import run_in_virtual_time
from streamco.testing.virtual_clock import VirtualTimeLoop

TIMEOUTS = Timeouts(first_token=10.0, next_token=2.0)


def run_rounds(main: Callable[[OpenRounds], Awaitable[None]], timeouts: Timeouts = TIMEOUTS) -> list[float]:
    """Return the times, in seconds, at which waiting for a verdict was given up."""
    expired: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        await main(OpenRounds(loop, timeouts, lambda: expired.append(loop.time())))

    run_in_virtual_time(run())
    return expired


def test_the_first_verdict_on_a_context_has_more_time_than_the_others() -> None:
    async def main(rounds: OpenRounds) -> None:
        rounds.begin(1)
        await asyncio.sleep(20)
        assert rounds.number is None
        rounds.has_verdict = True
        rounds.begin(2)
        await asyncio.sleep(20)

    assert run_rounds(main) == [10.0, 22.0]


def test_a_verdict_ends_the_wait() -> None:
    async def main(rounds: OpenRounds) -> None:
        rounds.begin(7)
        await asyncio.sleep(9)
        assert rounds.end() == 7
        assert rounds.end() is None
        await asyncio.sleep(20)

    assert run_rounds(main) == []


def test_a_second_verdict_leaves_the_next_round_alone() -> None:
    async def main(rounds: OpenRounds) -> None:
        rounds.ahead[3] = 8
        rounds.begin(7)
        assert rounds.end() == 7
        rounds.begin(rounds.ahead.pop(3))
        await asyncio.sleep(20)

    assert run_rounds(main) == [10.0]


def test_a_lost_connection_takes_every_round_with_it() -> None:
    async def main(rounds: OpenRounds) -> None:
        rounds.begin(7)
        rounds.ahead[3] = 8
        rounds.clear()
        assert rounds.number is None
        assert not rounds.ahead
        await asyncio.sleep(20)

    assert run_rounds(main) == []


@pytest.mark.parametrize("has_verdict", [False, True])
def test_without_a_limit_nothing_is_given_up(has_verdict: bool) -> None:
    async def main(rounds: OpenRounds) -> None:
        rounds.has_verdict = has_verdict
        rounds.begin(1)
        await asyncio.sleep(1e6)
        assert rounds.number == 1

    assert run_rounds(main, Timeouts(first_token=None, next_token=None)) == []


def test_a_verdict_that_came_while_the_loop_stood_still_is_in_time() -> None:
    async def main(rounds: OpenRounds) -> None:
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        rounds.begin(1)
        loop.now += 50
        for _ in range(5):
            await asyncio.sleep(0)
        assert rounds.end() == 1
        rounds.begin(2)
        loop.now += 50
        await asyncio.sleep(20)
        assert rounds.number is None

    assert run_rounds(main) == [101.0]
