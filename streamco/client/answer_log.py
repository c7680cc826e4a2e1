"""Logs a client's answers to the logger ``streamco``: figures, names and decisions, but never a key, a prompt or an answer.

At level INFO there is one line per answer, written when all its work has ended. At DEBUG each decision is logged with its numbers. All
lines of an answer begin with its request id, which is sent to servers as ``X-Client-Request-Id``. Only the kind and the status of an error
are logged, because its message may quote what a server sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from secrets import token_hex
from typing import Generic, TypeVar

from streamco.core.report import Report
from streamco.core.report_parts import DispatchReport, HandOver
from streamco.errors import EndpointStatusError, EndpointTimeoutError
from streamco.machine_driver import StepLog

__all__ = ["REQUEST_ID_HEADER", "AnswerLog", "describe_error"]

REQUEST_ID_HEADER = "X-Client-Request-Id"  # OpenAI's header, by which its support can find a request

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")

_logger = logging.getLogger("streamco")


class AnswerLog:
    """The log of one answer.

    Attributes:
        request_id: 16 hexadecimal digits, or the name that the caller gave the request.
        is_detailed: True if decisions are logged. Read once, so the hot path doesn't have to check the logger.
    """

    def __init__(self, request_id: str = "") -> None:
        self.request_id = request_id or token_hex(8)
        self.is_detailed = _logger.isEnabledFor(logging.DEBUG)

    @cached_property
    def key(self) -> str:
        """A key that identifies only this answer and can't be guessed; made at its first use, because most answers are never rated."""
        return token_hex(16)

    def dispatched(self, decision: DispatchReport) -> None:
        """Log which endpoint starts when, and why."""
        about = "about " if decision.is_estimated else ""
        self.debug(
            f"prompt {about}{decision.prompt_tokens} tokens; device {_start(decision.device_wait)}, server {_start(decision.server_wait)}; "
            f"policy {decision.policy}, constrained {decision.constraint or 'none'}, budget {decision.budget:g}, "
            f"spent {_share(decision.budget_share)}: {decision.reason}"
        )

    def ended(self, report: Callable[[], Report], *, reason: str | None = None) -> None:
        """Log the answer in one line.

        Args:
            report: returns the answer's report; called only if the line is logged.
            reason: the reason for the dispatch decision, without any text from the caller; None if the report's reason has no such text.
        """
        if _logger.isEnabledFor(logging.INFO):
            made = report()
            _logger.info("%s: %s", self.request_id, _summary(made, made.dispatch.reason if reason is None else reason))

    def steps(self, function: Callable[[EventT | None, Sequence[CommandT]], None]) -> StepLog[EventT, CommandT] | None:
        """Return an object that passes the event and the commands of each machine step to a function, or None if steps aren't logged."""
        return _Steps(function) if self.is_detailed else None

    def debug(self, text: str) -> None:
        """Log a decision."""
        _logger.debug("%s: %s", self.request_id, text)


class _Steps(Generic[EventT, CommandT]):
    """Passes each step of a machine to a function that logs it."""

    def __init__(self, function: Callable[[EventT | None, Sequence[CommandT]], None]) -> None:
        self._function = function

    def append(self, step: tuple[float, EventT | None, list[CommandT]], /) -> None:
        """Log a step."""
        _, event, commands = step
        self._function(event, commands)


def describe_error(error: BaseException) -> str:
    """Return the name of an error's class, with its status or phase if it has one, but without its message."""
    kind = type(error).__name__
    if isinstance(error, EndpointStatusError):
        return f"{kind} {error.status}"
    return f"{kind} {error.phase}" if isinstance(error, EndpointTimeoutError) else kind


def _summary(report: Report, reason: str) -> str:
    endings = {"complete": report.finish_reason or "complete", "failed": "failed", "left": "its reader left"}
    how = endings.get(report.ending or "", "unfinished")
    first = "no token" if report.ttft is None else f"first token {report.ttft:.3f} s"
    cost = "cost unknown" if report.cost_usd is None else f"${report.cost_usd:.6f}"
    moves = "".join(f", {_hand_over(each)}" for each in report.hand_overs)
    return (
        f"{report.winner or 'no endpoint'} answered ({report.mode}: {reason}){moves}; {first}, {_tokens(report.tokens)} in "
        f"{report.duration:.3f} s, {how}, {cost}"
    )


def _hand_over(change: HandOver) -> str:
    return f"{change.target} took over from {change.source} after token {change.position} ({change.reason})"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _start(wait: float | None) -> str:
    return "in reserve" if wait is None else "at once" if wait == 0 else f"after {wait:.3f} s"


def _share(share: float | None) -> str:
    return "nothing yet" if share is None else f"{share:.3f}"
