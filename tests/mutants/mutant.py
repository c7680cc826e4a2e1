"""One answer that a server may send, made from a seed: a stream, operators, and the way in which its body ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tests.mutants.operators import OPERATORS, Operator
from tests.mutants.stream import Api, Stream, render
from tests.mutants.streams import SMALL

LARGE_SHARE = 1 / 2000
"""Share of the mutants that have an event of megabytes."""

Ends = Literal["clean", "cut", "stall"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """What a server sends.

    Args:
        seed: makes the same mutant of the same streams again.
        stream: the name of the stream that it was made from.
        operators: the names of the changes, in the order of their application.
        body: all bytes that are sent.
        ends: how the body ends: properly, by a reset, or in silence.
        at: the number of bytes after which it ends, where more would have come; None if nothing was left out.
    """

    seed: int
    api: Api
    stream: str
    operators: tuple[str, ...]
    body: bytes
    status: int = 200
    content_type: str | None = "text/event-stream"
    ends: Ends = "clean"
    at: int | None = None

    def __str__(self) -> str:
        """Say how the mutant was made."""
        changes = " + ".join(self.operators) or "unchanged"
        return (
            f"seed {self.seed}: {self.api}, {self.stream}: {changes}; {self.status}, {self.ends} at {self.at} ({len(self.body)} bytes sent)"
        )


def make_mutant(seed: int, streams: Sequence[Stream] = SMALL) -> Mutant:
    """Make the mutant of a seed."""
    rng = random.Random(seed)
    stream = rng.choice(streams).copy()
    names = _change(stream, rng)
    body = render(stream)
    ends, at = _draw_end(body, rng)
    sent = body if at is None else body[:at]
    return Mutant(seed, stream.api, stream.name, names, sent, stream.status, stream.content_type, ends, at)


@cache
def operators_for(api: Api, *, is_large: bool = False) -> tuple[Operator, ...]:
    """Return the operators of an API, in the order of their names."""
    return tuple(sorted((each for each in OPERATORS if api in each.apis and each.is_large == is_large), key=lambda each: each.name))


def _change(stream: Stream, rng: random.Random) -> tuple[str, ...]:
    """Apply a random number of operators; return the names of those that applied."""
    is_large = rng.random() < LARGE_SHARE
    count = rng.choices([0, 1, 2], [3, 42, 55])[0]
    if not count and not is_large:
        return ()
    usual = operators_for(stream.api)
    while True:
        chosen = [rng.choice(operators_for(stream.api, is_large=True) if is_large else usual)]
        if count == 2:
            chosen.append(rng.choice([each for each in usual if each.goes_with(chosen[0])]))
        names = apply_operators(stream, chosen, rng)
        if names:
            return names


def apply_operators(stream: Stream, chosen: Sequence[Operator], rng: random.Random) -> tuple[str, ...]:
    """Apply operators in the order of their stages; return the names of those that applied."""
    ordered = sorted(chosen, key=lambda each: each.stage)
    return tuple(each.name for each in ordered if each.change(stream, rng) is not None)


def _draw_end(body: bytes, rng: random.Random) -> tuple[Ends, int | None]:
    """Draw how a body ends, and after how many bytes."""
    if rng.random() < 0.5:
        return "clean", None
    ends: Ends = rng.choice(["clean", "cut", "cut", "stall"])
    last = len(body)
    start = body[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{":
        last = body.rindex(b"}")  # whether a JSON text without a proper end of its body is whole isn't clear
    match rng.randrange(4):
        case 0:
            return ends, rng.randint(0, last)
        case 1:
            return ends, max(0, last - rng.randint(0, 250))
        case 2:
            return ends, last
        case _:
            borders = _borders(body, last)
            return ends, min(last, max(0, rng.choice(borders) + rng.randint(-2, 2)))


def _borders(body: bytes, last: int) -> list[int]:
    """Return some places at which an event ends."""
    found = [0, last]
    for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        place = body.find(blank, 0, last)
        while place >= 0 and len(found) < 500:
            found.append(place + len(blank))
            place = body.find(blank, place + 1, last)
    return found
