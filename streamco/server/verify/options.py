"""How a server verifies: what one device may have, and what is borne altogether."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = ["VerifyOptions"]

_LEAST_FRAME = 1 << 15  # every peer takes so much


class VerifyOptions(Struct, frozen=True, kw_only=True):
    """Settings of the verifier; what the engine holds bounds it too."""

    policy: Literal["alternating", "strict"] = "alternating"  # how prompts and verdicts take turns
    connections: int = 512
    peer_connections: int = 128  # of one address
    connection_sessions: int = 64  # of one connection, at one time
    sessions: int = 1024  # remembered, those of lost connections among them
    peer_sessions: int = 512  # of those, of one address
    frame_bytes: int = 1 << 20
    draft_tokens: int = 31  # judged in one round
    top_k: int = 64  # ids in one row of a verdict
    prefill_within: float = 10.0  # seconds a new context may have to wait
    draft_stretch: float = 4.0  # a draft is refused if its verdict would take so many times what it takes alone
    idle_after: float = 5.0  # seconds of silence after which a session's place may be given to another
    forget_after: float = 600.0  # seconds of silence after which a session is forgotten
    resume_s: int = 60  # seconds that sessions of a lost connection are kept
    hello_timeout: float = 10.0  # seconds until the first frame
    ping_interval: float = 20.0  # seconds of silence before a ping; without a pong in half of it the connection is lost
    write_timeout: float = 30.0  # seconds one frame may wait for a reader that does not read
    faults_per_minute: int = 64  # wrong frames, keys and hellos of one address, before its new connections are refused

    def __post_init__(self) -> None:
        numbers = ("connections", "peer_connections", "connection_sessions", "sessions", "peer_sessions", "draft_tokens", "top_k")
        for field in (*numbers, "faults_per_minute"):
            if getattr(self, field) < 1:
                raise ConfigError(f"verify: {field}: expected at least 1, got {getattr(self, field)}")
        if self.policy not in {"alternating", "strict"}:
            raise ConfigError(f"verify: policy: expected alternating or strict, got {self.policy!r}")
        if self.frame_bytes < _LEAST_FRAME:
            raise ConfigError(f"verify: frame_bytes: expected at least {_LEAST_FRAME}, got {self.frame_bytes}")
        if self.draft_tokens > 31 or self.top_k > 255:
            raise ConfigError(f"verify: expected draft_tokens up to 31 and top_k up to 255, got {self.draft_tokens} and {self.top_k}")
        if self.resume_s < 0:
            raise ConfigError(f"verify: resume_s: expected seconds >= 0, got {self.resume_s}")
        for field in ("hello_timeout", "ping_interval", "write_timeout", "forget_after"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(f"verify: {field}: expected seconds > 0, got {getattr(self, field)}")
