"""A consumer thread's view of held sequences: ask, wait, read to the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from streamco.config import SamplingOptions
from streamco.engines.base import Prediction, SequenceTask, TaskEnd, TokenSequence

GREEDY = SamplingOptions(temperature=0)


@dataclass
class Answer:
    """What came of one task."""

    woken: threading.Event = field(default_factory=threading.Event)
    predictions: list[Prediction] = field(default_factory=list)
    end: TaskEnd | None = None
    wakes: int = 0

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def read(self, task: SequenceTask) -> TaskEnd:
        """To the end."""
        while self.end is None:
            assert self.woken.wait(60), "the engine did not wake its consumer"
            self.woken.clear()
            predictions, self.end = task.take()
            self.predictions += predictions
        return self.end

    @property
    def reason(self) -> str:
        assert self.end is not None
        return self.end.reason

    @property
    def error(self) -> str:
        assert self.end is not None
        return str(self.end.error)

    @property
    def tokens(self) -> list[int]:
        """Drawn ones."""
        return [prediction.token for prediction in self.predictions if prediction.token is not None]

    @property
    def greedy(self) -> list[int]:
        return [prediction.greedy for prediction in self.predictions]


def asked(sequence: TokenSequence, what: str, argument: Any, **options: Any) -> tuple[SequenceTask, Answer]:
    """Ask and don't wait; greedy unless told."""
    answer = Answer()
    return getattr(sequence, what)(argument, answer.wake, **({"sampling": GREEDY} | options)), answer


def extend(sequence: TokenSequence, ids: Sequence[int], **options: Any) -> Answer:
    task, answer = asked(sequence, "extend", ids, **options)
    answer.read(task)
    return answer


def verify(sequence: TokenSequence, draft: Sequence[int], **options: Any) -> Answer:
    task, answer = asked(sequence, "verify", draft, **options)
    answer.read(task)
    return answer


def draft(sequence: TokenSequence, count: int, **options: Any) -> Answer:
    task, answer = asked(sequence, "draft", count, **options)
    answer.read(task)
    return answer


def accepted(draft: Sequence[int], greedy: Sequence[int]) -> int:
    """How many ids of a draft the model would have written itself."""
    return next((index for index, (ours, theirs) in enumerate(zip(draft, greedy, strict=False)) if ours != theirs), len(draft))
