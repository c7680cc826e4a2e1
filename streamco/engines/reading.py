"""What a verifier needs beside a model's own predictions: rows read by somebody else's rule, and ids that are only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from streamco.engines.base import Prediction
from streamco.engines.tasks import Owner, Task, check_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Reading", "RowReader"]


class RowReader(Protocol):
    """Reads the rows of one verification in place of the engine."""

    def judge(self, logits: NDArray[np.float32], position: int, token: int | None, /) -> Prediction:
        """What a row says; called from the engine's thread with each row in turn, must be quick.

        Args:
            logits: the model's, shape (vocabulary,); the next batch overwrites them.
            position: of the token that is predicted.
            token: what the draft has there; None: nothing.

        Raises:
            EngineError: the row says nothing; the task ends with it.
        """
        ...


class Reading(Task):
    """More ids, decoded to the last one, in the batches of verifications."""

    wants_logits = False

    def __init__(self, owner: Owner, wake: Callable[[], None], ids: list[int]) -> None:
        super().__init__(owner, wake, room=1)
        self._ids = ids

    def plan(self, context: int) -> None:
        """All ids."""
        self.whole = self.prompt = self.owner.ids + self._ids
        check_length("sequence", self.whole, context)
        self.keep = len(self.whole)

    def begin(self) -> None:
        """Done at once where nothing is left to be decoded."""
        super().begin()
        if self.missing <= 0:
            self.finish("done")

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """The ids are the sequence's when it is done."""
        if self.ended is None and reason == "done":
            self.owner.ids = self.whole
        super().finish(reason, error=error)
