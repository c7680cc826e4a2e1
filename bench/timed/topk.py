"""What does one row of logits cost: its best ids, their probabilities, a draw?

Against numpy's best way for each (argpartition and a sort of what it leaves; exp of the whole row; argmax), at the sizes of SmolLM2's and
Gemma's vocabularies. The rows have the shape of a language model's: a few high logits over a wide floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from
from streamco._native import HAS_NATIVE, argmax, log_probability, sample_row, softmax_into, top_k, topk_py

SEED = 17
SIZES = {"SmolLM2": 49_152, "Gemma": 262_144}
K = 40

Logits = NDArray[np.float32]
Calls = dict[str, Callable[[], object]]


def some_row(size: int) -> Logits:
    rng = np.random.default_rng(SEED)
    row = rng.normal(0.0, 2.5, size).astype(np.float32)
    row[rng.choice(size, 20, replace=False)] += np.linspace(8, 18, 20, dtype=np.float32)
    return row


def numpy_softmax(row: Logits, out: Logits) -> None:
    np.subtract(row, row.max(), out=out)
    np.exp(out, out=out)
    out /= out.sum()


def numpy_best(row: Logits, k: int) -> NDArray[np.intp]:
    ids = np.argpartition(row, len(row) - k)[len(row) - k :]
    best: NDArray[np.intp] = ids[np.argsort(-row[ids], kind="stable")]
    return best


def numpy_top_k(row: Logits, k: int) -> list[tuple[int, float]]:
    ids = numpy_best(row, k)
    highest = row[ids[0]]
    shares = np.exp(row[ids] - highest) / np.exp(row - highest).sum()
    return list(zip(ids.tolist(), shares.tolist(), strict=True))


def numpy_log_probability(row: Logits, choice: int) -> float:
    highest = row.max()
    return float(row[choice] - highest - np.log(np.exp(row - highest).sum()))


def numpy_sample(row: Logits, u: float) -> int:
    """Temperature 0.8, top_k 40, top_p 0.95, min_p 0.05."""
    ids = numpy_best(row, K)
    weights = np.exp((row[ids] - row[ids[0]]) / 0.8)
    weights /= weights.sum()
    keep = max(1, min(int(np.searchsorted(weights.cumsum(), 0.95)) + 1, int((weights >= 0.05 * weights[0]).sum())))
    edges = weights[:keep].cumsum()
    return int(ids[min(int(edges.searchsorted(u * edges[-1], side="right")), keep - 1)])


def questions(row: Logits) -> dict[str, Calls]:
    out = np.empty_like(row)
    return {
        "argmax": {"numpy": lambda: int(row.argmax()), "streamco": lambda: argmax(row)},
        "softmax": {"numpy": lambda: numpy_softmax(row, out), "streamco": lambda: softmax_into(row, out)},
        "log-probability": {"numpy": lambda: numpy_log_probability(row, 7), "streamco": lambda: log_probability(row, 7)},
        "top 10 with probabilities": {"numpy": lambda: numpy_top_k(row, 10), "streamco": lambda: top_k(row, 10)},
        "top 40 with probabilities": {"numpy": lambda: numpy_top_k(row, K), "streamco": lambda: top_k(row, K)},
        "a draw, top_k 40": {"numpy": lambda: numpy_sample(row, 0.6), "streamco": lambda: sample_row(row, 0.8, K, 0.95, 0.05, 0.6)},
        "a draw, top_p 0.95 alone": {"streamco": lambda: sample_row(row, 0.8, 0, 0.95, 0.0, 0.6)},
    }


def check(row: Logits) -> None:
    """The contenders agree on this row."""
    assert argmax(row) == int(row.argmax())
    assert [place for place, _ in top_k(row, K)] == [place for place, _ in numpy_top_k(row, K)]
    assert sample_row(row, 0.8, K, 0.95, 0.05, 0.6) == numpy_sample(row, 0.6)
    assert abs(log_probability(row, 7) - numpy_log_probability(row, 7)) < 1e-3


def measure(rounds: int, calls: int, *, twin: bool) -> Iterator[Row]:
    for model, size in SIZES.items():
        row = some_row(size)
        check(row)
        repeats = max(1, calls * 49_152 // size)
        for question, contenders in questions(row).items():
            timed = {name: per_call(call, repeats, scale=1e6) for name, call in contenders.items()}
            if twin and question.startswith("top 40"):
                timed["streamco, pure twin"] = per_call(partial(topk_py.top_k, row, K), 1, scale=1e6)
            yield from rows_from("topk", f"{model}, {size} logits", question, "us", interleave(timed, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    if not HAS_NATIVE:
        parser.error("expected the compiled leaves, got none: build them with `make native`")
    rounds, calls = (7, 40) if options.quick else (21, 200)
    emit(measure(rounds, calls, twin=not options.quick), options.json)


if __name__ == "__main__":
    main()
