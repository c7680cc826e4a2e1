"""Eligibility: which sides can serve a request at all. This is checked before the dispatch policy chooses.

A request goes to both sides only if both can serve it. Otherwise it goes to the side that can, and the report gives the reason. A request
gate keeps requests away from a device model that isn't good enough for them. The paper assumes a device model that is good enough for all
requests (DiSCo section 6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from streamco.config import Options
from streamco.errors import CONTEXT_EXCEEDED, ConfigError
from streamco.policies.dispatch import Decision, Side, one_side

__all__ = [
    "Eligibility",
    "Exclusion",
    "Gate",
    "RequestGate",
    "RequestFacts",
    "SideFacts",
    "check_eligibility",
    "exclusions",
    "restrict",
    "why_late",
    "why_refused",
]

_NAMED_PARTS = 3  # how many parts that aren't text a reason names
_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9_]")


class RequestFacts(Struct, frozen=True, kw_only=True):
    """The properties of a request that decide which side can serve it.

    Args:
        prompt_tokens: the prompt's length in the device's tokens, with the template. If the device can't count, this is the length in the
            server's tokens, or an estimate.
        is_estimated: True if ``prompt_tokens`` is an estimate, which may be far off. An estimate helps to choose between sides but never
            rules a side out.
        counts: the prompt's length by each endpoint's own tokenizer, by endpoint name. Endpoints that can't count are left out.
        max_tokens: maximum number of tokens in the answer, or None if no limit was requested.
        prompt_chars: number of characters in the prompt, or None if not counted.
        task: the caller's name for the kind of task, or None if none was given.
        choices: number of choices requested, OpenAI's ``n``.
        server_fields: names of the fields that only a server honours.
        other_parts: place and type of each message part that isn't text, as in "messages[1].content[0]: type 'image_url'".
    """

    prompt_tokens: int
    is_estimated: bool = False
    counts: Mapping[str, int] = {}
    max_tokens: int | None = None
    prompt_chars: int | None = None
    task: str | None = None
    has_images: bool = False
    has_tools: bool = False
    has_json_schema: bool = False
    choices: int = 1
    server_fields: tuple[str, ...] = ()
    other_parts: tuple[str, ...] = ()


class SideFacts(Struct, frozen=True, kw_only=True):
    """What a side can do.

    Args:
        context_tokens: maximum length of prompt and answer together, or None if not known.
        prompt_tokens: the prompt's length by this side's own tokenizer. None means that ``RequestFacts.prompt_tokens`` is used.
        is_estimated: True if that length is an estimate. If it exceeds the context, the side becomes the fallback of a side that has room.
        shortens: True if the side cuts an answer that is too long for its context, False if it refuses the request.
        all_fields: True if the side knows every field of a request, or reports the fields that it doesn't know itself.
    """

    context_tokens: int | None = None
    prompt_tokens: int | None = None
    is_estimated: bool = False
    shortens: bool = False
    tools: bool = False
    json_schema: bool = False
    images: bool = False
    choices: bool = False
    all_fields: bool = True


Gate = Callable[[RequestFacts], bool]  # returns True if the device model is good enough for the request


class RequestGate(Options, frozen=True, kw_only=True):
    """A request gate made of limits. The device is used only if a request is within every limit that is set.

    Args:
        longest_prompt_tokens: longer prompts are kept away from the device.
        longest_prompt_chars: the same limit in characters. A request whose characters weren't counted passes.
        tasks: the tasks for which the device model is good enough. A request without a task doesn't pass.
    """

    longest_prompt_tokens: int | None = None
    longest_prompt_chars: int | None = None
    tasks: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for field in ("longest_prompt_tokens", "longest_prompt_chars"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ConfigError(f"request gate: {field}: expected >= 0 or None, got {value!r}")

    def __call__(self, request: RequestFacts) -> bool:
        """Return True if the device model is good enough for this request."""
        if self.longest_prompt_tokens is not None and request.prompt_tokens > self.longest_prompt_tokens:
            return False
        if self.longest_prompt_chars is not None and (request.prompt_chars or 0) > self.longest_prompt_chars:
            return False
        return self.tasks is None or request.task in self.tasks


class Exclusion(Struct, frozen=True):
    """One reason why a side can't serve a request.

    Args:
        text: the reason in words.
        field: the request's field that causes it, or None if no field does.
        code: OpenAI's machine-readable error code, or None if there is none.
    """

    text: str
    field: str | None = None
    code: str | None = None


class Eligibility(Struct, frozen=True, kw_only=True):
    """The sides that may serve a request.

    Args:
        device: True if the device may serve the request, first or as the fallback.
        server: True if the server may serve the request, first or as the fallback.
        hedge: True if both may run at once, False if one may only be the fallback of the other.
        first: the side that begins because, by an estimate, the prompt may be too long for the other side. None if the policy decides.
        reason: why a side or hedging is excluded, or "" if nothing is.
    """

    device: bool
    server: bool
    hedge: bool
    first: Side | None = None
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
    """Decide which sides can serve a request.

    Args:
        request: the request's properties.
        device: what the device can do, or None if there is no device.
        server: what the server can do, or None if there is no server.
        gate: the request gate. None means that the device model is good enough for every request.
        hedge_tools: True to allow both sides at once even for requests with tools, although tool calls may have side effects.
        kept_out_by: the setting that excludes the side that is None, or "" if no setting does.
    """
    from_device = _absence("device", kept_out_by) if device is None else _why_not(request, device)
    if not from_device and gate is not None and not gate(request):
        from_device = "request gate"
    from_server = _absence("server", kept_out_by) if server is None else _why_not(request, server)
    held_back = request.has_tools and not hedge_tools
    reasons = [f"device: {from_device}"] if from_device else []
    reasons += [f"server: {from_server}"] if from_server else []
    first: Side | None = None
    if device is not None and server is not None and not reasons:
        late: dict[Side, str] = {"device": why_late(request, device), "server": why_late(request, server)}
        if bool(late["device"]) != bool(late["server"]):
            first = "server" if late["device"] else "device"
            reasons = [f"{side}: {why}" for side, why in late.items() if why]
    if held_back and not reasons:
        reasons.append("tools are not hedged")
    can_hedge = not (from_device or from_server or held_back or first)
    return Eligibility(device=not from_device, server=not from_server, hedge=can_hedge, first=first, reason="; ".join(reasons))


def _absence(side: Side, kept_out_by: str) -> str:
    return f"kept out by {kept_out_by}" if kept_out_by else f"no {side}"


def restrict(decision: Decision, eligibility: Eligibility) -> Decision:
    """Restrict a decision to the eligible sides.

    If both sides may serve but not at once, only one is kept. That is ``eligibility.first`` or, if that is None, the side that would start
    first (the server if both would start at once). The caller must not use a side that is not eligible as the fallback.
    """
    if eligibility.first is not None:
        return one_side(decision, eligibility.first, eligibility.reason)
    if eligibility.device and not eligibility.server:
        return one_side(decision, "device", eligibility.reason)
    if eligibility.server and not eligibility.device:
        return one_side(decision, "server", eligibility.reason)
    if eligibility.hedge or decision.device_wait is None or decision.server_wait is None:
        return decision
    return one_side(decision, "device" if decision.device_wait < decision.server_wait else "server", eligibility.reason)


def why_late(request: RequestFacts, side: SideFacts) -> str:
    """Return why a side should only be a fallback, because by an estimate the request exceeds its context, or "" if it fits."""
    if not side.is_estimated or side.context_tokens is None:
        return ""
    wanted = _prompt_tokens(request, side) + _answer_tokens(request, side)
    if wanted <= side.context_tokens:
        return ""
    return f"about {wanted} tokens in a context of {side.context_tokens}"


def exclusions(request: RequestFacts, side: SideFacts) -> list[Exclusion]:
    """Return all reasons why a side can't serve a request, or [] if it can.

    A prompt's length is a reason only if the side's own tokenizer counted it, not if it is an estimate. Without a count, a prompt is only
    known not to be empty.
    """
    found: list[Exclusion] = []
    if side.context_tokens is not None:
        wanted = (1 if side.is_estimated else _prompt_tokens(request, side)) + _answer_tokens(request, side)
        if wanted > side.context_tokens:
            more_than = "more than " if side.is_estimated else ""
            found.append(Exclusion(f"{more_than}{wanted} tokens in a context of {side.context_tokens}", "messages", CONTEXT_EXCEEDED))
    if request.has_images and not side.images:
        place = request.other_parts[0].partition(":")[0] if request.other_parts else "messages"
        found.append(Exclusion(_listed(request.other_parts) or "images", place, "unsupported_value"))
    if request.choices > 1 and not side.choices:
        found.append(Exclusion("n > 1", "n", "unsupported_value"))
    if request.has_tools and not side.tools:
        found.append(Exclusion("tools", "tools", "unsupported_parameter"))
    if request.has_json_schema and not side.json_schema:
        found.append(Exclusion("json schema", "response_format", "unsupported_value"))
    if not side.all_fields:
        names = {each: _NOT_OF_NAMES.split(each, maxsplit=1)[0] or None for each in request.server_fields}
        found += [Exclusion(each, name, "unsupported_parameter") for each, name in names.items()]
    return found


def why_refused(request: RequestFacts, sides: Sequence[SideFacts]) -> Exclusion | None:
    """Return the reason that an error should name when none of these sides can serve a request, or None if there are no sides.

    If a shorter prompt would help, because one side has no other objection, the reason is the prompt's length. Otherwise it is an objection
    that all sides share, or else one of the last side's.
    """
    each = [exclusions(request, side) for side in sides]
    too_long = [found[0] for found in each if len(found) == 1 and found[0].code == CONTEXT_EXCEEDED]
    if too_long:
        return too_long[0]
    each = [[one for one in found if one.code != CONTEXT_EXCEEDED] for found in each]
    common = [one for one in (each[0] if each else ()) if all(one.field in {other.field for other in found} for found in each)]
    return next(iter([*common, *(each[-1] if each else ())]), None)


def _why_not(request: RequestFacts, side: SideFacts) -> str:
    """Return why a side can't serve a request, or "" if it can."""
    return ", ".join(each.text for each in exclusions(request, side))


def _prompt_tokens(request: RequestFacts, side: SideFacts) -> int:
    return request.prompt_tokens if side.prompt_tokens is None else side.prompt_tokens


def _answer_tokens(request: RequestFacts, side: SideFacts) -> int:
    """Return how many tokens of the answer a side must have room for."""
    return 1 if side.shortens else request.max_tokens or 1


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _NAMED_PARTS
    return ", ".join(parts[:_NAMED_PARTS]) + (f" and {more} more" if more > 0 else "")
