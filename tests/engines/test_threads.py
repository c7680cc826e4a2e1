"""Shares of the cores: never more than there are, and they grow back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.threads import ThreadBudget, available_cores
from streamco.errors import ConfigError


def test_one_engine_has_all_cores() -> None:
    assert ThreadBudget(2).claim(None).threads == 2


def test_two_engines_on_two_cores_have_one_each() -> None:
    budget = ThreadBudget(2)
    first, second = budget.claim(None), budget.claim(None)
    assert (first.threads, second.threads) == (1, 1)


def test_a_share_grows_back_when_the_neighbour_leaves() -> None:
    budget = ThreadBudget(4)
    first, second = budget.claim(None), budget.claim(None)
    second.release()
    second.release()
    assert first.threads == 4


def test_explicit_wishes_are_met_and_the_others_share_the_rest() -> None:
    budget = ThreadBudget(8)
    fixed, first, second = budget.claim(3), budget.claim(None), budget.claim(None)
    assert (fixed.threads, first.threads, second.threads) == (3, 3, 2)


def test_an_explicit_wish_above_the_cores_wins_and_leaves_one_for_each_other() -> None:
    budget = ThreadBudget(2)
    shared, greedy = budget.claim(None), budget.claim(5)
    assert (shared.threads, greedy.threads) == (1, 5)


@given(st.integers(1, 64), st.integers(1, 40))
def test_sharers_together_never_exceed_the_cores_unless_there_are_more_of_them(cores: int, engines: int) -> None:
    budget = ThreadBudget(cores)
    shares = [budget.claim(None) for _ in range(engines)]
    assert sum(share.threads for share in shares) == max(cores, engines)
    assert max(share.threads for share in shares) - min(share.threads for share in shares) <= 1


@pytest.mark.parametrize("wanted", [0, -1])
def test_less_than_one_thread_is_refused(wanted: int) -> None:
    with pytest.raises(ConfigError, match=f"threads: expected None or at least 1, got {wanted}"):
        ThreadBudget(2).claim(wanted)


@pytest.mark.parametrize(
    ("text", "most"),
    [("max 100000", 10_000), ("100000 100000", 1), ("50000 100000", 1), ("rubbish", 10_000), ("", 10_000)],
)
def test_a_control_groups_quota_cuts_the_cores(tmp_path: Path, text: str, most: int) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text, encoding="ascii")
    assert 1 <= available_cores(quota) <= most


def test_without_a_control_group_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "nothing") >= 1
