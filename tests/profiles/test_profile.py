"""Speeds, prices and shapes hold what they say, and a profile survives its JSON."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.profiles import (
    PROFILE_VERSION,
    DeviceSpeed,
    LengthDistribution,
    Link,
    ModelShape,
    Prices,
    Profile,
    RemainingLength,
    TTFTDistribution,
)
from streamco.profiles.profile import check_quality

samples = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50)

FULL = Profile(
    quality={"device": 0.3, "server": 0.8},
    name="phone",
    server_ttft=TTFTDistribution([0.2, 0.5, 1.5], [0.6, 0.1, 0.0]),
    server_tokens_per_s=42.0,
    device=DeviceSpeed(seconds_per_token=0.03, overhead=0.1, decode_tokens_per_s=14.0, jitter=(0.9, 1.0, 1.2)),
    lengths=LengthDistribution([3, 9, 20], [5, 2, 1]),
    answers=RemainingLength((5, 60, 400), (0.8, 0.3, 0.01)),
    prices=Prices(prompt=0.15e-6, completion=0.6e-6),
    shape=ModelShape(layers=24, width=1024, heads=16, ffn_width=4096, vocabulary=250_880),
    link=Link(rtt=0.04, bytes_per_s=1e6),
    note="made up",
)


# Speeds, prices, shapes


def test_device_time_is_a_line() -> None:
    device = DeviceSpeed.from_rates(50.0, 20.0, overhead=0.25)
    assert device.ttft(100) == pytest.approx(2.25)
    assert device.decode_tokens_per_s == 20.0


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds_per_token": -0.1},
        {"seconds_per_token": math.nan},
        {"seconds_per_token": 0.1, "overhead": -1.0},
        {"seconds_per_token": 0.1, "decode_tokens_per_s": 0.0},
        {"seconds_per_token": 0.1, "jitter": ()},
        {"seconds_per_token": 0.1, "jitter": (1.0, 0.0)},
    ],
)
def test_impossible_speeds_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="device speed: expected"):
        DeviceSpeed(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="expected prefill tokens per second > 0"):
        DeviceSpeed.from_rates(rate)


def test_negative_prices_are_refused() -> None:
    with pytest.raises(ConfigError, match="prices: completion: expected US dollars per token >= 0, got -1"):
        Prices(prompt=0.0, completion=-1)
    with pytest.raises(ConfigError, match="prices: cached_prompt"):
        Prices(prompt=0.0, completion=0.0, cached_prompt=math.nan)


def test_a_shape_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="model shape: layers: expected >= 1, got 0"):
        ModelShape(layers=0, width=8, ffn_width=8, vocabulary=8)


# Profiles


def test_a_profile_survives_its_json() -> None:
    assert Profile.from_json(FULL.to_json()) == FULL
    assert Profile.from_json(FULL.to_json().decode()) == FULL
    assert Profile.from_json(Profile().to_json()) == Profile()


@given(samples, st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_learned_distributions_survive_bit_for_bit(values: list[float], lengths: list[int]) -> None:
    profile = Profile(server_ttft=TTFTDistribution.from_samples(values), lengths=LengthDistribution.from_samples(lengths))
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert again.to_json() == profile.to_json()


def test_the_json_is_meant_to_be_read() -> None:
    written = msgspec.json.decode(FULL.to_json())
    assert written["version"] == PROFILE_VERSION
    assert written["server_ttft"] == {"times": [0.2, 0.5, 1.5], "survival": [0.6, 0.1, 0.0]}
    assert written["lengths"] == {"lengths": [3, 9, 20], "counts": [5.0, 2.0, 1.0]}
    assert FULL.to_json().count(b"\n") > 20


def test_fields_of_later_releases_are_ignored() -> None:
    assert Profile.from_json(b'{"version": 1, "name": "x", "colour": "red"}') == Profile(name="x")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "expected a profile in JSON"),
        (b"{", "expected a profile in JSON"),
        (b"\xff\xfe", "expected a profile in JSON"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `version`"),
        (b'{"version": 2}', "expected profile version 1, got 2"),
        (b'{"version": 1, "name": 3}', r"Expected `str`, got `int` - at `\$.name`"),
        (b'{"version": 1, "device": {"seconds_per_token": -1}}', r"expected seconds per token >= 0.*\$.device"),
        (b'{"version": 1, "server_ttft": {"times": [1]}}', r"survival.*\$.server_ttft"),
        (b'{"version": 1, "server_ttft": {"times": [2, 1], "survival": [1, 0]}}', r"ascending times.*\$.server_ttft"),
        (b'{"version": 1, "lengths": {"lengths": [0], "counts": [1]}}', r">= 1, got \[0\].*\$.lengths"),
        (b'{"version": 1, "quality": {"device": -1}}', r"profile: quality: device: expected a number of 0 or more, got -1"),
        (b'{"version": 1, "prices": {"prompt": -1, "completion": 0}}', r"prices: prompt.*\$.prices"),
    ],
)
def test_a_bad_profile_is_refused_with_what_and_where(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^phone.json: .*{said}"):
        Profile.from_json(data, where="phone.json")


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "0.5"])
def test_a_quality_that_is_no_number_of_0_or_more_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="mine: device: expected a number of 0 or more"):
        check_quality({"server": 1.0, "device": value}, where="mine")
