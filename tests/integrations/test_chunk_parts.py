"""What adapters read in chunks and reports."""

from __future__ import annotations

import json

from streamco.integrations.chunk_parts import ToolCallNumbers, report_fields, thinking_of
from streamco.openai_types import ChoiceDelta, ToolCallDelta
from tests.client.helpers import HELLO, opened, server


def test_thinking_has_two_names() -> None:
    found = [thinking_of(delta) for delta in (ChoiceDelta(reasoning_content="a"), ChoiceDelta(reasoning="b"), ChoiceDelta(content="c"))]
    assert found == ["a", "b", ""]


def numbers(*pieces: tuple[int | None, str | None]) -> list[int]:
    found = ToolCallNumbers()
    return [found.number(ToolCallDelta(index=index, id=identity)) for index, identity in pieces]


def test_the_index_of_a_tool_call_is_its_number() -> None:
    assert numbers((0, "a"), (0, None), (1, "b"), (0, None)) == [0, 0, 1, 0]


def test_without_an_index_an_id_begins_the_next_call() -> None:
    assert numbers((None, "a"), (None, None), (None, "b"), (None, None)) == [0, 0, 1, 1]
    assert numbers((None, None), (None, None)) == [0, 0]


async def test_a_report_becomes_values_that_json_has() -> None:
    async with opened(server=server()) as client:
        answer = await client.chat.completions.create(messages=HELLO)
    assert json.loads(json.dumps(report_fields(answer.report)))["winner"] == "server"
    assert report_fields(None) == {}
