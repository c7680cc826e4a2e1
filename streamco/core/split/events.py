"""The events and commands for one answer of split inference. Rows are counted from 0, and row n belongs to token n."""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "AnswerEnded",
    "CloseSession",
    "ComputeRows",
    "OpenSession",
    "RowsAdded",
    "RowsComputed",
    "SendRows",
    "SessionLost",
    "SessionReady",
    "SplitCommand",
    "SplitEvent",
    "StatesArrived",
    "Truncated",
]


class RowsAdded(Struct, frozen=True):
    """The sequence has grown to ``length`` tokens, and the deep states of the last ``wanted`` rows are needed."""

    length: int
    wanted: int


class Truncated(Struct, frozen=True):
    """The sequence was cut to ``length`` tokens. This may happen only while no deep states are awaited."""

    length: int


class RowsComputed(Struct, frozen=True):
    """The device has the shallow states of all rows before ``stop``."""

    stop: int


class SessionReady(Struct, frozen=True):
    """A server is ready for rows. It has the first ``length`` of them, which is 0 in a new session.

    If ``is_new``, the session was opened or resumed. Otherwise it is the previous attempt's session, which continues after a refusal for
    load.
    """

    attempt: int
    length: int
    is_new: bool = True


class SessionLost(Struct, frozen=True):
    """The session of this attempt is gone, or its unanswered rows were refused. If ``may_resume``, the server may still have its rows."""

    attempt: int
    may_resume: bool


class StatesArrived(Struct, frozen=True):
    """The oldest unanswered rows of this attempt were answered. A driver adds the states in a subclass of this event."""

    attempt: int


class AnswerEnded(Struct, frozen=True):
    """The answer is over, because it is complete, has failed, or is no longer wanted."""


SplitEvent = RowsAdded | Truncated | RowsComputed | SessionReady | SessionLost | StatesArrived | AnswerEnded


class ComputeRows(Struct, frozen=True):
    """Compute the shallow states of rows ``start`` to ``stop`` (exclusive), and keep them."""

    start: int
    stop: int


class OpenSession(Struct, frozen=True):
    """Open a session at a server, or resume the last one. ``SessionReady`` or ``SessionLost`` answers this."""

    attempt: int
    may_resume: bool


class SendRows(Struct, frozen=True):
    """Send the shallow states of rows ``start`` to ``stop`` (exclusive). The server returns the deep states of the last ``wanted`` rows."""

    attempt: int
    start: int
    stop: int
    wanted: int


class CloseSession(Struct, frozen=True):
    """End the session at the server, whether it is open or being opened."""


SplitCommand = ComputeRows | OpenSession | SendRows | CloseSession
