"""Answers on disk: one JSON line each, in a file for each task, so that a run can stop at any moment and a later one goes on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

__all__ = ["CUTS", "LENGTH", "PAIRS", "Answer", "AnswerFile", "Key", "read_answers"]

LENGTH = 256  # tokens of an answer at most
CUTS = (4, 16, 64)  # tokens of the first model; 0 is the second model's own answer, and 256 the first one's
PAIRS = (("0.5B", "1.5B"), ("1.5B", "0.5B"), ("SmolLM2", "1.5B"), ("1.5B", "SmolLM2"))  # first and second model
Key = tuple[str, str | None, int]
"""First model, second model (None: none), and the tokens of the first one."""


class Answer(Struct, frozen=True, kw_only=True):
    """One answer.

    Args:
        task: the task's name.
        item: the question's name.
        first: the model that begins.
        second: the model that goes on; None: it is an answer of the first model alone.
        cut: number of tokens of the first model; an answer of one model has all its tokens.
        text: the whole text.
        ids: token ids of an answer of one model.
        is_finished: the model has ended it; False: the limit has.
        score: by the task, 0.0 to 1.0.
        likelihood: mean logarithm of the probability that the 1.5B model gives to its tokens; None: not measured.
    """

    task: str
    item: str
    first: str
    second: str | None = None
    cut: int
    text: str
    ids: tuple[int, ...] = ()
    is_finished: bool
    score: float
    likelihood: float | None = None

    @property
    def key(self) -> Key:
        """What tells it from the question's other answers."""
        return self.first, self.second, self.cut if self.second is not None else LENGTH


class AnswerFile:
    """A task's answers, open for one process.

    Args:
        path: the file; it is made if it isn't there.

    Raises:
        SystemExit: another process has it open.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._file.close()
            raise SystemExit(f"{path}: expected no other process that writes it, got one") from exc
        whole, answers = _read(path)
        self._file.truncate(whole)  # the rest is half a line of a process that was killed
        self._known = {(answer.item, answer.key): answer for answer in answers}

    def find(self, item: str, key: Key) -> Answer | None:
        """Return an answer to a question; None: it is missing."""
        return self._known.get((item, key))

    def add(self, answer: Answer) -> None:
        """Write an answer; it is there for later processes when this returns."""
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()
        self._known[answer.item, answer.key] = answer

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_answers(folder: Path) -> Iterator[Answer]:
    """Give all answers in a folder, task by task; half a line at a file's end is left out.

    Raises:
        SystemExit: there are none.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise SystemExit(f"{folder}: expected answers of `python -m bench.papers.quality run`, got none")
    for path in paths:
        yield from _read(path)[1]


def _read(path: Path) -> tuple[int, list[Answer]]:
    """Return the bytes of whole lines, and the answers in them."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(Answer)
    return whole, [decoder.decode(line) for line in data[:whole].splitlines()]
