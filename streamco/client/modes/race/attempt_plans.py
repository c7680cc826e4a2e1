"""Turns the dispatch decision into the attempts of a race, and puts off endpoints that rest after a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from streamco.core.race.attempt import AttemptPlan
from streamco.endpoints.base import Endpoint
from streamco.policies.dispatch import Decision
from streamco.policies.eligibility import Eligibility

__all__ = ["names_of_two_servers", "plan_attempts", "resting_behind", "spare_resting"]


def plan_attempts(
    decision: Decision, eligibility: Eligibility, device: Endpoint | None, servers: Sequence[Endpoint]
) -> tuple[AttemptPlan, ...]:
    """Return the attempts of a race in order of use: the first server, the device, then the other servers as fallbacks."""
    attempts = []
    if servers:
        attempts.append(_attempt(servers[0], decision.server_wait))
    if device is not None and eligibility.device:
        attempts.append(_attempt(device, decision.device_wait))
    return (*attempts, *(_attempt(server, None) for server in servers[1:]))


def spare_resting(
    decision: Decision, eligibility: Eligibility, device: Endpoint | None, servers: Sequence[Endpoint], resting: Mapping[str, str]
) -> Decision:
    """If one side rests, return a decision that starts the other side at once, and the resting side only if that fails.

    Args:
        decision: when each side starts.
        eligibility: which sides can serve the request.
        device: the device, or None.
        servers: the servers that can serve it, with resting ones last.
        resting: as for ``Dispatcher.decide``.
    """
    if not resting or device is None or not servers or not (eligibility.device and eligibility.server):
        return decision
    device_rests, server_rests = device.name in resting, servers[0].name in resting
    if device_rests == server_rests:
        return decision
    side, other = ("device", "server") if server_rests else ("server", "device")
    device_wait, server_wait = (0.0, None) if server_rests else (None, 0.0)
    if (decision.device_wait, decision.server_wait) == (device_wait, server_wait):
        return decision
    reason = f"{side} at once, because the {other} has just failed"
    return replace(decision, device_wait=device_wait, server_wait=server_wait, reason=reason, explore=False)


def resting_behind(attempts: Sequence[AttemptPlan], resting: Mapping[str, str]) -> dict[str, str]:
    """Return, by name, why resting endpoints are asked after the others; {} if all endpoints rest."""
    if not resting or all(each.source in resting for each in attempts):
        return {}
    return {each.source: resting[each.source] for each in attempts if each.source in resting and each.wait is None}


def names_of_two_servers(device: Endpoint | None, servers: Sequence[Endpoint]) -> dict[str, str]:
    """If two servers race, return their names by the side that each stands for; otherwise {}."""
    if device is None or device.kind == "device" or not servers:
        return {}
    return {"device": device.name, "server": servers[0].name}


def _attempt(endpoint: Endpoint, wait: float | None) -> AttemptPlan:
    can = endpoint.capabilities
    return AttemptPlan(endpoint.name, wait, continues=can.continuation != "none", vocabulary=can.vocabulary)
