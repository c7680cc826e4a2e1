"""With any commands at any time, a draft is what the model gives after the ids that the command named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterCommand, DrafterEvent
from streamco.engines.base import HoldingEngine
from streamco.sim.workload.token_models import FakeDistribution, TokenModel
from streamco.testing.engine import FakeEngine, FakeVocabulary
from tests.engines.conftest import MakeEngine, make_engine  # noqa: F401

SIZE = 40
CONTEXT = 60


class Draft:
    """What is to come of one command."""

    def __init__(self, before: list[int], count: int) -> None:
        self.before = before
        self.count = count
        self.emitted: list[int] = []
        self.is_finished = False


class Model:
    """One answer in ids alone: the trunk, its draft, the branches, and what each may emit."""

    def __init__(self, prompt: list[int], follow: Callable[[list[int]], int], context: int) -> None:
        self.prompt = prompt
        self.follow = follow
        self.context = context
        self.trunk = Draft(list(prompt), 0)
        self.trunk_version = 0
        self.branches: dict[int, Draft] = {}
        self.version = 0

    @property
    def length(self) -> int:
        """Tokens of the answer that a command may speak of."""
        return len(self.trunk.before) + len(self.trunk.emitted) - len(self.prompt)

    def live(self) -> dict[int, Draft]:
        return self.branches | ({self.trunk_version: self.trunk} if self.trunk_version else {})

    def command(self, rng: Random) -> DrafterCommand:
        """One that a speculator might give, and its effect."""
        kind = rng.choice(["draft", "draft", "branch", "branch", "adopt", "drop", "drop"])
        if kind in {"draft", "branch"}:
            self.version += 1
            length = rng.randint(max(0, self.length - 6), self.length)
            ids = tuple(rng.randrange(1, SIZE) for _ in range(rng.choice([0, 1, 1, 1, 3])))
            whole = [*self.trunk.before, *self.trunk.emitted][: len(self.prompt) + length] + list(ids)
            draft = Draft(whole, rng.randint(1, 6))
            if kind == "draft":
                self.trunk, self.trunk_version = draft, self.version
                return DraftTokens(self.version, length, ids, draft.count)
            self.branches[self.version] = draft
            return DraftBranch(self.version, length, ids, draft.count)
        if kind == "adopt" and self.branches:
            self.trunk_version = rng.choice(list(self.branches))
            self.trunk = self.branches.pop(self.trunk_version)
            return AdoptBranch(self.trunk_version)
        versions = [version for version in self.live() if rng.random() < (0.5 if len(self.branches) < 3 else 0.9)]
        for version in versions:
            if version == self.trunk_version:
                self.trunk_version = 0
            else:
                del self.branches[version]
        return DropDrafts((*versions, 10_000))

    def receive(self, event: DrafterEvent) -> None:
        """It has to be news of a draft that is wanted, and right."""
        assert isinstance(event, TokensDrafted)
        draft = self.live()[event.version]
        assert not draft.is_finished
        for token in event.tokens:
            assert token.id == self.follow(draft.before + draft.emitted)
            assert token.alternatives[0][0] == token.id
            draft.emitted.append(token.id)
        draft.is_finished = event.is_finished
        room = max(0, self.context - len(draft.before))
        assert event.is_finished == (len(draft.emitted) == min(draft.count, room))

    def is_at_rest(self, *, all_branches: bool) -> bool:
        drafts = list(self.live().values()) if all_branches else [self.trunk] if self.trunk_version else []
        return all(draft.is_finished for draft in drafts)


def open_answer(engine: HoldingEngine, prompt: list[int], follow: Callable[[list[int]], int], context: int) -> tuple[DeviceDrafter, Model]:
    model = Model(prompt, follow, context)
    return DeviceDrafter(engine, prompt, emit=model.receive, sampling=SamplingOptions(temperature=0), top=2), model


def likeliest(distribution: TokenModel) -> Callable[[list[int]], int]:
    def follow(ids: list[int]) -> int:
        shares = distribution(ids)
        return max(shares, key=lambda token: (shares[token], -token))

    return follow


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("places", [40, 3], ids=["room for all", "too few places"])
@pytest.mark.parametrize("seed", range(6))
async def test_every_draft_is_what_the_model_says_there(seed: int, places: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    distribution = FakeDistribution(seed, SIZE)
    engine = FakeEngine(
        vocabulary=FakeVocabulary("digits", size=SIZE + 1),
        successor=distribution,
        mode="manual",
        held_sequences=places,
        context_tokens=CONTEXT,
    )
    answers = [open_answer(engine, [1 + number, 2], likeliest(distribution), CONTEXT) for number in range(2 if places > 3 else 1)]
    for _ in range(250):
        for drafter, model in answers:
            for _ in range(rng.choice([0, 1, 1, 2, 4])):
                drafter.run(model.command(rng))
        for _ in range(rng.choice([0, 0, 1, 2, 8])):
            engine.step()
        for _ in range(rng.choice([0, 1, 2])):
            await asyncio.sleep(0)
        assert engine.sequences.held <= places
    for _ in range(40):
        engine.step()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for drafter, model in answers:
        assert model.is_at_rest(all_branches=places > 3)
        closing = asyncio.create_task(drafter.aclose())
        while not closing.done():
            engine.step()
            await asyncio.sleep(0)
    assert engine.sequences.held == 0
    engine.close()


@pytest.mark.parametrize("changes", [{}, {"exact": True}])
@pytest.mark.parametrize("seed", [1, 2])
async def test_it_is_so_on_an_engine_with_a_thread_and_memory(make_engine: MakeEngine, seed: int, changes: dict[str, bool]) -> None:  # noqa: F811
    print("seed", seed)
    rng = Random(seed)
    engine = make_engine(held_sequences=6, context_tokens=CONTEXT, **changes)
    answers = [open_answer(engine, [1 + number, 2], lambda ids: (ids[-1] + 1) % 256, CONTEXT) for number in range(2)]
    for _ in range(150):
        for drafter, model in answers:
            for _ in range(rng.choice([0, 1, 1, 2])):
                drafter.run(model.command(rng))
        await asyncio.sleep(rng.choice([0, 0, 0.0005, 0.002]))
    for drafter, model in answers:
        async with asyncio.timeout(30):
            while not model.is_at_rest(all_branches=False):
                await asyncio.sleep(0.001)
            await drafter.aclose()
    sequence = engine.hold()
    sequence.extend([1, 2, 3])  # after it everything is released
    sequence.close()
    async with asyncio.timeout(30):
        while engine._loop._held.held:
            await asyncio.sleep(0.001)
