"""A real context: rows, logits, cells and the flag that stops it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.amx_probe import allows_repacking
from streamco.engines.llamacpp.context import ABORTED, NO_KV_SLOT, LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import EngineError

pytestmark = pytest.mark.model

PROMPT = [1000, 2000, 3000, 4000, 5000]


@pytest.fixture
def context(engine: LlamaEngine) -> Iterator[LlamaContext]:
    made = LlamaContext(engine._model, cells=256, sequences=3, rows=64, threads=1)
    yield made
    made.close()
    made.close()


def prefill(context: LlamaContext, tokens: list[int], sequence: int = 0) -> int:
    row = context.add_run(tokens, 0, sequence, wants_logits=True)
    assert context.decode() == 0
    return int(context.logits(row).argmax())


def test_rows_are_numbered_in_order_and_forgotten_by_a_decode(context: LlamaContext) -> None:
    assert context.add(5, 0, 0, wants_logits=True) == 0
    assert context.add_run([6, 7], 0, 1, wants_logits=True) == 2
    assert context.count == 3
    assert context.decode() == 0
    assert context.count == 0


def test_logits_belong_to_the_row_that_asked(context: LlamaContext) -> None:
    context.add_run(PROMPT, 0, 0, wants_logits=True)
    last = context.add_run(PROMPT[:3], 0, 1, wants_logits=True)
    context.decode()
    first_logits, second_logits = context.logits(4).copy(), context.logits(last).copy()
    assert first_logits.shape == (49_152,)
    assert np.abs(first_logits - second_logits).max() > 0.1
    with pytest.raises(EngineError, match="expected a row that was added with logits, got row 2"):
        context.logits(2)


def test_one_run_is_the_same_as_token_by_token(context: LlamaContext) -> None:
    together = prefill(context, PROMPT)
    for position, token in enumerate(PROMPT):
        context.add(token, position, 1, wants_logits=True)
        assert context.decode() == 0
    assert int(context.logits(0).argmax()) == together


def test_a_copied_prefix_goes_on_like_the_original(context: LlamaContext) -> None:
    prefill(context, PROMPT, 0)
    context.copy(0, 1, len(PROMPT))
    rows = [context.add(77, len(PROMPT), sequence, wants_logits=True) for sequence in (0, 1)]
    assert context.decode() == 0
    assert np.allclose(context.logits(rows[0]), context.logits(rows[1]), atol=1e-3)


def test_removed_positions_can_be_filled_anew(context: LlamaContext) -> None:
    expected = prefill(context, PROMPT, 1)
    prefill(context, [*PROMPT[:3], 9, 9, 9], 0)
    assert context.remove(0, 3)
    row = context.add_run(PROMPT[3:], 3, 0, wants_logits=True)
    assert context.decode() == 0
    assert int(context.logits(row).argmax()) == expected


def test_a_set_flag_stops_a_decode_and_a_cleared_one_lets_it_go(context: LlamaContext) -> None:
    context.abort.set()
    context.add_run(PROMPT, 0, 0, wants_logits=True)
    assert context.decode() == ABORTED
    context.abort.clear()
    assert context.remove(0, 0)
    prefill(context, PROMPT)


@pytest.mark.long
def test_too_many_tokens_find_no_room(context: LlamaContext) -> None:
    for start in range(0, 256, 64):
        context.add_run([5] * 64, start, 0, wants_logits=False)
        assert context.decode() == 0
    context.add(5, 0, 1, wants_logits=True)
    assert context.decode() == NO_KV_SLOT
    context.clear()
    prefill(context, PROMPT, 1)


@pytest.mark.long
def test_the_number_of_threads_can_change(context: LlamaContext) -> None:
    expected = prefill(context, PROMPT)
    context.use_threads(2)
    context.clear()
    assert prefill(context, PROMPT) == expected
    context.use_threads(1)


def test_no_memory_for_a_context_is_an_error(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine._model.library, "llama_init_from_model", lambda *_arguments: None)
    with pytest.raises(EngineError, match="not enough memory for a context of 256 tokens"):
        LlamaContext(engine._model, cells=256, sequences=1, rows=8, threads=1)


@pytest.mark.parametrize("allowed", [True, False])
def test_where_repacking_kills_the_model_is_loaded_without(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    library = engine._model.library
    may_decode = not allowed or allows_repacking(engine.path, library)  # here, in truth: where not, that would be the end of this process
    original = library.llama_model_load_from_file
    seen: list[bool] = []

    def load(path: bytes, parameters: Any) -> Any:
        seen.append(parameters.use_extra_bufts)
        return original(path, parameters)

    monkeypatch.setattr(library, "llama_model_load_from_file", load)
    monkeypatch.setattr("streamco.engines.llamacpp.model.choose_repacking", lambda _path, _library: allowed)
    model = LlamaModel(engine.path)
    context = LlamaContext(model, cells=256, sequences=1, rows=8, threads=1)
    if may_decode:
        prefill(context, PROMPT)
    context.close()
    model.close()
    assert seen == [allowed]


def test_a_row_of_several_sequences_is_read_by_all_of_them_and_later_rows_are_their_own(context: LlamaContext) -> None:
    context.add_shared(10, 0, (0, 1), wants_logits=False)
    context.add_shared(11, 1, (0,), wants_logits=True)
    context.add_shared(12, 1, (1,), wants_logits=True)
    assert context.decode() == 0
    shared = [context.logits(row).copy() for row in (1, 2)]
    context.clear()
    for sequence, token in ((0, 11), (1, 12)):
        context.add_run((10, token), 0, sequence, wants_logits=1)
        assert context.decode() == 0, "the rows' own sequences are back"
        assert np.abs(context.logits(1) - shared[sequence]).max() < 1.0
