"""The parts of a split model beside the whole one: the same logits, bit for bit, whatever was removed and whichever rows go together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.llamacpp.state_context import LayerModel, StateContext
from streamco.engines.split import layers
from streamco.engines.split.layers import EXACT_ROWS, HeadPart, InputPart, LayerPart, MiddlePart, StateRun
from streamco.errors import ConfigError, EngineError
from streamco.policies.chunking import MEMORY

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.long, pytest.mark.model]

CELLS = 512
PROMPTS = ("Name three rivers in France.", "Write a Python function that adds two numbers.", "Why is the sky blue?")
TOKENS = 12
ROUNDED = {"F16": 0.01}
"""Largest difference of a logit after a prompt. The whole model computes only the last row of its last feed-forward network. The parts
compute all rows, and a matrix product with 16-bit floats rounds by the number of rows. One row at a time, nothing differs."""


class Whole:
    """The whole model, one row at a time."""

    def __init__(self, path: Path) -> None:
        self.model = LlamaModel(path, repack=False)
        self.context = LlamaContext(self.model, cells=CELLS, sequences=1, rows=CELLS, threads=1, unified=False)

    def logits(self, tokens: list[int], position: int) -> NDArray[np.float32]:
        """Return the logits after the last of these tokens."""
        row = self.context.add_run(tokens, position, 0, wants_logits=1)
        assert self.context.decode() == 0
        return self.context.logits(row).copy()

    def close(self) -> None:
        self.context.close()
        self.model.close()


class Parts:
    """The parts of a model, one after another; ``rounding``: see ``ROUNDED``."""

    rounding = 0.0

    def __init__(self, files: PartFiles) -> None:
        self.input = InputPart(files.input, cells=CELLS)
        self.middle = MiddlePart(files.middle, cells=CELLS)
        self.head = HeadPart(files.head)

    def states(self, tokens: list[int], position: int) -> NDArray[np.float32]:
        """Return the deep states of these tokens."""
        return self.middle.run(self.input.run(self.head.embed(tokens), position), position)

    def truncate(self, length: int) -> None:
        self.input.truncate(length)
        self.middle.truncate(length)

    def close(self) -> None:
        for part in (self.input, self.middle, self.head):
            part.close()


def source(kind: str) -> Path:
    try:
        return packaged_model() if kind == "packaged" else derived(packaged_model(), kind)
    except EngineError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", params=["packaged", "Q4_0", "F16"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Whole, Parts]]:
    path = source(request.param)
    whole, parts = Whole(path), Parts(split_model(path, tmp_path_factory.mktemp("parts")))
    parts.rounding = ROUNDED.get(request.param, 0.0)
    yield whole, parts
    parts.close()
    whole.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(source("packaged"), tmp_path_factory.mktemp("files"))


def prompt_ids(model: LlamaModel, prompt: str) -> list[int]:
    return model.tokenize(model.apply_template([{"role": "user", "content": prompt}]), special=True)


def test_the_head_has_the_models_tokenizer(both: tuple[Whole, Parts]) -> None:
    whole, parts = both
    for prompt in PROMPTS:
        assert prompt_ids(parts.head.model, prompt) == prompt_ids(whole.model, prompt)
    assert parts.head.model.info.vocabulary == whole.model.info.vocabulary


@pytest.mark.parametrize("prompt", PROMPTS)
def test_parts_give_the_whole_models_logits(both: tuple[Whole, Parts], prompt: str) -> None:
    whole, parts = both
    whole.context.clear()
    parts.truncate(0)
    tokens, position = prompt_ids(whole.model, prompt), 0
    made: list[int] = []
    for _ in range(TOKENS):
        expected = whole.logits(tokens, position)
        logits = parts.head.logits(parts.states(tokens, position)[-1])
        assert logits.argmax() == expected.argmax()
        assert np.abs(logits - expected).max() <= (0.0 if position else parts.rounding)
        position += len(tokens)
        tokens = [int(expected.argmax())]
        made += tokens
    check_rounds(parts, position - len(made) + 1, made)


def check_rounds(parts: Parts, start: int, made: list[int]) -> None:
    """Verify rounds of two right and two wrong rows from this position on; each part forgets the wrong ones."""
    parts.truncate(start)
    for index in range(0, len(made) - 2, 2):
        drafts = [made[index + 1], (made[index + 2] + 7) % 1000, 5]
        verdict = parts.head.verify_greedy(parts.states([made[index], *drafts], start + index), drafts)
        assert verdict == made[index + 1 : index + 3]
        parts.truncate(start + index + 2)


def test_a_long_run_is_the_same_in_pieces(files: PartFiles) -> None:
    states = np.random.default_rng(1).standard_normal((700, 576)).astype(np.float32)
    with InputPart(files.input, cells=1024) as part:
        at_once = part.run(states, 0)
        part.truncate(0)
        pieces = np.concatenate([part.run(states[:512], 0), part.run(states[512:], 512)])
    assert at_once.shape == (700, 576)
    assert np.array_equal(at_once, pieces)


def test_no_rows_give_no_states(files: PartFiles) -> None:
    with InputPart(files.input) as part:
        assert part.run(np.empty((0, 576), np.float32), 0).shape == (0, 576)


def test_rows_of_several_sequences_come_back_in_order(files: PartFiles) -> None:
    rng = np.random.default_rng(2)
    model = LayerModel(files.input)
    context = StateContext(model, cells=64, sequences=3, rows=64, threads=1)
    runs = [(2, rng.standard_normal((5, 576))), (0, rng.standard_normal((1, 576))), (1, rng.standard_normal((3, 576)))]
    alone = []
    for sequence, states in runs:
        rows = context.add(states.astype(np.float32), 0, sequence)
        assert context.decode() == 0
        alone.append(context.states(rows))
        assert context.remove(sequence, 0)
    rows_together = [context.add(states.astype(np.float32), 0, sequence) for sequence, states in runs]
    assert context.decode() == 0
    for rows, expected in zip(rows_together, alone, strict=True):
        assert np.allclose(context.states(rows), expected, rtol=1e-2, atol=1e-2)
    context.close()
    model.close()


@pytest.mark.parametrize("kind", ["packaged", "F16", "Q4_K_M"])
@pytest.mark.parametrize("part", [InputPart, MiddlePart])
def test_in_exact_mode_a_state_has_the_same_bits_whatever_is_computed_with_it(kind: str, part: type[LayerPart], tmp_path: Path) -> None:
    files = split_model(source(kind), tmp_path)
    rng = np.random.default_rng(3)
    states = rng.standard_normal((41, 576)).astype(np.float32)
    others = rng.standard_normal((7, 576)).astype(np.float32)
    with part(files.input if part is InputPart else files.middle, cells=64, sequences=2, exact=True) as layers:
        together = layers.run(states, 0)
        layers.truncate(0)
        ones = np.concatenate([layers.run(states[row : row + 1], row) for row in range(len(states))])
        layers.truncate(3)
        wrong = layers.run(np.concatenate([states[3:5], others[:2]]), 3)
        layers.truncate(5)
        beside = layers.run_batch([StateRun(0, 5, states[5:12]), StateRun(1, 0, others)])
        assert 1 <= layers.piece <= EXACT_ROWS
    assert np.array_equal(together, ones)
    assert np.array_equal(wrong[:2], together[3:5])
    assert np.array_equal(beside[0], together[5:12])


def test_in_exact_mode_the_last_position_can_be_used(files: PartFiles) -> None:
    states = np.random.default_rng(4).standard_normal((256, 576)).astype(np.float32)
    with InputPart(files.input, cells=256, exact=True) as part:
        last = part.cells - 1
        before = part.run(np.resize(states, (last, 576)), 0)
        assert part.run(states[:1], last).shape == (1, 576)
        assert len(before) == last
        with pytest.raises(EngineError, match="expected at most 0 more rows, got 1"):
            part.run(states[:1], part.cells)


def test_the_head_of_exact_mode_gives_the_same_tokens(files: PartFiles) -> None:
    states = np.random.default_rng(5).standard_normal((4, 576)).astype(np.float32)
    with HeadPart(files.head) as head, HeadPart(files.head, exact=True) as exact:
        for state in states:
            assert exact.logits(state).tobytes() == exact.logits(state.copy()).tobytes()
            assert exact.logits(state).argmax() == head.logits(state).argmax()


def test_rows_that_do_not_fit_are_refused(files: PartFiles) -> None:
    with InputPart(files.input, cells=256) as part:
        with pytest.raises(EngineError, match="expected rows of 576 numbers, got shape \\(2, 5\\)"):
            part.run(np.zeros((2, 5), np.float32), 0)
        with pytest.raises(EngineError, match="expected at most 6 more rows, got 8"):
            part.run(np.zeros((8, 576), np.float32), 250)


def times_of(files: PartFiles, runs: Sequence[tuple[int, float]]) -> list[tuple[float, float] | None]:
    """Run an input part for each number of rows and seconds by its clock; return what one row and 65 cost after each."""
    found, position, moment = [], 0, 0.0
    with pytest.MonkeyPatch.context() as patch, InputPart(files.input, cells=512) as part:
        for rows, seconds in runs:
            clock = iter([moment, moment + seconds])
            patch.setattr(layers, "perf_counter", lambda clock=clock: next(clock))
            part.run(np.zeros((rows, 576), np.float32), position)
            position, moment = position + rows, moment + seconds
            costs = part.costs
            found.append(None if costs is None else (costs.seconds(1), costs.seconds(65)))
    return found


def test_an_input_part_times_one_row_and_further_ones(files: PartFiles) -> None:
    found = times_of(files, [(15, 9.0), (1, 0.004), (21, 0.005), (221, 0.026), (1, 0.009)])
    assert found[:2] == [None, None], "15 rows are neither one nor many"
    further = MEMORY * 0.00005 + (1 - MEMORY) * 0.0001
    one = MEMORY * 0.004 + (1 - MEMORY) * 0.009
    assert found[2:] == [
        pytest.approx((0.004, 0.004 + 64 * 0.00005)),
        pytest.approx((0.004, 0.004 + 64 * further)),
        pytest.approx((one, one + 64 * further)),
    ]


def test_before_a_row_was_run_alone_all_rows_cost_alike(files: PartFiles) -> None:
    assert times_of(files, [(64, 0.64)]) == [pytest.approx((0.01, 0.65))]


def test_a_clock_that_stands_still_makes_no_costs_of_nothing(files: PartFiles) -> None:
    assert all(0 < one < many for one, many in filter(None, times_of(files, [(64, 0.0), (1, 0.0), (64, 0.0)])))


def test_what_exact_mode_tries_out_is_not_timed(files: PartFiles) -> None:
    with InputPart(files.input, cells=256, exact=True) as part:
        assert part.costs is None


def test_a_verdict_needs_a_state_for_each_draft_and_one_more(files: PartFiles) -> None:
    with HeadPart(files.head) as head, pytest.raises(EngineError, match="expected 3 rows for 2 drafts, got 2"):
        head.verify_greedy(np.zeros((2, 576), np.float32), [1, 2])


@pytest.mark.parametrize("part", [InputPart, MiddlePart])
def test_another_part_is_refused(files: PartFiles, part: type[LayerPart]) -> None:
    with pytest.raises(ConfigError, match="part of a model, got its head part"):
        part(files.head)
    with pytest.raises(ConfigError, match="expected the head part of a model, got its middle part"):
        HeadPart(files.middle)


def test_the_lines_in_the_documentation_write_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "research" / "split.md").read_text()
    lines = next(re.finditer(r"## The parts by hand.*?```python\n(.*?)```", page, flags=re.DOTALL))[1]
    files = split_model(packaged_model(), tmp_path)
    for part in (files.input, files.middle, files.head):
        lines = lines.replace(f'"model.{part.suffixes[-2][1:]}.gguf"', repr(str(part)))
    exec(compile(lines, "docs/research/split.md", "exec"), {})  # the page is part of this repository
    assert capsys.readouterr().out.startswith(" Paris.")
