"""Which waiting requests of a verifier form its next batch (Synera 4.5, Algorithm 1; HAT 3.3 for the chunks of a prompt).

A verification is a partial prefill: the tokens the device has gone on with and the draft itself are read behind what is in the cache. It
takes part in a batch with at most 32 tokens, and its draft is judged in one piece, the last. A prefill and a verification are never in one
batch: thousands of tokens beside tens would make the tens wait.

``StrictPrefill`` is Algorithm 1: as long as prompts wait, nothing is verified. One long prompt then stalls every verdict, so the default,
``Alternating``, reads a prompt in steps that take little longer than a verification, and lets verifications go between two of them.
``FirstCome`` keeps the order of arrival, to compare with.

Algorithm 1 fetches the next verification before it counts the uncached tokens of this one; here each is counted with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = [
    "Alternating",
    "Batch",
    "BatchPolicy",
    "CHUNK",
    "FirstCome",
    "Kind",
    "LinearStep",
    "MayWait",
    "Portion",
    "BatchContext",
    "StepSeconds",
    "StrictPrefill",
    "Waiting",
    "fair_order",
]

CHUNK = 32  # tokens a verification reads in one batch at most (Synera 4.5)

Kind = Literal["prefill", "verify"]
StepSeconds = Callable[[int, int], float]
"""Seconds of one batch, from the tokens it reads and the tokens in the cache that they attend to."""


class LinearStep(Struct, frozen=True, kw_only=True):
    """Seconds of a batch as a sum.

    Args:
        setup: seconds whatever the batch holds: reading the weights.
        per_token: seconds a token that is read.
        per_context: seconds a token in the cache of a sequence that takes part.
    """

    setup: float
    per_token: float
    per_context: float = 0.0

    def __call__(self, tokens: int, context: int) -> float:
        """Seconds of a batch of ``tokens`` behind ``context`` tokens in the cache."""
        return self.setup + self.per_token * tokens + self.per_context * context


class Waiting(Struct, frozen=True, kw_only=True):
    """What one session waits for.

    Args:
        session: takes part in a batch once at most.
        device: whose session it is; devices are treated alike, not sessions.
        kind: of its next part.
        tokens: still to be read.
        judged: of those, the last ones, whose rows decide about a draft: they are read in one batch; 0 for a prefill.
        context: tokens in its cache.
        since: seconds, when it began to wait.
        due: seconds, when its verdict should be out; inf for a prefill.
    """

    session: str
    device: str
    kind: Kind
    tokens: int
    verify_rows: int
    context: int
    since: float
    due: float


class Portion(Struct, frozen=True):
    """How many tokens of a session are read in a batch."""

    session: str
    tokens: int


class Batch(Struct, frozen=True):
    """One forward pass."""

    kind: Kind
    portions: tuple[Portion, ...]


class BatchContext(Struct, frozen=True, kw_only=True):
    """What a choice depends on beside what waits.

    Args:
        now: seconds.
        served: tokens that were read for each device, see ``fair_order``.
        verified: batches of verifications since the last prefill.
        step: how long a batch takes.
    """

    now: float
    served: Mapping[str, float]
    verified: int
    step: StepSeconds


class BatchPolicy(Protocol):
    """Chooses batches; has no state."""

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch."""
        ...

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return the next batch; None only if nothing waits. ``waiting`` is in the order of arrival."""
        ...


class StrictPrefill(Struct, frozen=True, kw_only=True):
    """Algorithm 1: all waiting prefills in one batch; if there are none, all waiting verifications.

    Args:
        batch_tokens: most an engine reads at once.
    """

    batch_tokens: int = 512

    def __post_init__(self) -> None:
        _check_batch_tokens(self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Prefills first; verifications starve while new ones come."""
        prefills, verifications = _split(waiting)
        if prefills:
            return _prefill(fair_order(prefills, state.served), self.batch_tokens)
        return _verify(fair_order(verifications, state.served), self.batch_tokens)


class Alternating(Struct, frozen=True, kw_only=True):
    """A step of prefill and verifications in turns, each as soon as the other allows it.

    A prefill goes before verifications that will be in time all the same. Otherwise they go first, but not more than ``turns`` batches of
    them in a row; and never two prefills in a row while a verification waits. So nobody starves.

    Args:
        batch_tokens: most an engine reads at once.
        turns: batches of verifications before a waiting prefill gets its step.
        stretch: a batch takes at most so many times as long as one of 32 tokens, or has no more: where time grows with tokens, as on a
            CPU, the first in line shouldn't wait for the last.
    """

    batch_tokens: int = 512
    turns: int = 4
    stretch: float = 1.8

    def __post_init__(self) -> None:
        _check_batch_tokens(self.batch_tokens)
        if self.turns < 1 or self.stretch < 1.0:
            raise ConfigError(f"alternating: expected turns >= 1 and stretch >= 1, got {self.turns} and {self.stretch}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Whose turn it is."""
        prefills, verifications = _split(waiting)
        free_tokens = self._free_tokens(state.step, max((work.context for work in verifications), default=0))
        verify = _verify(fair_order(verifications, state.served), free_tokens)
        if not prefills:
            return verify
        context = max(work.context for work in prefills)
        prefill = _prefill(fair_order(prefills, state.served), self._free_tokens(state.step, context))
        if verify is None or state.verified >= self.turns:
            return prefill
        if state.verified == 0:
            return verify
        contexts = {work.session: work.context for work in waiting}
        ends = state.now + sum(_seconds(batch, contexts, state.step) for batch in (prefill, verify))
        return prefill if ends <= min(work.due for work in verifications) else verify

    def _free_tokens(self, step: StepSeconds, context: int) -> int:
        """Tokens a prefill step may read."""
        limit = self.stretch * step(CHUNK, context)
        low, high = 1, self.batch_tokens // CHUNK  # in chunks; a step's time grows with its tokens
        while low < high:
            middle = (low + high + 1) // 2
            if step(middle * CHUNK, context) <= limit:
                low = middle
            else:
                high = middle - 1
        return low * CHUNK


class FirstCome(Struct, frozen=True, kw_only=True):
    """The order of arrival: who waits longest, and those behind of the same kind as far as the next of the other kind.

    Args:
        batch_tokens: most an engine reads at once.
    """

    batch_tokens: int = 512

    def __post_init__(self) -> None:
        _check_batch_tokens(self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return the head of the queue."""
        if not waiting:
            return None
        kind = waiting[0].kind
        end = next((position for position, work in enumerate(waiting) if work.kind != kind), len(waiting))
        return (_prefill if kind == "prefill" else _verify)(waiting[:end], self.batch_tokens)


def fair_order(waiting: Iterable[Waiting], served: Mapping[str, float]) -> list[Waiting]:
    """Who comes first: always the device that was served least, its own requests in the order of arrival.

    The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., 2024): a device that sends much pays for it with
    its place, and one that sends little waits for nobody who sends much.

    Args:
        served: tokens read for each device so far; who was away has been lifted to those who were not.
    """
    by_device: dict[str, list[Waiting]] = {}
    for work in waiting:
        by_device.setdefault(work.device, []).append(work)
    turns = [(served.get(device, 0.0), works[0].since, device, 0) for device, works in by_device.items()]
    heapify(turns)
    ordered = []
    while turns:
        counter, _, device, position = heappop(turns)
        works = by_device[device]
        ordered.append(works[position])
        if position + 1 < len(works):
            heappush(turns, (counter + works[position].tokens, works[position + 1].since, device, position + 1))
    return ordered


def _split(waiting: Iterable[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    prefills: list[Waiting] = []
    verifications: list[Waiting] = []
    for work in waiting:
        (prefills if work.kind == "prefill" else verifications).append(work)
    return prefills, verifications


def _prefill(ordered: Sequence[Waiting], free_tokens: int) -> Batch:
    """As much of the prompts as there is room for, the first one first."""
    portions = []
    for work in ordered:
        if free_tokens <= 0:
            break
        portions.append(Portion(work.session, min(work.tokens, free_tokens)))
        free_tokens -= work.tokens
    return Batch("prefill", tuple(portions))


def _verify(ordered: Sequence[Waiting], free_tokens: int) -> Batch | None:
    """Return a chunk of every verification there is room for."""
    portions = []
    for work in ordered:
        size = _chunk(work, free_tokens)
        if size:
            portions.append(Portion(work.session, size))
            free_tokens -= size
    return Batch("verify", tuple(portions)) if portions else None


def _chunk(work: Waiting, free_tokens: int) -> int:
    """Tokens of a verification's next part; 0: what is judged doesn't fit any more."""
    if work.tokens <= min(CHUNK, free_tokens):
        return work.tokens
    return min(CHUNK, free_tokens, work.tokens - work.verify_rows)


def _seconds(batch: Batch, contexts: Mapping[str, int], step: StepSeconds) -> float:
    return step(sum(portion.tokens for portion in batch.portions), sum(contexts[portion.session] for portion in batch.portions))


def _check_batch_tokens(batch_tokens: int) -> None:
    if batch_tokens < CHUNK:
        raise ConfigError(f"batch_tokens: expected at least {CHUNK}, got {batch_tokens}")


@runtime_checkable
class MayWait(Protocol):
    """A policy that may choose nothing though something waits."""

    def ready_at(self, waiting: Sequence[Waiting], state: BatchContext) -> float | None:
        """When it will choose something even if nothing else comes, seconds, perhaps now or earlier; None: nothing waits."""
        ...
