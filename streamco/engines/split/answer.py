"""The device's work on one answer of a split model: its tokens, the shallow states that it keeps, and the verdicts on its drafts.

The server's states are read one row at a time: each gives the model's own next token, drawn by the same sampler that a whole model would
use. A draft token is right if it equals that token. So the text is the same as the whole model would have written with these draws, with or
without drafts.

The answer's machine (``core.split.machine``), which runs elsewhere, decides which rows are computed and sent, and when. The machine's owner
is told about each event here, and then requests the next rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from streamco.core.split.events import ComputeRows, RowsAdded, RowsComputed, SplitEvent, Truncated
from streamco.engines.base import GenerationRequest
from streamco.engines.consumer import EngineSignals
from streamco.engines.generation import RunningGeneration
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.split.drafts import AnswerDrafts
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.tally import SplitTally
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["AnswerOwner", "ProposeDrafts", "SplitAnswer", "SplitGeneration"]

ProposeDrafts = Callable[[Sequence[int]], Sequence[int]]
"""Returns likely next tokens, given the tokens so far; an empty sequence if it proposes none."""


class AnswerOwner(Protocol):
    """The object that runs an answer's machine.

    Attributes:
        tally: what the answer has sent, received and drafted; the engine counts drafts in it.
        generation: set by the engine before anything happens to the answer.
    """

    tally: SplitTally
    generation: SplitGeneration | None

    def tell(self, event: SplitEvent) -> None:
        """Take an event for the machine; called from the engine's thread, in order, and never blocks."""
        ...


class SplitGeneration(RunningGeneration):
    """A generation of a split model.

    Args:
        request, model, limit, buffered, wake, engine: see ``RunningGeneration``.
        owner: runs the machine of the answer.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: LlamaModel,
        *,
        limit: int,
        buffered: int,
        wake: Callable[[], None],
        engine: EngineSignals,
        owner: AnswerOwner,
    ) -> None:
        super().__init__(request, model, limit=limit, buffered=buffered, wake=wake, engine=engine)
        self.owner = owner
        self.shallow: list[States] = []  # of the tokens so far, one row for each; written by the engine's thread

    def rows(self, start: int, stop: int) -> States:
        """Return the shallow states of rows that the machine knows about, shape (rows, width). Any thread may call it.

        While the machine awaits deep states, the engine's thread changes none of the rows until it has received them.
        """
        import numpy as np

        return np.stack(self.shallow[start:stop])


class SplitAnswer:
    """The work on one answer. All methods belong to the engine's thread.

    Args:
        generation: the request; it draws the tokens and turns them into text.
        parts: the device's input layers and head.
        sequence: sequence id in the input layers.
        propose: proposes drafts from the tokens alone; used only if ``drafts`` is None.
        drafts: the draft layer's drafts; None if there is no draft layer.

    Attributes:
        computing: rows whose shallow states are requested; None if none are.
    """

    def __init__(
        self,
        generation: SplitGeneration,
        parts: tuple[InputPart, HeadPart],
        *,
        sequence: int,
        propose: ProposeDrafts,
        drafts: AnswerDrafts | None = None,
    ) -> None:
        self.generation = generation
        self.sequence = sequence
        self.computing: ComputeRows | None = None
        self._input, self._head = parts
        self._propose = propose
        self._layer = drafts
        self._tokens = list(generation.prompt)
        self._drafts: list[int] = []
        self._shallow = generation.shallow
        self._tally = generation.owner.tally
        if drafts is not None:
            self._tally.branches, self._tally.lookups = drafts.counts, drafts.lookups
        self._is_waiting = False  # for deep states
        self._want(1)

    def ask(self, command: ComputeRows) -> None:
        """Store which rows to compute at the engine's next turn."""
        self.computing = command

    def compute(self) -> None:
        """Compute the requested rows."""
        command = self.computing
        if command is None:
            return
        self.computing = None
        embeddings = self._head.embed(self._tokens[command.start : command.stop])
        self._shallow.extend(self._input.run(embeddings, command.start, self.sequence))
        self._tell(RowsComputed(command.stop))

    def fail(self, error: Exception) -> None:
        """Raise the error, because no server can continue the answer.

        Raises:
            Exception: the error.
        """
        raise error

    def record_loss(self) -> None:
        """Record that a session was lost."""
        if self._layer is not None:
            self._layer.record_loss()

    def resume(self) -> None:
        """Continue after the reader has taken everything."""
        if not self._is_waiting and not self.generation.is_done and not self.generation.is_parked:
            self._go_on()

    @property
    def can_predraft(self) -> bool:
        """True if a verdict is awaited, and there is time to draft along possible verdicts."""
        return self._layer is not None and self._is_waiting and self._layer.can_predraft

    def predraft(self) -> None:
        """Draft one more step along a possible verdict."""
        if self._layer is not None:
            self._layer.predraft()

    def close(self) -> None:
        """Free the memory of the input layers and of the draft layer."""
        if self._layer is not None:
            self._layer.close()
        self._input.truncate(0, self.sequence)

    def read(self, states: States) -> None:
        """Draw the next tokens from the states after the last token and after each draft, up to the first draft that is wrong."""
        self._is_waiting = False
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

    def _tell(self, event: SplitEvent) -> None:
        self.generation.owner.tell(event)

    def _want(self, states: int) -> None:
        """Ask for the deep states of the last tokens."""
        self._is_waiting = True
        self._tell(RowsAdded(len(self._tokens), states))

    def _draw(self, state: States) -> int | None:
        """Return the model's next token after a deep state, or None if the answer ends before it."""
        made = self.generation.made
        self.generation.accept(self._head.logits(state))
        return self.generation.next_token if self.generation.made > made else None

    def _record(self, layer: AnswerDrafts, deep: States) -> None:
        """Make the draft layer read the verified tokens: first the prompt, later a token and its accepted drafts."""
        import numpy as np

        start = len(self._tokens) - len(deep) if layer.has_prompt else 0
        layer.record(np.stack(self._shallow[start:]), deep, start)

    def _drop(self, count: int) -> None:
        del self._tokens[-count:], self._shallow[-count:]
        if self._layer is None:  # otherwise the draft layer has the input layers read what it needs
            self._input.truncate(len(self._tokens), self.sequence)
        self._tell(Truncated(len(self._tokens)))

    def _go_on(self) -> None:
        token = self.generation.next_token
        assert token is not None, "an answer that goes on has a token to read"
        self._tokens.append(token)
        if self._layer is None:
            self._drafts = list(self._propose(self._tokens))
        else:
            self._drafts, rows = self._layer.make(self._tokens, self.generation.most_tokens - len(self._tokens))
            self._shallow += rows
            self._tell(RowsComputed(len(self._tokens) + len(self._drafts)))
        self._tokens += self._drafts
        self._want(1 + len(self._drafts))
