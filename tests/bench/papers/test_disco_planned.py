"""DiSCo's plans on recorded services: the rows that are kept, and the tables that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from bench.counted.dispatch import PHONES
from bench.papers.disco_judged import EQUATIONS, ONE_SIDE, Cut, Judgement, plan_equations
from bench.papers.disco_planned import PAPER_SERVICES, PLANNED_TABLES, SIDES, Planned, rows_of
from bench.traces import Halves
from streamco.policies.dispatch import Side

RNG = np.random.default_rng(1)


def judgement(policy: str, place: tuple[Side, str, str], budget: float, cut: float) -> Judgement:
    side, phone, service = place
    drawn = np.linspace(cut - 2.0, cut + 2.0, 201)
    cuts = (Cut(cut, drawn), Cut(2.0 * cut, 2.0 * drawn), Cut(cut - 3.0, drawn - 3.0), Cut(0.0, 0.0 * drawn))
    return Judgement(phone, side, service, budget, policy, 0.5 + budget, 1.5, 0.05 + 0.8 * budget, *cuts)


def judgements() -> Iterator[Judgement]:
    for side, phone, service, budget in product(SIDES, PHONES, PAPER_SERVICES.values(), (0.1, 0.5)):
        policies = ["disco", "optimal", *ONE_SIDE, "stochastic", *(EQUATIONS if side == "device" else ())]
        for policy in policies:
            cut = {"disco": 1.0 if budget < 0.3 else 9.0, "optimal": 10.0, EQUATIONS[2]: -4.0}.get(policy, 2.0)
            yield judgement(policy, (side, phone, service), budget, cut)


PLANNED = Planned.of({"rows": rows_of([*judgements()])})


def lines_of(name: str) -> list[str]:
    return [*PLANNED_TABLES[name](PLANNED)]


def test_policies_have_intervals_over_services_and_budgets() -> None:
    lines = lines_of("disco_planned")
    cuts = "| 5.0 (3.1 to 6.9) | 5.0 (3.1 to 6.9) | 2.0 (0.1 to 3.9) | 10.0 (6.2 to 13.8) |"
    assert lines[2] == f"| device | pixel7-bloom-1.1b {cuts} 10.0 | 20.0 | 2.0 (0.1 to 3.9) |"
    assert lines[5].endswith("| 10.0 | 20.0 |  |"), "no equations where the server is spared"
    assert len(lines) == 2 + 6


def test_seconds_are_at_half_of_the_tokens() -> None:
    assert lines_of("disco_planned_seconds")[2] == "| device | pixel7-bloom-1.1b |" + " 1.00 / 1.00 | 1.50 |" * 4


def test_p99_stands_beside_the_papers() -> None:
    lines = lines_of("disco_planned_paper")
    assert lines[2] == "| GPT, OpenAI gpt-3.5-turbo-0125 | server | 23.9 / 10.0 | 37.4 / 10.0 | 44.0 / 10.0 |"
    assert len(lines) == 2 + 8


def test_budgets_are_lines_and_phones_stand_beside_each_other() -> None:
    lines = lines_of("disco_planned_budgets")
    assert lines[2] == "| 0.1 |" + " 1.0 / 1.0 / 1.0 | 2.0 / 2.0 / 2.0 |" * 2
    assert lines[3] == "| 0.5 |" + " 9.0 / 9.0 / 9.0 | 18.0 / 18.0 / 18.0 |" * 2


def test_settings_that_are_later_are_counted() -> None:
    lines = lines_of("disco_planned_later")
    assert lines[2] == "| mean, at the same budget | 0 | 0 | 24 | 0 | 1.00 % |"
    assert lines[3] == "| mean, at equal spending | 24 | 24 | 24 | 0 | -2.00 % |"
    assert lines[5] == "| P99, at equal spending | 0 | 0 | 0 | 48 | 0.00 % |"


def test_spending_is_what_the_tested_half_took() -> None:
    assert lines_of("disco_planned_spending")[2:] == [f"| {side} | 12 of 24 | 0.13 in place of 0.1 |" for side in SIDES]


def test_equations_are_compared_by_their_choice_of_the_threshold() -> None:
    lines = lines_of("disco_planned_equations")
    assert lines[2] == "| Algorithm 2 | 5.0 / 5.0 / 5.0 | 0 | 12, surely 12; -2.0 % |"
    assert lines[3] == "| equations 1 and 2, l_th with the lowest expected time | 2.0 / 2.0 / 2.0 | 0 | 24, surely 0; -1.0 % |"
    assert lines[5] == "| equations 1 and 2, l_th = 0 | -4.0 / -4.0 / -4.0 | 24, surely 24; -4.0 % | 24, surely 24; -7.0 % |"


def test_lines_of_the_plot_have_a_mean_for_each_budget() -> None:
    lines = [row for row in rows_of([*judgements()]) if row["of"] == "line"]
    assert len(lines) == 3 * 4 * (4 + 3), "phones and services; policies with the device and with the server spared"
    assert all(row["means"] == [0.6, 1.0] for row in lines)


@pytest.mark.parametrize("budget", [0.1, 0.5])
def test_equations_start_at_once_up_to_the_longest_threshold_or_never(budget: float) -> None:
    trace = Halves(np.sort(RNG.lognormal(-0.5, 0.6, 60)), RNG.lognormal(-0.5, 0.6, 40))
    prompts = Halves(RNG.integers(4, 60, 400), RNG.integers(4, 60, 300))
    longest, none = plan_equations(trace, prompts, budget).values()
    shortest = int(prompts.planned.min())
    waits = [policy.outcomes(shortest)[0][1].device_wait for policy in (longest, none)]
    assert waits[0] == 0.0
    assert waits[1], "every prompt waits"
