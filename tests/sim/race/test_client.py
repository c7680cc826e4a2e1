"""One client between a simulated service and a simulated device: the live dispatcher, learners and session machine."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.core.race.learner import PolicyName
from streamco.endpoints.known_servers.providers import find_provider
from streamco.profiles import Profile
from streamco.sim.race.client import RaceOutcome, RequestDraw, SimulatedClient, draw_request
from streamco.sim.race.endpoints import SimulatedAnswer
from streamco.sim.race.lengths import ALPACA, QuantileLengths
from streamco.sim.race.services import PHONES, PackagedService, Reply, price_of

PHONE = PHONES["xiaomi14-qwen-0.5b"]
SERVICE = PackagedService.load("together-llama-2-70b-chat")
LENGTHS = QuantileLengths(*ALPACA)
PRICES = price_of("gpt-4o-mini")


def client(
    policy: PolicyName = "auto", *, budget: float = 0.3, side: Any = "device", rate: float = 5.0, **settings: Any
) -> SimulatedClient:
    profile = Profile(server_ttft=SERVICE.ttft, device=PHONE.speed, lengths=LENGTHS.prompts, prices=PRICES, shape=PHONE.shape)
    dispatcher = Dispatcher(DispatchOptions(policy=policy, constrained=side, exchange_rate=rate), budget=budget, profile=profile, seed=1)
    return SimulatedClient(dispatcher, PHONE.speed, prices=PRICES, shape=PHONE.shape, exchange_rate=rate, **{"pace": None, **settings})


def draws(count: int) -> list[RequestDraw]:
    return [draw_request(f"test {number}", LENGTHS, SERVICE, 128) for number in range(count)]


def drawn(prompt: int, tokens: int, reply: Reply) -> RequestDraw:
    return RequestDraw(SimulatedAnswer(prompt_tokens=prompt, tokens=tokens), reply, "one")


def metrics(outcome: RaceOutcome) -> tuple[Any, ...]:
    return (
        outcome.machine.winner,
        round(outcome.ttft, 9),
        outcome.cost,
        outcome.device.read,
        outcome.device.made,
        outcome.server.read,
        outcome.server.made,
    )


def test_the_same_seed_throws_the_same_request() -> None:
    assert draws(5) == draws(5)
    assert len({each.answer.prompt_tokens for each in draws(50)}) > 5


@pytest.mark.parametrize("policy", ["auto", "stochastic", "both", "optimal"])
@pytest.mark.parametrize("side", ["device", "server"])
def test_an_answer_in_few_events_comes_to_what_it_comes_to_token_by_token(policy: PolicyName, side: Any) -> None:
    few, many = client(policy, side=side, burst=1 << 20), client(policy, side=side)
    for each in draws(120):
        one, other = few.run(each), many.run(each)
        assert metrics(one) == metrics(other)
        assert one.machine.meter.last == pytest.approx(other.machine.meter.last)
        assert len(one.session.deliveries) <= 3
    assert few.dispatcher.profile() == many.dispatcher.profile()


def test_the_first_token_is_the_sooner_ones() -> None:
    fast, slow = drawn(40, 5, Reply(0.1, 0.1, 50.0)), drawn(4, 5, Reply(9.0, 9.0, 50.0))
    both = client("both", budget=1.0)
    outcome = both.run(fast)
    assert outcome.machine.winner == "server"
    assert outcome.ttft == pytest.approx(0.1)
    outcome = both.run(slow)
    assert outcome.machine.winner == "device"
    assert 0.85 * PHONE.speed.ttft(4) <= outcome.ttft <= 1.3 * PHONE.speed.ttft(4)


def test_what_the_loser_did_is_paid_for() -> None:
    outcome = client("both", budget=1.0).run(drawn(40, 5, Reply(0.2, 0.2, 50.0)))
    assert (outcome.machine.winner, outcome.server.read, outcome.server.made) == ("server", 40, 5)
    assert 0 < outcome.device.read < 40
    alone = 40 * PRICES.prompt + 5 * PRICES.completion
    assert outcome.cost is not None
    assert outcome.cost > alone


def test_an_answer_moves_from_the_dear_device_to_the_cheap_server() -> None:
    long = drawn(10, 120, Reply(3.0, 0.4, 40.0))
    stays, moves = client(budget=1.0), client(budget=1.0, migration=MigrationOptions(unpaced=True), provider=find_provider("vllm"))
    for each in draws(40):
        stays.run(each)
        moves.run(each)
    left, moved = stays.run(long), moves.run(long)
    assert left.machine.winner == moved.machine.winner == "device"
    assert left.ttft == moved.ttft
    assert [(move.source, move.target) for move in moved.machine.hand_overs] == [("device", "server")]
    assert left.cost is not None
    assert moved.cost is not None
    assert moved.cost < 0.7 * left.cost
    assert moved.machine.meter.tokens == 120


def test_a_client_learns_what_it_was_not_told() -> None:
    dispatcher = Dispatcher(DispatchOptions(constrained="device"), budget=0.5, seed=1)
    learner = SimulatedClient(dispatcher, PHONE.speed, prices=None, shape=None, exchange_rate=5.0, pace=None, burst=1 << 20)
    outcome = [learner.run(each) for each in draws(150)]
    assert {each.dispatched.report().policy for each in outcome[:10]} == {"both"}
    assert outcome[-1].dispatched.report().policy == "optimal"
    assert all(each.cost is None for each in outcome)
    known = Profile.from_json(dispatcher.profile())
    assert known.device is not None
    assert known.device.seconds_per_token == pytest.approx(PHONE.speed.seconds_per_token, rel=0.2)
