"""Paced answers on real loops: no token early, whatever the loop, its clock or a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from streamco.client.modes.race.driver import RaceDriver
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Request
from streamco.testing.endpoint import ScriptedEndpoint

ROOT = Path(__file__).resolve().parents[2]


def run_on(loop_name: str, main: Coroutine[Any, Any, None]) -> None:
    if loop_name == "uvloop":
        uvloop.run(main)
    else:
        asyncio.run(main)


def paced(count: int, pace: float | None, name: str = "server") -> RaceDriver:
    endpoint = ScriptedEndpoint(name, [(0.0, f"w{index} ") for index in range(count)])
    machine = RaceMachine(RacePlan(attempts=(AttemptPlan(name, 0.0),), pace=pace))
    return RaceDriver(machine, {name: endpoint}, Request(prompt="p"))


async def read_times(driver: RaceDriver) -> list[float]:
    driver.start()
    times: list[float] = []
    while (batch := await driver.next_batch()) is not None:
        times += [batch[2]] * sum(bool(chunk.choices[0].delta.content) for chunk in batch[1])
    await driver.aclose()
    return times


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_many_answers_of_a_loop_have_no_token_early(loop_name: str) -> None:
    async def main() -> None:
        paces = [50.0 + 7 * number for number in range(40)]
        reads = [asyncio.create_task(read_times(paced(20, pace))) for pace in paces]
        for pace, times in zip(paces, await asyncio.gather(*reads), strict=True):
            assert len(times) == 20
            assert all(moment >= times[0] + index / pace - 1e-9 for index, moment in enumerate(times))

    run_on(loop_name, main())


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock in the place of ``time.monotonic`` that goes on, as a test of the caller's may put it there."""
    real = time.monotonic

    def clock() -> float:
        return real() + 1e9

    for module in [time, *(module for name, module in sys.modules.items() if name.startswith("streamco."))]:
        for name in [name for name, value in vars(module).items() if value is real]:
            monkeypatch.setattr(module, name, clock)
    return clock


async def test_a_paced_answer_is_read_while_another_clock_is_in_the_systems_place(shifted: Callable[[], float]) -> None:
    async with asyncio.timeout(20):
        assert len(await read_times(paced(5, 50.0))) == 5


FORK = """
import asyncio, os
from streamco.client.client import Client
from streamco.testing.endpoint import ScriptedEndpoint

script = [(0.0, f"w{number} ") for number in range(30)]

async def read(forks):
    words, child = [], 0
    async with Client(server=ScriptedEndpoint("server", script), pace=300.0) as client:
        async for token in client.stream("hello"):
            words.append(token.text)
            if forks and len(words) == 3 and (child := os.fork()) == 0:
                asyncio._set_running_loop(None)
                os._exit(asyncio.new_event_loop().run_until_complete(read(False)))
    code = 0 if words == [text for _, text in script] else 1
    return code or (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)

raise SystemExit(asyncio.run(read(True)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_parent_and_child_of_a_fork_release_their_own_tokens() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")
