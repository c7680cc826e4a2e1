"""The server's side of one verifier protocol connection, without IO. It checks which frames are allowed when, and refuses the others.

The shell hands every message to ``receive``, carries out the frame that it returns, if any, and sends what ``take_messages`` returns.
Frames that ``receive`` returns obey all of the protocol's rules for order, numbers and lengths. Any other message is answered with a
refusal here, and the connection continues unless ``is_closed`` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.row_costs import RowCost
from streamco.wire.verify.codec import HELLO, VerifyCodec, frame_number, hello_versions
from streamco.wire.verify.connection_ends import ServerEnd
from streamco.wire.verify.errors import (
    ContextFullError,
    FrameSizeError,
    HelloExpectedError,
    MalformedFrameError,
    RuleError,
    SessionLimitError,
    SessionNumberError,
    StaleRoundError,
    UnexpectedFrameError,
    UnknownSessionError,
    VerifyProtocolError,
    VersionError,
    VocabularyError,
    WrongBaseError,
)
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
    Resume,
    Resumed,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)

__all__ = ["ServerSessions", "AcceptedFrame", "VerifyServer"]

MAX_FAULTS = 16  # faulty frames on one connection; a working client sends none


@dataclass(slots=True)
class _ServerSession:
    length: int | None  # number of tokens in the context; None until a resume is answered
    rule: Rule
    last_round: int = -1
    draft: Draft | None = None  # the round that is being verified
    follows: list[Follow] = field(default_factory=list)  # drafts sent ahead of its verdict
    verdict: VerdictFrame | None = None  # the last verdict, if the context has not changed since


class ServerSessions:
    """The sessions of one connection. Methods that take a client's frame raise an error if the frame must be refused.

    Args:
        limits: the limits that the welcome announces.
        rules: the kinds of rules by which the server can verify.
    """

    __slots__ = ("_by_number", "_last", "_limits", "_rules")

    def __init__(self, limits: VerifyLimits, rules: frozenset[RuleKind]) -> None:
        self._limits = limits
        self._rules = rules
        self._by_number: dict[int, _ServerSession] = {}
        self._last = -1

    def __contains__(self, number: int | None) -> bool:
        return number in self._by_number

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the live sessions."""
        return tuple(self._by_number)

    def end(self, number: int | None) -> bool:
        """Remove a session. Returns False if there is none."""
        return number is not None and self._by_number.pop(number, None) is not None

    def open(self, frame: Open) -> None:
        """Add the session that an ``Open`` begins."""
        number = frame.session
        self._check_number(number)
        if frame.rule.kind not in self._rules:
            raise RuleError(f"open: expected a rule of {sorted(self._rules)}, got {frame.rule.kind!r}", session=number)
        if frame.top_k > self._limits.top_k:
            raise FrameSizeError(f"open: expected rows of at most {self._limits.top_k} ids, got {frame.top_k}", session=number)
        self._check_length(max(len(frame.ids), frame.reserve), number, None)
        self._by_number[number] = _ServerSession(len(frame.ids), frame.rule)

    def resume(self, number: int) -> None:
        """Add a session that the client wants to resume. No frame is allowed in it until ``resumed`` is called."""
        self._check_number(number)
        self._by_number[number] = _ServerSession(None, Rule())

    def resumed(self, number: int, base: int, rule: Rule) -> bool:
        """Continue a session after its first ``base`` tokens. Returns False if the session is gone."""
        session = self._by_number.get(number)
        if session is None:
            return False
        session.length, session.rule = base, rule
        return True

    def extend(self, frame: Extend) -> None:
        """Cut and extend a session's context."""
        session = self._find_idle(frame.session, frame.base, None)
        end = frame.base + len(frame.ids)
        self._check_length(end, frame.session, None)
        session.length, session.verdict = end, None

    def begin_round(self, draft: Draft) -> None:
        """Begin a round. The context stays as it is until the verdict."""
        number, round_number = draft.session, draft.round_number
        session = self._find_idle(number, draft.base, round_number)
        _check_round_number(session, draft)
        self._check_length(draft.base + draft.given + draft.longest, number, round_number)
        _check_rows(session, draft, len(draft.pending))
        session.last_round, session.draft, session.verdict = round_number, draft, None

    def follow(self, frame: Follow) -> Draft | None:
        """Accept a draft that was sent ahead of a verdict. If that verdict has already been sent, returns the round that now begins."""
        number, round_number = frame.session, frame.round_number
        session, _ = self._find(number, round_number)
        _check_round_number(session, frame)
        _check_rows(session, frame, len(frame.ids))
        session.last_round = round_number
        if session.draft is None:
            return self._begin_matching(session, [frame])
        if frame.after != session.draft.round_number:
            return None  # it was sent ahead of a refused round's verdict
        if len(session.follows) >= MAX_FOLLOWS:
            message = f"session {number}: the limit is {MAX_FOLLOWS} drafts ahead of a verdict"
            raise FrameSizeError(message, session=number, round_number=round_number)
        session.follows.append(frame if session.rule.kind is RuleKind.SAMPLE else replace(frame, rows=()))  # other rules need no rows
        return None

    def _begin_matching(self, session: _ServerSession, follows: Sequence[Follow]) -> Draft | None:
        """Begin the round of the draft that expected the last verdict, and return the round. Returns None if no draft expected it."""
        verdict = session.verdict
        matching = None if verdict is None else next((follow for follow in follows if follow.matches(verdict)), None)
        if matching is None or session.length is None:
            return None
        begun = matching.as_round(session.length)
        self._check_length(session.length + begun.longest, matching.session, matching.round_number)
        session.draft, session.verdict = begun, None
        return begun

    def end_round(self, verdict: VerdictFrame) -> bool:
        """Apply a verdict to the context. ``begin_matching`` may be called next. Returns False if the verdict's round is already over."""
        session = self._by_number.get(verdict.session)
        draft = None if session is None else session.draft
        if session is None or draft is None or draft.round_number != verdict.round_number:
            return False
        assert verdict.accepted <= len(draft.pending), "no more is accepted than was drafted"
        assert verdict.token is not None or draft.parents or verdict.accepted == len(draft.pending), "what isn't accepted is corrected"
        assert len(verdict.rows) in {0, len(draft.pending) + 1}, "a row belongs to each position, or none does"
        session.draft, session.verdict = None, replace(verdict, rows=())  # without rows, because it may be kept for long
        session.length = draft.length_after(verdict)
        return True

    def begin_matching(self, number: int) -> Draft | None:
        """After a verdict, begin the round of the draft that expected it, and return the round. Returns None if no draft expected it."""
        session = self._by_number[number]
        follows, session.follows = session.follows, []
        return self._begin_matching(session, follows)

    def drop_round(self, number: int | None, round_number: int | None) -> None:
        """End a round without a verdict. The context stays as it was before the round."""
        session = self._by_number.get(-1 if number is None else number)
        if session is not None and session.draft is not None and session.draft.round_number == round_number:
            session.draft = None
            session.follows.clear()

    def _check_number(self, number: int) -> None:
        if number <= self._last:
            raise SessionNumberError(f"session {number}: expected a number above {self._last}, the last one's")
        self._last = number
        if len(self._by_number) >= self._limits.sessions:
            raise SessionLimitError(f"session {number}: the limit is {self._limits.sessions} sessions at once", session=number)

    def _find(self, number: int, round_number: int | None) -> tuple[_ServerSession, int]:
        """Return an open session and the length of its context."""
        session = self._by_number.get(number)
        if session is None:
            raise UnknownSessionError(f"session {number}: is not open", session=number)
        if session.length is None:
            message = f"session {number}: expected nothing before it is resumed, got a frame"
            raise UnexpectedFrameError(message, session=number, round_number=round_number)
        return session, session.length

    def _find_idle(self, number: int, base: int, round_number: int | None) -> _ServerSession:
        """Return a session, and check that none of its rounds is being verified and that its context has at least ``base`` tokens."""
        session, length = self._find(number, round_number)
        if session.draft is not None:
            message = f"session {number}: expected nothing before the verdict of round {session.draft.round_number}, got a frame"
            raise StaleRoundError(message, session=number, round_number=round_number)
        if base > length:
            message = f"session {number}: expected a base of at most {length}, got {base}"
            raise WrongBaseError(message, session=number, round_number=round_number)
        return session

    def _check_length(self, length: int, number: int, round_number: int | None) -> None:
        limit = self._limits.context_tokens
        if length > limit:
            message = f"session {number}: expected at most {limit} tokens, got {length}"
            raise ContextFullError(message, session=number, round_number=round_number)


def _check_round_number(session: _ServerSession, frame: Draft | Follow) -> None:
    """Check that a round's number is above the number of the session's last round."""
    if frame.round_number <= session.last_round:
        message = f"session {frame.session}: expected a round above {session.last_round}, got {frame.round_number}"
        raise StaleRoundError(message, session=frame.session, round_number=frame.round_number)


def _check_rows(session: _ServerSession, frame: Draft | Follow, count: int) -> None:
    """Check that a draft under the rule ``sample`` has a row for each of the ``count`` ids to verify."""
    if session.rule.kind is RuleKind.SAMPLE and len(frame.rows) != count:
        what = type(frame).__name__.lower()
        message = f"{what}: expected a row for each of {count} ids to verify, got {len(frame.rows)} rows"
        raise MalformedFrameError(message, session=frame.session, round_number=frame.round_number)


AcceptedFrame = Hello | Open | Extend | Draft | Resume | Close
"""The frames that ``receive`` can return for the shell to carry out."""


class VerifyServer(ServerEnd[VerifyCodec, AcceptedFrame]):
    """The server's state for one connection.

    A ``Follow`` that ``receive`` accepts is kept here until the verdict that it expects is sent. Then ``take_begun_rounds`` returns it as a
    ``Draft``.

    Args:
        codec: codec for the target model's vocabulary, with the limits that the welcome announces.
        vocabulary: fingerprint of that vocabulary.
        model: the target model's name in the welcome.
        rules: the kinds of rules by which the server can verify.
        resume_s: how long sessions of a lost connection are kept, in seconds.
        is_exact: True if sampling keeps the target's distribution exactly.
        max_faults: the connection ends after this many faulty frames.
        row_costs: how long a verification takes, by its number of rows, or () if that isn't known.
    """

    def __init__(
        self,
        codec: VerifyCodec,
        vocabulary: str,
        *,
        model: str = "",
        rules: frozenset[RuleKind] = frozenset(RuleKind),
        resume_s: int = 60,
        is_exact: bool = True,
        max_faults: int = MAX_FAULTS,
        row_costs: Sequence[RowCost] = (),
    ) -> None:
        mask = sum(1 << kind for kind in rules)
        welcome = Welcome(VERSIONS[1], model, mask, codec.limits, resume_s, is_exact, tuple(row_costs))
        super().__init__(codec, welcome, max_faults=max_faults)
        self.vocabulary = vocabulary
        self._sessions = ServerSessions(codec.limits, rules)
        self._begun: list[Draft] = []

    @property
    def sessions(self) -> tuple[int, ...]:
        """The numbers of the live sessions."""
        return self._sessions.numbers()

    def take_begun_rounds(self) -> list[Draft]:
        """Return the rounds that verdicts have begun since the last call. Carry them out like frames from ``receive``."""
        begun, self._begun = self._begun, []
        return begun

    def send(self, frame: Opened | VerdictFrame) -> bool:
        """Answer an open or a draft. Returns False and sends nothing if the session or its round is already over.

        Raises:
            VerifyProtocolError: the codec can't write this frame.
        """
        message = self.codec.encode(frame)
        if not (self._sessions.end_round(frame) if isinstance(frame, VerdictFrame) else frame.session in self._sessions):
            return False
        self._messages.append(message)
        if isinstance(frame, VerdictFrame):
            self._begin_matching(frame.session)
        return True

    def _begin_matching(self, session: int) -> None:
        try:
            draft = self._sessions.begin_matching(session)
        except VerifyProtocolError as error:
            self._answer(error)
        else:
            self._begun += [] if draft is None else [draft]

    def resume(self, frame: Resumed, rule: Rule) -> bool:
        """Answer a resume. ``rule`` is the one that the session was opened with. Returns False and sends nothing if the session is gone."""
        if not self._sessions.resumed(frame.session, frame.base, rule):
            return False
        self._messages.append(self.codec.encode(frame))
        return True

    def refuse(self, error: VerifyProtocolError) -> None:
        """Send the shell's error to the client, and end the round, session or connection that it affects (``error.scope``)."""
        if error.scope == "round":
            self._sessions.drop_round(error.session, error.round_number)
        self._answer(error)

    def _has_session(self, session: int | None) -> bool:
        return session in self._sessions

    def _end_session(self, session: int | None) -> bool:
        return self._sessions.end(session)

    def _read(self, message: bytes) -> AcceptedFrame | None:
        if not self._has_hello:
            return self._read_hello(message)
        if not self._is_welcome:
            raise HelloExpectedError("connection: expected nothing between a hello and its welcome, got a frame")
        frame = self.codec.decode_up(message)
        match frame:
            case Draft():
                self._sessions.begin_round(frame)
            case Follow():
                return self._sessions.follow(frame)
            case Extend():
                self._sessions.extend(frame)
            case Open():
                self._sessions.open(frame)
            case Resume():
                self._sessions.resume(frame.session)
            case Close():
                return frame if self._sessions.end(frame.session) else None
            case Hello():
                raise UnexpectedFrameError("hello: expected one per connection, got a second one")
            case _ as never:
                assert_never(never)
        return frame

    def _read_hello(self, message: bytes) -> Hello:
        if len(message) > self.codec.limits.frame_bytes:
            raise FrameSizeError(f"hello: expected at most {self.codec.limits.frame_bytes} bytes, got {len(message)}")
        number = frame_number(message)
        if number != HELLO:
            raise HelloExpectedError(f"connection: expected a hello first (frame {HELLO}), got frame {number}")
        first, last = hello_versions(message)
        if first > VERSIONS[1] or last < VERSIONS[0]:
            raise VersionError(f"hello: expected a version from {VERSIONS[0]} to {VERSIONS[1]}, got {first} to {last}")
        hello = self.codec.decode_up(message)
        assert isinstance(hello, Hello), "its number says so"
        if (hello.vocabulary, hello.vocabulary_size) != (self.vocabulary, self.codec.vocabulary_size):
            raise VocabularyError(
                f"hello: expected vocabulary {self.vocabulary} of {self.codec.vocabulary_size} ids, "
                f"got {hello.vocabulary} of {hello.vocabulary_size}"
            )
        self._has_hello = True
        return hello
