"""``kind: split``: figures of a whole experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.sim.experiment.experiment import read_experiment
from streamco.sim.experiment.scenario import metrics_of, run_scenario
from streamco.sim.split.kind import KIND, batch_seconds, row_costs
from streamco.sim.split.options import MiddleServerOptions
from tests.sim.split.worlds import WORKLOAD, run

HAT: dict[str, Any] = {"drafting": "threshold", "chunking": "balanced", "branches": 3}
EXPERIMENTS = sorted((Path(__file__).parents[3] / "bench" / "papers").glob("hat_*.yaml"))


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first, again, other = (msgspec.json.encode(run(rows=True, seed=seed, **HAT)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_figure_has_a_name_and_the_table_has_figures() -> None:
    found = run(**HAT).system
    assert {*KIND.columns} <= {*found} <= {*metrics_of(KIND)}
    assert {*KIND.metrics} <= {*found}


def test_all_policies_meet_the_same_requests() -> None:
    one, other = run(rows=True).requests, run(rows=True, **HAT).requests
    assert [(row.prompt_tokens, row.tokens, row.device) for row in one] == [(row.prompt_tokens, row.tokens, row.device) for row in other]
    assert len(one) == WORKLOAD["requests"]


def test_chunks_bring_the_first_token_sooner_and_drafts_the_others() -> None:
    shape, chunks, drafts, whole = (
        run(world={"is_shared": False}, **policy).system for policy in ({}, {"chunking": "balanced"}, {"drafting": "threshold"}, HAT)
    )
    assert chunks["ttft_mean"] < 0.8 * shape["ttft_mean"]
    assert drafts["tpot_mean"] < 0.9 * shape["tpot_mean"]
    assert whole["ttft_mean"] < 0.8 * shape["ttft_mean"]
    assert whole["tpot_mean"] < drafts["tpot_mean"]
    assert shape["round_tokens"] == 1.0 < drafts["round_tokens"]


def test_a_fixed_number_of_requests_in_flight_is_kept() -> None:
    found = run(rows=True, workload={"arrivals": {"closed": 1}, "requests": 5}).requests
    ends = [row.arrival + row.seconds for row in found]
    assert [row.arrival for row in found[1:]] == pytest.approx(ends[:-1], abs=1e-5)


def test_recorded_acceptance_is_used_as_it_is() -> None:
    recorded = {"trace": "gsm8k", "requests": 10, "arrivals": {"poisson_per_s": 2.0}}
    plain = {"requests": 10, "arrivals": {"poisson_per_s": 2.0}, "prompt": None, "output": None, "acceptance": None}
    found = run(rows=True, workload={**plain, **recorded}, **HAT)
    assert found.system["round_tokens"] > 2.0
    assert all(row.rounds < row.tokens for row in found.requests)


@pytest.mark.long
@pytest.mark.parametrize(("data", "tokens"), [("SpecBench, 7B", 2.06), ("CNN/DM, 13B", 1.98)])
def test_the_acceptance_of_the_experiments_gives_the_papers_tokens_a_round(data: str, tokens: float) -> None:
    experiment = read_experiment(Path(__file__).parents[3] / "bench" / "papers" / "hat_table4.yaml")
    point = {"data set": data, "framework": "HAT without PD"}
    found = run_scenario(next(each for each in experiment.scenarios if each.point == point)).system
    assert found["round_tokens"] == pytest.approx(tokens, rel=0.03)  # HAT, Table IV


def test_predicted_hardware_and_a_table_give_times_by_rows() -> None:
    predicted = batch_seconds(MiddleServerOptions(model="llama2-7b", gpu="a6000", time_factor=0.9375))
    assert predicted(2048, 0, 1) == pytest.approx(0.28, rel=0.1)  # HAT 2.3: 0.28 s for 2k tokens
    assert predicted(64, 10_000, 8) > predicted(64, 0, 8)
    table = batch_seconds(MiddleServerOptions(row_costs_ms=((1, 10.0), (101, 20.0))))
    assert table(51, 0, 1) == pytest.approx(0.015)
    assert row_costs(table).seconds(1) == pytest.approx(0.01)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_papers_experiments_can_be_read(path: Path) -> None:
    experiment = read_experiment(path, is_quick=True)
    assert experiment.scenarios
    assert "device" in experiment.describe()
