"""Draft sequences, branches that assume a verdict, and rounds that await their verdict (Synera section 4.4).

A branch assumes at which position the verifier rejects the draft and which token it puts there. If exactly this verdict arrives, the branch
is adopted with the tokens it has by then, and every other branch is dropped. Nothing waits for a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.policies.drafts.tree_drafts import Sibling
from streamco.policies.rejection import ALTERNATIVES, Branch, PreDraft, schedule_branches

__all__ = ["BranchKind", "DraftSequence", "Round", "plan_branches"]

BranchKind = Literal["accept all", "reject"]


@dataclass(slots=True)
class DraftSequence:
    """A draft that is being written: either the trunk, after the committed tokens, or a branch, after an assumed verdict.

    Args:
        version: number of the command that asked for it.
        requested: number of tokens that this command asks for.
        started: when the command was given, in seconds.
        branch: the verdict that it assumes; None if it follows committed tokens.
        tokens: the tokens drafted so far. They include the assumed token only if the draft model wrote it itself.
        is_finished: True if there will be no more tokens from this command.
        importance: mean importance of its tokens; None if not measured.
        earlier: how many of its first tokens were written for earlier commands.
        earlier_importance: mean importance of those first tokens; None if not measured.
        is_beside_stream: True if the remote stream writes the answer meanwhile, and the draft is only compared with it.
        is_timed: True if the command's whole duration is drafting time, because there is little to read first.
        first_at: when this command's first tokens arrived, in seconds.
        first: number of tokens that arrived then.
        is_measurable: True if its times show how fast the device drafts.
        is_fork: True if its sequence was forked from the device's own sequence. A fork may run out of space earlier.
        is_trunk_branch: True if it assumes a verdict but is written on the device's own sequence.
        target_length: number of tokens that a trunk branch should have.
        is_lookup: True if it was looked up. A lookup may find fewer tokens than requested at any position of the answer.
    """

    version: int
    requested: int
    started: float
    branch: Branch | None = None
    tokens: list[DraftToken] = field(default_factory=list)
    is_finished: bool = False
    importance: float | None = None
    earlier: int = 0
    earlier_importance: float | None = None
    is_beside_stream: bool = False
    is_timed: bool = False
    first_at: float = 0.0
    first: int = 0
    is_measurable: bool = True
    is_fork: bool = False
    is_trunk_branch: bool = False
    target_length: int = 0
    is_lookup: bool = False

    @property
    def written(self) -> int:
        """Number of tokens that the current command has written."""
        return len(self.tokens) - self.earlier

    @property
    def is_context_full(self) -> bool:
        """True if the device's own sequence ended before the requested tokens, because its context is full or the text has ended."""
        return self.is_finished and not self.is_fork and self.written < self.requested and not self.is_lookup

    @property
    def is_exhausted(self) -> bool:
        """True if a lookup found fewer tokens than requested. There are no more at this position, but maybe at the next one."""
        return self.is_lookup and self.is_finished and self.written < self.requested

    @property
    def ids(self) -> list[int]:
        """Token ids of the draft."""
        return [token.id for token in self.tokens]

    def drafting_time(self, *, now: float) -> tuple[int, float] | None:
        """Return how many tokens were timed and the seconds they took, or None if that says nothing about the device's speed.

        If much had to be read first, the first tokens are left out. If several tokens arrive at once, they may arrive late. A single token
        after them would then seem to take no time, so it isn't measured.
        """
        if not self.is_measurable:
            return None
        if self.is_timed:
            return self.written, now - self.started
        later = self.written - self.first
        return (later, now - self.first_at) if later > (self.first > 1) else None

    def record_tokens(self, tokens: Sequence[DraftToken], importance: float | None, *, now: float, is_finished: bool) -> None:
        """Add new tokens. ``importance`` is the mean over all tokens of the current command."""
        if not self.written:
            self.first_at, self.first = now, len(tokens)
        self.tokens += tokens
        self.is_finished = is_finished
        if importance is not None:
            earlier = 0 if self.earlier_importance is None else self.earlier
            self.importance = (earlier * (self.earlier_importance or 0.0) + self.written * importance) / max(1, earlier + self.written)

    def request_more(self, version: int, count: int, *, now: float) -> None:
        """Record that a new command asks for ``count`` more tokens on the device's own sequence."""
        self.version, self.requested, self.started = version, count, now
        self.earlier, self.earlier_importance = len(self.tokens), self.importance
        self.is_finished, self.is_fork, self.first = False, False, 0
        self.is_timed = self.is_measurable = True

    def matches(self, accepted: int, token: int | None) -> bool:
        """Return True if this branch assumes exactly this verdict.

        A branch without a token assumes the draft model's next token, so it matches only once that token is drafted.

        Args:
            accepted: how many draft tokens the verdict accepts.
            token: the token after them; None if the verdict has none, which matches a branch without a token.
        """
        if self.branch is None or self.branch.position != accepted:
            return False
        if token is None or self.branch.token is not None:
            return self.branch.token == token
        return bool(self.tokens) and self.tokens[0].id == token

    def predicted_verdict(self) -> tuple[int, list[DraftToken]] | None:
        """Return the last token of the assumed verdict and the draft after it, or None if nothing is drafted or it assumes no verdict."""
        if self.branch is None or not self.tokens:
            return None
        if self.branch.token is None:
            return self.tokens[0].id, self.tokens[1:]
        return self.branch.token, self.tokens

    def assume_accepted(self, sent: int, target_length: int) -> None:
        """Turn into the branch that assumes that the first ``sent`` tokens, which are being verified, are all accepted."""
        self._drop_first(sent)
        self.branch = Branch(sent, None, 1.0)
        self.is_trunk_branch, self.target_length = True, target_length

    def adopt(self, token: int | None) -> None:
        """Turn into the trunk, because the assumed verdict has arrived. ``token`` is the verdict's last token."""
        if self.branch is not None and self.branch.token is None and token is not None:
            self._drop_first(1)
        self.branch = None
        self.is_measurable = self.is_trunk_branch = False

    def assumes_sibling(self, sibling: Sibling, token: int | None) -> bool:
        """Return True if this branch assumes ``sibling`` as the correction and has then written ``token`` itself."""
        if self.branch is None or (self.branch.position, self.branch.token) != (sibling.position, sibling.token):
            return False
        return bool(self.tokens) and self.tokens[0].id == token

    def pass_first(self) -> None:
        """Drop the first token, because the verdict contains it already."""
        self._drop_first(1)

    def _drop_first(self, count: int) -> None:
        """Drop the first tokens, which now belong to a round or to the answer."""
        of_earlier = min(count, self.earlier)
        self.earlier -= of_earlier
        self.requested -= count - of_earlier
        del self.tokens[:count]


RoundState = Literal["unsent", "sent", "refused"]
"""Whether a round waits for a connection, was sent and awaits its verdict, or was refused and must be sent again."""


@dataclass(slots=True)
class Round:
    """One draft on its way to the verifier, until its verdict.

    Args:
        draft: tokens to verify; empty if only the target model's next token is wanted.
        number: number of the last ``SendDraft``; -1 if never sent.
        state: whether it is unsent, sent or refused.
        sent: when it was last sent, in seconds.
        given: how many committed tokens were sent with it for the verifier to read.
        is_first: True if it is the first round of its connection, in which the verifier reads the prompt.
        retry_at: when a refused draft may be sent again, in seconds.
        branches: number of branches that assume its verdict.
        ahead: drafts that were sent before its verdict arrived, by the verdict they assume: (accepted tokens, token after them).
        ahead_since: if this round was sent before the previous verdict, the time at which that verdict arrived, in seconds; else None.
        siblings: other tokens for positions of the draft, which make it a tree. They are numbered after the draft's tokens.
    """

    draft: list[DraftToken]
    number: int = -1
    state: RoundState = "unsent"
    sent: float = 0.0
    given: int = 0
    is_first: bool = False
    retry_at: float = 0.0
    branches: int = 0
    ahead: dict[tuple[int, int], Round] = field(default_factory=dict)
    ahead_since: float | None = None
    siblings: tuple[Sibling, ...] = ()

    @property
    def was_ahead(self) -> bool:
        """True if the round was sent before the verdict on the previous round arrived."""
        return self.ahead_since is not None

    @property
    def awaited_since(self) -> float:
        """When the wait for this round's verdict began, in seconds."""
        return self.sent if self.ahead_since is None else self.ahead_since

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids of the draft."""
        return tuple(token.id for token in self.draft)

    @property
    def sent_ids(self) -> tuple[int, ...]:
        """Token ids of the draft, then of the siblings."""
        return (*self.ids, *(sibling.token for sibling in self.siblings))

    @property
    def parents(self) -> tuple[int, ...]:
        """Parent of each of ``sent_ids`` in the tree; empty without siblings."""
        return (*range(len(self.draft)), *(sibling.position for sibling in self.siblings)) if self.siblings else ()

    def sibling(self, accepted: int) -> Sibling | None:
        """Return the sibling that a verdict with this ``accepted`` ends with, or None if it ends with a token of the draft itself."""
        return self.siblings[accepted - len(self.draft) - 1] if accepted > len(self.draft) else None

    def position(self, accepted: int) -> int:
        """Return how many of the draft's own tokens a verdict with this ``accepted`` accepts."""
        sibling = self.sibling(accepted)
        return accepted if sibling is None else sibling.position

    def accepted_ids(self, accepted: int) -> tuple[int, ...]:
        """Return the token ids that a verdict with this ``accepted`` accepts."""
        sibling = self.sibling(accepted)
        return self.ids[:accepted] if sibling is None else (*self.ids[: sibling.position], sibling.token)

    def number_of(self, position: int, token: int) -> int | None:
        """Return the number in the tree of the sibling with this token at ``position``, or None if there is no such sibling."""
        for number, sibling in enumerate(self.siblings, len(self.draft) + 1):
            if (sibling.position, sibling.token) == (position, token):
                return number
        return None

    @property
    def confidences(self) -> list[float]:
        """Confidences of the draft's tokens, 0..1."""
        return [token.confidence for token in self.draft]

    def expected_at(self, wait: float, rtt: float) -> float:
        """Return the time at which the round's verdict should arrive, in seconds.

        Args:
            wait: seconds from sending a draft to its verdict.
            rtt: how much of ``wait`` is spent on the link, in seconds.
        """
        alone = self.sent + wait
        return alone if self.ahead_since is None else max(alone, self.ahead_since + wait - rtt)

    def record_sent(self, number: int, given: int, *, is_first: bool, now: float) -> None:
        """Record that the round was sent. If it was sent before, the verifier has forgotten the drafts that assumed its verdict."""
        self.number, self.state, self.sent = number, "sent", now
        self.given, self.is_first, self.ahead_since = given, is_first, None
        self.ahead.clear()

    def record_refusal(self, retry_at: float) -> None:
        """Record that the verifier refused the round. It may be sent again at ``retry_at``, in seconds."""
        self.state, self.retry_at = "refused", retry_at
        self.ahead.clear()

    def record_lost_connection(self) -> None:
        """Record that the connection was lost, so that the round waits for a new one."""
        self.state = "unsent"

    def record_ahead(self, now: float) -> None:
        """Record that the verdict that this round assumed when it was sent has now arrived."""
        self.ahead_since = now

    def record_branches(self, count: int) -> None:
        """Record how many branches assume the round's verdict."""
        self.branches = count


def plan_branches(
    draft: Sequence[DraftToken],
    estimates: SpeculationEstimates,
    *,
    window: int,
    max_branches: int,
    seconds: float | None = None,
    max_ahead: int = 0,
    kinds: frozenset[BranchKind],
    end_ids: frozenset[int],
    alternatives: int = ALTERNATIVES,
) -> PreDraft:
    """Choose which branches to draft while this draft is verified, and how long each should be (Synera section 4.4).

    Args:
        draft: tokens that are being verified.
        estimates: acceptance and times.
        window: length of the next draft in tokens.
        max_branches: maximum number of branches to draft.
        seconds: seconds until the verdict is expected; None for the usual wait.
        max_ahead: number of drafts that may be sent ahead of the verdict.
        kinds: which verdicts branches may assume.
        end_ids: tokens that end the text; nothing is drafted after one.
        alternatives: number of corrections to assume for each position.
    """
    ranked = estimates.rank_branches(
        [token.id for token in draft], [token.confidence for token in draft], [token.alternatives for token in draft], alternatives
    )
    branches = [
        branch
        for branch in ranked
        if ("accept all" if branch.position == len(draft) else "reject") in kinds
        and branch.token not in end_ids
        and not (branch.position == len(draft) and draft[-1].id in end_ids)
    ]
    return schedule_branches(
        branches,
        seconds=estimates.wait if seconds is None else seconds,
        step_times=estimates.step_times[:max_branches],
        window=window,
        rtt=estimates.rtt if max_ahead else 0.0,
        max_ahead=max_ahead,
        energy=estimates.energy,
    )
