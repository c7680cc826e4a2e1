"""The rate of arrivals, called directly with now=."""

from __future__ import annotations

import random

import pytest

from streamco.core.arrival_rate import ArrivalRate
from streamco.core.meter import FRAME

PAUSE = 0.4


def test_the_rate_of_even_text_and_of_regular_bursts_is_exact() -> None:
    even, bursts = ArrivalRate(pause=PAUSE), ArrivalRate(pause=PAUSE)
    assert (even.rate, even.interval) == (0, 0)
    for number in range(100):
        even.record(1, held=0.0, now=number * 0.02)
        bursts.record(8, held=0.0, now=number * 0.2)
    assert [even.rate, even.burst, even.interval] == pytest.approx([50, 1, 0.02])
    assert [bursts.rate, bursts.burst, bursts.interval] == pytest.approx([40, 8, 0.2])


def test_what_comes_at_one_time_is_one_burst_though_it_comes_in_parts() -> None:
    parts = ArrivalRate(pause=PAUSE)
    for number in range(30):
        for _ in range(4):
            parts.record(2, held=0.0, now=number * 0.1)
    assert [parts.rate, parts.burst] == pytest.approx([80, 8])


def test_the_rate_is_that_of_the_last_second() -> None:
    arrivals = ArrivalRate(pause=PAUSE)
    for number in range(20):
        arrivals.record(1, held=0.0, now=number * 0.2)
    for number in range(60):
        arrivals.record(1, held=0.0, now=4 + number * 0.02)
    assert arrivals.rate == pytest.approx(50, rel=0.02)


def test_after_a_pause_that_no_delay_could_bridge_the_rate_is_not_known() -> None:
    arrivals = ArrivalRate(pause=PAUSE)
    for number in range(20):
        assert arrivals.record(1, held=0.0, now=number * 0.02) is (number == 0)
    assert arrivals.rate > 0
    assert arrivals.record(1, held=0.0, now=0.38 + PAUSE + 0.01)
    assert arrivals.rate == 0


def test_the_smaller_of_the_rates_without_the_oldest_and_without_the_newest_text_counts() -> None:
    growing, shrinking = ArrivalRate(pause=PAUSE), ArrivalRate(pause=PAUSE)
    for now, many, few in ((0.0, 1, 8), (0.1, 8, 1)):
        growing.record(many, held=0.0, now=now)
        shrinking.record(few, held=0.0, now=now)
    assert growing.rate == shrinking.rate == pytest.approx(10)


def test_what_stands_is_the_least_that_was_held_lately() -> None:
    arrivals = ArrivalRate(pause=PAUSE)
    for number, held in enumerate([0.0, 5.0, 3.0, 4.0]):
        arrivals.record(8, held=held, now=number * 0.1)
    assert arrivals.standing == 0
    arrivals.record(8, held=6.0, now=0.45)
    assert arrivals.standing == 3
    arrivals.record(8, held=0.0, now=0.5)
    assert arrivals.standing == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_stands_is_the_minimum_of_the_last_arrivals_whatever_they_are(seed: int) -> None:
    rng, arrivals, now = random.Random(seed), ArrivalRate(pause=PAUSE), 0.0
    seen = list[tuple[float, float]]()
    for _ in range(300):
        now += rng.choice([0.0, 0.001, 0.02, 0.3]) * rng.random()
        seen.append((now, rng.choice([0.0, rng.uniform(0, 20)])))
        arrivals.record(rng.randint(1, 9), held=seen[-1][1], now=now)
        assert arrivals.standing == min(held for time, held in seen if time >= now - PAUSE)


def slots_of(seen: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The arrivals since the last pause, those within a frame together."""
    slots = list[list[tuple[float, float]]]()
    for time, amount in seen:
        if slots and time - slots[-1][-1][0] > PAUSE:
            slots.clear()
        if not slots or time - slots[-1][0][0] > FRAME:
            slots.append([])
        slots[-1].append((time, amount))
    return slots


@pytest.mark.parametrize("seed", range(20))
def test_the_figures_are_those_of_the_last_second_whatever_came(seed: int) -> None:
    rng, arrivals, now = random.Random(seed), ArrivalRate(pause=PAUSE), 0.0
    seen = list[tuple[float, float]]()
    for _ in range(200):
        now += rng.choice([0.0, 0.001, 0.02, 0.2, 0.5]) * rng.random()
        seen.append((now, rng.randint(1, 9)))
        arrivals.record(seen[-1][1], held=0.0, now=now)
        oldest, *later = [slot for slot in slots_of(seen) if slot[-1][0] >= now - 1.0]
        if not later:
            assert arrivals.rate == 0
            continue
        amount = sum(each for slot in later for _, each in slot)
        without_newest = sum(each for slot in [oldest, *later[:-1]] for _, each in slot)
        times = len({time for slot in later for time, _ in slot})
        rates = amount / (now - oldest[-1][0]), without_newest / (later[-1][0][0] - oldest[0][0])
        assert arrivals.rate == pytest.approx(min(rates))
        assert [arrivals.burst, arrivals.interval] == pytest.approx([amount / times, (now - oldest[-1][0]) / times])
