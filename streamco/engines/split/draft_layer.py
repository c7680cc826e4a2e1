"""The draft layer of a split model, which guesses the output of the server's layers (HAT, section 3.4). Belongs to one thread.

For each token, it reads the deep state of the token before and the shallow state of this one. The device has both for every verified
token: one came from the server, and the other was sent there. For the tokens of a draft, the layer's own guesses take the place of deep
states. So after a verdict, ``extend`` reads the verified tokens again, with their true deep states.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from streamco._native import top_k
from streamco.engines.llamacpp.draft_model import draft_layer_folder, read_draft_weights, write_draft_model
from streamco.engines.llamacpp.model_parts import describe_part, field_of, open_gguf, read_part, tensors_of
from streamco.engines.llamacpp.state_context import LayerModel
from streamco.engines.split.draft_context import DraftContext
from streamco.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DraftPart", "DraftStep"]

CANDIDATES = 8
"""Number of candidate tokens in a guess."""

_FEW_ROWS = 17  # of a round, with the longest draft and the token before it
_FORMAT = "1"  # of the files in the cache


class DraftStep(Struct, frozen=True):
    """A guess of the next token.

    Args:
        ids: the likeliest token ids, best first.
        probabilities: probability of each within the drafted vocabulary.
        deep: the guessed deep state, which the next step takes, shape (width,).
    """

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    deep: NDArray[np.float32]


class DraftPart:
    """A trained draft layer, used with the parts of its model.

    Args:
        weights: the trained weights' file.
        input_part, head_part: the device's parts of the model.
        vocabulary: fingerprint of the model's vocabulary; None to skip the check.
        cells: number of positions of each sequence.
        sequences: number of sequences, with ids from 0.
        threads: number of threads that compute.

    Raises:
        ConfigError: the weights are for a different model or number of input layers.
        EngineError: a file isn't a part of a model, or llama.cpp can't load the layer.
    """

    def __init__(
        self,
        weights: str | Path,
        *,
        input_part: str | Path,
        head_part: str | Path,
        vocabulary: str | None = None,
        cells: int = 2048,
        sequences: int = 1,
        threads: int = 1,
    ) -> None:
        weights, input_part, head_part = Path(weights), Path(input_part), Path(head_part)
        info = read_part(input_part)
        found = read_draft_weights(weights)
        self.meta = found.meta
        expected, got = (info.width, info.layers), (found.meta.width, found.meta.input_layers)
        if expected != got or vocabulary not in {None, found.meta.vocabulary}:
            raise ConfigError(
                f"draft layer {weights.name}: expected weights for {info.layers} input layers of width {info.width} and the vocabulary "
                f"{vocabulary or 'of the model'}, got some for {found.meta.input_layers} of width {found.meta.width} of {found.meta.model}"
            )
        self._rows, self._fuse = found.rows, found.fuse
        head = open_gguf(head_part)
        self._norm, self._epsilon = _final_norm(head)
        mark = sha256("|".join((_FORMAT, describe_part(head, head_part).source, sha256(weights.read_bytes()).hexdigest())).encode())
        path = draft_layer_folder() / f"{weights.stem}.{mark.hexdigest()[:16]}.gguf"
        if not path.exists():
            write_draft_model(found, input_part=open_gguf(input_part), head_part=head, target=path)
        self._model = LayerModel(path)
        try:
            self._context = DraftContext(self._model, vocabulary=len(self._rows), cells=cells, sequences=sequences, threads=threads)
        except EngineError:
            self._model.close()
            raise

    @property
    def vocabulary(self) -> frozenset[int]:
        """Token ids that drafts may hold."""
        return frozenset(self._rows.tolist())

    def normed(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply the model's final norm to raw deep states, as a server sends them; the result is what ``step`` and ``extend`` take."""
        return _rms(states, self._epsilon) * self._norm

    def step(self, deep: NDArray[np.float32], shallow: NDArray[np.float32], position: int, sequence: int = 0) -> DraftStep:
        """Read one token and guess the next one.

        Args:
            deep: state of the token before, after the final norm, shape (width,): a verified one or the last guess; zeros if not known.
            shallow: state of this token after the input layers, shape (width,).
            position: this token's position, from 0; later positions must be empty.
            sequence: sequence id.

        Raises:
            EngineError: the position doesn't fit, or llama.cpp could not compute it.
        """
        logits, made = self._context.step(self._joined(deep[None], shallow[None])[0], position, sequence)
        best = top_k(logits, CANDIDATES)
        return DraftStep(tuple(int(self._rows[row]) for row, _ in best), tuple(share for _, share in best), made)

    def extend(self, deep: NDArray[np.float32], shallow: NDArray[np.float32], position: int, sequence: int = 0) -> None:
        """Read tokens without making a guess, all in one pass. Anything read at these positions before is forgotten.

        Args:
            deep: states of the tokens before, after the final norm, shape (tokens, width); zeros where not known, as in a prompt.
            shallow: states of these tokens after the input layers, shape (tokens, width).
            position: position of the first token, at most the length so far.
            sequence: sequence id.

        Raises:
            EngineError: the positions don't fit, or llama.cpp could not compute them.
        """
        self.truncate(position, sequence)
        self._context.read(self._joined(deep, shallow), position, sequence)

    def _joined(self, deep: NDArray[np.float32], shallow: NDArray[np.float32]) -> NDArray[np.float32]:
        import numpy as np

        given = np.concatenate([_rms(deep, self._epsilon), _rms(shallow, self._epsilon)], axis=1)
        joined: NDArray[np.float32]
        # BLAS shares even one row among threads, and waits for threads that a busy machine doesn't run: 20 ms for 16 rows instead of 1.7.
        joined = np.einsum("ri,oi->ro", given, self._fuse) if len(given) <= _FEW_ROWS else given @ self._fuse.T
        return joined

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget all positions of a sequence from ``length`` on."""
        self._context.remove(sequence, length)

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._context.close()
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rms(states: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    import numpy as np

    scaled: NDArray[np.float32] = states / np.sqrt(np.mean(np.square(states), axis=-1, keepdims=True) + np.float32(epsilon))
    return scaled


def _final_norm(reader: Any) -> tuple[NDArray[np.float32], float]:
    """Return the weights of the model's final norm, and its epsilon."""
    import numpy as np

    architecture = str(field_of(reader, "general.architecture"))
    weights = np.array(tensors_of(reader)["output_norm.weight"].data, dtype=np.float32)
    return weights, float(field_of(reader, f"{architecture}.attention.layer_norm_rms_epsilon"))
