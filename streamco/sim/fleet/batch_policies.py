"""Batch policies of other systems, to compare with ``policies.serving.batching`` (DSD sections 3.4 and 5.3), and all policies by name.

DSD's batching policies have a batch size and a batching window, and "can optionally enable advanced strategies like continuous batching or
chunked prefills". ``Windowed`` has these two, and DSD compares FIFO with ``LengthAware``. ``Continuous`` is iteration-level scheduling
(Orca, Yu et al., OSDI 2022): all requests that are waiting when a step ends join the next one, and none waits for a batch to fill or end.
``ChunkedPrefill`` is Sarathi's (Agrawal et al., 2023): long prompts are cut, so that other requests needn't wait for a whole prompt.

The papers mix prompts with decoding in one batch. Here only ``Mixed`` does so: with other policies, a prefill and a verification never
share a batch (Synera 4.5). So "continuous" means all waiting requests of the kind that is next, and "chunked" means that verifications go
between two chunks. A verification is read as described in ``policies.serving.batching``: at most 32 tokens per batch, the draft in one
piece. All devices are equal, so requests are ordered by arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.serving.batching import (
    Alternating,
    Batch,
    BatchContext,
    BatchPolicy,
    FirstCome,
    Kind,
    Mixed,
    Portion,
    StrictPrefill,
    Waiting,
    check_tokens,
)
from streamco.policies.serving.length_aware import LengthAware, group_of_kind

__all__ = ["BATCHING", "ChunkedPrefill", "Continuous", "Windowed", "batch_policy", "padded_tokens"]


class Continuous(Struct, frozen=True, kw_only=True):
    """Batches all waiting requests of the same kind as the first one, with whole prompts (Orca).

    Args:
        batch_tokens: maximum tokens that an engine reads at once. A longer prompt is read in pieces of this size while all others wait.
    """

    batch_tokens: int = 2048  # vLLM's minimum if prompts aren't cut

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return the request that has waited longest, and all others of its kind that fit."""
        return group_of_kind(_of_kind(waiting, waiting[0].kind), self.batch_tokens, state) if waiting else None


class ChunkedPrefill(Struct, frozen=True, kw_only=True):
    """Reads prompts in chunks, and all verifications between two chunks (Sarathi).

    Args:
        chunk: tokens of prompts in a batch. If the first prompt leaves some of them unused, the next prompt gets these.
        batch_tokens: maximum tokens that an engine reads at once.
    """

    chunk: int = 256  # as in Sarathi's experiments
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        check_tokens(self.chunk, "chunk")
        if self.batch_tokens < self.chunk:
            raise ConfigError(f"batch_tokens: expected at least {self.chunk}, a chunk, got {self.batch_tokens}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return verifications after a chunk, and a chunk after verifications."""
        prefills, verifications = _of_kind(waiting, "prefill"), _of_kind(waiting, "verify")
        if verifications and (not prefills or state.verified == 0):
            return FirstCome(batch_tokens=self.batch_tokens).choose(verifications, state)
        return FirstCome(batch_tokens=self.chunk).choose(prefills, state)


class Windowed(Struct, frozen=True, kw_only=True):
    """Forms batches of a fixed size in the order of arrival, with a queue for each kind (DSD 3.4, batch size and batching window).

    A queue is ready when it fills a batch, or when its first request has waited as long as the window. If both queues are ready, the one
    whose first request has waited longer goes first. A request that has been started keeps its position.

    Args:
        requests: number of requests in a batch.
        window: maximum seconds that the first request of a batch waits for others. With 0, none waits, and ``requests`` is a maximum.
        batch_tokens: maximum tokens that an engine reads at once.
    """

    requests: int = 8
    window: float = 0.005
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        check_tokens(self.batch_tokens)
        if self.requests < 1 or not 0.0 <= self.window < float("inf"):
            raise ConfigError(f"windowed: expected requests >= 1 and window >= 0 seconds, got {self.requests} and {self.window}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return a batch from the queue that is ready, or None if none is (see ``ready_at``)."""
        ready = [queue for queue in _queues(waiting) if self._ready_at(queue) <= state.now]
        if not ready:
            return None
        return FirstCome(batch_tokens=self.batch_tokens).choose(min(ready, key=_since)[: self.requests], state)

    def ready_at(self, waiting: Sequence[Waiting], state: BatchContext) -> float | None:
        """Return the time at which a queue will first be ready."""
        return min(map(self._ready_at, _queues(waiting)), default=None)

    def _ready_at(self, queue: Sequence[Waiting]) -> float:
        """Return when the last request of a full batch came, or when the first request will have waited long enough."""
        full = queue[self.requests - 1].since if len(queue) >= self.requests else float("inf")
        return min(full, queue[0].since + self.window)


BATCHING: Mapping[str, type[FirstCome | Windowed | LengthAware | Continuous | ChunkedPrefill | StrictPrefill | Alternating | Mixed]] = {
    "fifo": FirstCome,
    "windowed": Windowed,
    "length-aware": LengthAware,
    "continuous": Continuous,
    "chunked": ChunkedPrefill,
    "algorithm-1": StrictPrefill,
    "alternating": Alternating,
    "mixed": Mixed,
}
"""All batch policies, by name."""


def batch_policy(name: str, **options: object) -> BatchPolicy:
    """Return a policy by its name.

    Args:
        name: a key of ``BATCHING``.
        options: fields of its class.

    Raises:
        ConfigError: there is no policy with this name, it doesn't have such a field, or a value doesn't fit.
    """
    if name not in BATCHING:
        raise ConfigError(f"batching: expected one of {', '.join(BATCHING)}, got {name!r}")
    kind = BATCHING[name]
    for option in options:
        if option not in kind.__struct_fields__:
            raise ConfigError(f"batching: {name}: expected one of {', '.join(kind.__struct_fields__)}, got {option!r}")
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"batching: {name}: {error}") from error


def padded_tokens(portions: Iterable[Portion]) -> int:
    """Return the tokens that are computed if all sequences of a batch are padded to the longest (DSD 5.3)."""
    lengths = [portion.tokens for portion in portions]
    return len(lengths) * max(lengths, default=0)


def _of_kind(waiting: Iterable[Waiting], kind: Kind) -> list[Waiting]:
    return [work for work in waiting if work.kind == kind]


def _queues(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    return [queue for queue in (_of_kind(waiting, "prefill"), _of_kind(waiting, "verify")) if queue]


def _since(queue: Sequence[Waiting]) -> float:
    return queue[0].since
