"""The computing parts of a split model (HAT, section 3.1): input layers, middle layers and head. Each belongs to one thread.

The device runs ``InputPart`` and ``HeadPart``, the server ``MiddlePart``. They pass states to each other, one row of floats per token. With
the same llama.cpp and the same kernels on both sides and 32-bit states, the head gives the logits of the whole model, bit for bit.

llama.cpp has different kernels for one row and for several, which sum in a different order. In exact mode no row is ever computed alone,
and no batch is so large that it would give other bits (``batch_invariance``). So a state doesn't depend on how many rows were computed with
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from streamco.core.speculation.averages import Ewma
from streamco.engines.llamacpp.batch_invariance import COMPARED, largest_equal_size
from streamco.engines.llamacpp.context import AbortFlag
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import EmbeddingTable, PartInfo, PartKind, describe_part, open_gguf, read_part
from streamco.engines.llamacpp.state_context import HeadContext, LayerModel, StateContext
from streamco.errors import ConfigError, EngineError
from streamco.policies.chunking import MEMORY, SMALLEST
from streamco.profiles.row_costs import RowCosts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["HeadPart", "InputPart", "LayerPart", "MiddlePart", "StateRun"]

MAX_ROWS = 512  # of a decode
_LEAST = 1e-9  # seconds, where a clock is too coarse
EXACT_ROWS = 32  # of a decode of one sequence in exact mode; a larger one saves no time on a CPU


class StateRun(Struct, frozen=True, eq=False, gc=False):
    """States of consecutive positions of one sequence, shape (rows, width)."""

    sequence: int
    position: int
    states: NDArray[np.float32]


class LayerPart:
    """Layers of a model with a KV cache for each sequence.

    Args:
        path: the part's file; ``streamco split`` writes it.
        cells: number of positions of each sequence.
        sequences: number of sequences, with ids from 0.
        threads: number of threads that compute.
        repack: see ``LayerModel``; for bit-identical results, all parts and the whole model need the same value.
        exact: give a state the same bits whatever rows are computed with it. A single row then takes as long as two, and no two sequences
            share a decode.

    Attributes:
        info: what the file says about itself.
        piece: maximum number of rows of one sequence that one decode computes.

    Raises:
        ConfigError: the file is a different part of a model.
        EngineError: the file isn't a part of a model, or llama.cpp can't load it.
    """

    kind: PartKind

    def __init__(
        self,
        path: str | Path,
        *,
        cells: int = 2048,
        sequences: int = 1,
        threads: int = 1,
        repack: bool = False,
        exact: bool = False,
    ) -> None:
        self.info: PartInfo = _check_kind(read_part(path), Path(path), self.kind)
        self._model = LayerModel(Path(path), repack=repack)
        self._exact = exact
        rows = min(MAX_ROWS, cells) + exact  # plus one for the row that keeps another from being alone
        try:
            self._context = StateContext(self._model, cells=cells + exact, sequences=sequences, rows=rows, threads=threads)
        except EngineError:
            self._model.close()
            raise
        self.piece = rows
        if exact:
            self.piece = largest_equal_size(self._states_by, min(EXACT_ROWS, rows - 1))

    def run(self, states: NDArray[np.float32], position: int, sequence: int = 0) -> NDArray[np.float32]:
        """Compute the layers for consecutive positions of one sequence and return the states after the last layer.

        Args:
            states: shape (rows, width): the states before the first layer.
            position: position of the first row, from 0; later positions must be empty.
            sequence: sequence id.

        Raises:
            EngineError: the rows don't fit, or llama.cpp could not compute them.
        """
        import numpy as np

        starts = range(0, len(states), self.piece)
        parts = [self._decode(states[start : start + self.piece], position + start, sequence) for start in starts]
        return np.concatenate(parts) if parts else np.empty((0, self.info.width), np.float32)

    def _decode(self, states: NDArray[np.float32], position: int, sequence: int) -> NDArray[np.float32]:
        rows = self._context.add(states, position, sequence)
        is_padded = self._exact and len(states) == 1
        if is_padded:  # a later position, which no state depends on
            self._context.add(states, position + 1, sequence)
        if status := self._context.decode():
            raise EngineError(f"model {self._model.path.name}: expected llama.cpp to compute {len(states)} rows, got status {status}")
        if is_padded:
            self.truncate(position + 1, sequence)
        return self._context.states(rows)

    def _states_by(self, piece: int) -> list[bytes]:
        """Run fixed random states through the layers, ``piece`` at a time, and return each result as bytes."""
        import numpy as np

        states = np.random.default_rng(1).standard_normal((max(COMPARED, piece), self.info.width), np.float32)
        self.piece = piece
        found = LayerPart.run(self, states[: self.cells], 0)[:COMPARED]  # not timed
        self.truncate(0)
        return [state.tobytes() for state in found]

    def run_batch(self, runs: Sequence[StateRun]) -> list[NDArray[np.float32]]:
        """Compute rows of several sequences together and return the states after the last layer, an array for each run.

        This takes one decode; in exact mode, each sequence has its own decodes. Before that, each sequence forgets its positions from the
        start of its run on.

        Args:
            runs: at most one for each sequence; together at most ``batch_rows`` rows.

        Raises:
            EngineError: the rows don't fit, or llama.cpp could not compute them. The contents of the sequences are then unknown.
        """
        for run in runs:
            if (end := run.position + len(run.states)) > self.cells:  # llama.cpp accepts them as long as other sequences leave room
                raise EngineError(f"sequence {run.sequence}: expected at most {self.cells} positions, got {end}")
        for run in runs:
            self.truncate(run.position, run.sequence)
        if self._exact:
            return [self.run(run.states, run.position, run.sequence) for run in runs]
        try:
            rows = [self._context.add(run.states, run.position, run.sequence) for run in runs]
        except EngineError:
            self._context.discard()
            raise
        if status := self._context.decode():
            count = sum(len(run.states) for run in runs)
            raise EngineError(f"model {self._model.path.name}: expected llama.cpp to compute {count} rows, got status {status}")
        return [self._context.states(each) for each in rows]

    @property
    def batch_rows(self) -> int:
        """Maximum number of rows that one decode computes."""
        return self._context.rows - self._exact

    @property
    def cells(self) -> int:
        """Number of positions of each sequence."""
        return self._context.cells - self._exact

    @property
    def abort(self) -> AbortFlag:
        """The flag that stops the running decode, from any thread."""
        return self._context.abort

    def use_threads(self, count: int) -> None:
        """From now on, compute with this many threads."""
        self._context.use_threads(count)

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget all positions of a sequence from ``length`` on.

        Raises:
            EngineError: the part's memory can't do that.
        """
        if not self._context.remove(sequence, length):
            raise EngineError(f"model {self._model.path.name}: expected a memory that can be truncated to {length}, got one that can't")

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._context.close()
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MiddlePart(LayerPart):
    """The middle layers, which are all that a split server computes: states in, states out, without a vocabulary."""

    kind = "middle"


class InputPart(LayerPart):
    """The first layers, which run on the device."""

    kind = "input"

    @cached_property
    def _one(self) -> Ewma:
        """Seconds of a row that was run alone."""
        return Ewma(0.0, 1 - MEMORY, first_weight=1.0)

    @cached_property
    def _further(self) -> Ewma:
        """Seconds of each additional row."""
        return Ewma(0.0, 1 - MEMORY, first_weight=1.0)

    @property
    def costs(self) -> RowCosts | None:
        """Seconds by number of rows, as a line through moving averages of past runs; None if no run has had several rows yet."""
        if not self._further.is_measured:
            return None
        further = self._further.value
        one = self._one.value if self._one.is_measured else further
        return RowCosts({1: one, MAX_ROWS: one + (MAX_ROWS - 1) * further})

    def run(self, states: NDArray[np.float32], position: int, sequence: int = 0) -> NDArray[np.float32]:
        """Compute the layers; see ``LayerPart.run``."""
        began = perf_counter()
        found = super().run(states, position, sequence)
        seconds = max(_LEAST, perf_counter() - began)
        if len(states) == 1:
            self._one.record(seconds)
        elif len(states) >= SMALLEST:
            one, others = (self._one.value, len(states) - 1) if self._one.is_measured else (0.0, len(states))
            self._further.record(max(_LEAST, (seconds - one) / others))
        return found


class HeadPart:
    """The final norm, the output matrix, the token embeddings and the tokenizer, which stay on the device.

    Args:
        path: the part's file; ``streamco split`` writes it.
        threads: number of threads that compute.
        repack: see ``LayerPart``.
        exact: give the logits that a whole model gives in exact mode; takes twice the time.

    Attributes:
        info: what the file says about itself.
        model: the tokenizer and the chat template.

    Raises:
        ConfigError, EngineError: see ``LayerPart``.
    """

    def __init__(self, path: str | Path, *, threads: int = 1, repack: bool = False, exact: bool = False) -> None:
        path = Path(path)
        reader = open_gguf(path)
        self.info = _check_kind(describe_part(reader, path), path, "head")
        self._embeddings = EmbeddingTable(path, reader)
        self.model = LlamaModel(path, repack=repack)
        try:
            self._context = HeadContext(self.model, threads=threads, exact=exact)
        except EngineError:
            self.model.close()
            raise

    def embed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the embeddings of token ids, shape (ids, width), which the input layers take.

        Raises:
            EngineError: an id is outside the vocabulary.
        """
        import numpy as np

        return self._embeddings.rows(np.asarray(ids, dtype=np.int64))

    def logits(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits, shape (vocabulary,), after one state of shape (width,).

        With most formats, several rows in one decode cost more than decoding them one after another, and the rows after the first rejected
        draft aren't needed.

        Raises:
            EngineError: llama.cpp could not compute them.
        """
        return self._context.logits(state)

    def verify_greedy(self, states: NDArray[np.float32], drafts: Sequence[int]) -> list[int]:
        """Return the accepted drafts and the model's own next token, for greedy decoding.

        Args:
            states: shape (drafts + 1, width): the deep states of the token before the drafts and of each draft.
            drafts: token ids.

        Raises:
            EngineError: the number of states isn't the number of drafts plus one.
        """
        if len(states) != len(drafts) + 1:
            raise EngineError(f"states: expected {len(drafts) + 1} rows for {len(drafts)} drafts, got {len(states)}")
        tokens: list[int] = []
        for state, draft in zip(states, [*drafts, -1], strict=True):
            tokens.append(int(self.logits(state).argmax()))
            if tokens[-1] != draft:
                break
        return tokens

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._context.close()
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_kind(info: PartInfo, path: Path, kind: PartKind) -> PartInfo:
    if info.kind != kind:
        raise ConfigError(f"model {path}: expected the {kind} part of a model, got its {info.kind} part")
    return info
