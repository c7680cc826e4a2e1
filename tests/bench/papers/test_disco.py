"""DiSCo's evaluation: what the intervals rest on."""

from __future__ import annotations

import numpy as np
import pytest

from bench.counted.dispatch import PHONES, judge, plan_all
from bench.papers.disco_judged import ONE_SIDE, Cut, Drawn, figures_of, interval, median_interval
from bench.traces import Halves
from streamco.policies.dispatch import Side
from streamco.profiles import LengthDistribution

RNG = np.random.default_rng(1)
TRACE = Halves(np.sort(RNG.lognormal(-0.5, 0.6, 60)), RNG.lognormal(-0.5, 0.6, 40))
PROMPTS = Halves(RNG.integers(4, 60, 400), RNG.integers(4, 60, 300))
LENGTHS = LengthDistribution.from_samples(PROMPTS.judged)
DEVICE = PHONES["pixel7-bloom-560m"]


@pytest.mark.parametrize("side", ["device", "server"])
@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
def test_the_first_draw_is_the_recording_itself(side: Side, budget: float) -> None:
    drawn = Drawn.draw(LENGTHS, TRACE.judged, 1, 5)
    for policy in plan_all(TRACE, PROMPTS, DEVICE, budget, side).values():
        means, tails = figures_of(policy, TRACE.judged, LENGTHS, DEVICE, drawn)
        judged = judge(policy, TRACE.judged, LENGTHS, DEVICE, side)
        assert [means[0], tails[0]] == pytest.approx([judged.mean, judged.p99])


def test_a_draw_is_what_judging_the_drawn_rows_gives() -> None:
    drawn = Drawn.draw(LENGTHS, TRACE.judged, 2, 8)
    policy = plan_all(TRACE, PROMPTS, DEVICE, 0.4, "device")["disco"]
    means, tails = figures_of(policy, TRACE.judged, LENGTHS, DEVICE, drawn)
    for number in range(1, 9):
        counts = np.rint(drawn.lengths[number] * PROMPTS.judged.size).astype(int)
        lengths = LengthDistribution.from_samples(np.repeat(LENGTHS.lengths, counts))
        times = np.repeat(TRACE.judged, np.rint(drawn.times[number] * TRACE.judged.size).astype(int))
        judged = judge(policy, times, lengths, DEVICE, "device")
        assert [means[number], tails[number]] == pytest.approx([judged.mean, judged.p99])


def test_draws_are_as_many_rows_as_there_are_and_differ() -> None:
    drawn = Drawn.draw(LENGTHS, TRACE.judged, 3, 50)
    assert drawn.times.sum(axis=1) == pytest.approx(np.ones(51))
    assert drawn.lengths.sum(axis=1) == pytest.approx(np.ones(51))
    assert len({tuple(row) for row in drawn.times}) == 51


def test_an_interval_holds_the_middle_of_what_was_drawn() -> None:
    one, other = Cut(5.0, np.linspace(0.0, 10.0, 1001)), Cut(7.0, np.linspace(2.0, 12.0, 1001))
    assert interval([one]) == pytest.approx((5.0, 0.25, 9.75))
    assert interval([one, other]) == pytest.approx((6.0, 1.25, 10.75))


def test_a_median_of_services_ignores_one_that_stands_apart() -> None:
    flat = np.zeros(1001)
    services = [[Cut(value - 1.0, flat + value - 1.0), Cut(value + 1.0, flat + value + 1.0)] for value in (5.0, 7.0, 80.0)]
    assert median_interval(services) == pytest.approx((7.0, 7.0, 7.0))


@pytest.mark.parametrize(
    ("side", "name", "share"), [("device", "server only", 0.0), ("device", "device only", 1.0), ("server", "device only", 0.0)]
)
def test_a_side_alone_has_its_own_times_and_spends_nothing_of_the_other(side: Side, name: str, share: float) -> None:
    judged = judge(ONE_SIDE[name], TRACE.judged, LENGTHS, DEVICE, side)
    on_device = float(np.mean([DEVICE.ttft(int(length)) for length in PROMPTS.judged]))
    assert judged.mean == pytest.approx(TRACE.judged.mean() if name == "server only" else on_device)
    assert judged.share == share
    drawn = Drawn.draw(LENGTHS, TRACE.judged, 4, 5)
    means, tails = figures_of(ONE_SIDE[name], TRACE.judged, LENGTHS, DEVICE, drawn)
    assert [means[0], tails[0]] == pytest.approx([judged.mean, judged.p99])
