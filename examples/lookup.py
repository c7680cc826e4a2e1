"""Drafts without a model: what stood in the prompt is the draft, and the server verifies it. This suits edits of code."""

import asyncio

import streamco
from streamco.testing import running_server  # `streamco serve` in a process of its own

PROMPT = """Repeat this code:

def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("expected positive sides")
    return width * height
"""


async def main() -> None:
    async with (
        running_server("--model", str(streamco.packaged_model()), "--threads", "1", "--port", "0") as base_url,
        streamco.Client(
            server=streamco.OpenAIEndpoint("large", base_url=base_url, name="server"),
            mode=streamco.Speculate(drafter="lookup", is_adaptive=False),  # draft always; by default only while it is faster
        ) as client,
    ):
        stream = client.stream(PROMPT, max_tokens=64, temperature=0)
        async for token in stream:
            print(token.text, end="", flush=True)
        done = stream.report.speculation
        if done is None:
            raise SystemExit(f"not speculated: {stream.report.dispatch.reason}")
        print(f"\n{done.accepted} tokens were looked up, {done.corrected + done.bonus} the server's in {done.rounds} rounds")


if __name__ == "__main__":
    asyncio.run(main())
