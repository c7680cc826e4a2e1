"""Services and devices of races: what is packaged, and what is read from recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from streamco.emulation.profiles import packaged_names
from streamco.errors import ConfigError
from streamco.policies.cost import constraint, device_costs
from streamco.sim.race.services import PHONES, PRICES, PackagedService, RecordedService, price_of, provider_of, read_rows, read_services

ROWS = [(0.1 * number, 10.0 + number) for number in range(1, 9)]


def test_every_packaged_service_has_a_price() -> None:
    assert set(packaged_names("latency")) <= set(PRICES)
    with pytest.raises(ConfigError, match=r"expected one of .*gpt-4o-mini.*, got 'gpt-9'"):
        price_of("gpt-9")


def test_the_papers_phones_read_and_write_at_its_rates() -> None:
    assert [*PHONES] == ["pixel7-bloom-1.1b", "pixel7-bloom-560m", "xiaomi14-qwen-0.5b"]
    assert [1 / phone.speed.seconds_per_token for phone in PHONES.values()] == pytest.approx([31.32, 51.80, 79.90])
    assert [phone.speed.decode_tokens_per_s for phone in PHONES.values()] == [13.93, 20.14, 21.47]
    assert all(phone.speed.ttft(0) == 0.02 for phone in PHONES.values())


def test_the_papers_two_exchange_rates_spare_the_two_sides() -> None:
    shape = PHONES["pixel7-bloom-1.1b"].shape
    assert shape is not None
    price = price_of("gpt-4o-mini")
    assert constraint(price, device_costs(shape, exchange_rate=0.3)) == "server"
    assert constraint(price, device_costs(shape, exchange_rate=5.0)) == "device"


@pytest.mark.parametrize("name", packaged_names("latency"))
def test_a_packaged_service_behaves_as_its_profile_says(name: str) -> None:
    service, rng = PackagedService.load(name), Random(1)
    replies = [service.draw(rng) for _ in range(4000)]
    times = service.profile.ttft_s
    assert all(times[0] <= reply.first <= times[-1] and times[0] <= reply.later <= times[-1] for reply in replies)
    assert fmean(reply.first for reply in replies) == pytest.approx(service.ttft.mean, rel=0.05)
    gaps = service.profile.gap_s
    if service.profile.gap_of == "request":
        assert service.burst == 1
        assert all(gaps[0] <= 1 / reply.rate <= gaps[-1] for reply in replies)
        assert len({reply.rate for reply in replies}) > 1000
    else:
        assert {reply.rate for reply in replies} == {replies[0].rate}
        assert gaps[0] < service.burst / replies[0].rate < gaps[-1]


def test_of_a_recorded_service_the_first_half_is_known_and_the_second_happens() -> None:
    service = RecordedService.halves(ROWS)
    assert service.ttft.times.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    replies = [service.draw(Random(seed)) for seed in range(100)]
    assert {(reply.first, reply.rate) for reply in replies} == set(ROWS[4:])
    assert {reply.later for reply in replies} == {first for first, _ in ROWS[4:]}
    with pytest.raises(ConfigError, match="expected 2 requests or more, got 1"):
        RecordedService.halves(ROWS[:1])


def test_services_are_read_from_csv_with_the_times_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("provider,model,ttft_s,e2e_s,output_tokens\na,m,0.5,2.5,101\nb,m,0.25,0.25,11\na,m,0,0,0\na,m,0.75,1.75,1\n")
    assert read_services(path, ("provider",)) == {
        "a": [(0.5, 50.0), (0.75, 1000.0)],
        "b": [(0.25, pytest.approx(10 / 0.011))],  # in one piece: a millisecond a token
    }


def test_services_are_read_from_json_lines_with_a_rate_or_characters(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    records = [
        {"ttft_s": 0.5, "tokens_per_s": 25},
        {"ttft_s": None, "success": False},
        {"ttft_s": 0.5, "total_s": 1.5, "output_chars": 404, "success": True},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    assert read_services(path) == {"": [(0.5, 25.0), (0.5, 100.0)]}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.csv", "ttft\n1\n", r"row 1: expected a recorded answer, got: KeyError\('ttft_s'\)"),
        ("t.csv", "ttft_s,tps\n1,2\nsoon,2\n", "row 2: expected a recorded answer"),
        ("t.jsonl", "{", "expected rows as CSV or JSON lines"),
        pytest.param("t.jsonl", "[" * 100_000 + "]" * 100_000, "expected rows as CSV or JSON lines", id="levels"),
        pytest.param("t.jsonl", '{"ttft_s": ' + "9" * 5000 + "}", "expected rows as CSV or JSON lines", id="digits"),
        ("t.csv.gz", "ttft_s,tps\n1,2\n", "expected rows as CSV or JSON lines"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_place(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_services(tmp_path / name)


def test_a_file_that_is_not_there_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv: expected rows"):
        list(read_rows(tmp_path / "none.csv"))


def test_a_packed_file_that_is_damaged_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    packed = bytearray(gzip.compress(b"ttft_s,tps\n" + b"1,2\n" * 999))
    packed[12:] = bytes(len(packed) - 12)
    path.write_bytes(packed)
    with pytest.raises(ConfigError, match=r"t\.csv\.gz: expected rows as CSV or JSON lines"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("service", "provider"),
    [
        ("openai-gpt-4-0125-preview", "openai"),
        ("Azure gpt-3.5-turbo-0613", "azure"),
        ("groq-llama-2-70b-chat", "groq"),
        ("DeepSeek-V2.5", "deepseek"),
        ("replicate-llama-2-70b-chat", "generic"),
        ("mine.json", "generic"),
    ],
)
def test_a_service_is_its_providers(service: str, provider: str) -> None:
    assert provider_of(service).name == provider
