"""Errors of the verifier protocol: one class for each refusal code, the same on both sides.

::

    VerifyProtocolError
    ├── MalformedFrameError    malformed             ├── UnknownSessionError   unknown_session
    ├── FrameSizeError         too_large             ├── SessionNumberError    session_number
    ├── UnexpectedFrameError   unexpected            ├── SessionLimitError     too_many_sessions
    ├── HelloExpectedError     hello_expected     *  ├── RuleError             unsupported_rule
    ├── VersionError           unsupported_version * ├── WrongBaseError        wrong_base
    ├── UnauthorisedError      unauthorised       *  ├── StaleRoundError       stale_round
    ├── VocabularyError        vocabulary_mismatch * ├── ContextFullError      context_full
    ├── ModelMismatchError     model_mismatch     *  ├── OverloadedError       overloaded, .retry_after
    ├── FaultLimitError        too_many_faults    *  ├── NotResumableError     not_resumable
    ├── ShuttingDownError      shutting_down      *  ├── EvictedError          evicted
    └── VerifierFailedError    failed

Errors with a star end the connection. Any other error that names a session and a round ends that round: the draft is refused, and the
session is as it was before. If it names only a session, it ends the session. If it names neither, it ends nothing: its frame was ignored.
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
    "ModelMismatchError",
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
    """A frame that was refused by this side or by the peer. The class itself stands for codes that this version doesn't know.

    Args:
        message: what was expected, what came, and where; lower case, no full stop.
        session: number of the session that it is about. None if there is none, or it isn't known.
        round_number: number of the round that it is about. None if there is none, or it isn't known.
        retry_after: seconds until a retry makes sense. None if not known.
    """

    code = "unknown"
    is_fatal = False  # ends the connection
    is_fault = False  # counted by the other side, because no working peer causes it

    def __init__(
        self, message: str, *, session: int | None = None, round_number: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.session = session
        self.round_number = round_number
        self.retry_after = retry_after

    @property
    def scope(self) -> Scope:
        """The scope that the error ends; "frame" means that only its frame was ignored."""
        if self.is_fatal:
            return "connection"
        if self.session is None:
            return "frame"
        return "session" if self.round_number is None else "round"


class MalformedFrameError(VerifyProtocolError):
    """The bytes aren't a frame of this protocol, or a field has an impossible value."""

    code = "malformed"
    is_fault = True


class FrameSizeError(VerifyProtocolError):
    """The frame has more bytes, ids, rows or candidates than the limit."""

    code = "too_large"
    is_fault = True


class UnexpectedFrameError(VerifyProtocolError):
    """A well-formed frame came at a time when it has no meaning."""

    code = "unexpected"
    is_fault = True


class HelloExpectedError(VerifyProtocolError):
    """The first frame is not a hello, or another frame followed it before the welcome."""

    code = "hello_expected"
    is_fatal = True


class VersionError(VerifyProtocolError):
    """The two sides have no version of the protocol in common."""

    code = "unsupported_version"
    is_fatal = True


class UnauthorisedError(VerifyProtocolError):
    """The bearer token is missing, or isn't one of the server's."""

    code = "unauthorised"
    is_fatal = True


class VocabularyError(VerifyProtocolError):
    """The two sides mean different tokens by the same ids."""

    code = "vocabulary_mismatch"
    is_fatal = True


class ModelMismatchError(VerifyProtocolError):
    """The two sides of the split protocol hold layers of different models, or the server doesn't compute the layers needed."""

    code = "model_mismatch"
    is_fatal = True


class FaultLimitError(VerifyProtocolError):
    """The peer has sent too many faulty frames, so no more of its frames are read."""

    code = "too_many_faults"
    is_fatal = True


class ShuttingDownError(VerifyProtocolError):
    """The server is stopping. Its sessions are lost, unless it still has them when it is back."""

    code = "shutting_down"
    is_fatal = True


class UnknownSessionError(VerifyProtocolError):
    """The connection has no such session: it was never opened, or refused, closed or evicted."""

    code = "unknown_session"


class SessionNumberError(VerifyProtocolError):
    """The number of a new session is not above all earlier ones of its connection."""

    code = "session_number"
    is_fault = True


class SessionLimitError(VerifyProtocolError):
    """The connection has more simultaneous sessions than it may have."""

    code = "too_many_sessions"


class RuleError(VerifyProtocolError):
    """The server doesn't verify by this rule."""

    code = "unsupported_rule"


class WrongBaseError(VerifyProtocolError):
    """The base of a frame lies beyond the end of the context."""

    code = "wrong_base"


class StaleRoundError(VerifyProtocolError):
    """A round is still being verified, or the new round's number is not above the last one's."""

    code = "stale_round"


class ContextFullError(VerifyProtocolError):
    """The context, or the length that the session reserves, is above the server's limit."""

    code = "context_full"


class OverloadedError(VerifyProtocolError):
    """The server has no capacity now; a retry makes sense after ``retry_after`` seconds."""

    code = "overloaded"


class NotResumableError(VerifyProtocolError):
    """The session is gone, belongs to another client, or has a different context."""

    code = "not_resumable"


class EvictedError(VerifyProtocolError):
    """The server gave up the session. Its key may still resume it."""

    code = "evicted"


class VerifierFailedError(VerifyProtocolError):
    """The target model failed while it verified for this session."""

    code = "failed"


_BY_CODE = {kind.code: kind for kind in VerifyProtocolError.__subclasses__()}


def error_for(
    code: str, message: str, *, session: int | None = None, round_number: int | None = None, retry_after: float | None = None
) -> VerifyProtocolError:
    """Return the error for a code. An unknown code gives an instance of the root class with that ``code``.

    Args:
        code: code of a ``Refusal``.
        message, session, round_number, retry_after: see ``VerifyProtocolError``.
    """
    error = _BY_CODE.get(code, VerifyProtocolError)(message, session=session, round_number=round_number, retry_after=retry_after)
    error.code = code
    return error
