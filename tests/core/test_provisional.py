"""The settled answer, what the reader sees of it, and what others hold of it."""

from __future__ import annotations

from random import Random

import pytest

from streamco.core.provisional import Mirror, ProvisionalAnswer
from streamco.core.speculation.events import DeliverIds, RetractIds, SettleIds

NO_END = frozenset[int]()


def test_settled_tokens_are_delivered_with_who_vouches_for_them() -> None:
    answer = ProvisionalAnswer("verified", NO_END, None)
    assert answer.settle([1, 2], "accepted") == 2
    assert answer.settle([3], "corrected") == 1
    assert answer.take_commands() == [DeliverIds((1, 2), "accepted"), DeliverIds((3,), "corrected")]
    assert answer.take_commands() == []
    assert answer.ids == [1, 2, 3]
    assert answer.length == 3


def test_a_reader_of_final_tokens_sees_no_draft() -> None:
    answer = ProvisionalAnswer("verified", NO_END, None)
    answer.propose([1, 2])
    assert answer.take_commands() == []


def test_a_draft_is_shown_at_once_and_settled_where_it_holds() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1])
    answer.propose([1, 2, 3])
    answer.settle([1, 2], "accepted")
    answer.settle([9], "corrected")
    assert answer.take_commands() == [
        DeliverIds((1,), "draft"),
        DeliverIds((2, 3), "draft"),
        SettleIds(2, "accepted"),
        RetractIds(1),
        DeliverIds((9,), "corrected"),
    ]
    assert answer.retracted == 1


def test_another_draft_takes_back_only_what_differs() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1, 2, 3])
    answer.propose([1, 5])
    answer.propose([])
    assert answer.take_commands() == [
        DeliverIds((1, 2, 3), "draft"),
        RetractIds(2),
        DeliverIds((5,), "draft"),
        RetractIds(2),
    ]


def test_tokens_that_turn_out_right_are_settled_one_by_one_without_a_flicker() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1, 2])
    answer.take_commands()
    answer.settle([1], "remote")
    answer.settle([2], "remote")
    assert answer.take_commands() == [SettleIds(1, "remote"), SettleIds(1, "remote")]


def test_nothing_comes_behind_the_end_of_the_text_which_is_settled_and_not_delivered() -> None:
    answer = ProvisionalAnswer("draft", frozenset({0}), None)
    answer.propose([1, 0, 2])
    assert answer.settle([1, 0, 2], "accepted") == 2
    assert answer.ids == [1, 0]
    assert answer.ended == "stop"
    assert answer.settle([3], "bonus") == 0
    answer.propose([4])
    assert answer.take_commands() == [DeliverIds((1,), "draft"), SettleIds(1, "accepted")]


def test_what_was_shown_behind_the_end_is_taken_back() -> None:
    answer = ProvisionalAnswer("draft", frozenset({0}), None)
    answer.propose([1, 2, 3])
    answer.settle([1, 0], "remote")
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), SettleIds(1, "remote"), RetractIds(2)]


def test_an_answer_ends_at_its_limit() -> None:
    answer = ProvisionalAnswer("draft", NO_END, 3)
    answer.propose([1, 2, 3, 4])
    assert answer.left == 3
    assert answer.settle([1, 2, 3, 4], "accepted") == 3
    assert answer.ended == "length"
    assert answer.left == 0
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), SettleIds(3, "accepted")]
    assert ProvisionalAnswer("draft", NO_END, 0).ended == "length"


def test_the_end_of_the_text_at_the_limit_is_a_stop() -> None:
    answer = ProvisionalAnswer("verified", frozenset({0}), 2)
    answer.settle([1, 0], "accepted")
    assert answer.ended == "stop"


def test_an_answer_that_is_ended_takes_back_what_was_provisional_and_keeps_its_first_reason() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1, 2])
    answer.end("stop")
    answer.end("length")
    assert answer.ended == "stop"
    assert answer.take_commands() == [DeliverIds((1, 2), "draft"), RetractIds(2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_who_does_what_is_said_has_what_was_settled(seed: int) -> None:
    dice = Random(seed)
    answer = ProvisionalAnswer("draft", frozenset({0}), dice.choice((None, 12)))
    final: list[int] = []
    shown: list[int] = []
    for _ in range(30):
        ids = [dice.randrange(6) for _ in range(dice.randrange(5))]
        if dice.random() < 0.5:
            answer.propose(ids)
        else:
            answer.settle([*shown[: dice.randrange(3)], *ids], "accepted")
        for command in answer.take_commands():
            match command:
                case DeliverIds(more, "draft"):
                    shown += more
                case DeliverIds(more):
                    assert not shown, f"seed {seed}"
                    final += more
                case SettleIds(count):
                    final += shown[:count]
                    del shown[:count]
                case RetractIds(count):
                    assert count <= len(shown), f"seed {seed}"
                    del shown[len(shown) - count :]
        assert final == [token for token in answer.ids if token != 0], f"seed {seed}"


def test_a_mirror_meets_the_settled_tokens_where_it_holds_them() -> None:
    mirror = Mirror()
    assert mirror.meet([1, 2, 3]) == 0
    mirror.write(0, [1, 2, 9])
    assert mirror.meet([1, 2, 3]) == 2
    mirror.write(2, [3, 4, 5])
    assert mirror.meet([1, 2, 3, 4]) == 4
    assert mirror.ids == [1, 2, 3, 4, 5]
    mirror.write(1, [])
    assert mirror.meet([1, 2, 3, 4]) == 1


def test_a_mirror_can_not_be_cut_to_more_than_it_holds() -> None:
    with pytest.raises(AssertionError, match="holds 0 tokens can't be cut to 2"):
        Mirror().write(2, [1])
