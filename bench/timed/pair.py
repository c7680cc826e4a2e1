"""Does speculation beat the plain stream of the same verifier, with a real pair of models on one machine?

Qwen2.5-Coder 0.5B drafts, 1.5B verifies, each on one thread and a core of its own, the server in a process of its own (``make models``
fetches both). Weights are in Q4_0, which a CPU computes in tiles of four rows. Greedy answers to HumanEval's functions (code)
and Alpaca's instructions (prose). Contenders take turns prompt by prompt: the stream alone, streamco as it is by default, and drafts
alone. Server and device have read a prompt before the first contender's turn, so all find it. Tokens a second are those of whole answers.

The bound is arithmetic: with a share a of drafted tokens accepted, a round of w tokens gives E(a, w) tokens and takes the longer of its
verification, by the price list, and of w + a^w steps of the device: if all is accepted (a^w), it has drafted its guess of the verifier's
own token before what follows that one. Nothing else takes time, and no draft waits for a verdict. The best w counts. What a round takes
beside is split: computing at the verifier, waiting in its queue, and the rest, which is drafting that nothing hid, hand-overs and the
link.

With ``--exact`` the server is in exact mode, and a text that is not the stream's own is an error. ``--rtt-ms`` puts an emulated link
between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp

import streamco
from bench.fetch_models import found
from bench.pairs import load_questions
from bench.prompts import code_prompts
from bench.report import Row, add_arguments, emit
from bench.timed.cores import on_core, two_cores
from bench.timed.speculate import read_stats
from streamco import Speculate
from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.gguf import derived
from streamco.policies.acceptance import expected_tokens
from streamco.profiles.row_costs import RowCosts
from streamco.testing import LinkProxy
from streamco.testing.server_process import running_server

__all__ = ["Site", "bound", "main", "pair_site", "prompts_of"]

CLASSES = ("code", "prose")
TOKENS = 96
CONTEXT = 1024
STREAM, DEFAULT, DRAFTS = "stream", "streamco", "drafts alone"
SETTINGS: Mapping[str, Speculate | None] = {
    STREAM: None,
    DEFAULT: Speculate(),
    DRAFTS: Speculate(is_adaptive=False),
}
WARM_UPS = ("Write a function that counts the vowels of a word.", "Describe how bread is baked.")


@dataclass(frozen=True, slots=True)
class Site:
    """The device's engine, the server's address, and what it reported of its rows."""

    engine: LlamaEngine
    url: str
    costs: RowCosts
    draft_step: float  # seconds


@dataclass(slots=True)
class Tally:
    """What one contender's answers of one class took."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0  # verified
    accepted: int = 0
    remote: int = 0
    hits: float = 0.0
    computed: float = 0.0  # seconds at the verifier
    queued: float = 0.0
    texts: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def main() -> int:
    """Print the rows; 1 if an exact text differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, metavar="N", help="N prompts of each class (default: 50, with --quick 2)")
    parser.add_argument(
        "--rtt-ms", type=float, nargs="+", default=[0.0], metavar="MS", help="round trips of emulated links (default: 0, loopback as it is)"
    )
    parser.add_argument("--target", default="Q4_0", metavar="KIND", help="format of the target's weights (default: %(default)s)")
    parser.add_argument("--draft", default="Q4_0", metavar="KIND", help="format of the draft model's weights (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="longest answer (default: %(default)s)")
    parser.add_argument("--exact", action="store_true", help="exact mode: every text must be the stream's own")
    options = parser.parse_args()
    count = options.prompts or (2 if options.quick else 50)
    rows, differing = asyncio.run(measure(options, count))
    emit(rows, options.json, against=STREAM)
    if options.exact and differing:
        print(f"expected the stream's own texts in exact mode, got {differing} others", file=sys.stderr)
        return 1
    return 0


def prompts_of(kind: str, count: int, seed: int = 21) -> list[str]:
    """So many prompts of a class."""
    if kind == "code":
        return Random(seed).sample(code_prompts(), count)
    return [question.text for question in load_questions("alpaca", count, seed)]


def model_of(name: str, kind: str) -> Path:
    """A model of the pair in a format; the fetched file is Q4_K_M."""
    path = found(name)
    return path if kind == "Q4_K_M" else derived(path, kind)


@asynccontextmanager
async def pair_site(
    *, target: str = "Q4_0", draft: str = "Q4_0", exact: bool = False, words: Sequence[str] = (), context: int = CONTEXT
) -> AsyncIterator[Site]:
    """A server of the large model and an engine of the small one, a core each."""
    large, small = await asyncio.to_thread(model_of, "1.5B", target), await asyncio.to_thread(model_of, "0.5B", draft)
    options = ("--model", str(large), "--model-name", "large", "--threads", "1", "--context", str(context), "--port", "0", *words)
    device_core, server_core = two_cores() or (None, None)
    async with AsyncExitStack() as stack:
        with on_core(server_core):
            url = await stack.enter_async_context(running_server(*options, *(("--exact",) if exact else ())))
        stack.enter_context(on_core(device_core))
        engine = await stack.enter_async_context(drafting_engine(small, context))
        yield Site(engine, url, await reported_costs(url, engine), engine.row_costs()[1])


@asynccontextmanager
async def drafting_engine(model: Path, context: int, budget: float = 1.0) -> AsyncIterator[LlamaEngine]:
    """An engine that drafts, on this process's core. Below a budget of 1 it also reads attention."""
    options = streamco.engines.EngineOptions(threads=1, context_tokens=context, measure_rows=True)
    engine = await asyncio.to_thread(LlamaEngine, model, drafting_engine_options(options, budget))
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


async def reported_costs(url: str, engine: LlamaEngine) -> RowCosts:
    """What the server reports of its rows.

    Raises:
        SystemExit: it reports nothing.
    """
    verifier = VerifierEndpoint(url)
    try:
        await verifier.start(engine)
        facts = await verifier.probe()
    finally:
        await verifier.aclose()
    if facts.row_costs is None:
        raise SystemExit("expected a server that reports what rows cost, got none")
    return facts.row_costs


async def measure(options: argparse.Namespace, count: int) -> tuple[list[Row], int]:
    """Every contender says every prompt, in turns, over each link. Also returned: texts that differ from the stream's."""
    rows: list[Row] = []
    differing = 0
    async with pair_site(target=options.target, draft=options.draft, exact=options.exact) as site:
        for milliseconds in options.rtt_ms:
            found, texts = await measure_link(options, count, site, milliseconds / 1e3)
            rows += found
            differing += texts
    return rows, differing


async def measure_link(options: argparse.Namespace, count: int, site: Site, rtt: float) -> tuple[list[Row], int]:
    """The same over one link, with new clients."""
    rows: list[Row] = []
    differing = 0
    async with AsyncExitStack() as stack:
        address = site.url
        if rtt:
            proxy = await stack.enter_async_context(LinkProxy(urlsplit(site.url).port or 0, rtt=rtt))
            address = f"http://127.0.0.1:{proxy.port}/v1"
        http = await stack.enter_async_context(aiohttp.ClientSession())
        clients = {name: await stack.enter_async_context(client_of(setting, site, address)) for name, setting in SETTINGS.items()}
        for name, client in clients.items():
            for prompt in WARM_UPS[: 1 if name == STREAM else 2]:
                await say(client, prompt, 64)
        every: dict[str, Tally] = {name: Tally() for name in clients}
        for kind in CLASSES:
            tallies = {name: Tally() for name in clients}
            for turn, prompt in enumerate(prompts_of(kind, count)):
                print(f"rtt {1e3 * rtt:g} ms, {kind} {turn + 1}", file=sys.stderr, flush=True)
                for name in (STREAM, DRAFTS):
                    await say(clients[name], prompt, 2)  # the prompt is read on both sides
                order = list(clients)
                for name in (*order[turn % len(order) :], *order[: turn % len(order)]):
                    before = await read_stats(http, site.url)
                    await say(clients[name], prompt, options.tokens, both := (tallies[name], every[name]))
                    record_stats(both, before, await read_stats(http, site.url))
            rows += rows_of(f"{kind}, {count} prompts{_link(options, rtt)}", tallies, site, rtt)
            differing += sum(differing_texts(tallies, name) for name in (DEFAULT, DRAFTS))
        rows += rows_of(f"all, {2 * count} prompts{_link(options, rtt)}", every, site, rtt)
    return rows, differing


def _link(options: argparse.Namespace, rtt: float) -> str:
    mode = ", exact mode" if options.exact else ""
    return f", {options.target}{mode}, rtt {1e3 * rtt:g} ms" if rtt else f", {options.target}{mode}, loopback"


@asynccontextmanager
async def client_of(setting: Speculate | None, site: Site, address: str) -> AsyncIterator[streamco.Client]:
    """A client of one contender."""
    server = streamco.OpenAIEndpoint("large", base_url=address, name="server")
    if setting is None:
        client = streamco.Client(server=server)
    else:
        client = streamco.Client(streamco.DeviceEndpoint(site.engine), server, mode=setting)
    async with client:
        yield client


async def say(client: streamco.Client, prompt: str, tokens: int, tallies: Sequence[Tally] = ()) -> None:
    """One answer."""
    began = time.perf_counter()
    text = []
    async with client.stream(prompt, max_tokens=tokens, temperature=0.0) as stream:
        text = [token.text async for token in stream]
    seconds = time.perf_counter() - began
    figures = stream.report.speculation
    for tally in tallies:
        tally.seconds += seconds
        tally.tokens += stream.usage.completion_tokens
        tally.texts.append("".join(text))
        if figures is not None:
            tally.rounds += figures.rounds
            tally.drafted += figures.target_tokens - figures.rounds - figures.remote
            tally.accepted += figures.accepted
            tally.remote += figures.remote
            tally.hits += (figures.hit_rate or 0.0) * figures.rounds


def record_stats(tallies: Sequence[Tally], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Record what the verifier says about the rounds of an answer."""
    for tally in tallies:
        tally.computed += after["compute_s"] - before["compute_s"]
        tally.queued += after["queued_s"] - before["queued_s"]


def differing_texts(tallies: Mapping[str, Tally], name: str) -> int:
    """Answers of a contender that aren't the stream's."""
    return sum(one != other for one, other in zip(tallies[name].texts, tallies[STREAM].texts, strict=True))


def bound(costs: RowCosts, acceptance: float, draft_step: float, rtt: float) -> tuple[int, float]:
    """The best window, and the tokens a second of its rounds if all that can overlap does; see the module."""

    def rate(window: int) -> float:
        steps = window + acceptance**window
        return expected_tokens(acceptance, window) / max(costs.seconds(window + 1) + rtt, steps * draft_step)

    window = max(range(1, 17), key=rate)
    return window, rate(window)


def rows_of(case: str, tallies: Mapping[str, Tally], site: Site, rtt: float) -> list[Row]:
    """Rates, ratios, and where a round's time goes."""
    rows = [one(case, name, "rate", "tokens/s", tally.rate) for name, tally in tallies.items()]
    stream = tallies[STREAM]
    for name in (DEFAULT, DRAFTS):
        tally = tallies[name]
        rows += [
            one(case, name, "rate over the stream's", "x", tally.rate / stream.rate),
            one(case, name, "texts that differ from the stream's", "texts", differing_texts(tallies, name)),
            one(case, name, "tokens by the stream", "share", tally.remote / tally.tokens),
        ]
    drafts = tallies[DRAFTS]
    acceptance = drafts.accepted / max(1, drafts.drafted)
    window, rate = bound(site.costs, acceptance, site.draft_step, rtt)
    rounds = max(1, drafts.rounds)
    rows += [
        one(case, "bound", "rate over the stream's", "x", rate / stream.rate),
        one(case, "bound", "window", "tokens", window),
        one(case, DRAFTS, "acceptance", "share", acceptance),
        one(case, DRAFTS, "drafted in a round", "tokens", drafts.drafted / rounds),
        one(case, DRAFTS, "tokens a round", "tokens", drafts.tokens / rounds),
        one(case, DRAFTS, "branch adopted", "share", drafts.hits / rounds),
        one(case, DRAFTS, "round", "ms", 1e3 * drafts.seconds / rounds),
        one(case, DRAFTS, "round: computed at the verifier", "ms", 1e3 * drafts.computed / rounds),
        one(case, DRAFTS, "round: waited at the verifier", "ms", 1e3 * drafts.queued / rounds),
        one(case, DRAFTS, "round: the rest", "ms", 1e3 * (drafts.seconds - drafts.computed - drafts.queued) / rounds),
        one(case, "price list", "four rows", "ms", 1e3 * site.costs.seconds(4)),
        one(case, "price list", "one row", "ms", 1e3 * site.costs.seconds(1)),
        one(case, "price list", "draft step", "ms", 1e3 * site.draft_step),
    ]
    return rows


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of one figure."""
    return Row("pair", case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    sys.exit(main())
