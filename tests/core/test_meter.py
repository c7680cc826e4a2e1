"""Quality at the virtual reader."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.meter import FRAME, Meter


def test_before_the_first_token_nothing_is_wrong() -> None:
    quality = Meter(5.0).quality()
    assert (quality.tbt_p50, quality.tbt_p99, quality.delayed_tokens, quality.stalls, quality.score) == (None, None, 0, 0, 1.0)


def test_tokens_in_one_burst_are_read_at_the_readers_pace() -> None:
    meter = Meter(5.0)
    meter.record(50, now=2.0)
    quality = meter.quality()
    assert quality.tbt_p50 == pytest.approx(0.2)
    assert quality.tbt_p99 == pytest.approx(0.2)
    assert quality.delayed_tokens == 0
    assert quality.score == 1.0
    assert (meter.first, meter.last, meter.tokens) == (2.0, 2.0, 50)


def test_a_gap_longer_than_the_buffer_delays_the_tokens_behind_it_until_the_timeline_is_reached() -> None:
    meter = Meter(10.0)
    meter.record(5, now=0.0)  # read until 0.5
    meter.record(10, now=0.85)  # expected at 0.5 ... 1.4: those for 0.5, 0.6, 0.7 and 0.8 are late
    quality = meter.quality()
    assert quality.delayed_tokens == 4
    assert quality.stalls == 1
    assert quality.tbt_p99 == pytest.approx(0.45)
    assert 0 < quality.score < 1


def test_a_timers_lateness_is_no_delay() -> None:
    meter = Meter(10.0)
    for index in range(100):
        meter.record(1, now=index * 0.1 + (0.002 if index else 0.0))
    quality = meter.quality()
    assert (quality.delayed_tokens, quality.stalls) == (0, 0)
    assert quality.tbt_p99 == pytest.approx(0.1, abs=0.0021)


def test_measured_gaps_are_those_of_the_deliveries_and_not_of_the_reader() -> None:
    meter = Meter(4.8)
    for index in range(101):
        meter.record(1, now=index * 0.04)
    quality = meter.quality()
    assert quality.gap_p50 == pytest.approx(0.04)
    assert quality.gap_p99 == pytest.approx(0.04)
    assert quality.tbt_p50 == pytest.approx(1 / 4.8)


def test_every_wait_of_its_own_is_a_stall() -> None:
    meter = Meter(10.0)
    for time in (0.0, 0.25, 0.26, 0.27, 0.6):
        meter.record(1, now=time)
    assert meter.quality().stalls == 2


def test_an_answer_that_is_always_late_scores_low() -> None:
    slow, slower = Meter(10.0), Meter(10.0)
    for index in range(100):
        slow.record(1, now=index * 0.2)
        slower.record(1, now=index * 1.0)
    assert slower.quality().score < slow.quality().score < 0.6


@pytest.mark.timeout(20)
def test_a_batch_of_any_size_is_measured_at_once() -> None:
    meter = Meter(10.0)
    meter.record(10**12, now=0.0)
    meter.record(10**12, now=2e11)  # those for 1e11 to 2e11 are late, and the first of them waited longest
    quality = meter.quality()
    assert quality.delayed_tokens == meter.delayed(0) == pytest.approx(10**12, abs=2)
    assert (quality.stalls, quality.gap_p50) == (1, 0.0)
    assert 0.7 < quality.score < 0.9


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), min_size=1, max_size=60), st.floats(0.5, 50))
def test_the_figures_agree_with_a_plain_reading_of_the_definition(arrivals: list[tuple[float, int]], rate: float) -> None:
    meter, now, times = Meter(rate), 0.0, []
    for wait, count in arrivals:
        now += wait
        meter.record(count, now=now)
        times += [now] * count
    seen = [max(time, times[0] + index / rate) for index, time in enumerate(times)]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(seen))
    quality = meter.quality()
    late = [time > times[0] + index / rate + FRAME for index, time in enumerate(times)]
    assert quality.delayed_tokens == sum(late)
    assert quality.stalls == sum(is_late and not before for before, is_late in zip([False, *late], late, strict=False))
    measured = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    if gaps:
        assert quality.gap_p50 == pytest.approx(measured[-(-len(measured) // 2) - 1], abs=1e-6)
        assert quality.gap_p99 == pytest.approx(measured[-(-len(measured) * 99 // 100) - 1], abs=1e-6)
        assert quality.tbt_p50 == pytest.approx(gaps[-(-len(gaps) // 2) - 1], abs=1e-6)
    assert 0 <= quality.score <= 1
