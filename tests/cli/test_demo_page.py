"""When ``streamco demo --page`` opens a browser, who answers its prompts, and how its server is killed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aiohttp
import pytest

from streamco.cli import demo_page
from streamco.cli.demo_page import PROMPTS, KillableServer, can_open_browser, serve_page
from streamco.cli.ui.slash_commands import USUAL_PACE
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.errors import EndpointConnectError
from tests.client.helpers import device, server

VARIABLES = ("CI", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION")


class Window(webbrowser.BaseBrowser):
    """A browser that keeps what it was asked to open."""

    def __init__(self) -> None:
        super().__init__("window")
        self.opened: list[str] = []

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        self.opened.append(url)
        return True


@pytest.mark.parametrize(
    ("platform", "is_terminal", "environment", "expected"),
    [
        ("linux", True, {"DISPLAY": ":0"}, True),
        ("linux", True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", True, {}, False),
        ("linux", False, {"DISPLAY": ":0"}, False),
        ("linux", True, {"DISPLAY": ":0", "CI": "true"}, False),
        ("darwin", True, {}, True),
        ("darwin", True, {"SSH_CONNECTION": "a"}, False),
        ("win32", True, {}, True),
        ("win32", True, {"CI": "1"}, False),
    ],
)
def test_a_browser_is_opened_where_somebody_can_see_it(
    platform: str, is_terminal: bool, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert can_open_browser() is expected


@asynccontextmanager
async def serving_page(client: Client, capsys: pytest.CaptureFixture[str], **options: object) -> AsyncIterator[str]:
    """The demo's page over this client, as its address."""
    args = argparse.Namespace(**{"port": None, "no_open": True, "pace": USUAL_PACE, "mode": "race", "policy": "auto", **options})
    running = asyncio.create_task(serve_page(args, client, KillableServer(FakeProcess)))
    words = ""
    while not words.startswith("listening on"):
        await asyncio.sleep(0.01)
        words = capsys.readouterr().out
    try:
        yield words.removeprefix("listening on ").strip()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("can_open", "no_open", "is_opened"), [(True, False, True), (True, True, False), (False, False, False)])
async def test_the_browser_gets_the_address_unless_it_is_not_wanted(
    can_open: bool, no_open: bool, is_opened: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window = Window()
    monkeypatch.setattr(webbrowser, "get", lambda: window)
    monkeypatch.setattr(demo_page, "can_open_browser", lambda: can_open)
    async with Client(device(), server(), mode=Race()) as client, serving_page(client, capsys, no_open=no_open) as address:
        await asyncio.sleep(0.1)
        assert window.opened == ([address] if is_opened else [])


async def test_the_server_begins_the_first_prompt_unless_a_policy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    near, far = device([(0.0, "near")]), server([(0.0, "far")])
    headers = {"x-streamco-reader": "person"}
    async with Client(near, far, mode=Race(policy="device-first")) as client, aiohttp.ClientSession() as http:
        for policy, answers in (("auto", ("far", "near", "near")), ("device-first", ("near", "near", "near"))):
            async with serving_page(client, capsys, policy=policy) as address:
                for prompt, answer in zip(PROMPTS, answers, strict=True):
                    body = {"messages": [{"role": "user", "content": prompt}], "stream": True}
                    async with http.post(f"{address}/v1/chat/completions", json=body, headers=headers) as response:
                        assert f'"content":"{answer}"' in await response.text()


class FakeProcess:
    """A server's process that notes what becomes of it."""

    log: ClassVar[list[str]] = []
    failures: ClassVar[list[Exception]] = []

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port or 1234}/v1"

    async def __aenter__(self) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        self.log.append(f"start at {self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("end")

    def kill(self) -> None:
        self.log.append("kill")


@pytest.fixture
def log() -> list[str]:
    FakeProcess.log.clear()
    return FakeProcess.log


async def test_a_killed_server_is_started_again_at_its_address_once(log: list[str]) -> None:
    async with KillableServer(FakeProcess) as running:
        assert running.url == "http://127.0.0.1:1234/v1"
        await asyncio.gather(running.kill(), running.kill())
        assert log == ["start at 0", "kill", "end", "start at 1234"]
        await running.kill()
    assert log[4:] == ["kill", "end", "start at 1234", "end"]


async def test_a_server_that_does_not_start_again_can_be_tried_once_more(log: list[str]) -> None:
    async with KillableServer(FakeProcess) as running:
        FakeProcess.failures.append(EndpointConnectError("no", endpoint="server"))
        with pytest.raises(EndpointConnectError):
            await running.kill()
        await running.kill()
    assert log == ["start at 0", "kill", "end", "kill", "start at 1234", "end"]


async def test_leaving_while_it_starts_again_leaves_none_behind(log: list[str]) -> None:
    async with KillableServer(FakeProcess) as running:
        killing = asyncio.create_task(running.kill())
        await asyncio.sleep(0)
    assert log.count("end") == sum(line.startswith("start") for line in log)
    await asyncio.gather(killing, return_exceptions=True)


async def test_a_browser_that_would_take_the_terminal_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("w3m"))
    started: list[str] = []
    monkeypatch.setattr(webbrowser.GenericBrowser, "open", lambda _self, url: started.append(url))
    await demo_page._open_browser("http://127.0.0.1:1")
    assert not started

    def none() -> webbrowser.BaseBrowser:
        raise webbrowser.Error("none")

    monkeypatch.setattr(webbrowser, "get", none)
    await demo_page._open_browser("http://127.0.0.1:1")
