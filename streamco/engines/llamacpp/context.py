"""One llama.cpp context: its batch, its decodes, and the KV cells of several sequences. Belongs to one thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamco.engines.llamacpp.attention import AttentionTap
from streamco.engines.llamacpp.library import native_function
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ABORTED", "AbortFlag", "LlamaContext", "NO_KV_SLOT", "row_pointers"]


class AbortFlag:
    """A flag that stops the running ``llama_decode`` of a context, and every later one until it is cleared.

    ``llama_set_abort_callback`` takes a ``bool (*)(void *data)`` and calls it before each graph node. A Python function would take the GIL
    hundreds of times in a decode. C's own ``strlen`` has the right signature: ``data`` points to a buffer of two bytes, in which an empty
    string is 0 (continue) and a string of one byte is 1 (stop). So setting the flag stores one byte, from any thread.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)

    @property
    def is_set(self) -> bool:
        """True if the flag is set, so that decodes stop."""
        return self._buffer[0] != b"\0"

    def set(self) -> None:
        """Stop decodes; thread-safe, never blocks."""
        self._buffer[0] = b"\1"

    def clear(self) -> None:
        """Let decodes run again."""
        self._buffer[0] = b"\0"

    def attach(self, library: Any, context: Any) -> None:
        """Attach the flag to a context; it must outlive the context."""
        callback = ctypes.cast(native_function("strlen"), library.ggml_abort_callback)
        library.llama_set_abort_callback(context, callback, ctypes.cast(self._buffer, ctypes.c_void_p))


def row_pointers(numbers: ctypes.Array[ctypes.c_int32]) -> ctypes.Array[Any]:
    """Return an array of pointers, one to each of the numbers, as in llama_batch; the numbers must outlive it."""
    start, step = ctypes.addressof(numbers), ctypes.sizeof(ctypes.c_int32)
    pointer = ctypes.POINTER(ctypes.c_int32)
    return (pointer * len(numbers))(*(ctypes.cast(start + index * step, pointer) for index in range(len(numbers))))


class _SharedRows:
    """The rows of a batch that belong to several sequences, and the pointers to the sequences of every row.

    Args:
        sequences: the one sequence of each row.
        counts: number of sequences of each row.
    """

    def __init__(self, sequences: ctypes.Array[ctypes.c_int32], counts: ctypes.Array[ctypes.c_int32]) -> None:
        self.pointers = row_pointers(sequences)
        self._own = sequences
        self._counts = counts
        self._rows: dict[int, ctypes.Array[ctypes.c_int32]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: int, sequences: Sequence[int]) -> None:
        """Assign a row to several sequences; this takes effect with ``apply``."""
        self._rows[row] = (ctypes.c_int32 * len(sequences))(*sequences)

    def apply(self) -> None:
        """Point the rows to their sequences."""
        for row, sequences in self._rows.items():
            self.pointers[row] = ctypes.cast(sequences, ctypes.POINTER(ctypes.c_int32))
            self._counts[row] = len(sequences)

    def clear(self) -> None:
        """Point each row to its one sequence again."""
        pointer, start, step = ctypes.POINTER(ctypes.c_int32), ctypes.addressof(self._own), ctypes.sizeof(ctypes.c_int32)
        for row in self._rows:
            self.pointers[row], self._counts[row] = ctypes.cast(start + row * step, pointer), 1
        self._rows.clear()


NO_KV_SLOT = 1  # llama_decode: no KV slot for the batch
ABORTED = 2  # llama_decode: stopped by the abort callback; finished micro-batches stay in memory


class LlamaContext:
    """A llama.cpp context. Rows are added one by one, then decoded together; they are numbered from 0 in the order they were added.

    Args:
        cells: KV cells, shared by all sequences.
        sequences: sequence ids go from 0 to ``sequences - 1``.
        rows: number of rows that a batch may hold.
        threads: number of threads that compute.
        unified: let any sequence use any cell, and store shared prefixes once. Otherwise each sequence has its own cells, in the order of
            its positions, whatever the others do. Attention sums in the order of cells, and a different order gives a different result.
        attention_layers: layers that ``attention`` can read; attention is then computed without the flash kernel.

    Raises:
        EngineError: there is not enough memory.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        cells: int,
        sequences: int,
        rows: int,
        threads: int,
        unified: bool = True,
        attention_layers: Sequence[int] = (),
    ) -> None:
        library = self._library = model.library
        parameters = library.llama_context_default_params()
        parameters.n_ctx = cells
        parameters.n_batch = parameters.n_ubatch = rows
        parameters.n_seq_max = sequences
        parameters.kv_unified = unified
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self._tap = AttentionTap(library, attention_layers) if attention_layers else None
        if self._tap is not None:
            self._tap.attach(library, parameters)
        self.abort = AbortFlag()
        self._handle = library.llama_init_from_model(model.handle, parameters)
        if not self._handle:
            raise EngineError(f"model {model.path.name}: not enough memory for a context of {cells} tokens")
        self.abort.attach(library, self._handle)
        self._memory = library.llama_get_memory(self._handle)
        if self._tap is not None and not unified:
            self._tap.set_own_cells(int(library.llama_n_ctx_seq(self._handle)))
        self.has_attention = bool(attention_layers)
        self.reads_attention = False
        self._threads = threads
        self._is_unified = unified
        self._row_type = ctypes.c_float * model.vocabulary_size
        self._views: dict[int, NDArray[np.float32]] = {}
        self._make_batch(rows)

    def _make_batch(self, rows: int) -> None:
        self.rows = rows
        self.count = 0
        self._tokens = (ctypes.c_int32 * rows)()
        self._positions = (ctypes.c_int32 * rows)()
        self._sequences = (ctypes.c_int32 * rows)()
        self._wants = (ctypes.c_int8 * rows)()
        self._one_each = (ctypes.c_int32 * rows)(*([1] * rows))
        self._shared = _SharedRows(self._sequences, self._one_each)
        self._batch = self._library.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=None,
            pos=self._positions,
            n_seq_id=self._one_each,
            seq_id=self._shared.pointers,
            logits=self._wants,
        )

    @property
    def has_room(self) -> bool:
        """True if another row fits."""
        return self.count < self.rows

    @property
    def last_place(self) -> tuple[int, int]:
        """Sequence and position of the row that was added last."""
        return self._sequences[self.count - 1], self._positions[self.count - 1]

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        """Add a row and return its number.

        Args:
            token: id of the token.
            position: position of the token in its sequence, from 0.
            sequence: sequence id of the context.
            wants_logits: True if the decode computes logits for this row.
        """
        row = self.count
        if not row:
            self._shared.clear()
        self._tokens[row] = token
        self._positions[row] = position
        self._sequences[row] = sequence
        self._wants[row] = wants_logits
        self.count = row + 1
        return row

    def add_shared(self, token: int, position: int, sequences: Sequence[int], *, wants_logits: bool) -> int:
        """Add a row that belongs to several sequences, and return its number; see ``add``.

        All of them must hold the same tokens before this batch. Only a context with unified cells can do that.
        """
        row = self.add(token, position, sequences[0], wants_logits=wants_logits)
        if len(sequences) > 1:
            self._shared.add(row, sequences)
        return row

    def add_run(self, tokens: Sequence[int], position: int, sequence: int, *, wants_logits: int) -> int:
        """Add consecutive tokens of one sequence, the last ``wants_logits`` of them with logits; return the last row's number."""
        start, stop = self.count, self.count + len(tokens)
        if not start:
            self._shared.clear()
        self._tokens[start:stop] = list(tokens)
        self._positions[start:stop] = list(range(position, position + len(tokens)))
        self._sequences[start:stop] = [sequence] * len(tokens)
        self._wants[start:stop] = [0] * len(tokens)
        self._wants[stop - wants_logits : stop] = [1] * wants_logits
        self.count = stop
        return stop - 1

    def decode(self) -> int:
        """Compute the rows, forget them and return llama_decode's status: 0, ``NO_KV_SLOT``, ``ABORTED``, or negative on failure.

        If ``reads_attention`` was set, it applies only to this batch.

        Raises:
            EngineError: attention is read, and llama.cpp's graph is not as expected.
        """
        count, self.count = self.count, 0
        self._batch.n_tokens = count
        if self._tap is None or not self.has_attention:
            return self._decode_shared() if self._shared else int(self._library.llama_decode(self._handle, self._batch))
        if self._shared:
            raise AssertionError("a context whose attention is read has no rows of several sequences")
        self._tap.begin(reads=self.reads_attention)
        self.reads_attention = False
        status = int(self._library.llama_decode(self._handle, self._batch))
        if status == 0:
            self._tap.finish(self._sequences[:count], self._positions[:count])
        return status

    def _decode_shared(self) -> int:
        """Decode rows, some of which belong to several sequences."""
        self._shared.apply()
        try:
            return int(self._library.llama_decode(self._handle, self._batch))
        finally:
            self._shared.clear()

    def attention(self, row: int) -> NDArray[np.float32]:
        """Return how much attention a row of the last decode pays to each token of its sequence up to itself.

        Returns:
            Shape (attention layers, tokens): the mean over the heads; each layer sums to 1.

        Raises:
            EngineError: the last decode read no attention.
        """
        if self._tap is None or not self.has_attention:
            raise EngineError("attention: expected a context with attention_layers, got one without")
        return self._tap.weights(row)

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return the logits of a row of the last decode, shape (vocabulary,); a view that the next decode overwrites.

        Raises:
            EngineError: the row was added without ``wants_logits``.
        """
        pointer = self._library.llama_get_logits_ith(self._handle, row)
        if not pointer:
            raise EngineError(f"logits: expected a row that was added with logits, got row {row}")
        address = ctypes.addressof(pointer.contents)
        view = self._views.get(address)
        if view is None:
            import numpy as np

            view = self._views[address] = np.frombuffer(memoryview(self._row_type.from_address(address)), dtype=np.float32)
        return view

    def use_threads(self, count: int) -> None:
        """From now on, compute with this many threads."""
        if count != self._threads:
            self._threads = count
            self._library.llama_set_n_threads(self._handle, count, count)

    # KV cells

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        """Forget positions ``start`` to ``stop`` (exclusive; -1: no limit). Returns False if the model's memory can't do that."""
        is_removed = bool(self._library.llama_memory_seq_rm(self._memory, sequence, start, stop))
        if is_removed and self._tap is not None:
            self._tap.remove(sequence, start, stop)
        return is_removed

    def copy(self, source: int, target: int, stop: int) -> None:
        """Let the empty sequence ``target`` share the source's positions before ``stop``; if the cells aren't unified, copy them."""
        library, memory = self._library, self._memory
        library.llama_memory_seq_cp(memory, source, target, 0, stop if self._is_unified else -1)
        if not self._is_unified:  # llama.cpp aborts the process when asked to copy only some of another sequence's cells
            library.llama_memory_seq_rm(memory, target, stop, -1)
        if self._tap is not None:
            self._tap.copy(source, target, stop)

    def clear(self) -> None:
        """Forget all positions of all sequences."""
        self._library.llama_memory_clear(self._memory, False)
        if self._tap is not None:
            self._tap.clear()

    def close(self) -> None:
        """Free the memory; idempotent."""
        handle, self._handle = self._handle, None
        self._views.clear()
        if handle is not None:
            self._library.llama_free(handle)
