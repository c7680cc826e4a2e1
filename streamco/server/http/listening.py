"""Runs an aiohttp application on a port of this process, with settings that suit streams."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from streamco.server.http.connection import Runner
from streamco.server.http.options import ListenOptions

__all__ = ["listening", "make_runner"]


_LINGER = 2.0  # seconds for which the rest of a refused body is read and dropped; a client still sending would otherwise miss the answer


def _quotes_no_client(record: logging.LogRecord) -> bool:
    """Return False for errors about malformed HTTP. The client gets them anyway, and aiohttp quotes header lines in them, including keys.

    The same goes for bodies that can't be unpacked, because aiohttp reads the rest of them after the answer.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))


_logger = logging.getLogger("streamco.server.http")
_logger.addFilter(_quotes_no_client)


def make_runner(app: web.Application, options: ListenOptions) -> web.AppRunner:
    """Return a runner that notices at once when a client disconnects, closes idle connections, and quotes no requests in logs."""
    return Runner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_logger,
        keepalive_timeout=options.idle_timeout,
        shutdown_timeout=options.shutdown,
        auto_decompress=False,  # ``read_body`` unpacks bodies when they are needed
        lingering_time=_LINGER,
    )


@asynccontextmanager
async def listening(app: web.Application, options: ListenOptions) -> AsyncIterator[str]:
    """Run the application until the block is left, and yield its address, ``http://HOST:PORT`` (``https:`` with a certificate).

    Raises:
        ConfigError: other machines can reach the host and there is no key, or the certificate can't be used.
        OSError: the port is taken.
    """
    options.check_exposure()
    tls = options.tls_context()
    runner = make_runner(app, options)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, ssl_context=tls).start()
        host, port = runner.addresses[0][:2]
        yield f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()
