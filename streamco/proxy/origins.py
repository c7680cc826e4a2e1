"""Tells where each piece of a streamed answer came from, in the field ``streamco`` of its chunks, which OpenAI's API doesn't have.

A request asks for it with ``"stream_options": {"include_origin": true}``, which isn't passed on to servers. Then each chunk has
``"streamco": {"endpoint": NAME, "origin": ORIGIN}``. The first chunk, and then at most four a second, also have ``report``: the figures so
far, a ``streamco.reports.Report`` in JSON. Above 10,000 tokens there are fewer reports. When all work has ended, a chunk without choices
has the final report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from streamco.client.driver import SpeculatedChunk
from streamco.client.stream import ChatStream
from streamco.core.report import Report
from streamco.errors import StreamConsumed
from streamco.events import Origin
from streamco.openai_types import ChatCompletionChunk
from streamco.server.http.encoding import Json

__all__ = ["EXTENSION", "ORIGIN_OPTION", "OriginFields", "report_interval"]

EXTENSION = "streamco"  # the field of a chunk
ORIGIN_OPTION = "include_origin"
REPORT_SECONDS = 0.25  # between two reports; often enough for a person to follow the figures
TOKEN_SECONDS = 25e-6  # between two reports, per token: a report takes about a microsecond per token, so reports take 4 % of a core

_SPECULATED: Mapping[Origin, str] = {
    "accepted": "accepted",
    "corrected": "corrected",
    "bonus": "bonus",
    "device": "device",
    "remote": "server",
}


def report_interval(tokens: int) -> float:
    """Return the seconds between two reports of an answer with this many tokens. Above 10,000 tokens, reports are less frequent."""
    return max(REPORT_SECONDS, tokens * TOKEN_SECONDS)


class OriginFields:
    """Makes the fields of one answer's chunks.

    Args:
        answer: the answer, which the caller reads.
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, answer: ChatStream, clock: Callable[[], float] = time.monotonic) -> None:
        self._answer = answer
        self._clock = clock
        self._next_report: float | None = None
        self._kinds: Mapping[str | None, str] = {}  # kinds of all endpoints that the answer may come from, by name

    def describe(self, chunk: ChatCompletionChunk) -> Json:
        """Return the field for the chunk that was read last."""
        source, now = self._answer.source, self._clock()
        field: Json = {"endpoint": source}
        if self._next_report is None or now >= self._next_report:
            field["report"] = report = self._answer.report
            self._next_report = now + report_interval(report.tokens)
            self._kinds = {part.name: part.kind for part in report.endpoints}
        origin = self._origin_of(chunk, source)
        return field if origin is None else {**field, "origin": origin}

    def describe_end(self) -> Json:
        """Return the field for a chunk with only finish reasons, which no endpoint sent."""
        return {"endpoint": self._answer.source}

    def _origin_of(self, chunk: ChatCompletionChunk, source: str | None) -> str | None:
        """Return the origin of the chunk's text, or None for a speculated answer's chunk without text."""
        if isinstance(chunk, SpeculatedChunk):
            return None if chunk.origin is None else _SPECULATED.get(chunk.origin)
        return self._kinds.get(source)

    async def finish(self) -> Report | None:
        """Wait until all work for the answer has ended, and return the final report, or None if the answer never began."""
        await self._answer.aclose()
        try:
            return self._answer.report
        except StreamConsumed:
            return None
