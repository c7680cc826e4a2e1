"""Language models without weights."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from streamco.sim.workload.token_models import DeterministicModel, FakeDistribution, choose_token


def test_equal_seeds_are_equal_models_and_noise_makes_another() -> None:
    assert FakeDistribution(1, 9)([2, 3]) == FakeDistribution(1, 9)([7, 2, 3])
    assert FakeDistribution(1, 9)([2, 3]) != FakeDistribution(2, 9)([2, 3])
    assert FakeDistribution(1, 9)([2, 3]) != FakeDistribution(1, 9, noise=0.1)([2, 3])
    assert sum(FakeDistribution(1, 9)([2, 3]).values()) == pytest.approx(1.0)


def test_tokens_are_drawn_or_the_likeliest_of_equal_ones_the_lowest() -> None:
    assert choose_token({5: 0.4, 3: 0.4, 1: 0.2}, None) == 3
    drawn = [choose_token({5: 0.4, 3: 0.6}, Random(seed)) for seed in range(500)]
    assert 160 < drawn.count(5) < 240


def test_a_certain_model_says_the_same_behind_the_same() -> None:
    model = DeterministicModel(3)
    ((token, share),) = model([5, 7]).items()
    assert share == 1.0
    assert token == model.next_token(2, 7) == DeterministicModel(3).next_token(2, 7)
    assert {DeterministicModel(seed).next_token(2, 7) for seed in range(20)} != {token}
    assert model([]) == {model.next_token(0, 0): 1.0}


def test_noise_and_spread_say_how_much_two_models_agree() -> None:
    def agreement(noise: float) -> float:
        target, draft = FakeDistribution(1, 9), FakeDistribution(1, 9, noise=noise)
        same = [choose_token(target([last]), None) == choose_token(draft([last]), None) for last in range(200)]
        return sum(same) / len(same)

    assert agreement(0.0) == 1.0
    assert agreement(0.3) > agreement(1.0) > agreement(5.0)
    surest = [max(FakeDistribution(1, 9, spread=spread)([1, 2]).values()) for spread in (0.5, 2.0, 8.0)]
    assert surest == sorted(surest)


def test_models_need_no_package_of_the_simulator() -> None:
    code = "import sys; import streamco.sim.workload.token_models; sys.exit('simpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
