"""What does speculation give beside the stream of a 70B model, with the tokens of a real pair: chains, and trees?

The tokens are those of Qwen2.5-Coder 0.5B and 1.5B: at each position of the 1.5B's greedy answers it was recorded where its token stands
among the 0.5B's choices, and how likely these were (``bench/data/pair_ranks.jsonl``). Both models are replayed, in imposed times: the
server takes those of Llama-2-70B on two A100, the device those of the 0.5B in Q4_0 on one core of an AMD EPYC. So neither needs a core for
itself, and nothing has to be fetched. All else is what users run: client, policies, protocol, scheduler, sockets and time, over an emulated
link of 10 Mbps. A contender with more than 2 % of late rounds is left out.

Each contender has a client and a server of its own, and answers all prompts of a class in turn; what it learns of the pair it keeps. Server
and device have read a prompt before, as in ``bench.timed.pair``. With ``--unread 600`` they have not, and it has so many words: then the
first word waits for the slower of the two, if the stream doesn't begin.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from urllib.parse import urlsplit

import aiohttp

import streamco
from bench.counted.trees import CHOICES, Recorded, read_recorded
from bench.report import Row, add_arguments, emit
from bench.timed.fidelity_live import DeviceLaw
from bench.timed.speculate import LARGE, UNADAPTIVE, Link, Tally, in_time, read_stats, say, tuned
from streamco import Speculate
from streamco.client.modes.speculation.verifier_binding import HELD_SEQUENCES
from streamco.emulation.profiles import load_step_times
from streamco.engines.base import GenerationRequest
from streamco.server.app import serving
from streamco.testing import FakeEngine, LinkProxy
from streamco.testing.engine import FakeVocabulary

__all__ = ["Contender", "Replay", "answer_all", "main", "rows_of"]

RTTS = (10.0, 30.0, 60.0)  # milliseconds
MBPS = 10.0
TOKENS = 64
WARM_UPS = 2  # answers of each client before those that count
SIDE_BY_SIDE = 4  # clients
CONTEXT = 4096  # tokens
VOCABULARY = 2048  # words
PROMPT_WORDS = 60
LAW = DeviceLaw(step_times=(0.0140, 0.0404, 0.0545, 0.0545, 0.0677, 0.0677), seconds_per_token=0.0056)
"""Of the 0.5B in Q4_0 on one core of an AMD EPYC, as ``EngineOptions(measure_rows=True)`` measures it."""
STREAM = "stream"
SETTINGS: Mapping[str, Speculate | None] = {
    STREAM: None,
    "streamco": Speculate(),
    "streamco, chains": Speculate(tuning=streamco.verifiers.SpeculationTuning(has_trees=False)),
    "always drafts, trees": UNADAPTIVE,
    "always drafts, chains": tuned(has_trees=False),
}
UNREAD: Mapping[str, Speculate | None] = {
    STREAM: None,
    "streamco": Speculate(),
    "the stream never begins": Speculate(tuning=streamco.verifiers.SpeculationTuning(may_begin_by_stream=False)),
}


class Replay:
    """Recorded answers as two models of one vocabulary: the words of an answer are ``t0``, ``t1``, ..., the other choices are ``o0``, ...

    Args:
        answers: the answers; a prompt begins with the number of its answer.
        words: words of a prompt.
    """

    def __init__(self, answers: Sequence[Recorded], words: int = PROMPT_WORDS) -> None:
        self.answers = answers
        self.words = words
        self.vocabulary = FakeVocabulary("replay", VOCABULARY)
        self._words = [self.vocabulary.id_of(f" t{place}") for place in range(max(len(each.ranks) for each in answers))]
        self._others = [self.vocabulary.id_of(f" o{rank}") for rank in range(CHOICES)]
        self._end = VOCABULARY - 1
        self._numbers: dict[int, tuple[int, int]] = {}  # by the first id of a prompt: number and length

    def prompt(self, number: int) -> str:
        """Return the prompt of an answer."""
        return " ".join([f"p{number}", *["word"] * self.words])

    def read_prompts(self, engine: FakeEngine) -> None:
        """Learn how the engine's chat template puts the prompts."""
        for number in range(len(self.answers)):
            ids = engine.tokenize(engine.apply_template([{"role": "user", "content": self.prompt(number)}]))
            self._numbers[ids[1]] = (number, len(ids))  # the first one is the role's

    def position(self, ids: Sequence[int]) -> tuple[Recorded, int]:
        """Return the answer that these ids are of, and how many of its tokens they have."""
        number, length = self._numbers[ids[1]]
        return self.answers[number], len(ids) - length

    def target(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Return the target's next token, as a distribution."""
        answer, place = self.position(ids)
        return {self._words[place] if place < len(answer.ranks) else self._end: 1.0}

    def draft(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Return the draft model's next token: what it said in this place after the target's tokens, whatever stands before it now."""
        answer, place = self.position(ids)
        if place >= len(answer.ranks):
            return {self._end: 1.0}
        chosen = {
            self._words[place] if rank == answer.ranks[place] else self._others[rank]: share
            for rank, share in enumerate(answer.shares[place])
            if share
        }
        return chosen or {self._others[0]: 1.0}

    def pieces(self, request: GenerationRequest) -> list[str]:
        """Return what the target's stream has still to say."""
        answer, place = self.position(request.prompt_ids)
        return [f" t{each}" for each in range(place, len(answer.ranks))]


@dataclass(frozen=True, slots=True)
class Contender:
    """A client with a server of its own.

    Args:
        setting: how it drafts; None: the stream alone.
        link: round-trip time in seconds, megabits a second.
        answers: what is replayed; the first ones don't count.
        unread: words of prompts that neither side has read; None: both have read them.
    """

    setting: Speculate | None
    link: Link
    answers: Sequence[Recorded]
    unread: int | None = None


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, metavar="N", help="the first N of each class (default: all, with --quick 2)")
    parser.add_argument(
        "--rtt-ms", type=float, nargs="+", metavar="MS", help="round trips of the links (default: 10 30 60, with --quick 30)"
    )
    parser.add_argument("--unread", type=int, metavar="WORDS", help="prompts of so many words that neither side has read")
    parser.add_argument("--clients", type=int, default=SIDE_BY_SIDE, metavar="N", help="run so many at once (default: %(default)s)")
    options = parser.parse_args()
    count = options.prompts or (2 if options.quick else None)
    recorded = read_recorded()
    classes = {
        task: [each for each in recorded if each.task == task][: None if count is None else count + WARM_UPS]
        for task in dict.fromkeys(each.task for each in recorded)
    }
    emit(run(classes, _links(options), options.clients, options.unread), options.json)
    return 0


def _links(options: argparse.Namespace) -> list[Link]:
    return [(rtt / 1000, MBPS) for rtt in options.rtt_ms or ((30.0,) if options.quick else RTTS)]


def run(classes: Mapping[str, Sequence[Recorded]], links: Sequence[Link], side_by_side: int, unread: int | None = None) -> list[Row]:
    """Run every contender on every class and link; return the rows."""
    settings = SETTINGS if unread is None else UNREAD
    with ProcessPoolExecutor(side_by_side, mp_context=get_context("spawn")) as pool:
        running: dict[tuple[Link, str, str], Future[Tally]] = {
            (link, task, name): pool.submit(_answer, Contender(setting, link, answers, unread))
            for link, (task, answers), (name, setting) in product(links, classes.items(), settings.items())
        }
        rows: list[Row] = []
        prompts = "" if unread is None else f" of {unread} words, unread"
        for link in links:
            every = {name: Tally() for name in settings}
            for task, answers in classes.items():
                tallies = {name: running[link, task, name].result() for name in settings}
                every = {name: every[name] + tallies[name] for name in settings}
                rows += rows_of(f"{task}, {len(answers) - WARM_UPS} prompts{prompts}, RTT {1000 * link[0]:g} ms", tallies)
                print(f"{task}, RTT {1000 * link[0]:g} ms", file=sys.stderr, flush=True)
            rows += rows_of(f"all{prompts}, RTT {1000 * link[0]:g} ms", every)
    return rows


def _answer(contender: Contender) -> Tally:
    return asyncio.run(answer_all(contender))


async def answer_all(contender: Contender) -> Tally:
    """Return what a contender did, and how many of its rounds were late.

    Raises:
        SystemExit: an answer has another length than the recorded one.
    """
    replay, tally = Replay(contender.answers, contender.unread or PROMPT_WORDS), Tally()
    times = load_step_times(LARGE)
    read_s = times(1, 0) if contender.unread is None else times(0, contender.unread)
    make = partial(FakeEngine, mode="thread", vocabulary=replay.vocabulary, context_tokens=CONTEXT, held_sequences=HELD_SEQUENCES)
    target = make(replay.pieces, successor=replay.target, step_time=times, prefill_s=read_s / replay.words, token_s=times(1, 0))
    device = make(successor=replay.draft, step_time=LAW)
    replay.read_prompts(target)
    rtt, mbps = contender.link
    async with AsyncExitStack() as stack:
        stack.callback(target.close)
        stack.callback(device.close)
        url = await stack.enter_async_context(serving(target))
        proxy = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=rtt, mbps=mbps))
        server = streamco.OpenAIEndpoint(target.info.name, base_url=f"http://127.0.0.1:{proxy.port}/v1", name="server")
        reader, client = (
            streamco.Client(server=server) if setting is None else streamco.Client(streamco.DeviceEndpoint(device), server, mode=setting)
            for setting in (UNADAPTIVE, contender.setting)
        )
        await stack.enter_async_context(reader)
        await stack.enter_async_context(client)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for number in range(WARM_UPS):
            await say(client, replay.prompt(number), TOKENS, 0.0, Tally())
        for number in range(WARM_UPS, len(contender.answers)):
            if contender.unread is None:
                await say(reader, replay.prompt(number), 2, 0.0, Tally())  # both sides read the prompt
            before = await read_stats(http, url)
            await say(client, replay.prompt(number), TOKENS, 0.0, tally)
            after = await read_stats(http, url)
            tally.verdicts += after["verdicts"] - before["verdicts"]
            tally.late += after["late_verdicts"] - before["late_verdicts"]
    expected = [min(TOKENS, len(answer.ranks)) for answer in contender.answers[WARM_UPS:]]
    if tally.tokens != expected:
        raise SystemExit(f"expected answers of {expected} tokens, got {tally.tokens}")
    return tally


def rows_of(case: str, tallies: Mapping[str, Tally]) -> list[Row]:
    """Return rates, ratios and what rounds gave; of contenders with late rounds the share of these alone."""
    rows = [
        _one(case, name, "rounds that took longer than imposed", "share", tally.late / tally.verdicts)
        for name, tally in tallies.items()
        if tally.verdicts
    ]
    for name, tally in in_time(tallies).items():
        rows.append(_one(case, name, "rate", "tokens/s", tally.rate))
        rows.append(_one(case, name, "to the first token, median", "s", statistics.median(tally.first)))
        if name == STREAM:
            continue
        rounds = max(1, sum(each.rounds for each in tally.figures))
        made = sum(each.accepted + each.corrected + each.bonus for each in tally.figures)
        hits = sum((each.hit_rate or 0.0) * each.rounds for each in tally.figures)
        rows += [
            _one(case, name, "rate over the stream's", "x", tally.rate / tallies[STREAM].rate),
            _one(case, name, "tokens a round", "tokens", made / rounds),
            _one(case, name, "branch adopted", "share", hits / rounds),
            _one(case, name, "tokens by the stream", "share", sum(each.remote for each in tally.figures) / sum(tally.tokens)),
        ]
    return rows


def _one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    return Row("imposed", case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    sys.exit(main())
