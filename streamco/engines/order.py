"""Which work goes into the next batch: the seam for a scheduler that is not part of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from streamco.engines.decoder import SequenceWork
from streamco.errors import EngineError

__all__ = ["BatchJob", "BatchOrder", "Kind", "next_batch"]

Kind = Literal["decode", "verify", "prefill"]


class BatchJob(Struct, frozen=True):
    """Work that could go into the next batch."""

    kind: Kind  # one token of a generation or a draft; the rows of a verification; a chunk of a prompt or of what extends a sequence
    rows: int  # it still needs; a batch takes at most 32 of a held sequence's
    asked_at: float  # when it was asked for, ``time.perf_counter()``
    label: object  # of its sequence; None for generations


class BatchOrder(Protocol):
    """Who decides what the next batch holds."""

    def choose(self, jobs: Sequence[BatchJob]) -> Sequence[int]:
        """Indices of the jobs that go next, all of one kind; none: the engine's own order, in which the kinds take turns.

        Called from the engine's thread before each batch, with at least one job; must be quick. Verifications go into one batch as far as
        it has room for them, prompts into one each: aborting it then hurts nobody else. What is left of them are jobs again.
        """
        ...


def next_batch(order: BatchOrder, work: Mapping[Kind, Sequence[SequenceWork]]) -> tuple[Kind, list[SequenceWork]] | None:
    """Return what ``order`` chooses; None: nothing.

    Raises:
        EngineError: it chose jobs of several kinds, or ones that aren't there.
    """
    candidates = [(kind, each) for kind, group in work.items() for each in group]
    if not candidates:
        return None
    jobs = [BatchJob(kind, 1 if kind == "decode" else each.missing, each.asked_at, each.label) for kind, each in candidates]
    chosen = list(dict.fromkeys(order.choose(jobs)))
    if any(not 0 <= index < len(jobs) for index in chosen):
        raise EngineError(f"batch order: expected indices from 0 to {len(jobs) - 1}, got {chosen}")
    kinds = {candidates[index][0] for index in chosen}
    if len(kinds) > 1:
        raise EngineError(f"batch order: expected jobs of one kind, got {' and '.join(sorted(kinds))}")
    return (kinds.pop(), [candidates[index][1] for index in chosen]) if chosen else None
