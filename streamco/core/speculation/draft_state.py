"""Manages the device's drafts for one answer: the trunk after the committed tokens, and the branches.

It knows which tokens the device's own sequence has, so that a new draft rereads as few tokens as possible. It also knows the versions of
all running drafts, so that tokens of a dropped draft are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamco.core.speculation.answer import PeerPrefix
from streamco.core.speculation.draft import DraftSequence, Round
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    AdoptBranch,
    DraftBranch,
    DraftTokens,
    DropDrafts,
    SpeculationCommand,
    TokensDrafted,
    VerdictReceived,
)
from streamco.core.speculation.report import SpeculationReport
from streamco.errors import StreamcoError
from streamco.policies.rejection import Branch

__all__ = ["DraftState"]

_CORRECTION = 2  # ids that a draft may have to read first and still show how fast the device drafts


class DraftState:
    """The drafts that the device writes for one answer.

    Args:
        estimates: records how long drafts take.
        report: counts drafted tokens.
        emit: called with each command.
        next_version: returns a new version number.
        is_lookup: True if drafts are looked up. They take no time, so only the drafts that are sent count as drafted.

    Attributes:
        trunk: the draft after the committed tokens; None if there is none.
        branches: drafts that assume the awaited verdict, by version.
        failure: why the device can't draft for the rest of the answer; None if it can.
        is_full: True if the device's context has no space for another token.
    """

    def __init__(
        self,
        estimates: SpeculationEstimates,
        report: SpeculationReport,
        emit: Callable[[SpeculationCommand], None],
        next_version: Callable[[], int],
        *,
        is_lookup: bool = False,
    ) -> None:
        self.trunk: DraftSequence | None = None
        self.branches: dict[int, DraftSequence] = {}
        self.failure: StreamcoError | None = None
        self.is_full = False
        self._estimates = estimates
        self._report = report
        self._emit = emit
        self._next_version = next_version
        self._is_lookup = is_lookup
        self._peer = PeerPrefix()
        self._has_drafted = False  # until the device has written a token of this answer, it may still be reading the prompt
        self._waiting: list[tuple[Branch, int]] = []  # branches to start after the running ones, with the number of tokens for each
        self._branch_base, self._width = 0, 1  # committed tokens from which branches count; number of branches side by side
        self._side_by_side = 0  # branches that started together
        self._depth, self._depth_at = 0, 0.0  # tokens of the longest of them, and when it had them

    @property
    def is_out(self) -> bool:
        """True if nothing more can be drafted for this answer."""
        return self.is_full or self.failure is not None

    @property
    def is_reading_prompt(self) -> bool:
        """True while the device has a draft to write but has not written any token of this answer yet."""
        return not self._has_drafted and (self.trunk is not None or bool(self.branches))

    def record_full(self) -> None:
        """Record that the device's context has no space for another token."""
        self.is_full = True

    def record_failure(self, error: StreamcoError) -> None:
        """Record that the device can't draft any more, and drop its drafts."""
        self.failure = error
        self.drop()

    def start(self, committed: Sequence[int], count: int, *, is_beside_stream: bool = False, now: float) -> None:
        """Drop all drafts, and draft ``count`` tokens after the committed ones.

        Args:
            committed: the committed tokens of the answer.
            count: number of tokens to draft.
            is_beside_stream: True if a stream from the server generates the same part of the answer meanwhile.
            now: the current time.
        """
        self.drop()
        length = self._peer.common_length(committed)
        ids = tuple(committed[length:])
        self._peer.update(length, ids)
        is_timed = self._has_drafted and len(ids) <= _CORRECTION
        self.trunk = DraftSequence(
            self._next_version(), count, now, is_beside_stream=is_beside_stream, is_timed=is_timed, is_lookup=self._is_lookup
        )
        self._emit(DraftTokens(self.trunk.version, length, ids, count))

    def extend(self, draft: DraftSequence, count: int, *, now: float) -> None:
        """Draft ``count`` more tokens on the device's own sequence."""
        draft.request_more(self._next_version(), count, now=now)
        self._emit(DraftTokens(draft.version, len(self._peer.ids), (), count))

    def assume_accepted(self, sent: int, target_length: int, *, now: float) -> DraftSequence | None:
        """Turn the trunk into the branch that assumes that its sent tokens are all accepted, and continue drafting.

        Args:
            sent: how many tokens of the trunk are being verified.
            target_length: number of tokens that the branch should have.

        Returns:
            The branch, or None if the device's context is full.
        """
        draft, self.trunk = self.trunk, None
        if draft is None or draft.is_context_full:
            return None
        draft.assume_accepted(sent, target_length)
        self.branches[draft.version] = draft
        self._extend_trunk_branch(draft, now)
        return draft

    def resume_trunk(self) -> None:
        """Turn the trunk branch into the trunk again, because the verdict arrived before the branch had its first token."""
        draft = next(draft for draft in self.branches.values() if draft.is_trunk_branch)
        draft.adopt(None)
        del self.branches[draft.version]
        self.trunk = draft

    def _extend_trunk_branch(self, draft: DraftSequence, now: float) -> None:
        """Continue drafting the trunk branch if its command is finished and the branch is too short."""
        more = draft.target_length - len(draft.tokens)
        if draft.is_finished and more > 0 and not (draft.is_context_full or draft.is_exhausted):
            del self.branches[draft.version]
            self.extend(draft, more, now=now)
            self.branches[draft.version] = draft

    def start_branches(
        self, committed: int, branches: Sequence[Branch], count: Callable[[Branch], int], *, width: int, first_width: int = 0, now: float
    ) -> None:
        """Draft branches while the trunk is being verified, with ``width`` of them side by side, and the others after them.

        Args:
            committed: number of tokens before the draft that is being verified.
            branches: the verdicts to assume, in order.
            count: returns how many tokens to draft along a branch; may be 0.
            width: number of branches in one batch.
            first_width: number of branches in the first batch; 0 for ``width``.
        """
        self._branch_base, self._width = committed, width
        self._waiting = [(branch, tokens) for branch in branches if (tokens := count(branch)) > 0]
        if all(draft.is_finished for draft in self.branches.values()):
            self._start_waiting(now, first_width or width)

    def _start_waiting(self, now: float, width: int) -> None:
        starting, self._waiting = self._waiting[:width], self._waiting[width:]
        for branch, tokens in starting:
            requested = tokens + (branch.token is None)  # the assumed token is written first
            draft = DraftSequence(self._next_version(), requested, now, branch, is_timed=True, is_fork=True, is_lookup=self._is_lookup)
            self.branches[draft.version] = draft
            ids = () if branch.token is None else (branch.token,)
            self._emit(DraftBranch(draft.version, self._branch_base + branch.position, ids, requested))
        self._side_by_side = len(starting)
        self._depth, self._depth_at = 0, now

    def record_tokens(self, event: TokensDrafted, *, now: float) -> DraftSequence | None:
        """Record drafted tokens, and return the draft they belong to, or None if that draft was dropped."""
        if not self._is_lookup:
            self._report.drafted += len(event.tokens)
        self._has_drafted = self._has_drafted or bool(event.tokens)
        trunk = self.trunk if self.trunk is not None and self.trunk.version == event.version else None
        draft = trunk or self.branches.get(event.version)
        if draft is None or not draft.is_beside_stream:
            self._estimates.record_written(len(event.tokens))
        if draft is None:
            return None
        if draft is not trunk:
            self._report.pre_drafted += len(event.tokens)
        draft.record_tokens(event.tokens, event.importance, now=now, is_finished=event.is_finished)
        if draft is trunk or draft.is_trunk_branch:
            self._peer.update(len(self._peer.ids), [token.id for token in event.tokens])
        if draft.is_trunk_branch and draft.is_finished:
            self._extend_trunk_branch(draft, now)
        self._measure(draft, now)
        if self._waiting and draft is not trunk and all(branch.is_finished for branch in self.branches.values()):
            self._start_waiting(now, self._width)
        return draft

    def _measure(self, draft: DraftSequence, now: float) -> None:
        """Record how long steps take. Of a batch, only the longest branch is timed, because few branches are ever finished."""
        if draft is self.trunk:
            if draft.is_finished:
                self._measure_trunk(draft, now)
        elif not draft.is_trunk_branch and draft.written > self._depth:
            self._estimates.record_draft(self._side_by_side, draft.written - self._depth, now - self._depth_at)
            self._depth, self._depth_at = draft.written, now

    def _measure_trunk(self, draft: DraftSequence, now: float) -> None:
        if (measured := draft.drafting_time(now=now)) is not None:
            self._estimates.record_draft(1, *measured, is_beside_stream=draft.is_beside_stream)

    def stop_trunk(self, *, now: float) -> None:
        """Stop drafting on the trunk, because its tokens are now sent to the verifier or committed without it."""
        if self.trunk is not None and not self.trunk.is_finished:
            self._emit(DropDrafts((self.trunk.version,)))
            self._measure_trunk(self.trunk, now)
        self.trunk = None

    def common_length(self, committed: Sequence[int]) -> int:
        """Return how many of the committed tokens the device's own sequence has or is about to read."""
        return self._peer.common_length(committed)

    def find_branch(self, accepted: int, token: int | None) -> DraftSequence | None:
        """Return the branch that assumes this verdict, or None if no branch does."""
        return next((draft for draft in self.branches.values() if draft.matches(accepted, token)), None)

    def find_branch_of(self, out: Round, event: VerdictReceived) -> DraftSequence | None:
        """Return the branch that assumed the verdict on a round, or None if no branch did.

        If the verdict accepts a sibling, this is a branch that assumed the sibling as the correction and wrote the token after it itself.
        That token is dropped from the branch.
        """
        sibling, token = out.sibling(event.accepted), event.token
        if sibling is None:
            return self.find_branch(event.accepted, token)
        found = next((draft for draft in self.branches.values() if draft.assumes_sibling(sibling, token)), None)
        if found is not None:
            found.pass_first()
        return found

    def adopt(self, draft: DraftSequence, committed: Sequence[int], token: int | None) -> None:
        """Make a branch the trunk, because its verdict has arrived, and drop the others.

        Args:
            draft: the branch.
            committed: tokens of the answer, including the verdict's.
            token: the verdict's last token; None if no verdict arrived and the device commits the draft alone.
        """
        self._report.hits += token is not None
        self._report.adopted += len(draft.tokens)
        is_trunk_branch = draft.is_trunk_branch
        draft.adopt(token)
        if token is not None:
            self._estimates.record_adopted(len(draft.tokens))
        del self.branches[draft.version]
        if not is_trunk_branch:
            self._emit(AdoptBranch(draft.version))  # this closes the device's own sequence, and the trunk branch with it
            self.branches = {version: branch for version, branch in self.branches.items() if not branch.is_trunk_branch}
        self.drop()
        self.trunk = draft
        same = self._peer.common_length(committed)
        self._peer.update(same, [*committed[same:], *draft.ids])

    def drop(self) -> None:
        """Stop all drafts. The tokens in the device's own sequence stay."""
        versions = [version for version, draft in self.branches.items() if not (draft.is_trunk_branch and draft.is_finished)]
        if self.trunk is not None and not self.trunk.is_finished:
            versions.append(self.trunk.version)
        if versions:
            self._emit(DropDrafts(tuple(versions)))
        self.branches, self._waiting = {}, []
        self.trunk = None
