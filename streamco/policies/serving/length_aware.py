"""Batches requests of similar length (DSD section 5.3, LAB; as in Orca and Sarathi), live and in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.serving.batching import Batch, BatchContext, FirstCome, Portion, Waiting, check_tokens, fair_order

__all__ = ["LengthAware", "group_of_kind"]


class LengthAware(Struct, frozen=True, kw_only=True):
    """Batches the first request in the queue, the head, with others of its kind and of similar length, so that little is padded.

    Args:
        tolerance: how much longer or shorter than the head another request may be, as a share of the head's length.
        requests: maximum number of requests in a batch.
        batch_tokens: maximum number of tokens that an engine reads at once. Only the head's prompt is cut to this length. Other prompts are
            read whole or wait.
        measure: how a length is measured, which the paper doesn't say. ``tokens`` counts the tokens to be read, to which a batch is padded.
            ``sequence`` adds the tokens in the cache.
        is_fair: if True, devices take turns (``fair_order``), so that none waits for a device that sends much. If False, requests keep the
            order of arrival.
    """

    tolerance: float = 0.25
    requests: int = 32
    batch_tokens: int = 512
    measure: Literal["tokens", "sequence"] = "tokens"
    is_fair: bool = False

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)
        if not self.tolerance >= 0.0 or self.requests < 1:
            raise ConfigError(f"length-aware: expected tolerance >= 0 and requests >= 1, got {self.tolerance} and {self.requests}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose the head and the requests of similar length, in order."""
        if not waiting:
            return None
        ordered = fair_order(waiting, state.served) if self.is_fair else waiting
        head = ordered[0]
        length = self._length(head)
        max_difference = self.tolerance * length
        alike = [work for work in ordered if work.kind == head.kind and abs(self._length(work) - length) <= max_difference]
        return group_of_kind(alike[: self.requests], self.batch_tokens, state)

    def _length(self, work: Waiting) -> int:
        return work.tokens if self.measure == "tokens" else work.context + work.tokens


def group_of_kind(alike: Sequence[Waiting], free_tokens: int, state: BatchContext) -> Batch | None:
    """Return a batch of requests of one kind. Prompts are read whole, except the first, which is cut to ``free_tokens``."""
    if alike[0].kind == "verify":
        return FirstCome(batch_tokens=free_tokens).choose(alike, state)
    portions = [Portion(alike[0].session, min(alike[0].tokens, free_tokens))]
    free_tokens -= portions[0].tokens
    for work in alike[1:]:
        if work.tokens <= free_tokens:
            portions.append(Portion(work.session, work.tokens))
            free_tokens -= work.tokens
    return Batch("prefill", tuple(portions))
