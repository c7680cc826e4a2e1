"""How many streams does one ``streamco serve`` carry at once with at most 10 % more time between tokens (Synera, section 6.1)?

That is the packing factor Pf of a model, and 1 / Pf the price of its tokens in c = T W / Pf. The paper counts models side by side on a
cluster; here it is streams of one server, because they share its batches. A server starts with each model on one thread, and answers 1, 2,
3, ... streams at once, until they take longer than the limit. Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from statistics import median

from bench.pairs import TARGET, model_file
from bench.report import Row, add_arguments, emit, summarise
from streamco.client.client import Client
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.testing.server_process import running_server

__all__ = ["LIMIT", "main", "measure_server", "packing_factor"]

BENCH = "packing"
LIMIT = 1.1  # of the time between tokens of a single stream
MOST = 32  # streams
TOKENS = 48
PROMPT = "Explain how tides work, step by step."


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--kinds", nargs="*", default=(TARGET,), help="SmolLM2's quantisations, or 0.5B and 1.5B (default: %(default)s)")
    options = parser.parse_args(arguments)
    rounds, most, tokens = (1, 2, 8) if options.quick else (5, MOST, TOKENS)
    rows: list[Row] = []
    for kind in options.kinds:
        found = asyncio.run(measure_server(kind, rounds=rounds, most=most, tokens=tokens))
        for streams, samples in found.items():
            rows.append(summarise(samples, bench=BENCH, case=kind, contender=f"{streams} streams", metric="time between tokens", unit="ms"))
        factor = [float(packing_factor({streams: median(samples) for streams, samples in found.items()}))]
        rows.append(summarise(factor, bench=BENCH, case=kind, contender="streamco", metric="streams within 10 %", unit=""))
    emit(rows, options.json, against="1 streams")


def packing_factor(times: Mapping[int, float], limit: float = LIMIT) -> int:
    """Return the largest number of streams up to which each number takes at most ``limit`` times as long as one.

    Args:
        times: time between tokens by the number of streams; 1 among them.
        limit: how much longer it may be.
    """
    factor = 1
    for streams in sorted(times):
        if times[streams] > limit * times[1]:
            break
        factor = streams
    return factor


async def measure_server(kind: str, *, rounds: int, most: int, tokens: int) -> dict[int, list[float]]:
    """Return milliseconds between tokens by the number of streams, up to the first number that is beyond the limit."""
    path = await asyncio.to_thread(model_file, kind)
    command = ("--model", str(path), "--threads", "1", "--port", "0", "--context", "512", "--sequences", str(most))
    async with running_server(*command) as url, Client(server=OpenAIEndpoint(path.stem, base_url=url, name="server")) as client:
        await _time_streams(client, 1, tokens)  # the prompt's tokens are in the cache for all that follow
        found: dict[int, list[float]] = {}
        for streams in range(1, most + 1):
            found[streams] = [await _time_streams(client, streams, tokens) for _ in range(rounds)]
            if packing_factor({count: median(samples) for count, samples in found.items()}) < streams:
                break
        return found


async def _time_streams(client: Client, streams: int, tokens: int) -> float:
    return sum(await asyncio.gather(*(_time_one(client, tokens) for _ in range(streams)))) / streams


async def _time_one(client: Client, tokens: int) -> float:
    """Milliseconds between the first token and the last, for each token between them."""
    times = [time.perf_counter() async for _ in client.stream(PROMPT, temperature=0, max_tokens=tokens)]
    return 1e3 * (times[-1] - times[0]) / max(1, len(times) - 1)


if __name__ == "__main__":
    main()
