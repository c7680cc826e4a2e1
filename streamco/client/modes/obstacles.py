"""Finds why endpoints can't make an answer and why a policy has no effect, for the answer's notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamco.client.modes.base import Obstacle
from streamco.client.request_facts import facts_for_log
from streamco.endpoints.base import Endpoint, Request
from streamco.errors import CONTEXT_EXCEEDED, ConfigError
from streamco.policies.eligibility import Gate, RequestFacts, SideFacts, exclusions, why_late, why_refused

__all__ = ["find_obstacles", "in_order", "refusal", "shortened_length", "side_facts", "why_without_effect"]

_ONE_SIDED = frozenset({"auto", "device-only", "server-only", "device-first", "server-first"})  # policies that make sense with one endpoint


def side_facts(endpoint: Endpoint, facts: RequestFacts, *, shortens: bool = False) -> SideFacts:
    """Return what ``check_eligibility`` needs to know about an endpoint to decide whether it can serve a request.

    A server gets a request whatever its token limit is: the server itself shortens the answer, or rejects the limit.

    Args:
        endpoint: the endpoint.
        facts: facts about the request.
        shortens: True if a device may give a shorter answer than was requested.
    """
    can, counted = endpoint.capabilities, facts.counts.get(endpoint.name)
    return SideFacts(
        context_tokens=can.context_tokens,
        prompt_tokens=counted,
        is_estimated=counted is None,
        shortens=shortens or endpoint.kind != "device",
        tools=can.tools,
        json_schema=can.json_schema,
        images=can.images,
        choices=can.choices,
        all_fields=endpoint.kind != "device",
    )


def find_obstacles(
    facts: RequestFacts, device: Endpoint | None, servers: Sequence[Endpoint], *, gate: Gate | None, shortens: bool
) -> Mapping[str, Obstacle]:
    """Return, by endpoint name, why endpoints can't serve a request, which others then have to serve.

    The result leaves out fallbacks that aren't needed, and a device that the request gate excludes, because the caller wants that.

    Args:
        facts: facts about the request.
        device: the device, or None.
        servers: the servers, in order of use.
        gate: the request gate, or None.
        shortens: True if the device may give a shorter answer than was requested.
    """
    found: dict[str, Obstacle] = {}
    if device is not None and (gate is None or gate(facts)):
        found[device.name] = _obstacle(facts, device, shortens=shortens)
    for server in servers:
        found[server.name] = _obstacle(facts, server)
        if not found[server.name].text:
            break
    return {name: obstacle for name, obstacle in found.items() if obstacle.text}


def in_order(facts: RequestFacts, servers: Sequence[Endpoint]) -> tuple[list[Endpoint], dict[str, str]]:
    """Return the servers that can serve a request, in order of use, and, by name, why some were moved back.

    The order is the same as in ``servers``, except that servers whose context may be too short for the prompt come last.
    """
    sides = {server.name: side_facts(server, facts) for server in servers}
    able = {name: side for name, side in sides.items() if not exclusions(facts, side)}
    late = {name: why for name, side in able.items() if (why := why_late(facts, side))} if len(able) > 1 else {}
    if not late or len(late) == len(able):
        return [server for server in servers if server.name in able], {}
    ordered = sorted((server for server in servers if server.name in able), key=lambda server: server.name in late)
    first = next(index for index, server in enumerate(servers) if server.name == ordered[0].name)
    return ordered, {server.name: late[server.name] for server in servers[:first] if server.name in late}


def shortened_length(facts: RequestFacts, device: Endpoint | None) -> int | None:
    """Return how many tokens fit into the device's context after the prompt; None if the request allows no more, or if that isn't known."""
    if device is None or (context := device.capabilities.context_tokens) is None or facts.max_tokens is None:
        return None
    counted = facts.counts.get(device.name)
    if counted is None:  # the prompt has at least one token
        return context - 1 if facts.max_tokens >= context else None
    return None if counted + facts.max_tokens <= context else context - counted


def refusal(request: Request, facts: RequestFacts, endpoints: Sequence[Endpoint], *, without: str, reason: str, more: str) -> ConfigError:
    """Return the error for a request that no endpoint can serve.

    Args:
        request: the request.
        facts: facts about the request.
        endpoints: the endpoints that might have been used.
        without: the excluded side, or "".
        reason: why each side can't serve it.
        more: text to append.
    """
    sides = {each.name: side_facts(each, facts, shortens=True) for each in endpoints}
    why = why_refused(facts, list(sides.values()))
    if why is None or why.code != CONTEXT_EXCEEDED:
        expected = f"that can be served without the {without}" if without else "that some endpoint can serve"
        field, code = (None, None) if why is None else (why.field, why.code)
        return ConfigError(f"request: expected one {expected}, got {reason}{more}", field=field, code=code)
    too_long = [side for side in sides.values() if [each.code for each in exclusions(facts, side)] == [CONTEXT_EXCEEDED]]
    widest = max(too_long, key=lambda side: side.context_tokens or 0)
    field, context = "messages" if request.messages is not None else "prompt", widest.context_tokens or 0
    expected = f"at most {context - 1} tokens (the largest context is {context})"
    return ConfigError(f"{field}: expected {expected}, got {widest.prompt_tokens}; {reason}{more}", field=field, code=why.code)


def why_without_effect(policy: str, device: Endpoint | None, servers: Sequence[Endpoint]) -> str:
    """Return why a policy that was chosen by name has no effect, as a sentence, or "" if it has one."""
    if policy in _ONE_SIDED or (device is not None and servers):
        return ""
    return f'policy "{policy}" has no effect, because there is no {"server" if device is not None else "device"}'


def _obstacle(facts: RequestFacts, endpoint: Endpoint, *, shortens: bool = False) -> Obstacle:
    text = _why_not(facts, endpoint, shortens=shortens)
    if not text or (loggable := facts_for_log(facts)) is facts:
        return Obstacle.of_settings(text)
    return Obstacle(text, _why_not(loggable, endpoint, shortens=shortens))


def _why_not(facts: RequestFacts, endpoint: Endpoint, *, shortens: bool) -> str:
    return ", ".join(each.text for each in exclusions(facts, side_facts(endpoint, facts, shortens=shortens)))
