"""Keeps the answer so far: the committed tokens, and the tokens that are shown but may be retracted. It also counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from streamco.core.speculation.draft import Round
from streamco.core.speculation.events import (
    CommitIds,
    DeliverIds,
    DraftToken,
    FailAnswer,
    FinishAnswer,
    RetractIds,
    SpeculationCommand,
    VerdictReceived,
)
from streamco.core.speculation.report import SpeculationReport
from streamco.errors import StreamcoError
from streamco.events import Origin, common_prefix_length

__all__ = ["Emit", "PeerPrefix", "SpeculativeAnswer"]

Emit = Literal["verified", "draft"]
"""Whether the reader gets only final tokens ("verified"), or also drafts at once, which may be retracted later ("draft")."""


class SpeculativeAnswer:
    """The committed tokens of an answer and, if its reader sees drafts, the provisional tokens after them.

    Args:
        emit: called with each command that concerns the reader.
        report: counts the tokens.
        shows_drafts: whether the reader gets drafts before they are verified.
        end_ids: tokens that end the text. They are committed but not delivered.
        max_tokens: maximum length of the answer; None for no limit.

    Attributes:
        ids: committed tokens.
        report: the given report.
        ended: why the answer is complete, "stop" or "length"; None if it isn't complete.
    """

    def __init__(
        self,
        emit: Callable[[SpeculationCommand], None],
        report: SpeculationReport,
        *,
        shows_drafts: bool = False,
        end_ids: frozenset[int] = frozenset(),
        max_tokens: int | None = None,
    ) -> None:
        self.ids: list[int] = []
        self.ended: str | None = "length" if max_tokens is not None and max_tokens <= 0 else None
        self._emit = emit
        self.report = report
        self._shows_drafts = shows_drafts
        self._end_ids = end_ids
        self._max_tokens = max_tokens
        self._provisional: list[int] = []  # shown to the reader, not committed

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return len(self.ids)

    @property
    def free_tokens(self) -> int | None:
        """Number of tokens until the limit, or None if there is no limit."""
        return None if self._max_tokens is None else self._max_tokens - len(self.ids)

    def propose(self, ids: Sequence[int]) -> None:
        """If the reader sees drafts, show this draft as the provisional tokens, replacing the previous ones."""
        if not self._shows_drafts or self.ended is not None:
            return
        end = next((position for position, token in enumerate(ids) if token in self._end_ids), len(ids))
        shown = list(ids[:end] if self.free_tokens is None else ids[: min(end, self.free_tokens)])
        same = common_prefix_length(self._provisional, shown)
        self.retract(same)
        if same < len(shown):
            self._emit(DeliverIds(tuple(shown[same:]), "draft"))
            self._provisional = shown

    def commit_unverified(self, draft: Sequence[DraftToken]) -> int:
        """Commit a draft that is not sent to the verifier, and return how many of its tokens were committed."""
        committed = self.commit([token.id for token in draft], "device")
        self.report.device += committed
        return committed

    def commit_verdict(self, sent: Round, verdict: VerdictReceived) -> int:
        """Commit the tokens that a verdict accepts and adds, and return how many were committed."""
        report, siblings = self.report, len(sent.siblings)
        report.rounds += 1
        report.branched_rounds += sent.branches > 0
        report.verified += len(sent.draft)
        report.siblings += siblings
        report.target_tokens += len(sent.draft) + siblings + 1  # the row after the draft is computed too
        report.given += sent.given
        accepted = self.commit(sent.accepted_ids(verdict.accepted), "accepted")
        report.accepted += accepted
        report.sibling_hits += sent.sibling(verdict.accepted) is not None and accepted == sent.position(verdict.accepted) + 1
        if verdict.token is None:  # the verifier's context is full
            self.ended = self.ended or "length"
            return accepted
        if verdict.accepted >= len(sent.draft):  # all of the draft, or a sibling
            report.bonus += (added := self.commit([verdict.token], "bonus"))
        else:
            report.corrected += (added := self.commit([verdict.token], "corrected"))
        return accepted + added

    def commit_remote(self, ids: Sequence[int]) -> None:
        """Commit tokens of the remote stream."""
        self.report.remote += self.commit(ids, "remote")
        self.report.target_tokens += len(ids)

    def finish(self, reason: str) -> None:
        """End the answer as complete and retract provisional tokens. ``reason`` is "stop" or "length"."""
        self.ended = self.ended or reason
        self.retract()
        self._emit(FinishAnswer(reason))

    def fail(self, error: StreamcoError) -> None:
        """End the answer with an error. Committed tokens stay."""
        self.retract()
        self._emit(FailAnswer(error))

    def commit(self, ids: Sequence[int], origin: Origin) -> int:
        """Commit the tokens up to the end of the text or the limit, and return how many were committed."""
        if self.ended is not None:
            return 0
        kept = list(ids if self.free_tokens is None else ids[: self.free_tokens])
        end = next((position for position, token in enumerate(kept) if token in self._end_ids), None)
        if end is not None:
            kept = kept[: end + 1]
            self.ended = "stop"
        self.ids += kept
        if self.free_tokens == 0 and self.ended is None:
            self.ended = "length"
        self._show(kept if end is None else kept[:end], origin)
        return len(kept)

    def _show(self, ids: list[int], origin: Origin) -> None:
        """Commit the tokens that the reader already has, retract the ones that differ, and deliver the rest."""
        same = common_prefix_length(self._provisional, ids)
        if same:
            self._emit(CommitIds(same, origin))
            del self._provisional[:same]
        if same < len(ids):
            self.retract()
            self._emit(DeliverIds(tuple(ids[same:]), origin))
        elif self.ended is not None:
            self.retract()

    def retract(self, keep: int = 0) -> None:
        """Retract the provisional tokens except the first ``keep``."""
        gone = len(self._provisional) - keep
        if gone > 0:
            self.report.retracted += gone
            self._emit(RetractIds(gone))
            del self._provisional[keep:]


class PeerPrefix:
    """Keeps track of the answer's tokens that a peer has (the device's sequence or the verifier's context), and how many are committed.

    Attributes:
        ids: the tokens that the peer has.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._same = 0  # tokens known to equal the committed ones, which never change

    def common_length(self, committed: Sequence[int]) -> int:
        """Return how many of the committed tokens the peer has. Its sequence must be cut to this length."""
        self._same = common_prefix_length(self.ids, committed, self._same)
        return self._same

    def update(self, length: int, ids: Sequence[int]) -> None:
        """Record that the peer's sequence is cut to ``length`` tokens and continues with ``ids``."""
        if length > len(self.ids):
            raise AssertionError(f"expected to cut to at most the {len(self.ids)} tokens that the peer holds, got {length}")
        self._same = min(self._same, length)
        self.ids[length:] = ids
