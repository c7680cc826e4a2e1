"""Drafts of a real model: whatever was drafted beside it, a draft is what the model writes token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftToken, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.errors import EngineError

pytestmark = pytest.mark.model

QUESTIONS = ("Tell me a story about an old clock.", "Name three rivers and say where they rise.")
GREEDY = SamplingOptions(temperature=0)


@pytest.fixture(scope="module", params=["Q4_0", "Q2_K"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    pytest.importorskip("llama_cpp")
    try:
        path = derived(packaged_model(), request.param)
    except EngineError as exc:
        pytest.skip(str(exc))
    loaded = LlamaEngine(path, EngineOptions(threads=1, context_tokens=256, max_sequences=1, held_sequences=8, exact=True))
    yield loaded
    loaded.close()


class DrafterRun:
    """A drafter, and the events that it emitted."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[DraftToken]] = {}
        self.finished: set[int] = set()
        self.drafter: DeviceDrafter
        self._changed = asyncio.Event()

    def emit(self, event: DrafterEvent) -> None:
        assert isinstance(event, TokensDrafted), event
        self.tokens.setdefault(event.version, []).extend(event.tokens)
        self.finished |= {event.version} if event.is_finished else set()
        self._changed.set()

    async def finish(self, *versions: int) -> list[list[int]]:
        async with asyncio.timeout(60):
            while not self.finished.issuperset(versions):
                self._changed.clear()
                await self._changed.wait()
        return [[token.id for token in self.tokens[version]] for version in versions]


async def sit_down(endpoint: DeviceEndpoint, question: str) -> DrafterRun:
    desk = DrafterRun()
    request = Request(messages=[{"role": "user", "content": question}], sampling=GREEDY)
    desk.drafter = await endpoint.drafter(request, emit=desk.emit)
    return desk


async def write(endpoint: DeviceEndpoint, question: str, before: Sequence[int], count: int) -> list[int]:
    """Token by token, each asked for alone, to the end of the text at most."""
    desk = await sit_down(endpoint, question)
    ids = list(before)
    for version in range(1, count + 1):
        new = () if version > 1 else tuple(before)
        desk.drafter.run(DraftTokens(version, len(ids) - len(new), new, 1))
        ids += (await desk.finish(version))[0]
        if ids[-1] in desk.drafter.end_ids:
            break
    await desk.drafter.aclose()
    return ids[len(before) :]


@pytest.mark.long
async def test_branches_beside_each_other_are_what_the_model_writes_token_by_token(engine: LlamaEngine) -> None:
    endpoint = DeviceEndpoint(engine)
    desks = [await sit_down(endpoint, question) for question in QUESTIONS]
    drafts: list[list[int]] = []
    for desk in desks:
        desk.drafter.run(DraftTokens(1, 0, (), 5))
    for desk in desks:
        (draft,) = await desk.finish(1)
        drafts.append(draft)
        third = desk.tokens[1][2]
        assert third.confidence == third.alternatives[0][1]
        other = third.alternatives[1][0]
        desk.drafter.run(DraftBranch(2, 5, (), 4))
        desk.drafter.run(DraftBranch(3, 2, (other,), 4))
        desk.drafter.run(DraftBranch(4, 0, (other,), 4))
    for desk, question, draft in zip(desks, QUESTIONS, drafts, strict=True):
        other = desk.tokens[1][2].alternatives[1][0]
        branches = await desk.finish(2, 3, 4)
        desk.drafter.run(AdoptBranch(3))
        desk.drafter.run(DropDrafts((2, 4)))
        desk.drafter.run(DraftTokens(5, 5, (other,), 3))
        befores = [draft, [*draft[:2], other], [other], [*draft[:2], other, *branches[1][:2], other]]
        written = [await write(endpoint, question, before, count) for before, count in zip(befores, (4, 4, 4, 3), strict=True)]
        assert [*branches, *(await desk.finish(5))] == written
        assert draft == await write(endpoint, question, [], 5)
    await endpoint.aclose()
    async with asyncio.timeout(10):
        while engine._loop._held.held:  # what nothing was asked of is given back soon after
            await asyncio.sleep(0.001)
