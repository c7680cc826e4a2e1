"""A report in one line."""

from __future__ import annotations

import pytest
from msgspec import structs

from streamco.core.report_parts import Grade, HandOver
from streamco.core.report_summary import Figure, speculation_figures, split_figures, summary
from tests.core.test_report_text import FIGURES, TRIPS, make_report, moved


def line_of(figures: list[Figure]) -> str:
    return " · ".join(figure.text for figure in figures)


def test_the_summary_is_one_line_with_who_how_soon_how_fast_and_how_much() -> None:
    assert summary(make_report()) == "device answered · first token 38 ms · 48.1 tokens/s · 132 tokens · $0.0000045"


def test_the_summary_of_a_speculated_answer_says_what_became_of_its_drafts() -> None:
    assert " · 72% of drafts accepted · 30% verified · 30 of 132 tokens not verified · first token" in summary(
        make_report(speculation=FIGURES)
    )
    assert line_of(speculation_figures(make_report())) == ""


def test_the_summary_says_how_much_the_device_wrote_alone_after_its_verifier_was_lost() -> None:
    lost = structs.replace(FIGURES, budget=1.0, device=326)
    assert "326 of 406 tokens by the device alone" in summary(make_report(speculation=lost, tokens=406))
    early = structs.replace(lost, acceptance=None)
    assert line_of(speculation_figures(make_report(speculation=early, tokens=406))) == "326 of 406 tokens by the device alone"


def test_the_summary_of_a_split_model_says_how_many_tokens_a_trip_made() -> None:
    assert "device answered · 1.25 tokens a trip · first token" in summary(make_report(split=TRIPS))
    assert line_of(split_figures(make_report(split=structs.replace(TRIPS, tokens_per_trip=None)))) == ""


@pytest.mark.parametrize(("sessions", "losses"), [(2, "a loss"), (3, "2 losses")])
def test_the_summary_says_which_server_went_on_after_a_loss(sessions: int, losses: str) -> None:
    lost = structs.replace(TRIPS, sessions=sessions, servers=["127.0.0.1:8000", "127.0.0.1:8001"])
    assert line_of(split_figures(make_report(split=lost))) == f"1.25 tokens a trip · went on at 127.0.0.1:8001 after {losses}"


def test_the_summary_of_a_graded_answer_says_what_the_gate_said() -> None:
    sure = Grade(verdict="sure", score=0.912, min_score=0.7, tokens=16, at=0.4)
    assert summary(make_report(grade=sure)).startswith("device answered · sure, 0.91 · first token")
    unsure = structs.replace(sure, verdict="unsure", score=0.34, asked="server")
    assert summary(make_report(grade=unsure, winner="server")).startswith("server answered · the device was unsure, 0.34 · ")
    unknown = structs.replace(sure, verdict="not graded", score=None)
    assert summary(make_report(grade=unknown)).startswith("device answered · not graded · ")


def test_the_summary_of_a_stopped_answer_says_so() -> None:
    assert summary(make_report(), ending="stopped").endswith(" · stopped")


def test_the_summary_of_no_answer_at_all_is_honest() -> None:
    report = make_report(winner=None, ttft=None, tokens=0, tokens_per_second=None, cost_usd=None)
    assert summary(report) == "no endpoint answered · first token - · 0 tokens · cost unknown"


def test_the_summary_of_an_answer_that_changed_hands_says_who_took_over_and_where() -> None:
    change = HandOver(source="server", target="device", position=17, at=1.2, reason="EndpointTimeoutError")
    report = make_report(winner="server", hand_overs=[change])
    assert summary(report).startswith("server answered · device took over after token 17 · first token")


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (0.0006, "moved to device after token 18, 75% cheaper"),
        (-0.0001, "after token 18, 100% more expensive"),
        (None, "after token 18 · first"),
    ],
)
def test_a_planned_move_says_what_it_saved_of_the_cost_without_it(saved: float | None, words: str) -> None:
    assert words in summary(moved(saved))
