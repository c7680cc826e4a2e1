"""Logs the steps of a race."""

from __future__ import annotations

from collections.abc import Sequence

from streamco.client.answer_log import AnswerLog, describe_error
from streamco.core.race.commands import CancelStream, Command, ContinueStream, OpenStream, PauseStream, PrepareStream, ResumeStream
from streamco.events import Event, StreamEnded, StreamFailed

__all__ = ["log_step"]


def log_step(log: AnswerLog, event: Event | None, commands: Sequence[Command]) -> None:
    """Log what the race does with its endpoints; tokens and deliveries aren't logged."""
    match event:
        case StreamEnded(source):
            log.debug(f"{source} has ended")
        case StreamFailed(source, error):
            log.debug(f"{source} has failed: {describe_error(error)}")
    for command in commands:
        match command:
            case OpenStream(source):
                log.debug(f"{source} starts")
            case ContinueStream(source, partial):
                log.debug(f"{source} continues after {partial.tokens} tokens")
            case PrepareStream(source, partial):
                log.debug(f"{source} reads ahead: the prompt and {partial.tokens} tokens")
            case PauseStream(source):
                log.debug(f"{source} pauses: it is not sure enough")
            case ResumeStream(source):
                log.debug(f"{source} goes on")
            case CancelStream(source, reason):
                log.debug(f"{source} is cancelled: {reason}")
