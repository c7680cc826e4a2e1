"""How good are the windows that policies choose, with enough rounds to distinguish one window from the next?

Clients, protocol, server, sockets, links and time are real. The step times of Llama-2-70B on two A100 are imposed on the server. The draft
model is a recording of the real one, with the step times of SmolLM2 in 4 bits on one core of an AMD EPYC (``--measured``: those that it has
here). The target is SmolLM2 with two of its layers (``bench.timed.fidelity_records``). So neither needs a core for itself, some clients run
side by side, each with a server of its own, and a cell has some thousand rounds. Fewer would not do: windows next to one another differ by
one or two per cent, and the tokens of some hundred rounds by five by chance alone.

How much of a draft is accepted is the real pair's, token by token. After its first wrong token a draft continues with the model's tokens
after the right one, confidences included. That matters to policies that end drafts by confidence. All contenders draft on while the verdict
is out, and leave the rest to the server if drafting doesn't pay. The learned window decides that by itself; arithmetic does for the others.
``bench/timed/windows_simulated.py`` has the same in virtual time.

What a client has learned by an answer steers the next ones, so that one client says little of its settings: each contender is several new
clients. They begin in turns, one of each contender, so that all have the same company. A contender with more than 2 % of late rounds at a
link is left out there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct
from msgspec.structs import replace as changed

import streamco
from bench.pairs import model_file
from bench.report import Row, add_arguments, emit, summarise
from bench.timed.fidelity_figures import MeasuredAnswer
from bench.timed.fidelity_live import CONTEXT, CORE_LAW, READING, DeviceLaw, RecordedEngine, measure_answer
from bench.timed.fidelity_records import Record, load_records, served_model
from bench.timed.speculate import LARGE, PROMPTS, WARM_TOKENS, WIDE, Link, Section, Tally, in_time, read_stats
from streamco import Speculate
from streamco.calibration.measure import measure_step_times
from streamco.client.modes.speculation.verifier_binding import HELD_SEQUENCES
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.testing import LinkProxy
from streamco.testing.server_process import running_server
from streamco.verifiers import SpeculationTuning

__all__ = ["ALONE", "CHOSEN", "FIXED", "RecordedClient", "main", "rows_of", "run_recorded"]

FIXED: dict[str, Speculate | None] = {f"window {window}": Speculate(window=window) for window in (2, 3, 4, 5, 6, 8)}
CHOSEN: dict[str, Speculate | None] = {
    "adaptive": Speculate(window="adaptive"),
    "adaptive, mode smoothed": Speculate(window="adaptive", tuning=SpeculationTuning(smooths_mode=True)),
    "dynamic": Speculate(window="dynamic"),
    "predicted": Speculate(window="predicted"),
    "confident": Speculate(window="confident"),
}
ALONE: dict[str, Speculate | None] = {"server alone": None}
BENCH = "windows_recorded"
METRIC = "tokens/s relative to"
DRAFT = "Q4_0"
SECTION = Section("windows, recorded drafts", FIXED | CHOSEN | ALONE, links=WIDE, prompts=72, tokens=64)
QUICK = replace(SECTION, links=WIDE[1:2], prompts=2, tokens=12)
CLIENTS = 6  # of each contender
SIDE_BY_SIDE = 4  # clients, each with a process and a server; more of them on two cores make rounds late
PATIENCE = 60.0  # seconds, for a verifier that starts beside others
WARM_UPS = 2  # answers of each client before those that count

Cells = Sequence[tuple[str, Mapping[str, Tally]]]


class RecordedClient(Struct, frozen=True, kw_only=True):
    """A contender's client behind a link.

    Args:
        setting: how it drafts; None: the server alone.
        warm_ups, records: of its prompts, those before it counts and those that count.
        tokens: of each answer.
        law: of the draft model.
        speed: whose step times are imposed on the server.
    """

    name: str
    setting: Speculate | None
    link: Link
    warm_ups: Sequence[Record]
    records: Sequence[Record]
    tokens: int
    law: DeviceLaw
    speed: str


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--records", type=Path, metavar="FILE", help="keep the prompts and their answers there, for the next time")
    parser.add_argument("--measured", action="store_true", help="the draft model takes the time that it takes here")
    parser.add_argument(
        "--side-by-side", type=int, default=SIDE_BY_SIDE, metavar="N", help="clients that run at once (default %(default)s)"
    )
    options = parser.parse_args()
    section = QUICK if options.quick else SECTION
    law = asyncio.run(_measure_law()) if options.measured else CORE_LAW
    print(f"draft steps of {' '.join(f'{1000 * seconds:.1f}' for seconds in law.step_times)} ms", file=sys.stderr, flush=True)
    cells = []
    for link, tallies in run_recorded(
        section.contenders,
        section.links,
        law=law,
        prompts=section.prompts,
        clients=min(CLIENTS, section.prompts),
        tokens=section.tokens,
        speed=LARGE,
        side_by_side=options.side_by_side,
        kept=options.records,
    ):
        cells.append((section.case(DRAFT, link), tallies))
        print(cells[-1][0], file=sys.stderr, flush=True)
    emit(rows_of(cells), options.json)
    return 0


def rows_of(cells: Cells) -> Iterator[Row]:
    """Each link, then all of them together; of contenders with late rounds the share of these alone."""
    for case, tallies in cells:
        timely = in_time(tallies)
        yield from compared(case, {name: tally.rate for name, tally in timely.items()}, "the best fixed one there")
        for name, tally in tallies.items():
            if tally.verdicts:
                yield one(case, name, "rounds that took longer than imposed", "share", tally.late / tally.verdicts)
            if name in timely:
                yield from figures_of(case, name, tally)
    if len(cells) > 1:
        yield from together(cells)


def figures_of(case: str, name: str, tally: Tally) -> Iterator[Row]:
    """What a contender gave at a link."""
    yield summarise(tally.rates, bench=BENCH, case=case, contender=name, metric="tokens a second", unit="tokens/s")
    if not tally.figures:
        return
    rounds = sum(each.rounds for each in tally.figures)
    given = sum(each.accepted + each.corrected + each.bonus for each in tally.figures)
    yield one(case, name, "by the server alone", "tokens", float(sum(each.remote for each in tally.figures)))
    if rounds:
        yield one(case, name, "tokens a round", "tokens", given / rounds)


def together(cells: Cells) -> Iterator[Row]:
    """All links, of the contenders that were in time at each."""
    timely = [in_time(tallies) for _, tallies in cells]
    names = [name for name in (*FIXED, *CHOSEN) if all(name in each for each in timely)]
    means = {name: statistics.fmean(each[name].rate / each["server alone"].rate for each in timely) for name in names}
    case = f"{cells[0][0].partition(':')[0]}: {len(cells)} links together"
    for name, mean in means.items():
        yield one(case, name, "mean of tokens/s relative to the server alone", "times", mean)
    yield from compared(case, means, "the best single fixed one")


def compared(case: str, rates: Mapping[str, float], said: str) -> Iterator[Row]:
    """What the policies give of the best fixed window's rate; nothing if there is no fixed window. ``said``: how that window is called."""
    best = max((name for name in FIXED if name in rates), key=rates.__getitem__, default=None)
    if best is not None:
        for name in (name for name in CHOSEN if name in rates):
            yield one(case, name, f"{METRIC} {said}, {best}", "times", rates[name] / rates[best])


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of a single figure."""
    return Row(BENCH, case, name, metric, unit, value, value, value)


def run_recorded(
    contenders: Mapping[str, Speculate | None],
    links: Sequence[Link],
    *,
    law: DeviceLaw,
    prompts: int,
    clients: int,
    tokens: int,
    speed: str,
    side_by_side: int,
    kept: Path | None = None,
) -> Iterator[tuple[Link, dict[str, Tally]]]:
    """Link by link: what each contender's clients did, who share the prompts out.

    Raises:
        SystemExit: too few prompts, or an answer that isn't the recorded one.
    """
    records = load_records(prompts + WARM_UPS, tokens, DRAFT, kept)
    warm_ups, counted = records[:WARM_UPS], records[WARM_UPS:]
    with ProcessPoolExecutor(side_by_side, mp_context=get_context("spawn")) as pool:
        running: dict[tuple[Link, str], list[Future[Tally]]] = {}
        for link, number, (name, setting) in product(links, range(clients), contenders.items()):
            if setting is None and number:
                continue  # the server learns nothing: one client is enough
            client = RecordedClient(
                name=name,
                setting=setting,
                link=link,
                warm_ups=warm_ups,
                records=counted[number::clients],
                tokens=tokens,
                law=law,
                speed=speed,
            )
            running.setdefault((link, name), []).append(pool.submit(_run, client))
        try:
            for link in links:
                tallies = {name: sum((each.result() for each in running[link, name]), Tally()) for name in contenders}
                yield link, tallies
        finally:
            pool.shutdown(cancel_futures=True)


async def _measure_law() -> DeviceLaw:
    options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=HELD_SEQUENCES)
    with closing(await asyncio.to_thread(LlamaEngine, model_file(DRAFT), options)) as engine:
        times = await measure_step_times(engine, engine.tokenize(PROMPTS[0]))
    return DeviceLaw(step_times=times, seconds_per_token=READING * times[0])


def _run(job: RecordedClient) -> Tally:
    return asyncio.run(_answer_all(job))


async def _answer_all(job: RecordedClient) -> Tally:
    tally = Tally()
    serving = ("--model", str(served_model()), "--model-name", "large", "--threads", "1", "--context", str(CONTEXT), "--exact")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running_server(*serving, "--port", "0", "--step-times", job.speed))
        rtt, mbps = job.link
        proxy = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=rtt, mbps=mbps))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        client = await stack.enter_async_context(_client(job, f"http://127.0.0.1:{proxy.port}/v1"))
        for record in job.warm_ups:
            await measure_answer(client, record, min(job.tokens, WARM_TOKENS))
        before = await read_stats(http, url)
        for record in job.records:
            _count(tally, await measure_answer(client, record, job.tokens), job.name)
        after = await read_stats(http, url)
    tally.verdicts, tally.late = (after[name] - before[name] for name in ("verdicts", "late_verdicts"))
    return tally


@asynccontextmanager
async def _client(job: RecordedClient, address: str) -> AsyncIterator[streamco.Client]:
    server = streamco.OpenAIEndpoint("large", base_url=address, name="server")
    if job.setting is None:
        async with streamco.Client(server=server) as client:
            yield client
        return
    with (
        closing(LlamaEngine(model_file(DRAFT), EngineOptions(threads=1, context_tokens=CONTEXT))) as words,
        closing(RecordedEngine(words, [*job.warm_ups, *job.records], job.law)) as engine,
    ):
        tuning = changed(job.setting.tuning, last_patience=PATIENCE, first_verdict_timeout=60.0, verdict_timeout=30.0)
        setting = changed(job.setting, patience=PATIENCE, tuning=tuning)
        async with streamco.Client(streamco.DeviceEndpoint(engine), server, mode=setting) as client:
            if client.unspeculated:
                raise SystemExit(f"{job.name}: expected a client that drafts, got: {client.unspeculated}")
            yield client


def _count(tally: Tally, job: MeasuredAnswer, name: str) -> None:
    if not job.is_as_recorded:
        raise SystemExit(f"{name}: expected the recorded answer, got another one")
    tally.seconds.append(job.last - job.began)
    tally.tokens.append(job.tokens)
    tally.first.append(job.first - job.began)
    tally.gaps += job.gaps
    if job.figures is not None:
        tally.figures.append(job.figures)


if __name__ == "__main__":
    sys.exit(main())
