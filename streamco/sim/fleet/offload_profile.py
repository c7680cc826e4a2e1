"""The offline profile of a pair of models, made from a trace, which devices have before their first answer (Synera section 5)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from statistics import fmean

from msgspec import Struct

from streamco.policies.offload import CONFIDENCE_THRESHOLD
from streamco.sim.fleet.answer_routing import PREFIX, perplexity
from streamco.sim.fleet.recorded_answer import RecordedAnswer
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["OffloadProfile", "prefix_perplexity", "profile_offloading"]

_ANSWERS = 64  # answers that chunks are taken from
_CHUNKS = 256  # chunks that a plan keeps
_HIGHEST = 0.99  # highest value of c_th


class OffloadProfile(Struct, frozen=True, kw_only=True):
    """The figures that are known about a pair of models before any answer.

    Args:
        confidence_threshold: c_th, the mean confidence of chunks that the target accepts whole.
        chunks: (confidence, importance) of chunks, with None for an importance that wasn't recorded.
        perplexities: perplexities of the first tokens of answers.
    """

    confidence_threshold: float = CONFIDENCE_THRESHOLD
    chunks: tuple[tuple[float, float | None], ...] = ()
    perplexities: tuple[float, ...] = ()


def prefix_perplexity(request: SimulatedRequest) -> float:
    """Return the draft model's perplexity at the beginning of an answer, or 1 if confidences weren't recorded."""
    return perplexity(request.confidences[:PREFIX])


def profile_offloading(requests: Iterable[SimulatedRequest], window: int) -> OffloadProfile:
    """Make the profile from the first requests.

    Args:
        requests: recorded requests; requests without confidences are ignored.
        window: tokens of a chunk.
    """
    chunks: list[tuple[float, float | None]] = []
    perplexities: list[float] = []
    sure: list[float] = []
    for request in islice((each for each in requests if each.confidences), _ANSWERS):
        answer = RecordedAnswer(request)
        perplexities.append(prefix_perplexity(request))
        for start in range(0, request.output_tokens - window + 1, window):
            confidence = fmean(request.confidences[start : start + window])
            chunks.append((confidence, answer.importance(start, window)))
            if all(request.accepted[start : start + window]):
                sure.append(confidence)
    threshold = min(_HIGHEST, fmean(sure)) if sure else CONFIDENCE_THRESHOLD
    step = max(1, len(chunks) // _CHUNKS)
    return OffloadProfile(confidence_threshold=threshold, chunks=tuple(chunks[::step][:_CHUNKS]), perplexities=tuple(perplexities))
