"""A client's answers added up, from bills made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from streamco.core.report_parts import Ending, EndpointReport, ShadowReport
from streamco.core.totals import _COSTS, _COUNTS, AnswerCost, EndpointTotals, ShadowTotals, Totals, TotalsRecorder
from streamco.policies.budget_control import BudgetSteering


def part(name: str = "server", outcome: Any = "won", **figures: Any) -> EndpointReport:
    figures.setdefault("opened", 0.0)
    return EndpointReport(name=name, kind="device" if name == "device" else "server", outcome=outcome, **figures)


def cost(*parts: EndpointReport, ending: Ending | None = "complete", **figures: Any) -> AnswerCost:
    defaults: dict[str, Any] = {
        "hand_overs": 0,
        "tokens": 0,
        "cost_usd": 0.0,
        "energy_j": None,
        "unified_cost_usd": 0.0,
        "wasted_tokens": 0,
        "wasted_prompt_tokens": 0,
    }
    return AnswerCost(endpoints=list(parts), ending=ending, **{**defaults, **figures})


def test_before_the_first_answer_nothing_was_spent_and_no_budget_is_known() -> None:
    totals = TotalsRecorder().totals()
    assert totals == Totals()
    assert (totals.answers, totals.cost_usd, totals.energy_j, totals.budget_share, totals.endpoints) == (0, 0.0, None, None, {})


def test_answers_are_counted_by_their_ends_and_a_session_that_broke_down_has_failed() -> None:
    totals = Totals()
    endings: list[Ending | None] = ["complete", "complete", "complete", "failed", "left", "left", None]
    for ending in endings:
        totals = totals.plus(cost(ending=ending))
    assert (totals.answers, totals.complete, totals.failed, totals.left) == (7, 3, 2, 2)


def test_figures_of_answers_add_up() -> None:
    one = cost(hand_overs=1, tokens=5, cost_usd=0.25, energy_j=2.0, unified_cost_usd=0.5, wasted_tokens=3, wasted_prompt_tokens=10)
    totals = Totals().plus(one).plus(one)
    assert (totals.hand_overs, totals.tokens, totals.wasted_tokens, totals.wasted_prompt_tokens) == (2, 10, 6, 20)
    assert (totals.cost_usd, totals.energy_j, totals.unified_cost_usd) == (0.5, 4.0, 1.0)


def test_the_totals_of_two_accounts_join_to_those_of_all_their_answers() -> None:
    bills = [
        cost(part(prompt_tokens=3, completion_tokens=2, cost_usd=0.25), hand_overs=1, tokens=5, cost_usd=0.25, wasted_tokens=3),
        cost(part("device", energy_j=2.0, error="x"), part(outcome="lost", is_estimated=True, prompt_tokens=7), energy_j=2.0),
        cost(part("device", outcome="drafted", energy_j=1.0), ending=None, energy_j=1.0, wasted_prompt_tokens=4),
        cost(part("other", cost_usd=None), cost_usd=None, unified_cost_usd=None, ending="failed"),
    ]
    whole = Totals()
    for bill in bills:
        whole = whole.plus(bill)
    for at in range(len(bills) + 1):
        first, second = Totals(), Totals()
        for bill in bills[:at]:
            first = first.plus(bill)
        for bill in bills[at:]:
            second = second.plus(bill)
        assert first.joined(second) == second.joined(first) == whole
    assert set(Totals.__struct_fields__) == {*_COUNTS, *_COSTS, "budget", "budget_share", "endpoints", "shadows"}, "none is left out"


def test_the_shadow_answers_of_two_accounts_join() -> None:
    shadows = [
        ShadowReport(
            endpoint="server",
            good=good,
            why_not="",
            prompt_tokens=3,
            completion_tokens=2,
            is_estimated=False,
            cost_usd=cost_usd,
            is_final=True,
        )
        for good, cost_usd in ((True, 0.25), (False, 0.5), (None, 1.0))
    ]
    recorders = [TotalsRecorder(), TotalsRecorder()]
    for number, shadow in enumerate(shadows):
        recorders[number % 2].record_shadow(shadow)
    one, other = (recorder.totals() for recorder in recorders)
    assert one.joined(other).shadows == ShadowTotals(answers=3, good=1, bad=1, prompt_tokens=9, completion_tokens=6, cost_usd=1.75)
    assert (one.cost_usd, one.tokens) == (0.0, 0)


def test_joined_totals_keep_the_budget_of_the_first_account() -> None:
    first, second = Totals(budget=0.3, budget_share=0.25), Totals(budget=1.0, budget_share=1.0)
    assert first.joined(second) == first


def test_a_cost_that_is_not_known_stays_unknown_while_energy_is_of_those_it_is_known_of() -> None:
    known = cost(cost_usd=0.25, energy_j=2.0, unified_cost_usd=0.5)
    totals = Totals().plus(known).plus(cost(cost_usd=None, unified_cost_usd=None)).plus(known)
    assert (totals.cost_usd, totals.unified_cost_usd, totals.energy_j) == (None, None, 4.0)


def test_each_endpoint_has_its_tokens_and_how_many_of_them_are_estimates() -> None:
    own = part(prompt_tokens=10, completion_tokens=4, cost_usd=0.5, unified_cost_usd=0.5)
    guessed = part(prompt_tokens=20, completion_tokens=3, is_estimated=True, cost_usd=0.25, unified_cost_usd=0.25)
    server = Totals().plus(cost(own)).plus(cost(guessed)).endpoints["server"]
    assert (server.requests, server.won, server.kind) == (2, 2, "server")
    assert (server.prompt_tokens, server.completion_tokens) == (30, 7)
    assert (server.estimated_prompt_tokens, server.estimated_completion_tokens) == (20, 3)
    assert (server.wasted_prompt_tokens, server.wasted_tokens) == (0, 0)
    assert (server.cost_usd, server.unified_cost_usd, server.energy_j) == (0.75, 0.75, None)


def test_each_endpoint_has_its_waste_and_what_became_of_its_requests() -> None:
    lost = part("device", "lost", prompt_tokens=10, completion_tokens=2, wasted_prompt_tokens=10, wasted_tokens=2)
    failed = part("spare", "failed", prompt_tokens=7, wasted_prompt_tokens=7, error="spare: cut")
    won = part("server", "won", prompt_tokens=9, completion_tokens=5, wasted_tokens=1, error="server: cut")
    endpoints = Totals().plus(cost(lost, failed, won)).plus(cost(won)).endpoints
    assert [(item.wasted_prompt_tokens, item.wasted_tokens) for item in endpoints.values()] == [(10, 2), (7, 0), (0, 2)]
    assert [item.failed for item in endpoints.values()] == [0, 1, 2], "one that had won may fail too"
    assert [(item.lost, item.won) for item in endpoints.values()] == [(1, 0), (0, 0), (0, 2)]


def test_an_endpoint_may_be_asked_several_times_for_one_answer() -> None:
    parts = part("device", "lost"), part("device", "read ahead"), part("device", "read ahead"), part("device", "took over")
    device = Totals().plus(cost(*parts)).endpoints["device"]
    assert (device.requests, device.lost, device.read_ahead, device.took_over, device.won) == (4, 1, 2, 1, 0)


def test_endpoints_that_were_never_asked_are_left_out() -> None:
    totals = Totals().plus(cost(part("spare", "not started", opened=None), part("device", "failed", opened=None, error="no file")))
    assert totals.endpoints == {}


def test_what_was_handed_out_does_not_change_with_the_next_answer() -> None:
    recorder = TotalsRecorder()
    recorder.record(cost(part()))
    before = recorder.totals()
    recorder.record(cost(part(), part("device", "lost")))
    assert (before.answers, before.endpoints["server"].requests, len(before.endpoints)) == (1, 1, 1)
    assert recorder.totals().answers == 2
    with pytest.raises(AttributeError):
        before.answers = 5  # type: ignore[misc]


def test_the_budgets_share_is_the_accounts_as_it_is_now() -> None:
    recorder = TotalsRecorder()
    recorder.use_budget(account := BudgetSteering(0.5))
    assert (recorder.totals().budget, recorder.totals().budget_share) == (0.5, None), "no answer has ended"
    account.settle(account.reserve(10), started=True)
    account.settle(account.reserve(30, wanted=False), started=False)
    assert recorder.totals().budget_share == 0.25
    account.settle(account.reserve(60), started=True, exempt=True)
    assert recorder.totals().budget_share == 0.25, "only one side could serve it"


def test_totals_go_to_json_and_back() -> None:
    totals = Totals().plus(cost(part("device", "won", energy_j=1.5), part("server", "lost"), energy_j=1.5))
    encoded = msgspec.json.encode(totals)
    assert msgspec.json.decode(encoded, type=Totals) == totals
    assert msgspec.json.decode(encoded)["endpoints"]["device"]["energy_j"] == 1.5
    assert isinstance(totals.endpoints["server"], EndpointTotals)


def test_totals_are_printed_as_lines_for_people() -> None:
    bill = cost(part("device", energy_j=2.0), part(cost_usd=0.0013, is_estimated=True, prompt_tokens=7), cost_usd=0.0013, energy_j=2.0)
    totals = Totals().plus(bill).plus(replace(bill, cost_usd=0.1 + 0.2 - 0.3, ending="left"))
    lines = str(totals).splitlines()
    assert "  answers                             2 (1 complete, 1 left)" in lines
    assert "  cost                                $0.0013" in lines
    assert any(line.split() == ["server", "2", "2", "0", "~14", "0", "$0.0026", "-"] for line in lines)
    assert max(map(len, lines)) < 100


def test_nothing_that_never_happened_is_printed() -> None:
    assert str(Totals()).splitlines()[1].split() == ["answers", "0"]
    assert not {"endpoint", "energy", "hand-overs", "shadow"} & set(str(Totals()).split())
    assert "$" not in repr(Totals()), "the fields stay as they are"
