"""Answers with given scores, as a run would write them."""

from __future__ import annotations

from collections.abc import Iterator

from bench.tasks.records import CUTS, PAIRS, Answer

__all__ = ["make_answers"]


def make_answers(task: str, item: str, own: dict[str, float], moved: float, *, lengths: int = 100) -> Iterator[Answer]:
    """One question's answers: the models' own, and all moves of those that are longer than the cut, with one score.

    Args:
        task: the task's name.
        item: the question's name.
        own: score by model.
        moved: score of every moved answer.
        lengths: tokens of the models' own answers.
    """
    for name, score in own.items():
        yield Answer(
            task=task, item=item, first=name, cut=lengths, text=f"by {name}", ids=tuple(range(lengths)), is_finished=True, score=score
        )
    for first, second in PAIRS:
        for cut in CUTS:
            if cut < lengths:
                text = f"by {first} and {second}"
                yield Answer(task=task, item=item, first=first, second=second, cut=cut, text=text, is_finished=True, score=moved)
