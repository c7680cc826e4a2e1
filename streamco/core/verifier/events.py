"""Events and commands of the verifier's scheduler.

A position counts tokens from the beginning of a session's text. The text consists of the tokens that are committed at both the device and
the server: the context, the tokens that the device committed by itself, and the tokens that verdicts added.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from streamco.policies.drafts.tree_acceptance import longest_path
from streamco.policies.serving.batching import Kind

__all__ = [
    "FULL_QUEUE",
    "AcceptSession",
    "BatchFailed",
    "BatchFinished",
    "BatchPart",
    "CancelPart",
    "DraftReceived",
    "DropSequence",
    "ForgetSession",
    "DraftVerdict",
]
__all__ += ["Reason", "RefuseDraft", "RefuseSession", "RunBatch", "SchedulerCommand", "SchedulerEvent", "SendVerdict"]
__all__ += ["SessionClosed", "SessionExtended", "SessionOpened", "TruncateSequence"]

FULL_QUEUE = 32
"""Number of waiting verifications at which the queue counts as full."""

Reason = Literal["overloaded", "device limit", "too long", "unknown session", "busy", "stale round", "gap", "engine failed"]
"""Reason for a refusal. If ``retry_after`` is given (overloaded, device limit, busy, engine failed), a later attempt may succeed."""


class SessionOpened(Struct, frozen=True):
    """A device opened a session for verifying its drafts.

    Args:
        session: name of the session, which must not be used again.
        device: the device that opened it; limits and fairness are per device.
        ids: the context, or its beginning.
    """

    session: str
    device: str
    ids: tuple[int, ...]


class SessionExtended(Struct, frozen=True):
    """The device cut the text to ``base`` tokens and added ``ids``, which are read like a context. This is answered only if refused."""

    session: str
    base: int
    ids: tuple[int, ...]


class DraftReceived(Struct, frozen=True, kw_only=True):
    """A device sent a draft for verification.

    Args:
        session: an open session.
        round: number of the round, higher than the last one.
        base: position at which ``given`` and ``draft`` begin; any text after it is retracted.
        given: tokens that the device committed by itself.
        draft: tokens to verify, at most 31; empty if only the next token is wanted.
        parents: parent of each token of the draft, in a tree (``streamco.policies.drafts.tree_acceptance``); empty for a chain.
        is_prompt: whether it is read like a prompt, in prefill steps of any size. Allowed only without a draft.
        follows: whether it may arrive while the session's earlier drafts are out, and is handled when they are done. A prompt that follows
            a prompt is read together with it, and a single verdict or refusal, with the later round's number, answers both.
    """

    session: str
    round: int
    base: int
    given: tuple[int, ...] = ()
    draft: tuple[int, ...]
    parents: tuple[int, ...] = ()
    is_prompt: bool = False
    follows: bool = False

    @property
    def length(self) -> int:
        """Length of the text in tokens if the longest path of the draft is accepted."""
        return self.base + len(self.given) + (len(longest_path(self.parents)) if self.parents else len(self.draft))


class SessionClosed(Struct, frozen=True):
    """The device closed a session. If one of its drafts is out, that draft is not answered."""

    session: str


class DraftVerdict(Struct, frozen=True):
    """The engine's verdict on one draft, which says how many of its tokens are accepted and which token comes after them.

    In a tree, ``accepted`` is the number of the last accepted node. ``token`` is None if the context is full. If the session asked for it,
    ``rows`` has the engine's likeliest tokens at each position, in the driver's own form.
    """

    session: str
    accepted: int
    token: int | None
    rows: tuple[object, ...] = ()


class BatchFinished(Struct, frozen=True):
    """The engine has run a batch.

    Args:
        number: number of its ``RunBatch``.
        verdicts: one verdict for each part with ``verify_rows`` that didn't fail, in any order.
        seconds: duration of the batch.
        failed: sessions whose own part failed or was cancelled; the contents of their sequences are unknown.
        found: how many of its tokens were already in the engine's cache, so that they took no time.
        is_cut: True if a part was cancelled. Then ``seconds`` is less than the tokens would have taken.
    """

    number: int
    verdicts: tuple[DraftVerdict, ...]
    seconds: float
    failed: tuple[str, ...] = ()
    found: int = 0
    is_cut: bool = False


class BatchFailed(Struct, frozen=True):
    """The engine gave up on the batch. The contents of its sequences are unknown."""

    number: int


SchedulerEvent = SessionOpened | SessionExtended | DraftReceived | SessionClosed | BatchFinished | BatchFailed


class AcceptSession(Struct, frozen=True):
    """Tell the device that its session is open. The context is read as soon as possible, and the device may send drafts at once."""

    session: str


class RefuseSession(Struct, frozen=True):
    """Tell the device that its session was not opened, or not extended.

    Args:
        reason: reason for the refusal.
        retry_after: seconds to wait before a retry; None if a retry would get the same answer.
    """

    session: str
    reason: Reason
    retry_after: float | None = None


class SendVerdict(Struct, frozen=True, kw_only=True):
    """Send the device the verdict on its draft.

    Args:
        verdict: the engine's verdict.
        round: number of the draft's round.
        position: length of the text, including the accepted tokens and the one after them.
        depth: number of verifications that are waiting now.
        queued: how many seconds the draft waited for its first batch.
        compute: how many seconds its batches took.
    """

    verdict: DraftVerdict
    round: int
    position: int
    depth: int
    queued: float
    compute: float

    @property
    def session(self) -> str:
        """Name of the session."""
        return self.verdict.session


class RefuseDraft(Struct, frozen=True):
    """Tell the device that its draft is not verified, and that the text is the same as before the draft.

    Args:
        reason: reason for the refusal.
        retry_after: seconds to wait before a retry; None if a retry would get the same answer.
    """

    session: str
    round: int
    reason: Reason
    retry_after: float | None = None


class BatchPart(Struct, frozen=True):
    """The part of a batch that belongs to one session.

    Args:
        start: position of the first id, which is also the number of tokens in the sequence now.
        ids: tokens to read.
        verify_rows: how many of the last ids give the verdict's rows (the text's last token and the draft); 0 if no draft ends here.
    """

    session: str
    start: int
    ids: tuple[int, ...]
    verify_rows: int = 0


class RunBatch(Struct, frozen=True):
    """Decode these parts in one forward pass. Only one batch is out at a time. ``BatchFinished`` or ``BatchFailed`` answers it."""

    number: int
    kind: Kind
    parts: tuple[BatchPart, ...]


class CancelPart(Struct, frozen=True):
    """Stop computing a session's part of the running batch, because the session was closed and the result isn't needed.

    The batch ends like any other. A driver that can't stop a part may ignore this command.
    """

    session: str


class TruncateSequence(Struct, frozen=True):
    """Keep only the first ``length`` tokens of the session in the cache. This must be done before the next batch."""

    session: str
    length: int


class DropSequence(Struct, frozen=True):
    """Remove all of the session's tokens from the cache. This must be done before the next batch."""

    session: str


class ForgetSession(Struct, frozen=True):
    """Tell the device that its session, which was at rest, was forgotten. To continue, the device must open another one.

    Args:
        session: name of the session.
        is_silent: True if the session was silent for too long, False if its place went to a device with fewer sessions.
    """

    session: str
    is_silent: bool = True


SchedulerCommand = (
    AcceptSession | RefuseSession | SendVerdict | RefuseDraft | RunBatch | CancelPart | TruncateSequence | DropSequence | ForgetSession
)
