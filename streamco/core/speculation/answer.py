"""What becomes of tokens: settled by whoever vouches for them, shown, taken back; and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from streamco.core.report import SpeculationReport
from streamco.core.speculation.draft import Round
from streamco.core.speculation.events import (
    CommitIds,
    DeliverIds,
    DraftToken,
    FailAnswer,
    FinishAnswer,
    Origin,
    RetractIds,
    SpeculationCommand,
    VerdictReceived,
)
from streamco.errors import StreamcoError
from streamco.partial import common_prefix_length

__all__ = ["Emit", "PeerPrefix", "ProvisionalAnswer", "Settling"]

Emit = Literal["verified", "draft"]
"""What the reader gets: tokens that are final, or drafts at once and their retraction where they don't hold."""


class ProvisionalAnswer:
    """The settled tokens, and behind them, for a reader of drafts, the provisional ones.

    Args:
        emit: what the reader gets.
        end_ids: tokens that end the text; they are settled and not delivered.
        max_tokens: the answer's longest length; None: no limit.

    Attributes:
        ids: settled tokens.
        ended: why the answer is complete, stop or length; None: it is not.
        retracted: provisional tokens taken back.
    """

    def __init__(self, emit: Emit, end_ids: frozenset[int], max_tokens: int | None) -> None:
        self.ids: list[int] = []
        self.ended: str | None = "length" if max_tokens is not None and max_tokens <= 0 else None
        self.retracted = 0
        self._emit = emit
        self._end_ids = end_ids
        self._max_tokens = max_tokens
        self._shown: list[int] = []  # provisional
        self._commands: list[DeliverIds | CommitIds | RetractIds] = []

    @property
    def length(self) -> int:
        """Settled tokens."""
        return len(self.ids)

    @property
    def left(self) -> int | None:
        """Tokens until the limit; None: there is none."""
        return None if self._max_tokens is None else self._max_tokens - len(self.ids)

    def take_commands(self) -> list[DeliverIds | CommitIds | RetractIds]:
        """Return what the reader is to be told, in order."""
        commands, self._commands = self._commands, []
        return commands

    def end(self, reason: str) -> None:
        """The answer is complete as it is; what was provisional is taken back."""
        if self.ended is None:
            self.ended = reason
        self.retract()

    def settle(self, ids: Sequence[int], origin: Origin) -> int:
        """These tokens come next and stay; gives how many, for nothing comes behind the end of the text or the limit."""
        if self.ended is not None:
            return 0
        kept = list(ids if self.left is None else ids[: self.left])
        end = next((place for place, token in enumerate(kept) if token in self._end_ids), None)
        if end is not None:
            kept = kept[: end + 1]
            self.ended = "stop"
        self.ids += kept
        if self.left == 0 and self.ended is None:
            self.ended = "length"
        self._show(kept if end is None else kept[:end], origin)
        return len(kept)

    def _show(self, ids: list[int], origin: Origin) -> None:
        """Settle what the reader has already, take back what differs, deliver the rest."""
        same = common_prefix_length(self._shown, ids)
        if same:
            self._commands.append(CommitIds(same, origin))
            del self._shown[:same]
        if same < len(ids):
            self.retract()
            self._commands.append(DeliverIds(tuple(ids[same:]), origin))
        elif self.ended is not None:
            self.retract()

    def propose(self, ids: Sequence[int]) -> None:
        """The draft behind the settled tokens is this, all of it."""
        if self._emit == "verified" or self.ended is not None:
            return
        end = next((place for place, token in enumerate(ids) if token in self._end_ids), len(ids))
        wanted = list(ids[:end] if self.left is None else ids[: min(end, self.left)])
        same = common_prefix_length(self._shown, wanted)
        self.retract(same)
        if same < len(wanted):
            self._commands.append(DeliverIds(tuple(wanted[same:]), "draft"))
            self._shown = wanted

    def retract(self, keep: int = 0) -> None:
        """Take provisional tokens back, but for the first ``keep``."""
        gone = len(self._shown) - keep
        if gone > 0:
            self.retracted += gone
            self._commands.append(RetractIds(gone))
            del self._shown[keep:]


class PeerPrefix:
    """What somebody else (the device's sequence, the verifier's context) holds of the answer.

    Attributes:
        ids: the tokens.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._same = 0  # so many are known to be the settled ones, which never change

    def meet(self, settled: Sequence[int]) -> int:
        """Return how many of the settled tokens it holds: where it is to be cut."""
        self._same = common_prefix_length(self.ids, settled, self._same)
        return self._same

    def write(self, length: int, ids: Sequence[int]) -> None:
        """It is cut to ``length`` and goes on with ``ids``."""
        if length > len(self.ids):
            raise AssertionError(f"what holds {len(self.ids)} tokens can't be cut to {length}")
        self._same = min(self._same, length)
        self.ids[length:] = ids


class Settling:
    """Fills an answer and tells its reader.

    Args:
        answer: is filled.
        report: counts.
        say: takes commands.
    """

    def __init__(self, answer: ProvisionalAnswer, report: SpeculationReport, say: Callable[[SpeculationCommand], None]) -> None:
        self._answer = answer
        self._report = report
        self._say = say

    def propose(self, ids: Sequence[int]) -> None:
        """The draft behind the settled tokens is this."""
        self._answer.propose(ids)
        self._tell()

    def keep(self, draft: Sequence[DraftToken]) -> int:
        """Nobody is asked about this chunk; gives how many of its tokens are settled."""
        kept = self._settle([token.id for token in draft], "device")
        self._report.device += kept
        return kept

    def judge(self, waiting: Round, event: VerdictReceived) -> int:
        """Return a round got its verdict; gives how many tokens are settled by it."""
        report, size = self._report, len(waiting.draft)
        report.rounds += 1
        report.branched_rounds += waiting.branches > 0
        report.verified += size
        report.target_tokens += size + 1
        report.given += waiting.given
        accepted = self._settle(waiting.ids[: event.accepted], "accepted")
        report.accepted += accepted
        if event.token is None:
            self._answer.end("length")
            return accepted
        if event.accepted == size:
            report.bonus += (added := self._settle([event.token], "bonus"))
        else:
            report.corrected += (added := self._settle([event.token], "corrected"))
        return accepted + added

    def stream(self, ids: Sequence[int]) -> None:
        """The remote side generated these alone."""
        self._report.remote += self._settle(ids, "remote")
        self._report.target_tokens += len(ids)

    def finish(self, reason: str) -> None:
        """The answer is complete; what was provisional is taken back."""
        self._answer.end(reason)
        self._end(FinishAnswer(reason))

    def fail(self, error: StreamcoError) -> None:
        """The answer can't be finished; what is settled stays."""
        self._answer.retract()
        self._end(FailAnswer(error))

    def _settle(self, ids: Sequence[int], origin: Origin) -> int:
        settled = self._answer.settle(ids, origin)
        self._tell()
        return settled

    def _end(self, command: FinishAnswer | FailAnswer) -> None:
        self._tell()
        self._say(command)

    def _tell(self) -> None:
        for command in self._answer.take_commands():
            self._say(command)
        self._report.retracted = self._answer.retracted
