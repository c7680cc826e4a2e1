"""A chat endpoint in FastAPI: one client for the app, and a browser that leaves stops the work (needs fastapi)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from httpx import ASGITransport, AsyncClient

import streamco


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with streamco.Client(device=streamco.packaged_model()) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/chat")
async def chat(q: str, request: Request) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        async with request.app.state.client.stream(q, max_tokens=200) as stream:
            async for token in stream:
                yield f"data: {json.dumps(token.text)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def visit() -> None:  # as a browser would; `uvicorn fastapi_chat:app` serves it for real
    async with lifespan(app), AsyncClient(transport=ASGITransport(app), base_url="http://app") as browser:
        print((await browser.get("/chat?q=Why")).text.splitlines()[0])


if __name__ == "__main__":
    asyncio.run(visit())
