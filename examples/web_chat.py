"""A chat for browsers by server-sent events: who leaves stops the work. Serves at the port it is given; without one it visits itself."""

import asyncio
import json
import sys
from contextlib import suppress

from aiohttp import ClientSession, web

import streamco


# In the page: const es = new EventSource("/chat?q=Why"); es.onmessage = m => show(JSON.parse(m.data)); es.onerror = () => es.close()
async def main(port: int = 0) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the browser left while something was being sent
            async with client.stream(request.query["q"], max_tokens=500, temperature=0) as stream:
                async for token in stream:
                    await response.write(f"data: {json.dumps(token.text)}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_get("/chat", chat)
    runner = web.AppRunner(app, handler_cancellation=True)  # the browser left while the next token was being waited for
    async with streamco.Client(device=streamco.packaged_model()) as client:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        if port:
            await asyncio.Event().wait()
        async with ClientSession() as browser, browser.get(f"http://127.0.0.1:{runner.addresses[0][1]}/chat?q=Why+is+it+so") as events:
            print((await events.content.readline()).decode())
        await runner.cleanup()
        print(f"{client.totals.left} left: {client.totals.endpoints['device'].completion_tokens} of 500 tokens were made")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
