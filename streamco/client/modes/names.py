"""The short names of modes: ``mode="speculate"`` stands for ``Speculate()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from msgspec.structs import asdict

from streamco.client.modes.base import Mode
from streamco.errors import ConfigError

__all__ = ["ModeName", "ModeSetting", "find_mode"]

ModeName = Literal["race", "speculate", "auto"]
ModeSetting = ModeName | Mode


def find_mode(setting: object, known: Mapping[str, Mode]) -> Mode:
    """Return the mode that a setting names.

    Args:
        setting: a mode, or a short name, which stands for the known mode of that name, or else for the mode with its defaults. "auto"
            chooses between the known modes, with the known weights.
        known: modes by name.

    Raises:
        ConfigError: there is no such mode.
    """
    match setting:
        case str() if setting in known and setting != "auto":
            return known[setting]
        case "race":
            from streamco.client.modes.race.mode import Race

            return Race()
        case "speculate":
            from streamco.client.modes.speculation.mode import Speculate

            return Speculate()
        case "auto":
            from streamco.client.modes.auto import Auto

            former = known.get("auto")
            if not isinstance(former, Auto) or former.weights is None:
                return Auto(*(find_mode(name, known) for name in ("race", "speculate")))
            return Auto(*(known.get(each.name, each) for each in former.modes), **asdict(former.weights))
        case str():
            pass
        case _ if hasattr(setting, "own_planner") and not isinstance(setting, type):
            return cast(Mode, setting)
    raise ConfigError(f'mode: expected Race(...), Speculate(...), Split(...), Auto(...), "race", "speculate" or "auto", got {setting!r}')
