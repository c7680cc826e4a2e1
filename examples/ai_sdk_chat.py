"""A chat endpoint for Vercel's AI SDK. Serves at the port it is given; without one it visits itself, as a page would."""

import asyncio
import sys
from contextlib import aclosing

from aiohttp import ClientSession, web

import streamco
from streamco.integrations.ai_sdk import UI_STREAM_HEADERS, encode_ui_stream, read_ui_messages


# In the page: const { messages, sendMessage } = useChat({ transport: new DefaultChatTransport({ api: "/api/chat" }) })
async def main(port: int = 0) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        messages = read_ui_messages((await request.json())["messages"])
        stream = await client.chat.completions.create(messages=messages, stream=True, max_tokens=100)
        response = web.StreamResponse(headers=UI_STREAM_HEADERS)
        await response.prepare(request)
        async with aclosing(encode_ui_stream(stream)) as events:
            async for data in events:
                await response.write(data)  # raises if the browser has left
        return response

    app = web.Application()
    app.router.add_post("/api/chat", chat)
    runner = web.AppRunner(app, handler_cancellation=True)  # the browser left while the next token was being waited for
    async with streamco.Client(device=streamco.packaged_model()) as client:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        if port:
            await asyncio.Event().wait()
        asked = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Why is it so?"}]}]}
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as page, page.post("/api/chat", json=asked) as answer:
            print((await answer.text())[:200])
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
