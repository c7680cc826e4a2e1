"""What does drafting here and verifying there give, against the server alone, the device alone, and waiting for each verdict?

SmolLM2 drafts and verifies (quantisations of one file, and one with layers left out), each on one thread of this machine, the server in a
process of its own over an emulated link. Both models are of one size here, so at the server's own speed drafting can't win. The comparison
that counts imposes the step times of Llama-2-70B on two A100 on the server; its tokens stay the real model's, and rounds that really took
longer are counted. A contender with more than one in fifty of them is left out of all comparisons, because it was given time that the
imposed server wouldn't take. Server and device are bound to a core each. Contenders take turns prompt by prompt, answers are greedy where
nothing else is said, and tokens a second are those of whole answers, their first tokens included.

The server keeps the prompts it has read, so the first contender with a prompt waits longer: in the grid each contender is that equally
often. At the server's own speed it is there twice, which shows what the machine's noise makes of equals. A cell of the grid has few
answers: after the cells come those of one round-trip time together, over all bandwidths.

Every cell has clients of its own. Those that learn the pair say two answers before it counts, the others a short one, for the connection.
Waiting with windows 3 to 8 is six contenders, and the one that was fastest is what the others are compared with.

What sampled rounds cost beside whole distributions is reckoned by ``bench/timed/verify_wire.py``: four drafted tokens of SmolLM2 would be
786 kB up. Here rows of 20 candidates are sent against rows of 64. A draft ten times cheaper was
simulated (docs/research/papers.md).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace as changed

import streamco
from bench.pairs import TARGET, model_file
from bench.report import Row, add_arguments, emit, summarise
from bench.timed.cores import on_core, two_cores
from streamco import Speculate
from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
from streamco.engines.llama import LlamaEngine
from streamco.policies.window import Static
from streamco.testing import LinkProxy
from streamco.testing.server_process import running_server
from streamco.verifiers import SpeculationTuning

__all__ = ["PROMPTS", "main", "read_stats"]

LARGE = "llama2-70b-a100x2"
NEVER_BELOW = 0.95
MAX_LATE = 0.02  # share of rounds that took longer than imposed
BUDGET = 0.3
TEMPERATURE = 0.8
WARM_UPS = ("Name three rivers and the countries that they flow through.", "What is a good breakfast before a long walk?")
WARM_TOKENS, CONNECTING_TOKENS = 32, 8
PROMPTS = (
    "Explain in a few sentences how a bicycle stays upright.",
    "Write a friendly email that invites a colleague to lunch.",
    "List five tips for somebody who learns a new language.",
    "Why is the sky blue, and why is it red in the evening?",
    "Tell a short story about a lighthouse keeper and a storm.",
    "What should one look for when buying a used guitar?",
    "What does a librarian do all day?",
    "Give three reasons to go for a run.",
)
AGAIN = "server alone, again"
SIDES = ("server alone", "device alone", AGAIN)
UNADAPTIVE = Speculate(is_adaptive=False)


def tuned(**settings: Any) -> Speculate:
    """Return ``UNADAPTIVE`` with these settings of its tuning."""
    return changed(UNADAPTIVE, tuning=SpeculationTuning(**settings))


LOSSLESS = {
    "streamco": Speculate(),
    "streamco, window 4": Speculate(window=4),
    "streamco, never the server alone": UNADAPTIVE,
    "only the accept-all branch": tuned(branch_kinds=frozenset({"accept all"})),
    "only rejection branches": tuned(branch_kinds=frozenset({"reject"})),
    "the paper's forecast": tuned(forecast="geometric"),
    "the paper's forecast, one branch drawn": tuned(forecast="sampled"),
    "nothing sent ahead": tuned(max_ahead=0),
    "no parallel drafting": tuned(is_parallel=False),
}
WAITING = {f"draft, then wait; window {window}": changed(tuned(is_parallel=False), window=Static(window)) for window in range(3, 9)}
SELECTIVE = {
    "streamco": Speculate(budget=BUDGET),
    "confidence only": Speculate(budget=BUDGET, offload="confidence"),
    "importance only": Speculate(budget=BUDGET, offload="importance"),
    "random": Speculate(budget=BUDGET, offload="random"),
}
SAMPLED = {
    "streamco": Speculate(),
    "rows of 20, never the server alone": UNADAPTIVE,
    "rows of 64, never the server alone": tuned(row_tokens=64),
}

Link = tuple[float, float]  # round-trip time in seconds, megabits a second
WIDE: tuple[Link, ...] = ((0.01, 10.0), (0.03, 10.0), (0.06, 10.0), (0.12, 10.0))
LINKS: tuple[Link, ...] = tuple((rtt, mbps) for (rtt, _), mbps in product(WIDE, (0.1, 1.0, 10.0)))


@dataclass(frozen=True, slots=True)
class Section:
    """Contenders, and where they meet.

    Args:
        contenders: settings by name; None: the side that the name says.
        speed: whose step times are imposed on the server; None: nobody's.
        pairs: kinds of draft models.
        prompts, tokens: how many; each answer is at most so long.
        budget: of engines: below 1 they tell importance.
        temperature: of answers.
        is_brief: rates and ratios are enough.
    """

    name: str
    contenders: Mapping[str, Speculate | None]
    speed: str | None = LARGE
    pairs: tuple[str, ...] = ("Q4_0",)
    links: tuple[Link, ...] = WIDE[1:2]
    prompts: int = 3
    tokens: int = 48
    budget: float = 1.0
    temperature: float = 0.0
    is_brief: bool = False

    def case(self, pair: str, link: Link) -> str:
        """As rows name it."""
        rtt, mbps = link
        return f"{self._pairing(pair)}, RTT {rtt * 1000:g} ms, {mbps:g} Mbps, {self.prompts} x {self.tokens} tokens"

    def pooled_case(self, pair: str, rtt: float, links: int) -> str:
        """Of so many links with one round-trip time together."""
        return f"{self._pairing(pair)}, RTT {rtt * 1000:g} ms, {links} bandwidths, {links * self.prompts} x {self.tokens} tokens"

    def _pairing(self, pair: str) -> str:
        speed = "its own speed" if self.speed is None else self.speed
        return f"{self.name}: {pair} for {TARGET}, {speed}"


STREAM: dict[str, Speculate | None] = {"server alone": None}
HEADLINE = Section("headline", {**LOSSLESS, **dict.fromkeys(SIDES[:2]), **WAITING}, links=WIDE, prompts=8, tokens=64)
IMPOSED = Section(
    "grid", {"streamco": LOSSLESS["streamco"], **STREAM}, pairs=("Q2_K", "Q4_0", "pruned"), links=LINKS, prompts=2, is_brief=True
)
OWN = replace(IMPOSED, contenders={**IMPOSED.contenders, AGAIN: None}, speed=None, prompts=6)
SELECTING = Section(f"selective, budget {BUDGET:g}", {**SELECTIVE, **STREAM}, budget=BUDGET)
SAMPLING = Section(f"sampled, temperature {TEMPERATURE:g}", {**SAMPLED, **STREAM}, links=LINKS[3:4], temperature=TEMPERATURE)
PARTS = {
    "headline": (HEADLINE,),
    "grid": (IMPOSED, OWN),
    "imposed": (IMPOSED,),
    "own": (OWN,),
    "ablations": (SELECTING, SAMPLING),
}
QUICK = (
    replace(
        HEADLINE, links=WIDE[1:2], prompts=1, tokens=32, contenders={name: HEADLINE.contenders[name] for name in ("streamco", *SIDES[:2])}
    ),
    replace(OWN, pairs=("Q4_0",), links=WIDE[1:2], prompts=1),
)


@dataclass(slots=True)
class Tally:
    """What one contender did in one cell."""

    seconds: list[float] = field(default_factory=list)  # answer by answer
    tokens: list[int] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    figures: list[streamco.reports.SpeculationFigures] = field(default_factory=list)
    verdicts: int = 0
    late: int = 0  # of these, those that took longer than imposed

    def __add__(self, other: Tally) -> Tally:
        """Both cells."""
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Tally)))

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each answer."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def is_in_time(self) -> bool:
        """True if next to no round took longer than imposed."""
        return self.late <= MAX_LATE * self.verdicts

    @property
    def rate(self) -> float:
        """Of all together."""
        return sum(self.tokens) / sum(self.seconds)


Cell = tuple[str, Link, dict[str, Tally]]
"""The draft model, the link, and what each contender did there."""


@dataclass(slots=True)
class Ratio:
    """Of a cell of the grid: a contender's rate by that of the server alone."""

    case: str
    contender: str
    value: float


def ratios_of(case: str, tallies: Mapping[str, Tally]) -> list[Ratio]:
    """Of all contenders that were in time."""
    return [Ratio(case, name, tally.rate / tallies["server alone"].rate) for name, tally in in_time(tallies).items()]


def in_time(tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    """Those with next to no late round."""
    return {name: tally for name, tally in tallies.items() if tally.is_in_time}


def pool(section: Section, cells: Sequence[Cell]) -> Iterator[tuple[str, dict[str, Tally]]]:
    """Links of one round-trip time together, whatever their bandwidth."""
    for pair, rtt in dict.fromkeys((pair, rtt) for pair, (rtt, _), _ in cells):
        found = [tallies for of, (at, _), tallies in cells if (of, at) == (pair, rtt)]
        together = {name: sum((tallies[name] for tallies in found), Tally()) for name in section.contenders}
        yield section.pooled_case(pair, rtt, len(found)), together


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--only", choices=PARTS, help="this part")
    parser.add_argument("--cells", type=int, metavar="N", help="the first N links of each part, for each pair")
    options = parser.parse_args()
    parts = PARTS[options.only] if options.only else (HEADLINE, SELECTING, SAMPLING, IMPOSED, OWN)
    sections = QUICK if options.quick else tuple(replace(section, links=section.links[: options.cells]) for section in parts)
    emit(asyncio.run(measure(sections)), options.json)
    return 0


async def measure(sections: Sequence[Section]) -> list[Row]:
    """All sections; behind them where the grid is worst."""
    rows: list[Row] = []
    ratios: list[Ratio] = []
    pooled: list[Ratio] = []
    for section in sections:
        found = [(pair, link, tallies) async for pair, link, tallies in run_section(section)]
        for pair, link, tallies in found:
            case = section.case(pair, link)
            rows += brief_rows(case, tallies) if section.is_brief else full_rows(case, tallies)
            ratios += ratios_of(case, tallies) if section.is_brief else ()
        for case, tallies in pool(section, found) if section.is_brief else ():
            rows += brief_rows(case, tallies)
            pooled += ratios_of(case, tallies)
    return [*rows, *smallest(ratios, "cells"), *smallest(pooled, "cells over all bandwidths")]


async def run_section(section: Section) -> AsyncIterator[Cell]:
    """Cell by cell."""
    imposed = () if section.speed is None else ("--step-times", section.speed)
    settings = drafting_engine_options(streamco.engines.EngineOptions(threads=1, context_tokens=1024), section.budget, sequences=16)
    model = await asyncio.to_thread(model_file, TARGET)
    words = ("--model", str(model), "--model-name", "large", "--threads", "1", "--context", "1024", "--port", "0", *imposed)
    device_core, server_core = two_cores() or (None, None)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        with on_core(server_core):
            url = await stack.enter_async_context(running_server(*words))
        stack.enter_context(on_core(device_core))
        for pair in section.pairs:
            engine = await asyncio.to_thread(LlamaEngine, await asyncio.to_thread(model_file, pair), settings)
            for link in section.links:
                print(section.case(pair, link), file=sys.stderr, flush=True)
                yield pair, link, await run_cell(section, Site(engine, url, http), link)
            await asyncio.to_thread(engine.close)


@dataclass(frozen=True, slots=True)
class Site:
    """The device's engine, the server's address without the link, and a session to ask the server what it has done."""

    engine: LlamaEngine
    url: str
    http: aiohttp.ClientSession

    async def verdicts(self) -> tuple[int, int]:
        """So far, and those of them that took longer than imposed."""
        stats = await read_stats(self.http, self.url)
        return stats["verdicts"], stats["late_verdicts"]


async def read_stats(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What the verifier at this address has done so far."""
    async with http.get(f"{url}/verify/stats", raise_for_status=True) as answer:
        return dict(await answer.json())


async def run_cell(section: Section, site: Site, link: Link) -> dict[str, Tally]:
    """Every contender says every prompt, in turns."""
    rtt, mbps = link
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(LinkProxy(urlsplit(site.url).port or 0, rtt=rtt, mbps=mbps))
        address = f"http://127.0.0.1:{proxy.port}/v1"
        clients = {
            name: await stack.enter_async_context(contender(name, setting, site.engine, address))
            for name, setting in section.contenders.items()
        }
        for name, client in clients.items():
            await warm_up(name, client, section.temperature)
        tallies = {name: Tally() for name in clients}
        for turn, prompt in enumerate(PROMPTS[: section.prompts]):
            order = list(clients)
            cut = turn % len(order)
            for name in order[cut:] + order[:cut]:
                await take_turn(section, site, clients[name], prompt, tallies[name])
    return tallies


@asynccontextmanager
async def contender(name: str, setting: Speculate | None, engine: LlamaEngine, address: str) -> AsyncIterator[streamco.Client]:
    """A client that does as the contender's name says."""
    server = streamco.OpenAIEndpoint("large", base_url=address, name="server")
    if setting is not None:
        client = streamco.Client(streamco.DeviceEndpoint(engine), server, mode=setting)
    elif name in {"server alone", AGAIN}:
        client = streamco.Client(server=server)
    else:
        client = streamco.Client(streamco.DeviceEndpoint(engine))
    async with client:
        yield client


async def warm_up(name: str, client: streamco.Client, temperature: float) -> None:
    """Connections, and what the client learns of the pair."""
    if name in SIDES or name in WAITING:
        await say(client, WARM_UPS[0], CONNECTING_TOKENS, temperature, Tally())
    else:
        for prompt in WARM_UPS:
            await say(client, prompt, WARM_TOKENS, temperature, Tally())


async def take_turn(section: Section, site: Site, client: streamco.Client, prompt: str, tally: Tally) -> None:
    """One answer, and what the server says of it."""
    verdicts, late = await site.verdicts()
    await say(client, prompt, section.tokens, section.temperature, tally)
    all_verdicts, all_late = await site.verdicts()
    tally.verdicts += all_verdicts - verdicts
    tally.late += all_late - late


async def say(client: streamco.Client, prompt: str, tokens: int, temperature: float, tally: Tally) -> None:
    """One answer."""
    began = time.perf_counter()
    last: float | None = None
    async with client.stream(prompt, max_tokens=tokens, temperature=temperature, seed=1) as stream:
        async for _ in stream:
            now = time.perf_counter()
            if last is None:
                tally.first.append(now - began)
            else:
                tally.gaps.append(now - last)
            last = now
    tally.seconds.append(time.perf_counter() - began)
    tally.tokens.append(stream.usage.completion_tokens)
    if stream.report.speculation is not None:
        tally.figures.append(stream.report.speculation)


def full_rows(case: str, tallies: Mapping[str, Tally]) -> Iterator[Row]:
    """Ratios first; of the waiting ones the best alone, and its window. Of late contenders the rounds alone."""
    kept = in_time(tallies)
    waiting = max((name for name in kept if name in WAITING), key=lambda name: kept[name].rate, default=None)
    shown = {name: tally for name, tally in kept.items() if name not in WAITING or name == waiting}
    for name in shown:
        if name not in SIDES and name != waiting:
            for against in ("server alone", *filter(None, [waiting])):
                yield from ratio_rows(case, name, tallies[name], against, tallies[against])
    for name, tally in shown.items():
        yield rate_row(case, name, tally)
        yield one(case, name, "to the first token", "s", statistics.median(tally.first))
        yield one(case, name, "between tokens, p99", "s", sorted(tally.gaps)[int(0.99 * (len(tally.gaps) - 1))])
        for metric, (unit, value) in (drafted(tally.figures) if tally.figures else {}).items():
            yield one(case, name, metric, unit, value)
    for name, tally in tallies.items():
        yield from round_rows(case, name, tally)


def brief_rows(case: str, tallies: Mapping[str, Tally]) -> Iterator[Row]:
    """Of the grid: the ratio and both rates. Of late contenders the rounds alone."""
    kept = in_time(tallies)
    for name in kept:
        if name != "server alone":
            yield from ratio_rows(case, name, tallies[name], "server alone", tallies["server alone"])
    for name, tally in kept.items():
        yield rate_row(case, name, tally)
    for name, tally in tallies.items():
        yield from round_rows(case, name, tally)


def ratio_rows(case: str, name: str, tally: Tally, against: str, other: Tally) -> Iterator[Row]:
    """Prompt by prompt, and of all together."""
    ratios = [ours / theirs for ours, theirs in zip(tally.rates, other.rates, strict=True)]
    metric = f"tokens/s relative to {against}"
    yield summarise(ratios, bench="speculate", case=case, contender=name, metric=f"{metric}, each prompt", unit="times")
    yield one(case, name, f"{metric}, all prompts", "times", tally.rate / other.rate)


def rate_row(case: str, name: str, tally: Tally) -> Row:
    """Tokens a second of the answers."""
    return summarise(tally.rates, bench="speculate", case=case, contender=name, metric="tokens a second", unit="tokens/s")


def round_rows(case: str, name: str, tally: Tally) -> Iterator[Row]:
    """How many rounds there were, and how many were not as imposed."""
    if tally.verdicts:
        yield one(case, name, "rounds", "", tally.verdicts)
    if tally.verdicts and LARGE in case:
        yield one(case, name, "rounds that took longer than imposed", "share", tally.late / tally.verdicts)


def smallest(ratios: Sequence[Ratio], what: str) -> Iterator[Row]:
    """Where drafting costs most, and in how many cells it costs more than is promised."""
    for name in ("streamco", AGAIN):
        among = [ratio for ratio in ratios if ratio.contender == name]
        if among:
            worst = min(among, key=lambda ratio: ratio.value)
            yield one(f"smallest of {len(among)} {what}; {worst.case}", name, "tokens/s relative to server alone", "times", worst.value)
            below = sum(ratio.value < NEVER_BELOW for ratio in among)
            yield one(f"grid: {len(among)} {what}", name, f"below {NEVER_BELOW:g} of server alone", what, below)


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of a single figure."""
    return Row("speculate", case, name, metric, unit, value, value, value)


def drafted(figures: Sequence[streamco.reports.SpeculationFigures]) -> dict[str, tuple[str, float]]:
    """Of all answers of a contender together."""
    rounds = sum(each.rounds for each in figures)
    judged = sum(each.accepted + each.corrected for each in figures)
    tokens = sum(each.accepted + each.corrected + each.bonus + each.remote + each.device for each in figures)
    hits = sum((each.hit_rate or 0.0) * each.rounds for each in figures)
    ahead = sum((each.ahead_rate or 0.0) * each.rounds for each in figures)
    return {
        "rounds whose branch was adopted": ("share", hits / rounds if rounds else 0.0),
        "rounds whose next draft was sent ahead": ("share", ahead / rounds if rounds else 0.0),
        "accepted": ("share", sum(each.accepted for each in figures) / judged if judged else 0.0),
        "drafted, not used": ("tokens/token", sum(each.wasted for each in figures) / tokens),
        "by the server alone": ("share", sum(each.remote for each in figures) / tokens),
        "computed by the server": ("tokens/token", sum(each.target_tokens for each in figures) / tokens),
        "sent": ("bytes/token", sum(each.bytes_up for each in figures) / tokens),
        "received": ("bytes/token", sum(each.bytes_down for each in figures) / tokens),
    }


if __name__ == "__main__":
    sys.exit(main())
