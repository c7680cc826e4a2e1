"""Drafts of one answer on held sequences: every order of commands, batches that are shared, sequences that are lost and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from streamco.config import SamplingOptions
from streamco.core.speculation import DraftTokens, TokensDrafted
from streamco.endpoints.drafter import Drafter, DrafterCommand, DrafterEvent
from streamco.testing.engine import FakeEngine, FakeVocabulary

SIZE = 50
PROMPT = [1, 2, 3]
GREEDY = SamplingOptions(temperature=0)


def count_up(ids: Sequence[int]) -> dict[int, float]:
    """A model whose every token is the one before it and 1; the next best is one more, the third another one more."""
    return {(ids[-1] + 1) % SIZE: 0.7, (ids[-1] + 2) % SIZE: 0.2, (ids[-1] + 3) % SIZE: 0.1}


def counting(**options: Any) -> FakeEngine:
    return FakeEngine(**({"vocabulary": FakeVocabulary("digits", size=SIZE + 1), "successor": count_up, "mode": "manual"} | options))


class Bench:
    """A drafter on an engine that moves when told."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.events: list[DrafterEvent] = []
        self.drafter: Drafter

    async def open(self, prompt: Sequence[int] = PROMPT, **options: Any) -> Drafter:
        self.drafter = Drafter(self.engine, prompt, emit=self.events.append, **({"sampling": GREEDY} | options))
        return self.drafter

    def run(self, *commands: DrafterCommand) -> None:
        before = len(self.events)
        for command in commands:
            self.drafter.run(command)
        assert len(self.events) == before, "an event was told from inside run"

    async def step(self, count: int = 1) -> None:
        """So many batches, and the loop hears of each."""
        for _ in range(count):
            self.engine.step()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def told(self) -> list[tuple[int, list[int], bool]]:
        """(version, ids, is_finished) of the events since the last call."""
        events, self.events[:] = list(self.events), []
        assert all(isinstance(event, TokensDrafted) for event in events), events
        return [(event.version, [token.id for token in event.tokens], event.is_finished) for event in events]  # type: ignore[union-attr]

    async def drafts(self, steps: int = 20) -> dict[int, list[int]]:
        """Everything that is drafted in so many steps, by version; the finished ones."""
        await self.step(steps)
        ids: dict[int, list[int]] = {}
        finished = set()
        for version, tokens, is_finished in self.told():
            assert version not in finished
            ids.setdefault(version, []).extend(tokens)
            finished |= {version} if is_finished else set()
        assert finished == set(ids)
        return ids


@asynccontextmanager
async def bench(engine: FakeEngine | None = None, **options: Any) -> AsyncIterator[Bench]:
    made = Bench(engine or counting())
    await made.open(**options)
    yield made
    closing = asyncio.create_task(made.drafter.aclose())
    while not closing.done():
        await made.step()
    await closing
    if engine is None:
        made.engine.close()


async def test_tokens_are_told_as_they_come() -> None:
    async with bench() as at:
        at.run(DraftTokens(version=5, length=0, ids=(), count=3))
        await at.step()
        assert at.told() == []  # the prompt
        await at.step()
        assert at.told() == [(5, [4], False)]
        await at.step()
        await at.step()
        assert at.told() == [(5, [5], False), (5, [6], True)]
        await at.step(3)
        assert at.told() == []
