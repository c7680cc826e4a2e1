"""Answers at a verifier that goes wrong at random: whatever happens to connections, sessions and rounds, no token is lost or doubled."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from streamco.core.speculation.events import ConnectVerifier, DraftRefused, VerdictReceived, VerifierConnected, VerifierLost
from streamco.testing import Crash, Cut, Pause, Refuse, Reset, ScriptedVerifier
from streamco.testing.verifier import VerifierStep
from streamco.wire.verify.errors import EvictedError, NotResumableError, OverloadedError, ShuttingDownError, UnknownSessionError
from tests.endpoints.verifiers.support import DRAFTER, SIZE, TARGET, Talk, an_engine, greedy, verifier_at

TOKENS = 30
STEPS: list[VerifierStep] = [
    Cut(),
    Reset(),
    Crash(),
    Pause(0.005),
    Refuse(OverloadedError, retry_after=0.002),
    Refuse(OverloadedError),
    Refuse(EvictedError, is_about_round=False),
    Refuse(UnknownSessionError, is_about_round=False),
    Refuse(ShuttingDownError),
]
OPEN_STEPS: list[VerifierStep] = [
    Cut(),
    Reset(),
    Crash(),
    Pause(0.005),
    Refuse(OverloadedError, retry_after=0.002),
    Refuse(NotResumableError),
    Refuse(ShuttingDownError),
]


class Answer:
    """One answer, and what the device does meanwhile."""

    def __init__(self, talk: Talk, rng: Random) -> None:
        self.talk = talk
        self.rng = rng
        self.lost = 0

    async def write(self) -> list[int]:
        talk = self.talk
        await self._connect()
        while len(talk.answer) < TOKENS:
            given = greedy(TARGET, [*talk.prompt, *talk.answer], self.rng.randrange(3))  # kept without asking
            drafted = greedy(DRAFTER, [*talk.prompt, *talk.answer, *given], self.rng.randrange(5))
            talk.send(drafted, given=given)
            if self.rng.random() < 0.05:  # the verdict is not waited for
                await self._connect()
                continue
            match await talk.emitted():
                case VerdictReceived() as verdict:
                    talk.keep(verdict, drafted, given)
                case DraftRefused(_, retry_after):
                    await asyncio.sleep(retry_after or 0.0)
                case VerifierLost():
                    await self._connect()
                case other:
                    raise AssertionError(other)
        return talk.answer[:TOKENS]

    async def _connect(self) -> None:
        """Connect; events before that belong to a round that no code waits for."""
        self.talk.session.run(ConnectVerifier(tuple(self.talk.answer)))
        while not isinstance(event := await self.talk.emitted(), VerifierConnected):
            assert isinstance(event, VerifierLost), event
            self.lost += 1
            self.talk.session.run(ConnectVerifier(tuple(self.talk.answer)))
        assert event.length == len(self.talk.answer)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(20))
async def test_no_token_is_lost_whatever_happens(seed: int) -> None:
    rng = Random(seed)
    info = an_engine().info
    async with (
        ScriptedVerifier(TARGET, vocabulary=info.vocabulary, vocabulary_size=SIZE) as server,
        verifier_at(server.url, rng=rng) as verifier,
    ):
        server.script(*(rng.choice(STEPS) if rng.random() < 0.4 else None for _ in range(40)))
        server.script_opens(*(rng.choice(OPEN_STEPS) if rng.random() < 0.3 else None for _ in range(20)))
        answers = [Answer(Talk(verifier, (number, 7, 9)), rng) for number in range(3)]
        written = await asyncio.gather(*(answer.write() for answer in answers))
    assert written == [greedy(TARGET, answer.talk.prompt, TOKENS) for answer in answers], f"seed {seed}"
