"""What the driver of a split answer stands between: the engine on the device, and the link to the servers."""

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
    """The engine with the device's parts (``streamco.engines.split.engine.SplitEngine``). Every thread may call it; it never blocks."""

    @property
    def input_costs(self) -> RowCosts | None:
        """Seconds of the input layers by rows; None: not measured yet."""
        ...

    def submit(self, request: GenerationRequest, wake: Callable[[], None], owner: AnswerOwner | None = None) -> Generation:
        """Queue a generation."""
        ...

    def compute(self, generation: SplitGeneration, rows: ComputeRows) -> None:
        """Compute shallow states; the owner is told ``RowsComputed``."""
        ...

    def read(self, generation: SplitGeneration, states: NDArray[np.float32]) -> None:
        """Draw tokens from the deep states of the last rows; the owner is told ``Truncated`` and ``RowsAdded``."""
        ...

    def record_loss(self, generation: SplitGeneration) -> None:
        """Record that a session was lost."""
        ...

    def fail(self, generation: SplitGeneration, error: Exception) -> None:
        """End a generation with an error."""
        ...


class DeepStates(StatesArrived, frozen=True, eq=False):
    """The server's answer to the oldest unanswered rows of an attempt."""

    states: NDArray[np.float32]


class LinkFailed(Struct, frozen=True):
    """No server can continue the answer."""

    error: Exception


LinkEvent = SessionReady | SessionLost | DeepStates | LinkFailed


class LinkSession(Protocol):
    """One answer's session at the servers, on the event loop."""

    @property
    def traffic(self) -> SplitTraffic:
        """What it has sent and received so far."""
        ...

    def open(self, command: OpenSession) -> None:
        """Open or resume a session; answered with an event."""
        ...

    def send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        """Send rows; without effect if their attempt is over."""
        ...

    def close(self) -> None:
        """End the session; no event comes after that. Idempotent."""
        ...


class SplitLink(ServerFacts, Protocol):
    """The servers of a split model."""

    @property
    def max_rows(self) -> int:
        """Most rows of a frame."""
        ...

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        """Return how a prompt of which ``rows`` are still to be sent is cut.

        Args:
            rows: number of rows, at least 1.
            computed: number of first ones of them that the device has computed.
            input_costs: seconds of the device's own layers, by rows; None: not known.
        """
        ...

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> LinkSession:
        """Return a session for one answer of at most ``reserve`` tokens; ``emit`` is called on the event loop."""
        ...
