"""Clients whose endpoints never rest, for tests in which one fails again and again and must be asked first each time."""

from __future__ import annotations

from streamco.client.client import Client
from streamco.client.modes.race.endpoint_states import EndpointStates
from streamco.core.race.breaker import Breaker

__all__ = ["never_resting"]


class _Forgetful(dict[str, Breaker]):
    """Keeps no failure."""

    def setdefault(self, key: str, default: Breaker) -> Breaker:
        """Return the new one."""
        return default


def never_resting(client: Client) -> None:
    """Let the client's endpoints never rest."""
    endpoints = client._settings.endpoints
    endpoints.share("states", lambda: EndpointStates(endpoints.device))._breakers = _Forgetful()
