"""What becomes of a raced answer whose endpoint fails."""

from __future__ import annotations

import pytest

from streamco.client.modes.race.plan import _failure_rule
from streamco.core.race.machine import OnFailure
from streamco.policies.eligibility import RequestFacts


@pytest.mark.parametrize(
    ("setting", "facts", "rule"),
    [
        (None, RequestFacts(prompt_tokens=1), "migrate"),
        (None, RequestFacts(prompt_tokens=1, has_tools=True), "raise"),
        (None, RequestFacts(prompt_tokens=1, has_json_schema=True), "raise"),
        ("restart", RequestFacts(prompt_tokens=1, has_tools=True), "restart"),
        ("migrate", RequestFacts(prompt_tokens=1, choices=2), "raise"),
    ],
)
def test_the_failure_rule_follows_the_setting_unless_there_are_choices(
    setting: OnFailure | None, facts: RequestFacts, rule: OnFailure
) -> None:
    assert _failure_rule(facts, setting, "warn") == rule
    assert _failure_rule(facts, setting, "raise") == "raise"
