"""One answer from two places: the packaged small model on this machine, and any OpenAI-compatible endpoint."""

import asyncio
import os

import streamco


async def main() -> None:
    server = None
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        server = streamco.OpenAIEndpoint(os.environ.get("MODEL", "gpt-4o-mini"))
    async with streamco.Client(device=streamco.packaged_model(), server=server, budget=0.3) as client:
        stream = await client.chat.completions.create(
            messages=[{"role": "user", "content": "Name three uses of a paper clip."}],
            max_tokens=60,
            stream=True,
        )
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        report = stream.report
        print(f"\n{report.winner} won, first token after {report.ttft or 0:.2f} s, {report.tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
