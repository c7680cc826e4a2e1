"""Batches as other systems form them, to compare with those of ``batching`` (DSD sections 3.4 and 5.3), and every policy by its name.

DSD's batching policies have a batch size and a batching window, and "can optionally enable advanced strategies like continuous batching or
chunked prefills". ``Windowed`` is the first; ``LengthAware`` is what DSD compares FIFO with. ``Continuous`` is scheduling by iterations
(Orca, Yu et al., OSDI 2022): whatever waits when a step ends goes along in the next, and nobody waits for a batch to fill or to finish.
``ChunkedPrefill`` is Sarathi's (Agrawal et al., 2023): long prompts are cut so that others need not wait for all of one.

Both mix prompts with decoding in one batch. Here a prefill and a verification never share one (Synera 4.5), so continuous means all that
waits of the kind whose turn it is, and chunked that verifications go between two chunks. A verification is read as ``batching`` says: at
most 32 tokens a batch, what is judged in one piece. Devices are not told apart: the order is that of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.batching import (
    CHUNK,
    Alternating,
    Batch,
    BatchContext,
    BatchPolicy,
    FirstCome,
    Kind,
    Portion,
    StrictPrefill,
    Waiting,
)

__all__ = ["BATCHING", "ChunkedPrefill", "Continuous", "LengthAware", "Windowed", "batch_policy", "padded_tokens"]


class LengthAware(Struct, frozen=True, kw_only=True):
    """The head of the line, and others of its kind whose lengths closely match its (DSD 5.3, LAB); so little is padded.

    Args:
        tolerance: how much longer or shorter than the head another may be, as a share of the head's length.
        requests: most in a batch.
        batch_tokens: most an engine reads at once. Of prompts, the head alone is cut to it; others go whole or wait.
        measure: what a length is. The paper doesn't say: ``tokens``, those to be read, which are what a batch is padded in; or
            ``sequence``, with those in the cache.
    """

    tolerance: float = 0.25
    requests: int = 32
    batch_tokens: int = 512
    measure: Literal["tokens", "sequence"] = "tokens"

    def __post_init__(self) -> None:
        _check_tokens("batch_tokens", self.batch_tokens)
        if not self.tolerance >= 0.0 or self.requests < 1:
            raise ConfigError(f"length-aware: expected tolerance >= 0 and requests >= 1, got {self.tolerance} and {self.requests}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return the head, and who is like it, in the order of arrival."""
        if not waiting:
            return None
        head = waiting[0]
        length = self._length(head)
        max_difference = self.tolerance * length
        alike = [work for work in waiting if work.kind == head.kind and abs(self._length(work) - length) <= max_difference]
        return _group(alike[: self.requests], self.batch_tokens, state)

    def _length(self, work: Waiting) -> int:
        return work.tokens if self.measure == "tokens" else work.context + work.tokens


class Continuous(Struct, frozen=True, kw_only=True):
    """All that waits of the head's kind, prompts whole (Orca).

    Args:
        batch_tokens: most an engine reads at once; a prompt that is longer is read in so many at a time, and everybody waits for it.
    """

    batch_tokens: int = 2048  # vLLM's least, where prompts are not cut

    def __post_init__(self) -> None:
        _check_tokens("batch_tokens", self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Who waits longest, and all of its kind there is room for."""
        return _group(_of_kind(waiting, waiting[0].kind), self.batch_tokens, state) if waiting else None


class ChunkedPrefill(Struct, frozen=True, kw_only=True):
    """Prompts in chunks, and all verifications between two of them (Sarathi).

    Args:
        chunk: tokens of prompts in a batch; what the first one leaves is the next one's.
        batch_tokens: most an engine reads at once.
    """

    chunk: int = 256  # as in Sarathi's experiments
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        _check_tokens("chunk", self.chunk)
        if self.batch_tokens < self.chunk:
            raise ConfigError(f"batch_tokens: expected at least {self.chunk}, a chunk, got {self.batch_tokens}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Verifications after a chunk, a chunk after verifications."""
        prefills, verifications = _of_kind(waiting, "prefill"), _of_kind(waiting, "verify")
        if verifications and (not prefills or state.verified == 0):
            return FirstCome(batch_tokens=self.batch_tokens).choose(verifications, state)
        return FirstCome(batch_tokens=self.chunk).choose(prefills, state)


class Windowed(Struct, frozen=True, kw_only=True):
    """The order of arrival in batches of a size, each kind in a line of its own (DSD 3.4, batch size and batching window).

    A line is ready when it is long enough for a batch or its head has waited as long as the window; of two that are, the one whose head has
    waited longer goes. A request that was begun keeps its place.

    Args:
        requests: in a batch.
        window: seconds that the first of a batch waits for others at most; 0: batches have a size and nobody waits.
        batch_tokens: most an engine reads at once.
    """

    requests: int = 8
    window: float = 0.005
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        _check_tokens("batch_tokens", self.batch_tokens)
        if self.requests < 1 or not 0.0 <= self.window < float("inf"):
            raise ConfigError(f"windowed: expected requests >= 1 and window >= 0 seconds, got {self.requests} and {self.window}")

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        """Return the line that is ready; None: none is, see ``ready_at``."""
        ready = [line for line in _lines(waiting) if self._ready_at(line) <= state.now]
        if not ready:
            return None
        return FirstCome(batch_tokens=self.batch_tokens).choose(min(ready, key=_since)[: self.requests], state)

    def ready_at(self, waiting: Sequence[Waiting], state: BatchContext) -> float | None:
        """When the first line is ready."""
        return min(map(self._ready_at, _lines(waiting)), default=None)

    def _ready_at(self, line: Sequence[Waiting]) -> float:
        """When the last of a full batch came; else when the head has waited long enough."""
        full = line[self.requests - 1].since if len(line) >= self.requests else float("inf")
        return min(full, line[0].since + self.window)


BATCHING: Mapping[str, type[FirstCome | Windowed | LengthAware | Continuous | ChunkedPrefill | StrictPrefill | Alternating]] = {
    "fifo": FirstCome,
    "windowed": Windowed,
    "length-aware": LengthAware,
    "continuous": Continuous,
    "chunked": ChunkedPrefill,
    "algorithm-1": StrictPrefill,
    "alternating": Alternating,
}
"""By name."""


def batch_policy(name: str, **options: object) -> BatchPolicy:
    """Return a policy by its name.

    Args:
        options: fields of its class.

    Raises:
        ConfigError: there is no policy of that name, or it has no such field, or the value doesn't fit.
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
    """Return what a batch costs where all its sequences are made as long as the longest: so many tokens are computed (DSD 5.3)."""
    lengths = [portion.tokens for portion in portions]
    return len(lengths) * max(lengths, default=0)


def _of_kind(waiting: Iterable[Waiting], kind: Kind) -> list[Waiting]:
    return [work for work in waiting if work.kind == kind]


def _lines(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    return [line for line in (_of_kind(waiting, "prefill"), _of_kind(waiting, "verify")) if line]


def _since(line: Sequence[Waiting]) -> float:
    return line[0].since


def _group(alike: Sequence[Waiting], free_tokens: int, state: BatchContext) -> Batch | None:
    """Of one kind: verifications as they come, prompts whole; only the first prompt is cut, if it is longer than there is room."""
    if alike[0].kind == "verify":
        return FirstCome(batch_tokens=free_tokens).choose(alike, state)
    portions = [Portion(alike[0].session, min(alike[0].tokens, free_tokens))]
    free_tokens -= portions[0].tokens
    for work in alike[1:]:
        if work.tokens <= free_tokens:
            portions.append(Portion(work.session, work.tokens))
            free_tokens -= work.tokens
    return Batch("prefill", tuple(portions))


def _check_tokens(field: str, tokens: int) -> None:
    if tokens < CHUNK:
        raise ConfigError(f"{field}: expected at least {CHUNK}, got {tokens}")
