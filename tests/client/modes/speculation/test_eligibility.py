"""Whether a request can be speculated, and by which rule its drafts are verified."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.arguments import build_request
from streamco.client.modes.speculation.eligibility import acceptance_rule, resolve_sampling, why_not_speculable
from streamco.client.modes.speculation.options import SpeculationOptions
from streamco.client.request_facts import describe_request
from streamco.config import SamplingOptions
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.policies.acceptance import Rule, RuleKind

FACTS = VerifierFacts(model="large", rules=frozenset(RuleKind), draft_tokens=31, top_k=20, context_tokens=1000)
OPTIONS = SpeculationOptions(threshold=0.4)


def why_not(
    prompt: Any = "Why?", *, facts: VerifierFacts = FACTS, rule: Rule | None = None, is_logged: bool = False, **options: Any
) -> str:
    request = build_request(prompt, **options)
    described, models = describe_request(request, None, []), frozenset({"large", "alias"})
    return why_not_speculable(request, described, rule or Rule(), facts, context_tokens=800, models=models, is_logged=is_logged)


@pytest.mark.parametrize(
    ("options", "budget", "rule"),
    [
        ({"temperature": 0}, 1.0, Rule(RuleKind.GREEDY)),
        ({"temperature": 0.7, "top_k": 1}, 1.0, Rule(RuleKind.GREEDY)),
        ({"temperature": 0}, 0.3, Rule(RuleKind.THRESHOLD, threshold=0.4)),
        ({}, 1.0, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05)),
        ({}, 0.3, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05)),
        (
            {"temperature": 0.5, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "seed": -2},
            1.0,
            Rule(RuleKind.SAMPLE, 0.5, 0, 1.0, 0.0, seed=(1 << 32) - 2),
        ),
        ({"seed": -1}, 1.0, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05, seed=None)),
    ],
)
def test_the_rule_follows_from_sampling_and_budget(options: dict[str, Any], budget: float, rule: Rule) -> None:
    assert acceptance_rule(resolve_sampling(SamplingOptions(**options)), budget, OPTIONS) == rule


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"user": "me", "stream_options": {"include_usage": True}, "n": 1, "logprobs": False, "frequency_penalty": 0}, ""),
        (
            {"safety_identifier": "s", "prompt_cache_key": "k", "reasoning_effort": "none", "modalities": ["text"], "tool_choice": "auto"},
            "",
        ),
        ({"extra_body": {"provider": {"order": ["x"]}, "guided_regex": None}}, ""),
        ({"reasoning_effort": "low"}, "reasoning_effort can't be kept to"),
        ({"response_format": {"type": "text"}, "model": "alias", "stop": ["x"], "max_tokens": 700}, ""),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "a JSON schema"),
        ({"n": 2}, "2 choices"),
        ({"logit_bias": {"5": 1}}, "logit_bias can't be kept to"),
        ({"presence_penalty": 0.1}, "presence_penalty can't be kept to"),
        ({"top_logprobs": 2}, "top_logprobs can't be kept to"),
        ({"extra_body": {"ignore_eos": True}}, "ignore_eos can't be kept to"),
        ({"model": "other"}, "model other is another one than the verifier's"),
        ({"max_tokens": 900}, "tokens, room for 800"),
    ],
)
def test_what_drafts_cant_keep_to_is_told(options: dict[str, Any], reason: str) -> None:
    found = why_not(**options)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"extra_body": {"my_diary": 1}}, "a field that isn't known can't be kept to"),
        ({"reasoning_effort": "low"}, "reasoning_effort can't be kept to"),
        ({"model": "my_model"}, "model that was asked for is another one than the verifier's"),
        ({"n": 2}, "2 choices"),
    ],
)
def test_a_reason_for_the_log_has_no_words_of_the_callers(options: dict[str, Any], reason: str) -> None:
    assert why_not(**options, is_logged=True) == reason


def test_images_another_rule_and_a_smaller_context_there_are_told() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert why_not(image) == "messages[0].content[0]: type 'image_url'"
    greedy = VerifierFacts(model="large", rules=frozenset({RuleKind.GREEDY}), draft_tokens=31, top_k=0, context_tokens=100)
    assert why_not(facts=greedy, rule=Rule(RuleKind.SAMPLE, 0.8)) == "the verifier doesn't verify by sample"
    assert why_not(facts=greedy, max_tokens=99).endswith("room for 100")
