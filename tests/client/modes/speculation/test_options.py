"""Settings of speculation, and the policies that they name."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationOptions, SpeculationTuning
from streamco.config import Timeouts
from streamco.core.speculation.draft import plan_branches
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.prior import EstimatesPrior
from streamco.endpoints.verifiers import logprob as stock
from streamco.endpoints.verifiers import streamco as verifier
from streamco.errors import ConfigError
from streamco.policies.window import Static
from tests.client.helpers import device, server


def test_windows_are_named() -> None:
    assert SpeculationOptions().estimates(1.0).window == 4
    assert SpeculationOptions(window=7).estimates(1.0).propose_window() == 7
    assert SpeculationOptions(window="dynamic").estimates(1.0).window == 4
    assert 2 <= SpeculationOptions(window="predicted").estimates(1.0).propose_window() <= 12
    assert 2 <= SpeculationOptions(window="adaptive").estimates(1.0).propose_window() <= 12
    assert SpeculationOptions(window=Static(3)).estimates(1.0).window == 3


def windows_after(options: SpeculationOptions, proposals: list[float]) -> list[int]:
    pair = options.estimates(1.0)
    return [pair._window._stabiliser.settle(proposal) for proposal in proposals]


def test_what_a_network_proposes_is_smoothed_and_always_leaves_a_draft() -> None:
    assert windows_after(SpeculationOptions(window="adaptive"), [10.0, 0.0, 0.0, 0.0, 0.0, 0.0]) == [10, 7, 5, 4, 3, 3]
    assert windows_after(SpeculationOptions(window="adaptive", tuning=SpeculationTuning(smoothing=1.0)), [10.0, 0.0]) == [10, 2]
    assert windows_after(SpeculationOptions(window="dynamic"), [10.0, 0.0]) == [10, 1], "whole proposals go through"
    assert windows_after(SpeculationOptions(window="dynamic", tuning=SpeculationTuning(smoothing=0.4)), [10.0, 0.0]) == [10, 6]


def test_a_sampled_forecast_plans_one_branch_and_the_others_rank_them() -> None:
    draft = [DraftToken(id=token, confidence=0.6, alternatives=((token, 0.6), (50, 0.3), (51, 0.1))) for token in (1, 2, 3, 4)]
    planned = {}
    for forecast in ("learned", "geometric", "sampled"):
        pair = SpeculationOptions(tuning=SpeculationTuning(forecast=forecast)).estimates(1.0)
        settings: Any = {"window": 4, "max_branches": 6, "kinds": frozenset({"accept all", "reject"}), "end_ids": frozenset()}
        planned[forecast] = [len(plan_branches(draft, pair, seconds=0.3, **settings).branches) for _ in range(5)]
    assert planned["sampled"] == [1] * 5
    assert min(planned["learned"] + planned["geometric"]) > 1


def test_the_mode_is_chosen_by_smoothed_proposals_if_that_is_asked_for() -> None:
    usual, smoothed = (
        SpeculationOptions(window="adaptive", tuning=SpeculationTuning(smooths_mode=smooths)).estimates(1.0) for smooths in (False, True)
    )
    assert usual._window._mode_stabiliser is None
    assert smoothed._window._mode_stabiliser is not None
    assert [smoothed._window._mode_stabiliser.settle(proposal) for proposal in (8.0, 0.0, 0.0)] == [8, 5, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"window": "large"},
        {"window": True},
        {"threshold": 2},
        {"joules_per_second_saved": -1},
        {"max_branches": -1},
        {"patience": 0.0},
        {"budget": 1.5},
    ],
)
def test_settings_that_cant_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="speculate: "):
        SpeculationOptions(**options)


@pytest.mark.parametrize(
    "tuning",
    [
        {"row_tokens": 0},
        {"row_tokens": 65},
        {"max_ahead": -1},
        {"last_patience": 0.0},
        {"first_verdict_timeout": 0.0},
        {"verdict_timeout": -1.0},
        {"smoothing": -1},
        {"forecast": "wild"},
    ],
)
def test_tuning_that_cant_be_is_refused(tuning: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="speculate: "):
        SpeculationTuning(**tuning)


def test_time_limits_derive_from_the_patience_unless_they_are_tuned() -> None:
    usual = SpeculationOptions()
    assert (usual.patience, usual.last_patience, usual.first_verdict_timeout, usual.verdict_timeout) == (2.0, 30.0, 60.0, 30.0)
    longer = SpeculationOptions(patience=4.0, tuning=SpeculationTuning(verdict_timeout=1.0))
    assert (longer.last_patience, longer.first_verdict_timeout, longer.verdict_timeout) == (60.0, 120.0, 1.0)


def test_an_answer_waits_less_for_the_verifier_if_the_device_may_finish_it() -> None:
    usual, tuned = SpeculationOptions(), SpeculationOptions(tuning=SpeculationTuning(last_patience=9.0))
    assert usual.patience_before_the_end(Timeouts(), may_use_device=True) == 4.0
    assert usual.patience_before_the_end(Timeouts(), may_use_device=False) == 30.0
    assert usual.patience_before_the_end(Timeouts(next_token=3.0), may_use_device=False) == 3.0
    assert usual.patience_before_the_end(Timeouts(next_token=3.0), may_use_device=True) == 3.0
    assert usual.patience_before_the_end(Timeouts(next_token=None), may_use_device=False) == 30.0
    assert tuned.patience_before_the_end(Timeouts(next_token=3.0), may_use_device=True) == 9.0


def test_without_branches_nothing_is_drafted_in_parallel() -> None:
    assert SpeculationOptions().is_parallel
    assert not SpeculationOptions(max_branches=0).is_parallel
    assert not SpeculationOptions(tuning=SpeculationTuning(is_parallel=False)).is_parallel


def test_nobody_gives_up_before_the_verifier_itself_would() -> None:
    options = SpeculationOptions()
    for limits in (verifier._TIMEOUTS, stock._TIMEOUTS):
        assert limits.first_token is not None
        assert limits.next_token is not None
        assert options.first_verdict_timeout >= limits.first_token
        assert options.verdict_timeout >= limits.next_token


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"emit": "all"}, 'emit: expected "verified"'),
        ({"verifier": 5}, "verifier: expected the URL"),
        ({"verifier": ["ws://127.0.0.1:9", 5]}, "verifier: expected the URL"),
    ],
)
def test_the_mode_refuses_settings_that_cant_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Speculate(**settings)


def test_a_client_refuses_a_verifier_of_another_scheme() -> None:
    with pytest.raises(ConfigError, match="expected"):
        Client(device(), server(), mode=Speculate(verifier="ftp://host"))


def test_a_pair_begins_with_what_another_one_knows() -> None:
    options = SpeculationOptions(tuning=SpeculationTuning(prior=EstimatesPrior(acceptance=0.9, wait=0.3)))
    pair = options.estimates(1.0)
    assert pair.acceptance == pytest.approx(0.9)
    assert pair.wait == 0.3
    pair.record_wait(0.7, queue_depth=0.0, server_seconds=0.1)
    assert options.estimates(0.5, pair).wait == pytest.approx(0.7)
    assert not options.estimates(0.5, pair).is_lossless
