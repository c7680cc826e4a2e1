"""The choice between ways to make an answer, and the forecasts that it is made by."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.cost import RequestCost
from streamco.policies.dispatch import Decision
from streamco.policies.ways import (
    MAX_AGE,
    GateOutlook,
    Reading,
    SideTerms,
    Way,
    WayChooser,
    Weights,
    forecast_race,
    least_score,
    race_way,
)
from streamco.profiles import DeviceSpeed, TTFTDistribution

BOTH = Decision(0.0, 0.0, "both", "")
DEVICE_FIRST = Decision(0.0, None, "device-first", "")
SERVER_FIRST = Decision(None, 0.0, "server-first", "")
SPEED = DeviceSpeed(seconds_per_token=0.01, overhead=0.0)
TIMES = TTFTDistribution.from_samples([0.5, 1.5])
FREE = RequestCost(server=0.0, device_joules=0.0, device=0.0, total=0.0)
NUMBERS = st.floats(0.0, 100.0)


def way(name: str, first_word: float | None = 1.0, **options: Any) -> Way:
    options.setdefault("measured", (name,))
    return Way(name=name, first_word=first_word, **options)


def forecast(decision: Decision, *, prompt: int = 100, **options: Any) -> Any:
    return forecast_race(decision, device=SPEED, server=TIMES, prompt_tokens=prompt, **options)


# What a way costs


def test_the_cost_is_what_the_weights_make_of_seconds_dollars_and_quality() -> None:
    each = way("device", 2.0, late=3.0, dollars=0.5, energy_usd=0.25, quality=0.4)
    assert each.weigh(Weights(time=1.0)) == pytest.approx(5.0)
    assert each.weigh(Weights(money=10.0)) == pytest.approx(7.5)
    assert each.weigh(Weights(quality=100.0)) == pytest.approx(-40.0)
    assert each.weigh(Weights(1.0, 10.0, 100.0)) == pytest.approx(-27.5)


def test_what_isnt_known_counts_as_nothing_but_for_a_first_word_that_counts() -> None:
    unknown = Way(name="device")
    assert unknown.weigh(Weights(money=1.0, quality=1.0)) == 0.0
    assert unknown.weigh(Weights(time=1.0)) is None
    assert unknown.weigh(Weights(time=1.0), at_once=True) == 0.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "much"])
@pytest.mark.parametrize("name", ["time", "money", "quality"])
def test_weights_are_finite_and_not_below_0(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"auto: {name}: expected a finite number of 0 or more, or None, got "):
        Weights(**{name: value})


def test_one_weight_counts() -> None:
    with pytest.raises(ConfigError, match="at least one of time, money and quality above 0"):
        Weights(time=0.0, money=0)


def test_a_reader_waits_for_text_that_is_slower_than_they_read_and_a_program_for_all_of_it() -> None:
    assert Reading(100, 5.0, is_streamed=True).late(20.0) == 0.0
    assert Reading(100, 5.0, is_streamed=True).late(2.0) == pytest.approx(30.0)
    assert Reading(100, 5.0, is_streamed=False).late(20.0) == pytest.approx(5.0)
    assert Reading(100, 5.0, is_streamed=False).late(None) == 0.0


# What is expected of a decision


def test_one_side_alone() -> None:
    assert forecast(DEVICE_FIRST) == (1.0, 1.0, 0.0, 1.0, 0.0)
    assert forecast(SERVER_FIRST) == (1.0, 0.0, 0.0, 0.0, 1.0)
    assert forecast(DEVICE_FIRST, queue=2.0).first_word == pytest.approx(3.0)


def test_the_first_of_two_wins() -> None:
    first = forecast(BOTH)  # the device after 1 s; the server after 0.5 or 1.5 s
    assert first == pytest.approx((0.75, 0.5, 0.0, 1.0, 1.0))
    assert forecast(BOTH, prompt=10) == pytest.approx((0.1, 1.0, 0.0, 1.0, 1.0))


def test_a_side_that_would_start_after_the_others_first_token_does_no_work() -> None:
    assert forecast(Decision(0.0, 2.0, "own", "")) == (1.0, 1.0, 0.0, 1.0, 0.0)
    late = forecast(Decision(1.0, 0.0, "own", ""))  # half of the server's answers have begun by then
    assert late == pytest.approx((1.0, 0.0, 0.0, 0.5, 1.0))


def test_nothing_is_expected_of_two_sides_of_which_one_isnt_known() -> None:
    assert forecast_race(BOTH, device=None, server=TIMES, prompt_tokens=1) is None
    assert forecast_race(BOTH, device=SPEED, server=None, prompt_tokens=1) is None
    assert forecast_race(DEVICE_FIRST, device=SPEED, server=None, prompt_tokens=1) is not None


def test_who_writes_alone_is_known_before_their_time_is() -> None:
    assert forecast_race(DEVICE_FIRST, device=None, server=TIMES, prompt_tokens=1) == (None, 1.0, 0.0, 1.0, 0.0)
    assert forecast_race(SERVER_FIRST, device=SPEED, server=None, prompt_tokens=1) == (None, 0.0, 0.0, 0.0, 1.0)


def test_a_server_that_sometimes_never_answers_counts_as_slow() -> None:
    times = TTFTDistribution([1.0], [0.25])
    found = forecast_race(SERVER_FIRST, device=None, server=times, prompt_tokens=1)
    assert found is not None
    assert found.first_word == pytest.approx(0.75 * 1.0 + 0.25 * 60.0)


def test_a_gate_asks_the_server_after_the_score_if_the_device_is_unsure() -> None:
    gate = GateOutlook(sure=0.75, tokens=11, max_wait=5.0)
    found = forecast(DEVICE_FIRST, gate=gate, rate=10.0)  # 1 s to the first token, 1 s for ten more, then 1 s of the server
    assert found == pytest.approx((2.0 + 0.25 * 1.0, 0.75, 0.0, 1.0, 0.25))


def test_a_device_that_is_unsure_is_shown_if_the_server_is_later_than_the_reader_waits() -> None:
    gate = GateOutlook(sure=0.75, tokens=11, max_wait=1.0)  # half of the server's answers take 1.5 s
    assert forecast(DEVICE_FIRST, gate=gate, rate=10.0) == pytest.approx((2.0 + 0.25 * 0.75, 0.875, 0.125, 1.0, 0.25))


@given(NUMBERS, NUMBERS, st.lists(st.floats(0.0, 50.0), min_size=1, max_size=5), st.integers(1, 500), NUMBERS)
def test_a_race_is_never_later_than_each_side_alone(
    device_wait: float, server_wait: float, times: list[float], prompt: int, queue: float
) -> None:
    options: dict[str, Any] = {
        "device": SPEED,
        "server": TTFTDistribution.from_samples(times),
        "prompt_tokens": prompt,
        "queue": queue,
    }
    race = forecast_race(Decision(device_wait, server_wait, "own", ""), **options)
    decisions = (Decision(device_wait, None, "own", ""), Decision(None, server_wait, "own", ""))
    alone = [forecast_race(decision, **options) for decision in decisions]
    assert race is not None
    assert race.first_word is not None
    firsts = [each.first_word for each in alone if each is not None]
    assert all(first is not None and race.first_word <= first + 1e-9 for first in firsts)
    assert all(-1e-9 <= share <= 1.0 + 1e-9 for share in race[1:])
    assert race.by_device <= race.device_starts + 1e-9
    assert 1.0 - race.by_device <= race.server_starts + 1e-9


# What it costs


def side(quality: float | None, *, dollars: float = 0.0, joules: float = 0.0, rate: float = 10.0) -> SideTerms:
    cost = RequestCost(server=dollars, device_joules=joules, device=joules / 100, total=None)
    return SideTerms(rate=rate, late=1.0, quality=quality, prompt=cost, completion=cost)


def test_a_way_costs_what_each_side_is_expected_to_do() -> None:
    device, server = side(0.4, joules=2.0, rate=20.0), side(1.0, dollars=0.1)
    found = race_way("race", forecast(BOTH), device, server)
    assert found.dollars == pytest.approx(0.1 + 0.05)
    assert found.joules == pytest.approx(2.0 + 1.0)
    assert found.energy_usd == pytest.approx(0.03)
    assert found.quality == pytest.approx(0.7)
    assert found.rate == pytest.approx(1 / (0.5 / 20 + 0.5 / 10))
    assert race_way("server", forecast(SERVER_FIRST), device, server).joules == 0.0


def test_answers_that_a_gate_lets_through_have_a_quality_of_their_own() -> None:
    gate = GateOutlook(sure=0.5, tokens=1, max_wait=1.0, sure_score=0.8, unsure_score=0.1)
    found = race_way("gated race", forecast(DEVICE_FIRST, gate=gate), side(0.4), side(1.0), gate)
    assert found.quality == pytest.approx(0.5 * 0.8 + 0.25 * 0.1 + 0.25 * 1.0)
    declared = race_way("gated race", forecast(DEVICE_FIRST, gate=gate), side(0.2), side(0.5), gate)  # a score is a share of the server's
    assert declared.quality == pytest.approx(0.5 * (0.5 * 0.8 + 0.25 * 0.1 + 0.25 * 1.0))


def test_a_quality_that_isnt_known_isnt_made_up() -> None:
    assert race_way("race", forecast(BOTH), side(None), side(1.0)).quality is None
    assert race_way("server", forecast(SERVER_FIRST), side(None), side(1.0)).quality == 1.0
    assert race_way("race", None, side(None), side(1.0)).quality is None
    assert race_way("race", None, side(0.4), side(1.0)).quality == 1.0  # at best


def test_a_way_of_which_nothing_is_known_has_no_cost_whatever_counts() -> None:
    unknown = race_way("race", None, side(0.4), side(1.0, dollars=1.0))
    assert [unknown.weigh(weights) for weights in (Weights(time=1.0), Weights(money=1.0), Weights(quality=1.0))] == [None] * 3
    assert unknown.weigh(Weights(money=1.0, quality=2.0), at_once=True) == -2.0
    alone = race_way("server", forecast_race(SERVER_FIRST, device=None, server=None, prompt_tokens=1), side(0.4), side(1.0, dollars=1.0))
    assert alone.weigh(Weights(money=1.0)) == 2.0


def test_a_devices_answer_is_shown_from_the_score_on_at_which_the_servers_isnt_worth_its_price() -> None:
    device, server = side(0.4), side(1.0, dollars=0.1)
    assert least_score(Weights(quality=1.0), device, server, TIMES) == pytest.approx(1.0)
    assert least_score(Weights(money=1.0, quality=1.0), device, server, TIMES) == pytest.approx(0.8)
    assert least_score(Weights(time=0.5, quality=1.0), device, server, TIMES) == pytest.approx(0.5)
    assert least_score(Weights(time=10.0, quality=1.0), device, server, TIMES) == 0.0
    assert least_score(Weights(money=1.0, quality=1.0), device, side(0.5, dollars=0.1), TIMES) == pytest.approx(0.6)


# The choice


def test_the_cheapest_way_that_is_open_goes() -> None:
    chooser = WayChooser(Weights(time=1.0))
    ways = [way("device", 2.0), way("server", 1.0, obstacle="it rests"), way("race", 1.5)]
    for _ in range(3):
        assert measure(chooser, *ways) == "race"
    chooser.record({"device"})
    choice = chooser.choose(ways)
    assert choice.reason == "costs 1.5 by the weights, device 2"
    assert [each.cost for each in choice.ways] == [2.0, None, 1.5]


def test_a_client_that_knows_nothing_begins_with_a_race() -> None:
    chooser = WayChooser(Weights(time=1.0))
    ways = [way("device", None), way("server", None), way("race", None, is_unknown=True)]
    assert [chooser.choose(ways).way for _ in range(4)] == ["race", "device", "server", "race"]
    assert chooser.choose([way("device", None), way("server", None)])[::2] == ("device", "nothing is known yet")


def measure(chooser: WayChooser, *ways: Way, **options: Any) -> str:
    """The way that is chosen, which is measured then."""
    found = chooser.choose(ways, **options).way
    chooser.record(next(each.measured for each in ways if each.name == found))
    return found


def test_a_way_that_nothing_is_known_of_is_tried_less_and_less_often() -> None:
    chooser = WayChooser(Weights(time=1.0))
    tried = [measure(chooser, way("device"), way("speculate", None)) == "speculate" for _ in range(400)]
    places = [place for place, was in enumerate(tried) if was]
    assert places[:5] == [0, 2, 5, 12, 27]
    assert {later - place for place, later in pairwise(places[5:])} == {MAX_AGE}


def test_a_way_that_could_not_be_the_cheapest_is_never_tried() -> None:
    chooser = WayChooser(Weights(time=1.0, money=1.0))
    assert {measure(chooser, way("device", 1.0), way("server", None, dollars=2.0)) for _ in range(200)} == {"device"}


def test_a_way_that_has_become_better_is_found_again() -> None:
    chooser = WayChooser(Weights(time=1.0))
    for _ in range(20):
        measure(chooser, way("device", 1.0), way("server", 1.1))
    known, count = 5.0, 0
    while known > 1.0:  # the server has become fast; it is known after one answer of it
        known = 0.1 if measure(chooser, way("device", 1.0), way("server", known)) == "server" else known
        count += 1
    assert count <= 4.0 / 0.02 + MAX_AGE


def test_what_was_chosen_and_not_asked_stays_old() -> None:
    chooser = WayChooser(Weights(time=1.0))
    gated, server = way("gated race", 1.0, measured=("device", "server")), way("server", 1.05)
    found = Counter[str]()
    for _ in range(500):
        found[chooser.choose([gated, server]).way] += 1
        chooser.record({"device"})  # the device was sure
    assert found["server"] >= 8


def test_a_gated_race_is_tried_if_no_other_way_measures_the_server() -> None:
    chooser = WayChooser(Weights(time=1.0, quality=1.0))
    unknown = Way(name="gated race", quality=1.0, measured=("device", "server"), is_unknown=True)
    assert measure(chooser, way("device", 1.0, quality=0.5), unknown) == "gated race"
    other = WayChooser(Weights(time=1.0, quality=1.0))
    assert measure(other, way("device", 1.0, quality=0.5), way("server", 9.0, quality=0.0), unknown) != "gated race"


def test_an_answer_whose_way_turned_out_to_be_closed_counts_once() -> None:
    chooser, other = WayChooser(Weights(time=1.0)), WayChooser(Weights(time=1.0))
    for each in (chooser, other):
        for _ in range(10):
            each.choose([way("device", 1.0), way("server", 3.0)])
    other.choose([way("device", 1.0)], is_again=True)
    assert (chooser._count, chooser._credit) == (other._count, other._credit)


@given(st.integers(0, 2**32), st.floats(0.1, 3.0))
def test_tries_cost_2_percent_at_most(seed: int, weight: float) -> None:
    rng, chooser = Random(seed), WayChooser(Weights(time=weight, quality=0.5))
    spent = best = 0.0
    for _ in range(300):
        ways = [way(name, rng.uniform(0.1, 5.0), quality=rng.random()) for name in ("device", "server", "speculate")]
        choice = chooser.choose(ways)
        chooser.record({choice.way})
        costs = {each.name: each.cost for each in choice.ways}
        assert all(cost is not None for cost in costs.values())
        highest = 0.5 * max(each.quality or 0.0 for each in ways)
        spent += costs[choice.way] + highest  # type: ignore[operator]
        best += min(cost for cost in costs.values() if cost is not None) + highest
    assert spent <= 1.02 * best + 1e-9


def test_a_race_isnt_tried_because_its_parts_are_measured_elsewhere() -> None:
    chooser = WayChooser(Weights(time=1.0))
    race = way("race", 3.0, measured=("device", "server"))
    assert {measure(chooser, way("device", 1.0), race) for _ in range(200)} == {"device"}


# The budget


def known(name: str, first_word: float, **options: Any) -> Way:
    """A way that is never tried."""
    return way(name, first_word, measured=(), **options)


@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6])
def test_the_budget_goes_to_the_answers_that_gain_most(budget: float) -> None:
    rng, chooser = Random(1), WayChooser(Weights(time=1.0))
    gains: list[tuple[float, bool]] = []
    for _ in range(2000):
        gain = rng.uniform(0.0, 10.0)
        choice = chooser.choose([known("device", 10.0), known("server", 10.0 - gain, spends=100.0)], prompt_tokens=100, budget=budget)
        gains.append((gain, choice.way == "server"))
    used = [gain for gain, was in gains[300:] if was]
    assert len(used) / len(gains[300:]) == pytest.approx(budget, abs=0.03)
    assert min(used) > 10.0 * (1.0 - budget) - 1.5
    assert "the budget is for answers that gain more" in choice.reason or choice.way == "server"


def test_without_a_budget_tokens_have_no_price() -> None:
    chooser = WayChooser(Weights(time=1.0))
    for gain in (5.0, 0.1, 5.0, 0.1):
        assert chooser.choose([known("device", 10.0), known("server", 10.0 - gain, spends=100.0)], prompt_tokens=100).way == "server"


def test_a_way_that_is_closed_by_the_budget_still_says_what_a_token_is_worth() -> None:
    chooser, closed = WayChooser(Weights(time=1.0)), "the budget is spent"
    for _ in range(50):
        ways = [known("device", 10.0), known("server", 1.0, spends=100.0, obstacle=closed)]
        assert chooser.choose(ways, prompt_tokens=100, budget=0.3).way == "device"
    ways = [known("device", 10.0), known("server", 9.0, spends=100.0)]
    assert chooser.choose(ways, prompt_tokens=100, budget=0.3).way == "device"  # the budget is for those that gain 9 s


@pytest.mark.parametrize("cost", [0.1, 0.0003, 1 / 3, 7.1])
def test_the_budget_is_used_if_all_answers_gain_the_same(cost: float) -> None:
    chooser = WayChooser(Weights(time=cost, quality=0.7))
    ways = [known("device", 0.31, quality=0.1), known("server", 0.17, quality=0.2, spends=37.0)]
    for _ in range(100):
        assert chooser.choose(ways, prompt_tokens=37, budget=0.3).way == "server"  # until the budget itself closes it
