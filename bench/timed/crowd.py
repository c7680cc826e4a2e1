"""How long do several people at one client wait for their first words?

All ask at once, with prompts of some 270 tokens and answers of up to 150: the packaged model on this machine, beside a scripted
server that gives its first token after 0.3 s and 50 tokens a second. The default client may borrow from its budget of 0.3 for answers that
would wait for others at the device (``Race(burst=...)``); ``burst=0`` may not, and is left out of the largest crowd: that takes minutes.
Then the default client gives answers one after another, 200 in all, and the share of the server is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import streamco
from bench.report import Row, add_arguments, emit, rows_from
from streamco.testing import ScriptedServer, stream_answer

BENCH = "crowd"
CROWDS = (1, 3, 12, 30)
ANSWERS = 200
CLIENTS = {"streamco": streamco.Race(), "streamco, burst=0": streamco.Race(burst=0)}
PROMPT = "The quick brown fox jumps over the lazy dog near the river bank. " * 17


async def _first_word(client: streamco.Client, number: int, max_tokens: int) -> float:
    start, first = time.perf_counter(), 0.0
    async for _ in client.stream(f"{number} {PROMPT}", max_tokens=max_tokens):
        first = first or time.perf_counter() - start
    return first


async def _crowd(url: str, race: streamco.Race, size: int, *, further: int = 0) -> tuple[list[float], float]:
    """Return the first words of a crowd in seconds, and the server's share after some further answers."""
    server = streamco.OpenAIEndpoint("m", base_url=url, name="server")
    async with streamco.Client(streamco.packaged_model(), server, mode=race) as client:
        seconds = await asyncio.gather(*(_first_word(client, number, 150) for number in range(size)))
        for number in range(further):
            await _first_word(client, size + number, 4)
        return list(seconds), client.totals.budget_share or 0.0


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    async with ScriptedServer(stream_answer([f"w{number} " for number in range(60)], first=0.3, gap=0.02)) as scripted:
        for size in CROWDS[:2] if quick else CROWDS:
            samples = {
                name: (await _crowd(scripted.url, race, size))[0] for name, race in CLIENTS.items() if race.burst or size < CROWDS[-1]
            }
            rows += rows_from(BENCH, f"{size} at once", "first word", "s", samples)
        if not quick:
            _, share = await _crowd(scripted.url, CLIENTS["streamco"], 12, further=ANSWERS - 12)
            rows += rows_from(BENCH, f"12 at once, then up to {ANSWERS} answers", "share", "", {"streamco": [share]})
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    emit(asyncio.run(_measure(quick=options.quick)), options.json, against="streamco")


if __name__ == "__main__":
    main()
