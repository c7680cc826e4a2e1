"""What becomes of tokens: settled by whoever vouches for them, shown, taken back; and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamco.core.speculation.draft import Round
from streamco.core.speculation.estimates import SpeculationReport
from streamco.core.provisional import ProvisionalAnswer
from streamco.core.speculation.events import DraftToken, FailAnswer, FinishAnswer, Origin, SpeculatorCommand, VerdictReceived
from streamco.errors import StreamcoError

__all__ = ["Settling"]


class Settling:
    """Fills an answer and tells its reader.

    Args:
        answer: is filled.
        report: counts.
        say: takes commands.
    """

    def __init__(self, answer: ProvisionalAnswer, report: SpeculationReport, say: Callable[[SpeculatorCommand], None]) -> None:
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
        """A round got its verdict; gives how many tokens are settled by it."""
        report, size = self._report, len(waiting.draft)
        report.rounds += 1
        report.branched_rounds += waiting.branches > 0
        report.judged += size
        report.cloud += size + 1
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
        self._report.cloud += len(ids)

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
