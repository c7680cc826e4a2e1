"""What does a real pair give on six tasks: quality, the server's tokens, tokens a second and joules, all of the same live answers?

The pair, the machine and the server are those of ``pair``. Questions come from six tasks (GSM8K, HumanEval, CommonsenseQA, SST-2,
CNN/DailyMail, XSum), the tasks in turns, and all contenders answer each question greedily, in turns. ``default``: every draft is verified,
so texts are the server's own but for near ties. ``half of the drafts``: the same with ``budget=0.5``, so the client chooses what the server
verifies. ``as before`` drafts chunks of four and chooses with both of Synera's filters, for which its device reads attention, and accepts a
token that the server finds at least 0.3 as likely as its own choice.

The server's tokens are counted for each token of the answers, joules for each answer (the device's, measured where the system measures
them, otherwise estimated; the same for all contenders). A row's least and most are the bounds of 95 % of draws of questions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import numpy as np

import streamco
from bench.report import Row, add_arguments, emit
from bench.tasks.intervals import draw_weights, interval_of
from bench.tasks.questions import Question, questions_in_turns
from bench.timed.pair import WARM_UPS, Site, drafting_engine, model_of, pair_site
from streamco import Speculate
from streamco.engines.llama import LlamaEngine

BENCH = "pair_tasks"
TASKS = ("gsm8k", "humaneval", "csqa", "sst2", "cnndm", "xsum")
SERVER, DEVICE, DEFAULT, BEFORE = "server alone", "device alone", "default", "half of the drafts, as before"
CONTEXT = 2048
MODES: Mapping[str, Speculate] = {
    DEFAULT: Speculate(),
    "half of the drafts": Speculate(budget=0.5),
    BEFORE: Speculate(budget=0.5, window=4, offload="combined", threshold=0.3),
}


class Answer(NamedTuple):
    """One answer: its score, its tokens and the server's, seconds, and joules of the device."""

    score: float
    tokens: int
    computed: int
    seconds: float
    joules: float


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--items", type=int, default=8, metavar="N", help="questions of each task (default: %(default)s)")
    options = parser.parse_args()
    questions = list(questions_in_turns(dict.fromkeys(TASKS, 1 if options.quick else options.items)))
    answers = asyncio.run(measure(questions))
    emit(list(rows_of(f"{len(questions)} questions of six tasks", answers)), options.json, against=SERVER)


async def measure(questions: Sequence[Question]) -> dict[str, list[Answer]]:
    """Return the answers of every contender, which answer each question in turns."""
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(pair_site(context=CONTEXT))
        engines = {BEFORE: await stack.enter_async_context(drafting_engine(model_of("0.5B", "Q4_0"), CONTEXT, budget=0.5))}
        names = (SERVER, DEVICE, *MODES)
        clients = {name: await stack.enter_async_context(client_of(name, site, engines.get(name, site.engine))) for name in names}
        for client in clients.values():
            for prompt in WARM_UPS:
                await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], max_tokens=64, temperature=0.0)
        answers: dict[str, list[Answer]] = {name: [] for name in clients}
        for turn, question in enumerate(questions):
            print(f"{question.task} {turn + 1} of {len(questions)}", file=sys.stderr, flush=True)
            for name in (SERVER, DEVICE):
                await ask(clients[name], question, 2)  # both sides have read the question before the first turn
            order = list(clients)
            for name in (*order[turn % len(order) :], *order[: turn % len(order)]):
                answers[name].append(await ask(clients[name], question, question.max_tokens))
        return answers


@asynccontextmanager
async def client_of(name: str, site: Site, engine: LlamaEngine) -> AsyncIterator[streamco.Client]:
    """A client of one contender."""
    device, server = streamco.DeviceEndpoint(engine), streamco.OpenAIEndpoint("large", base_url=site.url, name="server")
    mode = MODES.get(name)
    if mode is not None:
        client = streamco.Client(device, server, mode=mode)
    else:
        client = streamco.Client(server=server) if name == SERVER else streamco.Client(device)
    async with client:
        yield client


async def ask(client: streamco.Client, question: Question, tokens: int) -> Answer:
    """Answer a question and score the text."""
    began = time.perf_counter()
    async with client.stream(question.messages, max_tokens=tokens, temperature=0.0) as stream:
        text = "".join([token.text async for token in stream])
    seconds = time.perf_counter() - began
    report, count = stream.report, stream.usage.completion_tokens
    alone = count if stream.report.endpoints[0].kind == "server" else 0
    computed = alone if report.speculation is None else report.speculation.target_tokens
    return Answer(question.score(text), count, computed, seconds, report.energy_j or 0.0)


METRICS: Mapping[tuple[str, str], tuple[Callable[[Answer], float], Callable[[Answer], float]]] = {
    ("score", "of 1"): (lambda each: each.score, lambda _: 1.0),
    ("server's tokens", "a token"): (lambda each: each.computed, lambda each: each.tokens),
    ("rate", "tokens/s"): (lambda each: each.tokens, lambda each: each.seconds),
    ("energy of the device", "J an answer"): (lambda each: each.joules, lambda _: 1.0),
}


def rows_of(case: str, answers: Mapping[str, Sequence[Answer]]) -> list[Row]:
    """Return each metric of each contender with its interval; the questions are drawn alike for all contenders."""
    rows = []
    weights = draw_weights(len(next(iter(answers.values()))), np.random.default_rng(1))
    for (metric, unit), (above, below) in METRICS.items():
        for name, found in answers.items():
            drawn = (weights @ np.array([above(each) for each in found])) / (weights @ np.array([below(each) for each in found]))
            value, low, high = interval_of(drawn)
            rows.append(Row(BENCH, case, name, metric, unit, value, low, high))
    return rows


if __name__ == "__main__":
    main()
