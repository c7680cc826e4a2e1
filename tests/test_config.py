"""Options: paces, shares, and how far a device may run ahead."""

from __future__ import annotations

from importlib import import_module
from math import inf, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.modes.race.mode import Race
from streamco.config import (
    LISTENING,
    READING,
    Limits,
    Options,
    Pace,
    ReaderPace,
    RetryPolicy,
    Timeouts,
    check_share,
    fixed_rate,
    parse_pace,
)
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from tests.test_documented_imports import PUBLIC


@pytest.mark.parametrize(
    ("pace", "rate"), [(None, None), ("reading", READING), ("listening", LISTENING), (7, 7.0), (0.5, 0.5), ("smooth", "smooth")]
)
def test_a_pace_is_a_name_a_number_or_none(pace: Pace, rate: ReaderPace) -> None:
    assert parse_pace(pace) == rate


@pytest.mark.parametrize(("pace", "rate"), [(None, None), ("smooth", None), (7.0, 7.0)])
def test_a_smooth_pace_sets_no_rate(pace: ReaderPace, rate: float | None) -> None:
    assert fixed_rate(pace) == rate


@pytest.mark.parametrize("pace", [0, -1.0, float("inf"), float("nan"), True, "fast", "4.8"])
def test_any_other_pace_is_refused(pace: Pace) -> None:
    with pytest.raises(ConfigError, match=r"pace: expected None, tokens per second > 0, .* got "):
        parse_pace(pace)


@pytest.mark.parametrize("share", [0, 0.3, 1.0])
def test_a_share_lies_between_0_and_1(share: float) -> None:
    check_share("budget", share)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "0.3", None])
def test_any_other_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="budget: expected a share from 0 to 1, got"):
        check_share("budget", share)


@pytest.mark.parametrize(
    ("pace", "tokens"), [(1.0, 32), (5.0, 100), (1000.0, 4096)], ids=["few", "its lookahead", "no more than may be unread"]
)
def test_a_device_runs_ahead_by_seconds_of_reading_between_two_bounds(pace: float, tokens: int) -> None:
    assert Limits(lookahead=20.0, unread_tokens=4096).tokens_ahead(pace) == tokens


@pytest.mark.parametrize("name", ["connect", "first_token", "next_token", "socket", "cancel"])
@pytest.mark.parametrize("value", [-1, 0, "5", float("nan"), True])
def test_a_timeout_that_nothing_can_keep_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"timeouts: {name}: expected seconds above 0 or None"):
        Timeouts(**{name: value})


def test_a_number_of_retries_is_a_whole_number() -> None:
    for attempts in (0.5, inf, nan, "2", True, None):
        with pytest.raises(ConfigError, match="retry: attempts: expected a whole number, got"):
            RetryPolicy(attempts=attempts)  # type: ignore[arg-type]


def test_a_wait_before_a_retry_is_a_number_of_seconds() -> None:
    with pytest.raises(ConfigError, match="retry: backoff: expected seconds, got inf"):
        RetryPolicy(backoff=inf)
    for wait in (nan, "1", True, None):
        with pytest.raises(ConfigError, match="expected 0 or more, got"):
            RetryPolicy(longest_wait=wait)  # type: ignore[arg-type]
    assert RetryPolicy(longest_wait=inf).longest_wait == inf


@pytest.mark.parametrize("name", ["attempts", "backoff", "longest_wait"])
def test_a_retry_below_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"retry: {name}: expected 0 or more, got -1"):
        RetryPolicy(**{name: -1})


@given(st.floats(0.1, 1000.0), st.floats(0.0, 100.0), st.integers(1, 10_000))
def test_a_devices_buffers_together_keep_to_the_tokens_ahead(pace: float, lookahead: float, unread: int) -> None:
    limits = Limits(lookahead=lookahead, unread_tokens=unread)
    held, kept = limits.device_buffers(pace)
    assert held >= 1
    assert kept >= 1
    assert held + 2 * kept <= max(3, limits.tokens_ahead(pace))
    assert held + 2 * kept <= limits.tokens_ahead(pace), "exactly: none of them has room that is not in the sum"


@pytest.mark.parametrize("name", ["event_bytes", "body_bytes", "answer_bytes", "unread_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, None])
def test_a_limit_is_a_whole_number_above_0(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"limits: {name}: expected a whole number above 0, got"):
        Limits(**{name: value})


@pytest.mark.parametrize("value", [-1, nan, "5", True, None])
def test_a_lookahead_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(ConfigError, match="limits: lookahead: expected 0 s or more, got"):
        Limits(lookahead=value)


@pytest.mark.parametrize("name", ["threads", "context_tokens", "held_sequences", "held_tokens"])
@pytest.mark.parametrize("value", ["two", 1.5, True])
def test_an_engines_sizes_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"engine: {name}: expected a whole number, got"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize("name", ["timeouts", "retry", "limits", "prices", "capabilities"])
def test_an_endpoints_options_have_their_types(name: str) -> None:
    options: dict[str, Any] = {name: 5}
    with pytest.raises(ConfigError, match=f"{name}: expected .*, got int"):
        OpenAIEndpoint("m", base_url="http://127.0.0.1:9/v1", **options)


@pytest.mark.parametrize(("name", "value"), [("gate", 5), ("reader_rate", 0), ("reader_rate", nan), ("reader_rate", "5")])
def test_options_for_dispatch_that_nothing_could_use_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"race: {name}: expected"):
        Race(**{name: value})


def public_options() -> list[type[Options]]:
    """Return the options that users write, in the public modules."""
    found = [getattr(import_module(module), name) for module in PUBLIC for name in import_module(module).__all__]
    kinds = {each for each in found if isinstance(each, type) and issubclass(each, Options)}
    return sorted(kinds, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", public_options(), ids=lambda kind: kind.__name__)
def test_an_option_without_its_name_is_told_it(kind: type[Options]) -> None:
    name, first = kind.__name__, kind.__struct_fields__[0]
    with pytest.raises(TypeError, match=rf"^{name}: expected names, as in {name}\({first}=5\), got positional arguments$"):
        kind(5)
    with pytest.raises(TypeError, match=rf"^{name}: expected {first}, .*got an unexpected keyword argument '{first}s'; did you mean"):
        kind(**{f"{first}s": 5})


def test_the_example_has_what_was_given() -> None:
    with pytest.raises(TypeError, match=r"as in TokenPrices\(prompt=5e-06, completion=3e-05\), got"):
        TokenPrices(5e-6, 3e-5)  # type: ignore[call-arg]
    assert {"Race", "Speculate", "Timeouts", "Capabilities", "MigrationOptions"} <= {kind.__name__ for kind in public_options()}


def test_options_are_read_and_replaced_as_any_struct() -> None:
    prices = msgspec.json.decode(b'{"prompt": 1}', type=TokenPrices)
    assert msgspec.structs.replace(prices, completion=2.0) == TokenPrices(prompt=1.0, completion=2.0)
