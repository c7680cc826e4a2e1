"""What does it matter how a client chooses among several verifiers (DSD section 3.4, live)?

Two servers verify for some devices, each of which chooses one of them for each of its answers (``VerifierPool``). One server has other
work: clients that make it read long prompts without end. The routing policies of the client are the contenders: where the fewest
verifications wait by the last verdict (``join-shortest-queue``, the default), the better of two drawn ones, in turns, at random, and always
the first one that works, which here is the busy one.

Models are replayed as in ``bench.imposed``: the tokens of a real pair, the servers' times of Llama-2-70B on two A100, and the device's of a
0.5B. Clients, pool, protocol, schedulers, sockets and time are real. Each contender has servers of its own. A contender with more than 2 %
of late rounds is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import aiohttp

import streamco
from bench.imposed import CONTEXT, LAW, TOKENS, WARM_UPS, Replay
from bench.report import Row, add_arguments, emit
from bench.speculate import LARGE, UNADAPTIVE, Tally, read_stats, say
from bench.trees import Recorded, read_recorded
from streamco.client.speculation.verifier_binding import HELD_SEQUENCES
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.server.app import serving
from streamco.server.profiles import load_step_times
from streamco.testing import FakeEngine

ROUTINGS = ("join-shortest-queue", "power-of-two-choices", "round-robin", "random", "in-order")
CLASS = "humaneval"
DEVICES = 6
BUSY_CLIENTS = 3
BUSY_WORDS = 1200  # of a prompt of the other work, which no one has read
SIDE_BY_SIDE = 2  # contenders at once


@dataclass(slots=True)
class Seen:
    """What the devices of one contender saw together."""

    tally: Tally = field(default_factory=Tally)
    answers: list[int] = field(default_factory=list)  # by server, the busy one first


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, metavar="N", help="answers of each device (default: 12, with --quick 2)")
    parser.add_argument("--clients", type=int, default=BUSY_CLIENTS, metavar="N", help="that keep one server busy (default: %(default)s)")
    options = parser.parse_args()
    count = options.prompts or (2 if options.quick else 12)
    recorded = [each for each in read_recorded() if each.task == CLASS][: count + WARM_UPS]
    with ProcessPoolExecutor(SIDE_BY_SIDE, mp_context=get_context("spawn")) as pool:
        running = {routing: pool.submit(_answer, routing, recorded, options.clients) for routing in ROUTINGS}
        seen = {routing: each.result() for routing, each in running.items()}
    emit(rows_of(f"{DEVICES} devices, two servers, {options.clients} clients keep one busy", seen), options.json)


def _answer(routing: str, answers: Sequence[Recorded], busy: int) -> Seen:
    return asyncio.run(answer_all(routing, answers, busy))


async def answer_all(routing: str, answers: Sequence[Recorded], busy: int) -> Seen:
    """Let every device say every prompt, at the same time as the others."""
    replay, seen, times = Replay(answers), Seen(), load_step_times(LARGE)
    make = partial(FakeEngine, mode="thread", vocabulary=replay.vocabulary, context_tokens=CONTEXT, held_sequences=HELD_SEQUENCES)
    seconds_a_word = times(0, BUSY_WORDS) / BUSY_WORDS
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(2):
            target = make(replay.pieces, successor=replay.target, step_time=times, prefill_s=seconds_a_word, token_s=times(1, 0))
            stack.callback(target.close)
            replay.read_prompts(target)
            urls.append(await stack.enter_async_context(serving(target)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        working = [asyncio.create_task(keep_busy(urls[0], target.info.name, replay, number)) for number in range(busy)]
        for task in working:
            stack.callback(task.cancel)
        before = [await read_stats(http, url) for url in urls]
        await asyncio.gather(
            *(one_device(routing, urls, make(successor=replay.draft, step_time=LAW), replay, seen.tally) for _ in range(DEVICES))
        )
        after = [await read_stats(http, url) for url in urls]
        for task in working:
            if task.done():
                await task  # it failed
    for old, new in zip(before, after, strict=True):
        seen.tally.verdicts += new["verdicts"] - old["verdicts"]
        seen.tally.late += new["late_verdicts"] - old["late_verdicts"]
        seen.answers.append(new["opened"] - old["opened"])
    return seen


async def one_device(routing: str, urls: Sequence[str], device: FakeEngine, replay: Replay, tally: Tally) -> None:
    """Say every prompt; the first ones don't count."""
    try:
        pool = VerifierPool([url.replace("http", "ws", 1).removesuffix("/v1") for url in urls], routing=routing)
        async with streamco.Client(streamco.DeviceEndpoint(device), verifier=pool, mode="speculate", speculation=UNADAPTIVE) as client:
            for number in range(len(replay.answers)):
                await say(client, replay.prompt(number), TOKENS, 0.0, tally if number >= WARM_UPS else Tally())
    finally:
        await asyncio.to_thread(device.close)


async def keep_busy(url: str, model: str, replay: Replay, number: int) -> None:
    """Ask for one token after long prompts without end."""
    async with streamco.Client(server=streamco.OpenAIEndpoint(model, base_url=url, name="server")) as client:
        turn = 0
        while True:
            words = " ".join([f"p{turn % len(replay.answers)}", f"w{number}", f"w{turn}", *["word"] * (BUSY_WORDS - 3)])
            await say(client, words, 1, 0.0, Tally())
            turn += 1


def rows_of(case: str, seen: dict[str, Seen]) -> list[Row]:
    """Return what a token took and where answers went; of contenders with late rounds the share of these alone."""
    rows = []
    for name, each in seen.items():
        tally = each.tally
        rows.append(_one(case, name, "rounds that took longer than imposed", "share", tally.late / max(1, tally.verdicts)))
        if not tally.is_in_time:
            print(f"{name}: {tally.late} of {tally.verdicts} rounds were late", file=sys.stderr)
            continue
        token = [1e3 * seconds / tokens for seconds, tokens in zip(tally.seconds, tally.tokens, strict=True)]
        rows += [
            _one(case, name, "a token, mean of answers", "ms", statistics.mean(token)),
            _one(case, name, "a token, slowest tenth of answers", "ms", sorted(token)[int(0.9 * len(token))]),
            _one(case, name, "sessions at the busy server", "share", each.answers[0] / max(1, sum(each.answers))),
        ]
    return rows


def _one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    return Row("verifier_pool", case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    main()
