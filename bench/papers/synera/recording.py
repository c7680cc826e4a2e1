"""Recordings of answers by every contender: one line of JSON for each question, and a run that was broken off goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from random import Random
from typing import Any

from bench.counted.selective import Pair
from bench.papers.synera.answers import Chunk, Profile, WrittenAnswer, make_steering, profile_of, replay, write_answers
from bench.papers.synera.results import Result
from bench.papers.synera.rules import Cell
from bench.tasks import Question, load_questions, questions_in_turns
from streamco.policies.offload import OffloadSteering

__all__ = ["Recording", "load_profile", "read_results", "record"]

PROFILE_TASK, PROFILE_QUESTIONS, PROFILE_TOKENS = "alpaca", 8, 64
SEED = 5


class Recording:
    """The file of one task; a line that a broken run left half written is dropped.

    Args:
        folder: folder of the recordings.
        task: name of the task.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._path = folder / f"{task}.jsonl"
        whole = self._path.read_bytes().rpartition(b"\n")[0] if self._path.exists() else b""
        self._path.write_bytes(whole + b"\n" if whole else b"")
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    @property
    def questions(self) -> set[str]:
        """Names of the recorded questions."""
        return {line["question"] for line in self.lines}

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def record(
    folder: Path,
    tasks: Mapping[str, int],
    cells: Sequence[Cell],
    models: Pair,
    *,
    max_tokens: int,
    ends: float,
    packaged: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[tuple[str, int]]:
    """Write every answer that isn't recorded, the tasks in turns; yield the task and its number of questions after each.

    Args:
        folder: folder of the recordings.
        tasks: number of questions of each.
        cells: contenders; those of a folder's first run, because their budgets go on from answer to answer.
        models: the pair.
        max_tokens: limit of an answer, if the task has no lower one.
        ends: time of the monotonic clock after which no question is begun.
        packaged: questions of each task that are left out.

    Raises:
        SystemExit: the folder has recordings of other contenders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profile = load_profile(folder, models)
    recordings = {task: Recording(folder, task) for task in tasks}
    steerings = {task: _steerings(recording, cells, profile) for task, recording in recordings.items()}
    for question in questions_in_turns(tasks):
        recording = recordings[question.task]
        if question.id in recording.questions or question.id in (packaged or {}).get(question.task, {}):
            continue
        if time.monotonic() >= ends:
            return
        recording.add(_answer(models, question, steerings[question.task], min(max_tokens, question.max_tokens)))
        yield question.task, len(recording.lines)


def _steerings(recording: Recording, cells: Sequence[Cell], profile: Profile) -> dict[Cell, OffloadSteering]:
    """Return each contender's steering as it was after the recorded questions."""
    steerings = {cell: make_steering(cell, profile) for cell in cells}
    for line in recording.lines:
        if set(line["cells"]) != {cell.name for cell in cells}:
            raise SystemExit(f"recording: expected the contenders {', '.join(line['cells'])}, as recorded, got others")
        for cell, steering in steerings.items():
            replay(steering, _chunks(line["cells"][cell.name]), Random(_seed(line["question"])))
    return steerings


def _answer(models: Pair, question: Question, steerings: Mapping[Cell, OffloadSteering], max_tokens: int) -> dict[str, Any]:
    prompt = models.target.tokenize(models.target.apply_template(question.messages), special=True)
    answers = write_answers(models, prompt, steerings, max_tokens, _seed(question.id))
    cells = {}
    for cell, answer in answers.items():
        text = models.target.detokenize(answer.ids).decode("utf-8", "replace")
        cells[cell.name] = {
            "score": question.score(text),
            "tokens": len(answer.ids),
            "text": text,
            "beginning": answer.beginning,
            "chunks": [astuple(chunk) for chunk in answer.chunks],
        }
    return {"question": question.id, "prompt_tokens": len(prompt), "max_tokens": max_tokens, "cells": cells}


def _seed(question: str) -> str:
    return f"{SEED} {question}"


def _chunks(cell: Mapping[str, Any]) -> list[Chunk]:
    return [Chunk(*each) for each in cell["chunks"]]


def load_profile(folder: Path, models: Pair) -> Profile:
    """Return the folder's profile of the pair; a first run measures it, with every chunk verified."""
    path = folder / "profile.json"
    if path.exists():
        found = json.loads(path.read_text())
        return Profile(found["confidence_threshold"], tuple((confidence, importance) for confidence, importance in found["chunks"]))
    everything, answers = Cell("combined", 1.0), []
    for question in load_questions(PROFILE_TASK, PROFILE_QUESTIONS):
        prompt = models.target.tokenize(models.target.apply_template(question.messages), special=True)
        steerings = {everything: OffloadSteering(1.0)}
        answers.append(write_answers(models, prompt, steerings, PROFILE_TOKENS, _seed(question.id))[everything])
    profile = profile_of(answers)
    path.write_text(json.dumps({"confidence_threshold": profile.confidence_threshold, "chunks": profile.chunks}))
    return profile


def read_results(folder: Path, task: str) -> dict[str, dict[str, Result]]:
    """Return the recorded questions of a task, by their names and in their order: the result of each contender, by its name.

    Raises:
        SystemExit: nothing was recorded.
    """
    path = folder / f"{task}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if not lines:
        raise SystemExit(f"{path}: expected recorded answers, got none")
    found = {}
    for line in map(json.loads, lines):
        results = {}
        for name, cell in line["cells"].items():
            answer = WrittenAnswer(chunks=_chunks(cell), beginning=cell["beginning"])
            results[name] = Result.of_answer(cell["score"], cell["tokens"], answer)
        found[line["question"]] = results
    return found
