from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest

from streamco.client.modes.speculation.mode import Speculate
from streamco.emulation.profiles import load_step_times
from streamco.errors import ConfigError
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, load_kind, metrics_of, run_scenario
from streamco.sim.fleet import kind as world_module
from streamco.sim.fleet.fleet import Fleet, FleetDevice
from streamco.sim.fleet.kind import KIND, device_model, forward_pass
from streamco.sim.fleet.options import DevicePool, ServerPool

WORLD: dict[str, Any] = {
    "devices": 6,
    "servers": 2,
    "device_pools": [{"draft_tokens_per_s": 80, "token_joules": 0.5}],
    "server_pools": [{"step_times": "llama2-70b-a100x2"}],
    "link": {"rtt_ms": 20},
}
WORKLOAD: dict[str, Any] = {"trace": "gsm8k", "requests": 8, "arrivals": {"poisson_per_s": 4}}


def scenario(*, world: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, seed: int = 1, **policy: Any) -> Scenario:
    return Scenario(
        kind="speculate",
        kind_location=KINDS["speculate"],
        seed=seed,
        requests=True,
        world={**WORLD, **(world or {})},
        workload={**WORKLOAD, **(workload or {})},
        policy=policy,
    )


def run(**options: Any) -> Outcome:
    return run_scenario(scenario(**options))


@pytest.mark.parametrize("execution", ["distributed", "fused", "auto"])
@pytest.mark.parametrize("batching", ["alternating", "length-aware", "continuous", "windowed"])
def test_all_requests_are_answered_whoever_decides_what(execution: str, batching: str) -> None:
    outcome = run(execution=execution, batching=batching)
    assert outcome.system["completed"] == 8
    assert outcome.system["failed"] == 0
    assert [row.number for row in outcome.requests] == [*range(8)]
    assert set(outcome.system) <= set(metrics_of(KIND))


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    def found(seed: int) -> str:
        outcome = run(seed=seed, window="confident", branches=4, world={"link": {"rtt_ms": 30, "jitter_ms": 5, "loss": 0.01}})
        return json.dumps([outcome.system, [repr(row) for row in outcome.requests]])

    assert found(1) == found(1)
    assert found(1) != found(2)


def test_a_policy_changes_neither_who_comes_nor_when() -> None:
    first, second = (run(window=window, routing=routing).requests for window, routing in ((2, "random"), ("dynamic", "round-robin")))
    assert [(row.arrival, row.tokens, row.device) for row in first] == [(row.arrival, row.tokens, row.device) for row in second]


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    rows = run(workload={"arrivals": {"closed": 2}}, world={"devices": 50}).requests
    spans = [(row.arrival, row.arrival + row.seconds) for row in rows]
    for start, _ in spans:
        assert sum(one <= start < end - 1e-5 for one, end in spans) <= 2
    assert sum(start == 0.0 for start, _ in spans) == 2


def test_a_long_link_costs_those_that_wait_for_it_and_not_the_server_that_writes_alone() -> None:
    def tpot(execution: str, rtt: float) -> float:
        return run(execution=execution, world={"link": {"rtt_ms": rtt}}).system["tpot_mean"]

    assert tpot("distributed", 120) > 1.3 * tpot("distributed", 10)
    assert tpot("fused", 120) == pytest.approx(tpot("fused", 10), rel=0.05)


def test_drafting_that_pays_is_kept_to_and_drafting_that_does_not_is_left() -> None:
    many = {"requests": 30, "arrivals": {"poisson_per_s": 2}}
    near = run(execution="auto", branches=4, window="confident", world={"devices": 2, "link": {"rtt_ms": 5}}, workload=many)
    far = run(execution="auto", branches=4, window="confident", world={"devices": 2, "link": {"rtt_ms": 400}}, workload=many)
    assert near.system["by_server_alone"] < 0.5 < far.system["by_server_alone"]


def test_who_is_calibrated_need_not_look_at_the_stream_first() -> None:
    def alone(**policy: Any) -> float:
        return run(execution="auto", branches=4, world={"devices": 8, "link": {"rtt_ms": 5}}, **policy).system["by_server_alone"]

    assert alone(is_calibrated=True) == 0.0 < alone()


def test_devices_that_have_answered_before_know_their_pair() -> None:
    def alone(answers: int) -> float:
        policy = {"execution": "auto", "window": "confident", "branches": 4, "ahead": 3, "answers_before": answers}
        return run(**policy, world={"devices": 8, "link": {"rtt_ms": 5}}).system["by_server_alone"]

    assert alone(10) < alone(0)


def test_each_device_has_a_copy_of_its_own_of_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets: list[list[FleetDevice]] = []

    class Noting(Fleet):
        def __init__(self, env: Any, *, devices: Any, **options: Any) -> None:
            fleets.append([*devices])
            super().__init__(env, devices=devices, **options)

    monkeypatch.setattr(world_module, "Fleet", Noting)
    pools = [{"draft_tokens_per_s": 50}, {"draft_tokens_per_s": 200}]
    run(execution="auto", branches=4, answers_before=3, world={"devices": 8, "device_pools": pools})
    learners, devices = fleets
    assert (len(learners), len(devices)) == (2, 8)
    assert len({id(device.pair.switch) for device in devices}) == 8
    assert all(learner.pair.has_remote_step for learner in learners)
    times = {device.model.name: {each.pair.step_times[0] for each in devices if each.model is device.model} for device in devices}
    assert len(times) == 2


def test_answers_before_change_no_request_and_runs_with_a_seed_are_equal() -> None:
    pools = [{"draft_tokens_per_s": 50}, {"draft_tokens_per_s": 200}]
    before, fresh = (
        run(execution="auto", branches=4, answers_before=answers, world={"devices": 8, "device_pools": pools}).requests
        for answers in (3, 0)
    )
    assert [(row.arrival, row.tokens, row.device) for row in before] == [(row.arrival, row.tokens, row.device) for row in fresh]
    assert before != fresh
    again = run(execution="auto", branches=4, answers_before=3, world={"devices": 8, "device_pools": pools}).requests
    assert again == before


def test_what_a_calibrated_client_knows_is_the_mean_of_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float | None] = []

    def noting(**settings: Any) -> Speculate:
        found.append(settings["tuning"].prior.remote_step)
        return Speculate(**settings)

    monkeypatch.setattr(world_module, "SpeculationOptions", noting)
    pools = [{"step_times": "llama2-70b-a100x2", "count": 3}, {"step_times": "llama2-70b-a100x4", "count": 1}]
    run(execution="auto", is_calibrated=True, world={"servers": 4, "server_pools": pools})
    slow, fast = (load_step_times(name)(1, 0) for name in ("llama2-70b-a100x2", "llama2-70b-a100x4"))
    assert found == pytest.approx([(3 * slow + fast) / 4] * 6)


def test_below_a_budget_of_one_about_that_share_is_judged() -> None:
    outcome = run(budget=0.4, offload="confidence", workload={"requests": 24}, world={"devices": 2})
    assert outcome.system["offloaded_share"] == pytest.approx(0.4, abs=0.12)


@pytest.mark.long
def test_the_more_is_judged_the_more_is_as_the_target_would_have_said_it() -> None:
    few: dict[str, Any] = {"offload": "confidence", "workload": {"requests": 24}, "world": {"devices": 2}}
    shares = [run(budget=budget, **few).system["agreement"] for budget in (0.1, 0.5, 0.9)]
    assert shares == sorted(shares)
    assert shares[0] > 0.6
    assert shares[-1] < 1.0
    assert run().system["agreement"] == 1.0


def recorded(path: Path, *, answers: int = 24, tokens: int = 40) -> str:
    """A trace in which every chunk of four is as sure as any other, one chunk of two is important, and just those are wrong."""
    chunk = tokens // 4
    line = {
        "prompt_length": 20,
        "output_length": tokens,
        "acceptance_seq": [1, 1, 1, 1, 1, 1, 0, 1] * (tokens // 8),
        "confidences": [150] * tokens,
        "attention": "".join(("0a0a0a0a" if index % 2 == 0 else "c8c8c8c8") * 4 for index in range(chunk)),
    }
    path.write_text(f"{json.dumps(line)}\n" * answers)
    return str(path)


def test_a_rule_that_needs_importance_is_refused_where_none_was_recorded(tmp_path: Path) -> None:
    for rule in ("combined", "importance"):
        with pytest.raises(ConfigError, match=f"offload: expected confidence, .*, or a trace with attention, got {rule} without attention"):
            run(budget=0.4, offload=rule)
        of = scenario(budget=0.4, offload=rule)
        [found] = [each for each in KIND.names(msgspec.convert(of.settings, KIND.options), of) if each.location == ("policy", "offload")]
        with pytest.raises(ConfigError, match="without attention"):
            found.find()
    assert run(budget=1.0).system["completed"] == run(budget=0.4, offload="confidence").system["completed"] == 8
    trace = recorded(tmp_path / "mine.jsonl")
    with pytest.raises(ConfigError, match="window: expected at most 5 tokens, as far as the trace has attention, got 6"):
        run(budget=0.4, window=6, workload={"trace": trace})


def test_a_budget_is_spent_on_what_is_important_where_that_was_recorded(tmp_path: Path) -> None:
    def system(rule: str) -> dict[str, float]:
        workload = {"trace": recorded(tmp_path / "mine.jsonl"), "requests": 24}
        return run(budget=0.4, offload=rule, workload=workload, world={"devices": 2}).system

    combined, importance, blind = (system(rule) for rule in ("combined", "importance", "confidence"))
    assert combined["offloaded_share"] == pytest.approx(0.4, abs=0.1)
    assert min(combined["agreement"], importance["agreement"]) > blind["agreement"] + 0.02


def test_a_budget_of_nothing_leaves_all_to_the_devices() -> None:
    system = run(budget=0.0).system
    assert system["completed"] == 8
    assert system["cloud_share"] == system["utilisation"] == system["bytes_up"] == 0.0
    assert system["drafted"] == pytest.approx(1.0, abs=0.02)  # a text whose last recorded token is wrong has one more


def test_whole_answers_are_left_to_the_server_up_to_the_budget() -> None:
    many = {"requests": 60, "arrivals": {"poisson_per_s": 4}}
    found = {budget: run(budget=budget, offload="answers", workload=many).system for budget in (0.0, 0.5, 1.0)}
    assert [found[budget]["by_server_alone"] for budget in (0.0, 1.0)] == [0.0, 1.0]
    assert found[0.5]["by_server_alone"] == pytest.approx(0.5, abs=0.15)
    assert found[0.5]["cloud_share"] == pytest.approx(found[0.5]["by_server_alone"])
    assert found[0.0]["agreement"] < found[0.5]["agreement"] < found[1.0]["agreement"] == 1.0


def test_a_forecast_that_draws_one_branch_is_right_less_often() -> None:
    many = {"requests": 30, "arrivals": {"poisson_per_s": 1}}
    ranked, drawn = (run(branches=6, forecast=forecast, workload=many).system["hit_rate"] for forecast in ("learned", "sampled"))
    assert drawn < ranked


def test_whole_distributions_take_their_time_on_a_thin_link() -> None:
    thin = {"link": {"rtt_ms": 20, "up_mbps": 10}}
    ids, rows, whole = (run(world=thin, draft_token_bytes=size).system for size in (2, 86, 98_304))
    assert ids["tpot_mean"] <= rows["tpot_mean"] < 1.05 * ids["tpot_mean"]
    assert whole["tpot_mean"] > 2 * ids["tpot_mean"]
    assert whole["bytes_up"] > 1000 * ids["bytes_up"]


def test_a_device_of_named_hardware_takes_the_time_predicted_for_it() -> None:
    model = device_model(DevicePool(model="llama2-7b", gpu="a40", token_joules=1.5))
    assert 0.015 < model.step_times[0] < 0.05
    assert list(model.step_times) == sorted(model.step_times)
    assert model.seconds_per_token < model.step_times[0] / 10
    assert model.token_joules == 1.5


def test_a_device_of_which_rates_are_known_takes_what_they_say() -> None:
    model = device_model(DevicePool(draft_tokens_per_s=50, prefill_tokens_per_s=400, prefill_ms=30))
    assert model.step_times[0] == 0.02
    assert (model.seconds_per_token, model.overhead) == (1 / 400, 0.03)
    assert device_model(DevicePool(draft_tokens_per_s=50)).seconds_per_token == pytest.approx(0.02 / 5)


def test_step_times_are_a_packaged_profile_or_a_file_beside_the_experiment(tmp_path: Path) -> None:
    packaged, room = forward_pass(ServerPool(step_times="llama2-70b-a100x2"), scenario())
    assert packaged(1, 0, 100, 1) == pytest.approx(0.05486)
    assert room > 1_000_000
    (tmp_path / "mine.json").write_text('{"kind": "step_times", "name": "m", "source": "s", "license": "l", "decode_ms": [[1, 7.0]]}')
    beside = Scenario(kind="speculate", kind_location=KINDS["speculate"], seed=1, folder=str(tmp_path))
    assert forward_pass(ServerPool(step_times="mine.json"), beside)[0](1, 0, 0, 1) == 0.007
    with pytest.raises(ConfigError, match="step_times profile"):
        forward_pass(ServerPool(step_times="nobody"), scenario())


@pytest.mark.parametrize(
    ("part", "setting", "location", "message"),
    [
        ("world", {"device_pools": [{"model": "llama2-7b", "gpu": "a41"}]}, "world.device_pools.0", "a41"),
        ("world", {"server_pools": [{"step_times": "llama2-70b"}]}, "world.server_pools.0", "llama2-70b"),
        ("world", {"link": {"up_trace": "train.csv.gz"}}, "world.link.up_trace", "train.csv.gz"),
        (
            "world",
            {"device_pools": [{"draft_tokens_per_s": 9, "link": {"down_trace": "no.csv"}}]},
            "world.device_pools.0.link.down_trace",
            "no.csv",
        ),
        ("workload", {"trace": "gsm9k"}, "workload.trace", "gsm9k"),
        ("workload", {"arrivals": {"azure": "arrivals.csv"}}, "workload.arrivals.azure", "arrivals.csv"),
        ("workload", {"trace": None, "lengths": "lengths.csv", "requests": 3}, "workload.lengths", "lengths.csv"),
    ],
)
def test_what_is_named_is_looked_up_before_anything_runs(part: str, setting: dict[str, Any], location: str, message: str) -> None:
    of = scenario(**{part: setting})  # type: ignore[arg-type]
    options = msgspec.convert(of.settings, KIND.options)
    missing = {}
    for named in KIND.names(options, of):
        try:
            named.find()
        except ConfigError as error:
            missing[".".join(str(step) for step in named.location)] = str(error)
    assert list(missing) == [location]
    assert message in missing[location]


def test_recordings_of_a_link_lie_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.csv").write_text("t_ms,packets_1500B\n" + "".join(f"{100 * location},2\n" for location in range(10)))
    monkeypatch.setenv("RECORDED", str(tmp_path))
    for folder, path in ((str(tmp_path), "slow.csv"), ("", "$RECORDED/slow.csv")):
        of = Scenario(
            kind="speculate",
            kind_location=KINDS["speculate"],
            seed=1,
            folder=folder,
            world={**WORLD, "link": {"up_trace": path}},
            workload=WORKLOAD,
        )
        assert run_scenario(of).system["completed"] == 8


def test_recorded_arrivals_may_lie_where_the_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gaps.csv").write_text("arrival_s\n0\n0.5\n1.0\n")
    monkeypatch.setenv("STREAMCO_DATA", str(tmp_path))
    of = Scenario(
        kind="speculate",
        kind_location=KINDS["speculate"],
        seed=1,
        folder=str(tmp_path / "experiments"),
        world=WORLD,
        workload={**WORKLOAD, "arrivals": {"azure": "gaps.csv"}},
    )
    for named in KIND.names(msgspec.convert(of.settings, KIND.options), of):
        named.find()
    assert run_scenario(of).system["completed"] == 8


def test_the_world_is_described_in_a_line() -> None:
    kind = load_kind(KINDS["speculate"])
    text = kind.describe(msgspec.convert(scenario().settings, kind.options))
    assert text == "6 devices (at 80 tokens/s), 2 servers (llama2-70b-a100x2); 8 requests of gsm8k, 4 a second"
    assert "8 requests of gsm8k after a system prompt of 600 tokens, 4" in kind.describe(
        msgspec.convert(scenario(workload={"system_prompt": 600}).settings, kind.options)
    )


def test_a_system_prompt_costs_time_once_and_then_no_more() -> None:
    small: dict[str, Any] = {"devices": 1, "servers": 1}
    slow: dict[str, Any] = {"arrivals": {"poisson_per_s": 0.05}}  # nobody waits for another
    plain = run(world=small, workload=slow).requests
    with_system_prompt = run(world=small, workload={**slow, "system_prompt": 600}).requests
    assert [row.prompt_tokens for row in with_system_prompt] == [600 + row.prompt_tokens for row in plain]
    waits = [(after.ttft or 0.0) - (before.ttft or 0.0) for before, after in zip(plain, with_system_prompt, strict=True)]
    assert waits[0] == pytest.approx(600 / 400, rel=0.1)  # read by the device at five times 80 tokens/s; the server is done by then
    assert waits[1:] == pytest.approx([0.0] * 7, abs=0.01)


def test_a_price_list_gives_padded_batches_and_devices_that_fill_them() -> None:
    stairs = [[1, 38.0], [2, 75.0], [3, 108.0], [4, 81.0], [5, 113.0], [8, 149.0], [9, 187.0], [16, 190.0], [512, 6000.0]]
    forward, _ = forward_pass(msgspec.convert({"row_costs_ms": stairs}, ServerPool), scenario())
    assert [forward(0, rows, 100, 1) for rows in (1, 3, 4)] == pytest.approx([0.038, 0.081, 0.081])
    assert forward(2, 1, 100, 1) == pytest.approx(0.081)

    def mean_window(costs: list[list[float]]) -> float:
        one = {"devices": 1, "servers": 1, "server_pools": [{"row_costs_ms": costs}], "link": {"rtt_ms": 1}}
        return run(world=one, window="predicted", branches=2, workload={"requests": 6}).system["window_mean"]

    assert 2.0 <= mean_window(stairs) <= 3.2
    assert mean_window([[1, 60.0], [512, 70.0]]) > 3.5


def test_devices_plan_with_the_price_list_of_the_server_that_they_ask() -> None:
    cheap, dear = [[1, 60.0], [512, 70.0]], [[1, 40.0], [2, 90.0], [512, 25_590.0]]

    def first_windows(order: list[list[list[float]]]) -> tuple[float, float]:
        pools = [{"row_costs_ms": costs, "count": 1} for costs in order]
        world = {"devices": 2, "servers": 2, "server_pools": pools, "link": {"rtt_ms": 1}}
        rows = run(world=world, window="predicted", branches=2, routing="round-robin", workload={"requests": 8}).requests
        firsts: dict[tuple[int, int], tuple[int, ...]] = {}
        for row in rows:
            firsts.setdefault((row.device, row.server), row.windows[:3])
        by_server = [[window for place, windows in firsts.items() if place[1] == server for window in windows] for server in (0, 1)]
        return fmean(by_server[order.index(cheap)]), fmean(by_server[order.index(dear)])

    for order in ([cheap, dear], [dear, cheap]):
        many, few = first_windows(order)
        assert few < 2.5
        assert 3.0 <= many < 6.0, "what a round took at the other server says nothing"


def test_nothing_of_the_warm_up_is_measured_and_what_is_finished_counts_until_the_horizon() -> None:
    open_world = {"requests": None, "arrivals": {"poisson_per_s": 4}, "horizon_s": 12, "warm_up_s": 4}
    found = run(workload=open_world, execution="fused")
    whole = run(workload={**open_world, "warm_up_s": 0}, execution="fused")
    assert all(row.arrival >= 4.0 for row in found.requests)
    assert [row.number for row in found.requests] == [row.number for row in whole.requests if row.arrival >= 4.0]
    ended = sum(4.0 <= row.arrival + row.seconds < 12.0 for row in whole.requests)
    assert found.system["finished"] == pytest.approx(ended / 8)
    assert "finished" not in run().system


def test_a_server_that_drafts_for_itself_is_faster_than_one_that_does_not_and_no_link_makes_it_slower() -> None:
    pool = {"model": "llama2-70b", "gpu": "a100", "tensor_parallel": 4, "engine": "graphs", "draft_model": "llama2-7b"}

    def found(execution: str, rtt: float) -> Outcome:
        return run(execution=execution, world={"server_pools": [pool], "link": {"rtt_ms": rtt}})

    near, far, alone = found("co-located", 10), found("co-located", 100), found("fused", 10)
    assert near.system["completed"] == 8
    assert near.system["tpot_mean"] < 0.8 * alone.system["tpot_mean"]
    assert far.system["tpot_mean"] == pytest.approx(near.system["tpot_mean"], rel=0.05)
    assert [row.tokens for row in near.requests] == [row.tokens for row in alone.requests]


@pytest.mark.parametrize(
    ("pool", "policy", "message"),
    [
        ({"model": "llama2-70b", "gpu": "a100", "tensor_parallel": 4}, {}, "draft_model: expected the name of a model"),
        ({"step_times": "llama2-70b-a100x2", "draft_model": "llama2-7b"}, {}, "draft_model: only valid with model and gpu"),
        ({"step_times": "llama2-70b-a100x2"}, {"window": "dynamic"}, "window: expected a number with execution 'co-located'"),
    ],
)
def test_a_server_that_drafts_needs_a_draft_model_and_a_fixed_window(pool: dict[str, Any], policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(execution="co-located", world={"server_pools": [pool]}, **policy)


def test_dynamic_drafts_further_where_only_verified_tokens_count() -> None:
    many = {"requests": 30, "arrivals": {"poisson_per_s": 2}}
    drafted, verified = (run(window=name, workload=many, world={"devices": 2}) for name in ("dynamic", "dynamic-verified"))
    assert verified.system["window_mean"] > drafted.system["window_mean"]
