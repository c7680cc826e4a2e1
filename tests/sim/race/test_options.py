"""Options of a race, and what the names in them stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment.scenario import KINDS, Scenario
from streamco.sim.race.lengths import RecordedLengths
from streamco.sim.race.options import (
    DeviceOptions,
    PriceOptions,
    RaceOptions,
    RacePolicy,
    RaceWorld,
    TraceOptions,
    find_lengths,
    find_phone,
    find_prices,
    find_service,
)
from streamco.sim.race.services import JITTER, PHONES, PackagedService, RecordedService, price_of


def beside(folder: Path) -> Scenario:
    return Scenario(kind="race", kind_location=KINDS["race"], seed=1, folder=str(folder))


def test_the_defaults_are_a_race_that_can_be_run(tmp_path: Path) -> None:
    options = msgspec.convert({}, RaceOptions)
    assert find_phone(options.world.device) is PHONES["xiaomi14-qwen-0.5b"]
    assert isinstance(find_service(options.world.service, beside(tmp_path)), PackagedService)
    assert find_prices(options.world) == price_of("openai-gpt-4-0125-preview")
    assert find_lengths(options.workload.lengths, beside(tmp_path)) is find_lengths("alpaca", beside(tmp_path)), "reckoned once"


def test_a_device_has_the_rates_that_it_is_given() -> None:
    phone = find_phone(DeviceOptions(prefill_tokens_per_s=50.0, decode_tokens_per_s=10.0, overhead_ms=100.0))
    assert phone.speed.ttft(50) == pytest.approx(0.1 + 1.0)
    assert (phone.speed.decode_tokens_per_s, phone.speed.jitter, phone.shape) == (10.0, JITTER, None)


def test_prices_are_those_of_the_name_or_a_million_times_as_low_as_given() -> None:
    assert find_prices(RaceWorld(prices="gpt-4o")) == price_of("gpt-4o")
    given = find_prices(RaceWorld(prices=PriceOptions(prompt=2.0, completion=8.0, cached_prompt=0.5)))
    assert given is not None
    assert (given.prompt, given.completion, given.cached_prompt) == pytest.approx((2e-6, 8e-6, 0.5e-6))
    assert find_prices(RaceWorld(service=TraceOptions(file="mine.csv"))) is None


def test_a_recorded_service_has_the_rows_that_were_picked(tmp_path: Path) -> None:
    rows = ["model,ttft_s,tps", *(f"{name},{0.1 * number:g},{number}0" for number in range(1, 5) for name in ("a", "b"))]
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    service = find_service(TraceOptions(file="mine.csv", where={"model": "b"}), beside(tmp_path))
    assert isinstance(service, RecordedService)
    ttfts, rates = zip(*service.known, *service.rows, strict=True)
    assert ttfts == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert rates == (10.0, 20.0, 30.0, 40.0)
    with pytest.raises(ConfigError, match=r"mine\.csv: expected rows of one of a, b, got 'c'"):
        find_service(TraceOptions(file="mine.csv", where={"model": "c"}), beside(tmp_path))


def test_a_file_of_lengths_lies_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt_tokens": n, "output_tokens": 2 * n}) + "\n" for n in (1, 2, 3, 4)))
    lengths = find_lengths("mine.jsonl", beside(tmp_path))
    assert isinstance(lengths, RecordedLengths)
    assert (lengths.known, lengths.rows) == ([(1, 2), (2, 4)], [(3, 6), (4, 8)])
    with pytest.raises(ConfigError, match=r"nosuch\.csv"):
        find_lengths("nosuch.csv", beside(tmp_path))


@pytest.mark.parametrize(
    ("part", "data", "message"),
    [
        (RaceWorld, {"device": "pixel9"}, "device: expected one of pixel7-bloom-1.1b, .* or rates, got 'pixel9'"),
        (RaceWorld, {"service": "nosuch"}, "nosuch"),
        (RaceWorld, {"prices": "gpt-9"}, "prices: expected one of .*, got 'gpt-9'"),
        (RaceWorld, {"reader_tokens_per_s": 0}, "reader_tokens_per_s"),
        (RacePolicy, {"budget": 1.5}, "budget"),
        (RacePolicy, {"dispatch": "luck"}, "dispatch"),
        (RacePolicy, {"pace": "slowly"}, "slowly"),
        (RacePolicy, {"colour": "blue"}, "colour"),
    ],
)
def test_what_is_not_known_is_refused_when_the_options_are_read(part: type, data: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(data, part)
