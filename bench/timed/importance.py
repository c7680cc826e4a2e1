"""Which layers, and which rows, say by their attention which chunks of a draft matter? And what does reading them cost?

Along the target's own greedy answers, every chunk of four tokens is put in question by itself: the draft model writes it, it is not
verified, and the target continues alone after it. The *loss* of the chunk is what the rest of the answer then lacks of the target's own (1
- F of the tokens both have in the next 36). A chunk that is right loses nothing. Confidence is known to say where drafts are wrong; what is
asked of importance is where it hurts. Three figures:

- rank correlation of importance with the loss, over all chunks, and over the wrong ones alone;
- loss left at budget 0.2: what remains of all losses when the chunks that a rule picks are verified; chance leaves 0.8.

Importance is the mean column sum of the chunk's tokens over some rows: those of the chunk itself that are there when it is whole (three:
the fourth token is decoded with the next batch), the last of them alone, or more tokens that the draft model writes after it, for which the
decision would have to wait.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.contexts import prefill, write
from bench.pairs import DRAFTS, TARGET, Question, load_questions, model_file
from bench.report import Row, add_arguments, emit, interleave, rows_from
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.policies.importance import LAYERS, draft_importance
from streamco.policies.offload import Offload, OffloadRule

__all__ = ["ROWS", "Chunk", "Reader", "importances", "loss_left", "main", "measure_chunks", "rank_correlation"]

SEED = 11
CHUNK = 4
AHEAD = 8  # tokens behind the chunk whose rows are read too
REST = 32  # of the target's continuation
TOKENS = 64  # of an answer that are put in question
BUDGET = 0.2
BUDGETS = (0.1, 0.2, 0.3, 0.5, 0.7)
RULES: tuple[OffloadRule, ...] = ("combined", "confidence", "importance")
LAYERS_READ, ROWS_READ = "last 4 layers", "the chunk's rows"
OURS = f"{LAYERS_READ}, {ROWS_READ}"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk, left to the draft model.

    Args:
        confidence: mean probability of its tokens on the draft model.
        weights: what the rows of its tokens and of those behind it pay to its tokens, shape (CHUNK + AHEAD, layers, CHUNK).
        is_right: the target would have written it.
        loss: of the answer, 0..1.
    """

    confidence: float
    weights: NDArray[np.float32]
    is_right: bool
    loss: float


ROWS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {  # weights of all chunks (chunks, rows, layers, tokens)
    "the chunk's rows": lambda weights: weights[:, :3, :, :3].sum(axis=1).mean(axis=-1),
    "the chunk's rows, not to themselves": lambda weights: _others(weights[:, :3])[..., :3].sum(axis=1).mean(axis=-1),
    "its last row": lambda weights: weights[:, 2, :, :3].mean(axis=-1),
    "its last row, not to itself": lambda weights: weights[:, 2, :, :2].mean(axis=-1),
    "and 1 row ahead": lambda weights: weights[:, :4].sum(axis=1).mean(axis=-1),
    "and 5 rows ahead": lambda weights: weights[:, :8].sum(axis=1).mean(axis=-1),
    "and 9 rows ahead": lambda weights: weights.sum(axis=1).mean(axis=-1),
    "8 rows ahead alone": lambda weights: weights[:, 4:].sum(axis=1).mean(axis=-1),
}


class Reader:
    """A target and a draft model on one thread each, taking turns."""

    def __init__(self, draft: str, rows: int = 128) -> None:
        self.target_model, self.draft_model = LlamaModel(model_file(TARGET)), LlamaModel(model_file(draft))
        self.layers = self.draft_model.info.layers
        places = TOKENS // CHUNK + 1
        self.target = LlamaContext(self.target_model, cells=3072, sequences=places, rows=rows, threads=1)
        self.draft = LlamaContext(self.draft_model, cells=3072, sequences=places, rows=rows, threads=1, attention_layers=range(self.layers))

    def close(self) -> None:
        """Free everything."""
        self.target.close()
        self.draft.close()
        self.target_model.close()
        self.draft_model.close()

    def read(self, question: Question, tokens: int) -> list[Chunk]:
        """The chunks of one answer of up to so many tokens."""
        model, target, ends = self.target_model, self.target, self.target_model.end_ids
        prompt = model.tokenize(model.apply_template([{"role": "user", "content": question.text}]), special=True)
        size = len(prompt)
        target.clear()
        prefill(target, prompt[:-1], 0)
        answer = write(target, {0: (0, size - 1, prompt[-1:])}, tokens + REST, end_ids=ends)[0]
        starts = range(0, min(tokens, len(answer) - 1) // CHUNK * CHUNK, CHUNK)
        drafts, confidences, weights = self._draft(prompt + answer, size, starts)
        wrong = [start for start in starts if drafts[start] != answer[start : start + CHUNK]]
        for number, start in enumerate(wrong, start=1):
            target.copy(0, number, size + start)
        lines = {start: (number, size + start, drafts[start]) for number, start in enumerate(wrong, start=1)}
        rests = write(target, lines, REST, end_ids=ends)
        for number in range(1, len(wrong) + 1):
            target.remove(number, 0)
        losses = {start: _loss(drafts[start] + rests[start], answer[start : start + CHUNK + REST]) for start in wrong}
        return [Chunk(confidences[start], weights[start], start not in losses, losses.get(start, 0.0)) for start in starts]

    def _draft(
        self, ids: Sequence[int], size: int, starts: Sequence[int]
    ) -> tuple[dict[int, list[int]], dict[int, float], dict[int, NDArray[np.float32]]]:
        """A chunk at each start behind the target's own tokens: ids, confidence, weights."""
        draft = self.draft
        draft.clear()
        prefill(draft, ids[: size + len(starts) * CHUNK - 1], 0)
        for number, start in enumerate(starts, start=1):
            draft.copy(0, number, size + start - 1)
        weights = {start: np.zeros((CHUNK + AHEAD, self.layers, CHUNK), dtype=np.float32) for start in starts}
        sure: dict[int, list[float]] = {start: [] for start in starts}

        def watch(start: int, row: int) -> None:
            logits = draft.logits(row)
            place = len(sure[start]) - 1  # the first row is that of the token in front of the chunk
            sure[start].append(1.0 / float(np.exp(logits - logits.max()).sum(dtype=np.float64)))
            if place >= 0:
                paid = draft.attention(row)[:, size + start : size + start + CHUNK]
                weights[start][place, :, : paid.shape[1]] = paid

        lines = {start: (number, size + start - 1, ids[size + start - 1 : size + start]) for number, start in enumerate(starts, start=1)}
        written = write(draft, lines, CHUNK + AHEAD + 1, watch=watch)
        confidences = {start: sum(sure[start][:CHUNK]) / CHUNK for start in starts}
        return {start: ids[:CHUNK] for start, ids in written.items()}, confidences, weights


def measure_chunks(draft: str, questions: Iterable[Question], tokens: int = TOKENS) -> list[Chunk]:
    """Every chunk of the target's answers to these questions."""
    reader = Reader(draft)
    chunks = [chunk for question in questions for chunk in reader.read(question, tokens)]
    reader.close()
    return chunks


def importances(chunks: Sequence[Chunk], rows: str, layers: Sequence[int]) -> Floats:
    """The i of every chunk by these rows and layers."""
    found: Floats = ROWS[rows](np.stack([chunk.weights for chunk in chunks]))[:, list(layers)].mean(axis=1, dtype=np.float64)
    return found


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's, equal values sharing their ranks."""
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def loss_left(chunks: Sequence[Chunk], important: Floats, rule: OffloadRule, budget: float = BUDGET) -> float:
    """Share of all losses in chunks that the rule keeps, planned on these chunks."""
    sure = [chunk.confidence for chunk in chunks]
    right = [chunk.confidence for chunk in chunks if chunk.is_right]
    threshold = min(0.99, sum(right) / len(right))
    plan = Offload.plan(sure, important, budget, rule=rule, confidence_threshold=threshold)
    chances = [plan.probability(confidence, value) for confidence, value in zip(sure, important.tolist(), strict=True)]
    kept = sum((1.0 - chance) * chunk.loss for chance, chunk in zip(chances, chunks, strict=True))
    return kept / sum(chunk.loss for chunk in chunks)


def groups_of(layers: int) -> dict[str, list[int]]:
    """Which layers are read together."""
    every = list(range(layers))
    return {
        "last 4 layers": [layers + layer for layer in LAYERS],
        "last layer": every[-1:],
        "last 2 layers": every[-2:],
        "last 3 but the last": every[-4:-1],
        "last 8 layers": every[-8:],
        "middle third": every[layers // 3 : 2 * layers // 3],
        "first 4 layers": every[:4],
        "all layers": every,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--drafts", nargs="*", default=DRAFTS)
    parser.add_argument("--questions", type=int, default=40, help="of each task")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    rows = reading_costs(3 if quick else 15, (64,) if quick else (64, 768))
    for draft in options.drafts[:1] if quick else options.drafts:
        for task in ("alpaca",) if quick else ("alpaca", "xsum"):
            questions = load_questions(task, 3 if quick else options.questions, SEED)
            rows += judge(measure_chunks(draft, questions, 32 if quick else TOKENS), f"{draft} for {TARGET}, {task}")
    emit(rows, options.json, against=OURS)


def judge(chunks: Sequence[Chunk], case: str) -> list[Row]:
    """Layers by the chunk's rows, rows by the chosen layers, and every rule at several budgets, against the losses."""
    losses = np.array([chunk.loss for chunk in chunks])
    wrong = np.array([not chunk.is_right for chunk in chunks])
    unsure = -np.array([chunk.confidence for chunk in chunks])
    case = f"{case}, {len(chunks)} chunks, {wrong.mean():.0%} wrong"
    groups = groups_of(chunks[0].weights.shape[1])
    contenders = {f"{group}, {ROWS_READ}": importances(chunks, ROWS_READ, layers) for group, layers in groups.items()}
    contenders |= {f"{LAYERS_READ}, {name}": importances(chunks, name, groups[LAYERS_READ]) for name in ROWS}
    rows = []
    for name, values in {"confidence": unsure, **contenders}.items():
        rows += [
            _figure(case, name, "rank correlation with the loss", rank_correlation(values, losses)),
            _figure(case, name, "the same among wrong chunks", rank_correlation(values[wrong], losses[wrong])),
        ]
    for name, values in contenders.items():
        rows.append(_figure(case, name, f"loss left at {BUDGET:g}, by importance", loss_left(chunks, values, "importance")))
        rows.append(_figure(case, name, f"loss left at {BUDGET:g}, with confidence", loss_left(chunks, values, "combined")))
    for budget in BUDGETS:
        rows.append(_figure(case, "random", f"loss left at {budget:g}, by rule", 1.0 - budget))
        for rule in RULES:
            rows.append(_figure(case, rule, f"loss left at {budget:g}, by rule", loss_left(chunks, contenders[OURS], rule, budget)))
    return sorted(rows, key=lambda row: row.metric)


def reading_costs(rounds: int, lengths: Sequence[int], tokens: int = 24) -> list[Row]:
    """Tokens a second of processor time, of one sequence on one thread behind prompts of these lengths."""
    model = LlamaModel(model_file(DRAFTS[0]))
    count = model.info.layers
    ways: Mapping[str, Sequence[int]] = {
        "flash attention, nothing read": (),
        "no flash attention, nothing read": (-1,),
        "last layer": (-1,),
        "last 4 layers": tuple(range(-4, 0)),
        "all layers": tuple(range(-count, 0)),
    }
    contexts = {
        name: LlamaContext(model, cells=1024, sequences=1, rows=64, threads=1, attention_layers=[layer % count for layer in layers])
        for name, layers in ways.items()
    }
    rows: list[Row] = []
    for length in lengths:
        for context in contexts.values():
            context.clear()
            prefill(context, [1000 + step for step in range(length)], 0)
        contenders = {name: partial(_rate, context, length, tokens, reads="nothing" not in name) for name, context in contexts.items()}
        samples = interleave(contenders, rounds)
        rows += rows_from("importance", f"reading attention, {DRAFTS[0]}, one thread, prompt of {length}", "decode", "tokens/s", samples)
    for context in contexts.values():
        context.close()
    model.close()
    return rows


def _rate(context: LlamaContext, length: int, tokens: int, *, reads: bool) -> float:
    """Tokens a second behind a prompt that is there; ``reads``: and the importance of chunks of four."""
    context.remove(0, length)
    read: list[NDArray[np.float32]] = []
    start = time.thread_time()  # one thread computes: what others take of the machine doesn't count
    for step in range(tokens):
        context.add(2000 + step, length + step, 0, wants_logits=True)
        context.reads_attention = reads and step % CHUNK > 0
        if context.decode():
            raise RuntimeError("llama_decode failed")
        if reads:
            read = [*read, context.attention(0)[:, length + step - step % CHUNK :]] if step % CHUNK else []
            if read:
                draft_importance(read)
    return tokens / (time.thread_time() - start)


def _others(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without what each row pays to its own token."""
    weights = weights.copy()
    for place in range(min(weights.shape[1], CHUNK)):
        weights[:, place, :, place] = 0.0
    return weights


def _loss(made: Sequence[int], wanted: Sequence[int]) -> float:
    shared = sum((Counter(made) & Counter(wanted)).values())
    return 1.0 - 2 * shared / (len(made) + len(wanted))


def _ranks(values: Floats) -> Floats:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    middles: Floats = (ends - (counts - 1) / 2.0)[places]
    return middles


def _figure(case: str, contender: str, metric: str, value: float) -> Row:
    return Row("importance", case, contender, metric, "share", value, value, value)


if __name__ == "__main__":
    main()
