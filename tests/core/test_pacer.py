"""The pacing buffer, called directly with now=."""

from __future__ import annotations

import itertools
import random

import pytest

from streamco.core.pacer import Pacer
from streamco.openai_types import ChatCompletionChunk
from streamco.testing.endpoint import text_chunk


def words(count: int) -> list[ChatCompletionChunk]:
    return [text_chunk(f" w{index}") for index in range(count)]


def release_times(pacer: Pacer, until: float = 1e9) -> list[float]:
    times = []
    while (due := pacer.next_due()) is not None and due <= until:
        times += [due] * len(pacer.release(now=due))
    return times


def test_the_first_token_is_never_held_back() -> None:
    pacer = Pacer(1.0)
    pacer.feed("s", words(1), now=7.0)
    assert pacer.next_due() == 7.0
    assert len(pacer.release(now=7.0)) == 1


def test_token_n_is_due_n_periods_after_the_first_without_drift() -> None:
    pacer = Pacer(4.8)
    pacer.feed("s", words(10_000), now=3.0)
    times = release_times(pacer)
    assert times[9_999] == pytest.approx(3.0 + 9_999 / 4.8, abs=1e-9)
    assert times == pytest.approx([3.0 + n / 4.8 for n in range(10_000)])


def test_being_called_late_does_not_shift_the_timeline() -> None:
    pacer = Pacer(10.0)
    pacer.feed("s", words(4), now=0.0)
    pacer.release(now=0.0)
    assert len(pacer.release(now=0.15)) == 1
    assert pacer.next_due() == pytest.approx(0.2)


def test_a_token_that_arrives_late_goes_out_on_arrival_and_the_burst_behind_it_is_smoothed() -> None:
    pacer = Pacer(10.0, catch_up=2.0)
    pacer.feed("s", words(1), now=0.0)
    pacer.release(now=0.0)
    pacer.feed("s", words(30), now=1.0)
    times = release_times(pacer)
    assert times[0] == pytest.approx(1.0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) >= 0.05 - 1e-9
    assert times[-1] == pytest.approx(3.0), "token 30 is back on the timeline"
    assert gaps[-1] == pytest.approx(0.1)


def test_chunks_without_content_keep_their_place_and_wait_for_nothing() -> None:
    pacer = Pacer(1.0)
    empty = ChatCompletionChunk(id="usage")
    pacer.feed("s", [empty, *words(2), empty], now=0.0)
    assert [chunk.id for _, chunk in pacer.release(now=0.0)] == ["usage", "chatcmpl-scripted"]
    assert [chunk.id for _, chunk in pacer.release(now=1.0)] == ["chatcmpl-scripted", "usage"]
    assert pacer.next_due() is None


def test_flush_gives_the_rest_in_order() -> None:
    pacer = Pacer(1.0)
    pacer.feed("a", words(2), now=0.0)
    pacer.feed("b", words(1), now=0.0)
    assert [source for source, _ in pacer.flush()] == ["a", "a", "b"]
    assert pacer.buffered == 0
    assert pacer.next_due() is None


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_early_lost_or_reordered_whatever_the_arrivals(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.uniform(1, 50)
    pacer = Pacer(rate, catch_up=rng.choice([1.0, 2.0, 5.0]))
    closest = 1 / rate / 5
    fed: list[str] = []
    out: list[tuple[float, str]] = []
    now, first = 0.0, None
    for index in range(300):
        now += rng.expovariate(rate * rng.choice([0.3, 1, 20]))
        while (due := pacer.next_due()) is not None and due <= now:
            out += [(due, chunk.choices[0].delta.content or "") for _, chunk in pacer.release(now=due)]
        word = f" {index}"
        first = now if first is None else first
        pacer.feed("s", [text_chunk(word)], now=now)
        fed.append(word)
    while (due := pacer.next_due()) is not None:
        out += [(max(due, now), chunk.choices[0].delta.content or "") for _, chunk in pacer.release(now=due)]
    assert [word for _, word in out] == fed, f"seed {seed}"
    assert first is not None
    for index, (time, _) in enumerate(out):
        assert time >= first + index / rate - 1e-9, f"seed {seed}: token {index} is early"
    assert all(after - before >= closest - 1e-9 for (before, _), (after, _) in itertools.pairwise(out) if after > before)
