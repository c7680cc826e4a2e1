"""The budget of races with a quality gate, whose threshold and score are learned while it is spent."""

from __future__ import annotations

import random

import pytest

from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.policies.cost import RATE_SERVER_CONSTRAINED
from streamco.policies.quality import AnswerFacts, Perplexity
from streamco.sim.race.client import RaceOutcome, RequestDraw, SimulatedClient
from streamco.sim.race.endpoints import SimulatedAnswer
from streamco.sim.race.services import PHONES, PRICES, Reply

WINDOW = 500
GATES = {
    "a score of one's own, threshold found": QualityGate(score=Perplexity()),
    "nothing is good enough": QualityGate(min_score=1.0),
    "learned": QualityGate(),
}


def play(gate: QualityGate, budget: float, seed: int, count: int, burst: int) -> list[RaceOutcome]:
    """Answers one after the other, some of them at once, with prompts and scores that change half way; the device's are rated."""
    rng, phone = random.Random(seed), PHONES["xiaomi14-qwen-0.5b"]
    dispatcher = Dispatcher(DispatchOptions(quality=gate, burst=burst), budget=budget, seed=seed)
    prices = PRICES["gpt-4o-mini"]
    client = SimulatedClient(
        dispatcher, phone.speed, prices=prices, shape=phone.shape, exchange_rate=RATE_SERVER_CONSTRAINED, pace=None, burst=64
    )
    outcomes: list[RaceOutcome] = []
    while len(outcomes) < count:
        late = len(outcomes) > count // 2
        draws = []
        for number in range(rng.choice([1, 1, 1, 4])):
            tokens = int(rng.lognormvariate(5.5 if late else 4.0, 0.9)) + 1
            sure = rng.betavariate(2, 5) if late else rng.betavariate(5, 2)
            answer = SimulatedAnswer(prompt_tokens=tokens, tokens=rng.randint(1, 40), probabilities=(sure,) * 16)
            draws.append(RequestDraw(answer, Reply(rng.uniform(0.1, 3.0), 0.1, 60.0), f"{seed} {len(outcomes)} {number}"))
        for outcome in client.run_arriving([(0.01 * number, draw) for number, draw in enumerate(draws)]):
            outcomes.append(outcome)
            given = outcome.draw.answer
            if outcome.machine.winner == "device" and dispatcher.grader is not None:
                facts = AnswerFacts(probabilities=given.probabilities, is_complete=given.tokens <= 16, prompt_tokens=given.prompt_tokens)
                dispatcher.grader.learned.observe(facts, rng.random() < given.probabilities[0])
    return outcomes[:count]


@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("name", GATES)
def test_the_share_of_the_servers_keeps_its_bounds(name: str, budget: float) -> None:
    outcomes = play(GATES[name], budget, seed=round(100 * budget), count=1100, burst=0)
    counted = [(each.draw.answer.prompt_tokens, each.server.read > 0) for each in outcomes if not each.dispatched.is_exempt]
    assert len(counted) == len(outcomes)
    spent = [tokens * is_spent for tokens, is_spent in counted]
    for end in range(WINDOW, len(counted) + 1):
        total = sum(tokens for tokens, _ in counted[:end])
        assert sum(spent[:end]) <= (budget + 0.01) * total, end
        window = counted[end - WINDOW : end]
        assert sum(spent[end - WINDOW : end]) <= (budget + 0.05) * sum(tokens for tokens, _ in window), end
    asked = [each for each in outcomes if each.machine.gate is not None and each.machine.gate.asked]
    assert asked  # the gate has spent a part of it
    assert any(each.server.read and each not in asked for each in outcomes)  # and the plan another one


def test_all_reservations_of_a_gate_are_settled_once() -> None:
    outcomes = play(GATES["nothing is good enough"], 0.3, seed=7, count=200, burst=4096)
    parts = [each.dispatched.gate_reservation for each in outcomes]
    assert all(part is not None and part.is_settled for part in parts)
