"""A round's rows by position, and the states that it keeps of batches that read it in parts."""

from __future__ import annotations

import numpy as np

from streamco.server.split.rounds import PendingRound
from streamco.wire.split.frames import Rows
from tests.server.split.test_sessions import some


def pending(count: int, *, position: int, wanted: int) -> PendingRound:
    return PendingRound(Rows(0, 0, position, wanted, "f32", some(count)), 1, is_prompt=True, arrived=0.0)


def test_rows_are_found_by_position_and_those_of_other_rounds_are_left_out() -> None:
    each = pending(5, position=10, wanted=0)
    assert np.array_equal(each.slice_of(11, 13), some(5)[1:3])
    assert np.array_equal(each.slice_of(8, 12), some(5)[:2])
    assert np.array_equal(each.slice_of(13, 99), some(5)[3:])
    assert len(each.slice_of(15, 20)) == len(each.slice_of(5, 10)) == 0


def test_the_wanted_states_are_kept_over_the_batches_and_their_times_are_added() -> None:
    each, states = pending(5, position=10, wanted=3), some(8, 7)
    each.keep(states[:5], 8, 0.25)  # its rows 10 to 13, after two of the round before
    assert each.done == 13
    each.keep(states[5:], 13, 0.5)  # and one row of the round after it
    assert (each.done, each.computed) == (15, 0.75)
    assert np.array_equal(np.concatenate(each.found), states[4:7])
    states[:] = 0.0
    assert np.concatenate(each.found).any(), "a batch's memory may be used again"


def test_a_round_of_which_nothing_is_wanted_keeps_nothing() -> None:
    each = pending(4, position=0, wanted=0)
    each.keep(some(4), 0, 0.1)
    assert (each.done, each.found) == (4, [])
