"""The server's end of one connection, without the connection: which frame is allowed when, and what those that aren't are answered.

The shell hands every message to ``receive`` and carries out the frame it gets back, if any; it sends what ``take_messages`` gives.
Everything the protocol says about order, numbers and lengths holds for the frames that get through, so the shell need not look again. A
message that doesn't get through has been answered with a refusal, and the connection goes on unless ``is_closed``.
"""

from __future__ import annotations

from typing import assert_never

from streamco.wire.verify.frames import (
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
    Rule,
    RuleKind,
    Verdict,
    Welcome,
)
from streamco.wire.verify.codec import HELLO, VerifyCodec, frame_number, hello_versions
from streamco.wire.verify.errors import (
    FaultLimitError,
    FrameSizeError,
    HelloExpectedError,
    MalformedFrameError,
    UnexpectedFrameError,
    VerifyProtocolError,
    VersionError,
    VocabularyError,
)
from streamco.wire.verify_sessions import ServerSessions

__all__ = ["Told", "VerifyServer"]

Told = Hello | Open | Extend | Draft | Resume | Close
"""What a server's shell acts upon."""


class VerifyServer:
    """One connection of a server.

    Args:
        codec: of the target model's vocabulary, with the limits that are announced.
        vocabulary: the fingerprint.
        model: what the welcome calls it.
        rules: the kinds of rule it can verify by.
        resume_s: seconds that a lost connection's sessions are kept.
        is_exact: sampling keeps the target's distribution exactly.
        max_faults: frames that no working client sends, before the connection is ended.
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
        max_faults: int = 16,
    ) -> None:
        self.codec = codec
        self.vocabulary = vocabulary
        self.is_closed = False
        self.faults = 0  # of the peer
        mask = sum(1 << kind for kind in rules)
        self._welcome = Welcome(VERSIONS[1], model, mask, codec.limits, resume_s, is_exact)
        self._max_faults = max_faults
        self._hello: Hello | None = None
        self._is_welcome = False
        self._sessions = ServerSessions(codec.limits, rules)
        self._messages: list[bytes] = []
        self._begun: list[Draft] = []

    @property
    def sessions(self) -> tuple[int, ...]:
        """The numbers of the sessions that live."""
        return self._sessions.numbers()

    def take_messages(self) -> list[bytes]:
        """What to send, in order; each message is handed out once. Where ``is_closed``, close the connection behind them."""
        messages, self._messages = self._messages, []
        return messages

    def take_begun(self) -> list[Draft]:
        """Rounds that have begun with the verdicts that were sent: to be acted upon like a frame that ``receive`` gives."""
        begun, self._begun = self._begun, []
        return begun

    def receive(self, message: bytes | str) -> Told | None:
        """The frame to act upon, None where there is nothing to do; a session that ended by a fault of the client's is told as ``Close``.

        A ``Follow`` is kept here until its verdict is sent, and told as the ``Draft`` that it then is.

        Never raises for what the peer sent.
        """
        if self.is_closed:
            return None
        try:
            if isinstance(message, str):
                raise MalformedFrameError(f"message: expected bytes, got text of {len(message)} characters")
            return self._read(message)
        except VerifyProtocolError as error:
            lost = error.session if error.scope == "session" and error.session in self._sessions else None
            self._answer(error)  # its round, if any, is another than the one that is out, or the same number once more
            return None if lost is None or self.is_closed else Close(lost)

    def welcome(self) -> None:
        """Accept the hello that ``receive`` gave (its token is the shell's to check); ``refuse`` it otherwise."""
        assert self._hello is not None, "a hello is what a welcome answers"
        self._is_welcome = True
        self._messages.append(self.codec.encode(self._welcome))

    def send(self, frame: Opened | Verdict) -> bool:
        """Answer an open or a draft; False where the session or its round is gone meanwhile, and nothing is sent.

        Raises:
            VerifyProtocolError: the frame is none that this codec can write.
        """
        message = self.codec.encode(frame)
        if not (self._sessions.end_round(frame) if isinstance(frame, Verdict) else frame.session in self._sessions):
            return False
        self._messages.append(message)
        if isinstance(frame, Verdict):
            self._begin_met(frame.session)
        return True

    def _begin_met(self, session: int) -> None:
        try:
            draft = self._sessions.begin_met(session)
        except VerifyProtocolError as error:
            self._answer(error)
        else:
            self._begun += [] if draft is None else [draft]

    def resume(self, frame: Resumed, rule: Rule) -> bool:
        """Answer a resume, with the rule that the session was opened with; False where it is gone meanwhile, and nothing is sent."""
        if not self._sessions.resumed(frame.session, frame.base, rule):
            return False
        self._messages.append(self.codec.encode(frame))
        return True

    def refuse(self, error: VerifyProtocolError) -> None:
        """Tell an error of the shell, and let end what it ends (``error.scope``)."""
        if error.scope == "round":
            self._sessions.drop_round(error.session, error.round_number)
        self._answer(error)

    def _answer(self, error: VerifyProtocolError) -> None:
        """Tell an error, and let end what it ends but a round."""
        if self.is_closed:
            return
        self._messages.append(self.codec.encode(Refusal.of(error)))
        match error.scope:
            case "connection":
                self.is_closed = True
            case "session":
                self._sessions.end(error.session)
            case "round" | "frame":
                pass
            case _ as never:
                assert_never(never)
        if error.is_fault:
            self.faults += 1
            if self.faults >= self._max_faults:
                self._answer(FaultLimitError("connection: expected frames of this protocol, got too many that are not"))

    def _read(self, message: bytes) -> Told | None:
        if self._hello is None:
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
                raise UnexpectedFrameError("hello: expected one a connection, got another")
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
        self._hello = hello
        return hello
