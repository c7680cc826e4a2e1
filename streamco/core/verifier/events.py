"""What a verifier's scheduler is told, and what it says: its own events and commands.

A position counts tokens of a session's text from its beginning. Text is what both sides hold for settled: the context, what the device
went on with by itself, and what verdicts have added.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from streamco.policies.batching import Kind

__all__ = [
    "FULL_QUEUE",
    "AcceptSession",
    "BatchFailed",
    "BatchFinished",
    "BatchPart",
    "DraftReceived",
    "DropSequence",
    "ForgetSession",
    "DraftVerdict",
]
__all__ += ["Reason", "RefuseDraft", "RefuseSession", "RunBatch", "SchedulerCommand", "SchedulerEvent", "SendVerdict"]
__all__ += ["SessionClosed", "SessionExtended", "SessionOpened", "TruncateSequence"]

FULL_QUEUE = 32
"""Verifications that wait in a queue that counts as full; more is no fuller."""

Reason = Literal["overloaded", "device limit", "too long", "unknown session", "busy", "stale round", "gap", "engine failed"]
"""Why not. Waiting helps where a ``retry_after`` is told: overloaded, device limit, busy, engine failed."""


class SessionOpened(Struct, frozen=True):
    """A device wants its drafts verified.

    Args:
        session: a name nobody else uses.
        device: who asks; limits and fairness go by it.
        ids: the context, or its beginning.
    """

    session: str
    device: str
    ids: tuple[int, ...]


class SessionExtended(Struct, frozen=True):
    """The text is cut to ``base`` and goes on with ``ids``, to be read like a context. Not answered."""

    session: str
    base: int
    ids: tuple[int, ...]


class DraftReceived(Struct, frozen=True, kw_only=True):
    """A device asks for a verdict.

    Args:
        session: an open one.
        round: higher than the last one's.
        base: position behind which ``given`` and ``draft`` come; what the text has beyond it is taken back.
        given: tokens the device went on with by itself.
        draft: tokens to be judged, at most 31; none: only the next token is asked for.
    """

    session: str
    round: int
    base: int
    given: tuple[int, ...] = ()
    draft: tuple[int, ...]


class SessionClosed(Struct, frozen=True):
    """A device wants nothing more in this session; a draft that is out is not answered."""

    session: str


class DraftVerdict(Struct, frozen=True):
    """What the engine found about one draft: how many of its tokens stay, and the token that follows; None: there is no room for one."""

    session: str
    accepted: int
    token: int | None


class BatchFinished(Struct, frozen=True):
    """The batch has run.

    Args:
        number: of its ``RunBatch``.
        judgements: one for each part of it with ``verify_rows`` that didn't fail, in any order.
        seconds: it took.
        failed: sessions whose parts alone failed; what their sequences hold is not known.
        found: of the tokens it was to read, those that others had read before, so that they took no time.
    """

    number: int
    verdicts: tuple[DraftVerdict, ...]
    seconds: float
    failed: tuple[str, ...] = ()
    found: int = 0


class BatchFailed(Struct, frozen=True):
    """The engine gave the batch up; what its sequences hold is not known."""

    number: int


SchedulerEvent = SessionOpened | SessionExtended | DraftReceived | SessionClosed | BatchFinished | BatchFailed


class AcceptSession(Struct, frozen=True):
    """Tell the device that its session is open; the context is read as soon as possible, drafts may come at once."""

    session: str


class RefuseSession(Struct, frozen=True):
    """Tell the device that its session was not opened, or not extended.

    Args:
        reason: why.
        retry_after: seconds to wait before asking again; None: the same question gets the same answer.
    """

    session: str
    reason: Reason
    retry_after: float | None = None


class SendVerdict(Struct, frozen=True, kw_only=True):
    """Tell the device what became of its draft.

    Args:
        accepted: of the draft's tokens stay.
        token: that follows them: the correction, or the bonus if all stay; None: there is no room for one.
        position: of the text's end, with both.
        depth: verifications that wait now.
        queued: seconds until its first batch.
        compute: seconds its batches took.
    """

    session: str
    round: int
    accepted: int
    token: int | None
    position: int
    depth: int
    queued: float
    compute: float


class RefuseDraft(Struct, frozen=True):
    """Tell the device that its draft is not judged, and the text is as it was before.

    Args:
        reason: why.
        retry_after: seconds to wait before asking again; None: the same question gets the same answer.
    """

    session: str
    round: int
    reason: Reason
    retry_after: float | None = None


class BatchPart(Struct, frozen=True):
    """What a batch reads of one session.

    Args:
        start: position of the first id; just so many tokens are in the sequence now.
        ids: to be read.
        judged: of these, the last ones, whose rows are wanted: behind the text's last token and behind each of the draft's.
    """

    session: str
    start: int
    ids: tuple[int, ...]
    verify_rows: int = 0


class RunBatch(Struct, frozen=True):
    """Decode this in one forward pass; one is out at a time, and is answered by ``BatchFinished`` or ``BatchFailed``."""

    number: int
    kind: Kind
    parts: tuple[BatchPart, ...]


class TruncateSequence(Struct, frozen=True):
    """Keep only so many tokens of the session in the cache; done before the next batch."""

    session: str
    length: int


class DropSequence(Struct, frozen=True):
    """Keep nothing of the session in the cache; done before the next batch."""

    session: str


class ForgetSession(Struct, frozen=True):
    """The session is no more; who wants to go on opens it anew."""

    session: str


SchedulerCommand = AcceptSession | RefuseSession | SendVerdict | RefuseDraft | RunBatch | TruncateSequence | DropSequence | ForgetSession
