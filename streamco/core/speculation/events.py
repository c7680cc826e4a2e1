"""The events and commands of the speculation machine.

Lengths and positions count tokens from the beginning of the answer. The driver puts the prompt before it. Drafts, branches and remote
streams have *versions*, which share one counter. The machine ignores events of a version or round that has ended.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import StreamcoError
from streamco.events import Origin, ReaderLeft

__all__ = [
    "AdoptBranch",
    "Candidates",
    "CloseRemote",
    "CloseVerifier",
    "CommitIds",
    "ConnectVerifier",
    "DeliverIds",
    "DeviceFailed",
    "DraftBranch",
    "DraftRefused",
    "DraftToken",
    "DraftTokens",
    "DropDrafts",
    "ExpectedVerdict",
    "FailAnswer",
    "FinishAnswer",
    "OpenRemote",
    "ReaderCaughtUp",
    "ReaderFellBehind",
    "RemoteEnded",
    "RemoteFailed",
    "RemoteTokensReceived",
    "RetractIds",
    "SendDraft",
    "SpeculationCommand",
    "SpeculationEvent",
    "TokensDrafted",
    "VerdictReceived",
    "VerifierConnected",
    "VerifierFailed",
    "VerifierLost",
]

Candidates = tuple[tuple[int, float], ...]
"""The likeliest tokens at a position as (id, probability) pairs, likeliest first."""


class DraftToken(Struct, frozen=True):
    """A token that the draft model wrote.

    Args:
        id: the token.
        confidence: probability that the draft model assigns to it, 0..1.
        alternatives: the draft model's likeliest tokens at its position; this one may be among them.
        row: the distribution it was sampled from, in the driver's own form; ``SendDraft`` passes it on. None for greedy decoding.
    """

    id: int
    confidence: float = 0.0
    alternatives: Candidates = ()
    row: object | None = None


class TokensDrafted(Struct, frozen=True):
    """The device wrote the next tokens of a draft. More may follow.

    Args:
        version: version of the draft.
        tokens: the new tokens, in order.
        is_finished: True if no more tokens of this version follow. If there are fewer than requested and the text has not ended, the
            device's context is full.
        importance: mean importance of this version's tokens so far; None if not measured.
    """

    version: int
    tokens: tuple[DraftToken, ...]
    is_finished: bool = True
    importance: float | None = None


class DeviceFailed(Struct, frozen=True):
    """The draft model can't be used for the rest of the answer."""

    error: StreamcoError


class VerifierConnected(Struct, frozen=True):
    """The verifier session is open or resumed. Its context holds the prompt and the first ``length`` tokens of ``ConnectVerifier.ids``."""

    length: int = 0


class VerifierLost(Struct, frozen=True):
    """The connection broke or the session was refused, and the round that was out is lost. The verifier endpoint retries.

    Args:
        retry_after: for how many seconds the verifier says it accepts no session; None if it may be back at any time.
    """

    retry_after: float | None = None


class VerifierFailed(Struct, frozen=True):
    """The verifier can't be used for the rest of the answer."""

    error: StreamcoError


class ExpectedVerdict(Struct, frozen=True):
    """A verdict that a draft assumes when it is sent early: the round, the number of accepted tokens, and the token after them."""

    round: int
    accepted: int
    token: int


class VerdictReceived(Struct, frozen=True, kw_only=True):
    """The verdict on a round.

    Args:
        round: number of the ``SendDraft`` that it answers.
        accepted: number of accepted draft tokens; in a tree, the number of the last accepted node.
        token: the target model's token after them; None if the verifier's context is full.
        rows: the target model's likeliest tokens at each position of the draft and after it, shape (window + 1,); empty if not requested.
        queue_depth: utilisation of the verifier's queue, 0..1.
        queue_seconds, compute_seconds: how long the draft waited at the verifier, and how long its computation took.
    """

    round: int
    accepted: int
    token: int | None
    rows: tuple[Candidates, ...] = ()
    queue_depth: float = 0.0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    @property
    def outcome(self) -> ExpectedVerdict | None:
        """This verdict in the form in which early drafts assume it; None if nothing can follow it."""
        return None if self.token is None else ExpectedVerdict(self.round, self.accepted, self.token)


class DraftRefused(Struct, frozen=True):
    """The verifier is overloaded and refused a draft. Its context is unchanged. ``retry_after`` is in seconds, or None if not given."""

    round: int
    retry_after: float | None = None


class ReaderFellBehind(Struct, frozen=True):
    """The reader has much left to read, so no new round needs to start."""


class ReaderCaughtUp(Struct, frozen=True):
    """The reader has caught up."""


class RemoteTokensReceived(Struct, frozen=True):
    """The remote stream of this version produced tokens."""

    version: int
    ids: tuple[int, ...]


class RemoteEnded(Struct, frozen=True):
    """The remote stream of this version finished the answer. ``reason`` is "stop" or "length"."""

    version: int
    reason: str


class RemoteFailed(Struct, frozen=True):
    """The remote stream of this version failed."""

    version: int
    error: StreamcoError


SpeculationEvent = (
    TokensDrafted
    | DeviceFailed
    | VerifierConnected
    | VerifierLost
    | VerifierFailed
    | VerdictReceived
    | DraftRefused
    | RemoteTokensReceived
    | RemoteEnded
    | RemoteFailed
    | ReaderFellBehind
    | ReaderCaughtUp
    | ReaderLeft
)


class DraftTokens(Struct, frozen=True):
    """Cut the device's sequence to ``length`` tokens of the answer, add ``ids``, and draft ``count`` tokens after them."""

    version: int
    length: int
    ids: tuple[int, ...]
    count: int


class DraftBranch(Struct, frozen=True):
    """Draft ``count`` tokens on a fork of the device's sequence: its first ``length`` tokens, then ``ids``. Branches share batches."""

    version: int
    length: int
    ids: tuple[int, ...]
    count: int


class AdoptBranch(Struct, frozen=True):
    """Make the sequence of the branch with this version the device's own, and close the previous one. Drafting on it continues."""

    version: int


class DropDrafts(Struct, frozen=True):
    """Stop the drafts with these versions without waiting. A branch's sequence is closed, but the device's own stays open."""

    versions: tuple[int, ...]


class ConnectVerifier(Struct, frozen=True):
    """Open the verifier session, or resume the one that was lost. Its context must end with these tokens of the answer.

    Any old connection is closed first. The verifier endpoint retries until it can report ``VerifierConnected`` or ``VerifierFailed``.
    """

    ids: tuple[int, ...]


class SendDraft(Struct, frozen=True):
    """Send a draft to the verifier.

    Args:
        round: number of the round, higher than the last one.
        base: position to which the verifier's context is cut.
        given: committed tokens that the verifier then reads.
        ids: tokens to verify after them.
        rows: ``DraftToken.row`` of each token in ``ids``, None for a token that was not sampled; empty for greedy decoding.
        parents: parent of each token in ``ids``, in a tree (``streamco.policies.drafts.tree_acceptance``); empty for a chain.
        if_verdict: verify the draft only if this verdict is reached, and then at once, without cutting the context. If None, always
            verify it.
    """

    round: int
    base: int
    given: tuple[int, ...]
    ids: tuple[int, ...]
    rows: tuple[object | None, ...] = ()
    if_verdict: ExpectedVerdict | None = None
    parents: tuple[int, ...] = ()


class CloseVerifier(Struct, frozen=True):
    """Close the verifier session."""


class OpenRemote(Struct, frozen=True):
    """Let the target model continue alone after these tokens of the answer, for at most ``max_tokens`` tokens (None for no limit)."""

    version: int
    ids: tuple[int, ...]
    max_tokens: int | None


class CloseRemote(Struct, frozen=True):
    """Cancel the remote stream of this version. Tokens that it still sends are ignored."""

    version: int


class DeliverIds(Struct, frozen=True):
    """Deliver these tokens to the reader. With origin "draft" they are provisional, and will be committed or retracted later."""

    ids: tuple[int, ...]
    origin: Origin


class CommitIds(Struct, frozen=True):
    """Make the oldest ``count`` provisional tokens final, with this origin."""

    count: int
    origin: Origin


class RetractIds(Struct, frozen=True):
    """Take the newest ``count`` tokens, which are all provisional, back from the reader."""

    count: int


class FinishAnswer(Struct, frozen=True):
    """End the answer as complete. ``reason`` is "stop" or "length"."""

    reason: str


class FailAnswer(Struct, frozen=True):
    """End the answer with an error. Tokens that were delivered as final stay."""

    error: StreamcoError


SpeculationCommand = (
    DraftTokens
    | DraftBranch
    | AdoptBranch
    | DropDrafts
    | ConnectVerifier
    | SendDraft
    | CloseVerifier
    | OpenRemote
    | CloseRemote
    | DeliverIds
    | CommitIds
    | RetractIds
    | FinishAnswer
    | FailAnswer
)
