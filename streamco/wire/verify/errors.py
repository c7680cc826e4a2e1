"""Errors of the verifier protocol: one class for each refusal code, used by both sides.

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

Errors with a star end the connection. Any other error that names a session and a round ends that round, so the draft is refused, and the
session stays as it was before. An error that names only a session ends the session. An error that names neither ends nothing, because only
its frame was ignored.
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
    """This side or the peer refused a frame. The class itself is used for codes that this version doesn't know.

    Args:
        message: what was expected, what came instead, and where, in lower case and without a full stop.
        session: number of the session that the error is about, or None if there is none or it isn't known.
        round_number: number of the round that the error is about, or None if there is none or it isn't known.
        retry_after: seconds until a retry makes sense, or None if that isn't known.
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
        """What the error ends: the connection, a session or a round. "frame" means that only the frame was ignored."""
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
    """The frame has more bytes, ids, rows or candidates than the limit allows."""

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
    """The two sides don't support a common version of the protocol."""

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
    """The two sides of the split protocol have layers of different models, or the server doesn't compute the layers needed."""

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
    """The connection has no such session, because it was never opened, or was refused, closed or evicted."""

    code = "unknown_session"


class SessionNumberError(VerifyProtocolError):
    """The number of a new session is not above the numbers of all earlier sessions of its connection."""

    code = "session_number"
    is_fault = True


class SessionLimitError(VerifyProtocolError):
    """The connection already has as many sessions as it may have."""

    code = "too_many_sessions"


class RuleError(VerifyProtocolError):
    """The server doesn't verify by this rule."""

    code = "unsupported_rule"


class WrongBaseError(VerifyProtocolError):
    """A frame's base is beyond the end of the context."""

    code = "wrong_base"


class StaleRoundError(VerifyProtocolError):
    """A round is still being verified, or the new round's number is not above the last round's number."""

    code = "stale_round"


class ContextFullError(VerifyProtocolError):
    """The context, or the length that the session reserves, is above the server's limit."""

    code = "context_full"


class OverloadedError(VerifyProtocolError):
    """The server has no capacity now. A retry makes sense after ``retry_after`` seconds."""

    code = "overloaded"


class NotResumableError(VerifyProtocolError):
    """The session is gone, belongs to another client, or has a different context."""

    code = "not_resumable"


class EvictedError(VerifyProtocolError):
    """The server gave up the session, or another connection has resumed it. The session's key may still resume it."""

    code = "evicted"


class VerifierFailedError(VerifyProtocolError):
    """The target model failed while it was verifying for this session."""

    code = "failed"


_BY_CODE = {kind.code: kind for kind in VerifyProtocolError.__subclasses__()}


def error_for(
    code: str, message: str, *, session: int | None = None, round_number: int | None = None, retry_after: float | None = None
) -> VerifyProtocolError:
    """Return the error for a refusal code. For an unknown code this is a ``VerifyProtocolError`` with that ``code``.

    Args:
        code: code of a ``Refusal``.
        message, session, round_number, retry_after: see ``VerifyProtocolError``.
    """
    error = _BY_CODE.get(code, VerifyProtocolError)(message, session=session, round_number=round_number, retry_after=retry_after)
    error.code = code
    return error
