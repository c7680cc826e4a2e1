"""The interfaces that the driver of a split answer connects: the engine on the device, and the link to the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from streamco.core.split.events import ComputeRows, OpenSession, SendRows, SessionLost, SessionReady, StatesArrived
from streamco.engines.base import Generation, GenerationRequest
from streamco.engines.split.answer import AnswerOwner, SplitGeneration
from streamco.engines.split.engine import ServerFacts
from streamco.engines.split.tally import SplitTraffic
from streamco.policies.chunking import PromptPlan
from streamco.profiles.row_costs import RowCosts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["AnswerEngine", "DeepStates", "LinkEvent", "LinkFailed", "LinkSession", "SplitLink"]


class AnswerEngine(Protocol):
    """The engine with the device's parts (``streamco.engines.split.engine.SplitEngine``). Thread-safe, never blocks."""

    @property
    def input_costs(self) -> RowCosts | None:
        """Seconds that the input layers take, by number of rows, or None if not measured yet."""
        ...

    def submit(self, request: GenerationRequest, wake: Callable[[], None], owner: AnswerOwner | None = None) -> Generation:
        """Queue a generation."""
        ...

    def compute(self, generation: SplitGeneration, rows: ComputeRows) -> None:
        """Compute the shallow states of these rows; the owner gets ``RowsComputed``."""
        ...

    def read(self, generation: SplitGeneration, states: NDArray[np.float32]) -> None:
        """Draw tokens from the deep states of the last rows; the owner gets ``Truncated`` and ``RowsAdded``."""
        ...

    def record_loss(self, generation: SplitGeneration) -> None:
        """Record that a session was lost."""
        ...

    def fail(self, generation: SplitGeneration, error: Exception) -> None:
        """End a generation with an error."""
        ...


class DeepStates(StatesArrived, frozen=True, eq=False):
    """The server's reply to the oldest unanswered rows of an attempt."""

    states: NDArray[np.float32]


class LinkFailed(Struct, frozen=True):
    """No server can continue the answer."""

    error: Exception


LinkEvent = SessionReady | SessionLost | DeepStates | LinkFailed


class LinkSession(Protocol):
    """One answer's session with the servers, on the event loop."""

    @property
    def traffic(self) -> SplitTraffic:
        """What the session has sent and received so far."""
        ...

    def open(self, command: OpenSession) -> None:
        """Open or resume a session; the result arrives as an event."""
        ...

    def send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        """Send rows; has no effect if their attempt is over."""
        ...

    def close(self) -> None:
        """End the session; no event follows. Idempotent."""
        ...


class SplitLink(ServerFacts, Protocol):
    """The servers of a split model."""

    @property
    def max_rows(self) -> int:
        """Maximum number of rows in a frame."""
        ...

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        """Return how to cut a prompt into chunks if ``rows`` of it are still to be sent.

        Args:
            rows: number of rows, at least 1.
            computed: how many of these rows, counted from the first, the device has already computed.
            input_costs: seconds that the device's own layers take, by number of rows, or None if not known.
        """
        ...

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> LinkSession:
        """Return a session for one answer of at most ``reserve`` tokens; ``emit`` is called on the event loop."""
        ...
