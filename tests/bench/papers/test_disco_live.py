"""DiSCo by the live client: the arithmetic of what is kept, and the tables that are made of it."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.counted.dispatch import PHONES
from bench.papers.disco_live import MODELS, WAYS, cost_cut, cost_lines, move_lines, move_row, ttft_lines
from streamco.sim.experiment.scenario import Outcome


def outcome(*rows: dict[str, float], between: float = 0.208) -> Outcome:
    return cast("Outcome", SimpleNamespace(requests=[SimpleNamespace(**row) for row in rows], system={"tbt_p99": between}))


def test_first_tokens_are_compared_with_random_dispatch_setting_by_setting() -> None:
    scenarios: list[dict[str, Any]] = []
    for budget, side, phone, (service, seconds) in product((0.1, 0.5), ("device", "server"), PHONES, (("fast", 0.9), ("slow", 1.1))):
        place = {"policy.budget": budget, "policy.constrained": side, "world.device": phone, "world.service": service}
        for policy, mean in (("disco", seconds if budget > 0.1 else 0.8), ("stochastic", 1.0)):
            system = {"ttft_mean": mean, "ttft_p99": 0.5 * mean, "budget_share": budget + (0.02 if service == "slow" else -0.01)}
            scenarios.append({"point": {**place, "policy.dispatch": policy}, "system": system})
    lines = [*ttft_lines({"scenarios": scenarios})]
    assert lines[0] == "| budget | device spared, mean | device spared, P99 | server spared, mean | server spared, P99 |"
    assert lines[2] == "| 0.1 |" + " 20.0 / 20.0 / 20.0 |" * 4
    assert lines[3].replace("-0.0", "0.0") == "| 0.5 |" + " 0.0 / 0.0 / 0.0 |" * 4
    assert lines[-1] == "Later than random dispatch, of 24 settings: 6 by mean and 6 by P99. Share spent minus the budget: -0.010 to 0.020."


def test_what_is_saved_is_of_all_requests_together() -> None:
    stays = outcome({"cost": 1.0}, {"cost": 3.0})
    cut = cost_cut(stays, outcome({"cost": 1.0}, {"cost": 1.0}))
    assert cut.value == pytest.approx(50.0)
    assert {round(float(value), 3) for value in cut.drawn} == {0.0, 50.0, 66.667}, "one, both or the other twice"


def test_costs_stand_beside_the_papers_most() -> None:
    rows = [
        {"way": way, "side": side, "model": model, "phone": phone, "budget": budget, "saved": saved, "low": saved - 1, "high": saved + 1}
        for way, side, model, phone, (budget, saved) in product(WAYS, ("device", "server"), MODELS, PHONES, ((0.5, 10.0), (1.0, 12.5)))
    ]
    rows[-1]["saved"] = 40.0
    for row in rows[: 2 * len(MODELS) * len(PHONES)]:
        row |= {"saved": 0.0, "low": 0.0, "high": 0.0}
    lines = [*cost_lines({"rows": rows})]
    assert lines[0] == "| spared: mean / most | by default | to any model | if all could | the paper's most |"
    assert lines[2:4] == [
        "| device | 0 / 0.0 % | 10 / 12.5 % | 10 / 12.5 % | 72.7 % |",
        "| server | 10 / 12.5 % | 10 / 12.5 % | 10 / 40.0 % | 83.6 % |",
    ]
    assert lines[5] == "By default, at budget 0.5:"
    assert lines[7] == "| spared | phone | GPT | LLaMA | DeepSeek | Command | most, at budget |"
    assert lines[9] == f"| device | {next(iter(PHONES))} |" + " 0.0 (0.0 to 0.0) |" * 4 + " none |"
    assert lines[-6] == f"| device | {next(iter(PHONES))} |" + " 10.0 (9.0 to 11.0) |" * 4 + " GPT 12.5, at 1 |"


def test_only_answers_that_moved_count() -> None:
    found = outcome({"moves": 1, "delayed": 0.0}, {"moves": 1, "delayed": 2.0}, {"moves": 0, "delayed": 50.0})
    row = move_row([found, outcome({"moves": 2, "delayed": 0.0}, between=0.3)])
    assert (row["moved"], row["delayed"], row["unnoticed"], row["between_p99"]) == (3, 0.6667, 0.6667, 0.3)
    assert 0 <= row["low"] <= row["delayed"] <= row["high"] <= 2
    assert move_row([outcome({"moves": 0, "delayed": 0.0})]) == {"moved": 0, "between_p99": 0.208}


def test_moves_stand_beside_the_papers() -> None:
    moved = {"moved": 844, "between_p99": 0.2081, "delayed": 0.0213, "low": 0.0, "high": 0.06, "p99": 0.0, "unnoticed": 0.9953}
    none = {"moved": 0, "between_p99": 0.208}
    never = {**moved, "delayed": 0.0, "high": 0.0, "unnoticed": 1.0}
    rows = [
        {"way": "if all could", "model": "GPT", "side": "device", **moved},
        {"way": "if all could", "model": "GPT", "side": "server", **none},
        {"way": "if all could", "model": "LLaMA", "side": "server", **never},
    ]
    places = [(row["model"], row["side"]) for row in rows]
    rows += [{"way": "by default", "model": model, "side": side, **none} for model, side in places]
    rows += [{"way": "to any model", "model": model, "side": side, **none, "moved": 7} for model, side in places]
    assert [*move_lines({"rows": rows})][2:] == [
        "| GPT | device | 6.59 / 6.59 | 0.02 (0.00 to 0.06) | 0 | 844 | 99.5 % | 0.217 s | 0.208 s | 0 | 7 |",
        "| GPT | server | 4.21 / 9.40 | - | - | 0 | - | 0.209 s | 0.208 s | 0 | 7 |",
        "| LLaMA | server | 5.53 / 11.00 | 0.00 | 0 | 844 | 100.0 % | 0.209 s | 0.208 s | 0 | 7 |",
    ]
