"""A bare relay for bench/timed/proxy.py: ``python -m bench.timed.relay UPSTREAM`` passes every byte of a chat request on and back."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import aiohttp
from aiohttp import web

SESSION = web.AppKey("session", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {"Content-Type": "application/json"}
    async with request.app[SESSION].post(f"{sys.argv[1]}/chat/completions", data=body, headers=headers) as answer:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        async for data in answer.content.iter_any():
            await response.write(data)
        return response


async def make_app() -> web.Application:
    app = web.Application()
    app[SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    app.router.add_post("/v1/chat/completions", relay)
    return app


async def main() -> None:
    """Print the port, then serve until standard input closes."""
    runner = web.AppRunner(await make_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    if importlib.util.find_spec("uvloop") is None:
        asyncio.run(main())
    else:
        import uvloop

        uvloop.run(main())
