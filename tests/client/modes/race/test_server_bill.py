"""Which tokens a server bills, by what it says that it counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.modes.race.server_bill import billed_completion, has_counted
from streamco.openai_types import CompletionTokensDetails, CompletionUsage

COUNTS = st.integers(0, 2**24)


def usage(prompt: int, completion: int, total: int, reasoning: int | None = None) -> CompletionUsage:
    details = None if reasoning is None else CompletionTokensDetails(reasoning_tokens=reasoning)
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total, completion_tokens_details=details)


def test_zero_is_a_count_only_if_nothing_came() -> None:
    assert not has_counted(None, 5)
    assert not has_counted(usage(60, 0, 72), 5)
    assert not has_counted(usage(60, 0, 72, reasoning=12), 5)
    assert has_counted(usage(60, 0, 60), 0)
    assert has_counted(usage(60, 0, 72, reasoning=12), 0)
    assert has_counted(usage(60, 5, 65), 5)


@pytest.mark.parametrize(
    ("counted", "billed"),
    [
        (usage(10, 50, 60), 50),
        (usage(10, 50, 60, reasoning=30), 50),  # inside the completion: OpenAI
        (usage(331, 11, 613, reasoning=271), 282),  # in the total: xAI
        (usage(28, 5, 33, reasoning=48), 53),  # in neither: Gemini by Vercel's gateway
        (usage(10, 5, 115), 105),  # without details: gateways to Gemini
        (usage(10, 50, 90, reasoning=20), 70),  # no more than the reasoning that is named
        (usage(10, 50, 10_000_000), 50),  # no model thinks for so long
        (usage(10, 5, 15, reasoning=10_000_000), 5),
        (usage(10, 50, 20), 50),
        (usage(0, 0, 0), 0),
    ],
)
def test_reasoning_is_billed_once_wherever_it_is_counted(counted: CompletionUsage, billed: int) -> None:
    assert billed_completion(counted) == billed


@given(COUNTS, COUNTS, COUNTS, st.none() | COUNTS)
def test_what_is_billed_is_the_completion_and_at_most_the_longest_reasoning(
    prompt: int, completion: int, total: int, reasoning: int | None
) -> None:
    billed = billed_completion(usage(prompt, completion, total, reasoning))
    assert completion <= billed <= completion + 2**17
    if reasoning:
        assert billed <= completion + reasoning
