"""The paced ring, both twins: due times to the last bit, order, counts and references."""

from __future__ import annotations

import gc
import sys
import weakref
from math import inf
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco._native.pacedring_py import MAX_TOKENS
from tests.support.examples import examples


def test_the_first_token_is_due_at_once_and_the_next_ones_a_period_apart(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(0.25, 0.125)
    for word in "abc":
        slots.push(1, ("s", word), 7.0)
    assert slots.next_due() == 7.0
    assert slots.release(7.0) == [("s", "a")]
    assert slots.next_due() == 7.25
    assert slots.release(7.2499) == []
    assert slots.release(8.0) == [("s", "b"), ("s", "c")]
    assert slots.next_due() is None


def test_what_comes_after_a_stall_is_due_at_once_and_catches_up(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    slots.push(1, ("s", "a"), 0.0)
    slots.release(0.0)
    for word in "bcdef":
        slots.push(1, ("s", word), 3.0)
    dues = []
    while (due := slots.next_due()) is not None:
        dues.append(due)
        slots.release(due)
    assert dues == [3.0, 3.5, 4.0, 4.5, 5.0]


def test_an_item_of_many_tokens_takes_their_time_and_one_of_none_takes_none(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    for weight, word in [(0, "role"), (3, "three words here"), (0, "tool"), (1, " end"), (0, "usage")]:
        slots.push(weight, ("s", word), 2.0)
    assert (slots.buffered, len(slots)) == (4, 5)
    assert [item for _, item in slots.release(2.0)] == ["role", "three words here", "tool"]
    assert slots.next_due() == 5.0
    assert [item for _, item in slots.release(5.0)] == [" end", "usage"]
    assert (slots.buffered, len(slots)) == (0, 0)


def test_flushed_tokens_count_as_released(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    slots.push(1, ("a", 1), 0.0)
    slots.push(2, ("b", 2), 0.0)
    assert slots.flush() == [("a", 1), ("b", 2)]
    assert (slots.buffered, slots.next_due(), slots.flush()) == (0, None, [])
    slots.push(1, ("a", 3), 0.0)
    assert slots.next_due() == 3.0


def test_ten_thousand_tokens_fit_wherever_the_ring_begins(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    for index in range(11):
        slots.push(1, ("s", index), 0.0)
    assert [item for _, item in slots.release(8.0)] == list(range(9))
    for index in range(11, 10_000):
        slots.push(1, ("s", index), 8.0)
    assert slots.buffered == len(slots) == 9_991
    assert [item for _, item in slots.release(10_000.0)] == list(range(9, 10_000))


@pytest.mark.parametrize("period", [0.0, -1.0, float("inf"), float("nan")])
def test_a_period_that_is_no_time_is_refused(pacedring: ModuleType, period: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring period: expected more than 0 and finitely many seconds, got {period}"):
        pacedring.PacedRing(period, 0.0)


@pytest.mark.parametrize("gap", [-0.1, 1.5, float("nan")])
def test_a_gap_above_the_period_is_refused(pacedring: ModuleType, gap: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring gap: expected 0 to 1.0 seconds, got {gap}"):
        pacedring.PacedRing(1.0, gap)


@pytest.mark.parametrize("tokens", [-1, MAX_TOKENS + 1])
def test_tokens_that_are_no_count_are_refused_and_kept_nowhere(pacedring: ModuleType, tokens: int) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    with pytest.raises(ValueError, match=f"paced ring tokens: expected 0 to {MAX_TOKENS}, got {tokens}"):
        slots.push(tokens, ("s", "a"), 0.0)
    assert (len(slots), slots.buffered, slots.next_due()) == (0, 0, None)


def test_the_largest_pieces_are_counted(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 1.0)
    for _ in range(3):
        slots.push(MAX_TOKENS, ("s", "a"), 0.0)
    assert slots.buffered == 3 * MAX_TOKENS
    slots.release(0.0)
    assert slots.next_due() == float(MAX_TOKENS)


@pytest.mark.parametrize("amount", [-0.5, float("inf"), float("nan")])
def test_an_amount_that_is_no_number_of_tokens_is_refused(pacedring: ModuleType, amount: float) -> None:
    slots = pacedring.PacedRing(None, 0.5)
    with pytest.raises(ValueError, match=f"paced ring amount: expected at least 0 and finite, got {amount}"):
        slots.push(1, ("s", "a"), 0.0, amount)
    assert (len(slots), slots.buffered, slots.next_due()) == (0, 0, None)


@pytest.mark.parametrize("early", [-0.1, float("inf"), float("nan")])
def test_an_early_release_by_no_time_is_refused(pacedring: ModuleType, early: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring early: expected at least 0 and finitely many seconds, got {early}"):
        pacedring.PacedRing(None, 0.5, early)


@pytest.mark.parametrize("late", [-0.1, float("nan")])
def test_a_late_release_by_no_time_is_refused(pacedring: ModuleType, late: float) -> None:
    with pytest.raises(ValueError, match=f"paced ring late: expected at least 0 seconds, got {late}"):
        pacedring.PacedRing(None, 0.5, late=late)


def test_without_a_timeline_a_piece_has_its_time_and_goes_at_its_latest_in_any_case(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(None, 0.5)
    for amount, word in [(1.0, "a"), (0.5, "b"), (4.0, "c"), (1.0, "d")]:
        slots.push(1, ("s", word), 2.0, amount, 3.0)
    assert slots.release(2.0) == [("s", "a")]
    assert slots.next_due() == 2.5
    slots.gap, slots.earliest = 0.25, 2.25
    assert slots.release(2.25) == [("s", "b")]
    assert slots.release(2.375) == [("s", "c")]
    assert slots.next_due() == 3.0
    assert (slots.amount, slots.last, slots.earliest, slots.released) == (1.0, 2.375, 3.375, 3)


def test_pieces_may_go_out_early(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(None, 1.0, early=0.25)
    for word in "abc":
        slots.push(1, ("s", word), 0.0)
    assert slots.release(0.75) == [("s", "a"), ("s", "b")]
    assert (slots.last, slots.next_due()) == (1.0, 2.0)


@pytest.mark.parametrize(("late", "last"), [(0.0, 5.0), (0.25, 4.75), (inf, 0.0)])
def test_the_time_of_a_late_piece_begins_a_little_before_it_goes_out_or_when_it_was_due(
    pacedring: ModuleType, late: float, last: float
) -> None:
    slots = pacedring.PacedRing(None, 10.0, late=late)
    for word in "ab":
        slots.push(1, ("s", word), 0.0)
    assert slots.release(5.0) == [("s", "a")]
    assert (slots.last, slots.next_due()) == (last, last + 10.0)


def test_hurried_pieces_are_due_and_later_ones_are_not(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(None, 1.0)
    for word in "abc":
        slots.push(1, ("s", word), 0.0)
    slots.hurry(0.5)
    slots.push(1, ("s", "d"), 0.5)
    assert [item for _, item in slots.release(0.5)] == ["a", "b", "c"]
    assert slots.next_due() == 1.5


class Thing:
    """Something whose end can be watched."""


def test_released_flushed_and_dropped_items_are_let_go(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    things = [Thing() for _ in range(40)]
    watched = [weakref.ref(thing) for thing in things]
    for thing in things:
        slots.push(1, ("s", thing), 0.0)
    del things, thing
    slots.release(9.0)
    assert [watch() is None for watch in watched] == [True] * 10 + [False] * 30
    slots.flush()
    assert all(watch() is None for watch in watched)


def test_references_are_counted_exactly(pacedring: ModuleType) -> None:
    thing, source = Thing(), "".join(["a source ", "of its own"])
    before = sys.getrefcount(thing), sys.getrefcount(source), sys.getrefcount(None)
    slots = pacedring.PacedRing(1.0, 0.5)
    for start in range(50):
        for _ in range(37):
            slots.push(1, (source, thing), float(start))
        slots.release(start + 20.0)
        slots.flush()
    assert sys.getrefcount(thing) == before[0]
    slots.push(1, (source, thing), 0.0)
    assert (sys.getrefcount(thing), sys.getrefcount(source)) == (before[0] + 1, before[1] + 1)
    del slots
    assert (sys.getrefcount(thing), sys.getrefcount(source)) == before[:2]
    assert abs(sys.getrefcount(None) - before[2]) < 100


def test_a_ring_inside_itself_is_collected(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    thing = Thing()
    watch = weakref.ref(thing)
    slots.push(1, ("s", (slots, thing)), 0.0)
    del slots, thing
    gc.collect()
    assert watch() is None


def test_an_item_whose_end_uses_the_ring_finds_it_whole(pacedring: ModuleType) -> None:
    slots = pacedring.PacedRing(1.0, 0.5)
    seen: list[tuple[int, int]] = []

    class Goodbye:
        def __del__(self) -> None:
            seen.append((len(slots), slots.buffered))
            slots.push(1, ("s", "more"), 0.0)

    slots.push(1, ("s", Goodbye()), 0.0)
    slots.push(1, ("s", "next"), 0.0)
    slots.release(0.0)
    assert seen == [(1, 1)]
    assert slots.flush() == [("s", "next"), ("s", "more")]


class Model:
    """The rules of the due times in the plainest words."""

    def __init__(self, period: float | None, gap: float, early: float = 0.0, late: float = inf) -> None:
        self.period, self.gap, self.early, self.late = period, gap, early, late
        self.slots: list[tuple[int, float, float, tuple[str, int]]] = []
        self.first: float | None = None
        self.out, self.last, self.earliest = 0.0, -inf, -inf

    @property
    def buffered(self) -> int:
        return sum(tokens for tokens, *_ in self.slots)

    @property
    def is_starved(self) -> bool:
        return not any(amount for _, amount, *_ in self.slots)

    def push(self, tokens: int, item: tuple[str, int], now: float, amount: float, latest: float) -> None:
        if amount and self.first is None:
            self.first = now
        if amount and self.is_starved:
            self.earliest = max(self.earliest, now)
        self.slots.append((tokens, amount, latest if amount else now, item))

    def hurry(self, now: float) -> None:
        self.earliest = max(self.earliest, now)
        self.slots = [(tokens, amount, now, item) for tokens, amount, _, item in self.slots]

    def next_due(self) -> float | None:
        if not self.slots:
            return None
        _, amount, latest, _ = self.slots[0]
        if not amount:
            return latest
        assert self.first is not None
        on_time = self.first if self.period is None else self.first + self.out * self.period
        return min(max(on_time, self.earliest), latest)

    def release(self, now: float) -> list[tuple[str, int]]:
        released = []
        while (due := self.next_due()) is not None and due <= now + self.early:
            _, amount, _, item = self.slots.pop(0)
            if amount:
                self.last = max(due, now - self.late)
                self.earliest = self.last + amount * self.gap
                self.out += amount
            released.append(item)
        return released

    def flush(self) -> list[tuple[str, int]]:
        released = [item for *_, item in self.slots]
        self.out += sum(amount for _, amount, *_ in self.slots)
        self.slots.clear()
        return released


weights = st.one_of(st.just(1), st.integers(0, 3), st.integers(0, 5000))
times = st.floats(-1e3, 1e7) | st.floats(0, 20)
parts = st.tuples(weights, st.just(0.0) | st.floats(0.01, 50), st.floats(0, 2))
calls = st.one_of(
    st.tuples(st.just("push"), st.lists(parts, max_size=40), st.sampled_from("ab"), times),
    st.tuples(st.just("release"), times),
    st.tuples(st.just("release when due")),
    st.tuples(st.just("hurry"), times),
    st.tuples(st.just("follow"), st.floats(0, 3), times),
    st.tuples(st.just("flush")),
)


def step(slots: Any, model: Model, call: tuple[Any, ...], number: int) -> None:
    match call:
        case "push", found, source, now:
            for index, (tokens, amount, wait) in enumerate(found):
                if model.period is None:
                    model.push(tokens, (source, number + index), now, amount, now + wait)
                    slots.push(tokens, (source, number + index), now, amount, now + wait)
                else:
                    model.push(tokens, (source, number + index), now, float(tokens), inf)
                    slots.push(tokens, (source, number + index), now)
        case "release", now:
            assert slots.release(now) == model.release(now)
        case ("release when due",):
            due = slots.next_due()
            assert due == model.next_due()
            if due is not None:
                released = slots.release(due)
                assert released, "what is due now goes out now"
                assert released == model.release(due)
        case "hurry", now:
            slots.hurry(now)
            model.hurry(now)
        case "follow", gap, earliest:
            slots.gap, slots.earliest = model.gap, model.earliest = gap, earliest
        case ("flush",):
            assert slots.flush() == model.flush()


def run(slots: Any, model: Model, script: list[tuple[Any, ...]]) -> None:
    for number, call in enumerate(script):
        step(slots, model, call, 100 * number)
        assert slots.next_due() == model.next_due()  # to the last bit: a float is equal to no other
        assert (slots.last, slots.earliest) == (model.last, model.earliest)
        assert slots.buffered == model.buffered
        assert len(slots) == len(model.slots)
        assert slots.amount == pytest.approx(sum(amount for _, amount, *_ in model.slots))
        assert slots.amount > 0 if not model.is_starved else slots.amount == 0, "exactly"
    assert slots.released + len(slots) == sum(len(call[1]) for call in script if call[0] == "push")


@given(rate=st.floats(1e-3, 1e5), catch_up=st.floats(1.0, 1e3), script=st.lists(calls, max_size=40))
@settings(max_examples=examples(200, thorough=5000))
def test_any_order_of_calls_gives_the_same_releases_at_the_same_doubles(
    pacedring: ModuleType, rate: float, catch_up: float, script: list[tuple[Any, ...]]
) -> None:
    period = 1.0 / rate
    run(pacedring.PacedRing(period, period / catch_up), Model(period, period / catch_up), script)


@given(
    gap=st.floats(0, 10),
    early=st.sampled_from([0.0, 1 / 60]),
    late=st.sampled_from([0.0, 1 / 60, inf]),
    script=st.lists(calls, max_size=40),
)
@settings(max_examples=examples(200, thorough=5000))
def test_any_order_of_calls_gives_the_same_releases_without_a_timeline(
    pacedring: ModuleType, gap: float, early: float, late: float, script: list[tuple[Any, ...]]
) -> None:
    run(pacedring.PacedRing(None, gap, early, late), Model(None, gap, early, late), script)


@given(
    rate=st.floats(0.5, 200), catch_up=st.floats(1.0, 10.0), gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60), late=st.floats(0, 1)
)
@settings(max_examples=examples(100, thorough=2000))
def test_no_token_is_early_lost_or_out_of_order(
    pacedring: ModuleType, rate: float, catch_up: float, gaps: list[float], late: float
) -> None:
    period = 1.0 / rate
    slots = pacedring.PacedRing(period, period / catch_up)
    out: list[int] = []
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        slots.push(1, ("s", number), now)
        for _, item in slots.release(now + late):
            assert now + late >= gaps[0] + item * period
            out.append(item)
        assert slots.buffered == number + 1 - len(out)
        now += late
    assert out + [item for _, item in slots.flush()] == list(range(len(gaps)))
