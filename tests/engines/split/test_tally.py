"""The tally of a split model's answer, and the sum of several."""

from __future__ import annotations

import pytest

from streamco.core.report_parts import StatesName
from streamco.core.split.machine import SplitCounts
from streamco.engines.split.tally import BranchCounts, LookupCounts, SplitTally, SplitTraffic, total_traffic


def test_the_format_that_an_answer_was_sent_in_counts() -> None:
    figures = SplitTally(traffic=SplitTraffic(states="f16")).figures(tokens=0, input_layers=2, states="f32")
    assert (figures.states, figures.is_exact, figures.sent) == ("f16", False, "hidden states of layer 2, f16; no token id, no text")


def test_traffic_adds_up_and_each_server_is_named_once() -> None:
    parts = [SplitTraffic(1, 2, 3, 4, 5, ["one"]), SplitTraffic(10, 20, 30, 40, 50, ["two", "one"])]
    assert total_traffic(parts) == SplitTraffic(11, 22, 33, 44, 55, ["one", "two"])
    assert parts[0].servers == ["one"], "the parts stay as they were"
    assert total_traffic([]) == SplitTraffic()


def test_before_the_first_trip_no_tokens_per_trip_are_known() -> None:
    figures = SplitTally().figures(tokens=0, input_layers=0, states="f32")
    assert (figures.trips, figures.tokens_per_trip, figures.servers) == (0, None, [])


@pytest.mark.parametrize(("states", "is_exact"), [("f32", True), ("f16", False), ("i8", False)])
def test_figures_have_what_machine_and_session_counted(states: StatesName, *, is_exact: bool) -> None:
    counts = SplitCounts(chunks=5, rows=40, repeated=7, trips=4, sessions=2)
    traffic = SplitTraffic(100, 50, 40, 9, 4, ["one"])
    tally = SplitTally(counts, traffic, 6, 2, BranchCounts(8, 3, 2, 5, 4), LookupCounts(3, 1))
    figures = tally.figures(tokens=6, input_layers=2, states=states)
    assert (figures.trips, figures.tokens_per_trip, figures.chunks, figures.repeated_rows, figures.sessions) == (4, 1.5, 5, 7, 2)
    assert (figures.bytes_up, figures.bytes_down, figures.rows_up, figures.rows_down) == (100, 50, 40, 9)
    assert (figures.drafted, figures.accepted, figures.servers, figures.is_exact) == (6, 2, ["one"], is_exact)
    assert (figures.looked_up, figures.lookups_accepted) == (3, 1)
    assert (figures.branches, figures.branch_hits, figures.branch_tokens) == (8, 3, 4)
    assert figures.sent == f"hidden states of layer 2, {states}; no token id, no text"
