"""Log records go to the view instead of the terminal that it draws on."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamco.cli.ui.log_handler import ViewLogHandler, log_to_view


class Stderr(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before = logger.handlers[:]
    yield logger
    logger.handlers[:] = before


@pytest.mark.parametrize(("is_terminal", "is_live"), [(True, True), (False, True), (True, False)])
def test_records_for_a_terminal_go_to_a_live_view_and_others_stay(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, is_live: bool
) -> None:
    stderr = Stderr(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root.addHandler(handler)
    shown: list[str] = []
    log_to_view(shown.append, is_live=is_live)
    logging.getLogger("streamco").warning("%s is gone", "verifier")
    line = "streamco: verifier is gone"
    assert (shown, stderr.getvalue()) == (([line], "") if is_terminal and is_live else ([], f"{line}\n"))


@pytest.mark.parametrize("is_shared", [True, False])
def test_records_for_the_place_of_the_answers_go_to_the_view(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_shared: bool
) -> None:
    with (tmp_path / "out").open("a") as out, (tmp_path / ("out" if is_shared else "err")).open("a") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        root.addHandler(logging.StreamHandler(err))
        shown: list[str] = []
        log_to_view(shown.append, is_live=False)
        logging.getLogger("streamco").warning("gone")
    assert shown == (["gone"] if is_shared else [])


def test_a_record_that_can_not_be_shown_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[logging.LogRecord] = []

    def refuse(text: str) -> None:
        raise ValueError(text)

    handler = ViewLogHandler(refuse)
    monkeypatch.setattr(handler, "handleError", failed.append)
    record = logging.LogRecord("streamco", logging.WARNING, "", 0, "text", (), None)
    handler.handle(record)
    assert failed == [record]
