from __future__ import annotations

import asyncio
import io
import logging

import pytest
import uvloop

from streamco.cli.runtime import run_async, set_up_log, waiting


def test_a_command_runs_on_uvloop_where_it_is_installed() -> None:
    async def command() -> int:
        return 7 if isinstance(asyncio.get_running_loop(), uvloop.Loop) else 0

    assert run_async(command) == 7


def test_without_uvloop_it_runs_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)

    async def command() -> int:
        return 0 if isinstance(asyncio.get_running_loop(), uvloop.Loop) else 7

    assert run_async(command) == 7


async def test_elsewhere_than_on_a_terminal_waiting_is_one_line() -> None:
    err = io.StringIO()
    async with waiting("loading", err):
        pass
    assert err.getvalue() == "loading ...\n"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_on_a_terminal_a_spinner_turns_and_leaves_nothing_behind() -> None:
    err = Tty()
    async with waiting("loading", err):
        await asyncio.sleep(0.25)
    text = err.getvalue()
    assert "\r⠋ loading · 0.0 s\x1b[K" in text
    assert text.count("loading") >= 2
    assert text.endswith("\r\x1b[K")


async def test_a_text_may_change_while_the_spinner_turns() -> None:
    class Count:
        drawn = 0

        def __str__(self) -> str:
            self.drawn += 1
            return f"step {self.drawn}"

    err = Tty()
    async with waiting(Count(), err):
        await asyncio.sleep(0.25)
    assert "step 1 " in err.getvalue()
    assert "step 2 " in err.getvalue()


async def test_the_spinner_goes_away_after_an_error_too() -> None:
    err = Tty()

    async def fail() -> None:
        async with waiting("loading", err):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await fail()
    assert err.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("verbosity", "level"), [(0, logging.WARNING), (1, logging.INFO), (2, logging.DEBUG), (5, logging.DEBUG)])
def test_v_says_more(verbosity: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: dict[str, object] = {}
    monkeypatch.setattr(logging, "basicConfig", chosen.update)
    set_up_log(verbosity)
    assert chosen["level"] == level
