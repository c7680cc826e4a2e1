"""Does ``Auto`` with weights cost less than any single mode, on all workloads together and on each?

A client answers requests in virtual time with one device and one service: a live client's dispatcher, learners, race and speculation
machines, and its choice by weights. The answers are those of ``bench.papers.gate``: their lengths, how sure the device's model was, and
whether its answer was good (rated leniently, ``bench.papers.gate.ratings``); a server's counts as good. One question of five was rated
before, which is where the gate's score and the device's quality come from. All contenders begin without any measured time, and meet the
same requests and the same times of the service.

A workload is a service, a device, a reader, and what the three things are worth:

- services: three of DiSCo's, and a server of one's own (Together's first tokens and prices, 20 tokens/s) that verifies drafts;
- devices: a phone of DiSCo's, and a laptop (1,000 and 80 tokens/s);
- a *reader* reads the answer as it comes; a *program* waits for the whole answer;
- *hasty*: a second is worth 1 cent, and a good answer 0.2 cents; *thrifty*: 0.01 and 0.05 cents; *choosy*: 0.1 and 2 cents.

The cost of an answer is what the weights make of the seconds that were waited, the dollars that were spent, energy included, and of the
quality that was lost by a bad answer.

``python -m bench.papers.gate.planner --update PAGE`` puts the tables between the marks of a page; ``--quick`` takes few questions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, geometric_mean
from typing import NamedTuple

from bench.papers.gate.ratings import good_answers
from bench.papers.gate.recording import Answer, read_answers
from bench.papers.gate.split import fold_of
from bench.tables import show_tables
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.core.answer_times import AnswerTimes
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.policies.cost import RATE_SERVER_CONSTRAINED, device_costs
from streamco.policies.mode_switch import predict_rates
from streamco.policies.quality import MAX_TOKENS, AnswerFacts, LearnedScore
from streamco.policies.ways import Reading, Way, WayChooser, Weights
from streamco.profiles import DeviceSpeed, Prices, Profile
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.race.client import RequestDraw, SimulatedClient
from streamco.sim.race.endpoints import SimulatedAnswer
from streamco.sim.race.services import PHONES, PackagedService, Phone, Reply, price_of
from streamco.sim.single.answer import simulate_answer
from streamco.sim.single.faulty_verifier import FaultyLink, VerifyingServer

__all__ = ["MODES", "WEIGHTS", "Workload", "main", "play", "workloads"]

WEIGHTS: Mapping[str, Weights] = {
    "hasty": Weights(time=0.01, money=1.0, quality=0.002),
    "thrifty": Weights(time=0.0001, money=1.0, quality=0.0005),
    "choosy": Weights(time=0.001, money=1.0, quality=0.02),
}
SERVICES = ("openai-gpt-4-1106-preview", "azure-gpt-4-1106-preview", "groq-llama-2-70b-chat")
OWN = "own server"
_OWN_TIMES, _OWN_RATE = "together-llama-2-70b-chat", 20.0  # tokens per second
_PHONE = PHONES["xiaomi14-qwen-0.5b"]
DEVICES: Mapping[str, Phone] = {
    "phone": _PHONE,
    "laptop": Phone(speed=DeviceSpeed(seconds_per_token=0.001, overhead=0.02, decode_tokens_per_s=80.0), shape=_PHONE.shape),
}
PLANNER = "planner"
MODES: Mapping[str, DispatchOptions | None] = {
    "device alone": DispatchOptions(policy="device-first"),
    "server alone": DispatchOptions(policy="server-first"),
    "race": DispatchOptions(policy="both"),
    "race, budget 0.3": DispatchOptions(),
    "gated race, budget 0.3": DispatchOptions(quality="gate"),
    "speculate": None,
    PLANNER: DispatchOptions(quality="gate"),
}
_BUDGETS = {"race, budget 0.3": 0.3, "gated race, budget 0.3": 0.3}
_READS = 4.8  # tokens per second
_ACCEPTED = 0.75  # drafted tokens that the target would have written, on the mean
_MAX_TOKENS = 128
_RATED = 0  # the fold that was rated before


class Workload(NamedTuple):
    """A service, a device, a reader and the weights."""

    service: str
    device: str
    reader: str
    weights: str

    @property
    def can_verify(self) -> bool:
        """The server verifies drafts."""
        return self.service == OWN


class Outcome(NamedTuple):
    """One answer: the weighted cost, and how it was made."""

    cost: float
    way: str


class _Made(NamedTuple):
    """What an answer was like.

    Args:
        first, whole: seconds to its first and to its last token.
        dollars: energy included.
        by_device: the device wrote it alone.
    """

    first: float
    whole: float
    dollars: float
    by_device: bool


class _OwnService:
    """A server with the first tokens of a recorded service and a rate of its own."""

    def __init__(self) -> None:
        self._times = PackagedService.load(_OWN_TIMES)

    def draw(self, rng: Random) -> Reply:
        return self._times.draw(rng)._replace(rate=_OWN_RATE)


class _Text:
    """What a draft model foresees of an answer."""

    def __init__(self, seed: str, tokens: int) -> None:
        rng = Random(f"text {seed}")
        self._target: list[Mapping[int, float]] = []
        self._draft: list[DraftToken] = []
        for place in range(tokens + 64):
            right, wrong = 2 * place + 1, 2 * place + 2
            chance = rng.betavariate(4 * _ACCEPTED, 4 * (1 - _ACCEPTED))
            chosen, sure = right if rng.random() < chance else wrong, min(0.99, max(0.05, chance))
            self._target.append({right: 1.0})
            self._draft.append(DraftToken(chosen, sure, ((chosen, sure), (right + wrong - chosen, 1.0 - sure))))

    def target(self, ids: Sequence[int]) -> Mapping[int, float]:
        return self._target[len(ids)]

    def draft(self, ids: Sequence[int]) -> Mapping[int, float]:
        return dict(self.write(ids).alternatives)

    def write(self, ids: Sequence[int]) -> DraftToken:
        return self._draft[min(len(ids), len(self._draft) - 1)]


class _Speculation:
    """A pair that speculates, with what a client's planner knows of it."""

    def __init__(self, phone: Phone, prices: Prices) -> None:
        self._phone, self._prices = phone, prices
        self._estimates = SpeculationEstimates(prior=EstimatesPrior())
        self._times = AnswerTimes()
        assert phone.shape is not None, "its energy is known"
        self._costs = device_costs(phone.shape, exchange_rate=RATE_SERVER_CONSTRAINED)
        self._device, self._computed = 1.0, 1.0  # tokens that both sides computed for one of the answer, in the last one

    def forecast(self, draw: RequestDraw, reading: Reading) -> Way:
        """As ``SpeculationPlanner`` has it."""
        rate = self._times.rate(predict_rates(self._estimates.conditions()).best)
        dollars, energy = self._spent(draw.answer.prompt_tokens, reading.tokens * self._device, reading.tokens * self._computed)
        return Way(
            name="speculate",
            first_word=self._times.first_word(draw.answer.prompt_tokens),
            late=reading.late(rate),
            rate=rate,
            dollars=dollars,
            energy_usd=energy,
            quality=1.0,
            measured=("speculate",),
        )

    def run(self, draw: RequestDraw) -> _Made:
        """Make one answer."""
        phone, answer, text = self._phone.speed, draw.answer, _Text(draw.seed, draw.answer.made)
        device = DraftingDevice(
            model=text.draft,
            writes=text.write,
            step_times=tuple((1.0 + 0.15 * row) / (phone.decode_tokens_per_s or 1.0) for row in range(6)),
            prompt_time=phone.ttft(answer.prompt_tokens),
        )
        server = VerifyingServer(model=text.target, step=1.0 / _OWN_RATE, read_time=0.002, prompt_time=draw.reply.first)
        options = SpeculationMachineOptions(max_tokens=answer.made, max_ahead=3)
        outcome = simulate_answer(self._estimates, options, device, server, FaultyLink(rtt=0.03), seed=len(draw.seed))
        assert outcome is not None, "it ends"
        first = outcome.reader.times[0]
        self._times.observe(answer.prompt_tokens, answer.made, first=first, span=outcome.reader.times[-1] - first)
        report = outcome.report
        self._device, self._computed = outcome.made / answer.made, report.target_tokens / answer.made
        return _Made(first, outcome.reader.times[-1], sum(self._spent(answer.prompt_tokens, outcome.made, report.target_tokens)), False)

    def _spent(self, prompt: int, drafted: float, computed: float) -> tuple[float, float]:
        money = prompt * self._prices.prompt + computed * self._prices.completion
        return money, prompt * self._costs.prompt + drafted * self._costs.completion


def workloads() -> list[Workload]:
    """Return all workloads."""
    return [Workload(*each) for each in product((*SERVICES, OWN), DEVICES, ("reader", "program"), WEIGHTS)]


def play(answers: Sequence[Answer], good: Sequence[bool], workload: Workload, mode: str) -> Iterator[Outcome]:
    """Yield the outcome of each answer that wasn't rated before, made in one mode or as planned."""
    weights, phone, options = WEIGHTS[workload.weights], DEVICES[workload.device], MODES[mode]
    service = _OwnService() if workload.can_verify else PackagedService.load(workload.service)
    prices = price_of(_OWN_TIMES if workload.can_verify else workload.service)
    rated = [fold_of(each.task, each.question) == _RATED for each in answers]
    learned = LearnedScore()
    for answer, is_good in [(answer, is_good) for answer, is_good, is_rated in zip(answers, good, rated, strict=True) if is_rated]:
        learned.observe(_facts(answer), is_good)
    dispatcher = Dispatcher(
        options or DispatchOptions(), budget=_BUDGETS.get(mode, 1.0), profile=Profile(ratings=tuple(learned.examples)), seed=1
    )
    client = SimulatedClient(
        dispatcher,
        phone.speed,
        prices=prices,
        shape=phone.shape,
        exchange_rate=RATE_SERVER_CONSTRAINED,
        pace=None,
        burst=_MAX_TOKENS,
    )
    chooser, speculation, is_streamed = WayChooser(weights), _Speculation(phone, prices), workload.reader == "reader"
    stream = [(answer, is_good) for answer, is_good, is_rated in zip(answers, good, rated, strict=True) if not is_rated]
    for number, (answer, is_good) in enumerate(Random(workload.service).sample(stream, len(stream))):
        rng = Random(f"{workload.service} {answer.task} {answer.question}")
        length = SimulatedAnswer(prompt_tokens=answer.prompt_tokens, tokens=len(answer.told), probabilities=answer.told[:MAX_TOKENS])
        draw = RequestDraw(length, service.draw(rng), f"{workload.service} {number}")
        way, asked, measured = "", None, set[str]()
        if mode == PLANNER:
            ways = client.forecast(draw, weights, MigrationOptions(), is_streamed=is_streamed)
            tokens = dispatcher.expected_tokens(None)
            drafts = [speculation.forecast(draw, Reading(tokens, _READS, is_streamed))] if workload.can_verify else []
            way = chooser.choose([*(each for each, _ in ways), *drafts]).way
            asked = next((each for _, each in ways if each.name == way), None)
        if mode == "speculate" or way == "speculate":
            made, measured = speculation.run(draw), {"speculate"}
        else:
            outcome = client.run(draw, asked)
            assert outcome.cost is not None, "prices and shape are known"
            made = _Made(outcome.ttft, outcome.seconds, outcome.cost, outcome.machine.winner == "device")
            measured = {each.source for each in outcome.machine.attempts.values() if each.opened is not None}
            if made.by_device and dispatcher.grader is not None:
                dispatcher.grader.learned.observe(_facts(answer), is_good)
        chooser.record(measured)
        late = 0.0 if is_streamed else made.whole - made.first
        if is_streamed:
            late = max(0.0, made.whole - made.first - len(answer.told) / _READS)
        lost = (weights.quality or 0.0) * (made.by_device and not is_good)
        yield Outcome((weights.time or 0.0) * (made.first + late) + (weights.money or 0.0) * made.dollars + lost, way)


def _facts(answer: Answer) -> AnswerFacts:
    return AnswerFacts(
        probabilities=answer.told[:MAX_TOKENS], is_complete=len(answer.told) <= MAX_TOKENS, prompt_tokens=answer.prompt_tokens, task=None
    )


def tables(found: Mapping[Workload, Mapping[str, Sequence[Outcome]]]) -> Mapping[str, str]:
    """Return the tables: all workloads together, and each."""
    singles = [mode for mode in MODES if mode != PLANNER]
    means = {load: {mode: fmean(each.cost for each in outcomes) for mode, outcomes in made.items()} for load, made in found.items()}
    lines = ["| mode | workloads | mean cost, cents | planner's, same workloads | geometric mean of its ratios |", "|---|--:|--:|--:|--:|"]
    for mode in singles:
        able = [made for made in means.values() if mode in made]
        mean, planned = (fmean(made[which] for made in able) for which in (mode, PLANNER))
        ratio = geometric_mean([made[PLANNER] / made[mode] for made in able])
        lines.append(f"| {mode} | {len(able)} | {100 * mean:.3f} | {100 * planned:.3f} | {ratio:.3f} |")
    rows = ["| workload | best single mode | its cost, cents | planner | ratio | ways |", "|---|---|--:|--:|--:|---|"]
    for load, made in means.items():
        best = min((mode for mode in singles if mode in made), key=lambda mode: made[mode])
        ways = Counter(each.way for each in found[load][PLANNER])
        shares = ", ".join(f"{way} {count / ways.total():.0%}" for way, count in ways.most_common(3))
        name = f"{load.service}, {load.device}, {load.reader}, {load.weights}"
        rows.append(
            f"| {name} | {best} | {100 * made[best]:.4f} | {100 * made[PLANNER]:.4f} | {made[PLANNER] / made[best]:.3f} | {shares} |"
        )
    ratios = [made[PLANNER] / min(made[mode] for mode in singles if mode in made) for made in means.values()]
    lines.append("")
    lines.append(
        f"Beside the best single mode of each workload: {geometric_mean(ratios):.3f} as geometric mean, {max(ratios):.3f} at most, "
        f"below 1 in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)}."
    )
    return {"planner": "\n".join(lines), "planner workloads": "\n".join(rows)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables between the marks of this page")
    parser.add_argument("--quick", action="store_true", help="a quarter of the questions, and hasty and choosy readers alone")
    options = parser.parse_args(arguments)
    answers = read_answers()
    good = good_answers(answers)["rated leniently"]
    if options.quick:
        answers, good = answers[::4], good[::4]
    found: dict[Workload, dict[str, list[Outcome]]] = {}
    for load in workloads():
        if options.quick and (load.reader, load.weights) not in {("reader", "hasty"), ("program", "choosy")}:
            continue
        modes = [mode for mode in MODES if mode != "speculate" or load.can_verify]
        found[load] = {mode: list(play(answers, good, load, mode)) for mode in modes}
    show_tables(tables(found), options.update)


if __name__ == "__main__":
    main()
