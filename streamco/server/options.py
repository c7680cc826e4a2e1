"""Settings of the server over an engine."""

from __future__ import annotations

from collections.abc import Callable

from streamco.errors import ConfigError
from streamco.server.http.api_keys import ApiKey
from streamco.server.http.options import ListenOptions
from streamco.server.verify.options import VerifyOptions
from streamco.server.wakeup import PieceHold

__all__ = ["ServeOptions"]


class ServeOptions(ListenOptions, frozen=True, kw_only=True):
    """Settings of the server over one engine."""

    model: str | None = None  # name that clients see, or None for the engine's
    max_prompt_tokens: int | None = None  # None for as many as fit in the context
    max_tokens: int | None = None  # maximum that a request may ask for, or None for as many as fit in the context
    hold: Callable[[int, float], PieceHold] | None = (
        None  # makes the object that holds an answer back, from the request's number and arrival; None to hold back nothing
    )
    verify: VerifyOptions | None = VerifyOptions()  # None to verify no drafts, even if the engine holds sequences
    api_keys: tuple[ApiKey, ...] = ()  # additional keys; if there are several in all, each has its own prefix cache

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Keys that are accepted; empty if none is needed."""
        return (*super().keys, *self.api_keys)

    def __post_init__(self) -> None:
        ListenOptions.__post_init__(self)
        for field in ("max_prompt_tokens", "max_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field}: expected at least 1, got {value}")
