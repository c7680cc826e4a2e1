"""What an operator is, and how one is declared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.mutants.stream import Api, Stream

Change = Callable[[Stream, random.Random], Stream | None]

ALL: tuple[Api, ...] = ("chat", "responses", "messages")

CONTENT, SHAPE, BODY = range(3)
"""Stages, in the order of their application: what is said, how it is put, and what is sent in place of events."""

OPERATORS: list[Operator] = []


@dataclass(frozen=True, slots=True)
class Operator:
    """A change that turns a well-formed stream into one that real servers send.

    Args:
        change: changes the stream that it is given and returns it, or returns None, without a change, if it doesn't apply.
        touches: what it changes; two operators that touch the same thing aren't applied to one stream, because the right reading of both
            together need not be clear.
        is_large: it makes an event of megabytes.
    """

    name: str
    change: Change
    apis: frozenset[Api]
    touches: frozenset[str]
    stage: int
    is_large: bool

    def goes_with(self, other: Operator) -> bool:
        """Return True if both may be applied to one stream."""
        if "body" in self.touches | other.touches:
            return bool(self.touches ^ other.touches) and self.touches | other.touches <= {"body", "status", "content type"}
        return not self.touches & other.touches


def operator(*apis: Api, touches: str, stage: int = CONTENT, is_large: bool = False) -> Callable[[Change], Change]:
    """Declare an operator; its name is the function's, ``touches`` are words with commas between them."""

    def declare(change: Change) -> Change:
        name = change.__name__.replace("_", " ")
        OPERATORS.append(Operator(name, change, frozenset(apis), frozenset(touches.split(", ")), stage, is_large))
        return change

    return declare
