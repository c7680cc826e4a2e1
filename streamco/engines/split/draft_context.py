"""A llama.cpp context of a draft layer, which turns states into final states and into logits over the drafted vocabulary.

Belongs to one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.engines.llamacpp.state_context import LayerModel, StateBatch, state_parameters
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DraftContext"]

_ROWS = 512  # of a decode


class DraftContext:
    """A draft layer's context, which reads rows and predicts on request.

    Args:
        model: the draft layer.
        vocabulary: number of rows of its output matrix.
        cells: KV cells of each sequence.
        sequences: sequence ids go from 0 to ``sequences - 1``.
        threads: number of threads that compute.

    Raises:
        EngineError: there is not enough memory.
    """

    def __init__(self, model: LayerModel, *, vocabulary: int, cells: int, sequences: int, threads: int) -> None:
        library = self._library = model.library
        rows = min(_ROWS, cells)
        parameters = state_parameters(library, cells=cells, sequences=sequences, rows=rows, threads=threads)
        self._vocabulary, self._width, self._name = vocabulary, model.width, model.path.name
        self._handle = library.llama_init_from_model(model.handle, parameters)
        if not self._handle:
            raise EngineError(f"model {self._name}: not enough memory for {sequences} x {cells} positions")
        self._memory = library.llama_get_memory(self._handle)
        self.cells = int(library.llama_n_ctx_seq(self._handle))
        self._rows = rows
        self._batch = StateBatch(library, rows, model.width)

    def step(self, state: NDArray[np.float32], position: int, sequence: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read one row of shape (width,); return its logits and the state after the final norm.

        Raises:
            EngineError: the position doesn't fit, or llama.cpp could not compute it.
        """
        import numpy as np

        self._library.llama_set_embeddings(self._handle, True)
        self._decode(state[None], position, sequence, is_output=True)
        logits = np.ctypeslib.as_array(self._library.llama_get_logits_ith(self._handle, 0), (self._vocabulary,)).copy()
        made = np.ctypeslib.as_array(self._library.llama_get_embeddings_ith(self._handle, 0), (self._width,)).copy()
        return logits, made

    def read(self, states: NDArray[np.float32], position: int, sequence: int) -> None:
        """Read rows of shape (rows, width) into the memory; their output is not computed.

        Raises:
            EngineError: the positions don't fit, or llama.cpp could not compute them.
        """
        self._library.llama_set_embeddings(self._handle, False)  # True would make an output of every row
        for start in range(0, len(states), self._rows):
            self._decode(states[start : start + self._rows], position + start, sequence, is_output=False)

    def _decode(self, states: NDArray[np.float32], position: int, sequence: int, *, is_output: bool) -> None:
        if position < 0 or position + len(states) > self.cells:
            raise EngineError(f"draft layer: expected positions up to {self.cells - 1}, got {position} to {position + len(states) - 1}")
        self._batch.add(states, position, sequence, is_output=is_output)
        if status := int(self._library.llama_decode(self._handle, self._batch.take())):
            raise EngineError(f"model {self._name}: expected llama.cpp to compute {len(states)} rows, got status {status}")

    def remove(self, sequence: int, start: int) -> None:
        """Forget the positions of a sequence from ``start`` on.

        Raises:
            EngineError: the layer's memory can't do that.
        """
        if not self._library.llama_memory_seq_rm(self._memory, sequence, start, -1):
            raise EngineError(f"model {self._name}: expected a memory that can be truncated to {start}, got one that can't")

    def close(self) -> None:
        """Free the memory; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.llama_free(handle)
