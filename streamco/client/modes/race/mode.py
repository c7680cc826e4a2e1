"""The settings of the mode in which the whole answer comes from whichever endpoint is first (DiSCo)."""

from __future__ import annotations

from typing import ClassVar

from streamco.client.modes.base import ClientPlanner, Mode, ModeContext, Planner
from streamco.client.modes.race.dispatcher import DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.plan import RacePlanner
from streamco.errors import ConfigError

__all__ = ["Race"]


class Race(DispatchOptions, frozen=True, kw_only=True):
    """Both sides may start; whichever writes first makes the answer, and the other one is cancelled (docs/dispatch.md).

    Args:
        policy: decides which side starts when: "auto", a policy's name, or your own object with ``decide(length, rng)``
            (docs/dispatch.md). "device-only" and "server-only" are promises: the other side is never used, whatever happens, and an
            answer that this side can't make is an error.
        migration: how answers move to a cheaper endpoint while they are written (docs/migration.md). None lets paced answers move once.
        check_access: True to request the list of models from a server that needs a key, once and in the background, after another endpoint
            has answered, so that a wrong key is noticed. False sends servers nothing but requests for answers.
        constrained: the side that the budget limits; None chooses it by the unified cost (DiSCo Algorithm 1).
        tail: share of the budget reserved for the slowest answers (alpha of Algorithm 2).
        tail_weight: weight of the tail for the "optimal" policy.
        explore: share of the races in which the loser runs to its first token, so that its full time is learned; 0 to 1.
        gate: decides whether the device's model is good enough for a request; None means always (docs/dispatch.md).
        hedge_tools: True to start both sides even for requests with tools, whose calls may have side effects.
        exchange_rate: US dollars per million GFLOPs on the device (lambda of Appendix E), or a function without arguments that returns
            them, for example depending on the battery or a temperature. It is called when the client is created and then for answers, at
            most once a second, in the event loop. If it fails later, the last rate is kept, and the log says so once.
        burst: how many prompt tokens may be borrowed from a server's budget while the device is busy with other answers, up to 32 mean
            prompts; 0 for none.
        reader_rate: reading speed, in tokens per second, of the virtual reader that is used to measure quality if no pace is set.
        quality: ``QualityGate(...)``, so that the server answers if the device is unsure of its answer, or "gate" for its defaults. With
            None, the first endpoint writes the answer, however good it is (docs/howto/quality.md).

    Raises:
        ConfigError: a setting is out of range. If ``exchange_rate`` is a function that fails, the client raises the error.
    """

    name: ClassVar[str] = "race"
    endpoint: ClassVar[None] = None

    migration: MigrationOptions | None = None
    check_access: bool = True

    def __post_init__(self) -> None:
        """Reject settings that are out of range."""
        DispatchOptions.__post_init__(self)
        if self.migration is not None and not isinstance(self.migration, MigrationOptions):
            raise ConfigError(f"migration: expected MigrationOptions or None, got {type(self.migration).__name__}")

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer."""
        return (self,)

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers."""
        return RacePlanner(self, context, migration=self.migration, checks_servers=self.check_access)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner for this mode's own answers."""
        return self.planner(context)
