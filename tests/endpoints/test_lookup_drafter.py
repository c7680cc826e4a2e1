"""Drafts that are looked up: what stood before, on the trunk and on branches."""

from __future__ import annotations

import asyncio

import pytest

from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.base import Request
from streamco.endpoints.lookup_drafter import LookupDrafter, LookupEndpoint
from streamco.errors import EngineError, UsageError
from streamco.testing.engine import FakeEngine

PROMPT = [1, 2, 3, 4, 5, 6, 7, 1, 2]


class Lookups:
    """A drafter, and what it emitted."""

    def __init__(self, prompt: list[int] = PROMPT, **options: object) -> None:
        self.events: list[TokensDrafted] = []
        self.drafter = LookupDrafter(prompt, emit=self.events.append, **({"context_tokens": 100} | options))  # type: ignore[arg-type]

    async def ids(self, *commands: DraftTokens | DraftBranch | AdoptBranch | DropDrafts) -> list[tuple[int, list[int]]]:
        self.events.clear()
        for command in commands:
            self.drafter.run(command)
        assert self.events == [], "nothing is emitted from inside run"
        await asyncio.sleep(0)
        return [(event.version, [token.id for token in event.tokens]) for event in self.events]


async def test_what_followed_the_last_tokens_is_the_draft() -> None:
    lookups = Lookups()
    assert await lookups.ids(DraftTokens(1, 0, (), 3)) == [(1, [3, 4, 5])]
    assert await lookups.ids(DraftTokens(2, 2, (9,), 3)) == [(2, [])], "nothing followed 4, 9"
    assert await lookups.ids(DraftTokens(3, 2, (5,), 9)) == [(3, [6, 7, 1, 2, 3, 4, 5, 6, 7])], "the answer counts, too"


async def test_longer_matches_are_surer() -> None:
    lookups = Lookups()
    await lookups.ids(DraftTokens(1, 0, (), 3))
    first, *_, last = lookups.events[0].tokens
    assert 0.0 < first.confidence < last.confidence < 1.0


async def test_a_branch_follows_its_assumption_and_may_be_adopted() -> None:
    lookups = Lookups()
    await lookups.ids(DraftTokens(1, 0, (), 2))
    assert await lookups.ids(DraftBranch(2, 2, (), 2), DraftBranch(3, 1, (9,), 2)) == [(2, [5, 6]), (3, [])]
    assert await lookups.ids(AdoptBranch(2), DraftTokens(4, 4, (), 1)) == [(4, [7])]


async def test_a_draft_that_is_dropped_or_closed_is_not_emitted() -> None:
    lookups = Lookups()
    assert await lookups.ids(DraftTokens(1, 0, (), 2), DropDrafts((1,))) == []
    lookups.drafter.run(DraftTokens(2, 0, (), 2))
    await lookups.drafter.aclose()
    await asyncio.sleep(0)
    assert lookups.events == []


async def test_nothing_follows_the_end_of_a_text() -> None:
    lookups = Lookups(end_ids=frozenset({4}))
    assert await lookups.ids(DraftTokens(1, 0, (), 5)) == [(1, [3, 4])]


async def test_sampled_drafts_have_rows_of_one_token() -> None:
    lookups = Lookups(is_sampled=True)
    await lookups.ids(DraftTokens(1, 0, (), 1))
    row = lookups.events[0].tokens[0].row
    assert row is not None
    assert row.distribution().probability(3) == 1.0  # type: ignore[attr-defined]


async def test_mistakes_are_refused() -> None:
    with pytest.raises(EngineError, match="expected 1 to 8 tokens"):
        Lookups(context_tokens=9)
    lookups = Lookups()
    with pytest.raises(UsageError, match="expected a length of 0 to 0, got 1"):
        lookups.drafter.run(DraftTokens(1, 1, (), 2))
    with pytest.raises(UsageError, match="branch 7"):
        lookups.drafter.run(AdoptBranch(7))


async def test_lookups_take_the_devices_place_without_a_model_of_their_own() -> None:
    engine = FakeEngine()
    events: list[TokensDrafted] = []

    async def read(_: Request, patience: float) -> list[int]:
        assert patience == 2.0
        return PROMPT

    endpoint = LookupEndpoint(engine, read)
    await endpoint.start()
    drafter = await endpoint.drafter(Request(prompt="unread"), emit=events.append, is_sampled=False, patience=2.0)
    assert (drafter.prompt_ids, drafter.end_ids) == (PROMPT, engine.info.end_ids)
    assert endpoint.capabilities.vocabulary == engine.info.vocabulary
    assert endpoint.count_tokens(Request(prompt="unread")) is None
    with pytest.raises(UsageError, match="got a whole answer"):
        endpoint.open(Request(prompt="unread"))
    await endpoint.aclose()
    engine.close()
