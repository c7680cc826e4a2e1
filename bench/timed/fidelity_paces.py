"""How long the models of ``bench.timed.fidelity`` take on this machine when it is otherwise idle."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, cycle
from random import Random

from msgspec import Struct

from bench.counted.selective import Waiting
from bench.timed.engine import generate
from bench.timed.fidelity_records import Record
from streamco.engines.base import SequenceTask, TokenSequence
from streamco.engines.llama import LlamaEngine

__all__ = ["MANY", "Counts", "Looks", "Pace", "Points", "between"]

Points = tuple[tuple[int, float], ...]
"""(Count, seconds), counts ascending, two points or more."""

_PAUSE = 0.05  # seconds before a batch whose time is taken: what an imposed step leaves free
_SIDE_BY_SIDE = (4, 8)  # drafts
_TURNS = 9  # of each time, the median counts


class Counts(Struct, frozen=True, kw_only=True):
    """The tokens of which times are taken: ``judge`` are those of a draft that is judged alone."""

    write: tuple[int, ...]
    judge: tuple[int, ...]
    read: tuple[int, ...]
    end: tuple[int, ...]


FEW = Counts(write=(1, 4), judge=(1, 2, 3, 4, 6, 8, 12), read=(8, 32), end=(8, 30))  # a small model's times are straight lines
MANY = Counts(write=(1, 2, 3, 4, 6, 8), judge=(1, 2, 3, 4, 5, 7, 9, 11, 15), read=(8, 16, 32), end=(8, 16, 30, 60))
"""Those of a large model on a CPU are stairs. A pass reads at most 32 tokens of a session."""


class Pace(Struct, frozen=True, kw_only=True):
    """How long the real model takes on this machine, seconds: where that is more than what is imposed, it is late.

    Args:
        write, read, end: of tokens that streams write, that are only read, with which a stream's prompt ends.
        judge: of tokens of drafts, the row before each included.
    """

    write: Points
    judge: Points
    read: Points
    end: Points


def between(points: Points, count: int) -> float:
    """Seconds between the points, and beyond them as between the nearest two; at least 0."""
    at = min(max(1, bisect_left(points, count, key=lambda point: point[0])), len(points) - 1)
    (few, low), (many, high) = points[at - 1], points[at]
    return max(0.0, low + (high - low) * (count - few) / (many - few))


class Looks:
    """How long an engine takes, in seconds.

    Args:
        engine: the engine. records: prompts and answers.
        pause: seconds of rest before each time that is taken, as imposed steps leave one; 0: none. A small model takes half as long
            without it, because the core still has the weights at hand.
        counts: tokens of which times are taken.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        records: Sequence[Record],
        *,
        pause: float = _PAUSE,
        counts: Counts = FEW,
    ) -> None:
        self._pause = pause
        self._counts = counts
        self._engine = engine
        self._records = records
        self._waiting = Waiting()
        self._words = sorted({token for record in records for token in record.answer})
        self._rng = Random(0)

    def taken(self) -> Pace:
        """All of them."""
        return Pace(write=self.writing(), judge=self.judging(), read=self.reading(), end=self.ending())

    def writing(self) -> Points:
        """A token of each sequence."""
        return _points(self._write, self._counts.write)

    def judging(self) -> Points:
        """Single drafts, and drafts of four tokens side by side: a batch's time isn't linear in its rows."""
        kinds = [*((1, tokens) for tokens in self._counts.judge), *((drafts, 4) for drafts in _SIDE_BY_SIDE)]
        return tuple((drafts * (tokens + 1), _median(partial(self._judge, drafts), tokens)) for drafts, tokens in kinds)

    def reading(self) -> Points:
        """Tokens behind which nothing is to be said."""
        return _points(self._read, self._counts.read)

    def ending(self) -> Points:
        """Tokens with which a prompt ends, behind which the answer's first is chosen."""
        return _points(self._answer, self._counts.end)

    def _write(self, rows: int) -> float:
        held = self._hold(rows)
        seconds = self._timed(lambda wake: [each.draft(1, wake) for each in held])
        self._release(held)
        return seconds

    def _judge(self, drafts: int, tokens: int) -> float:
        held = self._hold(drafts)
        texts = cycle([record.answer[:tokens] for record in self._records])
        seconds = self._timed(lambda wake: [each.verify(text, wake) for each, text in zip(held, texts, strict=False)])
        self._release(held)
        return seconds

    def _read(self, count: int) -> float:
        held, text = self._engine.hold(), self._text(count)
        seconds = self._timed(lambda wake: [held.read(text, wake)])
        held.close()
        return seconds

    def _answer(self, count: int) -> float:
        text = self._text(count)
        time.sleep(self._pause)
        began = time.perf_counter()
        generate(self._engine, text, 1)
        return time.perf_counter() - began

    def _timed(self, ask: Callable[[Callable[[], None]], list[SequenceTask]]) -> float:
        time.sleep(self._pause)
        began = time.perf_counter()
        with self._engine.together():
            tasks = ask(self._waiting.wake)
        self._waiting.gather(tasks)
        return time.perf_counter() - began

    def _hold(self, count: int) -> list[TokenSequence]:
        held = [self._engine.hold() for _ in range(count)]
        for each, record in zip(held, cycle(self._records), strict=False):
            self._waiting.gather([each.extend(record.prompt, self._waiting.wake)])
        return held

    def _release(self, held: Sequence[TokenSequence]) -> None:
        for each in held:
            each.close()

    def _text(self, count: int) -> list[int]:
        """Each time another, which no cache holds."""
        return self._rng.choices(self._words, k=count)


def _median(measure: Callable[[int], float], count: int) -> float:
    return statistics.median(measure(count) for _ in range(_TURNS))


def _points(measure: Callable[[int], float], counts: Sequence[int]) -> Points:
    """Seconds of each count; of more tokens not fewer than of less."""
    return tuple(zip(counts, accumulate((_median(measure, count) for count in counts), max), strict=True))
