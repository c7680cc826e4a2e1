"""The report of an answer: figures that travel as JSON, and print as tables."""

from __future__ import annotations

import msgspec

from streamco.core.meter import Quality
from streamco.core.report import Report
from streamco.core.report_parts import AnswerUsage, DispatchReport, EndpointReport, HandOver

DISPATCH = DispatchReport(
    policy="both", constraint="server", device_wait=0.0, server_wait=None, reason="", prompt_tokens=9, budget=0.3, budget_share=None
)
QUALITY = Quality(tbt_p50=0.1, tbt_p99=0.2, delayed_tokens=0, stalls=0, score=1.0)


def test_a_report_travels_as_json() -> None:
    report = Report(
        winner="device",
        ttft=0.2,
        duration=1.0,
        tokens=3,
        tokens_per_second=2.5,
        finish_reason="stop",
        dispatch=DISPATCH,
        endpoints=[EndpointReport(name="device", kind="device", outcome="won", opened=0.0)],
        quality=QUALITY,
        hand_overs=[HandOver(source="server", target="device", position=1, at=0.5, reason="cheaper", is_planned=True)],
        usage=AnswerUsage(9, 3, 12, is_estimated=True),
        ending="complete",
        is_final=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_report_begins_empty_and_not_final() -> None:
    report = Report(
        winner=None, ttft=None, duration=0.0, tokens=0, tokens_per_second=None, finish_reason=None, dispatch=DISPATCH, quality=QUALITY
    )
    assert (report.endpoints, report.hand_overs, report.ending, report.is_final, report.mode) == ([], [], None, False, "race")


def test_a_printed_report_is_a_table_and_its_repr_has_the_fields() -> None:
    report = Report(
        winner="device",
        ttft=0.25,
        duration=2.0,
        tokens=9,
        tokens_per_second=4.5,
        finish_reason="stop",
        dispatch=DISPATCH,
        endpoints=[EndpointReport(name="device", kind="device", outcome="won", opened=0.0)],
        quality=QUALITY,
    )
    lines = report.to_text().splitlines()
    assert len(lines) > 10
    assert len(str(report).splitlines()) < len(lines)
    assert max(map(len, lines)) < 120
    assert any(line.split() == ["first", "token", "after", "250", "ms"] for line in lines)
    assert repr(report).startswith("Report(winner='device', ttft=0.25")
    assert f"{report}" == str(report)
