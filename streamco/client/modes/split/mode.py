"""The settings of the mode in which a model's first layers and head run on the device and the rest on servers (HAT; docs/split.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from streamco.client.modes.base import ClientPlanner, Mode, ModeContext, Planner
from streamco.client.modes.split.plan import SplitPlanner
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.errors import ConfigError

__all__ = ["Split"]


class Split:
    """One model makes all answers: its first layers and its head run on this machine, its middle layers on servers (docs/split.md).

    Args:
        parts: common prefix of the device's files ("parts/NAME", as ``streamco split`` writes them), or a ``SplitEndpoint``, which has
            its servers and more options.
        server: URL of a ``streamco serve --middle``, or several: if one is lost, the next one takes over. None if ``parts`` is an endpoint.

    Raises:
        ConfigError: one of the arguments is missing or has the wrong type.
    """

    name: ClassVar[str] = "split"

    def __init__(self, parts: str | Path | SplitEndpoint, server: str | Sequence[str] | None = None) -> None:
        self.parts = parts
        self.server = server
        self.endpoint  # noqa: B018  raises if the settings are wrong

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Split) and (self.parts, self.server) == (other.parts, other.server)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Split({self.parts!r}, {self.server!r})"

    @cached_property
    def endpoint(self) -> SplitEndpoint:
        """The endpoint that makes the answers."""
        parts, server = self.parts, self.server
        if isinstance(parts, SplitEndpoint):
            if server is not None:
                raise ConfigError(f"server: can't be combined with a SplitEndpoint, which has its own servers, got {server!r}")
            return parts
        if not isinstance(parts, str | Path):
            raise ConfigError(f'parts: expected the beginning of the parts\' files ("parts/NAME") or a SplitEndpoint, got {parts!r}')
        urls = [server] if isinstance(server, str) else server
        if not isinstance(urls, Sequence) or not urls or not all(isinstance(url, str) for url in urls):
            raise ConfigError(f"server: expected the URL of a split server, or several, got {server!r}")
        return SplitEndpoint(parts, urls)

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer."""
        return (self,)

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers."""
        return SplitPlanner(self.endpoint, context)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner for this mode's own answers."""
        return self.planner(context)
