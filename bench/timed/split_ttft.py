"""How long is the time to the first token of a split model, by the way its prompt is cut, and what do other devices notice?

The whole client over a real socket, with SmolLM2-135M's own first layers and head on the device, and the link of ``split_live``: 7.5 MB/s
up, 12.5 MB/s down. ``7B``: middle layers without weights take the times of Vicuna-7B's on an A6000, because this machine could not
compute as many rows in time; ``own``: SmolLM2's own middle. All contenders read each prompt in turns. ``U-shape``: the paper's, whole
prompt up and the states of all rows down; ``whole``: one state down; ``balanced``: equation 3; ``fastest``: the default. ``others``: the
time between tokens of nine devices that write while a tenth one's prompt of 2,000 tokens comes in, against the time without it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Literal
from urllib.parse import urlsplit

from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from bench.timed.split_live import DOWN_MBPS, UP_MBPS
from bench.timed.split_server import imposed_server
from streamco import Client, SplitEndpoint
from streamco.client.modes.split.mode import Split
from streamco.engines import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.drafts import DraftOptions
from streamco.policies.chunking import Chunking
from streamco.testing.link_proxy import LinkProxy
from streamco.testing.server_process import running_server
from streamco.wire.tensors import StateFormat

SETUP, PER_ROW = 0.018, 0.00013  # seconds of a batch and of each row, Vicuna-7B's middle layers on an A6000
RTT = 0.03
CONTENDERS: tuple[tuple[str, Chunking], ...] = (
    ("U-shape", "whole"),
    ("whole", "whole"),
    ("fixed 128", 128),
    ("fixed 256", 256),
    ("balanced", "balanced"),
    ("fastest", "fastest"),
)
CELLS = 2560
OTHERS = 9

Case = Literal["7B", "own"]


def server(case: Case, files: PartFiles) -> AbstractAsyncContextManager[str]:
    """Return a server of the middle layers."""
    if case == "7B":
        return imposed_server(files.middle, SETUP, PER_ROW, room=CELLS)
    return running_server("--model", str(files.middle), "--middle", "--port", "0", "--context", str(CELLS), "--verify-places", "4")


@asynccontextmanager
async def split_client(
    files: PartFiles,
    port: int,
    chunking: Chunking,
    *,
    drafts: DraftOptions | None = None,
    states: StateFormat | Literal["auto"] = "f32",
    all_rows: bool = False,
    sequences: int = 1,
    threads: int = 1,
) -> AsyncIterator[tuple[SplitEndpoint, Client]]:
    """Connect a device to the server at a port."""
    endpoint = SplitEndpoint(
        files.stem,
        f"ws://127.0.0.1:{port}",
        options=EngineOptions(threads=threads, context_tokens=CELLS, max_sequences=sequences),
        states=states,
        drafts=drafts,
        chunking=chunking,
    )
    async with Client(mode=Split(endpoint)) as client:
        if all_rows:
            assert endpoint.link is not None, "a client that runs has connected"
            endpoint.link.prompt_rows = "all"
        yield endpoint, client


async def first_token(client: Client, prompt: str) -> float:
    """Return the seconds from the request to its first token."""
    began = time.perf_counter()
    stream = await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], max_tokens=1, temperature=0, stream=True)
    async for chunk in stream:
        if chunk.choices and (chunk.choices[0].delta.content or chunk.choices[0].finish_reason):
            return time.perf_counter() - began
    raise SystemExit("expected a token, got none")


@cache
def prompts_of(length: int, count: int) -> tuple[str, ...]:
    """Return prompts of so many tokens, made of real ones; all begin differently."""
    model = LlamaModel(packaged_model())
    ids = model.tokenize(" ".join(prompt for _, prompt in real_prompts(400)))
    texts = [model.detokenize(ids[start * length : (start + 1) * length]).decode(errors="replace") for start in range(count)]
    model.close()
    return tuple(texts)


async def measure(case: Case, files: PartFiles, lengths: Sequence[int], rounds: int) -> list[Row]:
    """Time to first token of each contender."""
    rows = []
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(case, files))
        link = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=RTT, mbps=UP_MBPS, down_mbps=DOWN_MBPS))
        clients = {}
        for name, chunking in CONTENDERS:
            device = split_client(files, link.port, chunking, all_rows=name == "U-shape", threads=2 if case == "7B" else 1)
            _, clients[name] = await stack.enter_async_context(device)
        for client in clients.values():
            await first_token(client, prompts_of(300, 1)[0])  # the rate of the link is known after it
        for length in lengths:
            seconds: dict[str, list[float]] = {name: [] for name in clients}
            for turn, prompt in enumerate(prompts_of(length, rounds)):
                order = list(clients)[turn % len(clients) :] + list(clients)[: turn % len(clients)]
                for name in order:
                    seconds[name].append(await first_token(clients[name], prompt))
            rows += rows_of(f"{case}, {length} tokens", seconds)
    return rows


def rows_of(case: str, seconds: dict[str, list[float]]) -> list[Row]:
    rows = []
    for name, found in seconds.items():
        figures = {"ms": [value * 1e3 for value in found]}
        for base in ("U-shape", "whole"):
            figures[f"of {base}"] = [value / other for value, other in zip(found, seconds[base], strict=True)]
        rows += [
            Row("split_ttft", case, name, "time to first token", unit, median(values), min(values), max(values))
            for unit, values in figures.items()
        ]
    return rows


async def arrivals(client: Client, prompt: str, most: int) -> list[float]:
    """Return the times at which an answer's pieces came."""
    stream = await client.chat.completions.create(
        messages=[{"role": "user", "content": prompt}], max_tokens=most, temperature=1, seed=1, stream=True
    )
    return [time.perf_counter() async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]


@asynccontextmanager
async def crowd(files: PartFiles, room: int | None, chunking: Chunking) -> AsyncIterator[tuple[Client, Client]]:
    """A server, nine devices that write, and one with a long prompt."""
    async with (
        imposed_server(files.middle, SETUP, PER_ROW, room=room) as url,
        LinkProxy(urlsplit(url).port or 0, rtt=RTT, mbps=UP_MBPS, down_mbps=DOWN_MBPS) as link,
        split_client(files, urlsplit(url).port or 0, "fastest", sequences=OTHERS) as (_, writers),
        split_client(files, link.port, chunking) as (_, reader),
    ):
        await first_token(reader, prompts_of(300, 1)[0])
        yield writers, reader


async def disturb(writers: Client, reader: Client, prompt: str) -> tuple[float, float]:
    """Let nine devices write, and after a while a tenth one's prompt come in.

    Returns:
        The writers' mean seconds between pieces while it came in over those in the second before, and their longest pause in seconds.
    """
    tasks = [asyncio.create_task(arrivals(writers, f"Write about the number {number}.", 100)) for number in range(OTHERS)]
    await asyncio.sleep(2.0)
    start = time.perf_counter()
    await first_token(reader, prompt)
    stop = time.perf_counter()
    found = await asyncio.gather(*tasks)
    before = sum(start - 1 <= when < start for each in found for when in each)
    during = sum(start <= when < stop for each in found for when in each) / (stop - start)
    pauses = [later - when for each in found for when, later in pairwise(each) if start <= later and when <= stop]
    return before / max(during, 1e-9), max(pauses)


async def others(files: PartFiles, rounds: int) -> list[Row]:
    """Time between tokens of nine devices while a tenth one's long prompt comes in."""
    found: dict[str, list[tuple[float, float]]] = {"whole": [], "fastest": []}
    for turn, prompt in enumerate(prompts_of(2000, rounds)):
        for name in list(found)[:: 1 if turn % 2 else -1]:
            async with crowd(files, CELLS if name == "whole" else None, "whole" if name == "whole" else "fastest") as (writers, reader):
                found[name].append(await disturb(writers, reader, prompt))
    metrics = (("mean time between pieces", "of that without the prompt"), ("longest pause", "s"))
    return [
        Row("split_ttft", "others", name, metric, unit, median(values), min(values), max(values))
        for name, pairs in found.items()
        for (metric, unit), values in zip(metrics, zip(*pairs, strict=True), strict=True)
    ]


async def run(*, quick: bool) -> list[Row]:
    """All cases."""
    with tempfile.TemporaryDirectory() as folder:
        files = split_model(packaged_model(), folder)
        rows = await measure("7B", files, (512,) if quick else (128, 512, 1000, 2000), 2 if quick else 7)
        rows += await others(files, 1 if quick else 5)
        if not quick:
            rows += await measure("own", files, (128, 512), 3)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    args = parser.parse_args()
    emit(asyncio.run(run(quick=args.quick)), args.json, against="U-shape")


if __name__ == "__main__":
    main()
