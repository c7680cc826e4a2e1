"""The order in which devices get places."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamco.core.verifier.turns import Room, Turns

NONE: Counter[str] = Counter()


def waiting(*devices: str) -> Turns:
    turns = Turns()
    for device in devices:
        turns.wait(device, 10, 1.0, now=0.0)
    return turns


def test_of_two_devices_with_as_many_places_the_one_that_asked_first_is_first() -> None:
    turns = waiting("a", "b")
    turns.wait("a", 30, 1.0, now=1.0)  # asks again, and keeps its turn
    assert turns.before("a", NONE, now=1.0) == Room()
    assert turns.before("b", NONE, now=1.0) == Room(1, 30)
    assert turns.before("c", NONE, now=1.0) == Room(2, 40)
    assert turns.without_place(NONE, now=1.0) == [("a", 30), ("b", 10)]


def test_a_device_without_a_place_is_before_one_that_asked_first_and_has_some() -> None:
    turns, held = waiting("greedy", "new"), Counter(greedy=3)
    assert turns.before("new", held, now=0.0) == Room()
    assert turns.before("greedy", held, now=0.0) == turns.before("another", Counter(greedy=3, another=1), now=0.0) == Room(1, 10)
    assert turns.without_place(held, now=0.0) == [("new", 10)]


def test_places_that_a_device_has_grow_only_if_those_that_would_still_have_fewer_can_have_theirs() -> None:
    turns = waiting("new")
    assert turns.deprived("greedy", Counter(greedy=2), now=0.0) == Room(1, 10)
    assert turns.deprived("modest", Counter(modest=1), now=0.0) == Room()


def test_one_who_does_not_ask_again_in_time_or_is_gone_waits_no_more() -> None:
    turns = waiting("a", "b")
    turns.end("a")
    turns.end("never there")
    assert turns.before("c", NONE, now=1.9) == Room(1, 10)
    assert turns.before("c", NONE, now=2.0) == Room()
    assert not turns


DEVICES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(DEVICES, st.integers(1, 50), st.floats(0.0, 3.0)), max_size=30), st.dictionaries(DEVICES, st.integers(0, 5)))
def test_no_device_without_a_place_waits_behind_one_that_has_some(asks: list[tuple[str, int, float]], places: dict[str, int]) -> None:
    turns, held, now, tokens = Turns(), Counter(places), 0.0, dict[str, int]()
    for device, count, passes in asks:
        now += passes / 10
        turns.wait(device, count, 1.0, now=now)
        tokens[device] = count
    for device in "abcdef":
        room = turns.before(device, held, now=now)
        others = [each for each in tokens if each != device and held[each] <= held[device]]
        assert room.places <= len(others)
        assert room.tokens <= sum(tokens[each] for each in others)
    ranks = [turns.before(device, held, now=now).places for device, _ in turns.without_place(held, now=now)]
    assert ranks == list(range(len(ranks))), "those without a place come first, each in its turn"
