"""Trees of drafts from the client to the engine of a server: greedy texts are the target's own, sampled ones have its distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.testing import FakeEngine
from streamco.wire.verify.client import VerifyClient
from tests.client.speculating import QUICK
from tests.client.test_speculation_sampling import LENGTH, VOCABULARY, shares, texts
from tests.server.verifying import serving
from tests.support.surprise import surprise

TEXTS = 500
TREES = Speculate(is_adaptive=False, window=3)
CHAINS = Speculate(is_adaptive=False, window=3, tuning=SpeculationTuning(has_trees=False))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The parents of each draft that a client sends."""
    parents: list[Sequence[int]] = []
    draft = VerifyClient.draft

    def recorded(self: VerifyClient, *arguments: Any, **options: Any) -> int:
        parents.append(options.get("parents", ()))
        return draft(self, *arguments, **options)

    monkeypatch.setattr(VerifyClient, "draft", recorded)
    return parents


def model(noise: float, **options: Any) -> FakeEngine:
    return FakeEngine(vocabulary=VOCABULARY, successor=lambda ids: shares(noise, tuple(ids[-2:])), **options)


def target(*, paths: int = 8) -> FakeEngine:
    """Its rows cost nothing more."""
    engine = model(0.0, step_time=lambda rows, tokens: 0.001)
    engine.sequences.draft_paths = paths
    return engine


async def read(client: Client, **options: Any) -> tuple[int, ...]:
    text = "".join([token.text async for token in client.stream("Say it.", top_k=0, top_p=1.0, min_p=0.0, **options)])
    return tuple(VOCABULARY.encode(text))


async def test_greedy_answers_in_trees_are_those_in_chains(sent: list[Sequence[int]]) -> None:
    answers: list[tuple[int, ...]] = []
    kinds: list[bool] = []
    for options, engine in ((TREES, target()), (CHAINS, target()), (TREES, target(paths=1))):
        async with serving(engine) as server:
            verifier = VerifierEndpoint(server.url, timeouts=QUICK)
            async with Client(DeviceEndpoint(model(1.5)), mode=replace(options, verifier=verifier), seed=1) as client:
                answers.append(await read(client, max_tokens=40, temperature=0))
        kinds.append(any(map(bool, sent)))
        sent.clear()
    assert len(set(answers)) == 1
    assert len(answers[0]) == 40
    assert kinds == [True, False, False], "trees only where they are taken and wanted"


@pytest.mark.long
async def test_sampled_answers_in_trees_have_the_servers_distribution(sent: list[Sequence[int]]) -> None:
    seen: Counter[tuple[int, ...]] = Counter()
    device = model(1.5)
    async with serving(target()) as server:
        verifier = VerifierEndpoint(server.url, timeouts=QUICK)
        async with Client(DeviceEndpoint(device), mode=replace(TREES, verifier=verifier), seed=1) as client:
            for seed in range(TEXTS):
                seen[await read(client, max_tokens=LENGTH, temperature=1.0, seed=seed)] += 1
            prompt = device.tokenize(device.apply_template([{"role": "user", "content": "Say it."}]))
    assert sum(map(bool, sent)) > TEXTS / 4
    assert surprise(seen, texts(0.0, prompt), TEXTS) < 1.0
