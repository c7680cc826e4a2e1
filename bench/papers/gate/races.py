"""What does a quality gate do to races: how soon does the first word come, who answers, and how good is the answer?

The client is a live one's dispatcher and race machine in virtual time; the services are DiSCo's, the device is its Xiaomi 14 with a 0.5B
model. The answers are those of ``recorded.jsonl.gz``: their lengths, the device's own probabilities of its first tokens, and both models'
scores. Each answer comes once in each of three orders. All contenders meet the same answers and the same times of the service.

``python -m bench.papers.gate.races --update PAGE`` puts the tables between the marks of a page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from bench.papers.gate.recording import Answer, read_answers
from bench.tables import show_tables
from bench.tasks.intervals import draw_weights, interval_of
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.policies.cost import RATE_SERVER_CONSTRAINED
from streamco.policies.quality import Perplexity
from streamco.sim.race.client import RequestDraw, SimulatedClient
from streamco.sim.race.endpoints import SimulatedAnswer
from streamco.sim.race.services import PHONES, PackagedService, price_of

__all__ = ["CONTENDERS", "Outcome", "main", "play", "quality_table", "times_table"]

SERVICES = ("openai-gpt-4-1106-preview", "azure-gpt-4-1106-preview", "together-llama-2-70b-chat", "groq-llama-2-70b-chat")
PHONE = "xiaomi14-qwen-0.5b"
BUDGET = 0.3
ORDERS = 3
WARM_UP = 60
_LIMIT = 128


def _gated(tokens: int) -> DispatchOptions:
    return DispatchOptions(quality=QualityGate(score=Perplexity(), tokens=tokens))


CONTENDERS: Mapping[str, DispatchOptions] = {
    "server alone": DispatchOptions(policy="server-only"),
    "race without a gate": DispatchOptions(),
    **{f"gate, {tokens} token{'s' * (tokens > 1)}": _gated(tokens) for tokens in (1, 4, 8, 16)},
}


class Outcome(NamedTuple):
    """One answer.

    Args:
        answer: what was recorded of it.
        way: who answered: "device", "server at once", or "server after the score".
        first: seconds to the first word.
        asked: a server was asked.
    """

    answer: Answer
    way: str
    first: float
    asked: bool

    @property
    def quality(self) -> float:
        """The score of the answer that was shown."""
        return self.answer.device if self.way == "device" else self.answer.server


def play(answers: Sequence[Answer], options: DispatchOptions, service: PackagedService, seed: str) -> Iterator[Outcome]:
    """Yield the outcome of each answer, in an order of its own, after some that the client only learns from."""
    prices, phone = price_of(service.profile.name), PHONES[PHONE]
    dispatcher = Dispatcher(options, budget=BUDGET, seed=1)
    client = SimulatedClient(
        dispatcher, phone.speed, prices=prices, shape=phone.shape, exchange_rate=RATE_SERVER_CONSTRAINED, pace=None, burst=_LIMIT
    )
    order = Random(seed).sample(answers, len(answers))
    for number, answer in enumerate([*order[-WARM_UP:], *order]):
        rng = Random(f"{seed} {answer.task} {answer.question} {number < WARM_UP}")
        length = SimulatedAnswer(prompt_tokens=answer.prompt_tokens, tokens=len(answer.told), probabilities=answer.told[:16])
        outcome = client.run(RequestDraw(length, service.draw(rng), f"{seed} {number}"))
        if number >= WARM_UP:
            gate = outcome.machine.gate
            by_server = outcome.machine.winner == "server"
            way = "device" if not by_server else "server after the score" if gate is not None and gate.asked else "server at once"
            yield Outcome(answer, way, outcome.ttft, outcome.server.read > 0)


def times_table(found: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> Iterator[str]:
    """Yield the lines of the table of first words: for each service and contender, median and 95th percentile, by who answered."""
    ways = ("device", "server at once", "server after the score")
    yield f"| service | | server asked, of answers | of prompt tokens | first word: all | {' | '.join(ways)} |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for service, contenders in found.items():
        for name, outcomes in contenders.items():
            tokens = sum(each.answer.prompt_tokens for each in outcomes)
            spent = sum(each.answer.prompt_tokens for each in outcomes if each.asked)
            cells = [_times([each.first for each in outcomes])]
            for way in ways:
                chosen = [each.first for each in outcomes if each.way == way]
                cells.append(f"{_times(chosen)} ({len(chosen) / len(outcomes):.0%})" if chosen else "-")
            share = sum(each.asked for each in outcomes) / len(outcomes)
            yield f"| {service} | {name} | {share:.2f} | {spent / tokens:.2f} | {' | '.join(cells)} |"


def _times(seconds: Sequence[float]) -> str:
    return f"{np.quantile(seconds, 0.5):.2f}, {np.quantile(seconds, 0.95):.2f}"


def quality_table(found: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> Iterator[str]:
    """Yield the lines of the table of quality, all services together: each contender's, and less that of a race without a gate, by task."""
    contenders = {name: [outcome for each in found.values() for outcome in each[name]] for name in next(iter(found.values()))}
    tasks = sorted({each.answer.task for each in next(iter(contenders.values()))})
    plain = _by_question(contenders["race without a gate"])
    yield f"| | answers by the server | quality | less the race's without a gate | {' | '.join(tasks)} |"
    yield f"|---|--:|--:|--:|{'--:|' * len(tasks)}"
    for name, outcomes in contenders.items():
        mean = _by_question(outcomes)
        questions = list(mean)
        gains = np.array([mean[each] - plain[each] for each in questions])
        parts = [np.array([task == each[0] for each in questions]) for task in tasks]
        by_server = sum(each.way != "device" for each in outcomes) / len(outcomes)
        cells = [_gain(gains), *(_gain(gains[part]) for part in parts)]
        yield f"| {name} | {by_server:.2f} | {np.mean(list(mean.values())):.3f} | {' | '.join(cells)} |"


def _by_question(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for each in outcomes:
        found.setdefault((each.answer.task, each.answer.question), []).append(each.quality)
    return {question: float(np.mean(values)) for question, values in sorted(found.items())}


def _gain(gains: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    weights = draw_weights(len(gains), np.random.default_rng(1))
    return interval_of(weights @ gains / weights.sum(axis=1)).show(3, sign="+")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables between the marks of this page")
    options = parser.parse_args(arguments)
    answers = read_answers()
    found: dict[str, dict[str, list[Outcome]]] = {}
    for name in SERVICES:
        service = PackagedService.load(name)
        found[name] = {
            contender: [each for order in range(ORDERS) for each in play(answers, made, service, f"{name} {order}")]
            for contender, made in CONTENDERS.items()
        }
    tables = {"gate times": "\n".join(times_table(found)), "gate quality": "\n".join(quality_table(found))}
    show_tables(tables, options.update)


if __name__ == "__main__":
    main()
