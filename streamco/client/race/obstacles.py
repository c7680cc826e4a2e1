"""What keeps endpoints from an answer, and a policy from having an effect: said in the answer's notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamco.client.request_facts import facts_for_log
from streamco.endpoints.base import Endpoint
from streamco.policies.eligibility import Gate, RequestFacts, SideFacts, check_eligibility

__all__ = ["NO_OBSTACLE", "Obstacle", "find_obstacles", "shortened_length", "side_facts", "why_without_effect"]

_ONE_SIDED = frozenset({"auto", "device-only", "server-only", "device-first", "server-first"})  # policies that one endpoint can keep to


class Obstacle(NamedTuple):
    """The reason why an endpoint can't serve a request, or why an answer isn't speculated; both texts are "" if nothing keeps it from that.

    ``text`` is for the caller. ``logged`` has the kind of reason alone, without words of the caller's.
    """

    text: str
    logged: str

    @classmethod
    def of_settings(cls, text: str) -> Obstacle:
        """Return a reason that quotes nothing of a request."""
        return cls(text, text)


NO_OBSTACLE = Obstacle("", "")


def side_facts(endpoint: Endpoint | None, *, shortens: bool = False) -> SideFacts | None:
    """Return what an endpoint can do, for ``check_eligibility``; ``shortens``: it may give a shorter answer than was asked for."""
    if endpoint is None:
        return None
    can = endpoint.capabilities
    return SideFacts(
        context_tokens=can.context_tokens,
        shortens=shortens,
        tools=can.tools,
        json_schema=can.json_schema,
        images=can.images,
        choices=can.choices,
        all_fields=endpoint.kind != "device",
    )


def find_obstacles(
    facts: RequestFacts, device: Endpoint | None, servers: Sequence[Endpoint], *, gate: Gate | None
) -> Mapping[str, Obstacle]:
    """Return why endpoints can't serve a request that others would have to serve in their place, by name.

    A device that the quality gate keeps out isn't in it, because that was asked for, nor are fallbacks of a server that can serve it.

    Args:
        facts: properties of the request.
        device: the device; None: there is none.
        servers: the servers, in the order of their use.
        gate: the quality gate; None: there is none.
    """
    found: dict[str, Obstacle] = {}
    if device is not None and (gate is None or gate(facts)):
        found[device.name] = _obstacle(facts, device, shortens=not servers)
    for server in servers:
        found[server.name] = _obstacle(facts, server)
        if not found[server.name].text:
            break
    return {name: obstacle for name, obstacle in found.items() if obstacle.text}


def shortened_length(facts: RequestFacts, device: Endpoint | None) -> int | None:
    """Return the longest answer that fits into the device's context; None: the request doesn't allow a longer one."""
    context = None if device is None else device.capabilities.context_tokens
    if context is None or facts.max_tokens is None or facts.prompt_tokens + facts.max_tokens <= context:
        return None
    return context - facts.prompt_tokens


def why_without_effect(policy: str, device: Endpoint | None, servers: Sequence[Endpoint]) -> str:
    """Return why a policy that was asked for by name decides nothing, as a sentence; "": it does."""
    if policy in _ONE_SIDED or (device is not None and servers):
        return ""
    return f'policy "{policy}" has no effect, because there is no {"server" if device is not None else "device"}'


def _obstacle(facts: RequestFacts, endpoint: Endpoint, *, shortens: bool = False) -> Obstacle:
    text = _why_not(facts, endpoint, shortens=shortens)
    if not text or (loggable := facts_for_log(facts)) is facts:
        return Obstacle.of_settings(text)
    return Obstacle(text, _why_not(loggable, endpoint, shortens=shortens))


def _why_not(facts: RequestFacts, endpoint: Endpoint, *, shortens: bool) -> str:
    if endpoint.kind == "device":
        found = check_eligibility(facts, device=side_facts(endpoint, shortens=shortens), server=None)
        return "" if found.device else found.reason.removeprefix("device: ").removesuffix("; server: no server")
    found = check_eligibility(facts, device=None, server=side_facts(endpoint))
    return "" if found.server else found.reason.removeprefix("device: no device; server: ")
