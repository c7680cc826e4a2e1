"""Prefix reuse: a slot's list of tokens always tells what its cells hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.engines.kv_slots import Slot, SlotTable
from tests.support.examples import examples


class Cells:
    """A memory that knows which tokens it holds."""

    def __init__(self, *, removable: bool = True) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.removable = removable
        self.copies = 0

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        held = self.tokens.setdefault(sequence, [])
        if 0 < start < len(held) and not self.removable:
            return False
        del held[start:]
        return True

    def copy(self, source: int, target: int, stop: int) -> None:
        assert not self.tokens.get(target)
        self.copies += 1
        self.tokens[target] = self.tokens[source][:stop]

    def fill(self, slot: Slot, tokens: list[int]) -> None:
        self.tokens.setdefault(slot.sequence, []).extend(tokens)
        slot.ids += tokens


def run(table: SlotTable, cells: Cells, prompt: list[int], made: list[int]) -> int:
    """A whole generation; gives how many tokens were reused."""
    slot = table.acquire(prompt)
    reused = len(slot.ids)
    cells.fill(slot, prompt[reused:] + made)
    table.release(slot)
    return reused


def test_the_next_turn_finds_the_turn_before() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    assert run(table, cells, [1, 2, 3], [4, 5]) == 0
    assert run(table, cells, [1, 2, 3, 4, 5, 6, 7], [8]) == 5


def test_the_same_prompt_again_decodes_its_last_token() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    run(table, cells, [1, 2, 3], [4, 5])
    assert run(table, cells, [1, 2, 3], []) == 2


def test_two_conversations_keep_a_slot_each() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    run(table, cells, [1, 2, 3, 4], [5])
    run(table, cells, [9, 8, 7, 6], [5])
    assert run(table, cells, [1, 2, 3, 4, 5, 0], [0]) == 5
    assert run(table, cells, [9, 8, 7, 6, 5, 0], [0]) == 5


def test_a_prefix_of_somebody_at_work_is_shared() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    busy = table.acquire([1, 2, 3, 4])
    cells.fill(busy, [1, 2, 3, 4])
    other = table.acquire([1, 2, 3, 9])
    assert other is not busy
    assert other.ids == [1, 2, 3] == cells.tokens[other.sequence]
    assert busy.ids == [1, 2, 3, 4]


def test_a_long_conversation_lends_its_beginning_rather_than_losing_its_end() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    run(table, cells, list(range(20)), [])
    assert run(table, cells, [0, 1, 2, 99], []) == 3
    assert run(table, cells, [*range(20), 20], []) == 20


def test_without_another_slot_the_only_one_is_cut() -> None:
    cells = Cells()
    table = SlotTable(cells, 1, max_idle_tokens=100)
    run(table, cells, list(range(20)), [])
    assert run(table, cells, [0, 1, 2, 99], []) == 3
    assert cells.copies == 0


def test_an_empty_slot_is_taken_before_a_full_one_and_then_the_least_recently_used() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100)
    for start in (10, 20, 30):
        run(table, cells, [start, start + 1], [])
    run(table, cells, [10, 11, 12], [])  # the first is fresh again
    run(table, cells, [40, 41], [])  # takes the place of the second
    assert run(table, cells, [30, 31, 32], []) == 2
    assert run(table, cells, [10, 11, 12, 13], []) == 3
    assert run(table, cells, [20, 21, 22], []) == 0


def test_where_prefixes_cannot_be_shared_only_a_slots_own_memory_is_used() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100, can_share=False)
    busy = table.acquire([1, 2, 3, 4])
    cells.fill(busy, [1, 2, 3, 4])
    assert table.acquire([1, 2, 3, 9]).ids == []
    assert cells.copies == 0


def test_where_memory_cannot_be_cut_the_slot_starts_empty() -> None:
    cells = Cells(removable=False)
    table = SlotTable(cells, 1, max_idle_tokens=100)
    run(table, cells, [1, 2, 3, 4], [5])
    slot = table.acquire([1, 2, 9])
    assert slot.ids == [] == cells.tokens[slot.sequence]


def test_idle_slots_together_keep_a_limited_number_of_tokens() -> None:
    cells = Cells()
    table = SlotTable(cells, 4, max_idle_tokens=10)
    for start in (100, 200, 300):
        run(table, cells, [start + index for index in range(5)], [])
    assert sorted(len(tokens) for tokens in cells.tokens.values()) == [0, 5, 5]
    run(table, cells, list(range(30)), [])
    assert sorted(len(tokens) for tokens in cells.tokens.values()) == [0, 0, 0, 30]  # the last one stays, whatever its length


def test_forgetting_idle_slots_says_whether_it_helped() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=10)
    assert not table.forget_idle()
    run(table, cells, [1, 2, 3], [])
    busy = table.acquire([7, 8])
    cells.fill(busy, [7, 8])
    assert table.forget_idle()
    assert cells.tokens[busy.sequence] == [7, 8]
    assert not table.forget_idle()


def test_the_idle_slot_that_was_used_least_lately_is_forgotten_first() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100)
    for prompt in ([1, 2], [3, 4], [1, 2, 5]):
        run(table, cells, prompt, [])
    assert table.forget_idle()
    assert sorted(tokens for tokens in cells.tokens.values() if tokens) == [[1, 2, 5]]
    assert table.forget_idle()
    assert not any(cells.tokens.values())
    assert not table.forget_idle()


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)


@settings(max_examples=examples(66, thorough=200))
@given(st.integers(1, 4), st.booleans(), st.booleans(), st.lists(st.tuples(prompts, st.booleans()), max_size=20))
def test_ids_and_cells_agree_whatever_happens(count: int, can_share: bool, removable: bool, steps: list[tuple[list[int], bool]]) -> None:
    cells = Cells(removable=removable)
    table = SlotTable(cells, count, max_idle_tokens=12, can_share=can_share)
    busy: list[Slot] = []
    for prompt, ends_another in steps:
        if busy and (ends_another or len(busy) == count):
            table.release(busy.pop(0))
        slot = table.acquire(prompt)
        assert slot not in busy
        assert slot.ids == prompt[: len(slot.ids)]
        assert len(slot.ids) < len(prompt)
        cells.fill(slot, [*prompt[len(slot.ids) :], 2])
        busy.append(slot)
        for each in busy:
            assert cells.tokens[each.sequence] == each.ids


def test_sequence_ids_may_be_apart() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100, can_share=False, stride=2)
    slots = [table.acquire([number]) for number in range(3)]
    assert sorted(slot.sequence for slot in slots) == [0, 2, 4]


def at_work(table: SlotTable, cells: Cells, prompt: list[int], read: int, owner: object = None) -> Slot:
    """A slot that has read so many tokens of a prompt, whatever others have."""
    slot = table.acquire(prompt, owner)
    table.truncate(slot, 0)
    cells.fill(slot, prompt[:read])
    return slot


def test_who_reads_the_same_prompt_has_what_the_other_has_read() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100)
    first, second = at_work(table, cells, [1, 2, 3, 4, 5], 4), at_work(table, cells, [1, 2, 3, 9, 9], 1)
    assert table.catch_up(second, [1, 2, 3, 9, 9], 4) == 2
    assert cells.tokens[second.sequence] == second.ids == [1, 2, 3]
    assert table.catch_up(second, [1, 2, 3, 9, 9], 4) == 0
    assert table.catch_up(first, [1, 2, 3, 4, 5], 4) == 0
    assert cells.tokens[first.sequence] == first.ids == [1, 2, 3, 4]


def test_nobody_catches_up_further_than_told() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    at_work(table, cells, [1, 2, 3, 4, 5], 5)
    second = at_work(table, cells, [1, 2, 3, 4, 5], 0)
    assert table.catch_up(second, [1, 2, 3, 4, 5], 3) == 3
    assert second.ids == [1, 2, 3]


def test_what_ended_left_is_caught_up_with_as_what_is_at_work() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100)
    second = at_work(table, cells, [1, 2, 3, 4], 1)
    run(table, cells, [1, 2, 3], [4])
    assert table.catch_up(second, [1, 2, 3, 4], 4) == 3


def test_what_was_read_for_another_owner_is_not_caught_up_with() -> None:
    cells = Cells()
    table = SlotTable(cells, 4, max_idle_tokens=100)
    at_work(table, cells, [1, 2, 3, 4], 4, "a")
    at_work(table, cells, [1, 2, 3, 4], 3)
    second = at_work(table, cells, [1, 2, 3, 4], 1, "b")
    assert table.catch_up(second, [1, 2, 3, 4], 4) == 0
    third = at_work(table, cells, [1, 2, 3, 4], 1, "a")
    assert table.catch_up(third, [1, 2, 3, 4], 4) == 3


def test_a_dear_copy_is_made_where_it_is_worth_it() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100, can_share=False, can_fork=True, min_copy=3)
    at_work(table, cells, [1, 2, 3, 4, 5, 6], 6)
    second = at_work(table, cells, [1, 2, 3, 4, 5, 6], 2)
    assert table.catch_up(second, [1, 2, 3, 4, 5, 6], 4) == 0
    assert cells.copies == 0
    assert table.catch_up(second, [1, 2, 3, 4, 5, 6], 5) == 3
    assert (second.ids, cells.copies) == ([1, 2, 3, 4, 5], 1)


def test_a_memory_whose_beginnings_are_not_those_of_its_text_is_not_caught_up_with() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100, can_share=False)
    at_work(table, cells, [1, 2, 3], 3)
    assert table.catch_up(at_work(table, cells, [1, 2, 3], 0), [1, 2, 3], 2) == 0


def test_where_copies_are_dear_a_short_beginning_is_not_taken_from_who_would_lose_much() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100, can_share=False, can_fork=True, min_copy=3)
    run(table, cells, list(range(10)), [])
    slot = table.acquire(list(range(3)))
    assert (slot.ids, cells.copies) == ([], 0)
    assert table.catch_up(slot, list(range(9)), 9) == 9
    assert (slot.ids, cells.copies) == (list(range(9)), 1)


@settings(max_examples=examples(66, thorough=200))
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20),
    st.integers(1, 3),
)
def test_caught_up_or_not_the_tokens_are_those_of_the_prompt(prompts: list[list[int]], turns: list[tuple[int, int]], worth: int) -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100, min_copy=worth)
    slots = [at_work(table, cells, prompt, 0) for prompt in prompts]
    for who, count in turns:
        slot, prompt = slots[who], prompts[who]
        before, limit = len(slot.ids), len(prompt) - 1
        found = table.catch_up(slot, prompt, limit)
        assert len(slot.ids) == before + found <= max(before, limit)
        cells.fill(slot, prompt[len(slot.ids) :][:count])
        assert slot.ids == cells.tokens[slot.sequence] == prompt[: len(slot.ids)]


def test_side_paths_free_memory_only_if_they_hold_more_than_their_slot() -> None:
    cells = Cells()
    table = SlotTable(cells, 1, max_idle_tokens=100, side_sequences=[5, 6])
    slot = table.acquire([1, 2, 3])
    cells.fill(slot, [1, 2, 3])
    sides = table.take_sides(slot, 2, [])
    assert sides is not None
    assert not table.forget_idle(), "it would be tried again for ever"
    sides = table.take_sides(slot, 1, [])
    assert sides is not None
    cells.fill(slot, [4])
    cells.fill(sides[0], [7])
    assert table.forget_idle()
    assert cells.tokens[sides[0].sequence] == []
    assert cells.tokens[slot.sequence] == [1, 2, 3, 4]


def test_side_paths_are_forgotten_before_idle_slots() -> None:
    cells = Cells()
    table = SlotTable(cells, 2, max_idle_tokens=100, side_sequences=[5])
    run(table, cells, [7, 8, 9], [])
    slot = table.acquire([1, 2, 3])
    cells.fill(slot, [1, 2, 3])
    sides = table.take_sides(slot, 1, [])
    assert sides is not None
    cells.fill(sides[0], [4])
    assert table.forget_idle()
    assert cells.tokens[sides[0].sequence] == []
    assert [7, 8, 9] in cells.tokens.values()
    assert table.forget_idle()
    assert [7, 8, 9] not in cells.tokens.values()
    assert not table.forget_idle()


def with_sides(table: SlotTable, cells: Cells, owner: str, count: int) -> list[Slot]:
    """Side paths of a new slot of this owner, which is busy."""
    slot = table.acquire([ord(each) for each in owner], owner)
    cells.fill(slot, [ord(each) for each in owner][len(slot.ids) :])
    sides = table.take_sides(slot, count, [])
    assert sides is not None
    return sides


def test_an_owner_with_many_trees_takes_side_paths_of_its_own() -> None:
    cells = Cells()
    table = SlotTable(cells, 6, max_idle_tokens=100, side_sequences=range(10, 20))
    other = with_sides(table, cells, "other", 2)
    first, second = with_sides(table, cells, "many", 4), with_sides(table, cells, "many", 4)
    third = with_sides(table, cells, "many", 4)
    assert not {*other} & {*third}, "though they are the oldest"
    assert len({*first} & {*third}) == len({*second} & {*third}) == 2, "by turns of the slot with the most"
    fourth = with_sides(table, cells, "other", 4)
    assert len({*fourth} & {*third}) >= 2
    assert not {*fourth} & {*other}, "the one with the most gives first"


def test_what_no_owner_has_is_shared_by_slots() -> None:
    cells = Cells()
    table = SlotTable(cells, 3, max_idle_tokens=100, side_sequences=range(10, 18))
    small, large = with_sides(table, cells, "", 1), with_sides(table, cells, "", 7)
    assert {*with_sides(table, cells, "", 4)} < {*large}
    assert small[0].beside is not None
