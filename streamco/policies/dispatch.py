"""Dispatch decisions: when each side starts, and the policies that always make the same decision (DiSCo section 4.2).

A policy is a finished plan, made of frozen numbers that ``decide`` looks up. ``outcomes`` returns all possible decisions with their
probabilities, for simulators and expected values. A policy with parameters makes its plan in the class method ``plan``.
"""

from __future__ import annotations

from random import Random
from typing import Literal, Protocol

from msgspec import Struct

__all__ = ["BothAtOnce", "Decision", "DeviceOnly", "DispatchPolicy", "Outcomes", "ServerOnly", "Side", "one_side"]

Side = Literal["device", "server"]


class Decision(Struct, frozen=True):
    """Says when each side starts for one request.

    Args:
        device_wait: seconds from the request to the device's start. None starts it only if the server fails.
        server_wait: seconds from the request to the server's start. None starts it only if the device fails.
        policy: name of the policy that decided.
        reason: the reason in a few words, for the report.
        explore: True to let the loser run to its first token, so that its time to first token is measured.
    """

    device_wait: float | None
    server_wait: float | None
    policy: str
    reason: str
    explore: bool = False

    def wait(self, side: Side) -> float | None:
        """Return the seconds until ``side`` starts, or None if it starts only if the other side fails."""
        return self.device_wait if side == "device" else self.server_wait

    @property
    def is_hedged(self) -> bool:
        """True if both sides may start even if neither fails."""
        return self.device_wait is not None and self.server_wait is not None


class DispatchPolicy(Protocol):
    """The interface for custom policies. Whatever you decide, the budget still holds, and a side that can't serve a request isn't asked."""

    def decide(self, length: int, rng: Random) -> Decision:
        """Decide when each side starts.

        Args:
            length: the prompt's length in tokens.
            rng: the only random source that you may use, so that equal seeds give equal decisions.
        """
        ...


Outcomes = tuple[tuple[float, Decision], ...]
"""Pairs of a probability and a decision for one prompt length. The probabilities add up to 1."""


_DEVICE_ONLY = Decision(0.0, None, "device-only", "device alone")
_SERVER_ONLY = Decision(None, 0.0, "server-only", "server alone")
_DEVICE_FIRST = Decision(0.0, None, "device-first", "device alone, server in reserve")
_SERVER_FIRST = Decision(None, 0.0, "server-first", "server alone, device in reserve")
_BOTH = Decision(0.0, 0.0, "both", "both at once")


class DeviceOnly(Struct, frozen=True, tag="device-only"):
    """A policy that uses the device alone.

    Args:
        is_strict: if True, the server is never used. If False, it is the fallback.
    """

    is_strict: bool = True

    @property
    def name(self) -> str:
        """Name of the policy: ``device-only``, or ``device-first`` with the fallback."""
        return "device-only" if self.is_strict else "device-first"

    def outcomes(self, length: int) -> Outcomes:
        """Return the only possible decision: the device starts at once."""
        return ((1.0, _DEVICE_ONLY if self.is_strict else _DEVICE_FIRST),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Start the device at once, whatever the prompt's length in tokens."""
        return _DEVICE_ONLY if self.is_strict else _DEVICE_FIRST


class ServerOnly(Struct, frozen=True, tag="server-only"):
    """A policy that uses the server alone.

    Args:
        is_strict: if True, the device is never used. If False, it is the fallback.
    """

    is_strict: bool = True

    @property
    def name(self) -> str:
        """Name of the policy: ``server-only``, or ``server-first`` with the fallback."""
        return "server-only" if self.is_strict else "server-first"

    def outcomes(self, length: int) -> Outcomes:
        """Return the only possible decision: the server starts at once."""
        return ((1.0, _SERVER_ONLY if self.is_strict else _SERVER_FIRST),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Start the server at once, whatever the prompt's length in tokens."""
        return _SERVER_ONLY if self.is_strict else _SERVER_FIRST


class BothAtOnce(Struct, frozen=True, tag="both"):
    """A policy that starts both sides at once, at any cost. It is the fastest, and learners use it until they have measurements."""

    @property
    def name(self) -> str:
        """Name of the policy, ``both``."""
        return "both"

    def outcomes(self, length: int) -> Outcomes:
        """Return the only possible decision: both sides start at once."""
        return ((1.0, _BOTH),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Start both sides at once, whatever the prompt's length in tokens."""
        return _BOTH


def one_side(decision: Decision, side: Side, reason: str) -> Decision:
    """Return a decision that starts ``side`` alone and at once, with the other side as the fallback."""
    if side == "device":
        return Decision(0.0, None, decision.policy, reason)
    return Decision(None, 0.0, decision.policy, reason)
