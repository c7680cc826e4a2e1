"""Latency replay: the profile's numbers, and the machine that holds pieces back, called with now=."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from random import Random
from statistics import fmean, median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.emulation.latency_replay import LatencyProfile, LatencyReplay, quantile
from streamco.emulation.profiles import load_latency
from streamco.engines.base import GenerationEnd, GenerationTimings, TextPiece
from streamco.errors import ConfigError
from tests.support.data import data_path

TIMINGS = GenerationTimings(prompt_tokens=1, reused_tokens=0, completion_tokens=1, prefill_s=0.0, decode_s=0.0)
STOP = GenerationEnd("stop", TIMINGS)
FAILED = GenerationEnd("error", TIMINGS, RuntimeError("lost"))


def profile(**changes: object) -> LatencyProfile:
    return msgspec.convert(
        {"name": "made", "source": "here", "license": "MIT", "ttft_s": [1.0], "gap_s": [0.5], **changes}, type=LatencyProfile, strict=False
    )


def pieces(count: int, first: int = 0) -> list[TextPiece]:
    return [TextPiece(f"{number} ", (number,)) for number in range(first, first + count)]


def make_replay(**changes: object) -> LatencyReplay:
    return LatencyReplay(profile(**changes), Random(1), started=10.0)


def texts(popped: tuple[list[TextPiece], GenerationEnd | None]) -> list[str]:
    return [piece.text.strip() for piece in popped[0]]


def test_a_quantile_table_is_read_linearly_between_its_points() -> None:
    assert quantile([0.0, 10.0, 20.0], 0.25) == 5.0
    assert quantile([0.0, 10.0, 20.0], 1.0) == 20.0
    assert quantile([0.0, 10.0, 20.0], 0.0) == 0.0
    assert quantile([7.0], 0.7) == 7.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60).map(sorted), st.floats(0, 1))
def test_a_quantile_lies_within_its_table(table: list[float], share: float) -> None:
    assert table[0] <= quantile(table, share) <= table[-1] + 1e-9


def test_the_first_piece_waits_for_the_sampled_time_to_first_token() -> None:
    replay = make_replay()
    replay.push(pieces(1), None, now=10.1)
    assert replay.due() == 11.0
    assert texts(replay.pop(10.999)) == []
    assert texts(replay.pop(11.0)) == ["0"]


def test_each_later_piece_waits_for_its_gap_though_all_were_ready() -> None:
    replay = make_replay()
    replay.push(pieces(3), STOP, now=10.1)
    assert texts(replay.pop(11.0)) == ["0"]
    assert replay.due() == 11.5
    assert replay.pop(11.4) == ([], None)
    assert texts(replay.pop(11.5)) == ["1"]
    released, end = replay.pop(12.0)
    assert [piece.text for piece in released] == ["2 "]
    assert end is STOP


def test_a_late_timer_does_not_shift_the_schedule() -> None:
    replay = make_replay()
    replay.push(pieces(3), None, now=10.1)
    replay.pop(11.3)
    assert replay.due() == 11.5


def test_a_slow_model_shows_its_own_times_and_the_next_gap_counts_from_there() -> None:
    replay = make_replay()
    replay.push(pieces(1), None, now=14.0)
    assert texts(replay.pop(14.0)) == ["0"]
    replay.push(pieces(1, 1), None, now=14.1)
    assert replay.due() == 14.5


def test_the_rate_is_the_slower_of_model_and_profile_and_not_their_sum() -> None:
    replay = make_replay(ttft_s=[0.0], gap_s=[0.5])
    left_at = []
    for number in range(20):
        replay.push(pieces(1, number), None, now=10.0 + 0.6 * number)
        due = replay.due()
        assert due is not None
        at = max(due, 10.0 + 0.6 * number)
        assert len(texts(replay.pop(at))) == 1
        left_at.append(at)
    gaps = [later - earlier for earlier, later in pairwise(left_at)]
    assert max(gaps) == pytest.approx(0.6)


def test_a_burst_leaves_whole_and_only_when_it_is_complete() -> None:
    replay = make_replay(burst_chunks=[3])
    replay.push(pieces(2), None, now=10.1)
    assert replay.due() is None
    assert replay.pop(20.0) == ([], None)
    replay.push(pieces(2, 2), None, now=20.0)
    assert texts(replay.pop(20.0)) == ["0", "1", "2"]
    assert replay.held == 1


def test_the_end_completes_a_burst() -> None:
    replay = make_replay(burst_chunks=[3])
    replay.push(pieces(2), STOP, now=10.1)
    released, end = replay.pop(11.0)
    assert len(released) == 2
    assert end is STOP


def test_an_end_that_comes_alone_after_everything_left_is_told_at_once() -> None:
    replay = make_replay()
    replay.push(pieces(1), None, now=10.1)
    replay.pop(11.0)
    replay.push([], STOP, now=11.01)
    assert replay.pop(11.01) == ([], STOP)


def test_an_empty_answer_takes_its_time_to_first_token_but_a_failure_does_not() -> None:
    replay = make_replay()
    replay.push([], STOP, now=10.1)
    assert replay.due() == 11.0
    assert replay.pop(10.5) == ([], None)
    assert replay.pop(11.0) == ([], STOP)
    failed = make_replay()
    failed.push([], FAILED, now=10.1)
    assert failed.pop(10.1) == ([], FAILED)


def test_a_trace_of_means_draws_one_gap_for_the_whole_request() -> None:
    replay = make_replay(gap_s=[0.1, 0.9], gap_of="request", ttft_s=[0.0])
    replay.push(pieces(50), None, now=10.0)
    dues = []
    while (due := replay.due()) is not None:
        dues.append(due)
        replay.pop(due)
    gaps = [later - earlier for earlier, later in pairwise(dues)]
    assert max(gaps) - min(gaps) < 1e-9
    assert 0.1 <= gaps[0] <= 0.9


def test_the_same_seed_gives_the_same_times() -> None:
    def dues(seed: int) -> list[float]:
        replay = LatencyReplay(load_latency("openai-gpt-4-0125-preview"), Random(seed), started=0.0)
        replay.push(pieces(100), None, now=0.0)
        found = []
        while (due := replay.due()) is not None:
            found.append(due)
            replay.pop(due)
        return found

    assert dues(5) == dues(5)
    assert dues(5) != dues(6)


@given(
    st.lists(st.floats(0, 2), min_size=1, max_size=5).map(sorted),
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(sorted),
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 7)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_every_piece_leaves_once_in_order_never_before_it_was_made_or_due(
    gaps: list[float], bursts: list[int], arrivals: list[tuple[float, int]], rng: Random
) -> None:
    replay = LatencyReplay(profile(gap_s=gaps, burst_chunks=bursts), rng, started=0.0)
    now, made, left = 0.0, 0, []
    for number, (step, count) in enumerate(arrivals):
        now += step
        replay.push(pieces(count, made), STOP if number == len(arrivals) - 1 else None, now)
        made += count
        due = replay.due()
        released, _ = replay.pop(now)
        assert not released or (due is not None and due <= now)
        assert not released or now >= 1.0
        left += released
    while (due := replay.due()) is not None:
        now = max(now, due)
        released, end = replay.pop(now)
        left += released
        if end is not None:
            break
    assert [piece.ids[0] for piece in left] == list(range(made))
    assert replay.held == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft_s": []},
        {"gap_s": [-0.1]},
        {"burst_chunks": [0.5]},
        {"ttft_s": [2.0, 1.0]},
        {"ttft_s": [float("nan")]},
        {"gap_s": [float("inf")]},
    ],
)
def test_a_profile_with_impossible_numbers_is_refused_by_name(changes: dict[str, list[float]]) -> None:
    (field,) = changes
    with pytest.raises((ConfigError, msgspec.ValidationError), match=field):
        profile(**changes)


def replayed(name: str, requests: int, chunks: int) -> tuple[list[float], list[float]]:
    """Times to first token and chunk rates of many replayed requests."""
    firsts, rates = [], []
    for seed in range(requests):
        replay = LatencyReplay(load_latency(name), Random(seed), started=0.0)
        replay.push(pieces(chunks), STOP, now=0.0)
        dues = []
        while True:
            due = replay.due()
            assert due is not None
            dues.append(due)
            if replay.pop(due)[1] is not None:
                break
        firsts.append(dues[0])
        rates.append((dues[-1] - dues[0]) / chunks)
    return firsts, rates


@pytest.mark.parametrize("name", ["openai-gpt-4-0125-preview", "openai-gpt-3.5-turbo-0613", "azure-gpt-3.5-turbo-0613"])
def test_replayed_requests_have_the_recorded_first_tokens_and_rates(name: str) -> None:
    host, model = name.split("-", 1)
    with gzip.open(data_path("ttft", "latencylab_stream_gaps.jsonl.gz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["success"] and row["host"].lower() == host and row["model"] == model]
    firsts, rates = replayed(name, 400, 150)
    assert median(firsts) == pytest.approx(median(row["ttft_s"] for row in rows), rel=0.1)
    assert fmean(firsts) == pytest.approx(fmean(row["ttft_s"] for row in rows), rel=0.1)
    recorded = sum(row["total_s"] - row["ttft_s"] for row in rows) / sum(len(row["gaps_s"]) for row in rows)
    assert fmean(rates) == pytest.approx(recorded, rel=0.15)
