"""A real Chromium that visits the page: its requests and its complaints are kept, and nothing but this machine is in its reach."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.proxy.support import RunningProxy

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def address(proxy: RunningProxy) -> str:
    """Where a browser finds the page."""
    return f"http://127.0.0.1:{proxy.runner.addresses[0][1]}/"


class Visit:
    """One tab.

    Attributes:
        page: the tab.
        requests: URLs of all that it asked for.
        complaints: errors in its console and exceptions of its code.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.context.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._keep)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _keep(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    async def open(self, address: str) -> None:
        await self.page.goto(address)
        await expect(self.page.locator("#prompt")).to_be_focused()

    async def ask(self, prompt: str) -> None:
        await self.page.fill("#prompt", prompt)
        await self.page.press("#prompt", "Enter")

    async def ended(self, how: str = "done") -> None:
        """Wait until the newest answer has ended."""
        await expect(self.page.locator(".answer .live").last).to_contain_text(f"{how} ·" if how == "done" else how, timeout=30_000)
        await expect(self.page.locator("#stop")).to_be_disabled()

    async def texts(self, selector: str) -> list[str]:
        return await self.page.locator(selector).all_text_contents()

    async def runs(self) -> list[tuple[str, str]]:
        """Class and text of each piece of the newest answer; neighbours of one class are one."""
        found: list[list[str]] = await self.page.locator(".answer .text").last.evaluate(
            """element => [...element.querySelectorAll(".tint, .handover")].map((piece) => [piece.className, piece.textContent])"""
        )
        joined: list[tuple[str, str]] = []
        for name, text in found:
            if joined and joined[-1][0] == name:
                joined[-1] = (name, joined[-1][1] + text)
            else:
                joined.append((name, text))
        return joined


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser with an empty folder for its user's data. Open it before a proxy: a test of leaks must not see it come."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), chromium_sandbox=False)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visiting(
    browser: Browser, *, width: int = 1280, height: int = 900, scheme: Literal["light", "dark"] = "light"
) -> AsyncIterator[Visit]:
    """A tab that shares no storage with any other."""
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    try:
        yield Visit(await context.new_page())
    finally:
        await context.close()
