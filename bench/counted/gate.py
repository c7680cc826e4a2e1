"""Which requests may go to the weaker model, and what does that cost in quality?

Recorded answers of a weak and a strong model (RouteLLM: GSM8K and MMLU, right or wrong) are taken for the device's and the server's. Gates
are calibrated on one half of the rows and evaluated on the other: by prompt length, by task, and by chance as the floor. "Quality kept" is
the share of right answers divided by the strong model's; "on device" is the share of requests the gate lets through.

A gate by task is a list of tasks on which the weak model loses at most so much; one by length a limit in characters.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from bench.report import Row, add_arguments, emit
from bench.traces import data_folder
from streamco.policies.eligibility import Gate, RequestFacts, RequestGate

__all__ = ["Answer", "calibrate_length", "calibrate_tasks", "judge_gate", "load_answers", "main"]

LOSSES = (0.0, 0.02, 0.05, 0.1, 0.2)  # of the strong model's right answers, that a calibration may give up
SEED = 11
_SHRINK = 50.0  # rows; a task has 30 to 510 in the calibrating half


class Answer(NamedTuple):
    """One question, and which model answered it right."""

    task: str
    prompt_chars: int
    weak: bool
    strong: bool


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    answers = load_answers()
    Random(SEED).shuffle(answers)
    fitted, judged = answers[: len(answers) // 2], answers[len(answers) // 2 :]
    if options.quick:
        judged = judged[::2]
    rows: list[Row] = []
    for loss in LOSSES:
        by_length, by_task = calibrate_length(fitted, loss), calibrate_tasks(fitted, loss)
        gates: dict[str, Gate] = {"streamco": by_task, "by length": by_length, "chance": _chance(judge_gate(by_task, judged)[1])}
        for name, gate in gates.items():
            kept, share = judge_gate(gate, judged)
            case = f"may lose {loss:.0%}"
            rows += [Row("gate", case, name, metric, "share", value, value, value) for metric, value in _metrics(kept, share)]
        rows.append(_figure(f"may lose {loss:.0%}", "by length", "limit", "characters", by_length.longest_prompt_chars or 0))
        rows.append(_figure(f"may lose {loss:.0%}", "streamco", "tasks let through", "tasks", len(by_task.tasks or ())))
    emit(rows, options.json)


def load_answers() -> list[Answer]:
    """All recorded questions."""
    with gzip.open(data_folder() / "routing_quality" / "routellm_correctness.csv.gz", "rt", newline="") as file:
        return [
            Answer(row["task"], int(row["prompt_chars"]), row["weak_correct_mixtral8x7b"] == "1", row["strong_correct_gpt4_1106"] == "1")
            for row in csv.DictReader(file)
        ]


def calibrate_length(answers: Sequence[Answer], loss: float) -> RequestGate:
    """The longest limit in characters at which no more than ``loss`` of the strong model's right answers is given up."""
    allowed = loss * sum(answer.strong for answer in answers)
    limit, lost = 0, 0
    ordered = sorted(answers, key=lambda answer: answer.prompt_chars)
    for index, answer in enumerate(ordered):
        lost += answer.strong - answer.weak
        is_last_of_length = index + 1 == len(ordered) or ordered[index + 1].prompt_chars > answer.prompt_chars
        if is_last_of_length and lost <= allowed:
            limit = answer.prompt_chars
    return RequestGate(longest_prompt_chars=limit)


def calibrate_tasks(answers: Sequence[Answer], loss: float) -> RequestGate:
    """The tasks that lose least, as many as fit into the loss.

    Tasks picked because they lost little among few rows lose more among others, so each task's loss is first drawn towards the mean of
    all, as though it had ``_SHRINK`` more rows of average loss.
    """
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.task, []).append(answer)
    mean = sum(answer.strong - answer.weak for answer in answers) / len(answers)
    rates = {task: (sum(a.strong - a.weak for a in rows) + _SHRINK * mean) / (len(rows) + _SHRINK) for task, rows in by_task.items()}
    allowed = loss * sum(answer.strong for answer in answers)
    chosen: set[str] = set()
    for task in sorted(rates, key=lambda task: rates[task]):
        allowed -= rates[task] * len(by_task[task])
        if allowed < 0:
            break
        chosen.add(task)
    return RequestGate(tasks=frozenset(chosen))


def judge_gate(gate: Gate, answers: Sequence[Answer]) -> tuple[float, float]:
    """Quality kept against the strong model alone, and the share of requests on the device."""
    on_device = [gate(RequestFacts(prompt_tokens=a.prompt_chars // 4, prompt_chars=a.prompt_chars, task=a.task)) for a in answers]
    right = sum(a.weak if weak else a.strong for a, weak in zip(answers, on_device, strict=True))
    return right / sum(a.strong for a in answers), sum(on_device) / len(answers)


def _chance(share: float) -> Gate:
    """A gate that lets this share through, whatever the request."""
    rng = Random(SEED)
    passes: Callable[[RequestFacts], bool] = lambda _: rng.random() < share  # noqa: E731
    return passes


def _metrics(kept: float, share: float) -> tuple[tuple[str, float], ...]:
    return ("quality kept", kept), ("on device", share)


def _figure(case: str, contender: str, metric: str, unit: str, value: float) -> Row:
    return Row("gate", case, contender, metric, unit, value, value, value)


if __name__ == "__main__":
    main()
