"""The client's side of one verifier protocol connection, without IO. It builds frames, reads answers and checks their order and lengths.

The shell calls a method for each frame and sends what ``take_messages`` returns. It hands every message that arrives to ``receive``.
Answers for sessions and rounds that are over are dropped. An answer that breaks the protocol raises an error and ends the connection,
because a verifier that is wrong once can't be trusted in its other answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from streamco.errors import UsageError
from streamco.policies.acceptance import Rule
from streamco.wire.verify.checks import check_answer, prefix_hash
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.connection_ends import ClientEnd, ClientSession
from streamco.wire.verify.errors import NotResumableError, UnexpectedFrameError
from streamco.wire.verify.frames import (
    MAX_FOLLOWS,
    VERSIONS,
    Draft,
    Extend,
    Follow,
    Hello,
    Open,
    Opened,
    Refusal,
    Resume,
    Resumed,
    ServerFrame,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)
from streamco.wire.verify.topk import TopK

__all__ = ["VerifyClient"]


@dataclass(slots=True)
class _DraftSession(ClientSession):
    top_k: int = 0
    draft: Draft | None = None  # the pending round, which was sent and isn't answered yet
    follows: list[Follow] = field(default_factory=list)  # drafts sent ahead of its verdict
    resumed_with: tuple[int, ...] = ()  # the session's context until a resume is answered


class VerifyClient(ClientEnd[VerifyCodec, ServerFrame, Welcome, _DraftSession]):
    """The client's state for one connection, which begins with hello and welcome and then carries sessions.

    Args:
        codec: codec for the draft model's vocabulary.
        vocabulary: fingerprint of that vocabulary.
        token: bearer token, or None if the WebSocket's HTTP request carries it or the server needs none.
        agent: name of this client for the server's log.
    """

    def __init__(self, codec: VerifyCodec, vocabulary: str, *, token: str | None = None, agent: str = "streamco") -> None:
        hello = Hello(*VERSIONS, vocabulary, codec.vocabulary_size, token, agent)
        super().__init__(codec, hello, versions=VERSIONS, server="verifier")

    @property
    def limits(self) -> VerifyLimits:
        """The smaller of both sides' limits, or the client's own limits until the welcome has come."""
        return self.codec.limits

    @property
    def frame_bytes(self) -> int:
        """Maximum size of a message in bytes."""
        return self.limits.frame_bytes

    def pending_round(self, session: int) -> int | None:
        """Return the number of a session's pending round, or None if no round is pending, or there is no such session."""
        state = self._sessions.get(session)
        return None if state is None or state.draft is None else state.draft.round_number

    def pending_length(self, session: int) -> int:
        """Return how many ids a session's pending round verifies, or 0 if no round is pending or there is no such session."""
        state = self._sessions.get(session)
        return 0 if state is None or state.draft is None else len(state.draft.pending)

    def open(self, ids: Sequence[int], rule: Rule, *, top_k: int = 0, reserve: int = 0) -> int:
        """Begin a session and return its number. You may send drafts at once, before ``Opened`` comes.

        Args:
            ids: the context, or its beginning. ``extend`` can send a long context in pieces.
            rule: the rule by which the session's drafts are verified.
            top_k: number of the target's candidates in a verdict for each position. 0 requests none.
            reserve: largest number of tokens that context and answer will reach, or 0 if that isn't known.

        Raises:
            UsageError: the welcome hasn't come, or the connection is closed.
            VerifyProtocolError: the session doesn't fit a frame.
        """
        number = self._next_number()
        self._queue(Open(number, rule, top_k, reserve, tuple(ids)))
        self._add(number, _DraftSession(len(ids), top_k=top_k))
        return number

    def extend(self, session: int, base: int, ids: Sequence[int]) -> None:
        """Cut the context to ``base`` tokens and append ``ids``. The server doesn't answer.

        Raises:
            UsageError: a round is pending, or the context is shorter than ``base``.
            VerifyProtocolError: the ids don't fit a frame.
        """
        state = self._find_idle(session, base)
        self._queue(Extend(session, base, tuple(ids)))
        state.length = base + len(ids)

    def draft(
        self, session: int, base: int, ids: Sequence[int], *, given: int = 0, rows: Sequence[TopK] = (), parents: Sequence[int] = ()
    ) -> int:
        """Begin a round and return its number. The server cuts the context to ``base``, appends ``given`` ids, and verifies the others.

        ``parents`` arranges the ids to verify in a tree with at most ``limits.paths`` paths. If it is empty, they form a chain.

        Raises:
            UsageError: a round is pending, or the context is shorter than ``base``.
            VerifyProtocolError: the draft doesn't fit a frame.
        """
        state = self._find_idle(session, base)
        draft = Draft(session, state.last_round + 1, base, given, tuple(ids), tuple(rows), tuple(parents))
        self._queue(draft)
        state.last_round, state.draft = draft.round_number, draft
        return draft.round_number

    def follow(
        self, session: int, accepted: int, token: int, ids: Sequence[int], *, rows: Sequence[TopK] = (), parents: Sequence[int] = ()
    ) -> int:
        """Send a draft before the pending round's verdict has come, and return the draft's number.

        If the verdict is as expected, this draft becomes the pending round as soon as ``receive`` has returned the verdict. Up to
        ``MAX_FOLLOWS`` drafts may be sent ahead of one verdict.

        Args:
            session: number that identifies the session on this connection.
            accepted: how many of the pending round's tokens the verdict is expected to accept or, in a tree, the number of the last one.
            token: the token that is expected after the accepted tokens.
            ids: ids to verify.
            rows: the distribution that each id was drawn from.
            parents: parent of each id in a tree, or empty for a chain.

        Raises:
            UsageError: no round is pending, it has fewer than ``accepted`` tokens, ``MAX_FOLLOWS`` drafts were already sent ahead, or one
                of them expects the same verdict.
            VerifyProtocolError: the draft doesn't fit a frame.
        """
        state = self._find(session)
        draft = state.draft
        if draft is None or not 0 <= accepted <= len(draft.pending):
            raise UsageError(f"session {session}: expected a pending round of at least {accepted} tokens, got none")
        if len(state.follows) >= MAX_FOLLOWS or any((each.accepted, each.token) == (accepted, token) for each in state.follows):
            raise UsageError(f"session {session}: the limit is {MAX_FOLLOWS} drafts ahead, each for a different verdict")
        number = state.last_round + 1
        follow = Follow(session, number, draft.round_number, accepted, token, tuple(ids), tuple(rows), tuple(parents))
        self._queue(follow)
        state.last_round = follow.round_number
        state.follows.append(follow)
        return follow.round_number

    def resume(self, key: bytes, ids: Sequence[int], *, top_k: int = 0) -> int:
        """Continue a session of a lost connection, and return its new number. ``Resumed`` says how many of the ids the server has.

        Args:
            key: the session's key, from its ``Opened``.
            ids: the session's whole context, as the client has it.
            top_k: number of candidates for each position, the same as in ``open``.

        Raises:
            UsageError: the welcome hasn't come, or the connection is closed.
            VerifyProtocolError: the key doesn't fit a frame.
        """
        number = self._next_number()
        self._queue(Resume(number, key, len(ids), prefix_hash(ids)))
        self._add(number, _DraftSession(0, is_resuming=True, top_k=top_k, resumed_with=tuple(ids)))
        return number

    def _handle(self, frame: ServerFrame) -> ServerFrame | None:
        if not isinstance(frame, Welcome | Refusal):
            self._check_welcome(frame)
        match frame:
            case VerdictFrame():
                return self._handle_verdict(frame)
            case Opened():
                return self._handle_opened(frame)
            case Resumed():
                return self._handle_resumed(frame)
            case Refusal():
                return self._handle_refusal(frame)
            case Welcome():
                return self._handle_welcome(frame)
            case _ as never:
                assert_never(never)

    def _handle_verdict(self, frame: VerdictFrame) -> VerdictFrame | None:
        state = self._sessions.get(frame.session)
        if state is None or state.draft is None or state.draft.round_number != frame.round_number:
            return None
        check_answer(frame, state.draft, state.top_k)
        state.length = state.draft.length_after(frame)
        matching = next((follow for follow in state.follows if follow.matches(frame)), None)
        state.draft = None if matching is None else matching.as_round(state.length)
        state.follows.clear()
        return frame

    def _handle_resumed(self, frame: Resumed) -> Resumed | Refusal | None:
        state = self._sessions.get(frame.session)
        if state is None:
            return None
        ids = state.resumed_with
        if not state.is_resuming or frame.base > len(ids):
            message = f"session {frame.session}: expected one resumption, of {len(ids)} tokens at most, got one of {frame.base}"
            raise UnexpectedFrameError(message, session=frame.session)
        if prefix_hash(ids[: frame.base]) != frame.prefix:
            self.close(frame.session)
            message = f"session {frame.session}: expected the first {frame.base} tokens that the server holds to be ours, got others"
            return Refusal.of(NotResumableError(message, session=frame.session))
        state.length, state.resumed_with, state.is_resuming, state.is_opened = frame.base, (), False, True
        return frame

    def _drop_round(self, state: _DraftSession, frame: Refusal) -> bool:
        if state.draft is None or state.draft.round_number != frame.round_number:
            return False
        state.draft = None
        state.follows.clear()
        return True

    def _find_idle(self, session: int, base: int) -> _DraftSession:
        state = self._find_resumed(session)
        if state.draft is not None:
            raise UsageError(f"session {session}: expected no pending round, got round {state.draft.round_number}")
        if not 0 <= base <= state.length:
            raise UsageError(f"session {session}: expected a base of 0 to {state.length}, got {base}")
        return state
