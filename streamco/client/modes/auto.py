"""The choice between several modes, answer by answer."""

from __future__ import annotations

from typing import ClassVar

from streamco.client.modes.base import ClientPlanner, Fallback, Mode, ModeContext, Planner
from streamco.errors import ConfigError

__all__ = ["Auto"]


class Auto:
    """Each answer is made in the mode that is predicted to be the fastest for it, by what earlier answers have shown (docs/speculation.md).

    Args:
        modes: the modes, one of each kind. A ``Race`` among them makes the answers that no other mode makes; without one, a race by its
            defaults does. None at all: ``Race()`` and ``Speculate()``.
        time, money, quality: not yet supported: what a saved second, dollar or error is worth beside the others.

    Raises:
        ConfigError: two modes of one kind, something that is no mode of its own, or one of the three weights.
    """

    name: ClassVar[str] = "auto"
    endpoint: ClassVar[None] = None

    def __init__(self, *modes: Mode, time: float | None = None, money: float | None = None, quality: float | None = None) -> None:
        for weight, value in (("time", time), ("money", money), ("quality", quality)):
            if value is not None:
                raise ConfigError(f"auto: {weight}: expected None, because weights are not supported yet, got {value!r}")
        names = ["" if isinstance(mode, type) else getattr(mode, "name", "") for mode in modes]
        for name in names:
            if name not in {"race", "speculate"} or names.count(name) > 1:
                raise ConfigError(f"auto: expected Race(...) and Speculate(...), one of each, got {', '.join(map(repr, modes))}")
        if "race" in names and any(getattr(mode, "otherwise", None) is not None for mode in modes):
            raise ConfigError("auto: expected Speculate without otherwise=... beside a Race, which makes all other answers, got both")
        self.modes = modes

    def __repr__(self) -> str:
        return f"Auto({', '.join(map(repr, self.modes))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Auto) and self.modes == other.modes

    def __hash__(self) -> int:
        return hash(self.modes)

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer."""
        return tuple(member for mode in self.modes for member in mode.members)

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers."""
        others = [mode for mode in self.modes if mode.name != "race"]
        if not self.modes:
            from streamco.client.modes.speculation.mode import Speculate

            others = [Speculate()]
        last = next((mode for mode in self.members if mode.name == "race"), context.fallback)
        return Fallback(tuple(mode.own_planner(context) for mode in others), last.planner(context), if_faster=True)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner of the answers in this mode alone."""
        return self.planner(context)
