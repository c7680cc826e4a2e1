"""Eligibility: which sides can serve a request at all, before the dispatch policy chooses.

A request goes to both sides only if both can serve it. Otherwise it goes to the one that can, and the reason goes into the report. A
quality gate keeps requests away from a device model that isn't good enough for them. The paper assumes a device model that is good enough
for all (DiSCo section 6).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.dispatch import Decision, Side, one_side

__all__ = ["Eligibility", "Gate", "QualityGate", "RequestFacts", "SideFacts", "check_eligibility", "restrict"]


class RequestFacts(Struct, frozen=True, kw_only=True):
    """Properties of a request that decide which side can serve it.

    Args:
        prompt_tokens: length in the device's tokens, template included.
        max_tokens: maximum tokens of the answer; None: no limit asked for.
        prompt_chars: characters of the prompt; None: not counted.
        task: the caller's name for the kind of task; None: none given.
        choices: OpenAI's ``n``.
        server_fields: names of the fields that only a server keeps to.
    """

    prompt_tokens: int
    max_tokens: int | None = None
    prompt_chars: int | None = None
    task: str | None = None
    has_images: bool = False
    has_tools: bool = False
    has_json_schema: bool = False
    choices: int = 1
    server_fields: tuple[str, ...] = ()


class SideFacts(Struct, frozen=True, kw_only=True):
    """Capabilities of a side.

    Args:
        context_tokens: maximum length of prompt and answer together; None: not known.
        shortens: a longer answer than fits is generated as far as it fits; False: the side refuses such a request.
        all_fields: the side knows every field of a request, or says itself that it doesn't.
    """

    context_tokens: int | None = None
    shortens: bool = False
    tools: bool = False
    json_schema: bool = False
    images: bool = False
    choices: bool = False
    all_fields: bool = True


Gate = Callable[[RequestFacts], bool]  # True: the device model is good enough for the request


class QualityGate(Struct, frozen=True, kw_only=True):
    """A quality gate by thresholds; each one that is set must hold for the device to be used.

    Args:
        longest_prompt_tokens: longer prompts are kept away from the device.
        longest_prompt_chars: the same in characters; a request without a count of characters passes.
        tasks: the tasks the device model is good enough for; a request without a task does not pass.
    """

    longest_prompt_tokens: int | None = None
    longest_prompt_chars: int | None = None
    tasks: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for field in ("longest_prompt_tokens", "longest_prompt_chars"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ConfigError(f"quality gate: {field}: expected >= 0 or None, got {value!r}")

    def __call__(self, request: RequestFacts) -> bool:
        """Return True if the device model is good enough for this request."""
        if self.longest_prompt_tokens is not None and request.prompt_tokens > self.longest_prompt_tokens:
            return False
        if self.longest_prompt_chars is not None and (request.prompt_chars or 0) > self.longest_prompt_chars:
            return False
        return self.tasks is None or request.task in self.tasks


class Eligibility(Struct, frozen=True, kw_only=True):
    """The sides that may serve a request.

    Args:
        device: the device may, at first or as the fallback.
        server: the server may, at first or as the fallback.
        hedge: both may run at once; False: one may only be the fallback of the other.
        reason: why a side or hedging is excluded; "" if nothing is.
    """

    device: bool
    server: bool
    hedge: bool
    reason: str = ""


def check_eligibility(
    request: RequestFacts,
    *,
    device: SideFacts | None,
    server: SideFacts | None,
    gate: Gate | None = None,
    hedge_tools: bool = False,
    kept_out_by: str = "",
) -> Eligibility:
    """Return which sides can serve a request.

    Args:
        request: properties of the request.
        device: capabilities of the device; None: there is no device.
        server: capabilities of the server; None: there is no server.
        gate: the quality gate; None: the device model is good enough for every request.
        hedge_tools: allow both sides at once even for requests with tools, though their calls may have side effects.
        kept_out_by: the setting that keeps out the side that is None; "": there is no such side.
    """
    from_device = _absence("device", kept_out_by) if device is None else _why_not(request, device)
    if not from_device and gate is not None and not gate(request):
        from_device = "quality gate"
    from_server = _absence("server", kept_out_by) if server is None else _why_not(request, server)
    held_back = request.has_tools and not hedge_tools
    reasons = [f"device: {from_device}"] if from_device else []
    reasons += [f"server: {from_server}"] if from_server else []
    if held_back and not reasons:
        reasons.append("tools are not hedged")
    can_hedge = not (from_device or from_server or held_back)
    return Eligibility(device=not from_device, server=not from_server, hedge=can_hedge, reason="; ".join(reasons))


def _absence(side: Side, kept_out_by: str) -> str:
    return f"kept out by {kept_out_by}" if kept_out_by else f"no {side}"


def restrict(decision: Decision, eligibility: Eligibility) -> Decision:
    """Return the decision restricted to the eligible sides.

    If both sides may serve but not at once, the one that would start first is kept (the server if both would start at once). The caller
    must not use a side that is not eligible as the fallback.
    """
    if eligibility.device and not eligibility.server:
        return one_side(decision, "device", eligibility.reason)
    if eligibility.server and not eligibility.device:
        return one_side(decision, "server", eligibility.reason)
    if eligibility.hedge or decision.device_wait is None or decision.server_wait is None:
        return decision
    return one_side(decision, "device" if decision.device_wait < decision.server_wait else "server", eligibility.reason)


def _why_not(request: RequestFacts, side: SideFacts) -> str:
    """Return why a side can't serve a request; "" if it can."""
    wanted = request.prompt_tokens + (1 if side.shortens else request.max_tokens or 1)
    if side.context_tokens is not None and wanted > side.context_tokens:
        return f"{wanted} tokens in a context of {side.context_tokens}"
    needs = (
        ("images", request.has_images, side.images),
        ("n > 1", request.choices > 1, side.choices),
        ("tools", request.has_tools, side.tools),
        ("json schema", request.has_json_schema, side.json_schema),
    )
    missing = [name for name, is_wanted, is_offered in needs if is_wanted and not is_offered]
    return ", ".join(missing if side.all_fields else [*missing, *request.server_fields])
