"""What the tables need of answers, without texts: kept in ``recorded.jsonl``, one line for each question.

A later run answers other questions only, and ``package`` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.papers.synera.answers import WrittenAnswer
from streamco.engines.llamacpp.cache_dir import write_whole
from streamco.sim.fleet.answer_routing import perplexity

__all__ = ["RECORDED", "Result", "add_to_package", "read_package"]

RECORDED = Path(__file__).resolve().parent / "recorded.jsonl"


class Result(Struct, frozen=True, array_like=True):
    """A contender's answer to a question.

    Args:
        score: what the answer is worth, 0.0 to 1.0.
        tokens: number of its tokens.
        server_tokens: tokens that the target computed: each verified position and the one after it.
        drafted: number of drafted tokens.
        sent: number of drafted tokens that were sent.
        perplexity: of the draft model at the answer's beginning.
    """

    score: float
    tokens: int
    server_tokens: int = 0
    drafted: int = 0
    sent: int = 0
    perplexity: float = 1.0

    @classmethod
    def of_answer(cls, score: float, tokens: int, answer: WrittenAnswer) -> Result:
        """Return the result of an answer with this score and so many tokens."""
        return cls(
            score=round(score, 4),
            tokens=tokens,
            server_tokens=answer.server_tokens,
            drafted=sum(chunk.tokens for chunk in answer.chunks),
            sent=sum(chunk.tokens for chunk in answer.chunks if chunk.accepted is not None),
            perplexity=round(perplexity(answer.beginning), 4),
        )


class _Line(Struct, frozen=True):
    task: str
    question: str
    cells: dict[str, Result]


def read_package(path: Path = RECORDED) -> dict[str, dict[str, dict[str, Result]]]:
    """Return what is packaged, by task, question and contender; nothing, if the file isn't there."""
    found: dict[str, dict[str, dict[str, Result]]] = {}
    decoder = msgspec.json.Decoder(_Line)
    for line in path.read_bytes().splitlines() if path.exists() else ():
        read = decoder.decode(line)
        found.setdefault(read.task, {})[read.question] = read.cells
    return found


def add_to_package(task: str, results: Mapping[str, Mapping[str, Result]], path: Path = RECORDED) -> int:
    """Add a task's results, also in place of packaged ones of the same question and contender; return how many questions it has now."""
    found = read_package(path)
    old = found.setdefault(task, {})
    old.update({question: {**old.get(question, {}), **cells} for question, cells in results.items()})
    lines = (
        msgspec.json.encode(_Line(each, question, cells)) + b"\n"
        for each in sorted(found)
        for question, cells in sorted(found[each].items())
    )
    write_whole(path, b"".join(lines))
    return len(found[task])
