"""A client's modes: its arguments from flat settings, for helpers that pass them on, and the planners that it has."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.auto import Auto
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.plan import RacePlanner
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.plan import SpeculationPlanner

__all__ = ["client_options", "drafting", "racing"]

_OF_RACE = {*Race.__struct_fields__}
_OF_SPECULATE = {*Speculate.__struct_fields__} - {"budget", "otherwise"}  # the budget is the client's, too


def client_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Client`` for these settings.

    Args:
        settings: arguments of ``Client``, ``Race`` and ``Speculate``; ``mode`` may be a short form; ``dispatch`` is a ``Race``, and
            ``speculation`` a ``Speculate``, that the other settings change.
    """
    own = {name: value for name, value in settings.items() if name not in _OF_RACE | _OF_SPECULATE | {"speculation", "dispatch"}}
    raced = {name: value for name, value in settings.items() if name in _OF_RACE}
    drafted = {name: value for name, value in settings.items() if name in _OF_SPECULATE}
    race = replace(settings.get("dispatch") or Race(), **raced)
    match own.get("mode", "race"):
        case "race":
            if drafted or "speculation" in settings:
                raise AssertionError(f"expected settings of a race alone, got {settings}")
            own["mode"] = race
        case "speculate":
            own["mode"] = replace(settings.get("speculation") or Speculate(), otherwise=race, **drafted)
        case "auto":
            own["mode"] = Auto(race, replace(settings.get("speculation") or Speculate(), **drafted))
    return own


def racing(client: Client) -> RacePlanner:
    """Return the planner of a client's raced answers."""
    planner = client._settings.planners["race"]
    assert isinstance(planner, RacePlanner)
    return planner


def drafting(client: Client) -> SpeculationPlanner:
    """Return the planner of a client's speculated answers."""
    planner = client._settings.planners["speculate"]
    assert isinstance(planner, SpeculationPlanner)
    return planner
