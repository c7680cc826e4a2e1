"""The table of limits says what the code says, and leaves none of its settings out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.release import tabulate_limits as limits
from streamco.config import Limits, RetryPolicy, Timeouts
from streamco.core.verifier.options import LoadLimits
from streamco.server.options import ServeOptions
from streamco.server.verify.options import VerifyOptions

PACKAGE = Path(__file__).resolve().parents[3] / "streamco"

OTHERWISE = {"port", "latency_seed", "late_stretch", "late_grace", "draft_stretch", "allow_open", "metrics"}
"""Numbers and switches that limit nothing, or only when a verdict counts as late."""


def test_the_page_has_the_present_table() -> None:
    page = limits.PAGE.read_text()
    assert page == limits.render(page), "run: python -m bench.release.tabulate_limits"


@pytest.mark.parametrize("options", [ServeOptions(), VerifyOptions(), LoadLimits(), Limits(), Timeouts(), RetryPolicy()])
def test_every_number_of_the_options_is_in_the_table(options: object) -> None:
    named = {row.name for row in limits.ROWS}
    numbers = {name for name in options.__struct_fields__ if isinstance(getattr(options, name), int | float)}  # type: ignore[attr-defined]
    assert numbers - OTHERWISE <= named


@pytest.mark.parametrize("row", limits.ROWS, ids=lambda row: f"{row.name} in {row.checked}")
def test_each_limit_is_named_where_it_is_said_to_be_checked(row: limits.Row) -> None:
    assert re.search(rf"\b{row.name}\b", (PACKAGE / row.checked).read_text())


def test_values_are_shown_with_their_units() -> None:
    def shown(value: float | None, unit: limits.Unit) -> str:
        return limits._shown(limits.Row("", "", value, unit, "", "", ""))

    assert [shown(16 << 20, "bytes"), shown(65_536, "bytes"), shown(2.5, "s"), shown(250_000, ""), shown(None, "s")] == [
        "16 MiB",
        "64 KiB",
        "2.5 s",
        "250,000",
        "none",
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [(32, "32 bytes"), (1023, "1,023 bytes"), (1024, "1 KiB"), (1500, "1,500 bytes"), (3 << 19, "1,536 KiB"), (1 << 20, "1 MiB")],
)
def test_sizes_are_shown_without_rounding(size: int, text: str) -> None:
    assert limits._shown_size(size) == text


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(AssertionError, match="expected the marks"):
        limits.render("# Security")
