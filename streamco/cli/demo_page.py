"""``streamco demo --page``: both sides with the proxy's page, which has prompts to click and a button that kills the server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import webbrowser
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from msgspec.structs import replace

from streamco.cli.demo_story import BUDGETED, PROMPT
from streamco.cli.serving import serve_until_stopped
from streamco.cli.ui.control_characters import print_plain
from streamco.cli.ui.slash_commands import USUAL_PACE
from streamco.client.client import Client
from streamco.errors import ConfigError, StreamcoError
from streamco.testing.server_process import ServerProcess

__all__ = ["LATENCY", "PROMPTS", "KillableServer", "add_page_arguments", "can_open_browser", "check_page_arguments", "serve_page"]

LATENCY = "bedrock-llama-2-70b-chat"  # 22 tokens/s, so that there is time to kill the server before it has sent everything
PACE = 20.0  # tokens/s, slightly less than the server's speed, so that the reader soon sees that the server is gone
PROMPTS = (PROMPT, BUDGETED[0], BUDGETED[-1])


class KillableServer:
    """A server process that can be killed, and is then started again at the same address. Use it with ``async with``.

    Args:
        start: starts the process on the port that it is given, where 0 means any free one.

    Attributes:
        url: the server's base URL.
    """

    def __init__(self, start: Callable[[int], AbstractAsyncContextManager[ServerProcess]]) -> None:
        self._start = start
        self._life = AsyncExitStack()
        self._starting: asyncio.Task[ServerProcess] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await self._life.enter_async_context(self._start(0))
        self.url = self._server.url
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(asyncio.CancelledError, StreamcoError):
                await self._starting
        await self._life.aclose()

    async def kill(self) -> None:
        """Kill the process at once, and return when another one is listening. If another one is being started already, only wait for it.

        Raises:
            EndpointConnectError: none could be started; the next call tries again.
        """
        if self._starting is None or self._starting.done():
            self._server.kill()
            self._starting = asyncio.create_task(self._start_again())
        self._server = await asyncio.shield(self._starting)

    async def _start_again(self) -> ServerProcess:
        await self._life.aclose()
        return await self._life.enter_async_context(self._start(urlsplit(self.url).port or 0))


def add_page_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the page."""
    parser.add_argument("--page", action="store_true", help="a chat for browsers on a port of this machine, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="N", help="with --page: port of the chat (any free one)")
    parser.add_argument("--no-open", action="store_true", help="with --page: open no browser")


def check_page_arguments(args: argparse.Namespace) -> None:
    """Refuse the page's options without ``--page``. With it, refuse options that have no effect on prompts typed into a browser.

    Raises:
        ConfigError: such an option is given.
    """
    if args.page:
        for name in ("split", "prompt", "json", "system", "max_tokens", "temperature"):
            value = getattr(args, name)
            if value is not None and value is not False:
                raise ConfigError(f"--{name.replace('_', '-')}: can't be combined with --page, got {value}")
    elif args.port is not None or args.no_open:
        raise ConfigError(f"{'--no-open' if args.port is None else '--port'}: only valid with --page")


async def serve_page(args: argparse.Namespace, client: Client, server: KillableServer) -> int:
    """Serve the page until SIGINT or SIGTERM, and return the exit code: 1 if the port is taken."""
    from streamco.proxy.app import serving
    from streamco.proxy.config import ProxyOptions
    from streamco.proxy.page.routes import PageExtras

    usual = PACE if args.mode == "race" else None
    paced = client.with_options(pace=usual if args.pace is USUAL_PACE else args.pace)
    prompts: dict[str, Client | None] = dict.fromkeys(PROMPTS)
    if args.mode == "race" and args.policy == "auto":  # the server begins the first prompt's answer, so that there is a sentence to break
        prompts[PROMPT] = paced.with_options(mode=replace(client.race, policy="server-first"))
    options = ProxyOptions(page=True, port=args.port or 0)
    opens = not args.no_open and can_open_browser()
    hint = "this address opens in your browser" if opens else "open this address in a browser"
    app = serving(paced, options, PageExtras(prompts=prompts, kill_server=server.kill))
    try:
        await serve_until_stopped(app, None, hints=lambda _: [hint], on_ready=_open_browser if opens else None)
    except OSError as error:
        print_plain(f"streamco demo: {options.host}:{options.port}: {error.strerror or error}", sys.stderr)
        return 1
    return 0


def can_open_browser() -> bool:
    """Return True if somebody can see a browser window, because this machine has a terminal and a display."""
    if os.environ.get("CI") or not sys.stdout.isatty():
        return False
    if sys.platform in {"darwin", "win32"}:
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


async def _open_browser(address: str) -> None:
    """Open the page in the user's browser, unless that is a program that would take over this terminal."""
    await asyncio.to_thread(_open_window, address)


def _open_window(address: str) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:  # there is no browser
        return
    if type(browser) is not webbrowser.GenericBrowser:  # like w3m and lynx; browsers that open a window are subclasses
        browser.open(address)
