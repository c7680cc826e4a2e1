"""Writes the answers: each model its own, and the ends of answers that another model has begun.

An answer moves as it does in the client: the second model is a ``DeviceEndpoint`` that gets a request with ``Request.partial``. Ids go
between models of one vocabulary, text between others (docs/migration.md). All is greedy. An answer that has ended before the cut doesn't
move, and one that begins with tokens of the second model's own answer ends as that one does, so it isn't written again. Answers decode
together, and those to one prompt share the memory of it, so that it is read once.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.fetch_models import fetched
from bench.tasks import Question
from bench.tasks.records import CUTS, LENGTH, PAIRS, Answer, AnswerFile, Key
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions, Prediction
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.prompt_ids import answer_ids, chat_ids, pending_bytes
from streamco.events import Partial, StreamEnded

__all__ = ["MODELS", "Writer", "begins_with", "begun", "likelihood", "model_path", "write_block"]

MODELS = ("SmolLM2", "0.5B", "1.5B")
TARGET = "1.5B"  # the model that gives the likelihood
SIDE_BY_SIDE = 16  # answers of one model: rows of one batch cost less than single ones
CONTEXT = 2048  # tokens


def model_path(name: str) -> Path:
    """Return the file of a model; those of the pair are derived as Q4_0, whose batches cost half on a processor.

    Raises:
        SystemExit: ``make models`` has not fetched it.
    """
    if name == "SmolLM2":
        return packaged_model()
    path = fetched(name)
    if path is None:
        raise SystemExit(f"{name}: expected the models of `make models`, got none")
    return derived(path, "Q4_0")


class Writer:
    """One model that writes answers.

    Args:
        engine: the model, which the caller closes.
    """

    def __init__(self, engine: LlamaEngine) -> None:
        self.engine = engine
        self._endpoint = DeviceEndpoint(engine)
        self._places = asyncio.Semaphore(engine.options.max_sequences)

    @classmethod
    def load(cls, name: str) -> Writer:
        """Load a model by its name."""
        options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=SIDE_BY_SIDE, held_sequences=int(name == TARGET))
        return cls(LlamaEngine(model_path(name), options))

    async def write(self, question: Question, partial: Partial | None = None) -> tuple[str, tuple[int, ...], bool]:
        """Return the text that the model adds, its ids, and whether the model ended it.

        Args:
            question: the question.
            partial: the beginning of the answer; None: there is none.

        Raises:
            EndpointError: the engine failed.
        """
        limit = min(LENGTH, question.max_tokens) - (0 if partial is None else partial.tokens)
        request = Request(messages=question.messages, sampling=SamplingOptions(temperature=0, max_tokens=limit), partial=partial)
        text: list[str] = []
        ids: list[int] = []
        async with self._places:
            stream = self._endpoint.open(request)
            while not isinstance(event := await stream.receive(), StreamEnded):
                for choice in (choice for chunk in event.chunks for choice in chunk.choices):
                    text.append(choice.delta.content or "")
                    ids += choice.token_ids or ()
        return "".join(text), tuple(ids), event.finish_reason == "stop"


def begun(engine: LlamaEngine, ids: Sequence[int], cut: int) -> Partial:
    """Return the beginning of an answer that is handed over after so many of its ids; ids of an unfinished code point stay out."""
    kept = list(ids[:cut])
    while pending_bytes(engine, kept):
        kept.pop()
    text = engine.detokenize(kept).decode("utf-8", "replace")
    return Partial(text=text, ids=tuple(kept), vocabulary=engine.info.vocabulary, tokens=len(kept), is_counted=True)


def begins_with(engine: LlamaEngine, own: Answer, partial: Partial) -> bool:
    """Return True if a finished answer of the engine's model begins with the tokens of a partial one, so that greedily it ends alike."""
    if not own.is_finished:
        return False  # the limit counts the first model's tokens, which may be more or fewer
    if partial.ids is not None and partial.vocabulary == engine.info.vocabulary:
        return own.ids[: len(partial.ids)] == partial.ids
    beginnings = (engine.detokenize(own.ids[:count]) for count in range(1, len(own.ids) + 1))
    wanted = partial.text.encode()
    return next((each for each in beginnings if len(each) >= len(wanted)), b"") == wanted


async def write_block(
    writers: Mapping[str, Writer], questions: Sequence[tuple[Question, AnswerFile]], *, measures: bool = True, moves: bool = True
) -> int:
    """Write what is missing of these questions' answers, model by model; return how many were written.

    Args:
        writers: all models, by name.
        questions: the questions, each with the file of its task.
        measures: measure the likelihood of answers to Alpaca.
        moves: write the moved answers, too.
    """
    count = 0
    for name in MODELS:
        jobs = [_write_own(name, writers, question, file, measures=measures) for question, file in questions]
        count += sum(await asyncio.gather(*jobs))
    for name in MODELS if moves else ():
        jobs = [
            _write_moved(pair, cut, writers, question, file, measures=measures)
            for question, file in questions
            for pair in PAIRS
            for cut in CUTS
            if pair[1] == name
        ]
        count += sum(await asyncio.gather(*jobs))
    return count


async def _write_own(name: str, writers: Mapping[str, Writer], question: Question, file: AnswerFile, *, measures: bool) -> bool:
    key: Key = (name, None, LENGTH)
    if (known := file.find(question.id, key)) is not None:
        await _complete(known, writers, question, file, measures=measures)
        return False
    text, ids, is_finished = await writers[name].write(question)
    answer = Answer(
        task=question.task,
        item=question.id,
        first=name,
        cut=len(ids),
        text=text,
        ids=ids,
        is_finished=is_finished,
        score=await asyncio.to_thread(question.score, text),
        likelihood=await _measure(writers, question, text) if measures else None,
    )
    file.add(answer)
    return True


async def _write_moved(
    pair: tuple[str, str], cut: int, writers: Mapping[str, Writer], question: Question, file: AnswerFile, *, measures: bool
) -> bool:
    first, second = pair
    own = file.find(question.id, (first, None, LENGTH))
    if own is None:
        raise AssertionError("the models' own answers come first")
    if len(own.ids) <= cut:
        return False  # an answer that has ended before the cut doesn't move
    if (known := file.find(question.id, (first, second, cut))) is not None:
        await _complete(known, writers, question, file, measures=measures)
        return False
    partial = begun(writers[first].engine, own.ids, cut)
    same = file.find(question.id, (second, None, LENGTH))
    if same is not None and begins_with(writers[second].engine, same, partial):
        file.add(replace(same, first=first, second=second, cut=cut, ids=()))
        return True
    added, _, is_finished = await writers[second].write(question, partial)
    text = partial.text + added
    answer = Answer(
        task=question.task,
        item=question.id,
        first=first,
        second=second,
        cut=cut,
        text=text,
        is_finished=is_finished,
        score=await asyncio.to_thread(question.score, text),
        likelihood=await _measure(writers, question, text) if measures else None,
    )
    file.add(answer)
    return True


async def _complete(known: Answer, writers: Mapping[str, Writer], question: Question, file: AnswerFile, *, measures: bool) -> None:
    """Add the likelihood of an answer in the file if it is to be measured and is missing."""
    if measures and known.likelihood is None:
        found = await _measure(writers, question, known.text)
        if found is not None:
            file.add(replace(known, likelihood=found))


async def _measure(writers: Mapping[str, Writer], question: Question, text: str) -> float | None:
    if question.task != "alpaca" or not text:
        return None
    return await asyncio.to_thread(likelihood, writers[TARGET].engine, question, text)


_measuring = threading.Lock()  # there is one place for a held sequence


def likelihood(engine: LlamaEngine, question: Question, text: str) -> float:
    """Return the mean logarithm of the probability of an answer's tokens after the question; the engine needs a held sequence."""
    prompt, ids = chat_ids(engine, question.messages), answer_ids(engine, text)
    with _measuring:
        predictions = _verify(engine, prompt, ids)
    shares = [each.share for each in predictions if each.share is not None]
    if len(shares) != len(ids):
        raise AssertionError(f"expected a probability for each of {len(ids)} tokens, got {len(shares)}")
    return math.fsum(math.log(max(share, 1e-30)) for share in shares) / len(shares)


def _verify(engine: LlamaEngine, prompt: Sequence[int], ids: Sequence[int]) -> Iterable[Prediction]:
    woken, predictions = threading.Event(), list[Prediction]()
    held = engine.hold()
    try:
        held.extend(prompt)
        task = held.verify(ids, woken.set, top=1)
        end = None
        while end is None:
            woken.wait()
            woken.clear()
            found, end = task.take()
            predictions += found
    finally:
        held.close()
    if end.reason != "done":
        raise RuntimeError(f"likelihood: expected the task to be done, got {end.reason}") from end.error
    return predictions
