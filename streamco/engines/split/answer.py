"""One answer of a split model on the device: its tokens, the shallow states that it keeps, and the verdicts on its drafts.

The server's states are read one row at a time: each gives the model's own next token, by the same sampler that a whole model would have. A
draft is right if it is that token. So the text is the one that the whole model would have written with these draws, drafts or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from streamco.core.split.events import (
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionLost,
    SessionReady,
    SplitEvent,
    StatesArrived,
    Truncated,
)
from streamco.core.split.machine import SplitMachine
from streamco.engines.generation import RunningGeneration
from streamco.engines.split.drafts import AnswerDrafts
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.tally import SplitTally, SplitTraffic
from streamco.errors import EngineError
from streamco.policies.chunking import PromptPlan
from streamco.profiles.row_costs import RowCosts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["DeepStates", "LinkEvent", "LinkFailed", "LinkSession", "ProposeDrafts", "SplitAnswer", "SplitGeneration", "SplitLink"]

ProposeDrafts = Callable[[Sequence[int]], Sequence[int]]
"""Returns likely next tokens from the tokens so far; an empty sequence: none."""


class DeepStates(Struct, frozen=True, eq=False):
    """The server's answer to the oldest unanswered rows of an attempt."""

    attempt: int
    states: States


class LinkFailed(Struct, frozen=True):
    """No server can continue the answer."""

    error: Exception


LinkEvent = SessionReady | SessionLost | DeepStates | LinkFailed


class SplitGeneration(RunningGeneration):
    """A generation of a split model."""

    tally: SplitTally | None = None
    """What it has sent, received and drafted so far; None: it waits for its turn."""


class LinkSession(Protocol):
    """One answer's session at the servers. Every thread may call it; it never blocks."""

    @property
    def traffic(self) -> SplitTraffic:
        """What it has sent and received so far."""
        ...

    def open(self, command: OpenSession) -> None:
        """Open or resume a session; answered with an event."""
        ...

    def send(self, command: SendRows, states: States) -> None:
        """Send rows; without effect if their attempt is over."""
        ...

    def close(self) -> None:
        """End the session; no event comes after that."""
        ...


class SplitLink(Protocol):
    """The servers of a split model."""

    @property
    def max_rows(self) -> int:
        """Most rows of a frame."""
        ...

    @property
    def max_positions(self) -> int:
        """Most positions of a session: prompt and answer together."""
        ...

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        """Return how a prompt of which ``rows`` are still to be sent is cut.

        Args:
            rows: number of rows, at least 1.
            computed: number of first ones of them that the device has computed.
            input_costs: seconds of the device's own layers, by rows; None: not known.
        """
        ...

    def row_seconds(self, rows: int) -> float:
        """Return by how many seconds a trip of ``rows`` rows is longer than one of a row fewer; 0: not known."""
        ...

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> LinkSession:
        """Return a session for one answer of at most ``reserve`` tokens; ``emit`` is called from another thread."""
        ...


class SplitAnswer:
    """One answer. All methods belong to the engine's thread.

    Args:
        generation: the request; it draws the tokens and makes text of them.
        parts: the device's input layers and head.
        sequence: sequence id in the input layers.
        link: the servers.
        emit: called with the link's events from another thread.
        propose: proposes drafts from the tokens alone, if there are no ``drafts``.
        drafts: the draft layer's drafts; None: there is no draft layer.
        reserve: most tokens of prompt and answer.
    """

    def __init__(
        self,
        generation: SplitGeneration,
        parts: tuple[InputPart, HeadPart],
        *,
        sequence: int,
        link: SplitLink,
        emit: Callable[[LinkEvent], None],
        propose: ProposeDrafts,
        drafts: AnswerDrafts | None = None,
        reserve: int,
    ) -> None:
        self.generation = generation
        self.sequence = sequence
        self.computing: ComputeRows | None = None
        self._input, self._head = parts
        self._link = link
        self._propose = propose
        self._layer = drafts
        self._most = reserve
        self._tokens = list(generation.prompt)
        self._drafts: list[int] = []
        self._shallow: list[States] = []  # one row each
        self._machine = SplitMachine(plan=self._plan, max_rows=link.max_rows)
        self._session = link.session(emit, reserve)
        self._tally = generation.tally = SplitTally(self._machine.counts, self._session.traffic)
        if drafts is not None:
            self._tally.branches, self._tally.lookups = drafts.counts, drafts.lookups
        self._machine.start(now=monotonic())
        self._put(RowsAdded(len(self._tokens), 1))

    def receive(self, event: LinkEvent) -> None:
        """Handle an event of the link."""
        match event:
            case LinkFailed():
                raise event.error
            case DeepStates():
                was_waiting = self._machine.is_waiting
                self._put(StatesArrived(event.attempt))
                if was_waiting and not self._machine.is_waiting:
                    self._read(event.states)
            case _:
                if isinstance(event, SessionLost) and self._layer is not None:
                    self._layer.record_loss()
                self._put(event)

    def compute(self) -> None:
        """Compute the rows that are asked for."""
        command = self.computing
        if command is None:
            return
        self.computing = None
        embeddings = self._head.embed(self._tokens[command.start : command.stop])
        self._shallow.extend(self._input.run(embeddings, command.start, self.sequence))
        self._put(RowsComputed(command.stop))

    def resume(self) -> None:
        """Go on after the reader has taken what there was."""
        if not self._machine.is_waiting and not self.generation.is_done and not self.generation.is_parked:
            self._go_on()

    @property
    def can_predraft(self) -> bool:
        """True if a verdict is awaited, and there is time to draft along those that may come."""
        return self._layer is not None and self._machine.is_waiting and self._layer.can_predraft

    def predraft(self) -> None:
        """Draft one step on along a verdict that may come."""
        if self._layer is not None:
            self._layer.predraft()

    def close(self) -> None:
        """End the session, and free the memory of the input layers and of the draft layer."""
        self._session.close()
        if self._layer is not None:
            self._layer.close()
        self._input.truncate(0, self.sequence)

    def _plan(self, rows: int, computed: int) -> PromptPlan:
        return self._link.plan(rows, computed=computed, input_costs=self._input.costs)

    def _put(self, event: SplitEvent) -> None:
        self._machine.receive(event, now=monotonic())
        for command in self._machine.take_commands():
            if isinstance(command, ComputeRows):
                self.computing = command
            elif isinstance(command, OpenSession):
                self._session.open(command)
            else:
                self._session.send(command, self._rows(command))

    def _rows(self, command: SendRows) -> States:
        import numpy as np

        return np.stack(self._shallow[command.start : command.stop])

    def _read(self, states: States) -> None:
        """Draw the next tokens from the states after the last token and after each draft, up to the first draft that is wrong."""
        drafts, self._drafts = self._drafts, []
        self._tally.drafted += len(drafts)
        if self._layer is not None:
            self._layer.record_arrival()
        if len(states) != len(drafts) + 1:
            raise EngineError(f"states: expected {len(drafts) + 1} rows, got {len(states)}")
        if self.generation.request.prefill_only:
            self.generation.end_prefill()
            return
        accepted = 0
        for state in states:
            token = self._draw(state)
            is_right = accepted < len(drafts) and token == drafts[accepted]
            self._tally.accepted += is_right
            if self.generation.is_done:
                if self._layer is not None:
                    self._layer.record_accepted(accepted + is_right)
                return
            if not is_right:
                break
            accepted += 1
        if accepted < len(drafts):
            self._drop(len(drafts) - accepted)
        if self._layer is not None:
            self._record(self._layer, states[: accepted + 1])
        self.resume()

    def _draw(self, state: States) -> int | None:
        """Return the model's next token after a deep state; None: the answer has ended before it."""
        made = self.generation.made
        self.generation.accept(self._head.logits(state))
        return self.generation.next_token if self.generation.made > made else None

    def _record(self, layer: AnswerDrafts, deep: States) -> None:
        """Let the draft layer read what was verified: the prompt the first time, then a token and its accepted drafts."""
        import numpy as np

        start = len(self._tokens) - len(deep) if layer.has_prompt else 0
        layer.record(np.stack(self._shallow[start:]), deep, start)

    def _drop(self, count: int) -> None:
        del self._tokens[-count:], self._shallow[-count:]
        if self._layer is None:  # which else has the input layers read what it needs
            self._input.truncate(len(self._tokens), self.sequence)
        self._put(Truncated(len(self._tokens)))

    def _go_on(self) -> None:
        token = self.generation.next_token
        assert token is not None, "an answer that goes on has a token to read"
        self._tokens.append(token)
        if self._layer is None:
            self._drafts = list(self._propose(self._tokens))
        else:
            self._drafts, rows = self._layer.make(self._tokens, self._most - len(self._tokens))
            self._shallow += rows
            self._put(RowsComputed(len(self._tokens) + len(self._drafts)))
        self._tokens += self._drafts
        self._put(RowsAdded(len(self._tokens), 1 + len(self._drafts)))
