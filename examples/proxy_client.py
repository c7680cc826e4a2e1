"""OpenAI's own package against a proxy on this machine: only the base URL is changed."""

import asyncio
import os

import openai

import streamco
from streamco.proxy import serving


async def main() -> None:
    server = None
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        server = streamco.OpenAIEndpoint(os.environ.get("MODEL", "gpt-4o-mini"))
    async with (
        streamco.Client(device=streamco.packaged_model(), server=server) as client,
        serving(client) as base_url,  # what `streamco proxy` does in a process of its own
        openai.AsyncOpenAI(base_url=base_url, api_key="unused") as caller,
    ):
        stream = await caller.chat.completions.create(
            model="streamco",
            messages=[{"role": "user", "content": "Name three uses of a paper clip."}],
            max_tokens=60,
            stream=True,
        )
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print(f"\n{stream.response.headers['x-streamco-winner']} won")


if __name__ == "__main__":
    asyncio.run(main())
