"""What can go wrong between a device and its verifier: one class a code, the same on both sides of the wire.

::

    VerifyProtocolError
    ├── MalformedFrameError    malformed             ├── UnknownSessionError   unknown_session
    ├── FrameSizeError         too_large             ├── SessionNumberError    session_number
    ├── UnexpectedFrameError   unexpected            ├── SessionLimitError     too_many_sessions
    ├── HelloExpectedError     hello_expected     *  ├── RuleError             unsupported_rule
    ├── VersionError           unsupported_version * ├── WrongBaseError        wrong_base
    ├── UnauthorisedError      unauthorised       *  ├── StaleRoundError       stale_round
    ├── VocabularyError        vocabulary_mismatch * ├── ContextFullError      context_full
    ├── FaultLimitError        too_many_faults    *  ├── OverloadedError       overloaded, .retry_after
    ├── ShuttingDownError      shutting_down      *  ├── NotResumableError     not_resumable
    └── VerifierFailedError    failed                └── EvictedError          evicted

Those with a star end the connection. Of the others, one that names a session and a round ends that round (the draft is refused, the session
is as it was before it), one that names a session ends the session, one that names neither ends nothing: its frame was left out.
"""

from __future__ import annotations

from typing import Literal

from streamco.errors import VerifierError

__all__ = [
    "ContextFullError",
    "EvictedError",
    "FaultLimitError",
    "FrameSizeError",
    "HelloExpectedError",
    "MalformedFrameError",
    "NotResumableError",
    "OverloadedError",
    "RuleError",
    "Scope",
    "SessionLimitError",
    "SessionNumberError",
    "ShuttingDownError",
    "StaleRoundError",
    "UnauthorisedError",
    "UnexpectedFrameError",
    "UnknownSessionError",
    "VerifierFailedError",
    "VerifyProtocolError",
    "VersionError",
    "VocabularyError",
    "WrongBaseError",
    "error_for",
]

Scope = Literal["connection", "session", "round", "frame"]


class VerifyProtocolError(VerifierError):
    """A frame was refused, by this side or by the other. The class itself stands for codes this version doesn't know.

    Args:
        message: expected, got, where; lower case, no full stop.
        session: the session it is about; None: none, or not known.
        round_number: the round it is about; None: none, or not known.
        retry_after: seconds until another try makes sense; None: not said.
    """

    code = "unknown"
    is_fatal = False  # it ends the connection
    is_fault = False  # no working peer causes it: the other side counts these

    def __init__(
        self, message: str, *, session: int | None = None, round_number: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.session = session
        self.round_number = round_number
        self.retry_after = retry_after

    @property
    def scope(self) -> Scope:
        """What it ends."""
        if self.is_fatal:
            return "connection"
        if self.session is None:
            return "frame"
        return "session" if self.round_number is None else "round"


class MalformedFrameError(VerifyProtocolError):
    """The bytes are no frame of this protocol, or a field can't be what it says."""

    code = "malformed"
    is_fault = True


class FrameSizeError(VerifyProtocolError):
    """More bytes, ids, rows or candidates than the limit."""

    code = "too_large"
    is_fault = True


class UnexpectedFrameError(VerifyProtocolError):
    """A well-formed frame at a time when it has no meaning."""

    code = "unexpected"
    is_fault = True


class HelloExpectedError(VerifyProtocolError):
    """The first frame is not a hello, or something followed it before the welcome."""

    code = "hello_expected"
    is_fatal = True


class VersionError(VerifyProtocolError):
    """The two sides share no version."""

    code = "unsupported_version"
    is_fatal = True


class UnauthorisedError(VerifyProtocolError):
    """No token, or not one of the server's."""

    code = "unauthorised"
    is_fatal = True


class VocabularyError(VerifyProtocolError):
    """The two sides mean different tokens by the same ids."""

    code = "vocabulary_mismatch"
    is_fatal = True


class FaultLimitError(VerifyProtocolError):
    """The peer has sent so many faulty frames that nothing it says is worth reading."""

    code = "too_many_faults"
    is_fatal = True


class ShuttingDownError(VerifyProtocolError):
    """The server is going away; its sessions are lost unless it says otherwise when it is back."""

    code = "shutting_down"
    is_fatal = True


class UnknownSessionError(VerifyProtocolError):
    """No such session on this connection: never opened, refused, closed or evicted."""

    code = "unknown_session"


class SessionNumberError(VerifyProtocolError):
    """The number of a new session is not above all earlier ones of the connection."""

    code = "session_number"
    is_fault = True


class SessionLimitError(VerifyProtocolError):
    """More sessions at once than a connection may have."""

    code = "too_many_sessions"


class RuleError(VerifyProtocolError):
    """The server doesn't verify by this rule."""

    code = "unsupported_rule"


class WrongBaseError(VerifyProtocolError):
    """Ids begin behind the end of the context."""

    code = "wrong_base"


class StaleRoundError(VerifyProtocolError):
    """A round is still being verified, or its number is not above the last one's."""

    code = "stale_round"


class ContextFullError(VerifyProtocolError):
    """The context, or what the session wants reserved, is longer than the server's limit."""

    code = "context_full"


class OverloadedError(VerifyProtocolError):
    """Admission control: come back after ``retry_after`` seconds."""

    code = "overloaded"


class NotResumableError(VerifyProtocolError):
    """The session is gone, belongs to somebody else, or its context is another one."""

    code = "not_resumable"


class EvictedError(VerifyProtocolError):
    """The server gave the session up; its key may still resume it."""

    code = "evicted"


class VerifierFailedError(VerifyProtocolError):
    """The target model failed at this session."""

    code = "failed"


_BY_CODE = {kind.code: kind for kind in VerifyProtocolError.__subclasses__()}


def error_for(
    code: str, message: str, *, session: int | None = None, round_number: int | None = None, retry_after: float | None = None
) -> VerifyProtocolError:
    """Return the error that a code stands for; an unknown code gives the root class with that ``code``."""
    error = _BY_CODE.get(code, VerifyProtocolError)(message, session=session, round_number=round_number, retry_after=retry_after)
    error.code = code
    return error
