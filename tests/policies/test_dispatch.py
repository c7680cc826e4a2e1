"""Decisions, and the policies that need no plan."""

from __future__ import annotations

from random import Random

import pytest

from streamco.policies.dispatch import BothAtOnce, Decision, DeviceOnly, ServerOnly, Side, one_side
from tests.policies.worlds import DispatchPolicy

FIXED: list[tuple[DispatchPolicy, str, float | None, float | None]] = [
    (DeviceOnly(), "device-only", 0.0, None),
    (ServerOnly(), "server-only", None, 0.0),
    (BothAtOnce(), "both", 0.0, 0.0),
]


@pytest.mark.parametrize(("policy", "name", "device_wait", "server_wait"), FIXED, ids=[entry[1] for entry in FIXED])
def test_a_fixed_policy_says_the_same_for_every_prompt(
    policy: DispatchPolicy, name: str, device_wait: float | None, server_wait: float | None
) -> None:
    rng = Random(1)
    before = rng.getstate()
    for length in (0, 1, 17, 1_000_000):
        decision = policy.decide(length, rng)
        assert (decision.device_wait, decision.server_wait) == (device_wait, server_wait)
        assert policy.outcomes(length) == ((1.0, decision),)
        assert decision.policy == policy.name == name
        assert decision.reason
        assert not decision.explore
    assert rng.getstate() == before  # no dice were thrown


def test_a_decision_tells_the_wait_of_each_side() -> None:
    decision = Decision(0.25, None, "p", "r")
    assert decision.wait("device") == 0.25
    assert decision.wait("server") is None


@pytest.mark.parametrize(
    ("device_wait", "server_wait", "is_hedged"), [(0.0, 0.0, True), (0.4, 0.0, True), (None, 0.0, False), (0.0, None, False)]
)
def test_a_hedge_has_two_sides(device_wait: float | None, server_wait: float | None, is_hedged: bool) -> None:
    assert Decision(device_wait, server_wait, "p", "r").is_hedged is is_hedged


@pytest.mark.parametrize(("side", "expected"), [("device", (0.0, None)), ("server", (None, 0.0))])
def test_turning_to_one_side_starts_it_at_once_and_the_other_never(side: Side, expected: tuple[float | None, float | None]) -> None:
    turned = one_side(Decision(0.3, 0.0, "optimal", "as planned", explore=True), side, "because")
    assert (turned.device_wait, turned.server_wait) == expected
    assert turned.policy == "optimal"
    assert turned.reason == "because"
    assert not turned.explore


def test_decisions_are_values() -> None:
    assert Decision(0.0, None, "p", "r") == Decision(0.0, None, "p", "r")
    assert hash(Decision(0.0, None, "p", "r")) == hash(Decision(0.0, None, "p", "r"))
    with pytest.raises(AttributeError):
        Decision(0.0, None, "p", "r").device_wait = 1.0  # type: ignore[misc]
