"""A pair measured over a socket, with models of which everything is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamco.calibration.measure import calibrate_pair, measure_remote_step, measure_rounds, measure_step_times
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import ConfigError, EndpointError, EngineError
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing import Cut, FakeEngine, Pause, Refuse, ScriptedEndpoint, ScriptedVerifier
from streamco.testing.engine import FakeVocabulary
from streamco.testing.virtual_clock import run_in_virtual_time
from streamco.wire.verify.errors import OverloadedError
from tests.endpoints.verifiers.support import DRAFTER, PROMPT, SIZE, TARGET
from tests.server.verifying import SIZE as SERVED
from tests.server.verifying import VOCABULARY, greedy_text, serving, target
from tests.support.logprob_servers import ScriptedVLLM

REQUESTS = [Request(prompt_ids=[number, number + 1]) for number in range(3, 23, 4)]


def drafting(noise: float = 1.2, **options: Any) -> FakeEngine:
    return FakeEngine(vocabulary=VOCABULARY, successor=FakeDistribution(1, SERVED, noise=noise), context_tokens=256, **options)


@asynccontextmanager
async def pair(engine: FakeEngine, **options: Any) -> AsyncIterator[tuple[DeviceEndpoint, VerifierEndpoint]]:
    device = DeviceEndpoint(engine)
    async with serving(target(**options)) as server:
        verifier = VerifierEndpoint(server.url)
        try:
            yield device, verifier
        finally:
            await verifier.aclose()
            await device.aclose()
            engine.close()


def play(request: Request, window: int, tokens: int, noise: float) -> list[tuple[int, int | None]]:
    """(accepted, token) of every round, reckoned from the models alone."""
    draft, target_model = FakeDistribution(1, SERVED, noise=noise), FakeDistribution(1, SERVED)
    text = list(request.prompt_ids or ())
    start = len(text)
    rounds: list[tuple[int, int | None]] = []
    while len(text) - start < tokens:
        ids = greedy_text(draft, text, window)
        accepted = next(
            (position for position in range(window) if greedy_text(target_model, [*text, *ids[:position]], 1)[0] != ids[position]), window
        )
        own = greedy_text(target_model, [*text, *ids[:accepted]], 1)
        rounds.append((accepted, own[0]))
        text += [*ids[:accepted], own[0]]
    return rounds


async def test_rounds_are_what_the_models_make_of_them() -> None:
    async with pair(drafting()) as (device, verifier):
        await device.start()
        assert device.engine is not None
        await verifier.start(device.engine)
        rounds = await measure_rounds(device, verifier, REQUESTS[0], window=3, rounds=100, answer_tokens=40)
    assert [(each.accepted, each.token) for each in rounds] == play(REQUESTS[0], 3, 40, 1.2)
    assert rounds[0].wait is None
    assert all(each.wait is not None and each.wait > 0 for each in rounds[1:])
    for each in rounds:
        assert len(each.ids) == len(each.confidences) == len(each.alternatives) == 3
        assert [row[0][0] for row in each.alternatives] == list(each.ids)
        assert each.next_id is not None


async def test_everything_is_measured_and_the_engine_is_left_empty() -> None:
    engine = drafting()
    progress: list[tuple[int, int]] = []
    async with pair(engine) as (device, verifier):
        measured = await calibrate_pair(
            device,
            verifier,
            [*REQUESTS, Request(prompt_ids=[9] * 255)],
            rounds=40,
            window=3,
            sequences=3,
            answer_tokens=24,
            on_progress=lambda done, of: progress.append((done, of)),
        )
        assert engine.sequences.held == 0
    expected = [outcome for request in REQUESTS for outcome in play(request, 3, 24, 1.2)]
    accepted = sum(accepted for accepted, _ in expected) / len(expected)
    assert measured.acceptance == pytest.approx(accepted / (accepted + 1), abs=0.15)
    assert (measured.rounds, measured.window, progress[-1]) == (40, 3, (40, 40))
    assert (measured.draft, measured.target) == ("fake", "fake")
    assert len(measured.step_times) == 3
    assert [size for size, _ in measured.verify_times] == [1, 2, 4, 8, 16]
    assert measured.rtt is not None
    assert measured.hit_rate is not None
    assert 0.0 < measured.hit_rate < 1.0
    assert measured.remote_step is None or measured.remote_step > 0
    assert len(measured.chunks) == 40


async def test_identical_models_agree_on_everything() -> None:
    async with pair(drafting(noise=0.0)) as (device, verifier):
        measured = await calibrate_pair(device, verifier, REQUESTS, rounds=12, sequences=1, answer_tokens=20)
    assert measured.acceptance == pytest.approx(1.0)
    assert measured.hit_rate == 1.0
    assert measured.window == 4


async def test_trouble_with_the_verifier_is_waited_out() -> None:
    vocabulary = FakeVocabulary("scripted", size=SIZE)
    engine = FakeEngine(vocabulary=vocabulary, successor=DRAFTER)
    device = DeviceEndpoint(engine)
    async with ScriptedVerifier(TARGET, vocabulary=vocabulary.fingerprint, vocabulary_size=SIZE) as server:
        server.script(None, Cut(), None, Refuse(OverloadedError, retry_after=0.01), Pause(0.001))
        verifier = VerifierEndpoint(server.url)
        await device.start()
        await verifier.start(engine)
        rounds = await measure_rounds(device, verifier, Request(prompt_ids=PROMPT), window=4, rounds=6, answer_tokens=60)
        await verifier.aclose()
    assert len(rounds) == 6
    assert engine.sequences.held == 0
    await device.aclose()
    engine.close()


async def test_a_stock_server_is_measured_alike() -> None:
    """It keeps no context and tells no times of its own: what the round trip leaves counts."""
    vocabulary = FakeVocabulary("scripted", size=SIZE)
    engine = FakeEngine(vocabulary=vocabulary, successor=DRAFTER)
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        verifier = VLLMVerifier(server.url)
        device = DeviceEndpoint(engine)
        measured = await calibrate_pair(device, verifier, [Request(prompt_ids=PROMPT)], rounds=12, sequences=2, answer_tokens=30)
        await verifier.aclose()
        await device.aclose()
    engine.close()
    assert (measured.target, measured.rounds) == ("scripted", 12)
    assert measured.rtt is not None
    assert all(seconds > 0.0 for _, seconds in measured.verify_times)


async def test_a_verifier_that_is_not_there_is_an_error() -> None:
    engine = drafting()
    device, verifier = DeviceEndpoint(engine), VerifierEndpoint("ws://127.0.0.1:9")
    with pytest.raises(EndpointError):
        await calibrate_pair(device, verifier, REQUESTS, rounds=4)
    await verifier.aclose()
    await device.aclose()
    engine.close()


async def test_numbers_that_can_t_be_are_the_callers_fault() -> None:
    engine = drafting()
    device, verifier = DeviceEndpoint(engine), VerifierEndpoint("ws://127.0.0.1:9")
    for requests, rounds in ((REQUESTS, 0), ([], 5)):
        with pytest.raises(ConfigError, match="calibration: expected a prompt and numbers above 0"):
            await calibrate_pair(device, verifier, requests, rounds=rounds)
    await verifier.aclose()
    await device.aclose()
    engine.close()


async def test_step_times_are_of_batches_of_each_number_of_sequences() -> None:
    engine = drafting(held_sequences=4)
    rounds = engine.sequences.rounds
    times = await measure_step_times(engine, [1, 2, 3], sequences=3, tokens=4, turns=2)
    assert len(times) == 3
    assert min(times) > 0.0
    assert engine.sequences.rounds - rounds <= 1 + 2 * (4 + 2 * 4 + 3 * 4)
    assert engine.sequences.held == 0
    with pytest.raises(EngineError, match="expected drafts, got sequence: expected an idle place among 4"):
        await measure_step_times(engine, [1, 2, 3], sequences=4, turns=1)
    assert engine.sequences.held == 0
    engine.close()


def test_a_plain_stream_gives_the_time_between_tokens() -> None:
    remote = ScriptedEndpoint("cloud", [(0.5, "one"), (0.6, " two"), (0.9, " three")])
    assert run_in_virtual_time(measure_remote_step(remote, [1, 2])) == pytest.approx(0.2)
    assert remote.streams[0].request.sampling == SamplingOptions(temperature=0, max_tokens=24)
    assert run_in_virtual_time(measure_remote_step(ScriptedEndpoint("cloud", [(0.0, "one")]), [1, 2])) is None
