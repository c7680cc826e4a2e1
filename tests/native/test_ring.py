"""The ring, both twins: flags, order, bounds, and no wake-up lost between two real threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco._native.ring_py import ACCEPTED, CLOSED, FILLED, FULL, WAKE
from tests.support.examples import examples


def test_the_first_push_of_a_burst_asks_for_a_wake_up_and_the_next_ones_do_not(ring: ModuleType) -> None:
    slots = ring.Ring(8)
    assert [slots.push(item) for item in "abc"] == [ACCEPTED | WAKE, ACCEPTED, ACCEPTED]
    assert slots.drain() == ["a", "b", "c"]
    assert slots.push("d") == ACCEPTED | WAKE


def test_a_drain_of_nothing_is_empty_and_arms_again(ring: ModuleType) -> None:
    slots = ring.Ring(8)
    assert slots.drain() == []
    assert slots.push(1) & WAKE


def test_the_push_that_takes_the_last_slot_says_so_and_the_next_is_refused(ring: ModuleType) -> None:
    slots = ring.Ring(2)
    assert [slots.push(item) for item in range(4)] == [ACCEPTED | WAKE, ACCEPTED | FILLED, FULL, FULL]
    assert slots.drain() == [0, 1]


def test_one_slot_is_enough(ring: ModuleType) -> None:
    slots = ring.Ring(1)
    for item in range(3):
        assert slots.push(item) == ACCEPTED | WAKE | FILLED
        assert slots.push(item) == FULL
        assert slots.drain() == [item]
        assert slots.take_unpark()


def test_a_limited_drain_takes_the_oldest_and_leaves_the_rest_unarmed(ring: ModuleType) -> None:
    slots = ring.Ring(8)
    slots.push_many([1, 2, 3])
    assert slots.drain(2) == [1, 2]
    assert len(slots) == 1
    assert slots.push(4) == ACCEPTED
    assert slots.drain(2) == [3, 4]
    assert slots.push(5) == ACCEPTED | WAKE


def test_a_limit_above_the_content_takes_all(ring: ModuleType) -> None:
    slots = ring.Ring(8)
    slots.push(1)
    assert slots.drain(sys.maxsize) == [1]


def test_many_are_pushed_together_or_not_at_all(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    assert slots.push_many([1, 2, 3]) == ACCEPTED | WAKE
    assert slots.push_many((4, 5)) == FULL
    assert slots.push_many([]) == ACCEPTED
    assert slots.push_many((4,)) == ACCEPTED | FILLED
    assert slots.push_many([]) == ACCEPTED
    assert slots.drain() == [1, 2, 3, 4]


def test_nothing_pushed_wakes_no_consumer(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    assert slots.push_many([]) == ACCEPTED
    assert slots.push(1) & WAKE


def test_more_items_than_slots_are_an_error_not_a_wait(ring: ModuleType) -> None:
    with pytest.raises(ValueError, match="expected at most 2 items, got 3"):
        ring.Ring(2).push_many([1, 2, 3])


def test_only_lists_and_tuples_are_pushed_together(ring: ModuleType) -> None:
    with pytest.raises(TypeError, match="expected a list or tuple, got generator"):
        ring.Ring(2).push_many(item for item in "ab")


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_without_slots_is_refused(ring: ModuleType, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"ring capacity: expected at least 1 item, got {capacity}"):
        ring.Ring(capacity)


@pytest.mark.parametrize("mark", [-1, 4, 5])
def test_a_low_water_mark_outside_the_ring_is_refused(ring: ModuleType, mark: int) -> None:
    with pytest.raises(ValueError, match=f"ring low_water: expected 0 to 3 items, got {mark}"):
        ring.Ring(4, mark)


def test_a_negative_limit_is_refused(ring: ModuleType) -> None:
    with pytest.raises(ValueError, match="got -1"):
        ring.Ring(4).drain(-1)


def test_the_low_water_mark_is_half_the_capacity_unless_said_otherwise(ring: ModuleType) -> None:
    assert (ring.Ring(9).capacity, ring.Ring(9).low_water, ring.Ring(1).low_water, ring.Ring(9, low_water=0).low_water) == (9, 4, 0, 0)


def test_a_refused_producer_is_called_back_once_at_the_low_water_mark(ring: ModuleType) -> None:
    slots = ring.Ring(4, 1)
    for item in range(5):
        slots.push(item)
    assert not slots.take_unpark()
    slots.drain(2)
    assert not slots.take_unpark()
    slots.drain(1)
    assert slots.take_unpark()
    assert not slots.take_unpark()


def test_a_producer_that_filled_the_ring_is_called_back_without_having_been_refused(ring: ModuleType) -> None:
    slots = ring.Ring(2)
    slots.push_many([1, 2])
    slots.drain()
    assert slots.take_unpark()


def test_a_refused_batch_is_called_back_too(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    slots.push_many([1, 2, 3])
    assert slots.push_many([4, 5]) == FULL
    slots.drain()
    assert slots.take_unpark()


def test_a_producer_that_never_met_the_end_is_not_called_back(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    slots.push(1)
    slots.drain()
    assert not slots.take_unpark()


def test_what_was_pushed_before_the_end_can_still_be_drained(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    slots.push(1)
    assert slots.finish() == 0
    assert not slots.is_finished
    assert slots.drain() == [1]
    assert slots.is_finished
    assert slots.push(2) == CLOSED
    assert slots.push_many([3]) == CLOSED


def test_the_end_wakes_a_consumer_that_sleeps_and_only_once(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    assert slots.finish() == WAKE
    assert slots.finish() == 0
    assert slots.is_finished


def test_a_consumer_that_left_stops_the_producer(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    slots.push(1)
    slots.close()
    slots.close()
    assert slots.is_closed
    assert len(slots) == 0
    assert slots.push(2) == CLOSED
    assert slots.push_many([]) == CLOSED
    assert slots.finish() == 0
    assert slots.drain() == []


def test_the_twins_name_their_flags_alike() -> None:
    from streamco import _native

    assert (_native.FULL, _native.ACCEPTED, _native.WAKE, _native.FILLED, _native.CLOSED) == (0, 1, 2, 4, 8)


class Thing:
    """Something whose end can be watched."""


def test_drained_and_dropped_items_are_let_go(ring: ModuleType) -> None:
    slots = ring.Ring(3)
    things = [Thing() for _ in range(3)]
    watched = [weakref.ref(thing) for thing in things]
    slots.push_many(things)
    del things
    slots.drain(1)
    assert [watch() is None for watch in watched] == [True, False, False]
    slots.close()
    assert [watch() is None for watch in watched] == [True, True, True]


def test_references_are_counted_exactly(ring: ModuleType) -> None:
    thing = Thing()
    before = sys.getrefcount(thing)
    slots = ring.Ring(4)
    for _ in range(50):
        slots.push(thing)
        slots.push_many([thing, thing])
        slots.push_many([thing, thing])
        slots.drain(2)
        slots.drain()
    assert sys.getrefcount(thing) == before
    slots.push(thing)
    assert sys.getrefcount(thing) == before + 1
    del slots
    assert sys.getrefcount(thing) == before


def test_none_is_not_leaked_or_lost(ring: ModuleType) -> None:
    slots = ring.Ring(64)
    before = sys.getrefcount(None)
    for _ in range(200):
        slots.push_many([None] * 64)
        slots.drain()
    assert abs(sys.getrefcount(None) - before) < 100


def test_a_ring_inside_itself_is_collected(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    thing = Thing()
    watch = weakref.ref(thing)
    slots.push((slots, thing))
    del slots, thing
    gc.collect()
    assert watch() is None


def test_an_item_whose_end_uses_the_ring_finds_it_closed(ring: ModuleType) -> None:
    slots = ring.Ring(4)
    seen: list[tuple[int, int]] = []

    class Goodbye:
        def __del__(self) -> None:
            seen.append((len(slots), slots.push(1)))

    slots.push(Goodbye())
    slots.close()
    assert seen == [(0, CLOSED)]


def test_the_type_can_be_subscripted_for_annotations(ring: ModuleType) -> None:
    assert ring.Ring[int].__args__ == (int,)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9)),
        st.tuples(st.just("push_many"), st.integers(0, 5)),
        st.tuples(st.just("drain"), st.integers(0, 4)),
        st.tuples(st.just("unpark"), st.just(0)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=60,
)


class Model:
    """The rules of the ring in the plainest words, one thread."""

    def __init__(self, capacity: int, low_water: int) -> None:
        self.items: deque[int] = deque()
        self.capacity, self.low_water = capacity, low_water
        self.armed, self.starved, self.ended = True, False, False

    def push_all(self, items: list[int]) -> int:
        if self.ended:
            return CLOSED
        if len(self.items) + len(items) > self.capacity:
            self.starved = True
            return FULL
        flags = ACCEPTED | (WAKE if self.armed and items else 0)
        self.armed = self.armed and not items
        self.items.extend(items)
        if items and len(self.items) == self.capacity:
            self.starved = True
            flags |= FILLED
        return flags

    def drain(self, limit: int) -> list[int]:
        taken = [self.items.popleft() for _ in range(min(limit or len(self.items), len(self.items)))]
        self.armed = not self.items
        return taken

    def unpark(self) -> bool:
        answer = self.starved and len(self.items) <= self.low_water
        self.starved = self.starved and not answer
        return answer

    def finish(self) -> int:
        wakes = not self.ended and self.armed
        self.armed = self.armed and not wakes
        self.ended = True
        return WAKE if wakes else 0

    def close(self) -> None:
        self.ended = True
        self.items.clear()


def step(slots: Any, model: Model, name: str, number: int) -> None:
    match name:
        case "push":
            assert slots.push(number) == model.push_all([number])
        case "push_many" if number <= model.capacity:
            assert slots.push_many(list(range(number))) == model.push_all(list(range(number)))
        case "drain":
            assert slots.drain(number) == model.drain(number)
        case "unpark":
            assert slots.take_unpark() == model.unpark()
        case "finish":
            assert slots.finish() == model.finish()
        case "close":
            slots.close()
            model.close()


@given(capacity=st.integers(1, 6), data=st.data(), script=operations)
@settings(max_examples=examples(100, thorough=300))
def test_any_sequence_of_calls_agrees_with_the_plain_rules(
    ring: ModuleType, capacity: int, data: st.DataObject, script: list[tuple[str, int]]
) -> None:
    low_water = data.draw(st.integers(0, capacity - 1))
    slots, model = ring.Ring(capacity, low_water), Model(capacity, low_water)
    for name, number in script:
        step(slots, model, name, number)
        assert len(slots) == len(model.items) <= capacity


class Relay:
    """A producer thread that parks on a full ring and a consumer that sleeps on an empty one, as engine and loop do."""

    def __init__(self, slots: Any, items: int) -> None:
        self.slots, self.items = slots, items
        self.woken, self.unparked = threading.Semaphore(0), threading.Semaphore(0)
        self.stuck = False

    def produce(self) -> None:
        for item in range(self.items):
            while True:
                flags = self.slots.push(item)
                if flags & WAKE:
                    self.woken.release()
                if flags & CLOSED:
                    return
                if flags & ACCEPTED:
                    break
                if not self.unparked.acquire(timeout=30):
                    self.stuck = True
                    return
        if self.slots.finish() & WAKE:
            self.woken.release()

    def consume(self, limit: int) -> list[int]:
        taken: list[int] = []
        while not self.slots.is_finished:
            if not len(self.slots) and not self.woken.acquire(timeout=30):
                raise AssertionError(f"a wake-up was lost after {len(taken)} items")
            taken += self.slots.drain(limit)
            if self.slots.take_unpark():
                self.unparked.release()
        return taken


@pytest.mark.parametrize(("capacity", "limit"), [(1, 0), (2, 1), (7, 0), (64, 5), (512, 0)])
def test_two_threads_lose_no_item_no_order_and_no_wake_up(ring: ModuleType, capacity: int, limit: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        relay = Relay(ring.Ring(capacity), 4000)
        producer = threading.Thread(target=relay.produce)
        producer.start()
        taken = relay.consume(limit)
        producer.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert not relay.stuck
    assert taken == list(range(4000))


def test_a_producer_thread_ends_when_the_consumer_leaves(ring: ModuleType) -> None:
    relay = Relay(ring.Ring(4), 1_000_000_000)
    producer = threading.Thread(target=relay.produce)
    producer.start()
    assert relay.woken.acquire(timeout=30)
    relay.slots.close()
    relay.unparked.release()
    producer.join(30)
    assert not producer.is_alive()
