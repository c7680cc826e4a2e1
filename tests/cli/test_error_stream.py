"""A command whose stderr can't be written: it does what it was asked to do."""

from __future__ import annotations

import errno
import io
import logging
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from streamco.cli import main as command
from streamco.cli.main import _optional_stderr
from streamco.cli.runtime import set_up_log, waiting
from streamco.cli.simulate import showing_progress
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError, EngineError


class Full(io.StringIO):
    """A file on a disk that is full, or a pipe that nothing reads."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, _text: str) -> NoReturn:
        raise OSError(self.number, "no")

    def flush(self) -> NoReturn:
        raise OSError(self.number, "no")


STREAMS: dict[str, Callable[[], io.StringIO | None]] = {
    "a full disk": lambda: Full(errno.ENOSPC),
    "a pipe that nothing reads": lambda: Full(errno.EPIPE),
    "a terminal that is gone": lambda: Full(errno.EIO),
    "closed": lambda: None,
}


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> io.StringIO | None:
    return STREAMS[request.param]()


async def test_advice_progress_and_logs_are_lost_and_nothing_else_is(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    handlers, root.handlers, level = root.handlers, [], root.level
    try:
        with _optional_stderr():
            set_up_log(2)
            logging.getLogger("streamco.test").warning("something")
            print_plain("advice", sys.stderr)
            async with waiting("loading"):
                print_plain("result")
            with showing_progress(sys.stderr) as progress:
                progress(1, 1)
    finally:
        root.handlers = handlers
        root.setLevel(level)
    assert capsys.readouterr().out == "result\n"


@pytest.mark.parametrize(
    ("outcome", "status"), [(0, 0), (1, 1), (ConfigError("wrong"), 2), (EngineError("broken"), 1), (KeyboardInterrupt(), 130)]
)
def test_the_exit_status_is_that_of_the_command(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException, status: int
) -> None:
    def run(_args: object) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        print_plain("advice", sys.stderr)
        return outcome

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(sys, "stderr", stream)
    assert command.main(["models", "list"]) == status
    assert sys.stderr is stream, "it is given back"


def test_wrong_usage_is_exit_status_2(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit) as caught:
        command.main(["models", "--nonsense"])
    assert caught.value.code == 2


def test_what_can_be_written_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with _optional_stderr():
        print_plain("advice", sys.stderr)
        assert not sys.stderr.isatty()
    assert capsys.readouterr().err == "advice\n"


def test_a_result_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full(errno.ENOSPC))
    monkeypatch.setattr(command, "_run", lambda _args: print_plain("result"))
    with pytest.raises(OSError, match="no"):
        command.main(["models", "list"])
