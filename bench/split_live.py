"""How long is the time between tokens of a split model over an emulated link, with and without drafts?

The whole client over a real socket: SmolLM2-135M in three parts, its middle at a ``streamco serve --middle`` in another process, between
them a link of 7.5 MB/s up and 12.5 MB/s down. ``7B``: the server takes the times of Vicuna-7B's middle on an A6000 (18 ms a batch and
0.13 ms a row); where its own layers take longer, they count; ``own``: those of this machine. ``threshold ... last``: HAT's equations 5
and 6. Prompts go up in one piece. All contenders answer each prompt in turns and must write the same text. A model this small is faster
in one piece: this is about how trips add up.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from urllib.parse import urlsplit

from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco import Client, EngineOptions, SplitEndpoint
from streamco.cli.server_process import running_server
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.drafts import DraftOptions
from streamco.testing.link_proxy import LinkProxy

UP_MBPS, DOWN_MBPS = 60.0, 100.0
STEPS = {"7B": ("--emulate-step", "0.018,0.00013"), "own": ()}
TRIPS = (0.010, 0.030, 0.080)  # seconds
CONTENDERS: dict[str, DraftOptions | None] = {
    "U-shape": None,
    "drafts of 4": DraftOptions(window=4),
    "confident": DraftOptions(),
    "confident, parallel 3": DraftOptions(parallel=3),
    "threshold, parallel 3, last": DraftOptions(window="threshold", parallel=3, branches="last"),
}
BASE = "U-shape"


class Answer:
    """What one answer took."""

    def __init__(self, text: str, tokens: int, seconds: float, trips: int) -> None:
        self.text = text
        self.tokens = tokens
        self.tbt = seconds / max(1, tokens - 1)
        self.trips = trips


async def ask(endpoint: SplitEndpoint, client: Client, prompt: str, most: int) -> Answer:
    """Answer a prompt greedily."""
    before, text = endpoint.traffic.trips, ""
    times: list[float] = []
    stream = await client.chat.completions.create(
        messages=[{"role": "user", "content": prompt}], max_tokens=most, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    tokens = 0
    async for chunk in stream:
        tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            text += piece
            times.append(time.perf_counter())
    return Answer(text, tokens, times[-1] - times[0], endpoint.traffic.trips - before)


async def measure(files: PartFiles, step: str, rtt: float, prompts: list[str], most: int) -> list[Row]:
    """Time between tokens and tokens a trip over one link."""
    async with AsyncExitStack() as stack:
        options = ("--model", str(files.middle), "--middle", "--port", "0", "--threads", "2", *STEPS[step])
        url = await stack.enter_async_context(running_server(*options))
        link = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=rtt, mbps=UP_MBPS, down_mbps=DOWN_MBPS))
        clients = {}
        for name, drafts in CONTENDERS.items():
            endpoint = SplitEndpoint(
                files.stem, f"ws://127.0.0.1:{link.port}", options=EngineOptions(threads=1), drafts=drafts, chunking="whole"
            )
            clients[name] = endpoint, await stack.enter_async_context(Client(endpoint, mode="split"))
        answers: dict[str, list[Answer]] = {name: [] for name in clients}
        for turn, prompt in enumerate(prompts):
            order = list(clients)[turn % len(clients) :] + list(clients)[: turn % len(clients)]
            for name in order:
                answers[name].append(await ask(*clients[name], prompt, most))
            texts = {each[-1].text for each in answers.values()}
            if len(texts) > 1:
                raise SystemExit(f"expected the same text of all contenders, got {len(texts)} for {prompt[:60]!r}")
    return rows_of(f"{step}, RTT {rtt * 1e3:.0f} ms", answers)


def rows_of(case: str, answers: Mapping[str, list[Answer]]) -> list[Row]:
    rows = []
    base = [each.tbt for each in answers[BASE]]
    for name, found in answers.items():
        figures = {
            ("time between tokens", "ms"): [each.tbt * 1e3 for each in found],
            ("time between tokens", "of the U-shape's"): [each.tbt / other for each, other in zip(found, base, strict=True)],
            ("tokens a trip", "tokens"): [each.tokens / max(1, each.trips) for each in found],
        }
        for (metric, unit), values in figures.items():
            rows.append(Row("split_live", case, name, metric, unit, median(values), min(values), max(values)))
    return rows


async def run(*, quick: bool) -> list[Row]:
    """All links and servers."""
    prompts = [text for _, text in real_prompts(60) if len(text) <= 600][: 2 if quick else 8]
    with tempfile.TemporaryDirectory() as folder:
        files = split_model(packaged_model(), folder)
        rows: list[Row] = []
        for step in STEPS:
            for rtt in TRIPS[1:2] if quick else TRIPS:
                rows += await measure(files, step, rtt, prompts, 24 if quick else 48)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    args = parser.parse_args()
    emit(asyncio.run(run(quick=args.quick)), args.json, against=BASE)


if __name__ == "__main__":
    main()
