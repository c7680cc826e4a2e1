"""A browser for the tests of a module, and a tab for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest_asyncio

from tests.client.helpers import server
from tests.proxy.support import proxying

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.proxy.page.browser import Visit


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    from tests.proxy.page.browser import browsing

    async with browsing() as launched:
        yield launched


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    from tests.proxy.page.browser import visiting

    async with visiting(browser) as opened:
        yield opened
        assert not opened.complaints
        assert {urlsplit(url).hostname for url in opened.requests} <= {"127.0.0.1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(browser: Browser) -> AsyncIterator[Visit]:
    """One tab for all tests of a module that call the page's scripts."""
    from tests.proxy.page.browser import address, visiting

    async with proxying(server=server(), page=True) as proxy, visiting(browser) as opened:
        await opened.open(address(proxy))
        yield opened
        assert not opened.complaints
        assert {urlsplit(url).hostname for url in opened.requests} <= {"127.0.0.1"}
