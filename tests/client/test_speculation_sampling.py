"""Sampled answers of a client that speculates are distributed as the server's own: all that is between caller and verdict takes part.

Three tokens over four ids are 64 texts with exact probabilities. The limit is the chi-square's 99.9 % point, for fixed seeds; the draft
model's own texts are far beyond it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from math import prod

import pytest
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.testing import FakeDistribution, FakeEngine, ScriptedVerifier
from streamco.testing.engine import FakeVocabulary
from tests.client.speculating import ALWAYS, QUICK
from tests.support.surprise import surprise

SIZE, SAID, LENGTH = 64, 4, 3
TEXTS = 700
WORDS = ("zero", "one", "two", "three")
VOCABULARY = FakeVocabulary("sampling", SIZE)
IDS = tuple(VOCABULARY.id_of(f" {word}") for word in WORDS)


@cache
def shares(noise: float, last: tuple[int, ...]) -> dict[int, float]:
    """What may follow two ids: the first four of the vocabulary, which are the words above."""
    return FakeDistribution(3, SAID, noise=noise, spread=1.0)(last)


def texts(noise: float, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of every text after a prompt."""
    return {
        text: prod(
            shares(noise, tuple([*prompt, *text][len(prompt) + place - 2 : len(prompt) + place]))[text[place]] for place in range(LENGTH)
        )
        for text in product(IDS, repeat=LENGTH)
    }


@pytest.mark.long
async def test_sampled_answers_have_the_servers_distribution() -> None:
    engine = FakeEngine(vocabulary=VOCABULARY, successor=lambda ids: shares(1.5, tuple(ids[-2:])))
    seen: Counter[tuple[int, ...]] = Counter()
    hits = rounds = 0
    async with ScriptedVerifier(
        lambda ids: shares(0.0, tuple(ids[-2:])), vocabulary=VOCABULARY.fingerprint, vocabulary_size=SIZE
    ) as server:
        verifier = VerifierEndpoint(server.url, timeouts=QUICK)
        async with Client(DeviceEndpoint(engine), mode=replace(ALWAYS, verifier=verifier), seed=1) as client:
            for seed in range(TEXTS):
                stream = client.stream("Say it.", max_tokens=LENGTH, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
                text = "".join([token.text async for token in stream])
                figures = stream.report.speculation
                assert figures is not None
                assert figures.is_exact
                seen[tuple(VOCABULARY.encode(text))] += 1
                hits, rounds = hits + round((figures.hit_rate or 0.0) * figures.rounds), rounds + figures.rounds
    prompt = engine.tokenize(engine.apply_template([{"role": "user", "content": "Say it."}]))
    engine.close()
    assert surprise(seen, texts(0.0, prompt), TEXTS) < 1.0
    assert hits > 0  # texts that were drafted in advance are among them
    assert rounds > TEXTS
    drafted = Counter({text: round(TEXTS * share) for text, share in texts(1.5, prompt).items()})
    assert surprise(drafted, texts(0.0, prompt), TEXTS) > 2.0
