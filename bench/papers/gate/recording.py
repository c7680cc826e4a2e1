"""What the device's model knows of its own answer, token by token: one line of JSON for each question, without texts."""

from __future__ import annotations

import gzip
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench.counted.selective import GREEDY, Pair, Waiting
from bench.papers.gate.split import MIX
from bench.tasks import Question, questions_in_turns
from streamco.config import SamplingOptions
from streamco.core.confidence import ends_sentence
from streamco.engines.base import Prediction, TokenSequence
from streamco.engines.llama import LlamaEngine

__all__ = ["BY_DEVICE", "RECORDED", "WORD_BINS", "Answer", "package", "read_answers", "record"]

_FOLDER = Path(__file__).resolve().parent
RECORDED = _FOLDER / "recorded.jsonl.gz"
BY_DEVICE = {"0.5B": RECORDED, "135M": _FOLDER / "recorded_135m.jsonl.gz"}
"""The packaged recordings by the device's model; the server's is the 1.5B."""

WORD_BINS = 512
SAMPLED_TOKENS = 16
_SAMPLING = [SamplingOptions(temperature=0.7, seed=seed) for seed in (1, 2)]
_TOP = 20  # alternatives that an entropy is of; what they leave counts as one more
_DIGITS = 4


class Answer(Struct, frozen=True, kw_only=True):
    """One question, both models' scores, and what the device's model knew.

    Args:
        task, question: its names.
        prompt_tokens, max_tokens: lengths of the prompt and of the longest answer.
        device, server: scores, 0.0 to 1.0.
        chosen: the model's own probability of each token of the device's greedy answer, its end included.
        second: of the second best token at each position.
        entropy: in nats, at each position, of the 20 likeliest tokens and of the rest as one.
        sentences: number of tokens up to each end of a sentence or line.
        agreement: share of tokens that two samples of 16 tokens have in common.
        words: bins of the prompt's words by their hash, 0 to 511, each once; empty: not packaged.
    """

    task: str
    question: str
    prompt_tokens: int
    max_tokens: int
    device: float
    server: float
    chosen: tuple[float, ...]
    second: tuple[float, ...]
    entropy: tuple[float, ...]
    sentences: tuple[int, ...]
    agreement: float
    words: tuple[int, ...] = ()

    @property
    def told(self) -> tuple[float, ...]:
        """The probabilities that a client is told: without that of the end, if the answer has one."""
        return self.chosen[:-1] if 1 < len(self.chosen) < self.max_tokens else self.chosen


def read_answers(path: Path = RECORDED) -> list[Answer]:
    """Return what was recorded, in the order of the file."""
    decoder, content = msgspec.json.Decoder(Answer), path.read_bytes() if path.exists() else b""
    lines = gzip.decompress(content) if path.suffix == ".gz" and content else content
    return [decoder.decode(line) for line in lines.splitlines()]


def package(answers: Sequence[Answer], path: Path = RECORDED) -> int:
    """Add answers to the packaged ones, with the words of their prompts; return how many there are now."""
    found = {(each.task, each.question): each for each in (*read_answers(path), *answers)}
    is_whole = all(each.words for each in found.values())
    texts = {} if is_whole else {(question.task, question.id): question.text for question in questions_in_turns(MIX)}
    whole = [replace(each, words=each.words or _words(texts[key])) for key, each in sorted(found.items())]
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in whole)
    path.write_bytes(gzip.compress(lines, mtime=0))
    return len(whole)


def _words(text: str) -> tuple[int, ...]:
    return tuple(sorted({crc32(word.encode()) % WORD_BINS for word in re.findall(r"[a-z]+", text.lower())}))


def record(path: Path, models: Pair, known: Mapping[str, Mapping[str, float]], *, ends: float) -> Iterator[Answer]:
    """Record the questions that aren't there yet, the tasks in turns; yield each.

    Args:
        path: the file that lines are added to.
        models: the pair; the target answers only what has no score of it.
        known: the server's scores, by task and question.
        ends: time of the monotonic clock after which no question is begun.
    """
    done = {(each.task, each.question) for each in read_answers(path)}
    with path.open("ab") as file:
        for question in questions_in_turns(MIX):
            if (question.task, question.id) in done:
                continue
            if time.monotonic() >= ends:
                return
            answer = _answer(models, question, known.get(question.task, {}).get(question.id))
            file.write(msgspec.json.encode(answer) + b"\n")
            file.flush()
            yield answer


def _answer(models: Pair, question: Question, server: float | None) -> Answer:
    waiting, device = Waiting(), models.draft
    prompt = device.tokenize(device.apply_template(question.messages), special=True)
    most = min(256, question.max_tokens)
    held = device.hold()
    waiting.gather([held.extend(prompt, waiting.wake)])
    greedy, *samples = (held.fork() for _ in range(1 + len(_SAMPLING)))
    predictions = _write(greedy, most, GREEDY, waiting, top=_TOP)
    with device.together():
        tasks = [each.draft(SAMPLED_TOKENS, waiting.wake, sampling=how) for each, how in zip(samples, _SAMPLING, strict=True)]
    drawn = [[each.token for each in found] for found in waiting.gather(tasks)]
    for each in (greedy, *samples, held):
        each.close()
    ids = [each.token for each in predictions if each.token is not None]
    if server is None:
        server = question.score(_written(models.target, question, most, waiting))
    return Answer(
        task=question.task,
        question=question.id,
        prompt_tokens=len(prompt),
        max_tokens=most,
        device=round(question.score(_text(device, ids)), _DIGITS),
        server=round(server, _DIGITS),
        chosen=tuple(round(each.share or 0.0, _DIGITS) for each in predictions),
        second=tuple(round(each.likeliest[1][1], _DIGITS) for each in predictions),
        entropy=tuple(round(_entropy(each), _DIGITS) for each in predictions),
        sentences=_sentence_ends(device, ids),
        agreement=round(_in_common(*drawn), _DIGITS),
    )


def _write(sequence: TokenSequence, most: int, sampling: SamplingOptions, waiting: Waiting, *, top: int = 0) -> list[Prediction]:
    return waiting.gather([sequence.draft(most, waiting.wake, top=top, sampling=sampling)])[0]


def _written(engine: LlamaEngine, question: Question, most: int, waiting: Waiting) -> str:
    """Return the text that a model writes alone."""
    held = engine.hold()
    prompt = engine.tokenize(engine.apply_template(question.messages), special=True)
    waiting.gather([held.extend(prompt, waiting.wake)])
    predictions = _write(held, most, GREEDY, waiting)
    held.close()
    return _text(engine, [each.token for each in predictions if each.token is not None])


def _text(engine: LlamaEngine, ids: Sequence[int]) -> str:
    return engine.detokenize(list(ids)).decode("utf-8", "replace")


def _entropy(prediction: Prediction) -> float:
    shares = [share for _, share in prediction.likeliest]
    rest = max(0.0, 1.0 - sum(shares))
    return -sum(share * math.log(share) for share in (*shares, rest) if share > 0.0)


def _sentence_ends(engine: LlamaEngine, ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(count for count, each in enumerate(ids, 1) if ends_sentence(_text(engine, [each])))


def _in_common(first: Sequence[int | None], second: Sequence[int | None]) -> float:
    """Return the share of two samples' tokens that both have, each as often as the other."""
    left, common = list(second), 0
    for token in first:
        if token in left:
            left.remove(token)
            common += 1
    return 2.0 * common / (len(first) + len(second))
