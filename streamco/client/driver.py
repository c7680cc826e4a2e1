"""The interface between an answer's driver and the stream that reads it."""

from __future__ import annotations

from typing import Protocol

from streamco.core.report import AnswerUsage, Report
from streamco.openai_types import ChatCompletionChunk

__all__ = ["AnswerDriver", "Batch"]

Batch = tuple[str, list[ChatCompletionChunk], float]
"""Endpoint name, chunks, when they were delivered (seconds, the driver's clock)."""


class AnswerDriver(Protocol):
    """One answer under way; ``streamco.client.race.driver.RaceDriver`` says what each does."""

    @property
    def is_over(self) -> bool:
        """True if nothing of it is at work any more."""
        ...

    @property
    def was_broken_off(self) -> bool:
        """True if it was left before its end."""
        ...

    @property
    def has_changed_hands(self) -> bool:
        """True if what its chunks say of usage is of a part of it alone."""
        ...

    def report(self) -> Report:
        """Return the answer's figures so far."""
        ...

    def usage(self) -> AnswerUsage:
        """Return the answer's token counts so far."""
        ...

    async def next_batch(self) -> Batch | None:
        """Wait for the next delivery; None: the answer is complete."""
        ...

    async def peek(self) -> None:
        """Wait until there is something to read or an end."""
        ...

    async def aclose(self) -> None:
        """Stop all work and wait for its end."""
        ...

    def leave(self) -> None:
        """Stop all work without waiting."""
        ...

    def leave_soon(self) -> None:
        """``leave`` from anywhere."""
        ...
