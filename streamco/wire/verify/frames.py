"""The frames sent between a device that drafts and a server that verifies. docs/verifier-protocol.md is the specification.

A frame is an object here, and ``VerifyCodec`` sends it as one msgpack array: first its number, then its fields in the order below, with
ids, rows and parents packed into bytes. The client sends frames 1 to 7, and the server sends frames 16 to 20. The client chooses the
number of a session, which grows with each session of a connection and is never used again there. The server chooses the key that resumes a
session on another connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from streamco.policies.acceptance import Rule
from streamco.policies.drafts.tree_acceptance import leaves, longest_path, path_to
from streamco.wire.row_costs import RowCostTable
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
"""The URL path of a server's WebSocket."""

SUBPROTOCOL = "streamco-verify"
"""The WebSocket's subprotocol."""

VERSIONS = (1, 1)
"""The first and the last version of the protocol that this package speaks."""

MAX_FOLLOWS = 4
"""Maximum number of drafts that may be sent ahead of one round's verdict."""

Number = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Positive = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=256)]
Secret = Annotated[str, Meta(max_length=4096)]
Sentence = Annotated[str, Meta(max_length=1024)]
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]

if TYPE_CHECKING:
    Ids = tuple[int, ...]
    Rows = tuple[TopK, ...]
    Parents = tuple[int, ...]
else:  # the types that msgspec decodes; VerifyCodec unpacks them in place, because only the codec knows the width of an id
    Ids = Rows = Parents = bytes


class VerifyLimits(Struct, frozen=True, kw_only=True, array_like=True):
    """Sizes beyond which a frame is refused. The server sends its limits in its welcome, and the client respects both sides' limits."""

    frame_bytes: Positive = 1 << 20  # bytes of one frame; a context of 128 Ki ids of 18 bits takes 288 KiB
    context_tokens: Positive = 1 << 17  # tokens of one session, including the draft
    draft_tokens: Positive = 31  # tokens to verify in one round; with the token before them, a chunk of 32 (Synera 4.5)
    top_k: Annotated[int, Meta(ge=1, le=255)] = 64  # ids in one row of probabilities
    sessions: Positive = 64  # sessions of one connection at a time
    paths: Positive = 1  # paths of one draft, from the context to a token that no other follows; 1 allows only chains


class Hello(Struct, frozen=True, array_like=True, tag=1):
    """The client's first frame. The frame number and the two versions have the same positions in every version of the protocol."""

    first_version: Positive
    last_version: Positive
    vocabulary: Name  # fingerprint
    vocabulary_size: Positive
    token: Secret | None = None  # bearer token, if the WebSocket's HTTP request could not carry it
    agent: Name = ""

    def __repr__(self) -> str:
        token = None if self.token is None else "..."
        return f"Hello({self.first_version} to {self.last_version}, {self.vocabulary!r}, token={token}, agent={self.agent!r})"


class Open(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Begins a session whose context starts with ``ids``. ``Extend`` can add the rest. The server answers with ``Opened``."""

    session: Number
    rule: Rule
    top_k: Byte  # ids in each row of the session's verdicts; 0 for no rows
    reserve: Number  # largest number of tokens that context and answer will reach, or 0 if that isn't known
    ids: Ids


class Extend(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Cuts the context to ``base`` tokens and appends ``ids``. The server doesn't answer."""

    session: Number
    base: Number
    ids: Ids


class Draft(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """One round: the server cuts the context to ``base`` tokens, appends the first ``given`` ids, and verifies the others.

    ``rows`` holds the distribution from which each id to verify was drawn, or is empty (greedy, threshold). ``parents`` arranges these ids
    in a tree (``streamco.policies.drafts.tree_acceptance``). If it is empty, each follows the one before it. The server answers with
    ``VerdictFrame``.
    """

    session: Number
    round_number: Number
    base: Number
    given: Number
    ids: Ids
    rows: Rows = ()
    parents: Parents = ()  # for each id to verify; 0 is the last id before them, n is the n-th id to verify

    @property
    def pending(self) -> tuple[int, ...]:
        """The ids to verify."""
        return self.ids[self.given :]

    @property
    def paths(self) -> int:
        """Number of paths from the context to an id that no other id follows."""
        return len(leaves(self.parents)) if self.parents else 1

    @property
    def longest(self) -> int:
        """Number of ids to verify on the longest path. In a chain these are all ids to verify."""
        return len(longest_path(self.parents)) if self.parents else len(self.pending)

    def accepted_ids(self, accepted: int) -> tuple[int, ...]:
        """Return the ids that a verdict accepts, in order. ``accepted`` is the verdict's field of that name."""
        return tuple(self.pending[node - 1] for node in path_to(self.parents, accepted))

    def length_after(self, verdict: VerdictFrame) -> int:
        """Return how many tokens the context has after this draft's verdict."""
        return self.base + self.given + len(path_to(self.parents, verdict.accepted)) + (verdict.token is not None)


class Follow(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """A draft that is sent before the verdict on round ``after``. If that verdict is as expected, all ids of this draft are verified.

    The draft then becomes a round like any other, with the context that the verdict leaves. Otherwise it is dropped without an answer.
    """

    session: Number
    round_number: Number
    after: Number  # number of the round that is being verified
    accepted: Number  # ``VerdictFrame.accepted`` of the expected verdict
    token: Number  # ``VerdictFrame.token`` of the expected verdict
    ids: Ids
    rows: Rows = ()
    parents: Parents = ()

    def matches(self, verdict: VerdictFrame) -> bool:
        """Return True if this verdict is the expected one."""
        return (verdict.round_number, verdict.accepted, verdict.token) == (self.after, self.accepted, self.token)

    def as_round(self, base: int) -> Draft:
        """Return the round that this draft becomes after the expected verdict, which leaves a context of ``base`` tokens."""
        return Draft(self.session, self.round_number, base, 0, self.ids, self.rows, self.parents)


class Resume(Struct, frozen=True, array_like=True, tag=5):
    """Continues a session of a lost connection. The server answers with ``Resumed``."""

    session: Number
    key: Digest
    base: Number  # number of tokens in the context that the client has
    prefix: Digest  # prefix_hash of those tokens


class Close(Struct, frozen=True, array_like=True, tag=6):
    """Ends a session. The server doesn't answer, but a verdict may still be on its way."""

    session: Number


class Welcome(Struct, frozen=True, array_like=True, tag=16):
    """The server's answer to a hello that it accepts."""

    version: Positive
    model: Name
    rules: Byte  # bit n: RuleKind n is supported
    limits: VerifyLimits
    resume_s: Number  # how long sessions of a lost connection are kept, in seconds
    is_exact: bool  # sampling keeps the target's distribution exactly
    row_costs: RowCostTable = ()  # how long a verification takes without load, by its number of rows; () if that isn't known


class Opened(Struct, frozen=True, array_like=True, tag=17):
    """The server's answer to an open that it accepts. The session now exists."""

    session: Number
    key: Digest  # resumes the session, but only for the client that opened it
    cached: Number  # number of tokens in the context that need not be computed


class VerdictFrame(Struct, frozen=True, array_like=True, tag=18, gc=False):
    """The result of a round. The context now ends with the accepted tokens and ``token``.

    ``accepted`` is the number of accepted ids. In a tree it is the number of the last accepted id, counted from 1, and all ids on the path
    to it are accepted with it.
    ``token`` corrects the first token that was not accepted, or is the bonus token after the last one. It is None if the context is full.
    Row j is the target's distribution after the first j tokens to verify, so there is one more row than tokens.
    """

    session: Number
    round_number: Number
    accepted: Number
    token: Number | None
    queue_depth: Number  # number of verifications that were waiting when this one was done
    queue_us: Number  # microseconds from the draft's arrival to its batch
    compute_us: Number  # microseconds that the batch took
    rows: Rows = ()


class Resumed(Struct, frozen=True, array_like=True, tag=19):
    """The server's answer to a resume. The session continues after its first ``base`` tokens, and the client sends the rest."""

    session: Number
    base: Number
    prefix: Digest  # prefix_hash of those tokens


class Refusal(Struct, frozen=True, array_like=True, tag=20):
    """Refuses a frame. The layout of this frame is the same in every version of the protocol."""

    code: Name
    message: Sentence
    session: Number | None = None
    round_number: Number | None = None
    retry_after_ms: Number | None = None

    @classmethod
    def of(cls, error: VerifyProtocolError) -> Refusal:
        """Return the frame that carries an error. The error's message is cut to 1,024 characters."""
        wait = None if error.retry_after is None else min(max(0, round(error.retry_after * 1000)), (1 << 32) - 1)
        message = str(error)[:1024].encode(errors="replace").decode()
        return cls(error.code, message, error.session, error.round_number, wait)

    def error(self) -> VerifyProtocolError:
        """Return the error that this frame carries."""
        wait = None if self.retry_after_ms is None else self.retry_after_ms / 1000
        return error_for(self.code, self.message, session=self.session, round_number=self.round_number, retry_after=wait)


ClientFrame = Hello | Open | Extend | Draft | Follow | Resume | Close
ServerFrame = Welcome | Opened | VerdictFrame | Resumed | Refusal
