"""The interface between an answer's driver and the stream that reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage
from streamco.core.totals import AnswerCost
from streamco.events import Origin
from streamco.openai_types import ChatCompletionChunk

__all__ = ["AnswerDriver", "Batch", "Relay", "SpeculatedChunk"]

Batch = tuple[str, list[ChatCompletionChunk], float]
"""One delivery: the endpoint's name, the chunks, and the time of delivery (seconds on the driver's clock)."""


Relay = Callable[[ChatCompletionChunk, str], Awaitable[None]]
"""Passes on a chunk that differs from an earlier one only in its text.

It gets the earlier chunk, which it must not change, and the new text.
"""


class SpeculatedChunk(ChatCompletionChunk, kw_only=True, gc=False):
    """A chunk that also says where its text came from, or what became of provisional text.

    Args:
        origin: how the text came about; "draft" means that it is provisional. None if the chunk has no text.
        settled: how many of the oldest provisional characters are now final.
        retracted: how many of the newest provisional characters are taken back.
    """

    origin: Origin | None = None
    settled: int = 0
    retracted: int = 0


class AnswerDriver(Protocol):
    """An answer in progress, in any mode; owned by its ``PendingAnswer``."""

    @property
    def is_over(self) -> bool:
        """True if all work of the answer has ended."""
        ...

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        ...

    @property
    def has_changed_hands(self) -> bool:
        """True if the usage in the answer's chunks covers only a part of the answer."""
        ...

    def report(self) -> Report:
        """Return the report on the answer so far."""
        ...

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token."""
        ...

    def cost(self) -> AnswerCost:
        """Return the cost of the answer so far."""
        ...

    def usage(self) -> AnswerUsage:
        """Return the answer's token counts so far."""
        ...

    async def next_batch(self, relay: Relay | None = None) -> Batch | None:
        """Wait for the next delivery; None means that the answer is complete.

        Args:
            relay: the driver may await it with plain text, in order, before this method returns, instead of making chunks of that text. Its
                errors are raised.
        """
        ...

    async def peek(self) -> None:
        """Wait until there is a delivery or the answer has ended, without taking anything."""
        ...

    async def aclose(self) -> None:
        """Stop all work and wait until it has ended."""
        ...

    def leave(self) -> None:
        """Stop all work without waiting."""
        ...

    def leave_soon(self) -> None:
        """Call ``leave`` from any thread."""
        ...
