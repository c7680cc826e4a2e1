"""Imposed step times, by calling the pacer with times."""

from __future__ import annotations

import pytest

from streamco.emulation.step_emulation import StepEmulator


def cost(rows: int, prefill_tokens: int) -> float:
    """0.04 s a decode, 0.001 s a prompt token, the larger of the two."""
    return max(0.04 if rows else 0.0, 0.001 * prefill_tokens)


def test_a_step_ends_no_sooner_than_its_time_after_it_began() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    assert emulator.due(2, 0, started=1.0, now=1.01) == pytest.approx(1.04)


def test_back_to_back_steps_keep_their_schedule_though_each_wait_ends_late() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    due = emulator.due(1, 0, started=0.0, now=0.01)
    for step in range(2, 20):
        emulator.begin_round(was_idle=False)
        due = emulator.due(1, 0, started=due + 0.002, now=due + 0.012)
        assert due == pytest.approx(0.04 * step)


def test_a_slow_local_step_is_not_caught_up_later() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    assert emulator.due(1, 0, started=0.0, now=0.5) <= 0.5
    emulator.begin_round(was_idle=False)
    assert emulator.due(1, 0, started=0.5, now=0.51) == pytest.approx(0.54)


def test_after_idling_time_starts_anew() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    emulator.due(1, 0, started=0.0, now=0.01)
    emulator.begin_round(was_idle=True)
    assert emulator.due(1, 0, started=9.0, now=9.01) == pytest.approx(9.04)


def test_a_round_of_decode_and_prefill_costs_what_one_mixed_step_costs() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    decoded = emulator.due(3, 0, started=0.0, now=0.01)
    assert decoded == pytest.approx(0.04)
    assert emulator.due(0, 100, started=decoded, now=decoded + 0.01) == pytest.approx(0.1)


def test_a_small_chunk_beside_a_decode_costs_nothing_more() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    decoded = emulator.due(3, 0, started=0.0, now=0.01)
    assert emulator.due(0, 10, started=decoded, now=decoded + 0.001) <= decoded + 0.001


def test_a_step_nobody_waits_for_any_more_does_not_delay_the_next() -> None:
    emulator = StepEmulator(cost)
    emulator.begin_round(was_idle=True)
    assert emulator.due(0, 500, started=0.0, now=0.01) == pytest.approx(0.5)
    emulator.end_early(0.02)
    emulator.begin_round(was_idle=False)
    assert emulator.due(1, 0, started=0.02, now=0.03) == pytest.approx(0.06)


def test_a_step_does_not_begin_before_it_was_asked_for() -> None:
    emulator = StepEmulator(lambda rows, tokens: 1.0)
    emulator.begin_round(was_idle=True)
    assert emulator.due(0, 5, started=10.0, now=10.1) == 11.0
    emulator.begin_round(was_idle=False)
    assert emulator.due(0, 5, started=11.3, now=11.4, requested=11.2) == 12.2
    emulator.begin_round(was_idle=False)
    assert emulator.due(0, 5, started=12.3, now=12.4, requested=11.9) == 13.2
