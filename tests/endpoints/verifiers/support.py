"""What the tests of verifiers share: a target and its draft model as functions, a session that is talked to by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
)
from streamco.endpoints.verifiers.base import Verifier, VerifierEvent, VerifierSession
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.policies.acceptance import Rule, RuleKind
from streamco.sim.workload.token_models import TokenModel
from streamco.testing import FakeDistribution, FakeEngine, ScriptedVerifier
from streamco.wire.verify.topk import TopK

SIZE = 300  # ids


class Remembered:
    """A distribution that is worked out once for each two last ids."""

    def __init__(self, model: FakeDistribution) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    def __call__(self, ids: Sequence[int]) -> dict[int, float]:
        last = tuple(ids[-2:])
        if last not in self._known:
            self._known[last] = self._model(last)
        return self._known[last]


TARGET = Remembered(FakeDistribution(7, SIZE))
DRAFTER = Remembered(FakeDistribution(7, SIZE, noise=1.0))
PROMPT = (5, 17, 250)
QUICK = Timeouts(connect=5, first_token=5, next_token=5, socket=5, cancel=1)

Event = TypeVar("Event", bound=VerifierEvent)


def best(model: TokenModel, ids: Sequence[int]) -> int:
    shares = model(ids)
    return max(shares, key=lambda token: (shares[token], -token))


def greedy(model: TokenModel, ids: Sequence[int], count: int) -> list[int]:
    """Return what a model writes by itself after these ids."""
    text = list(ids)
    for _ in range(count):
        text.append(best(model, text))
    return text[len(ids) :]


def an_engine(size: int = SIZE) -> FakeEngine:
    """A draft model, of which only the vocabulary matters here."""
    from streamco.testing.engine import FakeVocabulary

    return FakeEngine(vocabulary=FakeVocabulary(size=size))


class Talk:
    """A session and the events that it emitted."""

    def __init__(self, verifier: Verifier, prompt: Sequence[int] = PROMPT, **options: Any) -> None:
        options.setdefault("rule", Rule())
        self.prompt = tuple(prompt)
        self.events: list[VerifierEvent] = []
        self.answer: list[int] = []  # that both sides hold
        self._emitted: asyncio.Queue[VerifierEvent] = asyncio.Queue()
        self._round = -1
        self.session: VerifierSession = verifier.open(prompt, self._take, **options)

    def _take(self, event: VerifierEvent) -> None:
        self.events.append(event)
        self._emitted.put_nowait(event)

    async def emitted(self, *, limit: float = 10.0) -> VerifierEvent:
        """Wait for the next event."""
        async with asyncio.timeout(limit):
            return await self._emitted.get()

    async def next(self, kind: type[Event], *, limit: float = 10.0) -> Event:
        """Wait for the next event, which must be of this kind."""
        event = await self.emitted(limit=limit)
        assert isinstance(event, kind), event
        return event

    def has_emitted(self) -> bool:
        return not self._emitted.empty()

    async def connect(self) -> VerifierConnected:
        self.session.run(ConnectVerifier(tuple(self.answer)))
        emitted = await self.next(VerifierConnected)
        assert emitted.length == len(self.answer)
        return emitted

    def send(self, ids: Sequence[int], *, given: Sequence[int] = (), rows: Sequence[TopK] = ()) -> None:
        self._round += 1
        self.session.run(SendDraft(self._round, len(self.answer), tuple(given), tuple(ids), tuple(rows)))

    async def verify(self, ids: Sequence[int], *, given: Sequence[int] = (), rows: Sequence[TopK] = ()) -> VerdictReceived:
        """A whole round; its outcome belongs to the answer."""
        self.send(ids, given=given, rows=rows)
        verdict = await self.next(VerdictReceived)
        self.keep(verdict, ids, given)
        return verdict

    def keep(self, verdict: VerdictReceived, ids: Sequence[int], given: Sequence[int] = ()) -> None:
        assert verdict.round == self._round
        self.answer += [*given, *ids[: verdict.accepted]]
        self.answer += [] if verdict.token is None else [verdict.token]

    async def write(self, count: int, *, window: int = 4) -> list[int]:
        """An answer by greedy rounds."""
        while len(self.answer) < count:
            await self.verify(greedy(DRAFTER, [*self.prompt, *self.answer], window))
        return self.answer[:count]

    async def aclose(self) -> None:
        self.session.run(CloseVerifier())
        await self.session.aclose()


@asynccontextmanager
async def verifier_at(url: str, **options: Any) -> AsyncIterator[VerifierEndpoint]:
    """One that was started for a draft model of the usual vocabulary."""
    options.setdefault("timeouts", QUICK)
    endpoint = VerifierEndpoint(url, name="verifier", **options)
    await endpoint.start(an_engine())
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


ANSWER = greedy(TARGET, PROMPT, 24)
SAMPLE = Rule(RuleKind.SAMPLE, 1.0, top_k=6, seed=3)


def scripted(**options: Any) -> ScriptedVerifier:
    """A server that speaks streamco's protocol, with the target model and the draft model's vocabulary."""
    return ScriptedVerifier(TARGET, vocabulary=an_engine().info.vocabulary, vocabulary_size=SIZE, **options)
