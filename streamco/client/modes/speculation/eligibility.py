"""Checks whether a request can be speculated, and chooses the acceptance rule for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from streamco.client.modes.speculation.options import SpeculationOptions
from streamco.client.request_facts import facts_for_log, logged_field
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.errors import MAX_NAME, shorten
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.eligibility import RequestFacts
from streamco.wire.known_fields import is_asked

__all__ = ["why_not_speculable", "resolve_sampling", "acceptance_rule"]

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"n": (1,), "logprobs": (False,), "parallel_tool_calls": (True, False)}  # besides the known ones


def resolve_sampling(sampling: SamplingOptions) -> SamplingOptions:
    """Return the options with the engine's defaults filled in, so that device, verifier and remote stream use the same distribution."""
    from streamco.engines.sampling import MIN_P, TEMPERATURE, TOP_K, TOP_P

    return replace(
        sampling,
        temperature=TEMPERATURE if sampling.temperature is None else sampling.temperature,
        top_k=TOP_K if sampling.top_k is None else max(0, sampling.top_k),
        top_p=TOP_P if sampling.top_p is None else sampling.top_p,
        min_p=MIN_P if sampling.min_p is None else sampling.min_p,
    )


def acceptance_rule(sampling: SamplingOptions, budget: float, options: SpeculationOptions) -> Rule:
    """Return the rule by which drafts of a request are verified.

    Args:
        sampling: options from ``resolve_sampling``.
        budget: share of the drafted tokens that are verified, 0..1.
        options: the options, which contain the threshold for the rule "threshold".
    """
    if sampling.temperature and sampling.top_k != 1:
        return Rule(
            RuleKind.SAMPLE,
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            min_p=sampling.min_p or 0.0,
            seed=None if sampling.fixed_seed is None else sampling.fixed_seed & 0xFFFFFFFF,
        )
    is_greedy = budget >= 1.0 or options.threshold >= 1.0
    return Rule(RuleKind.GREEDY) if is_greedy else Rule(RuleKind.THRESHOLD, threshold=options.threshold)


def why_not_speculable(
    request: Request,
    facts: RequestFacts,
    rule: Rule,
    verifier: VerifierFacts,
    *,
    context_tokens: int,
    models: frozenset[str],
    is_logged: bool = False,
) -> str:
    """Return why a request can't be speculated, or "" if it can.

    Args:
        request: the request.
        facts: its length and features.
        rule: the rule that its drafts would be verified by.
        verifier: the verifier's capabilities.
        context_tokens: number of tokens that the device can hold, for prompt and answer together.
        models: all names of the verifier's model.
        is_logged: True to return a reason for the log, without any text from the caller.
    """
    asked = (name for name, value in request.extra.items() if is_asked(name, value) and value not in _NEUTRAL.get(name, ()))
    if facts.has_tools:
        return "tools"
    if facts.has_json_schema:
        return "a JSON schema"
    if facts.has_images:
        return next(iter((facts_for_log(facts) if is_logged else facts).other_parts), "images")
    if facts.choices > 1:
        return f"{facts.choices} choices"
    if unknown := [*request.sampling.adjustments(), *sorted(set(asked) - {"response_format"})]:
        return f"{logged_field(unknown[0]) if is_logged else shorten(unknown[0], MAX_NAME)} can't be kept to"
    if request.model is not None and request.model not in models:
        name = "that was asked for" if is_logged else shorten(request.model, MAX_NAME)
        return f"model {name} is another one than the verifier's"
    if rule.kind not in verifier.rules:
        return f"the verifier doesn't verify by {rule.kind.name.lower()}"
    max_length = min(context_tokens, verifier.context_tokens or context_tokens)
    length = facts.prompt_tokens + (facts.max_tokens or 1)
    return f"{length} tokens, room for {max_length}" if length > max_length else ""
