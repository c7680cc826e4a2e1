"""Does a split model write the whole model's texts, through the whole client and over a socket?

Real prompts, answered greedily by the packaged model whole (exact mode), and by its parts: the ends in this process with drafts by the
packaged layer, the middle at a ``streamco serve --middle`` in another one, states of 32, 16 and 8 bits. ``exact``: the parts are in exact
mode, too, with 32 bits: all texts must be equal, and the prompts of those that aren't are printed. The others compute a prompt in larger
batches, whose last bits may differ. ``equal``: texts that are the same, character for character. This is no timing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Literal

from msgspec.structs import replace

from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco import Client, DeviceEndpoint, SplitEndpoint
from streamco.client.modes.split.mode import Split
from streamco.engines import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import split_model
from streamco.reports import Report
from streamco.testing.server_process import running_server

FORMATS: dict[str, Literal["f32", "f16", "i8"]] = {"exact": "f32", "f32": "f32", "f16": "f16", "i8": "i8"}
TOKENS = 64
PROMPTS, QUICK = 200, 4
CONTEXT = 1024
COSTS = "1:0.005,64:0.05"  # seconds by rows; measuring them takes long on a busy machine, and changes no text
WHOLE = "whole model"


async def clients(stack: AsyncExitStack) -> Mapping[str, Client]:
    """Return a client of the whole model, and one of the split model for each case."""
    files = split_model(packaged_model(), stack.enter_context(tempfile.TemporaryDirectory()))
    options = ("--model", str(files.middle), "--middle", "--port", "0", "--threads", "1", "--context", str(CONTEXT), "--row-costs", COSTS)
    url = await stack.enter_async_context(running_server(*options))
    exact_url = await stack.enter_async_context(running_server(*options, "--exact"))
    engine = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1)
    exact = replace(engine, exact=True)
    found = {WHOLE: await stack.enter_async_context(Client(DeviceEndpoint(packaged_model(), options=exact)))}
    for name, states in FORMATS.items():
        at, settings = (exact_url, exact) if name == "exact" else (url, engine)
        endpoint = SplitEndpoint(files.stem, at, options=settings, states=states)
        found[name] = await stack.enter_async_context(Client(mode=Split(endpoint)))
    return found


async def ask(client: Client, prompt: str) -> tuple[str, Report]:
    """Return the greedy answer and its report."""
    stream = client.stream([{"role": "user", "content": prompt}], max_tokens=TOKENS, temperature=0)
    text = "".join([token.text async for token in stream])
    return text, stream.report


async def compare(prompts: list[tuple[str, str]]) -> list[Row]:
    """Return how many texts are equal, and the tokens a trip, for each format."""
    equal, made, trips = dict.fromkeys(FORMATS, 0), dict.fromkeys(FORMATS, 0), dict.fromkeys(FORMATS, 0)
    async with AsyncExitStack() as stack:
        asked = await clients(stack)
        for number, (name, prompt) in enumerate(prompts, 1):
            expected, _ = await ask(asked[WHOLE], prompt)
            for states in FORMATS:
                text, report = await ask(asked[states], prompt)
                assert report.split is not None, "a split model answered"
                equal[states] += text == expected
                made[states] += report.tokens
                trips[states] += report.split.trips
                if states == "exact" and text != expected:
                    print(f"exact mode differs: {name}: expected {expected!r}, got {text!r}", file=sys.stderr)
            print(f"{number} prompts, equal: {equal}", file=sys.stderr)
    rows = []
    for states in FORMATS:
        figures = {"equal texts": float(equal[states]), "tokens a trip": made[states] / max(1, trips[states])}
        rows += [
            Row("split_texts", f"{len(prompts)} prompts", states, metric, "", value, value, value) for metric, value in figures.items()
        ]
    return rows


def main() -> None:
    """Compare the texts of so many prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, help=f"number of prompts ({PROMPTS}, or {QUICK} with --quick)")
    args = parser.parse_args()
    emit(asyncio.run(compare(real_prompts(args.prompts or (QUICK if args.quick else PROMPTS)))), args.json, against="f32")


if __name__ == "__main__":
    main()
