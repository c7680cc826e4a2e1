"""Token estimates: bounds, shapes, and the sum over recorded answers against what was billed."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChoiceDelta, FunctionDelta, ToolCallDelta
from streamco.wire.estimate import ONE_TOKEN, estimate_delta, estimate_tokens
from tests.wire.events import read
from tests.wire.recorded import OPENAI_APIS, recordings


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), (" wonderful", 1), ("x" * 11, 3), ("x" * 40, 10), ("世" * 10, 1), ("世" * 12, 9), ("\ud83d" * 12, 3)],
)
def test_short_pieces_are_one_token_and_longer_ones_a_token_for_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(st.text(max_size=200))
def test_an_estimate_is_at_least_one_for_any_text_and_never_more_than_its_bytes(text: str) -> None:
    assert bool(text) <= estimate_tokens(text) <= len(text.encode())
    assert (estimate_tokens(text) <= 1) == (len(text) <= ONE_TOKEN)


def test_everything_in_a_delta_counts_and_reasoning_only_once() -> None:
    call = ToolCallDelta(function=FunctionDelta(name="f", arguments="{"))
    delta = ChoiceDelta(
        "a", reasoning="r", reasoning_content="r", refusal="no", tool_calls=[call, ToolCallDelta()], function_call=call.function
    )
    assert estimate_delta(delta) == 1 + 1 + 1 + 2 + 2
    assert estimate_delta(ChoiceDelta(role="assistant", content="")) == 0


def test_the_median_recorded_answer_is_estimated_within_a_quarter_of_its_bill() -> None:
    errors = []
    for recording in recordings(apis=OPENAI_APIS):
        parser, chunks = read(recording.body, api=recording.api)
        usage = parser.usage
        if usage is None or usage.completion_tokens < 8:
            continue
        details = usage.completion_tokens_details
        shows_reasoning = any(c.delta.reasoning_content or c.delta.reasoning for chunk in chunks for c in chunk.choices)
        if details is None or not details.reasoning_tokens or shows_reasoning:
            errors.append(abs(math.log(max(1, parser.tokens) / usage.completion_tokens)))
    assert statistics.median(errors) < math.log(1.25)
