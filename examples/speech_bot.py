"""A bot that speaks: tokens come at the pace of speech and are handed to a text-to-speech engine clause by clause, none too early."""

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


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model(), pace="listening") as client:
        async with client.stream("Greet a guest at the door.", max_tokens=24, temperature=0) as stream:
            began = time.monotonic()
            async for clause in clauses(stream):
                print(f"{time.monotonic() - began:5.2f} s: {clause}")  # here the clause goes to the engine, tts.say(clause)
        print(f"smooth to {stream.report.quality.score:.0%} at {client.totals.tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
