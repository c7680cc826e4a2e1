"""DeepSeek's thinking shown apart from its answer; without a key, a server on this machine plays a stream in DeepSeek's form."""

import asyncio
import os
from contextlib import AsyncExitStack

import streamco
from streamco.testing import DONE, ScriptedResponse, ScriptedServer, chunk_event

THINKING, ANSWER = ["9.11 has 11", " hundredths, 9.8", " has 80."], ["9.8", " is larger", "."]
PLAYED = ScriptedResponse(
    headers={"Content-Type": "text/event-stream"},
    steps=[
        chunk_event(None, role="assistant", reasoning_content=""),
        *[chunk_event(None, reasoning_content=text) for text in THINKING],
        *[chunk_event(text, reasoning_content=None) for text in ANSWER],
        chunk_event("", finish_reason="stop", usage={"prompt_tokens": 14, "completion_tokens": 21, "total_tokens": 35}),
        DONE,
    ],
)


async def main() -> None:
    async with AsyncExitStack() as stack:
        url = None if os.environ.get("DEEPSEEK_API_KEY") else (await stack.enter_async_context(ScriptedServer(PLAYED))).url
        server = streamco.OpenAIEndpoint("deepseek-reasoner", base_url=url, provider="deepseek")
        client = await stack.enter_async_context(streamco.Client(server=server))
        stream = client.stream("Which is larger, 9.11 or 9.8?")
        kind = None
        async for token in stream:
            if token.kind != kind:
                print(f"\n[{token.kind}] ", end="", flush=True)
                kind = token.kind
            print(token.text, end="", flush=True)
        print(f"\n{stream.usage.completion_tokens} tokens, ${stream.report.cost_usd:.6f}")


if __name__ == "__main__":
    asyncio.run(main())
