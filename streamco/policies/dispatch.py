"""Who starts when: the decision, what makes it, and the policies that need no plan (DiSCo section 4.2).

A policy is a plan already made: frozen numbers that ``decide`` looks up. ``outcomes`` says the same without dice, for simulators and
for anybody who wants the expected value. Planning lives beside each policy, as the class method ``plan``.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from msgspec import Struct

__all__ = ["BothAtOnce", "Decision", "DeviceOnly", "Outcomes", "ServerOnly", "Side", "one_side"]

Side = Literal["device", "server"]


class Decision(Struct, frozen=True):
    """When each side starts.

    Args:
        device_wait: seconds after the request; None: not unless the other side fails.
        server_wait: the same for the server.
        policy: name of the policy.
        reason: for the report, a few words.
        explore: the loser may run to its first token, so that its time is learned in full.
    """

    device_wait: float | None
    server_wait: float | None
    policy: str
    reason: str
    explore: bool = False

    def wait(self, side: Side) -> float | None:
        """Seconds until ``side`` starts; None: not unless the other fails."""
        return self.device_wait if side == "device" else self.server_wait

    @property
    def is_hedged(self) -> bool:
        """True if both sides may be started though none has failed."""
        return self.device_wait is not None and self.server_wait is not None


Outcomes = tuple[tuple[float, Decision], ...]


_DEVICE_ONLY = Decision(0.0, None, "device-only", "device alone")
_SERVER_ONLY = Decision(None, 0.0, "server-only", "server alone")
_BOTH = Decision(0.0, 0.0, "both", "both at once")


class DeviceOnly(Struct, frozen=True, tag="device-only"):
    """The device alone; the server stands in when it fails."""

    @property
    def name(self) -> str:
        """``device-only``."""
        return "device-only"

    def outcomes(self, length: int) -> Outcomes:
        """Always the one decision."""
        return ((1.0, _DEVICE_ONLY),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Always the one decision."""
        return _DEVICE_ONLY


class ServerOnly(Struct, frozen=True, tag="server-only"):
    """The server alone; the device stands in when it fails."""

    @property
    def name(self) -> str:
        """``server-only``."""
        return "server-only"

    def outcomes(self, length: int) -> Outcomes:
        """Always the one decision."""
        return ((1.0, _SERVER_ONLY),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Always the one decision."""
        return _SERVER_ONLY


class BothAtOnce(Struct, frozen=True, tag="both"):
    """Both sides at once, whatever it costs; the fastest there is, and what a learner does while it knows nothing."""

    @property
    def name(self) -> str:
        """``both``."""
        return "both"

    def outcomes(self, length: int) -> Outcomes:
        """Always the one decision."""
        return ((1.0, _BOTH),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Always the one decision."""
        return _BOTH


def one_side(decision: Decision, side: Side, reason: str) -> Decision:
    """Return the decision turned into one that starts ``side`` alone and at once; the other still stands in when it fails."""
    if side == "device":
        return Decision(0.0, None, decision.policy, reason)
    return Decision(None, 0.0, decision.policy, reason)
