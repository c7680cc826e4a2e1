"""How large a batch may be before its rows have other bits: found on contexts that change kernels at a size, and on real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.batch_invariance import COMPARED, SIZES, largest_exact_batch
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.gguf import quantize
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import EngineError


class Kernels:
    """Implements ``Rows``; from ``change`` rows of sequence 0 on, some sums are others."""

    def __init__(self, change: int, status: int = 0) -> None:
        self.change = change
        self.status = status
        self.batch: list[int] = []
        self.sizes: list[int] = []

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        self.batch.append(sequence)
        return len(self.batch) - 1

    def decode(self) -> int:
        self.sizes.append(self.batch.count(0))
        self.batch = []
        return self.status

    def logits(self, row: int) -> NDArray[np.float32]:
        is_other = self.sizes[-1] >= self.change and row == self.sizes[-1] % 2
        return np.full(300, 1.0000001 if is_other else 1.0, dtype=np.float32)

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        return True

    def clear(self) -> None:
        pass


@pytest.mark.parametrize("change", [2, 3, 4, 7, 8, 9, 17, 32, 100])
def test_it_is_a_size_before_the_kernels_change(change: int) -> None:
    kernels = Kernels(change)
    found = largest_exact_batch(kernels, 32)
    assert found < change
    assert found >= min(change - 1, 32, max(size for size in (1, *SIZES) if size < change))
    assert len(kernels.sizes) <= 1 + COMPARED + len(SIZES)


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_it_is_never_more_than_a_batch_has_room_for(most: int) -> None:
    kernels = Kernels(100)
    assert largest_exact_batch(kernels, most) == most
    assert max(kernels.sizes) == most


def test_a_model_that_does_not_run_says_so() -> None:
    with pytest.raises(EngineError, match="expected 0 from the first tokens, got -1"):
        largest_exact_batch(Kernels(9, status=-1), 32)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.usefixtures("quantising")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_a_real_text_read_in_batches_of_that_size_has_the_bits_of_one_read_row_by_row(
    engine: LlamaEngine, tmp_path: Path, kind: str
) -> None:
    model = LlamaModel(quantize(engine.path, tmp_path / "copy.gguf", kind))
    context = LlamaContext(model, cells=512, sequences=2, rows=32, threads=1, unified=False)
    ids = model.tokenize("The lighthouse stood at the end of a long road, and nobody had been there since the winter of the great storm.")
    ways = []
    for size in (1, largest_exact_batch(context, 32)):
        rows: list[bytes] = []
        for start in range(0, len(ids), size):
            chunk = ids[start : start + size]
            context.add_run(chunk, start, 0, wants_logits=len(chunk))
            if len(chunk) == 1:
                context.add(0, 0, 1, wants_logits=False)
            assert context.decode() == 0
            rows += [context.logits(row).tobytes() for row in range(len(chunk))]
            context.remove(1, 0)
        ways.append(rows)
        context.clear()
    context.close()
    model.close()
    assert ways[0] == ways[1]
