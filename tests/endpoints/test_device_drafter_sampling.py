"""Speculative sampling keeps the target's distribution, from the drafter's random draws through the bytes on the wire to the verdict.

The texts written are compared with their exact probabilities by Pearson's chi-square. The limit is its 99.9 % point: of faultless builds
one in a thousand would fail, and once only, for all seeds are fixed. That wrong ones fail is tested beside it: without verdicts, and
with corrections made from the wrong distribution, the same number of texts is far beyond the limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from itertools import product
from math import prod
from random import Random
from typing import Literal

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftToken, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent
from streamco.policies.acceptance import Distribution, Verdict, verify_sampled
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.wire.verify.topk import TopK, pack_rows, unpack_rows
from tests.support.surprise import surprise

SIZE = 4
BITS = 8
PROMPT = (0, 1)
LENGTH = 3
TEXTS = 1500
PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

Verifying = Literal["exact", "not at all", "wrong residual"]


@cache
def distribution(noise: float, last: tuple[int, ...]) -> dict[int, float]:
    return FakeDistribution(9, SIZE, noise=noise, spread=1.0)(last)


def target_row(ids: tuple[int, ...]) -> Distribution:
    shares = distribution(0.0, ids[-2:])
    return Distribution(list(shares), list(shares.values()))


def judge(ids: tuple[int, ...], draft: list[DraftToken], rng: Random, how: Verifying) -> Verdict:
    """What a verifier makes of what arrives."""
    rows = [token.row for token in draft if isinstance(token.row, TopK)]
    arrived = unpack_rows(pack_rows(rows, BITS), BITS, vocabulary_size=SIZE + 1, max_rows=8, max_ids=SIZE)
    drafted = [token.id for token in draft]
    if how == "not at all":
        return Verdict(len(draft), target_row((*ids, *drafted)).draw(rng))
    target = [target_row((*ids, *drafted[:place])) for place in range(len(draft) + 1)]
    verdict = verify_sampled(drafted, [row.distribution() for row in arrived], target, rng)
    if how == "wrong residual" and verdict.accepted < len(draft):
        return Verdict(verdict.accepted, target[verdict.accepted].draw(rng))
    return verdict


class Writer:
    """One answer: drafts are verified, the next ones are drafted on branches meanwhile, and those that fit are adopted."""

    def __init__(self, engine: FakeEngine, seed: int, window: int, row_ids: int) -> None:
        self.tokens: dict[int, list[DraftToken]] = {}
        self.window = window
        self.adopted = 0
        self.drafter = DeviceDrafter(
            engine,
            PROMPT,
            emit=self.emit,
            sampling=SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed),
            row_ids=row_ids,
        )

    def emit(self, event: DrafterEvent) -> None:
        assert isinstance(event, TokensDrafted)
        assert event.is_finished
        self.tokens[event.version] = list(event.tokens)

    async def drafted(self, version: int) -> list[DraftToken]:
        while version not in self.tokens:
            await asyncio.sleep(0)
        return self.tokens[version]

    async def write(self, rng: Random, how: Verifying) -> tuple[int, ...]:
        text: tuple[int, ...] = ()
        self.drafter.run(DraftTokens(1, 0, (), self.window))
        draft, version = await self.drafted(1), 1
        while len(text) < LENGTH:
            other = next(choice for choice, _ in draft[0].alternatives if choice != draft[0].id)
            branches = {(len(draft), None): version + 1, (0, other): version + 2}
            self.drafter.run(DraftBranch(version + 1, len(text) + len(draft), (), self.window + 1))
            self.drafter.run(DraftBranch(version + 2, len(text), (other,), self.window))
            verdict = judge((*PROMPT, *text), draft, rng, how)
            text = (*text, *(token.id for token in draft[: verdict.accepted]), verdict.token)
            draft = await self.follow(verdict, len(text), branches, version)
            version += 3
        await self.drafter.aclose()
        return text[:LENGTH]

    async def follow(self, verdict: Verdict, length: int, branches: dict[tuple[int, int | None], int], version: int) -> list[DraftToken]:
        """The next draft: that of the branch for this verdict, or a new one."""
        own = branches.get((verdict.accepted, None))
        if own is not None:
            first, *rest = await self.drafted(own)
            if first.id == verdict.token:
                self.take(own, branches)
                return rest
        other = branches.get((verdict.accepted, verdict.token))
        if other is not None:
            self.take(other, branches)
            return await self.drafted(other)
        self.drafter.run(DropDrafts(tuple(branches.values())))
        self.drafter.run(DraftTokens(version + 3, length - 1, (verdict.token,), self.window))
        return await self.drafted(version + 3)

    def take(self, chosen: int, branches: dict[tuple[int, int | None], int]) -> None:
        self.adopted += 1
        self.drafter.run(AdoptBranch(chosen))
        self.drafter.run(DropDrafts(tuple(version for version in branches.values() if version != chosen)))


def exact_shares() -> dict[tuple[int, ...], float]:
    """Of every text that can be written."""
    texts = product(range(SIZE), repeat=LENGTH)
    return {text: prod(distribution(0.0, (*PROMPT, *text)[place : place + 2])[text[place]] for place in range(LENGTH)) for text in texts}


async def write_texts(how: Verifying, *, window: int = 2, row_ids: int = SIZE, texts: int = TEXTS) -> tuple[Counter[tuple[int, ...]], int]:
    engine = FakeEngine(
        vocabulary=FakeVocabulary("four", size=SIZE + 1), successor=lambda ids: distribution(1.5, tuple(ids[-2:])), held_sequences=8
    )
    seen, adopted = Counter[tuple[int, ...]](), 0
    for seed in range(texts):
        writer = Writer(engine, seed, window, row_ids)
        seen[await writer.write(Random(seed), how)] += 1  # the same number gives different draws on either side
        adopted += writer.adopted
    assert engine.sequences.held == 0
    engine.close()
    return seen, adopted


@pytest.mark.long
@pytest.mark.parametrize(("window", "row_ids"), [(2, SIZE), (1, 2)])
async def test_texts_have_the_targets_distribution(window: int, row_ids: int) -> None:
    """64 texts; a draft from its 2 best ids alone changes how often it is accepted, and nothing else."""
    seen, adopted = await write_texts("exact", window=window, row_ids=row_ids)
    assert surprise(seen, exact_shares(), TEXTS) < 1.0
    assert adopted > TEXTS / 4  # what was drafted in advance is in there


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("how", ["not at all", "wrong residual"])
async def test_what_is_not_judged_or_wrongly_corrected_is_found_out(how: Verifying) -> None:
    seen, _ = await write_texts(how, texts=500)
    assert surprise(seen, exact_shares(), 500) > 1.5
