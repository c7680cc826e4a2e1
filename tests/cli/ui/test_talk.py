from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from streamco.cli import chat
from streamco.cli.ui import talk
from streamco.cli.ui.talk import is_interactive, lines_of, make_view, migration_of, settings_of
from streamco.cli.ui.terminal import TerminalView
from streamco.cli.ui.view import PlainView
from streamco.client.modes.race.migration import MigrationOptions
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.errors import ConfigError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    return parser.parse_args(words)


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a fixture: pytest puts its own stdout back between a test's setup and the test."""
    monkeypatch.setattr(sys, "stdin", Tty())
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setenv("TERM", "xterm")


async def test_a_person_at_both_ends_gets_the_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    assert is_interactive(arguments())
    assert isinstance(make_view(arguments(), {}), TerminalView)


async def test_one_prompt_is_no_conversation_and_json_no_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    assert not is_interactive(arguments("--prompt", "hi"))
    assert isinstance(make_view(arguments("--prompt", "hi"), {}), TerminalView)
    assert isinstance(make_view(arguments("--prompt", "hi", "--json"), {}), PlainView)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_can_do_nothing_gets_plain_text(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", term)
    assert not is_interactive(arguments())
    assert isinstance(make_view(arguments(), {}), PlainView)


def test_a_pipe_at_either_end_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert not is_interactive(arguments())
    monkeypatch.setattr(sys, "stdin", Tty())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not is_interactive(arguments())
    assert isinstance(make_view(arguments(), {}), PlainView)


def test_answers_move_for_a_person_at_any_pace_and_for_a_program_only_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    assert migration_of(arguments()) == MigrationOptions(unpaced=True)
    assert migration_of(arguments("--prompt", "hi")) == MigrationOptions(unpaced=True)
    assert migration_of(arguments("--prompt", "hi", "--json")) == MigrationOptions()
    assert migration_of(arguments("--no-migration")).max_migrations == 0
    assert migration_of(arguments("--min-quality", "90%")).min_quality == 0.9
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert migration_of(arguments()) == MigrationOptions()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "streamco.cli.ui.render", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamco\[cli\]'"):
        make_view(arguments(), {})


def test_options_become_settings() -> None:
    settings = settings_of(arguments("--pace", "reading", "--max-tokens", "9", "--temperature", "0.5", "--seed", "3"))
    assert (settings.pace, settings.max_tokens, settings.temperature, settings.seed) == ("reading", 9, 0.5, 3)


def test_without_a_writable_home_prompts_are_remembered_for_this_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert talk._history_path() is None


def test_prompts_are_in_no_file_if_nothing_may_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("STREAMCO_NO_SAVE", "0")
    assert talk._history_path() == tmp_path / "streamco" / "history"
    monkeypatch.setenv("STREAMCO_NO_SAVE", "1")
    assert talk._history_path() is None


def test_the_keys_fit_a_terminal_of_eighty_cells() -> None:
    assert len(talk.KEYS) < 80


# What the options of chat make of the two sides


def test_half_of_the_cores_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (3, 1), (8, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        assert chat.default_threads() == threads


def test_no_device_and_no_server_is_nobody() -> None:
    assert chat.make_device(arguments("--no-device")) is None
    with pytest.raises(ConfigError, match="--no-device: only valid with --server MODEL"):
        chat.make_server(arguments("--no-device"))


def test_a_server_is_called_by_its_model() -> None:
    server = chat.make_server(arguments("--server", "some-model", "--base-url", "http://127.0.0.1:9/v1"))
    assert server is not None
    assert (server.name, server.kind) == ("some-model", "server")


def test_a_device_is_the_file_that_was_named(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    device = chat.make_device(arguments("--device", str(model)))
    assert device is not None
    assert (device.name, device.kind) == ("device", "device")


def test_a_device_may_be_a_server_at_a_url() -> None:
    args = arguments("--device", "http://127.0.0.1:11434", "--device-model", "qwen:1.5b")
    chat.check_options(args)
    device = chat.make_device(args)
    assert isinstance(device, LocalServerEndpoint)
    assert (device.name, device.kind, device.model) == ("device", "device", "qwen:1.5b")
    assert chat._describe(args, "device", "device") == "qwen:1.5b at http://127.0.0.1:11434"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--device", "m.gguf", "--device-model", "m"), "--device-model: only valid with --device URL"),
        (("--device-model", "m"), "--device-model: only valid with --device URL"),
        (("--device", "http://127.0.0.1:1", "--threads", "2"), "--threads: can't be combined with --device URL"),
        (("--device", "http://127.0.0.1:1", "--server", "m", "--mode", "auto"), "--mode auto: expected --device PATH"),
        (("--device", "http://127.0.0.1:1", "--verifier", "ws://127.0.0.1:1", "--mode", "speculate"), "--verifier: expected --device PATH"),
    ],
)
def test_options_without_effect_on_a_device_at_a_url_are_refused(words: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        chat.check_options(arguments(*words))


# test_lines


async def test_lines_come_stripped_and_empty_ones_are_left_out() -> None:
    assert [line async for line in lines_of(io.StringIO("one\n\n  two \n\t\nthree"))] == ["one", "two", "three"]


async def test_no_lines_at_all_end_at_once() -> None:
    assert [line async for line in lines_of(io.StringIO(""))] == []


async def test_a_line_is_there_before_the_next_is_written_and_the_loop_runs_meanwhile() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as file:
        lines = lines_of(file)
        os.write(writer, b"first\n")
        assert await anext(lines) == "first"
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        os.write(writer, b"second\n")
        assert await waiting == "second"
        os.close(writer)
        assert [line async for line in lines] == []


def test_a_reader_that_waits_for_a_line_does_not_keep_the_program_from_ending() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as file:

        async def wait_a_little() -> None:
            try:
                async with asyncio.timeout(0.05):
                    await anext(lines_of(file))
            except TimeoutError:
                pass

        asyncio.run(wait_a_little())
        os.write(writer, b"too late\n")
        os.close(writer)
        for thread in threading.enumerate():
            if thread.name == "streamco-stdin":
                assert thread.daemon
                thread.join(5)
                assert not thread.is_alive()
