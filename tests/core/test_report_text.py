from __future__ import annotations

import pytest
from msgspec import structs

from streamco.core.meter import Quality
from streamco.core.report import Report, report_sections, saved_share
from streamco.core.report_parts import DispatchReport, EndpointReport, HandOver, SpeculationFigures, SplitFigures
from streamco.core.report_text import format_joules, format_saving, format_seconds, format_usd, sections_to_text

FIGURES = SpeculationFigures(
    acceptance=0.721,
    offloaded_share=0.301,
    budget=0.3,
    hit_rate=0.5,
    ahead_rate=0.25,
    rounds=12,
    bytes_up=300,
    bytes_down=200,
    drafted=90,
    wasted=20,
    accepted=36,
    corrected=8,
    bonus=4,
    device=30,
    remote=0,
    target_tokens=60,
    fallbacks=1,
    refusals=0,
    losses=2,
    retracted=0,
    is_exact=False,
)

TRIPS = SplitFigures(
    trips=24,
    tokens_per_trip=1.25,
    bytes_up=345_854,
    bytes_down=265_359,
    rows_up=150,
    rows_down=115,
    chunks=25,
    repeated_rows=0,
    sessions=1,
    servers=["127.0.0.1:8000"],
    drafted=91,
    accepted=7,
    states="f32",
    is_exact=True,
    sent="hidden states of layer 2, f32; no token id, no text",
)


def make_report(**changes: object) -> Report:
    fields: dict[str, object] = {
        "winner": "device",
        "ttft": 0.0384,
        "duration": 2.5,
        "tokens": 132,
        "tokens_per_second": 48.06,
        "finish_reason": "stop",
        "dispatch": DispatchReport(
            policy="device-constrained",
            constraint="device",
            device_wait=0.0,
            server_wait=0.25,
            reason="short prompt",
            prompt_tokens=31,
            budget=0.3,
            budget_share=0.125,
        ),
        "endpoints": [
            EndpointReport(
                name="device",
                kind="device",
                outcome="won",
                opened=0.0,
                ttft=0.038,
                prompt_tokens=31,
                completion_tokens=132,
                cost_usd=0.0,
                energy_j=2.345,
            ),
            EndpointReport(
                name="server",
                kind="server",
                outcome="lost",
                opened=0.25,
                prompt_tokens=30,
                is_estimated=True,
                cost_usd=0.0000045,
                error="cut short",
            ),
        ],
        "quality": Quality(tbt_p50=0.208, tbt_p99=0.31, delayed_tokens=3, stalls=1, score=0.987, gap_p50=0.02, gap_p99=0.11),
        "cost_usd": 0.0000045,
        "energy_j": 2.345,
        "wasted_tokens": 7,
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0, "0 ms"), (0.0384, "38 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (12.345, "12.35 s")]
)
def test_times_are_milliseconds_below_a_second(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (None, "unknown"),
        (0.0, "$0"),
        (1.5, "$1.5"),
        (2.0, "$2"),
        (0.0123, "$0.0123"),
        (0.00234, "$0.0023"),
        (0.0000045, "$0.0000045"),
        (0.000012, "$0.000012"),
        (1e-6 * 10, "$0.00001"),
    ],
)
def test_costs_keep_two_digits_that_mean_something(dollars: float | None, text: str) -> None:
    assert format_usd(dollars) == text


@pytest.mark.parametrize(("joules", "text"), [(None, "-"), (0.0, "0 J"), (2.345, "2.3 J"), (123.4, "123 J")])
def test_energy_is_rounded(joules: float | None, text: str) -> None:
    assert format_joules(joules) == text


def test_a_speculated_answer_has_a_table_of_its_own() -> None:
    text = sections_to_text(report_sections(make_report(speculation=FIGURES)))
    for words in (
        "tokens                                    36 accepted, 8 corrected, 4 bonus, 30 not verified",
        "of drafts verified, their budget          30.1%, 30.0%",
        "next draft ready with the verdict         50.0%",
        "rounds, bytes up and down                 12, 300 and 200",
        "drafted, of these not in the answer       90, 20",
        "server alone, refusals, lost connections  1, 0, 2",
        "the server's own answer                   no",
    ):
        assert words in text, text


def test_an_answer_of_a_split_model_has_a_table_of_its_own() -> None:
    text = sections_to_text(report_sections(make_report(split=TRIPS)))
    for words in (
        "sent to the server               hidden states of layer 2, f32; no token id, no text",
        "up                               150 states, 345854 bytes",
        "down                             115 states, 265359 bytes",
        "trips, tokens a trip             24, 1.25",
        "messages up, states sent again   25, 0",
        "drafted, of these in the answer  91, 7",
        "servers, sessions                127.0.0.1:8000; 1",
        "states lost nothing on the way   yes",
    ):
        assert f"  {words}" in text.split("\n"), text


def test_the_table_has_parallel_drafts_only_if_there_were_any() -> None:
    looked_up = structs.replace(TRIPS, looked_up=9, lookups_accepted=7)
    assert "drafted from earlier text, of these in the answer  9, 7" in sections_to_text(report_sections(make_report(split=looked_up)))
    assert "earlier text" not in sections_to_text(report_sections(make_report(split=TRIPS)))
    ahead = structs.replace(TRIPS, branches=30, branch_hits=12, branch_tokens=20)
    assert "drafted ahead, of these right, their tokens  30, 12, 20" in sections_to_text(report_sections(make_report(split=ahead)))
    assert "drafted ahead" not in sections_to_text(report_sections(make_report(split=TRIPS)))


def test_the_whole_report_is_told_in_three_tables() -> None:
    text = sections_to_text(report_sections(make_report()))
    lines = text.split("\n")
    assert [line for line in lines if line and not line.startswith(" ")] == ["answer", "which side starts when", "endpoints"]
    for words in (
        "answered by                              device",
        "first token after                        38 ms",
        "between tokens, median and p99           20 ms, 110 ms",
        "delayed tokens, stalls                   3, 1",
        "tokens not delivered                     7",
        "why                           short prompt",
        "device starts                 at once",
        "server starts                 after 250 ms",
        "its budget, its share so far  30.0%, 12.5%",
        "device    won      0 ms     38 ms  31      132   $0          2.3 J",
        "server    lost     250 ms   -      ~30     ~0    $0.0000045  -",
        "server: cut short",
    ):
        assert f"  {words}" in lines, text


def test_the_short_report_leaves_out_what_says_nothing() -> None:
    device = EndpointReport(name="device", kind="device", outcome="won", opened=0.0, ttft=0.04, energy_j=2.3)
    calm = Quality(tbt_p50=0.02, tbt_p99=0.1, delayed_tokens=0, stalls=0, score=1.0)
    alone = make_report(endpoints=[device], quality=calm, wasted_tokens=0)
    labels = [row[0] for section in report_sections(alone, is_short=True) for row in section.rows]
    assert labels == ["answered by", "why", "first token after", "whole answer after", "tokens", "prompt", "cost"]
    assert str(alone) == alone.to_text(is_short=True) != alone.to_text()


def test_the_short_report_has_what_went_otherwise_than_usual() -> None:
    dispatch = structs.replace(make_report().dispatch, reason="no room in the budget: server not started")
    text = str(make_report(dispatch=dispatch, finish_reason="length", is_energy_measured=True))
    for words in (
        "ended because of                         length",
        "delayed tokens, stalls                   3, 1",
        "tokens not delivered                     7",
        "energy on this device                    2.3 J (measured, the whole processor's)",
        "its budget, its share so far             30.0%, 12.5%",
        "server: cut short",
    ):
        assert words in text, text
    drafts = structs.replace(FIGURES, budget=1.0, fallbacks=0, refusals=0, losses=0)
    assert "server alone, refusals" not in str(make_report(speculation=drafts))
    assert "states lost nothing" not in str(make_report(split=TRIPS))


def test_an_endpoint_that_waits_for_a_failure_is_told_as_such() -> None:
    dispatch = DispatchReport(
        policy="server-only",
        constraint=None,
        device_wait=None,
        server_wait=0.0,
        reason="server alone",
        prompt_tokens=9,
        budget=0.3,
        budget_share=None,
    )
    text = sections_to_text(report_sections(make_report(dispatch=dispatch, endpoints=[])))
    assert "device starts                 only if the other side fails" in text
    assert "constrained side              none" in text
    assert "its budget, its share so far  30.0%, -" in text


def test_an_answer_that_changed_hands_has_a_row_with_who_took_over_and_where() -> None:
    change = HandOver(source="server", target="device", position=17, at=1.2, reason="EndpointTimeoutError")
    report = make_report(winner="server", hand_overs=[change])
    assert "device, after token 17 (EndpointTimeoutError)" in sections_to_text(report_sections(report))


def test_the_report_says_whether_energy_was_measured() -> None:
    estimated = sections_to_text(report_sections(make_report()))
    assert "2.3 J (estimated)" in estimated
    assert "measured" not in estimated
    assert "2.3 J (measured, the whole processor's)" in sections_to_text(report_sections(make_report(is_energy_measured=True)))
    unknown = sections_to_text(report_sections(make_report(energy_j=None)))
    assert "measured" not in unknown
    assert "estimated" not in unknown


def moved(saved: float | None, **changes: object) -> Report:
    """The server began for $0.0002, the device went on; all it took is in the unified cost."""
    fields: dict[str, object] = {"source": "server", "target": "device", "position": 18, "at": 1.2, "reason": "cheaper", "is_planned": True}
    change = HandOver(**(fields | {"buffered": 12, "pause": 0.095, "delayed_tokens": 1, "saved_usd": saved} | changes))  # type: ignore[arg-type]
    return make_report(winner="server", hand_overs=[change], unified_cost_usd=0.0002)


def test_the_report_tells_what_the_reader_saw_of_a_move_and_what_it_saved() -> None:
    lines = sections_to_text(report_sections(moved(0.0006))).split("\n")
    for words in (
        "then                                      device, after token 18 (cheaper)",
        "its first token, tokens in hand, delayed  95 ms, 12, 1",
        "saved by it, energy included              $0.0006 (75%)",
    ):
        assert f"  {words}" in lines, lines
    assert "  saved by it, energy included              unknown" in sections_to_text(report_sections(moved(None))).split("\n")


def test_each_of_several_moves_has_its_share() -> None:
    (first,) = moved(0.0006).hand_overs
    second = HandOver(source="device", target="other", position=40, at=2.0, reason="cheaper", is_planned=True, saved_usd=0.0002)
    report = make_report(hand_overs=[first, second], unified_cost_usd=0.0002)
    assert [saved_share(report, change) for change in report.hand_overs] == pytest.approx([0.6, 0.2])


@pytest.mark.parametrize(("dollars", "text"), [(None, "unknown"), (0.0006, "$0.0006"), (-0.0006, "-$0.0006"), (0.0, "$0")])
def test_a_loss_has_a_sign(dollars: float | None, text: str) -> None:
    assert format_saving(dollars) == text


@pytest.mark.parametrize(
    ("counter", "is_said"), [("tiktoken o200k_base", True), ("token ids", True), ("usage", False), ("estimate", False)]
)
def test_what_counted_in_place_of_the_endpoint_is_said(counter: str, is_said: bool) -> None:
    part = EndpointReport(name="server", kind="server", outcome="failed", opened=0.1, completion_tokens=5, counted_by=counter)
    assert (f"server: tokens counted by {counter}" in make_report(endpoints=[part]).to_text()) is is_said


def test_a_prompt_that_was_only_estimated_is_marked() -> None:
    counted = make_report()
    guessed = structs.replace(counted, dispatch=structs.replace(counted.dispatch, is_estimated=True))
    assert (" 31 tokens" in str(counted), "~31 tokens" in str(counted)) == (True, False)
    assert "~31 tokens" in str(guessed)
