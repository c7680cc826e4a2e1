"""A drafting device in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
import simpy

from streamco.core.speculation.events import AdoptBranch, DeviceFailed, DraftBranch, DraftTokens, DropDrafts, TokensDrafted
from streamco.sim.fleet.drafting_device import DraftingDevice, SimulatedDrafts


def counting(ids: Sequence[int]) -> Mapping[int, float]:
    """The next number is likely, the one behind it less so."""
    last = ids[-1] if ids else 0
    return {last + 1: 0.7, last + 2: 0.3}


class World:
    def __init__(self, **settings: Any) -> None:
        self.env = simpy.Environment()
        self.events: list[tuple[float, TokensDrafted | DeviceFailed]] = []
        device = DraftingDevice(**{"model": counting, "step_times": (1.0, 1.5), "burst": 100, **settings})
        self.drafts = SimulatedDrafts(self.env, device, lambda event: self.events.append((self.env.now, event)), Random(1))

    def run(self) -> list[tuple[float, int, list[int], bool]]:
        self.env.run()
        return [
            (at, event.version, [token.id for token in event.tokens], event.is_finished)
            for at, event in self.events
            if isinstance(event, TokensDrafted)
        ]


def test_a_draft_takes_a_step_a_token() -> None:
    world = World()
    world.drafts.run(DraftTokens(1, 0, (7,), 3))
    assert world.run() == [(3.0, 1, [8, 9, 10], True)]
    assert world.drafts.ids == [7, 8, 9, 10]


def test_tokens_may_be_told_one_by_one() -> None:
    world = World(burst=1)
    world.drafts.run(DraftTokens(1, 0, (7,), 2))
    assert world.run() == [(1.0, 1, [8], False), (2.0, 1, [9], True)]


def test_what_has_to_be_read_takes_time() -> None:
    world = World(read_time=0.5)
    world.drafts.run(DraftTokens(1, 0, (5, 6, 7), 1))
    assert world.run() == [(2.0, 1, [8], True)]


def test_what_was_written_last_is_read_with_what_comes_behind_it() -> None:
    world = World(read_time=0.5)
    world.drafts.run(DraftTokens(1, 0, (5, 6), 2))
    world.env.run(until=3.0)  # 7 and 8, the latter not read
    world.drafts.run(DraftTokens(2, 3, (9,), 1))  # behind 7, which the step that wrote 8 read
    world.env.run(until=4.5)
    world.drafts.run(DraftBranch(3, 5, (11,), 1))  # behind 10, which nobody read: a token more than the 11
    world.env.run(until=6.5)
    world.drafts.run(DraftBranch(4, 4, (21, 22), 1))
    assert [(at, ids) for at, _, ids, _ in world.run()] == [(2.5, [7, 8]), (4.0, [10]), (6.0, [12]), (8.0, [23])]


def test_a_branch_begins_with_what_the_trunk_has_read() -> None:
    world = World(read_time=0.5, burst=1)
    world.drafts.run(DraftTokens(1, 0, (7,), 3))
    world.env.run(until=2.5)
    world.drafts.run(DropDrafts((1,)))
    world.drafts.run(DraftBranch(2, 3, (), 2))  # 7, 8, 9: the last one comes with the step
    assert [at for at, _, _, _ in world.run()] == [1.0, 2.0, 3.5, 4.5]


def test_a_branch_has_what_the_trunk_is_reading_as_it_is_asked_for() -> None:
    world = World(read_time=0.5, burst=1, step_times=(1.0,))
    world.drafts.run(DraftTokens(1, 0, (7,), 3))
    world.env.run(until=1.5)  # 8 is read in the step that writes 9
    world.drafts.run(DraftBranch(2, 2, (99,), 1))
    assert [(at, version) for at, version, _, _ in world.run()] == [(1.0, 1), (2.0, 1), (3.0, 1), (3.0, 2)]


def test_a_step_is_broken_off_when_all_its_drafts_were_dropped() -> None:
    world = World()
    world.drafts.run(DraftTokens(1, 0, (7,), 1))
    world.run()
    world.events.clear()
    world.drafts.run(DraftBranch(2, 2, (20,), 3))
    world.drafts.run(DraftBranch(3, 2, (30,), 3))
    world.env.run(until=1.5)
    world.drafts.run(DropDrafts((2,)))
    world.env.run(until=1.75)
    world.drafts.run(DropDrafts((3,)))
    world.drafts.run(DraftTokens(4, 2, (40,), 1))
    assert world.run() == [(2.75, 4, [41], True)]


def test_branches_share_their_steps_with_the_trunk() -> None:
    world = World()
    world.drafts.run(DraftTokens(1, 0, (7,), 1))
    world.run()
    world.drafts.run(DraftBranch(2, 2, (), 2))
    world.drafts.run(DraftBranch(3, 1, (20,), 2))
    world.events.clear()
    assert world.run() == [(4.0, 2, [9, 10], True), (4.0, 3, [21, 22], True)]
    world.drafts.run(AdoptBranch(3))
    assert world.drafts.ids == [7, 20, 21, 22]


def test_what_is_dropped_is_told_no_more_but_for_what_is_on_its_way() -> None:
    world = World()
    world.drafts.run(DraftTokens(1, 0, (7,), 3))
    world.env.run(until=1.5)
    world.drafts.run(DropDrafts((1,)))
    assert world.run() == []
    late = World(burst=1, emit_delay=0.7)
    late.drafts.run(DraftTokens(1, 0, (7,), 3))
    late.env.run(until=1.5)
    late.drafts.run(DropDrafts((1,)))
    assert late.run() == [(1.7, 1, [8], False)]


def test_a_draft_ends_with_the_text_and_where_there_is_no_room() -> None:
    world = World(end_ids=frozenset({9}))
    world.drafts.run(DraftTokens(1, 0, (7,), 5))
    assert world.run() == [(2.0, 1, [8, 9], True)]
    full = World(context=2)
    full.drafts.run(DraftTokens(1, 0, (7,), 5))
    assert full.run() == [(2.0, 1, [8], True)]


def test_a_device_that_fails_says_so_and_nothing_more() -> None:
    world = World(fails_at=1.5)
    world.drafts.run(DraftTokens(1, 0, (7,), 5))
    assert world.run() == []
    assert [at for at, event in world.events if isinstance(event, DeviceFailed)] == [1.5]


def test_what_no_device_would_understand_is_refused() -> None:
    world = World()
    with pytest.raises(AssertionError, match="a length of at most 0"):
        world.drafts.run(DraftTokens(1, 3, (), 1))
    world.drafts.run(DraftTokens(1, 0, (7,), 1))
    with pytest.raises(AssertionError, match="dropped or finished"):
        world.drafts.run(DraftTokens(2, 0, (7,), 1))
    with pytest.raises(KeyError):
        world.drafts.run(AdoptBranch(9))


def test_importance_is_that_of_the_tokens_written_so_far() -> None:
    asked: list[tuple[int, int]] = []

    def importance(start: int, count: int) -> float | None:
        asked.append((start, count))
        return 0.5 * count

    world = World(importance=importance, burst=2)
    world.drafts.run(DraftTokens(1, 0, (7, 8), 3))
    world.run()
    assert asked == [(2, 2), (2, 3)]
    assert [event.importance for _, event in world.events if isinstance(event, TokensDrafted)] == [1.0, 1.5]
