"""64 devices at one verifier in virtual time: how long a verdict takes under each policy, and what happens beyond saturation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import simpy
from msgspec import Struct

from streamco.core.verifier.events import BatchPart, RefuseDraft, RefuseSession
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import CHUNK, Alternating, BatchPolicy, FirstCome, LinearStep, StrictPrefill
from tests.support.simulated_verifier import Drafting, SequenceCache, SimulatedDrafter, SimulatedVerifier

A100 = LinearStep(setup=0.044, per_token=0.00014)
"""Llama-2-70B on four A100: 45 ms for a token, 64 for 128, 117 for 512."""

LAPTOP = LinearStep(setup=0.006, per_token=0.0052)
"""SmolLM2-135M on one core."""

BEAR_ALL: dict[str, Any] = {"prefill_within": 1e6, "draft_stretch": 1e6, "late_grace": 1e6}
BUSY = Drafting(budget=0.3, pause=30.0, context_tokens=(100, 1500))


class Measured(Struct, frozen=True):
    p95: float
    first: float
    verdicts: int
    answers: int
    drafts_refused: int
    sessions_refused: int
    batches: int


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def measure(
    devices: int, policy: BatchPolicy, drafting: Drafting = BUSY, *, step: LinearStep = A100, seconds: float = 60.0, **options: Any
) -> Measured:
    """Let devices draft for some time; every rule that holds for batches is checked on the way."""
    env, dice = simpy.Environment(), Random(2)
    bears = SchedulerOptions(**{"kv_tokens": 200_000, "places": 256, "context_tokens": 4096, **options})

    def judge(ids: tuple[int, ...], draft: tuple[int, ...]) -> tuple[int, int]:
        assert len({identifier >> 32 for identifier in (*ids, *draft)}) == 1, "one device's ids alone"
        accepted = 0
        while accepted < len(draft) and dice.random() < 0.75:
            accepted += 1
        return accepted, ids[0] >> 32 << 32 | 0xFFFFFFFF

    verifier = SimulatedVerifier(env, VerificationScheduler(bears, step, policy), step, judge)
    crowd = [SimulatedDrafter(env, verifier, number, drafting, Random(number)) for number in range(1, devices + 1)]
    for device in crowd:
        env.process(device.run())
    env.run(seconds)
    for _, _, batch in verifier.batches:
        sizes = [len(part.ids) for part in batch.parts]
        assert sum(sizes) <= policy.batch_tokens
        assert batch.kind == "prefill" or max(sizes) <= CHUNK
        assert batch.kind == "verify" or not any(part.verify_rows for part in batch.parts)
    assert verifier.cache.max_tokens <= bears.kv_tokens
    refusals = [refusal for device in crowd for refusal in device.refused]
    assert all(refusal.retry_after is not None for refusal in refusals)
    return Measured(
        p95=p95([seconds for device in crowd for seconds in device.latencies]),
        first=p95([seconds for device in crowd for seconds in device.first]),
        verdicts=sum(len(device.latencies) for device in crowd),
        answers=sum(device.answers for device in crowd),
        drafts_refused=sum(isinstance(refusal, RefuseDraft) for refusal in refusals),
        sessions_refused=sum(isinstance(refusal, RefuseSession) for refusal in refusals),
        batches=len(verifier.batches),
    )


def unloaded(drafting: Drafting = BUSY, *, step: LinearStep = A100) -> float:
    return measure(1, Alternating(), drafting, step=step, seconds=3000.0).p95


# Policies


def test_64_devices_wait_longest_for_verdicts_where_all_prompts_go_first_and_least_where_they_take_turns() -> None:
    strict, first_come, turns = (measure(64, policy, **BEAR_ALL).p95 for policy in (StrictPrefill(), FirstCome(), Alternating()))
    assert turns < 0.7 * strict
    assert turns < 0.7 * first_come


def test_verifying_first_costs_the_prompts_time() -> None:
    strict, turns = (measure(64, policy, **BEAR_ALL).first for policy in (StrictPrefill(), Alternating()))
    assert turns > strict


# Load


def test_64_calm_devices_see_at_most_one_and_a_half_times_the_unloaded_latency_and_nobody_is_refused() -> None:
    calm = Drafting(budget=0.9, rate=2.5, pause=240.0)
    loaded = measure(64, Alternating(), calm, seconds=300.0)
    assert loaded.p95 <= 1.5 * unloaded(calm)
    assert (loaded.drafts_refused, loaded.sessions_refused) == (0, 0)
    assert loaded.verdicts > 500


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("devices", [16, 32, 64])
def test_however_many_eager_devices_come_those_that_are_let_in_see_that_too(devices: int) -> None:
    eager = Drafting(budget=0.9, pause=10.0)
    assert measure(devices, Alternating(), eager, seconds=90.0).p95 <= 1.5 * unloaded(eager)


def test_beyond_saturation_sessions_are_refused_where_without_admission_all_would_be_slow() -> None:
    eager = Drafting(budget=0.9, pause=10.0)
    everybody = measure(64, Alternating(), eager, **BEAR_ALL)
    admitted = measure(64, Alternating(), eager)
    assert everybody.sessions_refused == 0
    assert everybody.p95 > 1.8 * unloaded(eager)
    assert admitted.sessions_refused > 0
    assert admitted.drafts_refused == 0
    assert admitted.answers > 0.2 * everybody.answers


def test_a_slow_server_refuses_too_and_goes_on_answering() -> None:
    swamped = Drafting(context_tokens=(20, 80), pause=20.0, rate=5.0)
    measured = measure(128, Alternating(), swamped, step=LAPTOP, seconds=120.0)
    assert measured.sessions_refused > 0
    assert measured.answers > 15
    assert measured.p95 < 2.5 * unloaded(swamped, step=LAPTOP)


def test_who_lost_the_cache_while_idle_goes_on_where_it_was() -> None:
    pensive = Drafting(budget=1.0, rate=1.0, answer_tokens=40, pause=1.0)
    measured = measure(12, Alternating(), pensive, seconds=200.0, places=6, idle_after=0.5)
    assert measured.answers > 12
    assert measured.verdicts > 100


# The cache


def test_a_part_that_does_not_begin_where_the_cache_ends_is_a_defect() -> None:
    cache = SequenceCache()
    cache.read(BatchPart("a", 0, (1, 2)))
    with pytest.raises(AssertionError, match="expected ids after the 2 in the cache, got them for position 3"):
        cache.read(BatchPart("a", 3, (4,)))
    with pytest.raises(AssertionError, match="expected to keep at most 2"):
        cache.truncate("a", 3)
