"""A context of layers: its batch and its end. What it computes is tested in ``tests/engines/split/test_layers.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.llamacpp.state_context import LayerModel, StateContext
from streamco.errors import EngineError

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    try:
        return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))
    except EngineError as exc:
        pytest.skip(str(exc))


@pytest.fixture
def context(files: PartFiles) -> Iterator[StateContext]:
    model = LayerModel(files.input)
    context = StateContext(model, cells=64, sequences=2, rows=16, threads=1)
    yield context
    context.close()
    model.close()


def states(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(rows).standard_normal((rows, 576)).astype(np.float32)


@pytest.mark.long
def test_a_model_says_its_shape(files: PartFiles) -> None:
    model = LayerModel(files.middle)
    assert (model.width, model.layers) == (576, 28)
    model.close()
    model.close()


@pytest.mark.long
def test_rows_are_numbered_in_the_order_they_were_added(context: StateContext) -> None:
    assert context.add(states(3), 0, 0) == slice(0, 3)
    assert context.add(states(2), 0, 1) == slice(3, 5)
    assert context.decode() == 0
    assert context.add(states(1), 3, 0) == slice(0, 1)


def test_the_next_decode_keeps_earlier_states(context: StateContext) -> None:
    rows = context.add(states(3), 0, 0)
    assert context.decode() == 0
    first = context.states(rows)
    kept = first.copy()
    context.add(states(4), 3, 0)
    assert context.decode() == 0
    assert np.array_equal(first, kept)


def test_more_rows_than_a_batch_holds_are_refused(context: StateContext) -> None:
    context.add(states(10), 0, 0)
    with pytest.raises(EngineError, match="expected at most 6 more rows, got 7"):
        context.add(states(7), 0, 1)


def test_the_abort_flag_stops_a_decode(context: StateContext) -> None:
    context.abort.set()
    context.add(states(2), 0, 0)
    assert context.decode() != 0
    context.abort.clear()
    assert context.remove(0, 0)
    context.add(states(2), 0, 0)
    assert context.decode() == 0


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(EngineError, match="expected a GGUF file that llama"):
        LayerModel(path)
