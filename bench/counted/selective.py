"""Which share of the drafts has to be verified, and which drafts, for the answer to be the target's?

A small model writes; chunks of its draft that a rule picks are verified by the target (greedy: what is rejected is replaced by the target's
own token), the others stay as they are. Every rule sends the same share of the draft tokens, held by ``OffloadSteering``; the rules are the
paper's (confidence and importance), either alone, and chance. Figures of an answer:

- agreement: share of its tokens that the target would have written there itself, given everything in front of them;
- rouge-1 to target: its words against those of the target's own answer;
- the task's own score: Rouge-1 against the reference, or the share of right labels.

At budget 1 all of them are the target's own, token for token: the target runs in its exact mode.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from msgspec.structs import replace

from bench.pairs import DRAFTS, TARGET, Question, load_questions, model_file, rouge, score
from bench.report import Row, add_arguments, emit
from streamco.config import SamplingOptions
from streamco.engines.base import EngineOptions, Prediction, SequenceTask, TokenSequence
from streamco.engines.llama import LlamaEngine
from streamco.policies.importance import LAYERS
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule, OffloadSteering

__all__ = [
    "CHUNK",
    "RULES",
    "Answer",
    "Calibration",
    "Chunk",
    "Pair",
    "Prompt",
    "calibrate",
    "count_agreeing",
    "grouped",
    "load_pair",
    "main",
]
__all__ += ["measure", "prompted", "write_answers", "write_target"]

CHUNK = 4  # gamma
RULES: tuple[OffloadRule, ...] = ("combined", "confidence", "importance", "random")
BUDGETS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MOST_TOKENS = 64  # of an answer
SIDE_BY_SIDE = 8  # answers
SEED = 5
GREEDY = SamplingOptions(temperature=0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a draft, and what became of it."""

    confidence: float
    importance: float | None
    tokens: int
    accepted: int | None  # by the target; None: it was not asked


@dataclass(slots=True)
class Answer:
    """What a draft model and a target made together; ``ids`` ends with the end token where there is one."""

    ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def offloaded(self) -> int:
        """Draft tokens that were judged."""
        return sum(chunk.tokens for chunk in self.chunks if chunk.accepted is not None)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question that both engines have read: answers begin as forks of these sequences."""

    question: Question
    ids: list[int]
    draft: TokenSequence
    target: TokenSequence


@dataclass(frozen=True, slots=True)
class Pair:
    """A draft engine and a target engine; the latter is exact."""

    draft: LlamaEngine
    target: LlamaEngine

    def close(self) -> None:
        """Free both."""
        self.draft.close()
        self.target.close()


def load_pair(draft: str, *, attention_layers: tuple[int, ...], context_tokens: int = 512, side_by_side: int = SIDE_BY_SIDE) -> Pair:
    """The draft model of this kind and the target, one thread each."""
    places = EngineOptions(threads=1, context_tokens=context_tokens, max_sequences=1, held_sequences=2 * side_by_side)
    return Pair(
        LlamaEngine(model_file(draft), replace(places, attention_layers=attention_layers)),
        LlamaEngine(model_file(TARGET), replace(places, exact=True)),
    )


@contextmanager
def prompted(pair: Pair, questions: Sequence[Question]) -> Iterator[list[Prompt]]:
    """The questions, read by both engines."""
    prompts = []
    for question in questions:
        text = pair.target.apply_template([{"role": "user", "content": question.text}])
        prompts.append(Prompt(question, pair.target.tokenize(text, special=True), pair.draft.hold(), pair.target.hold()))
    waiting = Waiting()
    waiting.gather([held.extend(prompt.ids, waiting.wake) for prompt in prompts for held in (prompt.draft, prompt.target)])
    yield prompts
    for prompt in prompts:
        prompt.draft.close()
        prompt.target.close()


class Waiting:
    """Lets one thread wait for tasks."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.wake: Callable[[], None] = self._woken.set

    def gather(self, tasks: Sequence[SequenceTask]) -> list[list[Prediction]]:
        """What all of them say, when all have ended.

        Raises:
            RuntimeError: one ended otherwise.
        """
        found: list[list[Prediction]] = [[] for _ in tasks]
        left = set(range(len(tasks)))
        while left:
            self._woken.wait()
            self._woken.clear()
            for at in sorted(left):
                predictions, end = tasks[at].take()
                found[at] += predictions
                if end is not None:
                    left.discard(at)
                    if end.reason not in {"done", "stop"}:
                        raise RuntimeError(f"task: expected it to be done, got {end.reason}") from end.error
        return found


@dataclass(slots=True)
class _Line:
    """One answer being written."""

    prompt: Prompt
    draft: TokenSequence
    target: TokenSequence
    end_ids: frozenset[int]
    answer: Answer = field(default_factory=Answer)
    read: int = 0  # tokens of the answer that the target's sequence has
    given: list[int] = field(default_factory=list)  # and those that the draft's sequence has not

    @property
    def is_over(self) -> bool:
        ids = self.answer.ids
        return len(ids) >= self.prompt.question.most_tokens or bool(self.end_ids & {*ids[-1:]})

    def settle(self, ids: Sequence[int]) -> None:
        """Add to the answer, up to its end."""
        for token in ids:
            if not self.is_over:
                self.answer.ids.append(token)


def write_answers(pair: Pair, prompts: Sequence[Prompt], steering: OffloadSteering, rng: Random) -> list[Answer]:
    """One answer to each prompt, side by side: who decides is the same for all, so that the budget is that of all together."""
    waiting, ends = Waiting(), pair.draft.info.end_ids
    lines = [_Line(prompt, prompt.draft.fork(), prompt.target.fork(), ends) for prompt in prompts]
    while running := [line for line in lines if not line.is_over]:
        with pair.draft.together():
            tasks = [_ask_draft(line, waiting) for line in running]
        sent = []
        for line, predictions in zip(running, waiting.gather(tasks), strict=True):
            ids = [prediction.token for prediction in predictions if prediction.token is not None]
            confidence = sum(prediction.share or 0.0 for prediction in predictions) / len(ids)
            importance = predictions[-1].importance
            line.given = []
            if steering.decide(confidence, importance, len(ids), rng).is_offloaded:
                sent.append((line, ids, confidence, importance))
            else:
                line.settle(ids)
                line.answer.chunks.append(Chunk(confidence, importance, len(ids), None))
        with pair.target.together():
            tasks = [line.target.verify(ids, waiting.wake, given=line.answer.ids[line.read :]) for line, ids, _, _ in sent]
        for (line, ids, confidence, importance), verdict in zip(sent, waiting.gather(tasks), strict=True):
            accepted = _judge(line, ids, [prediction.greedy for prediction in verdict])
            line.answer.chunks.append(Chunk(confidence, importance, len(ids), accepted))
    for line in lines:
        line.draft.close()
        line.target.close()
    return [line.answer for line in lines]


def _ask_draft(line: _Line, waiting: Waiting) -> SequenceTask:
    count = min(CHUNK, line.prompt.question.most_tokens - len(line.answer.ids))
    return line.draft.draft(count, waiting.wake, ids=line.given, sampling=GREEDY)


def _judge(line: _Line, ids: Sequence[int], choices: Sequence[int]) -> int:
    """Take the verdict over; gives the number of accepted tokens."""
    accepted = next((place for place, token in enumerate(ids) if token != choices[place]), len(ids))
    start = len(line.prompt.ids) + len(line.answer.ids)
    line.read = len(line.answer.ids) + accepted
    line.target.truncate(start + accepted)
    line.draft.truncate(start + accepted)
    line.given = [choices[accepted]]
    line.settle([*ids[:accepted], choices[accepted]])
    return accepted


def write_target(pair: Pair, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The target's own greedy answers."""
    waiting = Waiting()
    held = [prompt.target.fork() for prompt in prompts]
    with pair.target.together():
        tasks = [each.draft(prompt.question.most_tokens, waiting.wake, sampling=GREEDY) for each, prompt in zip(held, prompts, strict=True)]
    answers = [[prediction.greedy for prediction in predictions] for predictions in waiting.gather(tasks)]
    for each in held:
        each.close()
    return answers


def count_agreeing(pair: Pair, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> int:
    """Tokens of these answers that the target would have written itself behind all that is in front of them."""
    waiting = Waiting()
    held = [prompt.target.fork() for prompt in prompts]
    tasks = [each.verify(ids, waiting.wake) for each, ids in zip(held, answers, strict=True)]
    judged = zip(answers, waiting.gather(tasks), strict=True)
    agreeing = sum(token == prediction.greedy for ids, predictions in judged for token, prediction in zip(ids, predictions, strict=False))
    for each in held:
        each.close()
    return agreeing


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured with all chunks judged (Synera section 5)."""

    chunks: tuple[tuple[float, float | None], ...]
    confidence_threshold: float

    def steering(self, budget: float, rule: OffloadRule) -> OffloadSteering:
        """Holds a budget, planned on these chunks."""
        return OffloadSteering(budget, rule=rule, confidence_threshold=self.confidence_threshold, chunks=self.chunks)


def calibrate(pair: Pair, questions: Sequence[Question]) -> Calibration:
    """The chunks of these questions' answers, and c_th: the mean confidence of chunks that were accepted whole."""
    chunks = []
    for group in grouped(questions):
        with prompted(pair, group) as prompts:
            for answer in write_answers(pair, prompts, OffloadSteering(1.0), Random(SEED)):
                chunks += answer.chunks
    sure = [chunk.confidence for chunk in chunks if chunk.accepted == chunk.tokens]
    threshold = sum(sure) / len(sure) if sure else CONFIDENCE_THRESHOLD
    return Calibration(tuple((chunk.confidence, chunk.importance) for chunk in chunks), min(threshold, 0.99))


def grouped(questions: Sequence[Question], size: int = SIDE_BY_SIDE) -> Iterator[list[Question]]:
    """As many as are answered side by side."""
    left = iter(questions)
    while group := list(islice(left, size)):
        yield group


@dataclass(slots=True)
class Tally:
    """What one rule at one budget gave over all questions of a task."""

    steering: OffloadSteering
    tokens: int = 0
    agreeing: int = 0
    offloaded: int = 0
    drafted: int = 0
    texts: list[str] = field(default_factory=list)

    def note(self, pair: Pair, prompts: Sequence[Prompt], rng: Random) -> None:
        """Write answers to these prompts and count."""
        answers = write_answers(pair, prompts, self.steering, rng)
        self.tokens += sum(len(answer.ids) for answer in answers)
        self.agreeing += count_agreeing(pair, prompts, [answer.ids for answer in answers])
        self.offloaded += sum(answer.offloaded for answer in answers)
        self.drafted += sum(chunk.tokens for answer in answers for chunk in answer.chunks)
        self.texts += [_text(pair, answer.ids) for answer in answers]


def measure(
    pair: Pair, calibration: Calibration, questions: Sequence[Question], cells: Sequence[tuple[OffloadRule, float]]
) -> dict[tuple[OffloadRule, float], dict[str, float]]:
    """The figures of every rule and budget, by name: see the head of this file, and the share of draft tokens that was sent.

    At budgets 0 and 1 the rules don't differ.
    """
    tallies = {cell: Tally(calibration.steering(cell[1], cell[0])) for cell in cells}
    targets: list[str] = []
    for number, group in enumerate(grouped(questions)):
        with prompted(pair, group) as prompts:
            targets += [_text(pair, ids) for ids in write_target(pair, prompts)]
            for tally in tallies.values():
                tally.note(pair, prompts, Random(f"{SEED} {number}"))
    task, references = questions[0].task, [question.reference for question in questions]
    own_score = score(task, targets, references)
    return {
        cell: {
            "agreement": tally.agreeing / tally.tokens,
            "rouge-1 to target": rouge(tally.texts, targets),
            "answers as the target's": sum(text == own for text, own in zip(tally.texts, targets, strict=True)) / len(targets),
            "score": score(task, tally.texts, references),
            "score, the target's own": own_score,
            "share sent": tally.offloaded / tally.drafted,
        }
        for cell, tally in tallies.items()
    }


def _text(pair: Pair, ids: Sequence[int]) -> str:
    return pair.target.detokenize(ids).decode("utf-8", "replace")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--drafts", nargs="*", default=DRAFTS)
    parser.add_argument("--questions", type=int, default=24, help="of each task")
    parser.add_argument("--tasks", nargs="*", default=("alpaca", "xsum", "sst2"))
    parser.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
    parser.add_argument("--layers", nargs="*", type=int, default=LAYERS)
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    drafts, tasks = (options.drafts[:1], options.tasks[:1]) if quick else (options.drafts, options.tasks)
    budgets, count, most_tokens = ((0.0, 0.2, 1.0), 4, 24) if quick else (options.budgets, options.questions, MOST_TOKENS)
    cells: list[tuple[OffloadRule, float]] = [(rule, budget) for budget in budgets for rule in (RULES if 0.0 < budget < 1.0 else RULES[:1])]
    rows: list[Row] = []
    for draft in drafts:
        pair = load_pair(draft, attention_layers=tuple(options.layers))
        calibration = calibrate(pair, load_questions("alpaca", 4 if quick else 2 * SIDE_BY_SIDE, SEED + 1, most_tokens))
        for task in tasks:
            questions = load_questions(task, count, SEED, 4 if task == "sst2" else most_tokens)
            figures = measure(pair, calibration, questions, cells)
            rows += [
                Row("selective", f"{draft} for {TARGET}, {task}, budget {budget:g}", rule, metric, "share", value, value, value)
                for (rule, budget), found in figures.items()
                for metric, value in found.items()
            ]
        pair.close()
    emit(sorted(rows, key=lambda row: (row.case, row.metric)), options.json, against="combined")


if __name__ == "__main__":
    main()
