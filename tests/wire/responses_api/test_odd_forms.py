"""Responses whose texts come in forms that the API doesn't have, and responses that nobody understands."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.errors import EndpointProtocolError
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from tests.wire.test_event_stream_parser import event, read
from tests.wire.test_odd_event_streams import BARE, CREATED, DELTAS, ITEM, PART, response

PLAIN = {"type": "text", "text": "whole text"}
COMPLETED_WITH: dict[str, dict[str, Any]] = {
    "a text as content": {"output": [{**ITEM, "content": "whole text"}]},
    "texts as parts": {"output": [{**ITEM, "content": ["whole", " text"]}]},
    "one part without a list": {"output": [{**ITEM, "content": PART}]},
    "parts of type text": {"output": [{**ITEM, "content": [PLAIN]}]},
    "parts without a type": {"output": [{**ITEM, "content": [{"text": "whole text"}]}]},
    "an item without a type": {"output": [{"role": "assistant", "content": [PART]}]},
    "one item without a list": {"output": ITEM},
    "the text beside the output": {"output": [], "output_text": "whole text"},
    "the text beside its item": {"output": [ITEM], "output_text": "whole text"},
}


@pytest.mark.parametrize("form", COMPLETED_WITH)
@pytest.mark.parametrize("before", [[], [event("response.content_part.done", output_index=0, content_index=0, part=PLAIN)]])
def test_a_responses_text_is_read_in_neighbouring_forms(form: str, before: list[bytes]) -> None:
    if form == "texts as parts" and before:
        return  # such a server sends no other parts
    answer = response(CREATED, *before, event("response.completed", response=COMPLETED_WITH[form]))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("whole text", "stop")
    assert not answer.choices[0].message.model_extra


def test_a_part_of_type_text_in_reasoning_is_reasoning() -> None:
    thought = {"type": "reasoning", "id": "rs_1"}
    part = event("response.content_part.done", item_id="rs_1", output_index=0, content_index=0, part=PLAIN)
    added = event("response.output_item.added", output_index=0, item=thought)
    for events in ([added, part], [event("response.output_item.done", output_index=0, item={**thought, "content": [PLAIN]})]):
        said = response(CREATED, *events, BARE).choices[0].message
        assert (said.content, said.reasoning_content) == (None, "whole text")


@pytest.mark.parametrize(
    "output",
    [
        [{**ITEM, "content": [{"type": "output_text", "text": {"value": "hello"}}]}],
        [{**ITEM, "content": [{"type": "unheard_of", "data": "hello"}]}],
        [{**ITEM, "content": 5}],
        ["hello"],
        "hello",
    ],
)
def test_a_response_of_which_nothing_was_understood_is_no_empty_answer(output: Any) -> None:
    parser = ResponseStreamParser()
    read(parser, CREATED, event("response.completed", response={"status": "completed", "output": output}))
    assert isinstance(parser.error, EndpointProtocolError)
    assert not parser.is_complete
    answer = response(CREATED, *DELTAS, event("response.completed", response={"output": output}))
    assert answer.choices[0].message.content == "whole text"


@pytest.mark.parametrize("content", [[], "", None, [{**PART, "text": ""}]])
def test_a_response_without_text_is_a_whole_answer_if_nothing_was_lost(content: Any) -> None:
    answer = response(CREATED, event("response.completed", response={"output": [{**ITEM, "content": content}]}))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (None, "stop")


def test_a_delta_that_is_no_text_is_no_empty_answer() -> None:
    parser = ResponseStreamParser()
    read(parser, CREATED, event("response.output_text.delta", delta={"text": "hello"}), BARE)
    assert isinstance(parser.error, EndpointProtocolError)
