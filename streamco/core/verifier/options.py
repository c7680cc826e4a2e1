"""Settings for the verifier's scheduler: how much load it tolerates, and the size of its engine's cache."""

from __future__ import annotations

import math

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = ["LoadLimits", "SchedulerOptions"]


class LoadLimits(Struct, frozen=True, kw_only=True):
    """How much load a scheduler tolerates before it refuses sessions and drafts. These limits don't depend on the engine."""

    sessions: int = 1024  # remembered, including sessions without tokens in the cache
    sessions_per_device: int = 64
    idle_after: float = 5.0  # seconds of silence, longer than any drafting, after which a session may lose its cache to another
    forget_after: float = 600.0  # seconds of silence after which the device must send the context again
    prefill_within: float = 10.0  # seconds that a new prompt may have to wait; inf for no limit
    late_stretch: float = 1.5  # a verdict is late after this many times its time without other load, plus
    late_grace: float = 0.03  # seconds; half a round trip of 60 ms, so that the device sees 1.5 times its usual wait
    draft_stretch: float = 4.0  # a draft is refused beyond this many times its time without other load plus late_grace; inf for never
    min_retry: float = 0.02  # seconds; a retry takes a round trip anyway
    max_retry: float = 30.0  # seconds

    def __post_init__(self) -> None:
        for field in ("sessions", "sessions_per_device"):
            if getattr(self, field) < 1:
                raise ConfigError(f"scheduler: {field}: expected at least 1, got {getattr(self, field)}")
        if not self.prefill_within >= 0:
            raise ConfigError(f"scheduler: prefill_within: expected seconds >= 0, got {self.prefill_within}")
        for field in ("idle_after", "forget_after", "late_grace", "min_retry"):
            if not 0 <= getattr(self, field) < math.inf:
                raise ConfigError(f"scheduler: {field}: expected seconds >= 0, got {getattr(self, field)}")
        if not self.min_retry <= self.max_retry < math.inf:
            raise ConfigError(f"scheduler: max_retry: expected at least {self.min_retry} seconds, got {self.max_retry}")
        if not 1 <= self.late_stretch <= self.draft_stretch:
            raise ConfigError(f"scheduler: expected 1 <= late_stretch <= draft_stretch, got {self.late_stretch} and {self.draft_stretch}")


class SchedulerOptions(LoadLimits, frozen=True, kw_only=True):
    """How much load a scheduler tolerates, and the size of its engine."""

    kv_tokens: int  # tokens that the engine's cache can hold
    places: int  # token sequences that it can hold
    context_tokens: int  # of one session, including the draft
    shared_batches: int = 0  # full batches for which a verdict may wait, at their measured times, if that is more than late_grace

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("places", "context_tokens"):
            if getattr(self, field) < 1:
                raise ConfigError(f"scheduler: {field}: expected at least 1, got {getattr(self, field)}")
        if self.shared_batches < 0:
            raise ConfigError(f"scheduler: shared_batches: expected 0 or more, got {self.shared_batches}")
        if self.kv_tokens < self.context_tokens:
            raise ConfigError(f"scheduler: kv_tokens: expected at least {self.context_tokens}, one session's, got {self.kv_tokens}")
