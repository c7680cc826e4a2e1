"""The one place that decides whether a streamed answer is whole, for all APIs.

Servers end answers in many ways. Some send a finish reason with every chunk, some send one before the text, some say in the finish reason
that they gave up, and some close the connection without any. A truncated answer must never count as whole, because then nobody would
continue it. The rules:

- A blank reason (``""``, ``"null"``, ``false``, Gemini's ``FINISH_REASON_UNSPECIFIED``) doesn't count. A reason that means a failure fails
  the answer.
- Output after a choice's reason takes the reason back. From then on no reason ends the answer by itself. Only a formal end does:
  ``[DONE]``, an end event of the API, or a proper end of the HTTP body.
- An answer without output can only end formally. It fails there if it has no reason, or if its choices had unread fields that may hold
  the text. Such fields don't matter if the reason says why the answer is empty: a content filter or a limit.
- An answer of several choices ends without a formal end only when each requested choice has its reason, even one that never began.
- A lost connection or a silence before the answer is whole is a failure.
"""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["Completeness", "End", "is_failure", "read_reason"]

End = Literal["whole", "cut", "empty"]

_BLANK = frozenset({"", "null", "none", "unspecified", "finish_reason_unspecified"})
_EMPTY_BY = frozenset({"content_filter", "length"})  # reasons for which an answer may have no output
_FAILURES = frozenset({
    "abort",
    "aborted",
    "cancelled",
    "canceled",
    "engine_error",
    "error",
    "error_finish",
    "failed",
    "failure",
    "insufficient_system_resource",  # DeepSeek
    "internal_error",
    "internal_server_error",
    "network_error",  # GLM
    "overloaded",
    "server_error",
    "service_unavailable",
    "timeout",
    "upstream_error",
})  # fmt: skip


def read_reason(value: Any) -> str | None:
    """Return a finish reason as a server wrote it, or None if it is blank, null, a boolean, 0, a list or an object."""
    if isinstance(value, str):
        return None if value.strip().lower() in _BLANK else value
    return str(value) if value and isinstance(value, int | float) and not isinstance(value, bool) else None


def is_failure(reason: str) -> bool:
    """Return True if a finish reason says that the server failed or gave up."""
    return reason.strip().lower().replace("-", "_") in _FAILURES


class Completeness:
    """Collects the signs that one answer has ended, and decides whether it is whole. Each parser owns one.

    Args:
        choices: number of choices that were requested. If it is None, the choices that come count as all of them.
    """

    __slots__ = (
        "_choices",
        "_finished",
        "_has_end",
        "_has_unread",
        "_seen",
        "_taken_back",
        "failure",
        "has_output",
        "has_reason",
        "is_noted",
    )

    def __init__(self, *, choices: int | None = None) -> None:
        self._choices = choices or 1
        self.failure: str | None = None
        """A finish reason that means a failure, if one came."""
        self.has_output = False
        """True if any part of the answer has come: text, reasoning, refusal, a call, media, or another non-empty field of a delta."""
        self.is_noted = False
        """True if ``note_output`` was called."""
        self.has_reason = False
        """True if some choice has a finish reason that no later output has taken back."""
        self._seen: set[int] = set()  # choices
        self._finished: dict[int, str] = {}  # reasons that nothing has taken back
        self._taken_back: str | None = None  # the last reason that was taken back
        self._has_end = False
        self._has_unread = False

    @property
    def had_reason(self) -> bool:
        """True if a finish reason ever came, even if output has taken it back."""
        return bool(self._finished) or self._taken_back is not None

    @property
    def has_choice(self) -> bool:
        """True if any choice has come."""
        return bool(self._seen)

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the first choice, or of another choice while the first has none.

        After a formal end, a reason that was taken back counts again if no other one came.
        """
        for reason in (self._finished.get(0), *self._finished.values()):
            if reason is not None:
                return reason
        return self._taken_back if self._has_end else None

    @property
    def is_whole(self) -> bool:
        """True if the answer needs nothing more, so that a connection lost or silent from now on does no harm."""
        if self._has_end or not self.has_reason:
            return self._has_end
        is_finished = len(self._finished) >= self._choices and self._all_finished()
        return is_finished and self.has_output and self._taken_back is None and self.failure is None

    def record_output(self, choice: int = 0) -> None:
        """Record that a choice continues, which takes back its finish reason if it had one."""
        self.has_output = True
        self._seen.add(choice)
        if self.has_reason:
            self._taken_back = self._finished.pop(choice, None) or self._taken_back
            self.has_reason = bool(self._finished)

    def note_output(self) -> None:
        """Record output of the first choice while it has no reason. Cheaper than ``record_output``; one call is enough."""
        self.has_output = self.is_noted = True
        self._seen.add(0)

    def record_choice(self, choice: int = 0, *, has_unread: bool = False) -> None:
        """Record that a choice came without output. ``has_unread`` says that it had unread fields that may hold the text."""
        self._seen.add(choice)
        self._has_unread = self._has_unread or has_unread

    def record_reason(self, value: Any, choice: int = 0) -> str | None:
        """Record a finish reason as a server sent it, and return the result of ``read_reason``.

        Call this after recording the output that came with the reason, because later output takes the reason back. A reason that means a
        failure is stored in ``failure``, and the parser must then fail.
        """
        reason = read_reason(value)
        self._seen.add(choice)
        if reason is None:
            return None
        self._finished[choice] = reason
        self.has_reason = True
        if self.failure is None and is_failure(reason):
            self.failure = reason
        return reason

    def record_end(self) -> End:
        """Record the API's formal end (``[DONE]``, ``message_stop`` ...) and return how the answer ended."""
        if not self.has_output and not self._may_be_empty():
            return "empty"
        self._has_end = True
        return "whole"

    def record_close(self, *, is_proper: bool) -> End:
        """Record the end of the HTTP body, and return how the answer ended.

        Args:
            is_proper: True if the body came whole by its length or its last chunk, False if the server just closed the connection.
        """
        if self.is_whole:
            self._has_end = True
            return "whole"
        has_reason = self._taken_back is not None or self._all_finished()
        return self.record_end() if has_reason and is_proper else "cut"

    def _may_be_empty(self) -> bool:
        """Return True if an answer without output may count as whole."""
        if self._has_unread:
            return bool(self._finished) and all(reason.strip().lower() in _EMPTY_BY for reason in self._finished.values())
        return self.had_reason

    def _all_finished(self) -> bool:
        """Return True if each choice that has come has a reason."""
        return bool(self._finished) and self._seen <= self._finished.keys()
