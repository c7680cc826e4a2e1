from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from streamco.sim.experiment.metrics import STANDARD, Quantiles, RequestRow, Sink, round_metric


def row(number: int = 0, **changes: object) -> RequestRow:
    usual = RequestRow(number=number, arrival=float(number), tokens=11, prompt_tokens=5, seconds=2.0, ttft=1.0, tpot=0.1)
    return msgspec.structs.replace(usual, **changes)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e4])
def test_a_quantile_is_within_half_a_per_cent_of_the_one_that_sorting_finds(share: float, scale: float) -> None:
    rng = random.Random(f"{share} {scale}")
    values = sorted(scale * rng.lognormvariate(0.0, 1.0) for _ in range(5000))
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    assert quantiles.quantile(share) == pytest.approx(values[round(share * len(values)) - 1], rel=0.00501)
    assert quantiles.mean == pytest.approx(statistics.fmean(values))


def test_what_is_too_small_or_too_large_for_the_bins_counts_as_their_bound() -> None:
    quantiles = Quantiles()
    for value in (0.0, 1e-9, 1e9):
        quantiles.add(value)
    assert quantiles.quantile(0.5) == pytest.approx(1e-6, rel=0.01)
    assert quantiles.quantile(1.0) == pytest.approx(1e6, rel=0.02)


def test_figures_are_those_of_all_rows_and_no_row_is_kept_unasked() -> None:
    sink = Sink()
    for number in range(4):
        sink(row(number, judged=10, accepted=number, rounds=3))
    assert sink.rows == []
    metrics = sink.metrics()
    assert metrics["completed"] == 4
    assert metrics["span"] == 5.0  # the last arrives at 3 and takes 2
    assert metrics["throughput"] == pytest.approx(4 / 5)
    assert metrics["tokens_per_s"] == pytest.approx(44 / 5)
    assert metrics["acceptance"] == pytest.approx(6 / 40)
    assert metrics["rounds_mean"] == 3
    assert metrics["ttft_mean"] == 1.0
    assert metrics["tpot_p99"] == pytest.approx(0.1, rel=0.005)


def test_a_request_that_failed_is_counted_and_its_times_are_not() -> None:
    sink = Sink()
    sink(row(0))
    sink(row(1, seconds=100.0, ttft=None, tpot=None, failed="the link was lost"))
    metrics = sink.metrics()
    assert (metrics["completed"], metrics["failed"]) == (1, 1)
    assert metrics["seconds_mean"] == 2.0
    assert metrics["span"] == 101.0


def test_what_nothing_was_measured_of_is_not_there() -> None:
    assert Sink().metrics() == {"completed": 0.0, "failed": 0.0, "span": 0.0}
    sink = Sink()
    sink(row(0, tokens=1, tpot=None))
    assert "tpot_mean" not in sink.metrics()
    assert "acceptance" not in sink.metrics()


def test_rows_that_are_kept_have_their_times_rounded_to_microseconds() -> None:
    sink = Sink(keeps=True)
    sink(row(0, arrival=1 / 3, ttft=2 / 3, tpot=None))
    assert sink.rows == [row(0, arrival=0.333333, ttft=0.666667, tpot=None)]


def test_a_row_of_a_kinds_own_is_kept_with_its_fields() -> None:
    class Winning(RequestRow, frozen=True, kw_only=True):
        winner: str

    sink = Sink(keeps=True)
    sink(Winning(number=1, arrival=0.0, tokens=1, prompt_tokens=1, seconds=1.0, ttft=1.0, tpot=None, winner="device"))
    assert b'"winner":"device"' in msgspec.json.encode(sink.rows)


def test_every_figure_of_a_sink_has_a_name_for_people() -> None:
    sink = Sink()
    sink(row(0, judged=1, accepted=1, rounds=1))
    assert set(sink.metrics()) == set(STANDARD)
    assert round_metric(0.1 + 0.2) == 0.3
