"""What the tables need of answers, without texts: kept in ``recorded.jsonl``, one line for each whole question.

A later run writes the answers to other questions only, and ``package`` adds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.tasks.records import CUTS, LENGTH, PAIRS, Answer, Key
from bench.tasks.scorers import rouge_1
from streamco.engines.llamacpp.cache_dir import write_whole

__all__ = ["RECORDED", "Measured", "Questions", "add_to_package", "is_packaged", "measured", "read_package"]

RECORDED = Path(__file__).resolve().parent / "recorded.jsonl"


class Measured(Struct, frozen=True, array_like=True):
    """What one answer is worth.

    Args:
        score: by the task, 0.0 to 1.0.
        likelihood: mean logarithm of the probability that the 1.5B model gives to its tokens; None: not measured.
        agreement: Rouge-1 against the 1.5B's own answer; None: not measured, as of tasks other than Alpaca.
    """

    score: float
    likelihood: float | None = None
    agreement: float | None = None


Questions = Mapping[str, Mapping[str, Mapping[Key, Measured]]]
"""By task and question: each answer."""


class _Line(Struct, frozen=True):
    task: str
    item: str
    answers: dict[str, Measured]


def measured(answers: Iterable[Answer]) -> Questions:
    """Return what answers are worth, of questions with all of their answers alone: each model's own and every move that was due."""
    found: dict[str, dict[str, dict[Key, Answer]]] = {}
    for answer in answers:
        found.setdefault(answer.task, {}).setdefault(answer.item, {})[answer.key] = answer
    return {task: {item: _measure(known) for item, known in items.items() if _is_complete(known)} for task, items in found.items()}


def _is_complete(known: Mapping[Key, Answer]) -> bool:
    for first, second in PAIRS:
        own = known.get((first, None, LENGTH))
        if own is None or any(len(own.ids) > cut and (first, second, cut) not in known for cut in CUTS):
            return False
    return True


def _measure(known: Mapping[Key, Answer]) -> dict[Key, Measured]:
    reference = known["1.5B", None, LENGTH].text
    return {
        key: Measured(
            score=answer.score,
            likelihood=answer.likelihood,
            agreement=rouge_1(answer.text, reference) if answer.task == "alpaca" else None,
        )
        for key, answer in known.items()
    }


def read_package(path: Path = RECORDED) -> Questions:
    """Return what is packaged; nothing, if the file isn't there."""
    found: dict[str, dict[str, dict[Key, Measured]]] = {}
    decoder = msgspec.json.Decoder(_Line)
    for line in path.read_bytes().splitlines() if path.exists() else ():
        read = decoder.decode(line)
        found.setdefault(read.task, {})[read.item] = {_key_of(name): value for name, value in read.answers.items()}
    return found


def is_packaged(questions: Questions, task: str, item: str, *, measures: bool) -> bool:
    """Return True if a question is packaged, and with ``measures`` also the likelihoods of its answers if it is Alpaca's."""
    answers = questions.get(task, {}).get(item)
    if answers is None:
        return False
    return task != "alpaca" or not measures or all(each.likelihood is not None for each in answers.values())


def add_to_package(questions: Questions, path: Path = RECORDED) -> int:
    """Add questions, also in place of packaged ones; return how many are there now."""
    lines = {(task, item): _line(task, item, answers) for task, item, answers in (*_each(read_package(path)), *_each(questions))}
    write_whole(path, b"".join(lines[place] for place in sorted(lines)))
    return len(lines)


def _each(questions: Questions) -> Iterator[tuple[str, str, Mapping[Key, Measured]]]:
    for task, items in questions.items():
        for item, answers in items.items():
            yield task, item, answers


def _line(task: str, item: str, answers: Mapping[Key, Measured]) -> bytes:
    named = {_name_of(key): _rounded(answers[key]) for key in sorted(answers, key=_name_of)}
    return msgspec.json.encode(_Line(task, item, named)) + b"\n"


def _rounded(value: Measured) -> Measured:
    likelihood, agreement = (None if each is None else round(each, 4) for each in (value.likelihood, value.agreement))
    return Measured(round(value.score, 4), likelihood, agreement)


def _name_of(key: Key) -> str:
    first, second, cut = key
    return first if second is None else f"{first}>{second}@{cut}"


def _key_of(name: str) -> Key:
    first, _, rest = name.partition(">")
    second, _, cut = rest.partition("@")
    return (first, second, int(cut)) if second else (first, None, LENGTH)
