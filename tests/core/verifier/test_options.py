"""Limits of load and sizes of engines: which are refused, and where the size is no part of the limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import asdict

from streamco.core.verifier.options import LoadLimits, SchedulerOptions
from streamco.errors import ConfigError

SIZE = {"kv_tokens": 1000, "places": 4, "context_tokens": 500, "shared_batches": 0}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sessions": 0}, "sessions: expected at least 1, got 0"),
        ({"sessions_per_device": 0}, "sessions_per_device: expected at least 1, got 0"),
        ({"prefill_within": math.nan}, "prefill_within: expected seconds >= 0, got nan"),
        ({"idle_after": math.inf}, "idle_after: expected seconds >= 0, got inf"),
        ({"forget_after": -1.0}, "forget_after: expected seconds >= 0, got -1.0"),
        ({"min_retry": 1.0, "max_retry": 0.5}, "max_retry: expected at least 1.0 seconds, got 0.5"),
        ({"late_stretch": 5.0}, "expected 1 <= late_stretch <= draft_stretch, got 5.0 and 4.0"),
        ({"late_stretch": 0.5}, "expected 1 <= late_stretch <= draft_stretch, got 0.5 and 4.0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^scheduler: {text}"):
        LoadLimits(**changes)
    with pytest.raises(ConfigError, match=f"^scheduler: {text}"):
        SchedulerOptions(**{**SIZE, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"places": 0}, "places: expected at least 1, got 0"),
        ({"context_tokens": 0}, "context_tokens: expected at least 1, got 0"),
        ({"shared_batches": -1}, "shared_batches: expected 0 or more, got -1"),
        ({"kv_tokens": 499}, "kv_tokens: expected at least 500, one session's, got 499"),
    ],
)
def test_engines_that_hold_no_session_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^scheduler: {text}"):
        SchedulerOptions(**{**SIZE, **changes})


def test_limits_without_end_are_taken() -> None:
    limits = LoadLimits(prefill_within=math.inf, late_stretch=math.inf, draft_stretch=math.inf, idle_after=0.0)
    assert limits.prefill_within == math.inf


def test_limits_and_a_size_make_the_options_of_a_scheduler() -> None:
    limits = LoadLimits(sessions=7, idle_after=1.0)
    options = SchedulerOptions(**SIZE, **asdict(limits))
    assert asdict(options) == {**asdict(limits), **SIZE}
