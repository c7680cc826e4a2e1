"""Reads one answer. Ctrl-C stops it, a failure keeps the text so far, and the figures are shown in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from streamco.cli.ui.interrupt import on_interrupt
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.client.stream import TokenStream
from streamco.config import Pace
from streamco.core.report import Report
from streamco.errors import StreamcoError, UsageError

__all__ = ["ShownAnswer", "AnswerSettings", "read_answer"]


class AnswerSettings(Struct, kw_only=True):
    """Settings that every prompt is sent with. None means the endpoint's default."""

    pace: Pace = None  # tokens per second
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


class ShownAnswer(Struct, kw_only=True):
    """An answer as the reader got it, and how it ended.

    Args:
        text: the whole answer, or the part that arrived.
        is_stopped: True if Ctrl-C ended it.
        error: the endpoint's failure that ended it, if any.
    """

    text: str = ""
    is_stopped: bool = False
    error: StreamcoError | None = None
    report: Report | None = None

    @property
    def ending(self) -> str:
        """What cut the answer short: "stopped", "failed", or "" if nothing did."""
        return "stopped" if self.is_stopped else "failed" if self.error is not None else ""

    @property
    def exit_code(self) -> int:
        """Exit code for a command that asked only this prompt."""
        return 130 if self.is_stopped else 1 if self.error is not None else 0

    def to_json(self) -> str:
        """Return one JSON object with the text, the whole report, and what cut the answer short."""
        error = None if self.error is None else {"type": type(self.error).__name__, "message": str(self.error)}
        shape = {"text": self.text, "is_stopped": self.is_stopped, "error": error, "report": self.report}
        return msgspec.json.encode(shape).decode()


async def read_answer(client: Client, messages: Sequence[Mapping[str, Any]], settings: AnswerSettings, view: View) -> ShownAnswer:
    """Send the request, show the answer as it comes, and summarise it. Failures of endpoints are part of the answer, and aren't raised."""
    answer = ShownAnswer()
    parts: list[str] = []
    stream = client.stream(
        messages, max_tokens=settings.max_tokens, temperature=settings.temperature, seed=settings.seed, pace=settings.pace
    )
    async with view.answering(lambda: _report_of(stream)):
        reading = asyncio.create_task(_read(stream, parts, view))
        with on_interrupt(reading.cancel):
            try:
                await reading
            except StreamcoError as error:
                answer.error = error
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) and task.cancelling():
                    raise  # the program is ending, not only the answer
                answer.is_stopped = True
    answer.text = "".join(parts)
    answer.report = _report_of(stream)
    view.end(answer.report, ending=answer.ending)
    if answer.error is not None:
        view.error(str(answer.error))
    return answer


async def _read(stream: TokenStream, parts: list[str], view: View) -> None:
    async with stream:
        async for token in stream:
            if token.kind == "content":
                parts.append(token.text)
            view.feed(token)


def _report_of(stream: TokenStream) -> Report | None:
    try:
        return stream.report
    except UsageError:  # stopped before it was sent
        return None
