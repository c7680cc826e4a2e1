"""Batch policies: which waiting requests form a verifier's next batch (Synera 4.5, Algorithm 1; HAT 3.3 for prompt chunks).

A verification is a partial prefill: the tokens that the device committed by itself and the draft are read after the cached tokens. A batch
reads at most a chunk of 32 of these tokens, and all rows of the draft are in the last chunk. A prefill and a verification never share a
batch, because tens of tokens would have to wait for thousands. Only ``Mixed``, which limits the size of a batch, puts them together.

- ``StrictPrefill`` is Algorithm 1: nothing is verified while prompts wait. So one long prompt stalls every verdict.
- ``Alternating``, the default, avoids that. It reads prompts in steps that take little longer than a verification, and runs verifications
  between these steps.
- ``FirstCome`` keeps the order of arrival, as a baseline.
- ``Mixed`` is for a split server, where prompt chunks and verifications share a batch up to a limit (HAT 2.1 and 3.3; Sarathi-Serve).

Algorithm 1 as printed fetches the next verification before it counts the uncached tokens of the current one. Here each is counted with
its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    "Mixed",
    "Portion",
    "BatchContext",
    "StepSeconds",
    "StrictPrefill",
    "Waiting",
    "fair_order",
    "raised_counter",
]

CHUNK = 32  # maximum number of tokens that a batch reads for a verification (Synera 4.5)

Kind = Literal["prefill", "verify"]
StepSeconds = Callable[[int, int], float]
"""Returns how many seconds a batch takes, from the number of tokens that it reads and the number of cached tokens they attend to."""


class LinearStep(Struct, frozen=True, kw_only=True):
    """A linear model of how long a batch takes. Implements ``StepSeconds``.

    Args:
        setup: seconds that any batch takes to read the weights.
        per_token: seconds for each token that is read.
        per_context: seconds for each cached token of the sequences in the batch.
    """

    setup: float
    per_token: float
    per_context: float = 0.0

    def __call__(self, tokens: int, context: int) -> float:
        """Return how many seconds a batch that reads ``tokens`` after ``context`` cached tokens takes."""
        return self.setup + self.per_token * tokens + self.per_context * context


class Waiting(Struct, frozen=True, kw_only=True):
    """The work that one session is waiting for.

    Args:
        session: name of the session, which takes part in a batch at most once.
        device: the session's device. Fairness is between devices, not between sessions.
        kind: kind of the session's next part of work.
        tokens: number of tokens still to read.
        verify_rows: how many of the last tokens give a verdict's rows and are read in one batch. 0 for a prefill.
        context: number of tokens in the session's cache.
        since: time in seconds when the session began to wait.
        due: time in seconds after which the verdict is late, or inf for a prefill.
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
    """Says how many of a session's tokens are read in a batch."""

    session: str
    tokens: int


class Batch(Struct, frozen=True):
    """One forward pass of the engine. All portions are of one ``kind``, but a ``Mixed`` batch with any verification has kind "verify"."""

    kind: Kind
    portions: tuple[Portion, ...]


class BatchContext(Struct, frozen=True, kw_only=True):
    """The state on which the choice of a batch depends, besides the waiting requests.

    Args:
        now: the current time in seconds.
        served: number of tokens that were read for each device; see ``fair_order``.
        verified: number of verification batches since the last prefill.
        step: returns how many seconds a batch takes.
    """

    now: float
    served: Mapping[str, float]
    verified: int
    step: StepSeconds


class BatchPolicy(Protocol):
    """The interface of a batch policy, which chooses batches without keeping state."""

    @property
    def batch_tokens(self) -> int:
        """Maximum number of tokens in a batch."""
        ...

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose the next batch from ``waiting``, in order of arrival. None only if nothing waits or the policy is a ``MayWait``."""
        ...


class StrictPrefill(Struct, frozen=True, kw_only=True):
    """Algorithm 1: all waiting prefills in one batch or, if there are none, all waiting verifications.

    Args:
        batch_tokens: maximum number of tokens that an engine reads at once.
    """

    batch_tokens: int = 512

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose all prefills or, if there are none, all verifications. These starve while new prompts keep coming."""
        prefills, verifications = _split(waiting)
        if prefills:
            return _prefill(fair_order(prefills, state.served), self.batch_tokens)
        return _verify(fair_order(verifications, state.served), self.batch_tokens)


class Alternating(Struct, frozen=True, kw_only=True):
    """Lets prefill steps and batches of verifications take turns.

    A prefill goes first if the waiting verifications will still be in time. Otherwise verifications go first, but for at most ``turns``
    batches in a row. Two prefills never run in a row while a verification waits. So no request starves.

    Args:
        batch_tokens: maximum number of tokens that an engine reads at once.
        turns: number of verification batches before a waiting prefill gets its step, 1 or more.
        stretch: a batch takes at most this many times as long as a batch of 32 tokens, 1 or more. If the time grows with the tokens, as on
            a CPU, the first request should not wait for the last one.
    """

    batch_tokens: int = 512
    turns: int = 4
    stretch: float = 1.8

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)
        if self.turns < 1 or self.stretch < 1.0:
            raise ConfigError(f"alternating: expected turns >= 1 and stretch >= 1, got {self.turns} and {self.stretch}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose a batch of prefills or of verifications by the rule above."""
        prefills, verifications = _split(waiting)
        free_tokens = self.free_tokens(state.step, max((work.context for work in verifications), default=0))
        verify = _verify(fair_order(verifications, state.served), free_tokens)
        if not prefills:
            return verify
        context = max(work.context for work in prefills)
        prefill = _prefill(fair_order(prefills, state.served), self.free_tokens(state.step, context))
        if verify is None or state.verified >= self.turns:
            return prefill
        if state.verified == 0:
            return verify
        contexts = {work.session: work.context for work in waiting}
        ends = state.now + sum(_seconds(batch, contexts, state.step) for batch in (prefill, verify))
        return prefill if ends <= min(work.due for work in verifications) else verify

    def free_tokens(self, step: StepSeconds, context: int) -> int:
        """Return the number of tokens that one batch may read."""
        limit = self.stretch * step(CHUNK, context)
        low, high = 1, self.batch_tokens // CHUNK  # in chunks; bisection, because a step's time grows with its tokens
        while low < high:
            middle = (low + high + 1) // 2
            if step(middle * CHUNK, context) <= limit:
                low = middle
            else:
                high = middle - 1
        return low * CHUNK


class FirstCome(Struct, frozen=True, kw_only=True):
    """Batches requests in the order of arrival: the first request, and all after it up to the first request of the other kind.

    Args:
        batch_tokens: maximum number of tokens that an engine reads at once.
    """

    batch_tokens: int = 512

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose the first requests in the queue."""
        if not waiting:
            return None
        kind = waiting[0].kind
        end = next((position for position, work in enumerate(waiting) if work.kind != kind), len(waiting))
        return (_prefill if kind == "prefill" else _verify)(waiting[:end], self.batch_tokens)


class Mixed(Struct, frozen=True, kw_only=True):
    """Puts verifications and prompt chunks into one batch of limited size (HAT 3.3; Sarathi-Serve, Agrawal et al., 2024).

    Verifications go first, and prompts get the rows that are left. So a batch takes no longer than a batch of ``room`` rows, however long
    the prompts are. ``prompt_room`` rows are always kept for waiting prompts, so that verifications can't starve them.

    Args:
        room: maximum number of rows in a batch (the token budget of Sarathi-Serve).
        prompt_room: number of these rows that are kept for prompts while a prompt waits.
    """

    room: int = 256
    prompt_room: int = 16

    def __post_init__(self) -> None:
        if self.prompt_room < 1 or self.room < CHUNK + self.prompt_room:
            raise ConfigError(f"mixed: expected prompt_room >= 1 and {CHUNK} rows more of room, got {self.prompt_room} and {self.room}")

    @property
    def batch_tokens(self) -> int:
        """Maximum number of rows in a batch."""
        return self.room

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Choose all verifications that fit, and prompt chunks for the remaining rows."""
        prefills, verifications = _split(waiting)
        kept = min(self.prompt_room, sum(work.tokens for work in prefills))
        verify = _verify(fair_order(verifications, state.served), self.room - kept)
        portions = verify.portions if verify else ()
        free = self.room - sum(portion.tokens for portion in portions)
        portions += _prefill(fair_order(prefills, state.served), free).portions
        return Batch("verify" if verify else "prefill", portions) if portions else None


def raised_counter(served: Mapping[str, float], present: Collection[str], device: str) -> float:
    """Return the counter for ``fair_order`` of a device that now has work. It is raised so that absent devices collect no credit.

    A new device begins at the highest counter of the devices present. If it began at the lowest, an endless stream of new devices would
    starve every device that had been served once.

    Args:
        served: number of tokens read for each device so far.
        present: the devices that have work.
        device: the device whose counter is returned.
    """
    own = served.get(device, 0.0)
    return own if device in present else max([own, *(served[each] for each in present)])


def fair_order(waiting: Iterable[Waiting], served: Mapping[str, float]) -> list[Waiting]:
    """Sort requests fairly: next is always the device that was served least, with its own requests in the order of arrival.

    This is the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., 2024). A device that sends much comes
    later, and a device that sends little doesn't wait for devices that send much.

    Args:
        waiting: requests in the order of arrival.
        served: number of tokens read for each device so far. The caller raises the counter of a device that was absent.
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
    """Return a batch of at most ``free_tokens`` prompt tokens, beginning with the first prompt."""
    portions = []
    for work in ordered:
        if free_tokens <= 0:
            break
        portions.append(Portion(work.session, min(work.tokens, free_tokens)))
        free_tokens -= work.tokens
    return Batch("prefill", tuple(portions))


def _verify(ordered: Sequence[Waiting], free_tokens: int) -> Batch | None:
    """Return a batch with a chunk of each verification, as far as they fit into ``free_tokens``."""
    portions = []
    for work in ordered:
        size = _chunk(work, free_tokens)
        if size:
            portions.append(Portion(work.session, size))
            free_tokens -= size
    return Batch("verify", tuple(portions)) if portions else None


def _chunk(work: Waiting, free_tokens: int) -> int:
    """Return how many tokens of a verification fit into a batch as its next part, or 0 if only verdict rows are left and don't fit."""
    if work.tokens <= min(CHUNK, free_tokens):
        return work.tokens
    return min(CHUNK, free_tokens, work.tokens - work.verify_rows)


def _seconds(batch: Batch, contexts: Mapping[str, int], step: StepSeconds) -> float:
    return step(sum(portion.tokens for portion in batch.portions), sum(contexts[portion.session] for portion in batch.portions))


def check_tokens(tokens: int, field: str = "batch_tokens") -> None:
    """Check that a limit on tokens is large enough for a chunk.

    Raises:
        ConfigError: the limit is too small. The message names ``field``.
    """
    if tokens < CHUNK:
        raise ConfigError(f"{field}: expected at least {CHUNK}, got {tokens}")


@runtime_checkable
class MayWait(Protocol):
    """A batch policy that may choose no batch although requests are waiting."""

    def ready_at(self, waiting: Sequence[Waiting], state: BatchContext) -> float | None:
        """Return the time in seconds, which may have passed, at which it stops waiting for more requests, or None if nothing waits."""
        ...
