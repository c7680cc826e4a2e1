"""Settings of the verifier service: limits per device, connection and address, and for the load of the whole server."""

from __future__ import annotations

import math
from typing import Literal, get_args

from streamco.config import Options
from streamco.core.verifier.options import LoadLimits
from streamco.errors import ConfigError
from streamco.policies.serving.batching import CHUNK, Mixed

__all__ = ["MIN_ROOM", "VerifyOptions", "VerifyPolicy"]

VerifyPolicy = Literal["alternating", "strict", "length-aware", "mixed"]
"""How ``streamco serve`` forms batches. With ``alternating``, prompts and verdicts take turns; with ``strict``, prompts always come first
(Synera's Algorithm 1); with ``length-aware``, requests of about equal length go together (DSD section 5.3); with ``mixed``, prompts fill
the rows that verdicts leave free (HAT section 3.3, Sarathi-Serve)."""

MIN_ROOM = CHUNK + Mixed().prompt_room  # rows for one verification, and those reserved for a prompt

_MIN_FRAME_BYTES = 1 << 15  # every peer accepts frames of this size


class VerifyOptions(Options, frozen=True, kw_only=True):
    """Settings of the verifier service. The engine's capacity limits it, too."""

    load: LoadLimits = LoadLimits()  # of the scheduler; each connection counts as one device
    policy: VerifyPolicy = "alternating"  # how prompts and verdicts take turns
    room: int | None = None  # rows of a batch with policy "mixed", or None for as many as take 1.8 times as long as 32
    connections: int = 512
    peer_connections: int = 128  # of one address
    peer_sessions: int = 512  # per address and key, including sessions of lost connections
    frame_bytes: int = 1 << 20
    draft_tokens: int = 31  # verified in one round
    top_k: int = 64  # ids in one row of a verdict
    resume_s: int = 60  # seconds that sessions of a lost connection are kept
    hello_timeout: float = 10.0  # seconds until the first frame
    ping_interval: float = 20.0  # seconds of silence before a ping; without a pong in half of it the connection is lost
    write_timeout: float = 30.0  # seconds that one frame may wait for a client that has stopped reading
    faults_per_minute: int = 64  # wrong frames, keys and hellos from one address before its new connections are refused

    def __post_init__(self) -> None:
        for field in ("connections", "peer_connections", "peer_sessions", "draft_tokens", "top_k", "faults_per_minute"):
            if getattr(self, field) < 1:
                raise ConfigError(f"verify: {field}: expected at least 1, got {getattr(self, field)}")
        if self.policy not in get_args(VerifyPolicy):
            raise ConfigError(f"verify: policy: expected {', '.join(get_args(VerifyPolicy))}, got {self.policy!r}")
        if self.room is not None and self.policy != "mixed":
            raise ConfigError(f"verify: room: only valid with policy mixed, got policy {self.policy}")
        if self.room is not None and self.room < MIN_ROOM:
            raise ConfigError(f"verify: room: expected at least {MIN_ROOM} rows, got {self.room}")
        if self.frame_bytes < _MIN_FRAME_BYTES:
            raise ConfigError(f"verify: frame_bytes: expected at least {_MIN_FRAME_BYTES}, got {self.frame_bytes}")
        if self.draft_tokens > 31 or self.top_k > 255:
            raise ConfigError(f"verify: expected draft_tokens up to 31 and top_k up to 255, got {self.draft_tokens} and {self.top_k}")
        if self.resume_s < 0:
            raise ConfigError(f"verify: resume_s: expected seconds >= 0, got {self.resume_s}")
        for field in ("hello_timeout", "ping_interval", "write_timeout"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(f"verify: {field}: expected seconds > 0, got {getattr(self, field)}")
        if not self.load.forget_after > 0:
            raise ConfigError(f"verify: load.forget_after: expected seconds > 0, got {self.load.forget_after}")
