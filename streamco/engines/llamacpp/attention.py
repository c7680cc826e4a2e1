"""Reads how much attention a row pays to each token of its sequence, from llama.cpp's graph while the graph is computed.

Without flash attention the graph has a node ``kq_soft_max-<layer>``. For each head and each row of the batch it has one weight for each
cell of the KV cache in use (padded to 256). llama.cpp doesn't say which cell holds a token. So the cell is read where the graph writes the
token's key, and remembered here while sequences grow, are cut and are forked. In a unified cache a sequence may use any cells. Otherwise
each sequence has its own cells, and llama.cpp cuts a batch into parts that have the same number of rows for each sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from streamco._native import NodeTap
from streamco.engines.llamacpp.library import library_address
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["AttentionTap", "AttentionContext", "has_readable_attention"]

_NO_CELL = -1


class AttentionContext(Protocol):
    """The part of a context that ``has_readable_attention`` needs."""

    reads_attention: bool

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        """Add a row; see ``LlamaContext.add``."""
        ...

    def decode(self) -> int:
        """Compute the rows."""
        ...

    def attention(self, row: int) -> NDArray[np.float32]:
        """Return the attention of a row of the last decode."""
        ...

    def clear(self) -> None:
        """Forget all positions of all sequences."""
        ...


def has_readable_attention(context: AttentionContext) -> bool:
    """Return True if each row attends only to its own sequence, as tested by decoding a few tokens of two sequences."""
    sums = [2.0]
    with suppress(EngineError):
        for position in range(3):
            rows = [context.add(position, position, sequence, wants_logits=True) for sequence in (0, 1)]
            context.reads_attention = True
            sums = [float(total) for row in rows for total in context.attention(row).sum(axis=1)] if context.decode() == 0 else [2.0]
    context.clear()
    return all(abs(total - 1.0) <= 0.01 for total in sums)


class AttentionTap:
    """Reads the attention of a context's rows; belongs to the context's thread.

    Args:
        library: llama.cpp.
        layers: layers to read, counted from 0; at least one.
    """

    def __init__(self, library: Any, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        names = [f"kq_soft_max-{layer}".encode() for layer in self._layers]
        written = f"cache_k_l{self._layers[0]} ".encode()
        self._tap = NodeTap(library_address(library, "ggml_get_name"), library_address(library, "ggml_backend_tensor_get"), written, names)
        self._own_cells: int | None = None  # for each sequence; None if the cache is unified
        self._cells: dict[int, list[int]] = {}  # sequence -> its cells, in the order of positions
        self._weights: list[dict[int, NDArray[np.float32]]] = []  # for each part of the batch: layer -> (rows, heads, cells)
        self._row_places: dict[int, tuple[int, int, int, int]] = {}  # row -> part, row there, sequence, tokens

    def attach(self, library: Any, parameters: Any) -> None:
        """Put the tap into the parameters of a context that is about to be created. The tap must outlive the context."""
        parameters.cb_eval = ctypes.cast(self._tap.callback, type(parameters.cb_eval))
        parameters.cb_eval_user_data = self._tap.state
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED

    def set_own_cells(self, own_cells: int) -> None:
        """Set the number of cells that each sequence has for itself, because the cache is not unified."""
        self._own_cells = own_cells

    def begin(self, *, reads: bool) -> None:
        """Prepare for the decode of a batch.

        Args:
            reads: True if the attention of its rows is needed.
        """
        self._row_places.clear()
        self._weights.clear()
        self._tap.arm(reads)

    def finish(self, sequences: Sequence[int], positions: Sequence[int]) -> None:
        """Store the attention nodes of the batch that was just decoded.

        Args:
            sequences: sequence of each row.
            positions: position of each row.

        Raises:
            EngineError: llama.cpp's graph is not as expected.
            MemoryError: there was not enough memory for the nodes' contents.
        """
        import numpy as np

        waiting: dict[int, list[int]] = {}  # rows that no part has held yet, by sequence; all together if the cache is unified
        for row in range(len(sequences) - 1, -1, -1):
            waiting.setdefault(self._group(sequences[row]), []).append(row)
        rows: list[int] = []
        for number, shape, data in self._tap.copies():
            if number == 0:
                rows = [self._note(cell, waiting, sequences, positions) for cell in np.frombuffer(data, dtype=np.int64).tolist()]
                for index, row in enumerate(rows):
                    self._row_places[row] = (len(self._weights), index, sequences[row], positions[row] + 1)
                self._weights.append({})
                continue
            cells, columns, heads, streams = shape
            if columns * streams != len(rows):
                raise EngineError(f"attention: expected {len(rows)} rows in layer {self._layers[number - 1]}, got {columns} x {streams}")
            values = np.frombuffer(data, dtype=np.float32).reshape(streams, heads, columns, cells)
            self._weights[-1][self._layers[number - 1]] = values.swapaxes(1, 2).reshape(len(rows), heads, cells)
        if not self._tap.is_understood or any(waiting.values()):
            raise EngineError("attention: llama.cpp built its graph in a form that isn't known here: use no attention_layers")

    def _group(self, sequence: int) -> int:
        return 0 if self._own_cells is None else sequence

    def _note(self, cell: int, waiting: dict[int, list[int]], sequences: Sequence[int], positions: Sequence[int]) -> int:
        """Record that a cell holds the next row of its sequence, and return the row. ``cell`` counts through the cells of all sequences."""
        group, own = (0, cell) if self._own_cells is None else divmod(cell, self._own_cells)
        queue = waiting.get(group)
        if not queue:
            raise EngineError(f"attention: expected cells of the batch's sequences, got cell {cell}")
        row = queue.pop()
        cells = self._cells.setdefault(sequences[row], [])
        del cells[positions[row] :]
        cells += [_NO_CELL] * (positions[row] - len(cells))
        cells.append(own)
        return row

    def weights(self, row: int) -> NDArray[np.float32]:
        """Return how much attention a row of the last batch pays to each token of its sequence up to itself.

        Returns:
            Shape (layers, tokens): the mean over the heads, in the order of positions; each layer sums to 1.

        Raises:
            EngineError: the batch was decoded without reading.
        """
        import numpy as np

        part, index, sequence, tokens = self._row_places.get(row, (0, 0, 0, 0))
        found = self._weights[part] if self._weights else {}
        if not tokens or len(found) < len(self._layers):
            raise EngineError(f"attention: expected a row of a batch with its attention read, got row {row}")
        cells = self._cells[sequence][:tokens]
        return np.stack([found[layer][index][:, cells].mean(axis=0) for layer in self._layers])

    # The cells of sequences

    def remove(self, sequence: int, start: int, stop: int) -> None:
        """Forget positions ``start`` to ``stop`` (exclusive; -1: no limit), as the sequence did."""
        cells = self._cells.get(sequence, [])
        if stop < 0:
            del cells[start:]
        else:
            cells[start:stop] = [_NO_CELL] * len(cells[start:stop])

    def copy(self, source: int, target: int, stop: int) -> None:
        """Give ``target`` the positions before ``stop``, as the same cells or as its own cells with the same numbers."""
        self._cells[target] = self._cells.get(source, [])[:stop]

    def clear(self) -> None:
        """Forget all positions of all sequences."""
        self._cells.clear()
