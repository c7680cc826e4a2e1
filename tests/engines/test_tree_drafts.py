"""Trees of drafts in an engine: rows, sequences and memory on fakes, and verdicts and texts on a real model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from streamco.engines.base import EngineOptions, TokenSequence
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import ABORTED, NO_KV_SLOT
from streamco.engines.tasks import TreeRows
from streamco.errors import EngineError
from streamco.policies.drafts.tree_acceptance import path_to, verify_tree_greedy
from streamco.testing import FakeEngine
from tests.engines.asking import asked, draft, extend, verify
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, complete

ROUNDS = int(os.environ.get("STREAMCO_VERIFY_ROUNDS", "2"))
COMB = (0, 1, 2, 0, 1)  # three ids, and siblings of the first two
PROMPT = [10, 11, 12]


def test_a_trees_longest_path_is_the_main_one() -> None:
    rows = TreeRows([5, 6, 7, 8, 9], (0, 0, 2, 1, 3))
    assert (rows.main, rows.sides, rows.side_nodes) == ((2, 3, 5), ((1, 4),), (1, 4))
    assert rows.ids(rows.main) == [6, 7, 9]
    assert rows.paths == ((), (1,), (2,), (2, 3), (1, 4), (2, 3, 5))


# On fakes


def test_a_tree_is_one_batch_with_a_row_for_each_node(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    context = FakeContext.last
    context.batches.clear()
    verdict = verify(sequence, [13, 14, 15, 20, 30], parents=COMB)
    assert verdict.greedy == [13, 14, 15, 16, 21, 31]  # after 12, 13, 14, 15, 20 and 30
    assert [each.position for each in verdict.predictions] == [3, 4, 5, 6, 4, 5]
    assert [each.token for each in verdict.predictions] == [None] * 6
    assert verdict.end is not None
    assert verdict.end.timings.rows == 6
    (batch,) = context.batches
    assert [(row.token, row.position, 1 + len(row.others)) for row in batch] == [
        (12, 2, 3),
        (13, 3, 2),
        (14, 4, 1),
        (15, 5, 1),
        (20, 3, 1),
        (30, 4, 1),
    ]
    assert all(row.wants_logits for row in batch)


def test_the_accepted_path_becomes_the_sequence_without_another_row(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    verify(sequence, [13, 14, 15, 20, 30], parents=COMB)
    sequence.truncate(4)  # 13 was accepted, and 30 after it
    FakeContext.last.batches.clear()
    verdict = verify(sequence, [32], given=[30, 31])
    assert verdict.greedy == [32, 33]
    (batch,) = FakeContext.last.batches
    assert [(row.token, row.position) for row in batch] == [(31, 5), (32, 6)], "30 was found in memory"
    assert verdict.end is not None
    assert verdict.end.timings.rows == 2
    assert FakeContext.last.kv[batch[0].sequence] == [*PROMPT, 13, 30, 31, 32]


def test_rejected_paths_leave_no_memory_behind(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    verify(sequence, [13, 14, 20], parents=(0, 1, 0))
    held = {number for number, ids in FakeContext.last.kv.items() if ids}
    assert len(held) == 2
    sequence.truncate(5)
    verify(sequence, [16])
    assert len({number for number, ids in FakeContext.last.kv.items() if ids}) == 1
    verify(sequence, [17, 18, 30], parents=(0, 1, 0))
    sequence.close()
    complete(engine, "x", max_tokens=1)  # after the close
    sides = range(len(held), 40)
    assert not any(FakeContext.last.kv.get(number) for number in sides if number > 5)


def test_what_is_read_before_a_tree_may_need_batches_of_its_own(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    given = list(range(13, 43))
    FakeContext.last.batches.clear()
    verdict = verify(sequence, [43, 44, 50, 60], given=given, parents=(0, 1, 0, 1))
    assert verdict.greedy == [43, 44, 45, 51, 61]
    assert [len(batch) for batch in FakeContext.last.batches] == [30, 5], "all but the last given id, then the tree"


def test_trees_of_two_sequences_share_a_batch(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=3)
    first, second = engine.hold(), engine.hold()
    extend(first, PROMPT)
    extend(second, [50])
    FakeContext.last.batches.clear()
    with engine.together():
        one, two = asked(first, "verify", [13, 20], parents=(0, 0)), asked(second, "verify", [51, 70, 71], parents=(0, 0, 2))
    for task, answer in (one, two):
        answer.read(task)
    assert (one[1].greedy, two[1].greedy) == ([13, 14, 21], [51, 52, 71, 72])
    assert len(FakeContext.last.batches) == 1


def test_a_chain_need_not_wait_for_a_tree_that_has_no_side_path_left(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.engines.llama.SIDE_SEQUENCES", 1)
    engine = make_engine(held_sequences=3)
    sequences = [engine.hold() for _ in range(3)]
    for number, sequence in enumerate(sequences):
        extend(sequence, [50 + number])
    FakeContext.last.batches.clear()
    with engine.together():
        asking = [
            asked(sequence, "verify", [60, 61], parents=parents)
            for sequence, parents in zip(sequences, [(0, 0), (0, 0), (0, 1)], strict=True)
        ]
    for task, answer in asking:
        answer.read(task)
    assert [answer.greedy for _, answer in asking] == [[51, 61, 62], [52, 61, 62], [53, 61, 62]]
    assert [len(batch) for batch in FakeContext.last.batches] == [6, 3], "the first tree and the chain, then the other tree"


def test_a_tree_whose_batch_is_aborted_is_tried_again_or_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    FakeContext.last.statuses.append(ABORTED)
    verdict = verify(sequence, [13, 14, 20], parents=(0, 1, 0))
    assert verdict.greedy == [13, 14, 15, 21]


def test_a_tree_that_never_finds_memory_fails(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    decode = FakeContext.decode

    def full_for_trees(context: FakeContext) -> int:
        if any(row.others for row in context._batch):
            assert len(context.batches) < 20, "tried again and again"
            context.statuses.append(NO_KV_SLOT)
        return decode(context)

    monkeypatch.setattr(FakeContext, "decode", full_for_trees)
    assert "KV cache is full" in verify(sequence, [13, 20], parents=(0, 0)).error


def test_the_rows_that_pad_a_tree_leave_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, PROMPT)
    engine._loop.pad_batches({1: 0.04, 5: 0.16, 8: 0.1})
    context = FakeContext.last
    context.batches.clear()
    assert verify(sequence, [13, 14, 15, 20], parents=(0, 1, 2, 0)).greedy == [13, 14, 15, 16, 21]
    (batch,) = context.batches
    assert [len(batch), batch[4].sequence] == [8, batch[7].sequence]
    assert context.kv[batch[0].sequence] == [*PROMPT, 13, 14, 15]
    assert context.kv[batch[4].sequence] == [*PROMPT, 20]


@pytest.mark.parametrize("changes", [{"exact": True}, {"separate": True}, {"attention_layers": (0,)}, {"held_sequences": 0}])
def test_an_engine_whose_sequences_share_no_cells_takes_chains_alone(make_engine: MakeEngine, changes: dict[str, object]) -> None:
    engine = make_engine(**({"held_sequences": 2} | changes))
    assert engine.draft_paths == 1
    if engine.held_sequences:
        with pytest.raises(EngineError, match="expected a tree of at most 31 ids in 1 paths, got one of 2 in 2"):
            verify(engine.hold(), [1, 2], parents=(0, 0))


def test_a_fake_engine_predicts_after_each_node() -> None:
    engine = FakeEngine(successor=lambda ids: {(sum(ids) * 7 + 1) % 90: 1.0})
    sequence = engine.hold()
    extend(sequence, [3])
    verdict = verify(sequence, [22, 5, 6], parents=(0, 0, 1))
    assert verdict.greedy == [(total * 7 + 1) % 90 for total in (3, 25, 8, 31)]
    assert [each.position for each in verdict.predictions] == [1, 2, 2, 3]
    engine.close()


# On a real model


@pytest.fixture(scope="module")
def real() -> Iterator[LlamaEngine]:
    pytest.importorskip("llama_cpp")
    try:
        path = packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
    engine = LlamaEngine(path, EngineOptions(threads=1, context_tokens=384, max_sequences=2, held_sequences=5))
    yield engine
    engine.close()


def some_tree(own: Sequence[int], dice: Random) -> tuple[list[int], list[int]]:
    """Parts of what the model writes itself, in any places of a tree, among ids that it doesn't write."""
    ids: list[int] = []
    parents: list[int] = []
    for number in range(1, dice.randrange(2, 9)):
        parent = number - 1 if dice.random() < 0.6 else dice.randrange(number)
        depth = len(path_to(parents, parent))
        token = own[depth] if depth < len(own) and dice.random() < 0.7 else dice.randrange(1000, 40000)
        if any((other, each) == (parent, token) for other, each in zip(parents, ids, strict=True)):
            token = dice.randrange(40000, 49000)
        ids.append(token)
        parents.append(parent)
    return ids, parents


def write_in_trees(sequence: TokenSequence, prompt: list[int], own: Sequence[int], dice: Random) -> list[int]:
    """As long as ``own``, by verified trees that are right here and there."""
    text: list[int] = []
    held = len(prompt)
    given: list[int] = []
    while len(text) < len(own):
        ids, parents = some_tree(own[len(text) :], dice)
        verdict = verify(sequence, ids, given=given, parents=parents)
        assert verdict.reason == "done", verdict.error
        found = verify_tree_greedy(ids, parents, verdict.greedy)
        main, path = TreeRows(ids, parents).main, path_to(parents, found.accepted)
        common = sum(1 for ours, theirs in zip(path, main, strict=False) if ours == theirs)
        new = [*(ids[node - 1] for node in path), found.token]
        held += len(given) + common
        sequence.truncate(held)
        text += new
        given = new[common:]
    return text[: len(own)]


@pytest.mark.long
@pytest.mark.model
def test_texts_written_in_verified_trees_are_what_the_model_writes_alone(real: LlamaEngine) -> None:
    """Rows of a batch round otherwise than single ones, so a near tie may fall otherwise: no other difference is allowed."""
    print("seed 1")
    dice = Random(1)
    for turn in range(4 * ROUNDS):
        question = f"Tell me about {dice.choice(('rain', 'bread', 'tides', 'old clocks', 'Python generators', 'maps'))}, {turn}."
        prompt = real.tokenize(real.apply_template([{"role": "user", "content": question}]), special=True)
        sequence = real.hold()
        extend(sequence, prompt)
        alone = draft(sequence, 24, top=2).predictions
        own = [each.greedy for each in alone]
        sequence.truncate(len(prompt))
        text = write_in_trees(sequence, prompt, own, dice)
        differs = next((place for place, (ours, theirs) in enumerate(zip(text, own, strict=True)) if ours != theirs), None)
        assert differs is None or alone[differs].margin < 0.5, f"{question}: other than alone from {differs} on"
        sequence.close()


@pytest.mark.long
@pytest.mark.model
def test_each_node_sees_its_own_path_alone(real: LlamaEngine) -> None:
    dice = Random(3)
    prompt = real.tokenize("Once upon a time there was")
    for _ in range(3 * ROUNDS):
        sequence = real.hold()
        extend(sequence, prompt)
        ids, parents = some_tree([dice.randrange(1000, 9000) for _ in range(4)], dice)
        verdict = verify(sequence, ids, parents=parents, top=3)
        for node, seen in enumerate(verdict.predictions):
            alone = real.hold()
            extend(alone, prompt)
            path = [ids[each - 1] for each in path_to(parents, node)]
            wanted = verify(alone, path, top=3).predictions[-1]
            assert seen.logits == pytest.approx(wanted.logits, abs=0.6)
            assert seen.greedy == wanted.greedy or wanted.margin < 0.6
            alone.close()
        sequence.close()
