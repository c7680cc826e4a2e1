"""What do drafts, prompt chunks and drafting while a verdict is out bring each? HAT's Table V, live over an emulated link.

The whole client over a real socket: SmolLM2-135M's own first layers, draft layer and head on the device, and the link of ``split_live``
with a round trip of 30 ms. The server takes the times of Vicuna-7B's middle on an A6000 (18 ms a batch and 0.13 ms a row) and computes
nothing: the states of each text are recorded before, because this machine could not compute as many rows in time. Prompts are news articles
of some 1,000 tokens, none of which the draft layer has learned from. All contenders answer each prompt in turns. All that send 32 bits must
write the same text.

``SD``: drafts that end with the first token of less than 0.6 probability (equation 5); ``PC``: chunks of equation 3; ``PD``: drafts along
the verdicts that may come, the paper's way. Without a mark on it all deep states of a prompt come down, as in the paper. ``default``: the
settings that a user gets, which choose the format of states and the number of branches by what they measure; the two after it are fixed.
A time between tokens is that of all answers together; least and most are those of single answers.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from bench.report import Row, add_arguments, emit
from bench.timed.split_live import DOWN_MBPS, UP_MBPS, Answer, ask, figures
from bench.timed.split_server import imposed_server, record_text
from bench.timed.split_ttft import CELLS, PER_ROW, RTT, SETUP, split_client
from bench.traces import data_folder
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.drafts import DraftOptions
from streamco.policies.chunking import Chunking
from streamco.testing.link_proxy import LinkProxy
from streamco.wire.tensors import StateFormat

SD = DraftOptions(window="threshold", parallel=0, lookup=False)
SD_PD = DraftOptions(window="threshold", parallel=3, branches="last", lookup=False)
TOKENS = (900, 1100)  # fewest and most of a prompt


class Device(NamedTuple):
    """The settings of one contender."""

    drafts: DraftOptions | None
    chunking: Chunking
    all_rows: bool = False
    states: StateFormat | Literal["auto"] = "f32"


BASE = "none (U-shape)"
CONTENDERS = {
    BASE: Device(None, "whole", all_rows=True),
    "PC": Device(None, "balanced", all_rows=True),
    "SD": Device(SD, "whole", all_rows=True),
    "SD, PD": Device(SD_PD, "whole", all_rows=True),
    "SD, PC": Device(SD, "balanced", all_rows=True),
    "SD, PC, PD (HAT)": Device(SD_PD, "balanced", all_rows=True),
    "HAT, last row only": Device(SD_PD, "balanced"),
    "default": Device(DraftOptions(), "fastest", states="auto"),
    "f32, parallel 0": Device(DraftOptions(parallel=0), "fastest"),
    "f32, parallel 3": Device(DraftOptions(parallel=3), "fastest"),
}


def articles(count: int) -> list[str]:
    """Prompts with news articles."""
    model, found = LlamaModel(packaged_model()), list[str]()
    with gzip.open(data_folder() / "prompts" / "cnn_dailymail.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            prompt = f"Summarize this article:\n\n{json.loads(line)['article']}"
            if len(found) < count and TOKENS[0] <= len(model.tokenize(prompt)) <= TOKENS[1]:
                found.append(prompt)
    model.close()
    return found


async def measure(files: PartFiles, prompts: list[str], most: int) -> list[Row]:
    """Answer all prompts with all contenders."""
    texts = [record_text(files, prompt, most) for prompt in prompts]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(imposed_server(files.middle, SETUP, PER_ROW, room=CELLS, texts=texts))
        link = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=RTT, mbps=UP_MBPS, down_mbps=DOWN_MBPS))
        clients = {}
        for name, device in CONTENDERS.items():
            client = split_client(files, link.port, device.chunking, drafts=device.drafts, states=device.states, all_rows=device.all_rows)
            clients[name] = await stack.enter_async_context(client)
            await ask(*clients[name], prompts[0], 8)  # the rate of the link is known after it
        answers: dict[str, list[Answer]] = {name: [] for name in clients}
        for turn, prompt in enumerate(prompts):
            order = list(clients)[turn % len(clients) :] + list(clients)[: turn % len(clients)]
            for name in order:
                answers[name].append(await ask(*clients[name], prompt, most))
            found = {answers[name][-1].text for name, device in CONTENDERS.items() if device.states == "f32"}
            if len(found) > 1:
                raise SystemExit(f"expected the same text of all contenders, got {len(found)} for {prompt[:60]!r}")
    differing = [one.text != other.text for one, other in zip(answers["default"], answers[BASE], strict=True)]
    rows, title = rows_of(answers), f"7B, RTT {RTT * 1e3:.0f} ms"
    return [*rows, Row("split_ablation", title, "default", "texts that 16 bits change", "texts", *[float(sum(differing))] * 3)]


def rows_of(answers: Mapping[str, list[Answer]]) -> list[Row]:
    """Times to the first token, and what came after it."""
    rows, base = [], answers[BASE]
    for name, found in answers.items():
        firsts = [each.first * 1e3 for each in found]
        ratios = [each.first / other.first for each, other in zip(found, base, strict=True)]
        values = (("ms", firsts), ("of the U-shape's", ratios))
        firsts_of = [("time to first token", unit, median(each), min(each), max(each)) for unit, each in values]
        rows += [Row("split_ablation", f"7B, RTT {RTT * 1e3:.0f} ms", name, *figure) for figure in [*firsts_of, *figures(found, base)]]
    return rows


async def run(count: int, most: int) -> list[Row]:
    """Cut the model and answer."""
    with tempfile.TemporaryDirectory() as folder:
        return await measure(split_model(packaged_model(), folder), articles(count), most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, default=6, help="articles (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default: %(default)s)")
    args = parser.parse_args()
    count, most = (1, 12) if args.quick else (args.prompts, args.tokens)
    emit(asyncio.run(run(count, most)), args.json, against=BASE)


if __name__ == "__main__":
    main()
