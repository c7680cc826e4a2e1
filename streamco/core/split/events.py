"""The events and commands of one answer of split inference. Rows are counted from 0; row n belongs to token n."""

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
    """The tokens from ``length`` on were dropped. Only while no deep states are awaited."""

    length: int


class RowsComputed(Struct, frozen=True):
    """The device has the shallow states of all rows before ``stop``."""

    stop: int


class SessionReady(Struct, frozen=True):
    """A server takes rows; it holds the first ``length`` of them, 0 in a new session.

    With ``is_new`` the session was opened or resumed; otherwise it is the former attempt's, which continues after a refusal for load.
    """

    attempt: int
    length: int
    is_new: bool = True


class SessionLost(Struct, frozen=True):
    """The session of this attempt is gone, or its unanswered rows were refused. With ``may_resume``, its positions may have been kept."""

    attempt: int
    may_resume: bool


class StatesArrived(Struct, frozen=True):
    """The oldest unanswered rows of this attempt are answered. A driver that has the states subclasses this event."""

    attempt: int


class AnswerEnded(Struct, frozen=True):
    """The answer is over: complete, failed, or no longer wanted."""


SplitEvent = RowsAdded | Truncated | RowsComputed | SessionReady | SessionLost | StatesArrived | AnswerEnded


class ComputeRows(Struct, frozen=True):
    """Compute the shallow states of rows ``start`` to ``stop`` (exclusive), and keep them."""

    start: int
    stop: int


class OpenSession(Struct, frozen=True):
    """Open a session at a server, or resume the last one; answered with ``SessionReady`` or ``SessionLost``."""

    attempt: int
    may_resume: bool


class SendRows(Struct, frozen=True):
    """Send the shallow states of rows ``start`` to ``stop`` (exclusive); the states of the last ``wanted`` come back."""

    attempt: int
    start: int
    stop: int
    wanted: int


class CloseSession(Struct, frozen=True):
    """End the session at the server, whether it is open or being opened."""


SplitCommand = ComputeRows | OpenSession | SendRows | CloseSession
