"""Drafts of one answer by the draft layer, which follows the answer's verified tokens. Belongs to the engine's thread."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from streamco.engines.llamacpp.draft_model import read_draft_meta
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.draft_lengths import LONGEST, DraftLengths
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.errors import ConfigError
from streamco.policies.window import Confident, Static, Threshold, WindowPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["AnswerDrafts", "DraftOptions", "packaged_draft_layer"]


class DraftOptions(Struct, frozen=True):
    """How a split model drafts.

    Args:
        weights: the draft layer's weights.
        window: tokens of a draft: a number from 1 to 16, or a policy. "confident" ends each draft when its next token isn't worth its time,
            by measured times and acceptance. "threshold" ends it with the first token that is less than 0.6 probable (HAT, equation 5).
            Others, or other numbers of theirs: a ``streamco.policies.window.WindowPolicy``.

    Raises:
        ConfigError: a number is out of range, or there is no such policy.
    """

    weights: Path
    window: int | Literal["confident", "threshold"] | WindowPolicy = "confident"

    def __post_init__(self) -> None:
        _ = self.policy

    @property
    def policy(self) -> WindowPolicy:
        """The window policy."""
        match self.window:
            case bool():
                pass
            case int() if 1 <= self.window <= LONGEST:
                return Static(self.window)
            case "confident":
                return Confident()
            case "threshold":
                return Threshold()
            case _ if hasattr(self.window, "propose") and hasattr(self.window, "first"):
                return cast(WindowPolicy, self.window)
        raise ConfigError(f'drafts: expected a window of 1 to {LONGEST}, "confident", "threshold" or a window policy, got {self.window!r}')


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
        lengths: says how long drafts are; one for all answers of an engine.
    """

    def __init__(self, layer: DraftPart, parts: tuple[InputPart, HeadPart], *, sequence: int, lengths: DraftLengths) -> None:
        self._layer = layer
        self._input, self._head = parts
        self._sequence = sequence
        self._lengths = lengths
        self._last: States | None = None  # deep state of the last verified token, after the final norm
        self._confidences: list[float] = []  # of the draft that is out
        self._began: float | None = None  # time at which its round began; None: its time says nothing

    @property
    def has_prompt(self) -> bool:
        """True if the prompt was read."""
        return self._last is not None

    def record(self, shallow: States, deep: States, position: int) -> None:
        """Read verified tokens: those of the prompt, later a token and its accepted draft tokens.

        Args:
            shallow: their states after the input layers, shape (tokens, width).
            deep: the server's states of the last of them, shape (tokens or fewer, width). Those of a prompt are not all sent.
            position: position of the first token.
        """
        import numpy as np

        if self.has_prompt:
            self._lengths.record_verdict(self._confidences, len(deep) - 1)
        normed = self._layer.normed(deep)
        before = np.zeros_like(shallow)
        if len(deep) > 1:
            before[1 - len(deep) :] = normed[:-1]
        if self._last is not None and len(deep) == len(shallow):
            before[0] = self._last
        self._layer.extend(before, shallow, position, self._sequence)
        self._last = normed[-1]
        if self._began is not None:
            self._lengths.record_round(len(deep), monotonic() - self._began)

    def record_loss(self) -> None:
        """Record that a session was lost in this round, so that the time of the round says nothing of drafts."""
        self._began = None

    def make(self, token: int, position: int, most: int) -> tuple[list[int], list[States]]:
        """Return a draft that follows a token, and the shallow states of the token and of the draft.

        Args:
            token: the answer's last token, which the input layers have not read.
            position: its position.
            most: most tokens of the draft.
        """
        self._began, self._confidences = monotonic(), []
        rows, draft = [self._shallow(token, position)], list[int]()
        before, window = self._last, min(most, self._lengths.window())
        while before is not None and len(draft) < window:
            began = monotonic()
            step = self._layer.step(before, rows[-1], position + len(draft), self._sequence)
            draft.append(step.ids[0])
            rows.append(self._shallow(draft[-1], position + len(draft)))
            self._lengths.record_step(monotonic() - began)
            self._confidences.append(step.probabilities[0])
            before = step.deep
            if self._lengths.should_end(self._confidences):
                break
        return draft, rows

    def _shallow(self, token: int, position: int) -> States:
        state: States = self._input.run(self._head.embed([token]), position, self._sequence)[0]
        return state

    def close(self) -> None:
        """Free the layer's memory of this answer."""
        self._layer.truncate(0, self._sequence)
