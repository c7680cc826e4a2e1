"""Speculated answers from end to end: the device's drafts, a verifier on the loopback, one text."""

from __future__ import annotations

import pytest

from streamco.client.stream import Retracted, Settled
from tests.client.helpers import tokens_text
from tests.client.speculating import PROMPT, Screen, World


@pytest.mark.parametrize("noise", [0.0, 0.7, 5.0])
async def test_a_lossless_answer_is_the_targets_own(noise: float) -> None:
    world = World(noise=noise)
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        report = stream.report
        assert report.mode == "speculate"
        assert report.finish_reason == "stop"
        assert report.speculation is not None
        assert report.speculation.is_exact
        assert report.speculation.rounds == len(verifier.drafts)
    world.close()


async def test_drafts_shown_at_once_come_to_the_same_text() -> None:
    world = World(noise=1.0)
    async with world.scripted() as verifier, world.speculating(verifier, emit="draft") as client:
        stream = client.stream(PROMPT, temperature=0)
        screen = Screen()
        assert await screen.read(stream) == world.text()
        assert screen.final == len(screen.text)
        assert any(isinstance(token, Retracted) for token in screen.tokens)
        assert any(isinstance(token, Settled) and token.origin == "accepted" for token in screen.tokens)
        assert stream.report.tokens == len(world.own(world.prompt_ids()))
    world.close()
