"""The events and commands of the speculation machine.

Lengths and positions count tokens of the answer from its beginning. The driver adds the prompt in front of it. Drafts, branches and remote
streams have *versions*, which share one counter. The machine ignores events of a version or round that is over.
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
"""The likeliest tokens of a position as (id, probability), best first."""


class DraftToken(Struct, frozen=True):
    """A token that the draft model wrote.

    Args:
        id: the token.
        confidence: probability that the draft model assigns to it, 0..1.
        alternatives: the draft model's likeliest tokens at its position; this one may be among them.
        row: the distribution it was sampled from, in the driver's own form; passed on with ``SendDraft``. None for greedy.
    """

    id: int
    confidence: float = 0.0
    alternatives: Candidates = ()
    row: object | None = None


class TokensDrafted(Struct, frozen=True):
    """The device wrote the next tokens of a draft, all of them or the first ones.

    Args:
        version: version of the draft.
        tokens: the new tokens, in order.
        is_finished: no more tokens of this version come. If there are fewer than requested and no end of the text, the device's context is
            full.
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
        retry_after: seconds for which the verifier takes no session, as it reported; None if it may be back at any time.
    """

    retry_after: float | None = None


class VerifierFailed(Struct, frozen=True):
    """The verifier can't be used for the rest of the answer."""

    error: StreamcoError


class ExpectedVerdict(Struct, frozen=True):
    """A verdict ahead of which a draft was sent: its round, the number of accepted tokens, and the token after them."""

    round: int
    accepted: int
    token: int


class VerdictReceived(Struct, frozen=True, kw_only=True):
    """The verdict on a round.

    Args:
        round: number of the ``SendDraft`` that it answers.
        accepted: number of accepted draft tokens; in a tree the last accepted node.
        token: the target model's token after them; None if the verifier's context is full.
        rows: the target model's likeliest tokens at each position of the draft and after it, shape (window + 1,); empty if not requested.
        queue_depth: utilisation of the verifier's queue, 0..1.
        queue_seconds, compute_seconds: how long the draft waited and was computed at the verifier.
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
        """This verdict as the condition of a draft that was sent ahead of it; None if nothing can follow it."""
        return None if self.token is None else ExpectedVerdict(self.round, self.accepted, self.token)


class DraftRefused(Struct, frozen=True):
    """The verifier is overloaded and its context is as before the draft. ``retry_after`` in seconds, or None if not given."""

    round: int
    retry_after: float | None = None


class ReaderFellBehind(Struct, frozen=True):
    """The reader has much left to read, so no new round has to start."""


class ReaderCaughtUp(Struct, frozen=True):
    """The reader has caught up."""


class RemoteTokensReceived(Struct, frozen=True):
    """The remote stream of this version gave tokens."""

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
    """Make the sequence of the branch with this version the device's own, and close the former one. Drafting on the branch continues."""

    version: int


class DropDrafts(Struct, frozen=True):
    """Stop the drafts of these versions without waiting. A branch's sequence is closed; the device's own stays."""

    versions: tuple[int, ...]


class ConnectVerifier(Struct, frozen=True):
    """Open the verifier session, or resume the one that was lost. Its context ends with these tokens of the answer.

    An old connection is given up first. The verifier endpoint retries until it can report ``VerifierConnected`` or ``VerifierFailed``.
    """

    ids: tuple[int, ...]


class SendDraft(Struct, frozen=True):
    """Have a draft verified.

    Args:
        round: number of the round, higher than the last one.
        base: position to which the verifier's context is cut.
        given: committed tokens that the verifier then reads.
        ids: tokens to verify after them.
        rows: ``DraftToken.row`` of each of those, None for a token that was not drawn; empty for greedy.
        parents: parent of each of those, in a tree (``streamco.policies.drafts.tree_acceptance``); empty for a chain.
        if_verdict: verify the draft only if this verdict is reached, and then at once, without cutting the context. None means in any case.
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
    """Let the target model continue alone after these tokens of the answer, with at most ``max_tokens`` (None for no limit)."""

    version: int
    ids: tuple[int, ...]
    max_tokens: int | None


class CloseRemote(Struct, frozen=True):
    """Cancel the remote stream of this version; tokens that it still sends are ignored."""

    version: int


class DeliverIds(Struct, frozen=True):
    """Deliver these tokens to the reader. With origin "draft" they are provisional: committed or retracted later."""

    ids: tuple[int, ...]
    origin: Origin


class CommitIds(Struct, frozen=True):
    """Make the oldest ``count`` provisional tokens final, with this origin."""

    count: int
    origin: Origin


class RetractIds(Struct, frozen=True):
    """Take the newest ``count`` tokens, all provisional, back from the reader."""

    count: int


class FinishAnswer(Struct, frozen=True):
    """End the answer as complete. ``reason`` is "stop" or "length"."""

    reason: str


class FailAnswer(Struct, frozen=True):
    """End the answer with an error; what was delivered as final stays."""

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
