"""The attention of a batch's rows, on the real model: it is what a sequence alone in a context would pay, in the order of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp import attention
from streamco.engines.llamacpp.attention import AttentionTap, has_readable_attention
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import ConfigError, EngineError
from streamco.policies.importance import draft_importance
from tests.engines.asking import asked, draft, extend
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, FakeModel, complete

LAYERS = (0, 7, 20)
CLOSE = 2e-3  # the row count changes F16's sums by less; a weight at a wrong place is off by a hundred times that
MakeContext = Callable[..., LlamaContext]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    pytest.importorskip("llama_cpp")
    try:
        loaded = LlamaModel(derived(packaged_model(), "F16"))
    except EngineError as exc:
        pytest.skip(str(exc))
    yield loaded
    loaded.close()


@pytest.fixture
def make_context(model: LlamaModel) -> Iterator[MakeContext]:
    made: list[LlamaContext] = []

    def make(*, unified: bool = True, layers: Sequence[int] = LAYERS) -> LlamaContext:
        made.append(LlamaContext(model, cells=2048, sequences=4, rows=64, threads=1, unified=unified, attention_layers=layers))
        return made[-1]

    yield make
    for context in made:
        context.close()


def tokens(count: int, seed: int) -> list[int]:
    dice = Random(seed)
    return [dice.randrange(1000, 40000) for _ in range(count)]


def decode(context: LlamaContext, *runs: tuple[Sequence[int], int, int], reads: bool = True) -> list[NDArray[np.float32]]:
    """One batch of (ids, position, sequence); the attention of its rows."""
    rows: list[int] = []
    for ids, position, sequence in runs:
        last = context.add_run(ids, position, sequence, wants_logits=1)
        rows += range(last + 1 - len(ids), last + 1)
    context.reads_attention = reads
    assert context.decode() == 0
    return [context.attention(row).copy() for row in rows] if reads else []


def alone(context: LlamaContext, ids: Sequence[int]) -> list[NDArray[np.float32]]:
    """What each token pays in a sequence that has the context for itself, written from its first cell on."""
    context.clear()
    rows = decode(context, (ids, 0, 0))
    context.clear()
    return rows


def assert_alike(rows: Sequence[NDArray[np.float32]], wanted: Sequence[NDArray[np.float32]]) -> None:
    for row, other in zip(rows, wanted, strict=True):
        assert row.shape == other.shape
        assert float(np.abs(row - other).max()) < CLOSE


@pytest.mark.model
def test_a_row_is_a_distribution_over_its_own_tokens(make_context: MakeContext) -> None:
    rows = decode(make_context(), (tokens(20, 1), 0, 0))
    assert [row.shape for row in rows] == [(3, length) for length in range(1, 21)]
    assert all(np.allclose(row.sum(axis=1), 1.0, atol=1e-5) and (row >= 0).all() for row in rows)


@pytest.mark.model
def test_rows_one_by_one_are_those_of_one_batch(make_context: MakeContext) -> None:
    context, ids = make_context(), tokens(12, 2)
    wanted = alone(context, ids)
    assert_alike([decode(context, ([token], position, 0))[0] for position, token in enumerate(ids)], wanted)


@pytest.mark.long("after the first case")
@pytest.mark.model
@pytest.mark.parametrize("unified", [True, False])
def test_sequences_in_one_batch_each_see_their_own_tokens(make_context: MakeContext, unified: bool) -> None:
    context = make_context(unified=unified)
    texts = [tokens(24, seed) for seed in (3, 4, 5)]
    wanted = [alone(context, text) for text in texts]
    for start in range(0, 24, 4):  # in turns: cells of one lie between those of others
        for sequence in (2, 0, 1):
            if start < 20:
                decode(context, (texts[sequence][start : start + 4], start, sequence), reads=False)
    for position in range(20, 24):
        rows = decode(context, *[([texts[sequence][position]], position, sequence) for sequence in (1, 2, 0)])
        assert_alike(rows, [wanted[sequence][position] for sequence in (1, 2, 0)])


@pytest.mark.long("after the first case")
@pytest.mark.model
@pytest.mark.parametrize("unified", [True, False])
def test_a_fork_and_what_was_cut_back_keep_their_order(make_context: MakeContext, unified: bool) -> None:
    context = make_context(unified=unified)
    ids, other = tokens(30, 6), tokens(30, 7)
    branch = ids[:10] + other[:10]
    wanted, wanted_other, wanted_branch = alone(context, ids), alone(context, other), alone(context, branch)
    decode(context, ([*ids[:10], 9, 9, 9, 9], 0, 0), reads=False)
    decode(context, (other[:12], 0, 1), reads=False)
    context.copy(0, 2, 10)
    context.remove(0, 10)
    decode(context, (branch[10:16], 10, 2), reads=False)
    decode(context, (ids[10:20], 10, 0), reads=False)  # into the cells that were given up, and beyond them
    rows = decode(context, ([ids[20]], 20, 0), (other[12:14], 12, 1), ([branch[16]], 16, 2))
    assert_alike(rows, [wanted[20], wanted_other[12], wanted_other[13], wanted_branch[16]])


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_any_history_leaves_the_columns_in_order(make_context: MakeContext, unified: bool, seed: int) -> None:
    context, dice = make_context(unified=unified, layers=(4,)), Random(seed)
    held: dict[int, list[int]] = {sequence: [] for sequence in range(4)}
    for _ in range(25):
        sequence = dice.randrange(4)
        ids = held[sequence]
        match dice.choice(("extend", "extend", "extend", "cut", "fork")):
            case "cut":
                del ids[dice.randrange(len(ids) + 1) :]
                context.remove(sequence, len(ids))
            case "fork":
                source = dice.choice([each for each in range(4) if each != sequence])
                length = dice.randrange(len(held[source]) + 1)
                context.remove(sequence, 0)
                if length:
                    context.copy(source, sequence, length)
                held[sequence] = held[source][:length]
            case _:
                chosen = dice.sample(range(4), dice.randrange(1, 4))
                runs = [(tokens(dice.randrange(1, 9), dice.randrange(10**6)), len(held[each]), each) for each in chosen]
                decode(context, *runs, reads=dice.random() < 0.5)
                for new, _, each in runs:
                    held[each] += new
    last = [([1234], len(held[sequence]), sequence) for sequence in range(4)]
    rows = decode(context, *last)
    wanted = [alone(context, [*held[sequence], 1234])[-1] for sequence in range(4)]
    assert_alike(rows, wanted)


@pytest.mark.model
def test_nothing_is_told_of_a_batch_that_was_not_read(make_context: MakeContext) -> None:
    context = make_context()
    decode(context, (tokens(3, 1), 0, 0))
    decode(context, (tokens(3, 2), 3, 0), reads=False)
    with pytest.raises(EngineError, match="expected a row of a batch with its attention read, got row 0"):
        context.attention(0)


@pytest.mark.model
def test_a_context_without_layers_tells_nothing(model: LlamaModel) -> None:
    context = LlamaContext(model, cells=256, sequences=1, rows=8, threads=1)
    with pytest.raises(EngineError, match="expected a context with attention_layers"):
        context.attention(0)
    context.close()


@pytest.mark.model
@pytest.mark.parametrize("unified", [True, False])
def test_the_check_passes_and_leaves_nothing_behind(make_context: MakeContext, unified: bool) -> None:
    context = make_context(unified=unified)
    assert has_readable_attention(context)
    assert len(decode(context, ([5], 0, 0))[0][0]) == 1


class Unreadable:
    """A context whose rows pay to others as well."""

    reads_attention = False

    def __init__(self, share: float, status: int = 0) -> None:
        self.share, self.status, self.is_clear = share, status, False

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        return sequence

    def decode(self) -> int:
        return self.status

    def attention(self, row: int) -> NDArray[np.float32]:
        return np.full((1, 2), self.share / 2, dtype=np.float32)

    def clear(self) -> None:
        self.is_clear = True


@pytest.mark.parametrize(("share", "status"), [(0.9, 0), (float("nan"), 0), (1.0, 1), (1.0, 2)])
def test_rows_that_do_not_sum_to_one_can_not_be_read(share: float, status: int) -> None:
    context = Unreadable(share, status)
    assert not has_readable_attention(context)
    assert context.is_clear


def test_rows_that_sum_to_one_can_be_read() -> None:
    assert has_readable_attention(Unreadable(1.0))


class ScriptedTap:
    """Stands in for the compiled tap: these copies, whatever is computed."""

    copied: ClassVar[list[tuple[int, tuple[int, int, int, int], bytes]]] = []
    is_understood = True

    def __init__(self, *arguments: Any) -> None:
        pass

    def arm(self, values: bool) -> None:
        pass

    def copies(self) -> list[tuple[int, tuple[int, int, int, int], bytes]]:
        return self.copied


def cells(*numbers: int) -> tuple[int, tuple[int, int, int, int], bytes]:
    return 0, (len(numbers), 1, 1, 1), np.array(numbers, dtype=np.int64).tobytes()


def weights(heads: int, rows: Sequence[Sequence[float]], number: int = 1) -> tuple[int, tuple[int, int, int, int], bytes]:
    values = np.array([rows] * heads, dtype=np.float32)
    return number, (values.shape[2], values.shape[1], heads, 1), values.tobytes()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> AttentionTap:
    monkeypatch.setattr(attention, "NodeTap", ScriptedTap)
    monkeypatch.setattr(attention, "library_address", lambda library, name: 1)
    monkeypatch.setattr(ScriptedTap, "is_understood", True)
    return AttentionTap(None, [5])


def finish(tap: AttentionTap, *copies: tuple[int, tuple[int, int, int, int], bytes], rows: Sequence[tuple[int, int]]) -> None:
    ScriptedTap.copied = list(copies)
    tap.begin(reads=True)
    tap.finish([sequence for sequence, _ in rows], [position for _, position in rows])


def test_columns_are_told_by_position_not_by_cell(scripted: AttentionTap) -> None:
    finish(scripted, cells(3, 0, 2), weights(2, [[0, 0, 0, 1], [0.25, 0, 0, 0.75], [0.5, 0, 0.25, 0.25]]), rows=[(0, 0), (0, 1), (0, 2)])
    assert scripted.weights(2).tolist() == [[0.25, 0.5, 0.25]]
    scripted.copy(0, 1, 2)
    finish(scripted, cells(1), weights(1, [[0.1, 0.2, 0, 0.7]]), rows=[(1, 2)])
    assert scripted.weights(0) == pytest.approx(np.array([[0.7, 0.1, 0.2]]))
    scripted.remove(1, 1, -1)
    finish(scripted, cells(2), weights(1, [[0, 0, 0.4, 0.6]]), rows=[(1, 1)])
    assert scripted.weights(0) == pytest.approx(np.array([[0.6, 0.4]]))


def test_parts_of_a_batch_are_put_together_where_each_sequence_has_its_own_cells(scripted: AttentionTap) -> None:
    scripted.set_own_cells(10)
    parts = [cells(10, 30), (1, (2, 1, 1, 2), np.array([1, 0, 1, 0], dtype=np.float32).tobytes()), cells(11), weights(1, [[0.3, 0.7]])]
    finish(scripted, *parts, rows=[(1, 0), (1, 1), (3, 0)])
    assert [scripted.weights(row).tolist() for row in (0, 2)] == [[[1.0]], [[1.0]]]
    assert scripted.weights(1) == pytest.approx(np.array([[0.3, 0.7]]))


@pytest.mark.parametrize(
    "copies",
    [
        [],
        [cells(1)],
        [cells(1, 2, 3)],
        [cells(1, 2), weights(1, [[1.0]])],
        [weights(1, [[1.0], [1.0]])],
    ],
)
def test_graphs_that_do_not_fit_the_batch_are_an_error(scripted: AttentionTap, copies: list[Any]) -> None:
    with pytest.raises(EngineError, match=r"^attention: (expected|llama\.cpp built)"):
        finish(scripted, *copies, rows=[(0, 0), (0, 1)])


def test_tensors_laid_out_otherwise_are_an_error(scripted: AttentionTap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedTap, "is_understood", False)
    with pytest.raises(EngineError, match="built its graph in a form"):
        finish(scripted, cells(0), rows=[(0, 0)])


# Engines


@pytest.fixture(scope="module", params=[False, True], ids=["", "exact"])
def tapped(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    pytest.importorskip("llama_cpp")
    try:
        path = derived(packaged_model(), "F16")
    except EngineError as exc:
        pytest.skip(str(exc))
    options = EngineOptions(threads=1, context_tokens=128, max_sequences=2, held_sequences=4, attention_layers=(4, -1, 29))
    engine = LlamaEngine(path, replace(options, exact=request.param))
    yield engine
    engine.close()


@pytest.mark.long
@pytest.mark.model
def test_drafts_say_how_important_their_tokens_are(tapped: LlamaEngine, make_context: MakeContext) -> None:
    sequence, prompt = tapped.hold(), tapped.tokenize("The lighthouse at the end of the")
    extend(sequence, prompt)
    written = draft(sequence, 5)
    rows = alone(make_context(layers=(4, 29)), prompt + written.tokens)[len(prompt) :]
    wanted = [None, *(draft_importance([row[:, len(prompt) :] for row in rows[:count]]) for count in range(1, 5))]
    told = [prediction.importance for prediction in written.predictions]
    assert told[0] is None
    assert told[1:] == pytest.approx(wanted[1:], abs=1e-2)
    sequence.close()


@pytest.mark.model
def test_drafts_side_by_side_are_told_apart(tapped: LlamaEngine) -> None:
    prompts = [tapped.tokenize(text) for text in ("Bread is made of flour and", "Winter came early that year, and the")]
    single = []
    for prompt in prompts:
        sequence = tapped.hold()
        extend(sequence, prompt)
        single.append([prediction.importance for prediction in draft(sequence, 6).predictions])
        sequence.close()
    sequences = [tapped.hold() for _ in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        extend(sequence, prompt)
    running = [asked(sequence, "draft", 6) for sequence in (*sequences, sequences[0].fork())]
    for task, answer in running:
        answer.read(task)
    for (_, answer), wanted in zip(running, (*single, single[0]), strict=True):
        assert [each.importance for each in answer.predictions][1:] == pytest.approx(wanted[1:], abs=1e-2)
    for sequence in sequences:
        sequence.close()


@pytest.mark.model
def test_generations_beside_drafts_are_as_they_were(tapped: LlamaEngine) -> None:
    wanted = complete(tapped, "Once upon a time", max_tokens=12).ids
    sequence = tapped.hold()
    extend(sequence, tapped.tokenize("Tides come and go, and the"))
    task, answer = asked(sequence, "draft", 12)
    assert complete(tapped, "Once upon a time", max_tokens=12).ids == wanted
    answer.read(task)
    sequence.close()


def test_a_layer_that_is_not_there_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="attention_layers: expected layers below 1, got 1"):
        make_engine(attention_layers=(0, 1))


def test_a_model_with_fewer_layers_than_are_counted_from_its_end_gives_all(make_engine: MakeEngine) -> None:
    make_engine(attention_layers=(-4, -3, -2, -1))
    assert FakeContext.last.attention_layers == [0]


@pytest.mark.parametrize("reason", ["memory that can't be cut", "another graph"])
def test_a_model_whose_attention_can_not_be_read_drafts_without(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "another graph":
        monkeypatch.setattr(FakeContext, "readable", False)
    else:
        monkeypatch.setattr(FakeModel, "can_share_prefixes", False)
    sequence = make_engine(held_sequences=1, attention_layers=(0,)).hold()
    extend(sequence, b"ab")
    assert [prediction.importance for prediction in draft(sequence, 3).predictions] == [None] * 3
