"""Whether an answer is whole, as calls of the object that decides it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.completeness import Completeness, read_reason

BLANKS = ["", " ", "\n", "null", "NULL", "none", "unspecified", "FINISH_REASON_UNSPECIFIED"]
NO_TEXTS: list[Any] = [None, False, True, 0, 0.0, [], {}, {"type": "stop"}]


@pytest.mark.parametrize("blank", [*BLANKS, *NO_TEXTS])
def test_a_blank_reason_is_none(blank: Any) -> None:
    ends = Completeness()
    ends.record_output()
    assert (read_reason(blank), ends.record_reason(blank), ends.had_reason, ends.is_whole) == (None, None, False, False)


@pytest.mark.parametrize(("given", "reason"), [("stop", "stop"), ("STOP", "STOP"), ("anything", "anything"), (1, "1")])
def test_any_other_reason_stays_as_it_is(given: Any, reason: str) -> None:
    assert read_reason(given) == reason


FAILURES = [
    "error",
    "abort",
    "ABORT",
    "network_error",
    "network-error",
    "insufficient_system_resource",
    "error_finish",
    "timeout",
    "cancelled",
]


@pytest.mark.parametrize("reason", FAILURES)
def test_a_reason_may_mean_a_failure(reason: str) -> None:
    ends = Completeness()
    ends.record_output()
    ends.record_reason(reason)
    assert (ends.failure, ends.is_whole) == (reason, False)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "function_call", "content_filter", "eos", "unheard of"])
def test_output_with_its_reason_is_whole_without_a_formal_end(reason: str) -> None:
    ends = Completeness()
    ends.record_output()
    assert not ends.is_whole
    ends.record_reason(reason)
    assert (ends.is_whole, ends.finish_reason, ends.failure) == (True, reason, None)
    assert ends.record_close(is_proper=False) == "whole"


def test_a_reason_before_any_output_ends_nothing_by_itself() -> None:
    ends = Completeness()
    ends.record_choice()
    ends.record_reason("stop")
    assert not ends.is_whole
    assert ends.record_close(is_proper=False) == "cut"
    assert ends.record_close(is_proper=True) == "whole"


def test_output_takes_a_reason_back_and_from_then_on_only_a_formal_end_counts() -> None:
    ends = Completeness()
    for _ in range(3):
        ends.record_output()
        ends.record_reason("stop")
    assert (ends.is_whole, ends.finish_reason) == (False, "stop")
    assert ends.record_close(is_proper=False) == "cut"
    assert ends.record_end() == "whole"
    assert ends.is_whole


def test_a_reason_that_was_taken_back_is_that_of_an_answer_that_ended_formally() -> None:
    ends = Completeness()
    ends.record_reason("stop")
    ends.record_output()
    assert ends.finish_reason is None
    assert ends.record_close(is_proper=True) == "whole"
    assert ends.finish_reason == "stop"


def test_every_choice_needs_a_reason() -> None:
    ends = Completeness()
    ends.record_output(0)
    ends.record_output(1)
    ends.record_reason("length", 1)
    assert (ends.is_whole, ends.finish_reason, ends.record_close(is_proper=True)) == (False, "length", "cut")
    ends.record_reason("stop", 0)
    assert (ends.is_whole, ends.finish_reason) == (True, "stop")


def test_an_end_without_output_is_none_if_the_choices_had_fields_that_nobody_read() -> None:
    ends = Completeness()
    ends.record_choice(has_unread=True)
    ends.record_reason("stop")
    assert ends.record_end() == "empty"
    ends.record_output()
    assert ends.record_end() == "whole"


def test_an_end_without_output_and_without_other_fields_is_an_empty_answer() -> None:
    ends = Completeness()
    ends.record_choice()
    assert ends.record_end() == "empty"
    ends.record_reason("content_filter")
    assert ends.record_end() == "whole"


def test_a_choice_that_never_began_is_missing_unless_the_end_is_formal() -> None:
    ends = Completeness(choices=2)
    ends.record_output(0)
    ends.record_reason("stop", 0)
    assert (ends.is_whole, ends.record_close(is_proper=False)) == (False, "cut")
    assert ends.record_end() == "whole", "some servers give one choice, whatever was asked for"


@pytest.mark.parametrize("is_late", [False, True])
def test_choices_are_whole_when_each_one_that_was_asked_for_has_its_reason(is_late: bool) -> None:
    ends = Completeness(choices=2)
    ends.record_output(0)
    ends.record_reason("stop", 0)
    if is_late:
        ends.record_output(1)
        assert not ends.is_whole
    ends.record_reason("length", 1)
    assert ends.is_whole


STEPS = st.lists(st.tuples(st.sampled_from(["output", "choice", "reason"]), st.integers(0, 1)), max_size=12)


@given(steps=STEPS)
def test_no_cut_answer_is_whole_unless_all_choices_ended_once_and_last(steps: list[tuple[str, int]]) -> None:
    ends = Completeness()
    for step, choice in steps:
        match step:
            case "output":
                ends.record_output(choice)
            case "choice":
                ends.record_choice(choice)
            case "reason":
                ends.record_reason("stop", choice)
    finished: set[int] = set()
    was_taken_back = False
    for step, choice in steps:
        if step == "output" and choice in finished:
            was_taken_back = True
        finished = finished | {choice} if step == "reason" else finished - {choice} if step == "output" else finished
    seen = {choice for _, choice in steps}
    has_output = any(step == "output" for step, _ in steps)
    expected = has_output and not was_taken_back and bool(seen) and seen <= finished
    assert ends.is_whole == expected
    assert ends.record_close(is_proper=False) == ("whole" if expected else "cut")
