"""How large a batch may be before its rows have other bits: found on contexts that change kernels at a size, and on real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.engines.context import LlamaContext
from streamco.engines.exactness import largest_exact_batch
from streamco.engines.gguf import quantize
from streamco.engines.llama import LlamaEngine
from streamco.engines.model import LlamaModel
from streamco.errors import EngineError


class Kernels:
    """Implements ``Rows``; from ``change`` rows on, sums are others."""

    def __init__(self, change: int, status: int = 0) -> None:
        self.change = change
        self.status = status
        self.sizes: list[int] = []

    def add_run(self, tokens: list[int], position: int, sequence: int, *, wants_logits: int) -> int:
        self.sizes.append(len(tokens))
        return len(tokens) - 1

    def decode(self) -> int:
        return self.status

    def logits(self, row: int) -> NDArray[np.float32]:
        assert row == 1
        return np.full(4, 1.0 if self.sizes[-1] < self.change else 1.0000001, dtype=np.float32)

    def clear(self) -> None:
        pass


@pytest.mark.parametrize("change", [*range(3, 33), 100])
def test_it_is_the_last_size_before_the_kernels_change(change: int) -> None:
    kernels = Kernels(change)
    assert largest_exact_batch(kernels, 32) == min(change - 1, 32)
    assert len(kernels.sizes) <= 7


@pytest.mark.parametrize("most", [1, 2])
def test_smaller_batches_are_not_questioned(most: int) -> None:
    assert largest_exact_batch(Kernels(2), most) == most


def test_a_model_that_does_not_run_says_so() -> None:
    with pytest.raises(EngineError, match="expected 0 from 2 tokens, got -1"):
        largest_exact_batch(Kernels(9, status=-1), 32)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["Q8_0", "Q2_K"])
def test_rows_of_a_real_model_keep_their_bits_up_to_there(engine: LlamaEngine, tmp_path: Path, kind: str) -> None:
    model = LlamaModel(quantize(engine.path, tmp_path / "copy.gguf", kind))
    context = LlamaContext(model, cells=512, sequences=2, rows=32, threads=1, unified=False)
    most = largest_exact_batch(context, 32)
    ids = model.tokenize("The lighthouse stood at the end of a long road, and nobody had been there since the winter of the great storm.")
    bits = []
    for rows in (2, max(2, most // 2), most):
        context.add_run(ids[:5], 0, 0, wants_logits=0)
        assert context.decode() == 0
        context.add_run(ids[5 : 5 + rows] + ids[: max(0, rows + 5 - len(ids))], 5, 0, wants_logits=rows)
        assert context.decode() == 0
        bits.append(context.logits(0).tobytes())
        context.clear()
    context.close()
    model.close()
    assert bits[0] == bits[1] == bits[2]
