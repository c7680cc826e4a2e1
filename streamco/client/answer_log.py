"""What a client logs of its answers, through the logger ``streamco``: figures, names and decisions, never a key, a prompt or an answer.

INFO has one line an answer, when all its work has ended. DEBUG has each decision with its numbers. All lines of an answer begin with its
request id, which servers get as ``X-Client-Request-Id``. Errors are logged by their kind and status, because their texts may quote what a
server sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Generic, TypeVar

from streamco.core.race.commands import CancelStream, Command, ContinueStream, OpenStream, PrepareStream
from streamco.core.report import DispatchReport, HandOver, Report
from streamco.core.speculation.events import (
    CloseRemote,
    ConnectVerifier,
    DeviceFailed,
    DraftRefused,
    OpenRemote,
    RemoteFailed,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.errors import EndpointStatusError, EndpointTimeoutError
from streamco.events import Event, StreamEnded, StreamFailed
from streamco.machine_driver import StepLog

__all__ = ["REQUEST_ID_HEADER", "AnswerLog", "describe_error"]

REQUEST_ID_HEADER = "X-Client-Request-Id"  # OpenAI's: its support finds a request by it

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")

_logger = logging.getLogger("streamco")


class AnswerLog:
    """The log of one answer.

    Attributes:
        request_id: 16 hexadecimal digits, or what the caller named the request.
        is_detailed: True if decisions are logged. It is read once, so that the hot path asks nothing.
    """

    def __init__(self, request_id: str = "") -> None:
        self.request_id = request_id or token_hex(8)
        self.is_detailed = _logger.isEnabledFor(logging.DEBUG)

    def dispatched(self, decision: DispatchReport) -> None:
        """Log which endpoint starts when, and why."""
        about = "about " if decision.is_estimated else ""
        self._debug(
            f"prompt {about}{decision.prompt_tokens} tokens; device {_start(decision.device_wait)}, server {_start(decision.server_wait)}; "
            f"policy {decision.policy}, constrained {decision.constraint or 'none'}, budget {decision.budget:g}, "
            f"spent {_share(decision.budget_share)}: {decision.reason}"
        )

    def ended(self, report: Callable[[], Report], *, reason: str | None = None) -> None:
        """Log the answer in one line.

        Args:
            report: makes its report; called only if the line is wanted.
            reason: the dispatch decision's reason without words of the caller's; None: the report's has none.
        """
        if _logger.isEnabledFor(logging.INFO):
            made = report()
            _logger.info("%s: %s", self.request_id, _summary(made, made.dispatch.reason if reason is None else reason))

    def race_steps(self) -> StepLog[Event, Command] | None:
        """Return what logs the steps of a race; None: they are not logged."""
        return _Steps[Event, Command](self._log_race) if self.is_detailed else None

    def speculation_steps(self) -> StepLog[SpeculationEvent, SpeculationCommand] | None:
        """Return what logs the steps of a speculated answer; None: they are not logged."""
        return _Steps[SpeculationEvent, SpeculationCommand](self._log_speculation) if self.is_detailed else None

    # A race's steps

    def _log_race(self, event: Event | None, commands: Sequence[Command]) -> None:
        """Log what the race does with its endpoints; tokens and deliveries are not logged."""
        match event:
            case StreamEnded(source):
                self._debug(f"{source} has ended")
            case StreamFailed(source, error):
                self._debug(f"{source} has failed: {describe_error(error)}")
        for command in commands:
            match command:
                case OpenStream(source):
                    self._debug(f"{source} starts")
                case ContinueStream(source, partial):
                    self._debug(f"{source} continues after {partial.tokens} tokens")
                case PrepareStream(source, partial):
                    self._debug(f"{source} reads ahead: the prompt and {partial.tokens} tokens")
                case CancelStream(source, reason):
                    self._debug(f"{source} is cancelled: {reason}")

    # A speculated answer's steps

    def _log_speculation(self, event: SpeculationEvent | None, commands: Sequence[SpeculationCommand]) -> None:
        self._log_speculation_event(event)
        for command in commands:
            self._log_speculation_command(command)

    def _log_speculation_event(self, event: SpeculationEvent | None) -> None:
        """Log verdicts and what happens to the verifier; drafted tokens are not logged."""
        match event:
            case VerdictReceived():
                self._debug(
                    f"round {event.round}: {event.accepted} accepted; queued {event.queue_seconds * 1e3:.1f} ms, "
                    f"computed {event.compute_seconds * 1e3:.1f} ms, queue at {event.queue_depth:.0%}"
                )
            case DraftRefused(number, retry_after):
                self._debug(f"round {number}: refused, the verifier is overloaded{_retry(retry_after)}")
            case VerifierConnected():
                self._debug("verifier connected")
            case VerifierLost(retry_after):
                self._debug(f"verifier lost{_retry(retry_after)}")
            case VerifierFailed(error) | DeviceFailed(error) | RemoteFailed(error=error):
                self._debug(f"{type(event).__name__}: {describe_error(error)}")

    def _log_speculation_command(self, command: SpeculationCommand) -> None:
        """Log drafts that are sent and changes of the mode."""
        match command:
            case SendDraft():
                ahead = "" if command.if_verdict is None else f", ahead of round {command.if_verdict.round}'s verdict"
                self._debug(f"round {command.round}: {len(command.ids)} drafted tokens sent from position {command.base}{ahead}")
            case ConnectVerifier():
                self._debug("verifier is connected to")
            case OpenRemote(_, ids):
                self._debug(f"target model goes on alone after {len(ids)} tokens")
            case CloseRemote():
                self._debug("target model's stream is cancelled")

    def _debug(self, text: str) -> None:
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
    """Return an error's kind with its status or phase, without its text."""
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


def _retry(seconds: float | None) -> str:
    return "" if seconds is None else f", to be asked again after {seconds:g} s"
