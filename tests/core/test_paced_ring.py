"""The paced ring: due times to the last bit, order, counts and references."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.core.paced_ring import MAX_WEIGHT, PacedRing
from tests.support.examples import examples


def test_the_first_token_is_due_at_once_and_the_next_ones_a_period_apart() -> None:
    slots = PacedRing[Any](0.25, 0.125)
    for word in "abc":
        slots.push(1, "s", word, 7.0)
    assert slots.next_due() == 7.0
    assert slots.release(7.0) == [("s", "a")]
    assert slots.next_due() == 7.25
    assert slots.release(7.2499) == []
    assert slots.release(8.0) == [("s", "b"), ("s", "c")]
    assert slots.next_due() is None


def test_what_comes_after_a_stall_is_due_at_once_and_catches_up() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    slots.push(1, "s", "a", 0.0)
    slots.release(0.0)
    for word in "bcdef":
        slots.push(1, "s", word, 3.0)
    dues = []
    while (due := slots.next_due()) is not None:
        dues.append(due)
        slots.release(due)
    assert dues == [3.0, 3.5, 4.0, 4.5, 5.0]


def test_an_item_of_many_tokens_takes_their_time_and_one_of_none_takes_none() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    for weight, word in [(0, "role"), (3, "three words here"), (0, "tool"), (1, " end"), (0, "usage")]:
        slots.push(weight, "s", word, 2.0)
    assert (slots.buffered, len(slots)) == (4, 5)
    assert [item for _, item in slots.release(2.0)] == ["role", "three words here", "tool"]
    assert slots.next_due() == 5.0
    assert [item for _, item in slots.release(5.0)] == [" end", "usage"]
    assert (slots.buffered, len(slots)) == (0, 0)


def test_flushed_tokens_count_as_released() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    slots.push(1, "a", 1, 0.0)
    slots.push(2, "b", 2, 0.0)
    assert slots.flush() == [("a", 1), ("b", 2)]
    assert (slots.buffered, slots.next_due(), slots.flush()) == (0, None, [])
    slots.push(1, "a", 3, 0.0)
    assert slots.next_due() == 3.0


def test_ten_thousand_tokens_fit_wherever_the_ring_begins() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    for index in range(11):
        slots.push(1, "s", index, 0.0)
    assert [item for _, item in slots.release(8.0)] == list(range(9))
    for index in range(11, 10_000):
        slots.push(1, "s", index, 8.0)
    assert slots.buffered == len(slots) == 9_991
    assert [item for _, item in slots.release(10_000.0)] == list(range(9, 10_000))


@pytest.mark.parametrize("period", [0.0, -1.0, float("inf"), float("nan")])
def test_a_period_that_is_no_time_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring period: expected more than 0 and finitely many seconds, got {period}"):
        PacedRing(period, 0.0)


@pytest.mark.parametrize("min_gap", [-0.1, 1.5, float("nan")])
def test_a_smallest_gap_above_the_period_is_refused(min_gap: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring min_gap: expected 0 to 1.0 seconds, got {min_gap}"):
        PacedRing(1.0, min_gap)


@pytest.mark.parametrize("weight", [-1, MAX_WEIGHT + 1])
def test_a_weight_that_is_no_count_is_refused_and_keeps_nothing(weight: int) -> None:
    slots = PacedRing[Any](1.0, 0.5)
    with pytest.raises(ValueError, match=f"paced ring weight: expected 0 to {MAX_WEIGHT} tokens, got {weight}"):
        slots.push(weight, "s", "a", 0.0)
    assert (len(slots), slots.buffered, slots.next_due()) == (0, 0, None)


def test_the_largest_weights_are_counted() -> None:
    slots = PacedRing[Any](1.0, 1.0)
    for _ in range(3):
        slots.push(MAX_WEIGHT, "s", "a", 0.0)
    assert slots.buffered == 3 * MAX_WEIGHT
    slots.release(0.0)
    assert slots.next_due() == float(MAX_WEIGHT)


class Thing:
    """Something whose end can be watched."""


def test_released_flushed_and_dropped_items_are_let_go() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    things = [Thing() for _ in range(40)]
    watched = [weakref.ref(thing) for thing in things]
    for thing in things:
        slots.push(1, "s", thing, 0.0)
    del things, thing
    slots.release(9.0)
    assert [watch() is None for watch in watched] == [True] * 10 + [False] * 30
    slots.flush()
    assert all(watch() is None for watch in watched)


def test_references_are_counted_exactly() -> None:
    thing, source = Thing(), "".join(["a source ", "of its own"])
    before = sys.getrefcount(thing), sys.getrefcount(source), sys.getrefcount(None)
    slots = PacedRing[Any](1.0, 0.5)
    for start in range(50):
        for _ in range(37):
            slots.push(1, source, thing, float(start))
        slots.release(start + 20.0)
        slots.flush()
    assert sys.getrefcount(thing) == before[0]
    slots.push(1, source, thing, 0.0)
    assert (sys.getrefcount(thing), sys.getrefcount(source)) == (before[0] + 1, before[1] + 1)
    del slots
    assert (sys.getrefcount(thing), sys.getrefcount(source)) == before[:2]
    assert abs(sys.getrefcount(None) - before[2]) < 100


def test_a_ring_inside_itself_is_collected() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    thing = Thing()
    watch = weakref.ref(thing)
    slots.push(1, "s", (slots, thing), 0.0)
    del slots, thing
    gc.collect()
    assert watch() is None


def test_an_item_whose_end_uses_the_ring_finds_it_whole() -> None:
    slots = PacedRing[Any](1.0, 0.5)
    seen: list[tuple[int, int]] = []

    class Goodbye:
        def __del__(self) -> None:
            seen.append((len(slots), slots.buffered))
            slots.push(1, "s", "more", 0.0)

    slots.push(1, "s", Goodbye(), 0.0)
    slots.push(1, "s", "next", 0.0)
    slots.release(0.0)
    assert seen == [(1, 1)]
    assert slots.flush() == [("s", "next"), ("s", "more")]


class Model:
    """The rules of the timeline in the plainest words, fed in batches."""

    def __init__(self, period: float, min_gap: float) -> None:
        self.period, self.min_gap = period, min_gap
        self.slots: deque[tuple[int, str, int]] = deque()
        self.first: float | None = None
        self.released, self.last, self.last_weight = 0, 0.0, 0
        self.is_starved = False
        self.buffered = 0

    def feed(self, source: str, items: list[tuple[int, int]], now: float) -> None:
        if not self.buffered and self.first is not None:
            self.is_starved = True
        for weight, item in items:
            if self.first is None and weight:
                self.first = self.last = now
            self.slots.append((weight, source, item))
            self.buffered += weight
        if self.is_starved and self.buffered:
            self.is_starved = False
            self.last = max(self.last, now - self.min_gap * self.last_weight)

    def next_due(self) -> float | None:
        if not self.slots:
            return None
        if self.first is None or not self.slots[0][0]:
            return self.last
        return max(self.first + self.released * self.period, self.last + self.min_gap * self.last_weight)

    def release(self, now: float) -> list[tuple[str, int]]:
        released = []
        while (due := self.next_due()) is not None and due <= now:
            weight, source, item = self.slots.popleft()
            if weight:
                self.last, self.last_weight = due, weight
                self.released += weight
                self.buffered -= weight
            released.append((source, item))
        return released

    def flush(self) -> list[tuple[str, int]]:
        released = [(source, item) for _, source, item in self.slots]
        self.slots.clear()
        self.released += self.buffered
        self.buffered = 0
        return released


weights = st.one_of(st.just(1), st.integers(0, 3), st.integers(0, 5000))
times = st.floats(-1e3, 1e7) | st.floats(0, 20)
calls = st.one_of(
    st.tuples(st.just("push"), st.lists(weights, max_size=40), st.sampled_from("ab"), times),
    st.tuples(st.just("release"), times),
    st.tuples(st.just("release when due")),
    st.tuples(st.just("flush")),
)


def step(slots: Any, model: Model, call: tuple[Any, ...], number: int) -> None:
    match call:
        case "push", found, source, now:
            items = [(weight, number + index) for index, weight in enumerate(found)]
            model.feed(source, items, now)
            for weight, item in items:
                slots.push(weight, source, item, now)
        case "release", now:
            assert slots.release(now) == model.release(now)
        case ("release when due",):
            due = slots.next_due()
            assert due == model.next_due()
            if due is not None:
                released = slots.release(due)
                assert released, "what is due now goes out now"
                assert released == model.release(due)
        case ("flush",):
            assert slots.flush() == model.flush()


@given(rate=st.floats(1e-3, 1e5), catch_up=st.floats(1.0, 1e3), script=st.lists(calls, max_size=40))
@settings(max_examples=examples(200, thorough=5000))
def test_any_order_of_calls_gives_the_same_releases_at_the_same_doubles(
    rate: float, catch_up: float, script: list[tuple[Any, ...]]
) -> None:
    period = 1.0 / rate
    slots, model = PacedRing[Any](period, period / catch_up), Model(period, period / catch_up)
    for number, call in enumerate(script):
        step(slots, model, call, 100 * number)
        assert slots.next_due() == model.next_due()  # to the last bit: a float is equal to no other
        assert slots.buffered == model.buffered
        assert len(slots) == len(model.slots)


@given(
    rate=st.floats(0.5, 200), catch_up=st.floats(1.0, 10.0), gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60), late=st.floats(0, 1)
)
@settings(max_examples=examples(100, thorough=2000))
def test_no_token_is_early_lost_or_out_of_order(rate: float, catch_up: float, gaps: list[float], late: float) -> None:
    period = 1.0 / rate
    slots = PacedRing[Any](period, period / catch_up)
    out: list[int] = []
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        slots.push(1, "s", number, now)
        for _, item in slots.release(now + late):
            assert now + late >= gaps[0] + item * period
            out.append(item)
        assert slots.buffered == number + 1 - len(out)
        now += late
    assert out + [item for _, item in slots.flush()] == list(range(len(gaps)))
