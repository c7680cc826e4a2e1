"""How long the models of ``bench.fidelity`` take on this machine when it is otherwise idle."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from msgspec import Struct

from bench.engine import generate
from bench.fidelity_records import Record
from bench.selective import Waiting
from streamco.engines.base import SequenceTask, TokenSequence
from streamco.engines.llama import LlamaEngine

__all__ = ["Looks", "Pace"]

Line = tuple[float, float]
_PAUSE = 0.05  # seconds before a batch whose time is taken: what an imposed step leaves free
_DRAFTS = (1, 2, 3, 4, 6, 8, 12)  # tokens of drafts that are judged alone
_SIDE_BY_SIDE = (4, 8)  # drafts
_TURNS = 9  # of each time, the median counts


class Pace(Struct, frozen=True, kw_only=True):
    """How long the real model takes on this machine, seconds: where that is more than what is imposed, it is late.

    Args:
        write, read, end: (of a batch, of each token more) that streams write, that are only read, with which a stream's prompt ends.
        judge: (tokens, of the batch) of drafts, the row before each included.
    """

    write: Line
    judge: tuple[tuple[int, float], ...]
    read: Line
    end: Line

    def judging(self, tokens: int) -> float:
        """Seconds of a batch of drafts: between those that were looked at, and beyond them as between the last two."""
        at = min(max(1, bisect_left(self.judge, tokens, key=lambda point: point[0])), len(self.judge) - 1)
        (few, low), (many, high) = self.judge[at - 1], self.judge[at]
        return low + (high - low) * (tokens - few) / (many - few)


class Looks:
    """How long an engine takes, each time behind a rest, as imposed steps leave one: (of a batch, of each row more) seconds.

    One behind the other they take half as long, for the core still has the weights at hand.
    """

    def __init__(self, engine: LlamaEngine, records: Sequence[Record]) -> None:
        self._engine = engine
        self._records = records
        self._waiting = Waiting()
        self._words = sorted({token for record in records for token in record.answer})
        self._rng = Random(0)

    def taken(self) -> Pace:
        """All of them."""
        return Pace(write=self.writing(), judge=self.judging(), read=self.reading(), end=self.ending())

    def writing(self) -> Line:
        """A token of each sequence."""
        return _line(self._write, 1, 4)

    def judging(self) -> tuple[tuple[int, float], ...]:
        """Single drafts, and drafts of four tokens side by side: a batch's time isn't linear in its rows."""
        kinds = [*((1, tokens) for tokens in _DRAFTS), *((drafts, 4) for drafts in _SIDE_BY_SIDE)]
        return tuple((drafts * (tokens + 1), _median(partial(self._judge, drafts), tokens)) for drafts, tokens in kinds)

    def reading(self) -> Line:
        """Tokens behind which nothing is to be said."""
        return _line(self._read, 8, 32)

    def ending(self) -> Line:
        """Tokens with which a prompt ends, behind which the answer's first is chosen."""
        return _line(self._answer, 8, 30)

    def _write(self, rows: int) -> float:
        held = self._hold(rows)
        seconds = self._timed(lambda wake: [each.draft(1, wake) for each in held])
        self._release(held)
        return seconds

    def _judge(self, drafts: int, tokens: int) -> float:
        held = self._hold(drafts)
        texts = [record.answer[:tokens] for record in self._records]
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
        time.sleep(_PAUSE)
        began = time.perf_counter()
        generate(self._engine, text, 1)
        return time.perf_counter() - began

    def _timed(self, ask: Callable[[Callable[[], None]], list[SequenceTask]]) -> float:
        time.sleep(_PAUSE)
        began = time.perf_counter()
        with self._engine.together():
            tasks = ask(self._waiting.wake)
        self._waiting.gather(tasks)
        return time.perf_counter() - began

    def _hold(self, count: int) -> list[TokenSequence]:
        held = [self._engine.hold() for _ in range(count)]
        for each, record in zip(held, self._records, strict=False):
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


def _line(measure: Callable[[int], float], few: int, many: int) -> Line:
    """Seconds of none, and of each one more."""
    low, high = _median(measure, few), _median(measure, many)
    each = max(0.0, (high - low) / (many - few))
    return max(0.0, low - few * each), each
