from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import termios
from collections.abc import Callable

import pytest
import uvloop

from streamco.cli.ui.interrupt import on_interrupt, quiet_keyboard


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return asyncio.Runner(loop_factory=factory)


def test_ctrl_c_calls_back_and_afterwards_does_what_it_did_before(runner: asyncio.Runner) -> None:
    calls: list[str] = []

    async def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with on_interrupt(lambda: calls.append("stopped")):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
        assert signal.getsignal(signal.SIGINT) is before

    with runner:
        runner.run(work())
    assert calls == ["stopped", "stopped"]


def test_after_an_answer_ctrl_c_ends_the_program_again(runner: asyncio.Runner) -> None:
    async def work() -> None:
        with on_interrupt(lambda: None):
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(5)

    with runner, pytest.raises(KeyboardInterrupt):
        runner.run(work())


async def test_where_signals_cannot_be_watched_the_work_goes_on_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)
    before = signal.getsignal(signal.SIGINT)
    with on_interrupt(lambda: None):
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_the_keyboard_is_quiet_meanwhile_and_as_before_afterwards() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as file:
        before = termios.tcgetattr(file)
        text = open(file.fileno(), closefd=False)  # noqa: SIM115
        with quiet_keyboard(text):
            quiet = termios.tcgetattr(file)
            assert not quiet[3] & (termios.ECHO | termios.ICANON)
            assert quiet[3] & termios.ISIG
        assert termios.tcgetattr(file) == before
        text.close()
    os.close(master)


def test_without_a_terminal_nothing_is_changed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as file, quiet_keyboard(file):
        pass
    os.close(writer)
    assert not sys.stdin.isatty() or termios.tcgetattr(sys.stdin)
