"""``streamco serve`` on a scripted engine, in a process of its own that a test may kill: ``python -m tests.endpoints.serve_fake PORT``."""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web

from streamco.server.app import ServeOptions, make_app, make_runner
from streamco.server.verify.options import VerifyOptions
from tests.server.verifying import target


async def serve(port: int) -> None:
    options = ServeOptions(port=port, verify=VerifyOptions())
    runner = make_runner(make_app(target(), options), options)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
