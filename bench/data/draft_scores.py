"""How many tokens a round of split inference makes with a draft network, on texts that the model wrote greedily.

A round is a draft, its verdict and the correction, which counts as in the paper's Table IV: 1.00 is no draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bench.data.draft_network import DraftNetwork, batch_of
from bench.data.draft_teacher import Teacher, Written
from bench.ratio import ratio

__all__ = ["DEPTH", "DraftedText", "scores", "texts_drafted", "tokens_a_round"]

DEPTH = 4
_BATCH = 12
_LONGEST = 8


class DraftedText(Struct, frozen=True):
    """Drafts at each position of one answer.

    Args:
        hits: the draft network's token is the text's, shape (depths, positions). The token at a depth belongs to a draft that began
            depth - 1 positions before, with all its other tokens right.
        confidence: probability of that token, shape (depths, positions).
    """

    hits: NDArray[np.bool_]
    confidence: NDArray[np.float32]


@torch.no_grad()
def texts_drafted(
    network: DraftNetwork, teacher: Teacher, texts: Sequence[Written], head: Tensor, rows: Tensor, *, input_layers: int
) -> list[DraftedText]:
    """Draft at each position of texts.

    Args:
        network: the draft network.
        teacher: gives the shallow states.
        texts: texts.
        head: rows of the output matrix that drafts are chosen from, shape (drafted vocabulary, width).
        rows: the row of each token id in ``head``; -1: none. Shape (vocabulary,).
        input_layers: layers on the device.
    """
    found = []
    for start in range(0, len(texts), _BATCH):
        batch = batch_of(teacher, texts[start : start + _BATCH], input_layers=input_layers)
        wanted = rows[functional.pad(batch.ids[:, 1:], (0, 1))]
        made = network(batch, DEPTH if network.kind == "deep" else 1)
        hits, confidence = zip(*(_draft(each, wanted, batch.is_drafted, head) for each in made), strict=True)
        ends = np.cumsum(batch.is_drafted.sum(1).numpy())[:-1]
        all_hits, all_confidence = np.stack(hits), np.stack(confidence)
        found += [DraftedText(*pair) for pair in zip(np.split(all_hits, ends, axis=1), np.split(all_confidence, ends, axis=1), strict=True)]
    return found


def _draft(made: Tensor, wanted: Tensor, where: Tensor, head: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    shares, best = functional.linear(made[where].bfloat16(), head).float().softmax(-1).max(-1)
    return (best == wanted[where]).numpy(), shares.numpy()


def tokens_a_round(drafted: Sequence[DraftedText], *, window: int = _LONGEST, threshold: float = 0.0) -> float:
    """Return the mean tokens of a round.

    Args:
        drafted: texts.
        window: most tokens of a draft.
        threshold: the first token with less confidence ends a draft, and is its last (equation 5).
    """
    return ratio([_rounds(text, window, threshold) for text in drafted])[0]


def _rounds(text: DraftedText, window: int, threshold: float) -> tuple[int, int]:
    """Return tokens and rounds of one text."""
    rounds = at = 0
    length = text.hits.shape[1]
    while at < length:
        rounds += 1
        at += 1 + _accepted(text.hits[:, at:], text.confidence[:, at:], window, threshold)
    return at, rounds


def _accepted(hits: NDArray[np.bool_], confidence: NDArray[np.float32], window: int, threshold: float) -> int:
    """Return the right tokens of a draft at the first position."""
    depths, length = hits.shape
    for step in range(min(window, length)):
        depth = min(step, depths - 1)
        if not hits[depth, step]:
            return step
        if confidence[depth, step] < threshold:
            return step + 1
    return min(window, length)


def scores(drafted: Sequence[DraftedText]) -> dict[str, Any]:
    """Return acceptance of the first token, of the second after a right first, and tokens a round by window and threshold.

    ``error`` is the standard error of the tokens a round with a window of 4, from the differences between texts.
    """
    first = np.concatenate([text.hits[0] for text in drafted])
    second = np.concatenate([text.hits[min(1, len(text.hits) - 1), 1:][text.hits[0, :-1]] for text in drafted])
    return {
        "texts": len(drafted),
        "positions": len(first),
        "acceptance": round(float(first.mean()), 4),
        "second": round(float(second.mean()) if len(second) else 0.0, 4),
        "window": {str(window): round(tokens_a_round(drafted, window=window), 3) for window in (1, 2, 3, 4, 6)},
        "error": round(ratio([_rounds(text, 4, 0.0) for text in drafted])[1], 3),
        "threshold": {str(value): round(tokens_a_round(drafted, threshold=value), 3) for value in (0.3, 0.5, 0.6)},
    }
