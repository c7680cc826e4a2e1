"""Settings of the servers: what all of them share, and those of the one over an engine."""

from __future__ import annotations

from streamco.errors import ConfigError
from streamco.server.http.options import ListenOptions
from streamco.server.latency_replay import LatencyProfile
from streamco.server.verify.options import VerifyOptions

__all__ = ["ServeOptions"]


class ServeOptions(ListenOptions, frozen=True, kw_only=True):
    """Settings of the server over one engine."""

    model: str | None = None  # the name told to clients; None: the engine's
    max_prompt_tokens: int | None = None  # None: what fits the context
    max_tokens: int | None = None  # most a request may ask for; None: what fits the context
    latency: LatencyProfile | None = None
    latency_seed: int = 0
    verify: VerifyOptions | None = VerifyOptions()  # None: no drafts are verified, even where the engine holds sequences

    def __post_init__(self) -> None:
        ListenOptions.__post_init__(self)
        for field in ("max_prompt_tokens", "max_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field}: expected at least 1, got {value}")
