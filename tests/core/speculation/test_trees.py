"""Trees of drafts in the machine: when siblings are sent, and what a verdict on one commits, adopts and teaches."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamco.core.speculation.draft import Round
from streamco.core.speculation.events import (
    AdoptBranch,
    DeliverIds,
    DraftBranch,
    DraftToken,
    DraftTokens,
    SendDraft,
    TokensDrafted,
)
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.errors import ConfigError
from streamco.policies.drafts.tree_acceptance import path_to
from streamco.policies.drafts.tree_drafts import Sibling
from streamco.profiles.row_costs import RowCosts
from tests.core.speculation.test_machine import Answer, has, only, verdict

FREE = RowCosts({1: 0.05, 32: 0.05})
DEAR = RowCosts({1: 0.05, 32: 1000.0})


def tree_answer(costs: RowCosts | None = FREE, **options: Any) -> Answer:
    answer = Answer(**{"max_siblings": 2, **options})
    answer.estimates.expect_rtt(0.01)
    answer.estimates.expect_row_costs(costs)
    answer.begin()
    return answer


def tokens(version: int, *ids: int) -> TokensDrafted:
    """Sure of all but the first, which is followed by a near alternative."""
    drafted = tuple(DraftToken(token, 0.5 if token == 5 else 0.99, ((token, 0.5), (token + 50, 0.4), (token + 60, 0.01))) for token in ids)
    return TokensDrafted(version, drafted)


def test_a_draft_is_sent_with_the_siblings_that_pay() -> None:
    command = only(tree_answer().receive(tokens(1, 5, 6, 7)), SendDraft)
    assert command.ids[:3] == (5, 6, 7)
    assert len(command.ids) == 5
    assert command.ids[3] == 55
    assert command.parents[:4] == (0, 1, 2, 0)


@pytest.mark.parametrize("options", [{"max_siblings": 0}, {"costs": None}, {"costs": DEAR}, {"max_draft": 3}])
def test_it_is_a_chain_if_rows_cost_more_or_nothing_is_known_of_them(options: dict[str, Any]) -> None:
    command = only(tree_answer(**options).receive(tokens(1, 5, 6, 7)), SendDraft)
    assert (command.ids, command.parents) == ((5, 6, 7), ())


def test_a_verdict_that_ends_with_a_sibling_commits_it_and_the_token_after_it() -> None:
    answer = tree_answer()
    sent = only(answer.receive(tokens(1, 5, 6, 7)), SendDraft)
    node = sent.ids.index(55) + 1
    commands = answer.receive(verdict(1, node, 9))
    assert commands[:2] == [DeliverIds((55,), "accepted"), DeliverIds((9,), "bonus")]
    assert only(commands, DraftTokens).ids == (55, 9)
    assert answer.machine.answer.ids == [55, 9]
    report = answer.report
    assert (report.verified, report.siblings, report.bonus, report.target_tokens) == (3, 2, 1, 6)
    assert (report.accepted, report.sibling_hits, report.drafted, report.wasted) == (1, 1, 3, 3), "the sibling wasn't drafted"
    again = only(answer.receive(tokens(2, 1, 2, 3)), SendDraft)
    assert (again.base, again.given) == (2, ())


def test_a_verdict_on_the_chain_of_a_tree_is_that_of_a_chain() -> None:
    answer = tree_answer()
    answer.receive(tokens(1, 5, 6, 7))
    assert answer.receive(verdict(1, 1, 9))[:2] == [DeliverIds((5,), "accepted"), DeliverIds((9,), "corrected")]
    answer.receive(tokens(2, 1, 2, 3))
    assert answer.receive(verdict(2, 3, 4))[:2] == [DeliverIds((1, 2, 3), "accepted"), DeliverIds((4,), "bonus")]
    assert answer.report.acceptance == 4 / 6, "siblings lower it by nothing"


def test_a_branch_after_a_sibling_is_adopted_if_it_wrote_the_token_after_it() -> None:
    answer = tree_answer(is_parallel=True)
    commands = answer.receive(tokens(1, 5, 6, 7))
    sent = only(commands, SendDraft)
    branch = next(command for command in commands if isinstance(command, DraftBranch) and command.ids == (55,))
    answer.receive(TokensDrafted(branch.version, (DraftToken(9, 0.9), DraftToken(10, 0.9)), is_finished=False))
    commands = answer.receive(verdict(1, sent.ids.index(55) + 1, 9))
    assert only(commands, AdoptBranch).version == branch.version
    assert answer.machine.answer.ids == [55, 9]
    assert answer.report.hits == 1


def test_a_branch_that_wrote_another_token_is_dropped() -> None:
    answer = tree_answer(is_parallel=True)
    commands = answer.receive(tokens(1, 5, 6, 7))
    sent = only(commands, SendDraft)
    branch = next(command for command in commands if isinstance(command, DraftBranch) and command.ids == (55,))
    answer.receive(TokensDrafted(branch.version, (DraftToken(8, 0.9),), is_finished=False))
    commands = answer.receive(verdict(1, sent.ids.index(55) + 1, 9))
    assert not has(commands, AdoptBranch)
    assert only(commands, DraftTokens).ids == (55, 9)


def test_a_draft_ahead_of_a_verdict_on_a_sibling_expects_the_token_after_it() -> None:
    answer = tree_answer(is_parallel=True, max_ahead=3)
    commands = answer.receive(tokens(1, 5, 6, 7))
    sent = only(commands, SendDraft)
    branch = next(command for command in commands if isinstance(command, DraftBranch) and command.ids == (55,))
    drafted = tuple(DraftToken(token, 0.9) for token in range(9, 9 + branch.count))
    ahead = only(answer.receive(TokensDrafted(branch.version, drafted)), SendDraft)
    node = sent.ids.index(55) + 1
    assert ahead.if_verdict is not None
    assert (ahead.if_verdict.accepted, ahead.if_verdict.token) == (node, 9)
    assert ahead.base == 2
    assert ahead.ids[0] == 10
    answer.receive(verdict(1, node, 9))
    assert answer.report.ahead == 1


def test_a_sibling_teaches_that_the_drafts_own_token_was_rejected() -> None:
    answer = tree_answer()
    before = answer.estimates.acceptance
    sent = only(answer.receive(tokens(1, 5, 6, 7)), SendDraft)
    answer.receive(verdict(1, sent.ids.index(55) + 1, 9))
    assert answer.estimates.acceptance < before


def test_a_round_numbers_its_siblings_after_the_draft() -> None:
    sent = Round([DraftToken(5), DraftToken(6)], siblings=(Sibling(1, 8, 0.1), Sibling(0, 9, 0.1)))
    assert (sent.sent_ids, sent.parents) == ((5, 6, 8, 9), (0, 1, 1, 0))
    assert [sent.accepted_ids(accepted) for accepted in range(5)] == [(), (5,), (5, 6), (5, 8), (9,)]
    assert [sent.position(accepted) for accepted in range(5)] == [0, 1, 2, 1, 0]
    assert (sent.number_of(0, 9), sent.number_of(0, 8)) == (4, None)
    assert Round([DraftToken(5)]).parents == ()


def test_negative_siblings_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_siblings >= 0"):
        SpeculationMachineOptions(max_siblings=-1)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_texts_in_trees_are_the_targets_own(seed: int) -> None:
    dice = Random(seed)
    own = [dice.randrange(1, 40) for _ in range(60)]
    answer = tree_answer(max_tokens=40)
    version = 1
    while not answer.machine.is_done:
        length = len(answer.machine.answer.ids)
        guesses = [token if dice.random() < 0.6 else token + 100 for token in own[length : length + 3]]
        drafted = tuple(
            DraftToken(guess, 0.6, ((guess, 0.6), (right, 0.3)) if guess != right else ((guess, 0.6), (guess + 7, 0.3)))
            for guess, right in zip(guesses, own[length:], strict=False)
        )
        commands = answer.receive(TokensDrafted(version, drafted))
        sent = only(commands, SendDraft)
        accepted, text = 0, own[length:]
        while True:
            parents = sent.parents or tuple(range(len(sent.ids)))
            depth = len(path_to(parents, accepted))
            child = next((n for n, p in enumerate(parents, 1) if p == accepted and sent.ids[n - 1] == text[depth]), None)
            if child is None:
                break
            accepted = child
        commands = answer.receive(verdict(sent.round, accepted, text[len(path_to(parents, accepted))]))
        version = next((command.version for command in commands if isinstance(command, DraftTokens)), version)
        if has(commands, SendDraft) and not answer.machine.is_done:  # one token is left, and nothing is drafted for it
            answer.receive(verdict(only(commands, SendDraft).round, 0, own[len(answer.machine.answer.ids)]))
    assert answer.machine.answer.ids == own[:40]
