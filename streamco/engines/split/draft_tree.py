"""Continuations of one answer on the device: the shallow state and the guess after each, computed on request.

While a verdict is out, the device drafts along several continuations (HAT, section 3.5). All of them share one sequence in the memories of
the input layers and of the draft layer, which hold one continuation at a time. To switch from one to another, their common prefix stays,
and the rest is computed again. So no branch needs separate memory, and it is always clear which tokens a memory holds. Belongs to the
engine's thread.

A path is a continuation: token ids starting with the answer's last token, which is the first that the layers have not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamco.engines.split.draft_layer import DraftPart, DraftStep
from streamco.engines.split.layers import HeadPart, InputPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["DraftTree", "Continuation"]

Continuation = tuple[int, ...]


class _Unread(NamedTuple):
    """Verified tokens that the draft layer has not read: the deep states before them, their shallow states, and the first position."""

    before: States
    shallow: States
    position: int


class DraftTree:
    """The continuations of one answer.

    Args:
        layer: the draft layer.
        parts: the device's input layers and head.
        sequence: sequence id in the layer and in the input layers.
    """

    def __init__(self, layer: DraftPart, parts: tuple[InputPart, HeadPart], *, sequence: int) -> None:
        self._layer = layer
        self._input, self._head = parts
        self._sequence = sequence
        self._position = 0  # of a path's first token
        self._last: States | None = None  # deep state of the token before it, after the final norm
        self._rows: dict[Continuation, States] = {}
        self._guesses: dict[Continuation, DraftStep] = {}
        self._verified: list[int] = []  # tokens before a path that may be missing in the input layers' memory
        self._held: list[int] = []  # tokens that it holds, beginning with the first of these
        self._read: Continuation = ()  # the part of a path that the draft layer's memory holds
        self._unread: _Unread | None = None

    def start(self, position: int) -> None:
        """Begin after the input layers have read the prompt of ``position`` tokens."""
        self._position = position

    # Verified tokens

    def record(self, shallow: States, deep: States, position: int) -> None:
        """Take verified tokens, which the draft layer reads before its next guess.

        Args:
            shallow, deep, position: see ``AnswerDrafts.record``.
        """
        import numpy as np

        self._read_verified()
        normed = self._layer.normed(deep)
        before = np.zeros_like(shallow)
        if len(deep) > 1:
            before[1 - len(deep) :] = normed[:-1]
        if self._last is not None and len(deep) == len(shallow):
            before[0] = self._last
        self._unread, self._last = _Unread(before, shallow, position), normed[-1]

    def advance(self, path: Continuation) -> None:
        """Move to the end of a verified path. Rows and guesses of its continuations are kept, and all others are forgotten."""
        length = len(path)
        self._rows = {each[length:]: row for each, row in self._rows.items() if each[:length] == path and len(each) > length}
        self._guesses = {each[length:]: step for each, step in self._guesses.items() if each[:length] == path and len(each) > length}
        self._position += length
        self._read = ()
        self._verified += path
        common = _common(self._verified, self._held)
        del self._verified[:common], self._held[:common]

    def _read_verified(self) -> None:
        if self._unread is not None:
            self._layer.extend(*self._unread, self._sequence)
            self._unread = None

    # Continuations

    @property
    def rows(self) -> int:
        """Number of shallow states that are kept."""
        return len(self._rows)

    def has_row(self, path: Continuation) -> bool:
        """Return True if the shallow state of a path's last token is known."""
        return path in self._rows

    def has_guess(self, path: Continuation) -> bool:
        """Return True if the token after a path was guessed."""
        return path in self._guesses

    def forget_guesses(self) -> None:
        """Forget all guesses, because verified deep states give better ones."""
        self._guesses.clear()

    def row(self, path: Continuation) -> States:
        """Return the shallow state of a path's last token, shape (width,)."""
        found = self._rows.get(path)
        if found is None:
            self._hold(path[:-1])
            found = self._rows[path] = self._compute(path[-1])
        return found

    def guess(self, path: Continuation) -> DraftStep:
        """Return a guess of the token after a path. There must be a verified deep state."""
        found = self._guesses.get(path)
        if found is None:
            found = self._guesses[path] = self._step(path)
        return found

    def _hold(self, path: Continuation) -> None:
        """Make sure that the input layers' memory holds exactly a path."""
        wanted = [*self._verified, *path]
        common = _common(wanted, self._held)
        if common < len(self._held):
            del self._held[common:]
            self._input.truncate(self._base + common, self._sequence)
        for token in wanted[common:]:
            self._compute(token)

    @property
    def _base(self) -> int:
        """Position of the first token of ``_held``."""
        return self._position - len(self._verified)

    def _compute(self, token: int) -> States:
        # One row at a time, because with 16-bit weights several rows at once round differently, and the text might depend on the drafts.
        state: States = self._input.run(self._head.embed([token]), self._base + len(self._held), self._sequence)[0]
        self._held.append(token)
        return state

    def _step(self, path: Continuation) -> DraftStep:
        """Have the draft layer read the part of a path that it doesn't hold yet, and return its last guess."""
        before = self._before(path)  # may read other paths
        self._read_verified()
        common = _common(self._read, path[:-1])
        if common < len(self._read):
            self._layer.truncate(self._position + common, self._sequence)
            self._read = path[:common]
        for length in range(common + 1, len(path)):
            self._read_next(path[:length], self._before(path[:length]))
        return self._read_next(path, before)

    def _before(self, path: Continuation) -> States:
        """Return the deep state before a path's last token: a verified one, or a guess."""
        if len(path) > 1:
            return self.guess(path[:-1]).deep
        if self._last is None:
            raise AssertionError("guesses begin after a verified token")
        return self._last

    def _read_next(self, path: Continuation, before: States) -> DraftStep:
        step = self._layer.step(before, self.row(path), self._position + len(path) - 1, self._sequence)
        self._read = path
        return step

    def close(self) -> None:
        """Free the draft layer's memory of this answer."""
        self._layer.truncate(0, self._sequence)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
