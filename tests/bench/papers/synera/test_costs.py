"""Times and costs of simulated contenders, and that the experiment's file has the contenders of the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from bench.papers.synera.costs import DEVICE, cost_of, main, tables_of
from bench.papers.synera.rules import RULES, Cell, cells_of, live_options, simulated_policy
from streamco.policies.cost import device_costs
from streamco.sim.fleet.options import PolicyOptions

ROOT = Path(__file__).resolve().parents[4]


def scenario(contender: str, tpot: float, share: float, drafted: float, trace: str = "gsm8k") -> dict[str, Any]:
    system = {"tpot_mean": tpot, "agreement": 0.9, "cloud_share": share, "drafted": drafted}
    return {"point": {"workload.trace": trace, "contender": contender}, "system": system}


SCENARIOS = [
    scenario("server", 0.04, 1.0, 0.0),
    scenario("combined 0.2", 0.02, 0.3, 1.5),
    scenario("combined 0.2", 0.02, 0.5, 1.5),
    scenario("server", 0.05, 1.0, 0.0, "humaneval"),
]


def test_a_cost_is_time_by_tokens_by_packing() -> None:
    assert cost_of(0.04, 0.5) == pytest.approx(0.02)
    assert cost_of(0.04, 0.5, 8.0) == pytest.approx(0.0025)


def test_a_table_has_costs_beside_those_of_the_server_alone() -> None:
    tables = tables_of(SCENARIOS)
    joules = 1.5 * device_costs(DEVICE).completion_joules
    assert tables["gsm8k"] == [
        ["server", "40.0", "0.900", "1.00", "1.00", "0.00"],
        ["combined 0.2", "20.0", "0.900", "0.40", "0.20", f"{joules:.2f}"],
    ]
    assert tables["humaneval"][0][4] == "1.00"
    with pytest.raises(KeyError):
        tables_of(SCENARIOS[1:2])


def test_tables_are_printed_from_a_results_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"scenarios": SCENARIOS}))
    assert main([str(tmp_path)]) == 0
    assert "| combined 0.2 | 20.0 | 0.900 | 0.40 | 0.20 |" in capsys.readouterr().out


def test_the_experiments_contenders_are_those_of_the_rules() -> None:
    cases = yaml.safe_load((ROOT / "bench" / "papers" / "synera_table4.yaml").read_text())["sweep"]["contender"]
    for cell in (Cell("device", 0.0), Cell("server", 1.0), *(Cell(rule, budget) for rule in RULES for budget in (0.2, 0.5))):
        if cell.name in cases:
            found = {name.removeprefix("policy."): value for name, value in cases[cell.name].items()}
            wanted, default = simulated_policy(cell), PolicyOptions()
            assert {**wanted, **found} == wanted
            assert all(name in found or getattr(default, name) == value or cell.rule == "device" for name, value in wanted.items())
    assert {"device", "server", "confidence 0.2", "hybrid 0.2", "answers 0.2"} <= set(cases)


@pytest.mark.parametrize("cell", cells_of(RULES, (0.2,)), ids=lambda cell: cell.name)
def test_every_contender_is_one_the_simulator_and_the_client_take(cell: Cell) -> None:
    policy = PolicyOptions(**simulated_policy(cell))
    if cell.rule == "answers":
        with pytest.raises(ValueError, match="expected a rule of the live client"):
            live_options(cell)
    else:
        options = live_options(cell)
        assert (options.budget, options.window) == (cell.budget, policy.window if cell.rule != "server" else 4)
