"""A llama.cpp context for some layers of a model, which turns hidden states into hidden states. Belongs to one thread.

A state is the residual stream after a layer: ``l_out-<layer>`` in llama.cpp's graph, before any final norm. llama.cpp returns only
normed states, so a tap copies the raw ones while the graph is computed. All rows are marked as outputs, because llama.cpp drops the others
before the last layer's feed-forward network.
"""

from __future__ import annotations

import ctypes
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco._native import NodeTap
from streamco.engines.llamacpp.context import AbortFlag, row_pointers
from streamco.engines.llamacpp.library import library_address, load_library
from streamco.engines.llamacpp.model import LlamaModel, load_weights
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["HeadContext", "LayerModel", "StateBatch", "StateContext", "state_parameters"]


class LayerModel:
    """A part of a model in memory: layers without a vocabulary.

    Args:
        path: the part's GGUF file.
        repack: use kernels that need weights in another order. Their results differ, and they aren't safe on every CPU (see ``amx_probe``).

    Raises:
        EngineError: llama-cpp-python is missing, or llama.cpp can't load the file.
    """

    def __init__(self, path: Path, *, repack: bool = False) -> None:
        self.path = path
        self.library: Any = load_library()
        self.handle = load_weights(self.library, path, repack=repack)
        self.width = int(self.library.llama_model_n_embd(self.handle))
        self.layers = int(self.library.llama_model_n_layer(self.handle))

    def close(self) -> None:
        """Free the memory; idempotent. No context may use it any more."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.library.llama_model_free(handle)


class StateBatch:
    """A llama.cpp batch with states as rows.

    Args:
        library: llama.cpp.
        rows: number of rows that it holds.
        width: numbers in a state.
    """

    def __init__(self, library: Any, rows: int, width: int) -> None:
        import numpy as np

        self.count = 0
        self.sequences = (ctypes.c_int32 * rows)()
        self._states = np.zeros((rows, width), np.float32)
        self._positions = (ctypes.c_int32 * rows)()
        self._ones = (ctypes.c_int32 * rows)(*([1] * rows))
        self._wants = (ctypes.c_int8 * rows)()
        self._sequence_rows = row_pointers(self.sequences)
        self._batch = library.llama_batch(
            n_tokens=0,
            token=None,
            embd=self._states.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=self._positions,
            n_seq_id=self._ones,
            seq_id=self._sequence_rows,
            logits=self._wants,
        )

    def add(self, states: NDArray[np.float32], position: int, sequence: int, *, is_output: bool = True) -> slice:
        """Add states of consecutive positions of one sequence and return their rows.

        Args:
            states: shape (rows, width).
            position: position of the first state.
            sequence: sequence id.
            is_output: have llama.cpp compute these rows up to the end of its graph; if False, they only go into its memory.
        """
        start, stop = self.count, self.count + len(states)
        self._states[start:stop] = states
        self._positions[start:stop] = list(range(position, position + len(states)))
        self.sequences[start:stop] = [sequence] * len(states)
        self._wants[start:stop] = [is_output] * len(states)
        self.count = stop
        return slice(start, stop)

    def take(self) -> Any:
        """Return llama.cpp's batch for a decode, and start a new one."""
        self._batch.n_tokens, self.count = self.count, 0
        return self._batch


def state_parameters(library: Any, *, cells: int, sequences: int, rows: int, threads: int) -> Any:
    """Return llama.cpp's parameters for a context that takes states as rows and keeps sequences apart.

    Args:
        library: llama.cpp.
        cells: KV cells of each sequence.
        sequences: number of sequences.
        rows: number of rows that a batch may hold.
        threads: number of threads that compute.
    """
    parameters = library.llama_context_default_params()
    parameters.n_ctx = cells * sequences
    parameters.n_batch = parameters.n_ubatch = rows
    parameters.n_seq_max = sequences
    parameters.kv_unified = False
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.embeddings = True
    parameters.pooling_type = library.LLAMA_POOLING_TYPE_NONE
    parameters.no_perf = True
    return parameters


class StateContext:
    """Runs rows of states through a part's layers: rows are added, then decoded together.

    Args:
        model: the part.
        cells: KV cells of each sequence.
        sequences: sequence ids go from 0 to ``sequences - 1``. Each has its own cells, so that its results don't depend on the others.
        rows: number of rows that a batch may hold.
        threads: number of threads that compute.

    Raises:
        EngineError: there is not enough memory.
    """

    def __init__(self, model: LayerModel, *, cells: int, sequences: int = 1, rows: int, threads: int) -> None:
        import numpy as np

        library = self._library = model.library
        self.width = model.width
        self.rows = rows
        parameters = state_parameters(library, cells=cells, sequences=sequences, rows=rows, threads=threads)
        names = [f"l_out-{model.layers - 1}".encode()]
        self._tap = NodeTap(
            library_address(library, "ggml_get_name"), library_address(library, "ggml_backend_tensor_get"), b"cache_k_l0 ", names
        )
        parameters.cb_eval = ctypes.cast(self._tap.callback, type(parameters.cb_eval))
        parameters.cb_eval_user_data = self._tap.state
        self.abort = AbortFlag()
        self._handle = library.llama_init_from_model(model.handle, parameters)
        if not self._handle:
            raise EngineError(f"model {model.path.name}: not enough memory for {sequences} x {cells} positions")
        self.abort.attach(library, self._handle)
        self._memory = library.llama_get_memory(self._handle)
        self.cells = int(library.llama_n_ctx_seq(self._handle))
        self._batch = StateBatch(library, rows, self.width)
        self._decoded = np.zeros((0, self.width), np.float32)

    def add(self, states: NDArray[np.float32], position: int, sequence: int) -> slice:
        """Add states of consecutive positions of one sequence and return their rows.

        Args:
            states: shape (rows, width), finite.
            position: position of the first state, from 0.
            sequence: sequence id of the context.

        Raises:
            EngineError: they don't fit into the batch or the sequence, or have a different width.
        """
        count = len(states)
        if states.shape != (count, self.width):
            raise EngineError(f"states: expected rows of {self.width} numbers, got shape {states.shape}")
        if self._batch.count + count > self.rows or position + count > self.cells:
            room = min(self.rows - self._batch.count, self.cells - position)
            raise EngineError(f"states: expected at most {room} more rows, got {count}")
        return self._batch.add(states, position, sequence)

    def discard(self) -> None:
        """Forget the rows that were added but not decoded."""
        self._batch.take()

    def decode(self) -> int:
        """Compute the rows, forget them and return llama_decode's status: 0, ``NO_KV_SLOT``, ``ABORTED``, or negative on failure.

        Raises:
            EngineError: llama.cpp's graph is not as expected.
        """
        count = self._batch.count
        self._tap.arm(True)
        status = int(self._library.llama_decode(self._handle, self._batch.take()))
        if status == 0:
            self._decoded = self._collect(count)
        return status

    def _collect(self, count: int) -> NDArray[np.float32]:
        """Return the tapped states in the order of the batch, which llama.cpp cuts into parts with equally many rows of each sequence."""
        import numpy as np

        waiting: dict[int, deque[int]] = {}
        for row in range(count):
            waiting.setdefault(self._batch.sequences[row], deque()).append(row)
        found = np.empty((count, self.width), np.float32)
        rows: list[int] = []
        for number, shape, data in self._tap.copies():
            if number == 0:
                rows = [self._row_of(cell, waiting) for cell in np.frombuffer(data, dtype=np.int64).tolist()]
            elif shape[0] != self.width or shape[1] * shape[2] * shape[3] != len(rows):
                raise EngineError(f"states: expected {len(rows)} rows of {self.width} numbers in llama.cpp's graph, got {shape}")
            else:
                found[rows] = np.frombuffer(data, dtype=np.float32).reshape(len(rows), self.width)
                rows = []
        if not self._tap.is_understood or rows or any(waiting.values()):
            raise EngineError("states: llama.cpp built its graph in a form that isn't known here")
        return found

    def _row_of(self, cell: int, waiting: dict[int, deque[int]]) -> int:
        queue = waiting.get(cell // self.cells)
        if not queue:
            raise EngineError(f"states: expected cells of the batch's sequences, got cell {cell}")
        return queue.popleft()

    def states(self, rows: slice) -> NDArray[np.float32]:
        """Return states of the last decode, shape (rows, width); the next decode doesn't change them."""
        return self._decoded[rows]

    def use_threads(self, count: int) -> None:
        """From now on, compute with this many threads."""
        self._library.llama_set_n_threads(self._handle, count, count)

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        """Forget positions ``start`` to ``stop`` (exclusive; -1: no limit). Returns False if the part's memory can't do that."""
        return bool(self._library.llama_memory_seq_rm(self._memory, sequence, start, stop))

    def close(self) -> None:
        """Free the memory; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.llama_free(handle)


class HeadContext:
    """Turns one state at a time into logits, with a head part.

    Args:
        model: the head part.
        threads: number of threads that compute.
        exact: compute with the kernels for several rows; see ``batch_invariance``.

    Raises:
        EngineError: there is not enough memory.
    """

    def __init__(self, model: LlamaModel, *, threads: int, exact: bool = False) -> None:
        library = self._library = model.library
        self._rows = 1 + exact
        parameters = library.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = self._rows
        parameters.n_seq_max = 1
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self._name = model.path.name
        self._vocabulary_size = model.vocabulary_size
        self._handle = library.llama_init_from_model(model.handle, parameters)
        if not self._handle:
            raise EngineError(f"model {self._name}: not enough memory for a context")
        self._memory = library.llama_get_memory(self._handle)
        self._batch = StateBatch(library, self._rows, model.info.width)

    def logits(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits, shape (vocabulary,), after a state of shape (width,); the next call doesn't change them.

        Raises:
            EngineError: llama.cpp could not compute them.
        """
        import numpy as np

        self._library.llama_memory_clear(self._memory, False)
        self._batch.add(np.broadcast_to(state, (self._rows, len(state))), 0, 0)
        if status := int(self._library.llama_decode(self._handle, self._batch.take())):
            raise EngineError(f"model {self._name}: expected llama.cpp to compute the logits, got status {status}")
        return np.ctypeslib.as_array(self._library.llama_get_logits_ith(self._handle, 0), (self._vocabulary_size,)).copy()

    def close(self) -> None:
        """Free the memory; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.llama_free(handle)
