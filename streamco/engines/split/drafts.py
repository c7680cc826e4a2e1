"""Drafts of one answer by the draft layer, which follows the answer's verified tokens. Belongs to the engine's thread."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco.engines.llamacpp.draft_model import read_draft_meta
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["AnswerDrafts", "DraftOptions", "packaged_draft_layer"]


class DraftOptions(Struct, frozen=True):
    """How a split model drafts.

    Args:
        weights: the draft layer's weights.
        window: most tokens of a draft, 1 or more.
        threshold: the first token with a smaller probability is the draft's last (HAT, equation 5); 0: only ``window`` ends a draft.

    Raises:
        ConfigError: a number is out of range.
    """

    weights: Path
    window: int = 4
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 16 or not 0 <= self.threshold <= 1:
            raise ConfigError(f"drafts: expected a window of 1 to 16 and a threshold of 0 to 1, got {self.window} and {self.threshold}")


def packaged_draft_layer(vocabulary: str, width: int, input_layers: int) -> Path | None:
    """Return the weights in this package that were trained for such a model; None: there are none."""
    for entry in files("streamco.engines.split").joinpath("draft_layers").iterdir():
        if entry.name.endswith(".npz"):
            with as_file(entry) as path:
                meta = read_draft_meta(path)
                if (meta.vocabulary, meta.width, meta.input_layers) == (vocabulary, width, input_layers):
                    return path
    return None


class AnswerDrafts:
    """The drafts of one answer.

    Args:
        layer: the draft layer.
        parts: the device's input layers and head.
        sequence: sequence id in the layer and in the input layers.
        options: lengths of drafts.
    """

    def __init__(self, layer: DraftPart, parts: tuple[InputPart, HeadPart], *, sequence: int, options: DraftOptions) -> None:
        self._layer = layer
        self._input, self._head = parts
        self._sequence = sequence
        self._options = options
        self._last: States | None = None  # deep state of the last verified token, after the final norm

    @property
    def has_prompt(self) -> bool:
        """True if the prompt was read."""
        return self._last is not None

    def record(self, shallow: States, deep: States, position: int) -> None:
        """Read verified tokens.

        Args:
            shallow: their states after the input layers, shape (tokens, width).
            deep: the server's states of the last of them, shape (tokens or fewer, width). Those of a prompt are not all sent.
            position: position of the first token.
        """
        import numpy as np

        normed = self._layer.normed(deep)
        before = np.zeros_like(shallow)
        if len(deep) > 1:
            before[1 - len(deep) :] = normed[:-1]
        if self._last is not None and len(deep) == len(shallow):
            before[0] = self._last
        self._layer.extend(before, shallow, position, self._sequence)
        self._last = normed[-1]

    def make(self, token: int, position: int, most: int) -> tuple[list[int], list[States]]:
        """Return a draft that follows a token, and the shallow states of the token and of the draft.

        Args:
            token: the answer's last token, which the input layers have not read.
            position: its position.
            most: most tokens of the draft.
        """
        rows, draft = [self._shallow(token, position)], list[int]()
        before = self._last
        while before is not None and len(draft) < min(most, self._options.window):
            step = self._layer.step(before, rows[-1], position + len(draft), self._sequence)
            draft.append(step.ids[0])
            rows.append(self._shallow(draft[-1], position + len(draft)))
            before = step.deep
            if step.probabilities[0] < self._options.threshold:
                break
        return draft, rows

    def _shallow(self, token: int, position: int) -> States:
        state: States = self._input.run(self._head.embed([token]), position, self._sequence)[0]
        return state

    def close(self) -> None:
        """Free the layer's memory of this answer."""
        self._layer.truncate(0, self._sequence)
