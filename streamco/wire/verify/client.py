"""The client's end of one connection, without the connection: frames are asked for, answers come back, order and lengths are watched.

The shell calls a method for what it wants to say and sends what ``take_messages`` gives; it hands every message that arrives to
``receive``. Answers for sessions and rounds that are over are dropped. An answer that is against the protocol raises, and the connection
is over: a verifier that can't be believed in one thing is not believed in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from streamco.errors import UsageError
from streamco.policies.acceptance import Rule
from streamco.wire.verify.checks import check_answer, prefix_hash
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import MalformedFrameError, NotResumableError, UnexpectedFrameError, VerifyProtocolError, VersionError
from streamco.wire.verify.frames import (
    MAX_FOLLOWS,
    VERSIONS,
    Close,
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
class _ClientSession:
    length: int  # tokens of its context, the last verdict included
    top_k: int
    is_opened: bool = False
    last_round: int = -1
    draft: Draft | None = None  # the round that is out
    follows: list[Follow] = field(default_factory=list)  # behind it
    resumed_with: tuple[int, ...] | None = None  # the ids that it is being resumed with


class VerifyClient:
    """One connection of a client. ``hello`` comes first, then its welcome, then sessions.

    Args:
        codec: of the draft model's vocabulary.
        vocabulary: the fingerprint.
        token: bearer token; None: the WebSocket's own request carries it, or none is needed.
        agent: who this is, for the server's log.
    """

    def __init__(self, codec: VerifyCodec, vocabulary: str, *, token: str | None = None, agent: str = "streamco") -> None:
        self.codec = codec
        self.welcome: Welcome | None = None
        self.is_closed = False
        self._sessions: dict[int, _ClientSession] = {}
        self._last_session = -1
        hello = Hello(*VERSIONS, vocabulary, codec.vocabulary_size, token, agent)
        self._messages = [codec.encode(hello)]

    @property
    def limits(self) -> VerifyLimits:
        """What both sides allow; the client's own until the welcome is there."""
        return self.codec.limits

    def take_messages(self) -> list[bytes]:
        """Return what to send, in order; each message is handed out once."""
        messages, self._messages = self._messages, []
        return messages

    def length(self, session: int) -> int:
        """Tokens of a session's context, as both sides hold them.

        Raises:
            UsageError: there is no such session.
        """
        return self._find(session).length

    def round_out(self, session: int) -> int | None:
        """Return the number of a session's round that is out; None: none is, or there is no such session."""
        held = self._sessions.get(session)
        return None if held is None or held.draft is None else held.draft.round_number

    def open(self, ids: Sequence[int], rule: Rule, *, top_k: int = 0, reserve: int = 0) -> int:
        """Begin a session; gives its number. Drafts may follow at once, before ``Opened`` comes.

        Args:
            ids: the context; a long one may follow in pieces with ``extend``.
            rule: how its drafts are judged.
            top_k: candidates of the target at each place of a verdict; 0: none.
            reserve: tokens that context and answer will reach at most; 0: not known.

        Raises:
            UsageError: the server has not welcomed us, or is gone.
            VerifyProtocolError: it doesn't fit a frame.
        """
        number = self._next_number()
        self._queue(Open(number, rule, top_k, reserve, tuple(ids)))
        self._add(number, _ClientSession(len(ids), top_k))
        return number

    def extend(self, session: int, base: int, ids: Sequence[int]) -> None:
        """Cut the context to ``base`` tokens and go on with ``ids``, without an answer.

        Raises:
            UsageError: a round is out, or the context is shorter than ``base``.
            VerifyProtocolError: it doesn't fit a frame.
        """
        held = self._find_idle(session, base)
        self._queue(Extend(session, base, tuple(ids)))
        held.length = base + len(ids)

    def draft(self, session: int, base: int, ids: Sequence[int], *, given: int = 0, rows: Sequence[TopK] = ()) -> int:
        """Begin a round: cut the context to ``base``, add the first ``given`` ids, have the others judged; gives the round's number.

        Raises:
            UsageError: a round is out, or the context is shorter than ``base``.
            VerifyProtocolError: it doesn't fit a frame.
        """
        held = self._find_idle(session, base)
        draft = Draft(session, held.last_round + 1, base, tuple(ids), given, tuple(rows))
        self._queue(draft)
        held.last_round, held.draft = draft.round_number, draft
        return draft.round_number

    def follow(self, session: int, accepted: int, token: int, ids: Sequence[int], *, rows: Sequence[TopK] = ()) -> int:
        """Send a draft ahead, to be the next round if the verdict of the one that is out is just this; gives its number.

        Where it is, that round is out as soon as ``receive`` has given the verdict. Behind one round there is room for ``MAX_FOLLOWS``.

        Args:
            accepted: tokens of the draft that is out which stay.
            token: that follows them.
            ids: to be judged.
            rows: what each of those was drawn from.

        Raises:
            UsageError: no round is out, it has another draft, or there are enough of these already, or one for that verdict.
            VerifyProtocolError: it doesn't fit a frame.
        """
        held = self._find(session)
        out = held.draft
        if out is None or not 0 <= accepted <= len(out.pending):
            raise UsageError(f"session {session}: expected a round of at least {accepted} tokens to be out, got none")
        if len(held.follows) >= MAX_FOLLOWS or any((each.accepted, each.token) == (accepted, token) for each in held.follows):
            raise UsageError(f"session {session}: expected at most {MAX_FOLLOWS} drafts ahead, each for another verdict, got one more")
        follow = Follow(session, held.last_round + 1, out.round_number, accepted, token, tuple(ids), tuple(rows))
        self._queue(follow)
        held.last_round = follow.round_number
        held.follows.append(follow)
        return follow.round_number

    def resume(self, key: bytes, ids: Sequence[int], *, top_k: int = 0) -> int:
        """Take up a session of a lost connection, whose context is ``ids``; gives its new number. ``Resumed`` says how many of them hold.

        Raises:
            UsageError: the server has not welcomed us, or is gone.
            VerifyProtocolError: it doesn't fit a frame.
        """
        number = self._next_number()
        self._queue(Resume(number, key, len(ids), prefix_hash(ids)))
        self._add(number, _ClientSession(0, top_k, resumed_with=tuple(ids)))
        return number

    def close(self, session: int) -> None:
        """End a session; one that is over already is left alone."""
        if self._sessions.pop(session, None) is not None and not self.is_closed:
            self._queue(Close(session))

    def receive(self, message: bytes | str) -> ServerFrame | None:
        """Return what the server said, None where it is about something that is over.

        Raises:
            VerifyProtocolError: it is against the protocol; the connection is to be closed.
        """
        if self.is_closed:
            return None
        try:
            if isinstance(message, str):
                raise MalformedFrameError(f"message: expected bytes, got text of {len(message)} characters")
            return self._handle(self.codec.decode_down(message))
        except VerifyProtocolError:
            self._end()
            raise

    def _handle(self, frame: ServerFrame) -> ServerFrame | None:
        if self.welcome is None and not isinstance(frame, Welcome | Refusal):
            raise UnexpectedFrameError(f"connection: expected a welcome first, got {type(frame).__name__}")
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

    def _handle_welcome(self, frame: Welcome) -> Welcome:
        if self.welcome is not None:
            raise UnexpectedFrameError("welcome: expected one a connection, got another")
        if not VERSIONS[0] <= frame.version <= VERSIONS[1]:
            raise VersionError(f"welcome: expected a version from {VERSIONS[0]} to {VERSIONS[1]}, got {frame.version}")
        self.welcome = frame
        self.codec = self.codec.within(frame.limits)
        return frame

    def _handle_opened(self, frame: Opened) -> Opened | None:
        held = self._sessions.get(frame.session)
        if held is None:
            return None
        if held.is_opened or held.resumed_with is not None:
            raise UnexpectedFrameError(f"session {frame.session}: expected to be opened once, got it again", session=frame.session)
        held.is_opened = True
        return frame

    def _handle_verdict(self, frame: VerdictFrame) -> VerdictFrame | None:
        held = self._sessions.get(frame.session)
        if held is None or held.draft is None or held.draft.round_number != frame.round_number:
            return None
        check_answer(frame, held.draft, held.top_k)
        held.length = held.draft.base + held.draft.given + frame.accepted + (frame.token is not None)
        matching = next((follow for follow in held.follows if follow.matches(frame)), None)
        held.draft = None if matching is None else matching.as_round(held.length)
        held.follows.clear()
        return frame

    def _handle_resumed(self, frame: Resumed) -> Resumed | Refusal | None:
        held = self._sessions.get(frame.session)
        if held is None:
            return None
        ids = held.resumed_with
        if ids is None or frame.base > len(ids):
            max_base = 0 if ids is None else len(ids)
            message = f"session {frame.session}: expected to be resumed once, at {max_base} tokens at most, got {frame.base}"
            raise UnexpectedFrameError(message, session=frame.session)
        if prefix_hash(ids[: frame.base]) != frame.prefix:
            self.close(frame.session)
            message = f"session {frame.session}: expected the first {frame.base} tokens that the server holds to be ours, got others"
            return Refusal.of(NotResumableError(message, session=frame.session))
        held.length, held.resumed_with, held.is_opened = frame.base, None, True
        return frame

    def _handle_refusal(self, frame: Refusal) -> Refusal | None:
        match frame.error().scope:
            case "connection":
                self._end()
            case "session":
                self._sessions.pop(-1 if frame.session is None else frame.session, None)
            case "round":
                held = self._sessions.get(-1 if frame.session is None else frame.session)
                if held is None or held.draft is None or held.draft.round_number != frame.round_number:
                    return None
                held.draft = None
                held.follows.clear()
            case "frame":
                pass
            case _ as never:
                assert_never(never)
        return frame

    def _queue(self, frame: Open | Extend | Draft | Follow | Resume | Close) -> None:
        self._messages.append(self.codec.encode(frame))

    def _end(self) -> None:
        self.is_closed = True
        self._sessions.clear()

    def _next_number(self) -> int:
        if self.welcome is None or self.is_closed:
            raise UsageError(f"verifier: expected a welcomed connection, got one that is {'closed' if self.is_closed else 'not yet'}")
        return self._last_session + 1

    def _add(self, number: int, session: _ClientSession) -> None:
        self._last_session, self._sessions[number] = number, session

    def _find(self, session: int) -> _ClientSession:
        held = self._sessions.get(session)
        if held is None:
            raise UsageError(f"session {session}: expected one that is open, got none")
        return held

    def _find_idle(self, session: int, base: int) -> _ClientSession:
        held = self._find(session)
        if held.draft is not None:
            raise UsageError(f"session {session}: expected no round to be out, got round {held.draft.round_number}")
        if held.resumed_with is not None:
            raise UsageError(f"session {session}: expected it to be resumed, got it waiting for that")
        if not 0 <= base <= held.length:
            raise UsageError(f"session {session}: expected a base of 0 to {held.length}, got {base}")
        return held
