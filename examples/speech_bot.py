"""A bot that speaks: each clause goes to a text-to-speech engine as soon as it is complete, and the voice sets the pace of the rest."""

import asyncio
import re
import time
from collections.abc import AsyncIterator

import streamco

CLAUSE_END = re.compile(r"(?<=[.!?;:,])\s+")


async def clauses(stream: streamco.TokenStream) -> AsyncIterator[str]:
    """Yield what can be spoken in one breath, as soon as it is complete."""
    text = ""
    async for token in stream:
        text += token.text
        *whole, text = CLAUSE_END.split(text)
        for clause in whole:
            yield clause
    if text.strip():
        yield text.strip()


async def say(clause: str) -> None:
    await asyncio.sleep(len(clause.split()) / 3)  # three words a second: here your engine speaks, await tts.say(clause)


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model()) as client:  # no pace: the first clause must not wait for one
        async with client.stream("Greet a guest at the door.", max_tokens=24, temperature=0) as stream:
            began = time.monotonic()
            async for clause in clauses(stream):
                print(f"{time.monotonic() - began:5.2f} s: {clause}")
                await say(clause)  # what is generated meanwhile waits in the client's buffer
        print(f"{client.totals.tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
