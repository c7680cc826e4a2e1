"""Answers of a draft model and a target in one process, by every contender side by side.

What a contender decides is the live client's own: ``OffloadSteering`` and the early exit of section 4.3. What the target accepts is
``verify_greedy``. Left out are the link and the branches, which change the time and not the text. One question at a time is answered by all
contenders, as sequences of one batch, each with its own steering that goes on from question to question. The draft model doesn't run in
exact mode, as on a device, so its arithmetic depends a little on what shares its batch: with one contender alone, the text is to the token
the one that a live client writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from msgspec.structs import replace

from bench.counted.selective import GREEDY, Pair, Waiting
from bench.papers.synera.rules import Cell
from streamco.engines.base import EngineOptions, Prediction, SequenceTask, TokenSequence
from streamco.engines.llama import LlamaEngine
from streamco.policies.acceptance import verify_greedy
from streamco.policies.importance import LAYERS
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadSteering, is_past_exit
from streamco.sim.fleet.answer_routing import PREFIX

__all__ = ["Chunk", "Profile", "WrittenAnswer", "load_models", "make_steering", "profile_of", "replay", "write_answers"]

_HIGHEST = 0.99  # of c_th


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a draft, and what became of it.

    Args:
        confidence: mean probability of its tokens on the draft model.
        importance: mean importance; None: not measured, as of a single token.
        tokens: number of its tokens.
        accepted: number of them that the target accepted; None: it was not sent.
        may_be_sent: the rule was asked; False after the early exit.
    """

    confidence: float
    importance: float | None
    tokens: int
    accepted: int | None = None
    may_be_sent: bool = True


@dataclass(slots=True)
class WrittenAnswer:
    """An answer.

    Args:
        ids: its tokens, with the end token if there is one.
        chunks: in order.
        beginning: the draft model's probabilities of the first tokens that it drafted.
    """

    ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    beginning: list[float] = field(default_factory=list)

    @property
    def server_tokens(self) -> int:
        """Tokens that the target computed: each verified position and the one after it."""
        return sum(chunk.tokens + 1 for chunk in self.chunks if chunk.accepted is not None)

    @property
    def sent_share(self) -> float:
        """Share of the drafted tokens that were sent."""
        drafted = sum(chunk.tokens for chunk in self.chunks)
        return sum(chunk.tokens for chunk in self.chunks if chunk.accepted is not None) / drafted if drafted else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of the pair with all chunks verified (section 5)."""

    confidence_threshold: float = CONFIDENCE_THRESHOLD
    chunks: tuple[tuple[float, float | None], ...] = ()


def load_models(draft: Path, target: Path, *, cells: int, context_tokens: int, exact: bool = True) -> Pair:
    """Return both models, with one thread each.

    Args:
        draft, target: their files.
        cells: contenders side by side.
        context_tokens: of prompt and answer.
        exact: the target runs in exact mode.
    """
    places = EngineOptions(threads=1, context_tokens=context_tokens, max_sequences=1, held_sequences=cells + 1)
    return Pair(LlamaEngine(draft, replace(places, attention_layers=LAYERS)), LlamaEngine(target, replace(places, exact=exact)))


def make_steering(cell: Cell, profile: Profile) -> OffloadSteering:
    """Return the steering of a contender before its first answer."""
    threshold = CONFIDENCE_THRESHOLD if cell.rule == "tolerant" else profile.confidence_threshold
    chunks = profile.chunks if cell.is_profiled else ()
    return OffloadSteering(cell.budget, rule=cell.offload_rule, confidence_threshold=threshold, chunks=chunks)


def replay(steering: OffloadSteering, chunks: Sequence[Chunk], rng: Random) -> None:
    """Bring a steering to where it was after an answer of these chunks, with the same random source."""
    for chunk in chunks:
        if not chunk.may_be_sent:
            steering.keep(chunk.tokens)
        else:
            steering.decide(chunk.confidence, chunk.importance, chunk.tokens, rng)


def profile_of(answers: Sequence[WrittenAnswer]) -> Profile:
    """Return the profile that answers give of which every chunk was verified: c_th is the mean confidence of chunks accepted whole."""
    chunks = [chunk for answer in answers for chunk in answer.chunks]
    sure = [chunk.confidence for chunk in chunks if chunk.accepted == chunk.tokens]
    threshold = min(_HIGHEST, sum(sure) / len(sure)) if sure else CONFIDENCE_THRESHOLD
    return Profile(threshold, tuple((chunk.confidence, chunk.importance) for chunk in chunks))


@dataclass(slots=True)
class _Line:
    """One contender's answer being written."""

    cell: Cell
    steering: OffloadSteering
    rng: Random
    draft: TokenSequence
    target: TokenSequence
    prompt_tokens: int
    max_tokens: int
    end_ids: frozenset[int]
    answer: WrittenAnswer = field(default_factory=WrittenAnswer)
    read: int = 0  # tokens of the answer that the target's sequence has
    given: list[int] = field(default_factory=list)  # tokens that the draft's sequence has not

    @property
    def is_over(self) -> bool:
        ids = self.answer.ids
        return len(ids) >= self.max_tokens or bool(self.end_ids & {*ids[-1:]})

    def ask_draft(self, waiting: Waiting) -> SequenceTask:
        count = min(self.cell.window, self.max_tokens - len(self.answer.ids))
        return self.draft.draft(count, waiting.wake, ids=self.given, sampling=GREEDY)

    def take_draft(self, predictions: Sequence[Prediction]) -> tuple[list[int], Chunk] | None:
        """Keep a drafted chunk, or return it if it is to be sent."""
        ids = [prediction.token for prediction in predictions if prediction.token is not None]
        shares = [prediction.share or 0.0 for prediction in predictions]
        self.answer.beginning += shares[: PREFIX - len(self.answer.beginning)]
        confidence = sum(shares) / len(ids)
        chunk = Chunk(confidence, predictions[-1].importance, len(ids))
        self.given = []
        if is_past_exit(len(self.answer.ids), self.max_tokens, self.steering.budget):
            self.steering.keep(len(ids))
            self._keep(ids, Chunk(confidence, chunk.importance, len(ids), may_be_sent=False))
        elif self.steering.decide(confidence, chunk.importance, len(ids), self.rng).is_offloaded:
            return ids, chunk
        else:
            self._keep(ids, chunk)
        return None

    def ask_target(self, ids: list[int], waiting: Waiting) -> SequenceTask:
        top = 0 if self.cell.threshold >= 1.0 else 1
        return self.target.verify(ids, waiting.wake, given=self.answer.ids[self.read :], top=top)

    def take_verdict(self, ids: Sequence[int], chunk: Chunk, predictions: Sequence[Prediction]) -> None:
        choices = [prediction.greedy for prediction in predictions]
        accepted = _count_accepted(ids, predictions, self.cell.threshold)
        start = self.prompt_tokens + len(self.answer.ids)
        self.read = len(self.answer.ids) + accepted
        self.target.truncate(start + accepted)
        self.draft.truncate(start + accepted)
        self.given = [choices[accepted]]
        self._add([*ids[:accepted], choices[accepted]])
        self.answer.chunks.append(Chunk(chunk.confidence, chunk.importance, chunk.tokens, accepted))

    def _keep(self, ids: Sequence[int], chunk: Chunk) -> None:
        self._add(ids)
        self.answer.chunks.append(chunk)

    def _add(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not self.is_over:
                self.answer.ids.append(token)

    def close(self) -> None:
        self.draft.close()
        self.target.close()


def _count_accepted(ids: Sequence[int], predictions: Sequence[Prediction], threshold: float) -> int:
    """Return how many tokens of a draft are accepted, as ``verify_greedy`` and ``verify_threshold`` do."""
    if threshold >= 1.0:
        return verify_greedy(ids, [prediction.greedy for prediction in predictions]).accepted
    judged = zip(ids, predictions, strict=False)
    return next((at for at, (_, row) in enumerate(judged) if (row.share or 0.0) < threshold * row.confidence), len(ids))


def write_answers(
    models: Pair, prompt: Sequence[int], steerings: Mapping[Cell, OffloadSteering], max_tokens: int, seed: str
) -> dict[Cell, WrittenAnswer]:
    """Return each contender's answer to a prompt.

    Args:
        models: the pair.
        prompt: its ids.
        steerings: of the contenders; each goes on from its last answer.
        max_tokens: limit of an answer.
        seed: of the contenders' random draws, which are alike.
    """
    waiting = Waiting()
    read_draft, read_target = models.draft.hold(), models.target.hold()
    waiting.gather([held.extend(list(prompt), waiting.wake) for held in (read_draft, read_target)])
    lines = [
        _Line(
            cell=cell,
            steering=steering,
            rng=Random(seed),
            draft=read_draft.fork(),
            target=read_target.fork(),
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            end_ids=models.draft.info.end_ids,
        )
        for cell, steering in steerings.items()
    ]
    while running := [line for line in lines if not line.is_over]:
        _write_round(models, running, waiting)
    for line in lines:
        line.close()
    for held in (read_draft, read_target):
        held.close()
    return {line.cell: line.answer for line in lines}


def _write_round(models: Pair, running: Sequence[_Line], waiting: Waiting) -> None:
    with models.draft.together():
        tasks = [line.ask_draft(waiting) for line in running]
    drafts = [(line, line.take_draft(predictions)) for line, predictions in zip(running, waiting.gather(tasks), strict=True)]
    sent = [(line, *draft) for line, draft in drafts if draft is not None]
    with models.target.together():
        tasks = [line.ask_target(ids, waiting) for line, ids, _ in sent]
    for (line, ids, chunk), verdict in zip(sent, waiting.gather(tasks), strict=True):
        line.take_verdict(ids, chunk, verdict)
