"""Reports in headers and comments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.core.meter import Quality
from streamco.core.report import Report, opening_of
from streamco.core.report_parts import DispatchReport, EndpointReport, SpeculationFigures, SplitFigures
from streamco.proxy.callers.access import BUDGET_HEADER
from streamco.proxy.report_headers import comment, headers, model_header, opening_headers
from streamco.server.http.cors import EXPOSED

DISPATCH = DispatchReport(
    policy="both",
    constraint=None,
    device_wait=0.0,
    server_wait=0.0,
    reason="device, server",
    prompt_tokens=10,
    budget=0.3,
    budget_share=None,
)

QUALITY = Quality(tbt_p50=0.1, tbt_p99=0.2, delayed_tokens=0, stalls=0, score=1.0)


FIGURES = SpeculationFigures(
    acceptance=0.75,
    offloaded_share=0.3,
    budget=0.3,
    hit_rate=None,
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
    fallbacks=0,
    refusals=0,
    losses=0,
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
    repeated_rows=6,
    sessions=2,
    servers=["one:8000", "two:8000"],
    drafted=91,
    accepted=7,
    states="f16",
    is_exact=False,
    sent="hidden states of layer 2, f16; no token id, no text",
)


def make_report(reason: str = "device, server", *, winner: str | None = "device", ttft: float | None = 0.0123) -> Report:
    return Report(
        winner=winner,
        ttft=ttft,
        duration=1.0,
        tokens=5,
        tokens_per_second=4.0,
        finish_reason="stop",
        dispatch=replace(DISPATCH, reason=reason),
        quality=QUALITY,
        cost_usd=0.0000125,
    )


def test_the_headers_say_who_when_what_it_cost_and_why() -> None:
    assert headers(make_report()) == {
        "x-streamco-mode": "race",
        "x-streamco-winner": "device",
        "x-streamco-ttft-ms": "12.3",
        "x-streamco-policy": "both",
        "x-streamco-reason": "device, server",
        "x-streamco-cost-usd": "0.000012500",
    }


def test_what_is_not_known_yet_is_left_out() -> None:
    assert set(opening_headers(opening_of(make_report(winner=None, ttft=None)))) == {
        "x-streamco-mode",
        "x-streamco-policy",
        "x-streamco-reason",
    }


def test_the_headers_of_a_speculated_answer_say_what_became_of_its_drafts() -> None:
    told = headers(replace(make_report(), mode="speculate", speculation=FIGURES))
    assert told["x-streamco-mode"] == "speculate"
    assert told["x-streamco-acceptance"] == "0.7500"
    assert told["x-streamco-offloaded-share"] == "0.3000"
    assert told["x-streamco-rounds"] == "12"
    assert told["x-streamco-exact"] == "false"
    assert "x-streamco-hit-rate" not in told


def test_the_headers_of_a_split_models_answer_say_what_went_over_the_wire() -> None:
    told = headers(replace(make_report(), mode="split", split=TRIPS))
    figures = {"trips": "24", "tokens-per-trip": "1.2500", "bytes-up": "345854", "bytes-down": "265359", "sessions": "2", "exact": "false"}
    assert {f"x-streamco-{name}": value for name, value in {"mode": "split", **figures}.items()}.items() <= told.items()
    assert "x-streamco-tokens-per-trip" not in headers(replace(make_report(), split=replace(TRIPS, trips=0, tokens_per_trip=None)))


def test_a_web_page_of_another_origin_may_read_every_header() -> None:
    report = replace(make_report(), notes=["a note"], speculation=replace(FIGURES, hit_rate=0.5), split=TRIPS)
    device = EndpointReport(name="device", kind="device", outcome="won")
    sent = {**headers(report), **model_header(opening_of(replace(report, endpoints=[device])), "gpt-4o")}
    exposed = {name for name in EXPOSED.split(", ") if name.startswith("x-streamco-")}
    assert {*sent, BUDGET_HEADER} == exposed


@pytest.mark.parametrize(
    ("reason", "shown"), [("für\r\nX-Evil: 1", "f\\xfcr\\u000d\\u000aX-Evil: 1"), ("…", "\\u2026"), ("a\x00", "a\\u0000")]
)
def test_a_header_is_printable_ascii(reason: str, shown: str) -> None:
    assert headers(make_report(reason))["x-streamco-reason"] == shown


@given(st.text())
def test_no_text_breaks_out_of_its_header_or_comment(words: str) -> None:
    device = EndpointReport(name="device", kind="device", outcome="won")
    report = replace(make_report(words), endpoints=[device], notes=[words, words])
    for value in (headers(report) | model_header(opening_of(report), words)).values():
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 500


def test_a_comment_is_the_whole_report_on_one_line() -> None:
    line = comment(make_report("two\nlines"))
    assert line.startswith(b": streamco {")
    assert line.endswith(b"}\n\n")
    assert line.count(b"\n") == 2
    assert json.loads(line[len(b": streamco ") :])["dispatch"]["reason"] == "two\nlines"
