"""Drafts of one answer on held sequences: every order of commands, batches that are shared, sequences that are lost and given back."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import AdoptBranch, DeviceFailed, DraftBranch, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterCommand, DrafterEvent
from streamco.engines.base import Engine
from streamco.errors import EngineError, UsageError
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.wire.verify.topk import TopK
from tests.engines.conftest import MakeEngine, make_engine  # noqa: F401
from tests.engines.fakes import FakeContext

SIZE = 50
PROMPT = [1, 2, 3]
GREEDY = SamplingOptions(temperature=0)


def count_up(ids: Sequence[int]) -> dict[int, float]:
    """A model that gives each token its successor; the next best is one more, the third another one more."""
    return {(ids[-1] + 1) % SIZE: 0.7, (ids[-1] + 2) % SIZE: 0.2, (ids[-1] + 3) % SIZE: 0.1}


def counting(**options: Any) -> FakeEngine:
    given: dict[str, Any] = {"vocabulary": FakeVocabulary("digits", size=SIZE + 1), "successor": count_up, "mode": "manual"}
    return FakeEngine(**(given | options))


class Bench:
    """A drafter on an engine that moves when a test says so."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.events: list[DrafterEvent] = []
        self.drafter: DeviceDrafter

    async def open(self, prompt: Sequence[int] = PROMPT, **options: Any) -> DeviceDrafter:
        self.drafter = DeviceDrafter(self.engine, prompt, emit=self.events.append, **({"sampling": GREEDY} | options))
        return self.drafter

    async def open_on(self, prompt: Sequence[int]) -> Bench:
        await self.open(prompt)
        return self

    async def heard(self, tokens: int) -> None:
        """Wait for so many tokens."""
        async with asyncio.timeout(30):
            while sum(len(ids) for _, ids, _ in self.news()) < tokens:
                await asyncio.sleep(0.001)

    async def asked(self) -> None:
        """Wait until the engine was asked for all branches."""
        async with asyncio.timeout(30):
            while any(line.needs_draft for line in self.drafter._branches.values()):
                await asyncio.sleep(0.001)

    async def failed(self, again: Callable[[], None] | None = None) -> list[DeviceFailed]:
        """Wait for the end of drafting; ``again`` is tried meanwhile."""
        async with asyncio.timeout(30):
            while not self.events:
                await asyncio.sleep(0.001)
                if again is not None:
                    again()
        await asyncio.sleep(0.005)
        return [event for event in self.events if isinstance(event, DeviceFailed)]

    def run(self, *commands: DrafterCommand) -> None:
        before = len(self.events)
        for command in commands:
            self.drafter.run(command)
        assert len(self.events) == before, "an event was told from inside run"

    async def step(self, count: int = 1) -> None:
        """Run ``count`` batches, and let the loop see each."""
        await asyncio.sleep(0)  # the engine is asked
        for _ in range(count):
            self.engine.step()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def emitted(self) -> list[tuple[int, list[int], bool]]:
        """(version, ids, is_finished) of the events since the last call."""
        news = self.news()
        self.events.clear()
        return news

    def news(self) -> list[tuple[int, list[int], bool]]:
        assert all(isinstance(event, TokensDrafted) for event in self.events), self.events
        return [
            (event.version, [token.id for token in event.tokens], event.is_finished)
            for event in self.events
            if isinstance(event, TokensDrafted)
        ]

    async def drafts(self, steps: int = 20) -> dict[int, list[int]]:
        """Everything that is drafted in so many steps, by version; the finished ones."""
        await self.step(steps)
        ids: dict[int, list[int]] = {}
        finished = set()
        for version, tokens, is_finished in self.emitted():
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
        assert at.emitted() == []  # the prompt
        await at.step()
        assert at.emitted() == [(5, [4], False)]
        await at.step()
        await at.step()
        assert at.emitted() == [(5, [5], False), (5, [6], True)]
        await at.step(3)
        assert at.emitted() == []


async def test_what_came_since_the_loop_last_looked_is_one_event() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.step(0)
        at.engine.step(4)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert at.emitted() == [(1, [4, 5, 6], False)]
    async with bench(counting(mode="instant")) as at:
        at.run(DraftTokens(1, 0, (), 40))
        at.run(DraftBranch(2, 0, (30,), 4))
        await at.step()
        assert [(version, len(ids), is_finished) for version, ids, is_finished in at.emitted()] == [(1, 40, True), (2, 4, True)]


async def test_a_token_comes_with_the_models_probability_and_the_alternatives() -> None:
    async with bench(top=3) as at:
        at.run(DraftTokens(1, 0, (), 1))
        await at.step(3)
        (event,) = at.events
        assert isinstance(event, TokensDrafted)
        (token,) = event.tokens
        assert (token.id, token.row) == (4, None)
        assert token.confidence == pytest.approx(0.7)
        assert [choice for choice, _ in token.alternatives] == [4, 5, 6]
        assert [share for _, share in token.alternatives] == pytest.approx([0.7, 0.2, 0.1])


async def test_a_sampled_token_comes_with_the_row_it_was_drawn_from_and_its_own_probability() -> None:
    sampling = SamplingOptions(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0, seed=3)
    async with bench(sampling=sampling, row_ids=2) as at:
        at.run(DraftTokens(1, 0, (), 40))
        await at.step(50)
        tokens = [token for event in at.events if isinstance(event, TokensDrafted) for token in event.tokens]
        before = PROMPT[-1]
        for token in tokens:
            best, second = (before + 1) % SIZE, (before + 2) % SIZE
            assert token.row == TopK((best, second), (65535, 18724))
            assert token.confidence == pytest.approx(0.7 if token.id == best else 0.2)
            before = token.id
        assert len(tokens) == 40
        assert len({(token.id - place) % SIZE for place, token in enumerate(tokens)}) > 2


async def test_every_draft_has_dice_of_its_own_and_a_seed_gives_them_again() -> None:
    sampling = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    drafts = []
    for _ in range(2):
        async with bench(sampling=sampling) as at:
            at.run(DraftTokens(1, 0, (), 20))
            first = await at.drafts(40)
            at.run(DraftTokens(2, 0, (), 20))
            drafts.append([first[1], (await at.drafts(40))[2]])
    assert drafts[0] == drafts[1]
    assert drafts[0][0] != drafts[0][1]


async def test_a_draft_goes_on_behind_what_was_accepted_in_one_decode() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        assert await at.drafts(6) == {1: [4, 5, 6, 7]}
        rounds = at.engine.sequences.rounds
        at.run(DraftTokens(2, length=2, ids=(20,), count=3))
        assert await at.drafts(3) == {2: [21, 22, 23]}
        at.run(DraftTokens(3, length=6, ids=(30,), count=2))  # what was drafted last and not decoded goes into one batch with the bonus
        assert await at.drafts(2) == {3: [31, 32]}
        assert at.engine.sequences.rounds - rounds == 5


async def test_many_given_ids_are_read_first_and_stay_when_the_draft_is_dropped() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, tuple(range(40)), 2))
        await at.step(0)
        at.run(DropDrafts((1,)))
        await at.step(3)
        rounds = at.engine.sequences.rounds
        at.run(DraftTokens(2, 40, (), 1))
        assert await at.drafts(3) == {2: [40]}
        assert at.engine.sequences.rounds - rounds == 1


async def test_a_draft_that_is_dropped_while_the_prompt_is_read_tells_nothing_and_costs_nothing() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.step(0)
        at.run(DropDrafts((1,)))
        at.run(DraftTokens(9, 0, (), 4), DropDrafts((9,)))  # the engine is never asked for it
        await at.step(5)
        assert at.emitted() == []
        assert at.engine.sequences.rounds == 1
        at.run(DraftTokens(2, 0, (), 2))
        assert await at.drafts() == {2: [4, 5]}


async def test_a_dropped_draft_stops_at_once() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 20))
        await at.step(4)
        assert at.emitted() == [(1, [4], False), (1, [5], False), (1, [6], False)]
        at.engine.step()
        at.run(DropDrafts((1, 77)))  # what was drawn meanwhile is not emitted
        rounds = at.engine.sequences.rounds
        await at.step(5)
        assert (at.emitted(), at.engine.sequences.rounds) == ([], rounds)
        at.run(DraftTokens(2, 3, (10,), 2))
        assert await at.drafts() == {2: [11, 12]}


async def test_a_newer_draft_takes_the_place_of_one_at_work() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 20))
        await at.step(3)
        at.emitted()
        at.run(DraftTokens(2, 1, (9,), 20), DraftTokens(3, 2, (8,), 2))
        assert await at.drafts() == {3: [9, 10]}
        at.run(DraftTokens(4, 5, (), 1))
        assert await at.drafts() == {4: [11]}  # 4, 9, 8, 9, 10: what version 2 was given stays although nothing came of it


async def test_branches_are_drafted_in_the_batches_of_the_first() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.drafts(6)
        rounds = at.engine.sequences.rounds
        at.run(DraftBranch(2, 4, (), 4), DraftBranch(3, 2, (20,), 4), DraftBranch(4, 0, (30,), 4), DraftBranch(5, 4, (40,), 4))
        assert await at.drafts(5) == {2: [8, 9, 10, 11], 3: [21, 22, 23, 24], 4: [31, 32, 33, 34], 5: [41, 42, 43, 44]}
        assert at.engine.sequences.rounds - rounds == 4


async def test_an_adopted_branch_drafts_on_and_is_the_trunk() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.drafts(6)
        at.run(DraftBranch(2, 4, (), 4), DraftBranch(3, 2, (20,), 4))
        await at.step(2)
        assert at.emitted() == [(2, [8], False), (3, [21], False), (2, [9], False), (3, [22], False)]
        at.run(AdoptBranch(3), DropDrafts((2,)))
        await at.step(1)
        assert at.emitted() == [(3, [23], False)]
        await at.step(4)
        assert at.emitted() == [(3, [24], True)]
        at.run(DraftTokens(4, 7, (40,), 1), DraftBranch(5, 4, (3,), 1))  # 4, 5, 20, 21, 22, 23, 24
        assert await at.drafts() == {4: [41], 5: [4]}


async def test_a_branch_can_be_adopted_before_it_exists() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 2))
        await at.drafts(4)
        at.run(DraftBranch(2, 1, (20,), 3), AdoptBranch(2))
        assert await at.drafts() == {2: [21, 22, 23]}
        at.run(DraftTokens(3, 5, (), 4))
        await at.step(1)
        at.emitted()
        at.run(DraftBranch(4, 3, (40,), 2), AdoptBranch(4))  # the trunk is at work: its fork waits, and is not missed
        assert await at.drafts() == {4: [41, 42]}


async def test_a_branch_waits_for_the_trunks_draft_or_for_its_end_when_it_is_dropped() -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 3))
        await at.step(2)
        at.run(DraftBranch(2, 1, (20,), 1))
        await at.step(2)
        assert at.emitted() == [(1, [4], False), (1, [5], False), (1, [6], True)]
        assert await at.drafts(2) == {2: [21]}
        at.run(DraftTokens(3, 3, (), 10))
        await at.step(2)
        at.emitted()
        at.run(DropDrafts((3,)), DraftBranch(4, 2, (30,), 1), DraftTokens(5, 1, (40,), 1))
        assert await at.drafts(3) == {4: [31], 5: [41]}


async def test_a_dropped_branch_gives_its_place_back_whether_it_drafts_or_not() -> None:
    async with bench(counting(held_sequences=3)) as at:
        at.run(DraftTokens(1, 0, (), 2))
        await at.drafts(4)
        for version in range(10, 30, 2):
            at.run(DraftBranch(version, 2, (20,), 2), DraftBranch(version + 1, 1, (30,), 2))
            assert await at.drafts(2) == {version: [21, 22], version + 1: [31, 32]}
            at.run(DropDrafts((version, version + 1)))
            at.run(DraftBranch(version, 2, (20,), 2), DraftBranch(version + 1, 1, (30,), 2), DropDrafts((version, version + 1)))


async def test_a_draft_ends_behind_an_end_token() -> None:
    engine = FakeEngine("one two three", mode="manual")
    async with bench(engine, prompt=engine.tokenize("say it")) as at:
        at.run(DraftTokens(1, 0, (), 9))
        ids = (await at.drafts())[1]
        assert (engine.detokenize(ids), ids[-1]) == (b"one two three", engine.end_id)
        assert at.drafter.end_ids == {engine.end_id}
        at.run(DraftTokens(2, 2, (), 2))
        assert await at.drafts() == {2: [*ids[2:]]}


async def test_a_full_context_ends_drafts_with_fewer_tokens() -> None:
    async with bench(counting(context_tokens=8)) as at:
        at.run(DraftTokens(1, 0, (), 9))
        assert await at.drafts() == {1: [4, 5, 6, 7, 8]}
        for version in (2, 3):
            at.run(DraftTokens(version, 5, (9,) * version, 4))  # the answer goes on without the device
            await at.step()
            assert at.emitted() == [(version, [], True)]
        at.run(DraftBranch(4, 7, (), 4), DraftBranch(5, 2, (20,), 9), DraftTokens(6, 5, (), 1), DropDrafts((6,)))
        assert await at.drafts() == {4: [], 5: [21, 22]}
        at.run(AdoptBranch(5))
        at.run(DraftTokens(7, 4, (), 9))
        assert await at.drafts() == {7: [22]}


async def test_an_evicted_trunk_is_read_again() -> None:
    engine = counting(held_sequences=2)
    async with bench(engine) as at:
        at.run(DraftTokens(1, 0, (), 2))
        await at.drafts(4)
        for _ in range(2):
            other = Bench(engine)
            await other.open([40, 41])
            other.run(DraftTokens(1, 0, (), 3))
            other.run(DraftBranch(2, 0, (9,), 3))
            assert await other.drafts() == {1: [42, 43, 44], 2: [10, 11, 12]}
        at.run(DraftTokens(2, 1, (9,), 2), DraftBranch(3, 0, (20,), 1))
        assert await at.drafts() == {2: [10, 11], 3: [21]}
        await asyncio.gather(other.drafter.aclose(), other.step())
    engine.close()


async def test_a_branch_without_a_place_says_nothing_until_it_is_adopted() -> None:
    async with bench(counting(held_sequences=2)) as at:
        at.run(DraftTokens(1, 0, (), 2))
        await at.drafts(4)
        at.run(DraftBranch(2, 2, (), 3), DraftBranch(3, 1, (20,), 3), DraftTokens(4, 2, (), 3))
        assert await at.drafts() == {2: [6, 7, 8], 4: [6, 7, 8]}
        at.run(DropDrafts((2, 4)), AdoptBranch(3))
        assert await at.drafts() == {3: [21, 22, 23]}


async def test_a_trunk_without_a_place_is_out() -> None:
    engine = counting(held_sequences=1)
    async with bench(engine) as at:
        at.run(DraftTokens(1, 0, (), 30))
        await at.step(2)
        other = Bench(engine)
        await other.open([40, 41], name="laptop")
        other.run(DraftTokens(1, 0, (), 3))
        await other.step(3)
        (event,) = other.events
        assert isinstance(event, DeviceFailed)
        assert isinstance(event.error, EngineError)
        assert event.error.endpoint == "laptop"
        assert "expected an idle place among 1, got all busy" in str(event.error)
        other.run(DraftTokens(2, 0, (), 3), AdoptBranch(5))
        await other.step(3)
        assert len(other.events) == 1
        await other.drafter.aclose()
    engine.close()


@pytest.mark.parametrize("is_at_work", [True, False])
async def test_an_engine_that_is_closed_is_told_once(is_at_work: bool) -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.step(3 if is_at_work else 9)
        at.emitted()
        at.engine.close()
        if not is_at_work:
            at.run(DraftTokens(2, 4, (), 4), DraftBranch(3, 2, (), 4))
        for _ in range(4):
            await asyncio.sleep(0)
        (event,) = at.events
        assert isinstance(event, DeviceFailed)
        assert "already closed" in str(event.error)


async def test_a_closed_drafter_tells_nothing_and_holds_nothing() -> None:
    engine = counting()
    async with bench(engine) as at:
        at.run(DraftTokens(1, 0, (), 2))
        await at.drafts(4)
        at.run(DraftBranch(2, 2, (), 9), DraftBranch(3, 1, (20,), 9), DraftBranch(4, 1, (30,), 1), DraftTokens(5, 2, (), 9))
        await at.step(3)
        at.emitted()
        assert engine.sequences.held == 4
        closing = [asyncio.create_task(at.drafter.aclose()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not closing[0].done()  # until the engine has stopped
        at.run(DraftTokens(6, 0, (), 2), AdoptBranch(2))
        await at.step(2)
        await asyncio.gather(*closing)
        assert (at.emitted(), engine.sequences.held) == ([], 0)
    engine.close()


async def test_a_failed_drafter_holds_nothing() -> None:
    engine = counting(held_sequences=1)
    async with bench(engine) as at:
        at.run(DraftTokens(1, 0, (), 30))
        other = Bench(engine)
        await other.open([40, 41])
        other.run(DraftTokens(1, 0, (), 3))
        await other.step(3)
        at.run(DropDrafts((1,)))
        await at.step(2)
        assert engine.sequences.held == 1
    assert engine.sequences.held == 0
    engine.close()


async def test_answers_at_once_share_batches() -> None:
    engine = counting()
    benches = [Bench(engine) for _ in range(3)]
    for number, each in enumerate(benches):
        await each.open([10 * number, 10 * number + 1])
        each.run(DraftTokens(1, 0, (), 4))
    rounds = engine.sequences.rounds
    emitted = [await each.drafts(5 if each is benches[0] else 0) for each in benches]
    assert emitted == [{1: [2, 3, 4, 5]}, {1: [12, 13, 14, 15]}, {1: [22, 23, 24, 25]}]
    assert engine.sequences.rounds - rounds == 5
    for each in benches:
        await each.drafter.aclose()
    engine.close()


async def test_a_driver_may_run_commands_from_inside_an_event() -> None:
    async with bench() as at:
        answers: list[list[DrafterCommand]] = [
            [DraftBranch(2, 1, (20,), 3), DraftBranch(3, 2, (), 3)],
            [AdoptBranch(3), DropDrafts((2,)), DraftBranch(4, 2, (30,), 1)],  # 3 has a token, too, which was not emitted
        ]

        def answer(event: DrafterEvent) -> None:
            at.events.append(event)
            assert isinstance(event, TokensDrafted)
            for command in answers.pop(0) if answers and (event.version == 2 or event.is_finished) else []:
                at.drafter.run(command)

        at.drafter._emit = answer
        at.run(DraftTokens(1, 0, (), 2))
        await at.step(3)
        assert at.emitted() == [(1, [4], False), (1, [5], True)]
        await at.step(3)
        assert at.emitted() == [(2, [21], False), (3, [6], False), (3, [7], False), (3, [8], True)]
        await at.step()
        assert at.emitted() == [(4, [31], True)]


async def test_what_cannot_be_is_the_callers_fault() -> None:
    async with bench() as at:
        with pytest.raises(UsageError, match="draft: expected a length of 0 to 0, got 1"):
            at.drafter.run(DraftTokens(1, 1, (), 2))
        with pytest.raises(UsageError, match="draft: expected a length of 0 to 0, got -1"):
            at.drafter.run(DraftBranch(1, -1, (), 2))
        with pytest.raises(UsageError, match=r"branch 3: expected one of \[\], got none of them"):
            at.drafter.run(AdoptBranch(3))
        at.run(DraftTokens(2, 0, (), 2))
        await at.step(2)
        at.emitted()
        with pytest.raises(UsageError, match="draft: expected a length of 0 to 1, got 2"):
            at.drafter.run(DraftTokens(3, 2, (), 2))
        assert await at.drafts() == {2: [5]}  # as if it had not been said


@pytest.mark.parametrize("count", [0, 8])
async def test_a_prompt_has_to_fit_with_room_for_a_token(count: int) -> None:
    engine = counting(context_tokens=8)
    with pytest.raises(EngineError, match=rf"prompt: expected 1 to 7 tokens \(the context is 8\), got {count}"):
        DeviceDrafter(engine, [1] * count, emit=print, sampling=GREEDY)
    engine.close()


async def test_an_engines_decode_holds_a_row_of_every_branch_and_answer(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine(held_sequences=8)
    context = FakeContext.last
    first, second = [await Bench(engine).open_on(prompt) for prompt in ([10, 11], [100, 101])]
    for each in (first, second):
        each.run(DraftTokens(1, 0, (), 3))
        await each.heard(3)
    context.batches.clear()
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    second.run(DraftTokens(2, 3, (), 5))
    assert await asyncio.to_thread(context.entered.acquire, timeout=10)
    first.run(DraftBranch(2, 3, (), 3), DraftBranch(3, 1, (50,), 3), DraftBranch(4, 2, (60,), 3))
    await first.asked()
    context.let_go()
    await asyncio.gather(first.heard(3 + 9), second.heard(3 + 5))
    assert [[row.token for row in batch] for batch in context.batches] == [
        [104],
        [105, 14, 50, 60],
        [106, 15, 51, 61],
        [107, 16, 52, 62],
        [108],
    ]
    await asyncio.gather(first.drafter.aclose(), second.drafter.aclose())


async def test_the_endpoint_renders_the_prompt_once_and_closes_its_drafters() -> None:
    engine = FakeEngine("one two three", mode="thread")
    endpoint = DeviceEndpoint(engine, name="phone")
    at = Bench(engine)
    at.drafter = await endpoint.drafter(
        Request(messages=[{"role": "user", "content": "hi"}], sampling=GREEDY), emit=at.events.append, top=2
    )
    assert engine.detokenize(at.drafter.prompt_ids) == b"user: hi\nassistant:"
    at.run(DraftTokens(1, 0, (), 3))
    await at.heard(3)
    assert engine.detokenize([token for _, ids, _ in at.emitted() for token in ids]) == b"one two three"
    second = await endpoint.drafter(Request(prompt_ids=[1, 2], sampling=GREEDY), emit=at.events.append)
    await second.aclose()
    assert engine.sequences.held == 1
    await endpoint.aclose()
    assert engine.sequences.held == 0
    at.run(DraftTokens(2, 0, (), 3))
    engine.close()


async def test_a_long_prompt_is_tokenised_beside_the_loop() -> None:
    engine = FakeEngine("word", mode="instant", context_tokens=3000)
    endpoint = DeviceEndpoint(engine)
    drafter = await endpoint.drafter(Request(prompt="so many words " * 600), emit=print)
    assert len(drafter.prompt_ids) == 1801
    await endpoint.aclose()
    engine.close()


async def test_an_endpoint_says_who_cannot_draft() -> None:
    engine = FakeEngine(context_tokens=2)
    endpoint = DeviceEndpoint(engine, name="phone")
    with pytest.raises(EngineError, match="prompt: expected 1 to 1 tokens") as caught:
        await endpoint.drafter(Request(prompt="far too long"), emit=print)
    assert caught.value.endpoint == "phone"
    engine.close()
    with pytest.raises(EngineError, match="already closed"):
        await endpoint.drafter(Request(prompt="a"), emit=print)
    await endpoint.aclose()

    class Writer:
        """An engine that only generates."""

        info = engine.info
        tokenize = engine.tokenize

    other = DeviceEndpoint(cast("Engine", Writer()))
    with pytest.raises(EngineError, match="engine: expected one that holds sequences, got Writer"):
        await other.drafter(Request(prompt="a"), emit=print)
    await other.aclose()


async def test_a_decode_that_fails_is_tried_again_and_the_second_time_the_device_is_out(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine(held_sequences=3)
    at = await Bench(engine).open_on([10, 11])
    at.run(DraftTokens(1, 0, (), 2))
    await at.heard(2)
    at.emitted()
    FakeContext.last.statuses.append(-3)
    at.run(DraftTokens(2, 2, (), 3))
    await at.heard(3)
    assert [token for _, ids, _ in at.emitted() for token in ids] == [14, 15, 16]
    FakeContext.last.statuses.extend([-3, -3])
    at.run(DraftTokens(3, 5, (), 3))
    (event,) = await at.failed()
    assert "llama_decode: expected 0, got -3" in str(event.error)
    await at.drafter.aclose()
    async with asyncio.timeout(30):
        while engine._loop._held.held:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_drafting", [True, False])
async def test_the_thread_dying_is_told_once(make_engine: MakeEngine, is_drafting: bool) -> None:  # noqa: F811
    engine = make_engine(held_sequences=3)
    at = await Bench(engine).open_on([10, 11])
    FakeContext.last.statuses.append(RuntimeError("it broke"))
    if is_drafting:
        at.run(DraftTokens(1, 0, (), 2), DraftBranch(2, 0, (30,), 2))
    (event,) = await at.failed(lambda: at.run(DraftTokens(3, 0, (), 2)))
    assert "it broke" in str(event.error)
    assert isinstance(event.error, EngineError)
    assert event.error.endpoint == "device"
    await at.drafter.aclose()


async def test_a_loop_that_is_gone_ends_the_drafts_and_harms_nobody(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine(held_sequences=4)

    async def leave() -> DeviceDrafter:
        drafter = DeviceDrafter(engine, [10, 11], emit=print, sampling=GREEDY)
        FakeContext.last.hold()
        drafter.run(DraftTokens(1, 0, (), 5))
        await asyncio.sleep(0)
        return drafter

    left = await asyncio.to_thread(asyncio.run, leave())
    FakeContext.last.let_go()
    at = await Bench(engine).open_on([100, 101])
    at.run(DraftTokens(1, 0, (), 3))
    await at.heard(3)
    await at.drafter.aclose()
    assert left.prompt_ids == [10, 11]


async def test_nothing_of_an_answer_is_left_behind() -> None:
    engine = counting()
    async with bench(engine) as at:
        at.run(DraftTokens(1, 0, (), 2), DraftBranch(2, 0, (20,), 4))
        await at.drafts()
        at.run(AdoptBranch(2), DraftBranch(3, 4, (), 9))
        await at.step(2)
        asked = at.drafter._branches[3].pending
        assert asked is not None
        drafter, sequence, task = weakref.ref(at.drafter), weakref.ref(at.drafter._trunk.sequence), weakref.ref(asked.task)
        del asked
    at.events.clear()
    del at
    gc.collect()
    assert (drafter(), sequence(), task()) == (None, None, None)
    engine.close()


async def test_the_loop_is_woken_once_for_what_several_branches_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as at:
        at.run(DraftTokens(1, 0, (), 4))
        await at.drafts(6)
        at.run(*(DraftBranch(version, version, (30,), 3) for version in (2, 3, 4)))
        await at.step(0)
        loop = asyncio.get_running_loop()
        wake_ups: list[object] = []
        call_soon_threadsafe = loop.call_soon_threadsafe

        def count(callback: Callable[..., object], *arguments: object) -> object:
            wake_ups.append(callback)
            return call_soon_threadsafe(callback, *arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        at.engine.step(2)
        assert len(wake_ups) == 1
        await at.step(1)
        assert sorted((version, len(ids)) for version, ids, _ in at.emitted()) == [
            (version, count) for version in (2, 3, 4) for count in (1, 2)
        ]
        assert len(wake_ups) == 2
