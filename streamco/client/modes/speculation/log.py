"""Logs the steps of a speculated answer."""

from __future__ import annotations

from collections.abc import Sequence

from streamco.client.answer_log import AnswerLog, describe_error
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

__all__ = ["log_step"]


def log_step(log: AnswerLog, event: SpeculationEvent | None, commands: Sequence[SpeculationCommand]) -> None:
    """Log what a speculated answer does with its verifier and its remote stream."""
    _log_event(log, event)
    for command in commands:
        _log_command(log, command)


def _log_event(log: AnswerLog, event: SpeculationEvent | None) -> None:
    """Log verdicts and what happens to the verifier; drafted tokens aren't logged."""
    match event:
        case VerdictReceived():
            log.debug(
                f"round {event.round}: {event.accepted} accepted; queued {event.queue_seconds * 1e3:.1f} ms, "
                f"computed {event.compute_seconds * 1e3:.1f} ms, queue at {event.queue_depth:.0%}"
            )
        case DraftRefused(number, retry_after):
            log.debug(f"round {number}: refused, the verifier is overloaded{_retry(retry_after)}")
        case VerifierConnected():
            log.debug("verifier connected")
        case VerifierLost(retry_after):
            log.debug(f"verifier lost{_retry(retry_after)}")
        case VerifierFailed(error) | DeviceFailed(error) | RemoteFailed(error=error):
            log.debug(f"{type(event).__name__}: {describe_error(error)}")


def _log_command(log: AnswerLog, command: SpeculationCommand) -> None:
    """Log drafts that are sent, connections to the verifier, and when the target model begins or stops generating alone."""
    match command:
        case SendDraft():
            ahead = "" if command.if_verdict is None else f", ahead of round {command.if_verdict.round}'s verdict"
            log.debug(f"round {command.round}: {len(command.ids)} drafted tokens sent from position {command.base}{ahead}")
        case ConnectVerifier():
            log.debug("verifier is connected to")
        case OpenRemote(_, ids):
            log.debug(f"target model goes on alone after {len(ids)} tokens")
        case CloseRemote():
            log.debug("target model's stream is cancelled")


def _retry(seconds: float | None) -> str:
    return "" if seconds is None else f", to be asked again after {seconds:g} s"
