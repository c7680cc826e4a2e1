"""Loads on which the simulator is compared with the live system, and those that it was not built with."""

from __future__ import annotations

from typing import Any

from bench.timed.fidelity import FULL, PAIR, UNSEEN, USED, Load, Setting, Site

LOAD = Load(devices=3, rtt=0.02, drafts=True)


def rests(seed: int, run: int = 0) -> list[list[float]]:
    records: Any = range(40)
    words: Any = None
    setting = Setting(loads=(LOAD,), runs=1, answers=24, tokens=40, rounds=24, seed=seed)
    return Site(words=words, records=records, setting=setting).rests(LOAD, run)


def test_unseen_loads_share_neither_devices_nor_round_trips_with_those_that_were_looked_at() -> None:
    assert not {load.devices for load in UNSEEN} & {load.devices for load in FULL}
    assert not {load.rtt for load in UNSEEN} & {load.rtt for load in FULL}
    assert max(load.devices for load in FULL) + 24 <= USED, "as many prompts as they use"


def test_rests_depend_on_seed_and_run() -> None:
    assert rests(1) == rests(1)
    assert rests(1) != rests(2)
    assert rests(0) != rests(1)
    assert rests(1, 0) != rests(1, 1)
    assert [len(each) for each in rests(1)] == [9, 9, 9]


def test_nothing_is_imposed_on_the_server_of_the_fetched_pair() -> None:
    assert {(load.step_times, load.is_exact) for load in PAIR} == {(None, False)}
    assert None not in {load.step_times for load in (*FULL, *UNSEEN)}
    assert [load.case for load in PAIR if load.devices == 1] == [
        "1 device, drafting, Qwen2.5-Coder 1.5B, RTT 30 ms, real draft model",
        "1 device, the target alone, Qwen2.5-Coder 1.5B, RTT 30 ms",
    ]
