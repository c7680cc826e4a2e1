"""Trees of drafts through a whole server: the text is the target's own, wherever the tree is right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from streamco.engines.base import EngineOptions, Prediction
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.drafts.tree_acceptance import path_to
from streamco.wire.verify.topk import TopK
from tests.engines.asking import draft as drafted
from tests.engines.asking import extend
from tests.engines.test_tree_drafts import some_tree
from tests.server.verifying import PROMPT, SIZE, Device, WholeText, connected, greedy_text, serving, target


async def write_in_trees(device: Device, ids: Sequence[int], count: int, some: Callable[[int], tuple[list[int], list[int]]]) -> list[int]:
    """An answer of ``count`` tokens; ``some`` gives a tree for the position after so many tokens."""
    session, _ = await device.open(ids)
    text = list(ids)
    while len(text) < len(ids) + count:
        draft, parents = some(len(text) - len(ids))
        verdict = await device.draft(session, len(text), draft, parents=parents)
        assert verdict.token is not None
        text += [*(draft[node - 1] for node in path_to(parents, verdict.accepted)), verdict.token]
        assert device.client.length(session) == len(text)
    device.client.close(session)
    await device.say()
    return text[len(ids) :][:count]


async def test_texts_in_trees_are_the_targets_own_whatever_is_drafted() -> None:
    engine, dice = target(successor=WholeText(SIZE)), Random(1)
    own = greedy_text(WholeText(SIZE), PROMPT, 60)

    def some(length: int) -> tuple[list[int], list[int]]:
        ids, parents = some_tree(own[length:], dice)
        return ([token % SIZE for token in ids], parents) if not repeats([token % SIZE for token in ids], parents) else ([], [])

    async with serving(engine) as server, connected(server.url) as device:
        assert device.client.limits.paths == engine.draft_paths
        assert await write_in_trees(device, PROMPT, 60, some) == own
        figures = server.figures
    assert 0 < figures["accepted_tokens"] < 60
    assert figures["failed_batches"] == 0


def repeats(ids: Sequence[int], parents: Sequence[int]) -> bool:
    return len(set(zip(parents, ids, strict=True))) < len(ids)


async def test_a_tree_may_end_with_the_context() -> None:
    engine = target(successor=WholeText(SIZE), context_tokens=len(PROMPT) + 2)
    own = greedy_text(WholeText(SIZE), PROMPT, 2)
    others = [token for token in range(SIZE) if token not in own]
    async with serving(engine) as server, connected(server.url) as device:
        session, _ = await device.open(PROMPT)
        verdict = await device.draft(session, len(PROMPT), [*own, others[0], others[1]], parents=(0, 1, 0, 1))
        assert (verdict.accepted, verdict.token) == (2, None)


async def test_sampled_trees_are_verified_by_their_rows() -> None:
    rule = Rule(RuleKind.SAMPLE, temperature=1.0, seed=5)
    async with serving(target()) as server, connected(server.url) as device:
        session, _ = await device.open(PROMPT, rule, top_k=4)
        rows = [TopK((7, 9), (3, 1)), TopK((9,), (1,)), TopK((11,), (1,))]
        verdict = await device.draft(session, len(PROMPT), [7, 9, 11], rows=rows, parents=(0, 0, 1))
    assert verdict.accepted in {0, 1, 2, 3}
    assert len(verdict.rows) == 4


def written(engine: LlamaEngine, ids: Sequence[int], count: int) -> list[Prediction]:
    sequence = engine.hold()
    extend(sequence, ids)
    predictions = drafted(sequence, count, top=2).predictions
    sequence.close()
    return predictions


def continuing(own: Sequence[int], dice: Random) -> Callable[[int], tuple[list[int], list[int]]]:
    return lambda length: some_tree(own[length:], dice)


@pytest.mark.long
@pytest.mark.model
async def test_a_real_targets_text_in_trees_is_its_own() -> None:
    """Rows of a batch round otherwise than single ones: the texts are equal up to the first near tie."""
    dice = Random(2)
    options = EngineOptions(threads=1, context_tokens=320, max_sequences=1, held_sequences=3)
    engine = await asyncio.to_thread(LlamaEngine, packaged_model(), options)
    try:
        async with serving(engine) as server, connected(server.url, engine) as device:
            for question in ("Name three colours of the sea.", "What is 17 times 3?", "Explain tides.", "Write a haiku about maps."):
                ids = engine.tokenize(engine.apply_template([{"role": "user", "content": question}]), special=True)
                alone = await asyncio.to_thread(written, engine, ids, 20)
                own = [each.greedy for each in alone]
                text = await write_in_trees(device, ids, len(own), continuing(own, dice))
                differs = next((place for place, (ours, theirs) in enumerate(zip(text, own, strict=True)) if ours != theirs), None)
                assert differs is None or alone[differs].margin < 0.5, f"{question}: other than alone from {differs} on"
            assert server.figures["failed_batches"] == 0
    finally:
        await asyncio.to_thread(engine.close)


async def test_an_exact_engine_announces_chains_alone() -> None:
    engine = target()
    engine.sequences.draft_paths = 1
    async with serving(engine) as server, connected(server.url) as device:
        assert device.client.limits.paths == 1
