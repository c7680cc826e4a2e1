"""What does drafting here and verifying there give, against the server alone, the device alone, and waiting for each verdict?

SmolLM2 drafts and verifies (quantisations of one file), each on one thread of this machine, the server in a process of its own behind an
emulated link. Both models are of one size here, so at the server's own speed drafting can't win. The comparison that counts imposes the
step times of Llama-2-70B on two A100 on the server; its tokens stay the real model's, and steps that really took longer are counted.
Contenders take turns prompt by prompt. Tokens a second are those of the whole answer, its first token included.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from msgspec.structs import replace

import streamco
from bench.report import Row, add_arguments, emit
from streamco import SpeculationOptions
from streamco.cli.cloud import running_server
from streamco.engines.gguf import derived
from streamco.engines.llama import LlamaEngine
from streamco.engines.packaged import packaged_model
from streamco.policies.window import Static
from streamco.testing import LinkProxy

__all__ = ["PROMPTS", "main"]

LARGE = "llama2-70b-a100x2"
TOKENS = 48
WINDOWS = (2, 3, 4)
CELLS = ((0.01, 10.0), (0.03, 10.0), (0.06, 10.0), (0.12, 10.0), (0.03, 1.0), (0.03, 0.1))  # round-trip time in seconds, megabits a second
OWN_SPEED = CELLS[1:3]
PROMPTS = (
    "Explain in a few sentences how a bicycle stays upright.",
    "Write a friendly email that invites a colleague to lunch.",
    "List five tips for somebody who learns a new language.",
)
SIDES = ("server alone", "device alone")
ABLATIONS = {
    "streamco": SpeculationOptions(),
    "streamco, never the server alone": SpeculationOptions(is_adaptive=False),
    "only the accept-all branch": SpeculationOptions(is_adaptive=False, branch_kinds=frozenset({"accept all"})),
    "only rejection branches": SpeculationOptions(is_adaptive=False, branch_kinds=frozenset({"reject"})),
}
IN_TURN = SpeculationOptions(is_adaptive=False, is_parallel=False)
WAITING = {f"draft, then wait; window {window}": replace(IN_TURN, window=Static(window)) for window in WINDOWS}


@dataclass(slots=True)
class Tally:
    """What one contender did in one cell."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    figures: list[streamco.SpeculationFigures] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--draft", default="Q4_0", help="quantisation of the draft model (default: %(default)s)")
    parser.add_argument("--target", default="Q8_0", help="quantisation of the target (default: %(default)s)")
    options = parser.parse_args()
    rows: list[Row] = []
    for steps in (LARGE,) if options.quick else (LARGE, None):
        cells = CELLS[1:2] if options.quick else CELLS if steps else OWN_SPEED
        rows += asyncio.run(measure(options.draft, options.target, steps, cells, PROMPTS[: 1 if options.quick else None]))
    emit(rows, options.json)
    return 0


async def measure(draft: str, target: str, steps: str | None, cells: Sequence[tuple[float, float]], prompts: Sequence[str]) -> list[Row]:
    """All cells of one speed of the server."""
    base = packaged_model()
    large, small = await asyncio.to_thread(derived, base, target), await asyncio.to_thread(derived, base, draft)
    imposed = () if steps is None else ("--step-times", steps)
    options = streamco.EngineOptions(threads=1, held_sequences=16, context_tokens=1024)
    rows: list[Row] = []
    engine = await asyncio.to_thread(LlamaEngine, small, options)
    async with running_server(
        "--model", str(large), "--model-name", "large", "--threads", "1", "--context", "1024", "--port", "0", *imposed
    ) as url:
        for rtt, mbps in cells:
            case = f"{draft} for {target}, {'its own speed' if steps is None else steps}, RTT {rtt * 1000:g} ms, {mbps:g} Mbps"
            print(case, file=sys.stderr)
            rows += cell_rows(case, await run_cell(engine, url, rtt, mbps, prompts))
    await asyncio.to_thread(engine.close)
    return rows


async def run_cell(engine: LlamaEngine, url: str, rtt: float, mbps: float, prompts: Sequence[str]) -> dict[str, Tally]:
    """Every contender says every prompt, in turns."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=rtt, mbps=mbps))
        address = f"http://127.0.0.1:{link.port}/v1"
        clients = {name: await stack.enter_async_context(contender(name, engine, address)) for name in (*SIDES, *ABLATIONS, *WAITING)}
        for client in clients.values():  # connections, and what the client learns of the pair
            await say(client, prompts[0], Tally())
        tallies = {name: Tally() for name in clients}
        for turn, prompt in enumerate(prompts):
            order = list(clients)
            cut = turn % len(order)
            for name in order[cut:] + order[:cut]:
                await say(clients[name], prompt, tallies[name])
    return tallies


@asynccontextmanager
async def contender(name: str, engine: LlamaEngine, address: str) -> AsyncIterator[streamco.Client]:
    """A client that does as the contender's name says."""
    server = streamco.OpenAIEndpoint("large", base_url=address, name="server")
    if name == "server alone":
        client = streamco.Client(server=server)
    elif name == "device alone":
        client = streamco.Client(streamco.DeviceEndpoint(engine))
    else:
        settings = {**ABLATIONS, **WAITING}[name]
        client = streamco.Client(streamco.DeviceEndpoint(engine), server, mode="speculate", speculation=settings)
    async with client:
        yield client


async def say(client: streamco.Client, prompt: str, tally: Tally) -> None:
    """One answer, greedy."""
    began = time.perf_counter()
    last: float | None = None
    async with client.stream(prompt, max_tokens=TOKENS, temperature=0) as stream:
        async for _ in stream:
            now = time.perf_counter()
            if last is None:
                tally.first.append(now - began)
            else:
                tally.gaps.append(now - last)
            last = now
    tally.seconds += time.perf_counter() - began
    tally.tokens += stream.usage.completion_tokens
    if stream.report.speculation is not None:
        tally.figures.append(stream.report.speculation)


def cell_rows(case: str, tallies: Mapping[str, Tally]) -> list[Row]:
    """What every contender did; of the waiting ones the best and its window."""
    best = max(WAITING, key=lambda name: tallies[name].rate)
    rows = []
    for name in (*ABLATIONS, *SIDES, best):
        tally = tallies[name]
        figures = {"tokens a second": ("tokens/s", tally.rate)}
        figures["to the first token"] = ("s", statistics.median(tally.first))
        figures["between tokens, p99"] = ("s", sorted(tally.gaps)[int(0.99 * (len(tally.gaps) - 1))])
        if tally.figures:
            figures |= drafted(tally.figures)
        rows += [Row("speculate", case, name, metric, unit, value, value, value) for metric, (unit, value) in figures.items()]
    return rows


def drafted(figures: Sequence[streamco.SpeculationFigures]) -> dict[str, tuple[str, float]]:
    """Of all answers of a contender together."""
    rounds = sum(each.rounds for each in figures)
    judged = sum(each.accepted + each.corrected for each in figures)
    tokens = sum(each.accepted + each.corrected + each.bonus + each.remote + each.device for each in figures)
    hits = sum((each.hit_rate or 0.0) * each.rounds for each in figures)
    return {
        "rounds": ("", rounds),
        "rounds whose branch was adopted": ("share", hits / rounds if rounds else 0.0),
        "accepted": ("share", sum(each.accepted for each in figures) / judged if judged else 0.0),
        "drafted, not used": ("tokens/token", sum(each.wasted for each in figures) / tokens),
        "by the server alone": ("share", sum(each.remote for each in figures) / tokens),
        "sent": ("bytes/token", sum(each.bytes_up for each in figures) / tokens),
        "received": ("bytes/token", sum(each.bytes_down for each in figures) / tokens),
    }


if __name__ == "__main__":
    sys.exit(main())
