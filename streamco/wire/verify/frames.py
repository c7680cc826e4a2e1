"""The frames between a device that drafts and a server that verifies; docs/verifier-protocol.md is the specification.

Each is an object here and one msgpack array on the wire (``VerifyCodec``), its number first, then its fields in the order below. Frames 1
to 7 go up, 16 to 20 down. A session's number is the client's, grows with each session of a connection and is never used again on it; the
key that resumes a session on another connection is the server's.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamco.policies.acceptance import Rule
from streamco.wire.verify.errors import VerifyProtocolError, error_for
from streamco.wire.verify.topk import TopK

__all__ = [
    "ClientFrame",
    "Close",
    "Draft",
    "Extend",
    "MAX_FOLLOWS",
    "Follow",
    "Hello",
    "Open",
    "Opened",
    "PATH",
    "Refusal",
    "Resume",
    "Resumed",
    "SUBPROTOCOL",
    "ServerFrame",
    "VERSIONS",
    "VerdictFrame",
    "VerifyLimits",
    "Welcome",
]

PATH = "/v1/verify"
"""Where a server listens."""

SUBPROTOCOL = "streamco-verify"
"""Of the WebSocket."""

VERSIONS = (1, 1)
"""The first and the last version of the protocol that this package speaks."""

MAX_FOLLOWS = 4
"""Drafts that may be sent ahead behind one round."""

Number = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Positive = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=256)]
Secret = Annotated[str, Meta(max_length=4096)]
Sentence = Annotated[str, Meta(max_length=1024)]
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]


class VerifyLimits(Struct, frozen=True, kw_only=True, array_like=True):
    """Sizes beyond which a frame is refused rather than believed. The server's are part of its welcome; the client keeps to both."""

    frame_bytes: Positive = 1 << 20  # one frame; a context of 128 Ki ids of 18 bits takes 288 KiB
    context_tokens: Positive = 1 << 17  # one session's, draft included
    draft_tokens: Positive = 31  # to judge in one round; with the token before them a chunk of 32 (Synera 4.5)
    top_k: Annotated[int, Meta(ge=1, le=255)] = 64  # ids in one row of probabilities
    sessions: Positive = 64  # of one connection, at one time


class Hello(Struct, frozen=True, array_like=True, tag=1):
    """The client's first frame. Its number and the two versions stay where they are in every version of the protocol."""

    first_version: Positive
    last_version: Positive
    vocabulary: Name  # fingerprint
    vocabulary_size: Positive
    token: Secret | None = None  # bearer token, where the WebSocket's own request could not carry it
    agent: Name = ""

    def __repr__(self) -> str:
        token = None if self.token is None else "..."
        return f"Hello({self.first_version} to {self.last_version}, {self.vocabulary!r}, token={token}, agent={self.agent!r})"


class Open(Struct, frozen=True, gc=False):
    """Begin a session whose context begins with ``ids``; ``Extend`` may bring the rest of it. Answered with ``Opened``."""

    session: int
    rule: Rule = Rule()
    top_k: int = 0  # ids in each row of its verdicts; 0: no rows
    reserve: int = 0  # tokens that context and answer will reach at most; 0: not known
    ids: tuple[int, ...] = ()


class Extend(Struct, frozen=True, gc=False):
    """The context is cut to ``base`` tokens and goes on with ``ids``. No answer."""

    session: int
    base: int
    ids: tuple[int, ...]


class Draft(Struct, frozen=True, gc=False):
    """One round: the context is cut to ``base`` and goes on with the first ``given`` ids; the others are to be judged.

    ``rows`` holds what each of those was drawn from, or nothing (greedy, threshold). Answered with ``VerdictFrame``.
    """

    session: int
    round_number: int
    base: int
    ids: tuple[int, ...]
    given: int = 0
    rows: tuple[TopK, ...] = ()

    @property
    def pending(self) -> tuple[int, ...]:
        """The ids to be judged."""
        return self.ids[self.given :]


class Follow(Struct, frozen=True, gc=False):
    """A draft sent ahead of the verdict that it bets on: all of its ids are to be judged, if round ``after`` ends with just that.

    Then it is a round like others, from the moment of that verdict, behind the context that the verdict leaves; else it is forgotten
    without an answer.
    """

    session: int
    round_number: int
    after: int  # the round that is out
    accepted: int
    token: int
    ids: tuple[int, ...]
    rows: tuple[TopK, ...] = ()

    def matches(self, verdict: VerdictFrame) -> bool:
        """Return True if this verdict is what it bets on."""
        return (verdict.round_number, verdict.accepted, verdict.token) == (self.after, self.accepted, self.token)

    def as_round(self, base: int) -> Draft:
        """Return the round that it is where its bet is won, behind a context of ``base`` tokens."""
        return Draft(self.session, self.round_number, base, self.ids, 0, self.rows)


class Resume(Struct, frozen=True, array_like=True, tag=5):
    """Take up a session of a lost connection, of whose context the client holds ``base`` tokens. Answered with ``Resumed``."""

    session: Number
    key: Digest
    base: Number
    prefix: Digest  # prefix_hash of them


class Close(Struct, frozen=True, array_like=True, tag=6):
    """The session is not needed any more. No answer; a verdict may still be on its way."""

    session: Number


class Welcome(Struct, frozen=True, array_like=True, tag=16):
    """The hello is accepted."""

    version: Positive
    model: Name
    rules: Byte  # bit n: RuleKind n is understood
    limits: VerifyLimits
    resume_s: Number  # how long a lost connection's sessions are kept
    is_exact: bool  # sampling keeps the target's distribution exactly


class Opened(Struct, frozen=True, array_like=True, tag=17):
    """The session exists."""

    session: Number
    key: Digest  # resumes it, and belongs to whoever authenticated as its opener
    cached: Number  # tokens of its context that need no computing


class VerdictFrame(Struct, frozen=True, gc=False):
    """A round's result: the context now ends with the accepted tokens and ``token``.

    ``token`` is the correction of the first token that was not accepted, or the bonus token behind the last; None: the context is full.
    Row j is the target's distribution behind the first j judged tokens, up to and including the one behind the last.
    """

    session: int
    round_number: int
    accepted: int
    token: int | None
    queue_depth: int = 0  # verifications that waited when this one was done
    queue_us: int = 0  # from the draft's arrival to its batch
    compute_us: int = 0
    rows: tuple[TopK, ...] = ()


class Resumed(Struct, frozen=True, array_like=True, tag=19):
    """The session goes on behind its first ``base`` tokens; the client sends what it has beyond them."""

    session: Number
    base: Number
    prefix: Digest  # prefix_hash of them


class Refusal(Struct, frozen=True, array_like=True, tag=20):
    """Something was refused. Its layout is the same in every version of the protocol."""

    code: Name
    message: Sentence
    session: Number | None = None
    round_number: Number | None = None
    retry_after_ms: Number | None = None

    @classmethod
    def of(cls, error: VerifyProtocolError) -> Refusal:
        """Return the frame that tells an error."""
        wait = None if error.retry_after is None else min(max(0, round(error.retry_after * 1000)), (1 << 32) - 1)
        message = str(error)[:1024].encode(errors="replace").decode()
        return cls(error.code, message, error.session, error.round_number, wait)

    def error(self) -> VerifyProtocolError:
        """Return the error that was told."""
        wait = None if self.retry_after_ms is None else self.retry_after_ms / 1000
        return error_for(self.code, self.message, session=self.session, round_number=self.round_number, retry_after=wait)


ClientFrame = Hello | Open | Extend | Draft | Follow | Resume | Close
ServerFrame = Welcome | Opened | VerdictFrame | Resumed | Refusal
