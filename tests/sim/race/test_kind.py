"""``kind: race``: figures of a whole experiment."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, metrics_of, run_scenario
from streamco.sim.race.kind import KIND, RaceRow
from streamco.sim.race.options import RaceOptions

FAST = "groq-llama-2-70b-chat"
OTHER = "openai-gpt-4-0125-preview"


def run(*, requests: int = 150, seed: int = 1, rows: bool = False, folder: str = "", **settings: Any) -> Outcome:
    """Settings by the names of their fields, wherever they belong."""
    parts: dict[str, dict[str, Any]] = {"world": {}, "workload": {"requests": requests}, "policy": {}}
    for name, value in settings.items():
        part = next(part for part in parts if name in RaceOptions.__annotations__ or hasattr(getattr(RaceOptions(), part), name))
        parts[part][name] = value
    return run_scenario(Scenario(kind="race", kind_location=KINDS["race"], seed=seed, requests=rows, folder=folder, **parts))


def rows(**settings: Any) -> list[RaceRow]:
    return run(rows=True, **settings).requests


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first, again, other = (msgspec.json.encode(run(rows=True, seed=seed, service=OTHER)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_figure_has_a_name_and_the_table_has_figures() -> None:
    found = run(migration="pre-copy", constrained="device", budget=1.0, prices="gpt-4o-mini", provider="vllm").system
    assert set(KIND.columns) <= set(found) <= set(metrics_of(KIND))
    assert set(KIND.metrics) <= set(found)


def test_all_policies_meet_the_same_requests() -> None:
    one, other = rows(dispatch="device-only"), rows(dispatch="server-only")
    assert [(row.prompt_tokens, row.tokens) for row in one] == [(row.prompt_tokens, row.tokens) for row in other]
    assert {row.mode for row in one} == {"device"}
    assert {row.mode for row in other} == {"server"}
    best = rows(dispatch="both", budget=1.0)
    for row, device, server in zip(best, one, other, strict=True):
        assert row.ttft is not None
        assert device.ttft is not None
        assert server.ttft is not None
        assert row.ttft == pytest.approx(min(device.ttft, server.ttft), abs=2e-6)


@pytest.mark.parametrize("side", ["device", "server"])
@pytest.mark.parametrize("dispatch", ["disco", "stochastic", "optimal"])
def test_the_budget_is_kept(side: str, dispatch: str) -> None:
    share = run(requests=600, service=OTHER, constrained=side, dispatch=dispatch, budget=0.4).system["budget_share"]
    assert share <= 0.45  # of all but the first answers; steering holds 0.41 over all of them
    assert share >= 0.2


def test_a_budget_of_nothing_leaves_one_side_alone() -> None:
    found = run(constrained="server", budget=0.0).system
    assert (found["budget_share"], found["device_wins"]) == (0.0, 1.0)


@pytest.mark.parametrize("device", ["pixel7-bloom-1.1b", "xiaomi14-qwen-0.5b"])
def test_disco_is_sooner_than_dice_where_the_device_is_spared(device: str) -> None:
    settings: dict[str, Any] = {"requests": 500, "service": OTHER, "device": device, "constrained": "device", "budget": 0.5}
    disco, rng = run(**settings).system, run(dispatch="stochastic", **settings).system
    assert disco["ttft_mean"] < 0.95 * rng["ttft_mean"]
    assert disco["ttft_p99"] <= rng["ttft_p99"]


def test_disco_has_the_shorter_tail_where_the_server_is_spared() -> None:
    settings: dict[str, Any] = {"requests": 500, "device": "pixel7-bloom-1.1b", "constrained": "server", "budget": 0.6, "service": OTHER}
    assert run(**settings).system["ttft_p99"] < 0.8 * run(dispatch="stochastic", **settings).system["ttft_p99"]


def test_a_service_that_writes_fast_delays_nobody_and_one_in_large_bursts_does() -> None:
    fast = run(service=FAST, dispatch="server-only").system
    assert fast["delayed_mean"] == 0.0
    assert [fast["tbt_mean"], fast["tbt_p99"]] == pytest.approx([1 / 4.8, 1 / 4.8], abs=1e-4)
    bursts = run(service="azure-gpt-4-1106-preview", dispatch="server-only").system
    assert bursts["delayed_mean"] > 1.0
    assert bursts["tbt_p99"] > 1.0
    faster = run(service="azure-gpt-4-1106-preview", dispatch="server-only", reader_tokens_per_s=2.0).system
    assert faster["delayed_mean"] < bursts["delayed_mean"]


@pytest.mark.parametrize("service", [FAST, OTHER, "azure-gpt-4-1106-preview"])
def test_reckoned_times_are_those_of_a_reader_without_a_move(service: str) -> None:
    settings: dict[str, Any] = {"service": service, "dispatch": "server-only", "requests": 60}
    whole, by_token = run(**settings).system, run(migration="pre-copy", **settings).system  # who is named does not move
    assert whole == pytest.approx(by_token, abs=1e-4)


def test_with_a_pace_tokens_come_as_the_reader_wants_them() -> None:
    found = run(requests=40, pace="reading", dispatch="device-only").system
    assert found["tpot_mean"] == pytest.approx(1 / 4.8, rel=0.01)
    assert found["delayed_mean"] == 0.0


def test_at_a_smooth_pace_tokens_come_as_fast_as_they_are_made_and_the_answers_are_the_same() -> None:
    smooth, at_once = (run(requests=40, pace=pace, dispatch="server-only").system for pace in ("smooth", None))
    assert smooth["ttft_mean"] == pytest.approx(at_once["ttft_mean"])
    assert smooth["delayed_mean"] == pytest.approx(at_once["delayed_mean"], abs=1.0)


def test_moves_save_money_and_the_reader_hardly_notices() -> None:
    settings: dict[str, Any] = {"constrained": "device", "budget": 1.0, "prices": "gpt-4o-mini", "provider": "vllm"}
    stays, moves = run(**settings).system, run(migration="pre-copy", **settings).system
    assert moves["moves_mean"] > 0.3
    assert moves["cost_per_1000"] < 0.8 * stays["cost_per_1000"]
    assert moves["ttft_mean"] == stays["ttft_mean"]
    assert moves["unnoticed"] > 0.9
    assert "unnoticed" not in stays


@pytest.mark.parametrize(
    ("provider", "is_able"), [(None, False), ("openai", False), ("generic", False), ("deepseek", True), ("mistral", True), ("vllm", True)]
)
def test_answers_move_to_a_service_that_can_go_on_with_them(provider: str | None, is_able: bool) -> None:
    found = run(service=OTHER, provider=provider, migration="pre-copy", constrained="device", budget=1.0, prices="deepseek-v2.5").system
    assert (found["moves_mean"] > 0.3) == is_able
    assert is_able or found["moves_mean"] == 0.0


def test_answers_move_to_the_device_only_if_its_model_is_good_enough() -> None:
    settings: dict[str, Any] = {"migration": "pre-copy", "constrained": "server", "budget": 1.0, "prices": "gpt-4o", "service": FAST}
    assert run(dispatch="both", **settings).system["moves_mean"] == 0.0
    assert run(dispatch="both", min_quality=0.0, **settings).system["moves_mean"] > 0.1


def test_arrivals_follow_one_another() -> None:
    found = rows(requests=20)
    assert found[0].arrival == 0.0
    assert all(later.arrival == pytest.approx(row.arrival + row.seconds, abs=3e-6) for row, later in pairwise(found))


BUSY: dict[str, Any] = {"arrivals": {"poisson_per_s": 1.0}, "prior": False, "warm_up": 0}


def test_with_arrivals_answers_begin_when_they_come_and_the_same_seed_gives_the_same_bytes() -> None:
    found = rows(requests=60, **BUSY)
    assert [row.number for row in found] == [*range(60)]
    assert all(one.arrival < other.arrival for one, other in pairwise(found))
    assert any(other.arrival < one.arrival + one.seconds for one, other in pairwise(found)), "answers overlap"
    assert msgspec.json.encode(found) == msgspec.json.encode(rows(requests=60, **BUSY))


def test_arrivals_far_apart_come_to_what_answers_one_after_another_come_to() -> None:
    apart, alone = run(requests=60, arrivals={"poisson_per_s": 1e-7}).system, run(requests=60).system
    for name in ("ttft_mean", "ttft_p99", "seconds_mean", "budget_share", "cost_per_1000"):
        assert apart[name] == pytest.approx(alone[name], rel=1e-3)


def test_credit_shortens_the_wait_for_others_at_the_device() -> None:
    settings: dict[str, Any] = {"requests": 300, "service": FAST, **BUSY}
    credit, none = run(**settings).system, run(burst=0, **settings).system
    assert credit["ttft_p99"] < 0.7 * none["ttft_p99"]
    assert credit["budget_share"] > none["budget_share"]
    assert none["budget_share"] <= 0.32


def test_recorded_arrivals_lie_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "arrivals.csv").write_text("arrival_s\n" + "\n".join(str(7 * number) for number in range(9)))
    found = rows(requests=5, arrivals={"azure": "arrivals.csv"}, folder=str(tmp_path))
    assert {round(other.arrival - one.arrival, 6) for one, other in pairwise(found)} == {7.0}


def test_recorded_arrivals_may_be_in_the_folder_of_recorded_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMCO_DATA", str(tmp_path))
    (tmp_path / "arrivals.csv").write_text("arrival_s\n0\n3\n")
    first, second = rows(requests=2, arrivals={"azure": "arrivals.csv"})
    assert second.arrival - first.arrival == pytest.approx(3.0, abs=1e-6)
    with pytest.raises(ConfigError, match=r"none\.csv"):
        rows(requests=2, arrivals={"azure": "none.csv"})


def test_a_server_that_refuses_rests_and_the_device_answers() -> None:
    settings: dict[str, Any] = {"arrivals": {"poisson_per_s": 0.2}, "dispatch": "server-first", "requests": 100}
    found = rows(requests_per_min=4, **settings)
    assert 20 <= sum(row.mode == "server" for row in found) <= 60
    assert {row.mode for row in rows(**settings)} == {"server"}
    del settings["arrivals"]
    one_by_one = rows(requests_per_min=4, **settings)
    minutes = one_by_one[-1].arrival // 60 + 1
    assert 4 * (minutes - 1) <= sum(row.mode == "server" for row in one_by_one) <= 4 * (minutes + 1)


def test_a_service_can_be_a_recording_beside_the_experiment(tmp_path: Path) -> None:
    lines = [f"{host},{0.2 if host == 'a' else 5.0},20" for host in "ab" for _ in range(10)]
    (tmp_path / "trace.csv").write_text("host,ttft_s,tps\n" + "\n".join(lines))
    settings: dict[str, Any] = {"dispatch": "server-only", "requests": 20, "folder": str(tmp_path)}
    found = run(service={"file": "trace.csv", "where": {"host": "b"}}, **settings).system
    assert found["ttft_p50"] == pytest.approx(5.0, rel=0.01)
    assert "cost_per_1000" not in found
    with pytest.raises(ConfigError, match=r"trace.csv: expected rows of one of a, b, got 'c'"):
        run(service={"file": "trace.csv", "where": {"host": "c"}}, **settings)


def test_lengths_can_be_a_recording_too(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("prompt_tokens,output_tokens\n" + "7,3\n" * 10)
    found = rows(requests=5, lengths="lengths.csv", folder=str(tmp_path))
    assert {(row.prompt_tokens, row.tokens) for row in found} == {(7, 3)}


def test_recordings_are_looked_up_before_anything_runs(tmp_path: Path) -> None:
    of = Scenario(
        kind="race",
        kind_location=KINDS["race"],
        seed=1,
        folder=str(tmp_path),
        world={"service": {"file": "trace.csv"}},
        workload={"lengths": "lengths.csv"},
    )
    service, lengths = KIND.names(msgspec.convert(of.settings, KIND.options), of)
    assert (service.location, lengths.location) == (("world", "service"), ("workload", "lengths"))
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        service.find()
    with pytest.raises(ConfigError, match=r"lengths\.csv"):
        lengths.find()


def test_a_device_of_ones_own_has_its_rates() -> None:
    device = {"prefill_tokens_per_s": 10.0, "decode_tokens_per_s": 2.0, "overhead_ms": 0.0, "jitter": [1.0]}
    for row in rows(requests=10, device=device, dispatch="device-only"):
        assert row.ttft == pytest.approx(row.prompt_tokens / 10, abs=1e-6)
        assert row.tpot is None or row.tpot == pytest.approx(0.5, abs=1e-6)
        assert row.cost is None
        assert row.delayed == row.tokens - 1  # a reader of 4.8 tokens/s waits for each of them


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"device": "pixel9"}, "device: expected one of pixel7-bloom-1.1b, .*, or rates, got 'pixel9'"),
        ({"service": "gpt-9"}, "latency profile: expected a JSON file or one of .*, got 'gpt-9'"),
        ({"prices": "gpt-9"}, "prices: expected one of"),
        ({"provider": "closedai"}, "provider: expected one of .*, got 'closedai'"),
        ({"budget": 1.5}, "expected `float` <= 1.0"),
        ({"dispatch": "dice"}, "invalid enum value 'dice'"),
        ({"pace": "never"}, "pace: expected None, tokens per second"),
        ({"arrivals": {"closed": 3}}, "arrivals: expected poisson_per_s or azure, got closed"),
        ({"requests_per_min": 0}, "requests_per_min"),
        ({"burst": -1}, "burst"),
        ({"service": {"file": "none.csv"}}, "none.csv: expected rows as CSV or JSON lines"),
    ],
)
def test_what_can_not_be_is_refused_in_words(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=r"(?i)" + expected):
        run(requests=5, **settings)


def test_a_race_says_what_it_is() -> None:
    text = KIND.describe(RaceOptions())
    assert text == "a device and a service race for 1000 Alpaca prompts, one after the other, answers of 128 tokens at most"


def test_names_are_tried_before_anything_runs() -> None:
    for world in ({"device": "pixel9"}, {"service": "gpt-9"}, {"prices": "gpt-9"}):
        with pytest.raises(msgspec.ValidationError, match="expected"):
            msgspec.convert({"world": world}, RaceOptions)


def test_a_profile_of_ones_own_lies_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"kind": "latency", "name": "mine", "source": "", "license": "", "ttft_s": [3.0, 3.0]}')
    found = run(service="mine.json", dispatch="server-only", requests=5, folder=str(tmp_path)).system
    assert found["ttft_p50"] == pytest.approx(3.0, rel=0.01)
