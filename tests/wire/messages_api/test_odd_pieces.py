"""Pieces of content blocks as gateways send them, and pieces that no reader knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.openai_types import further_fields
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.assembler import assemble
from tests.wire.test_event_stream_parser import START, STOP, event, read
from tests.wire.test_odd_event_streams import TOOL_STOP, block, calls_of, message, piece


@pytest.mark.parametrize("is_typed", ["", "text", "text_delta"])
def test_a_piece_is_known_by_its_field_if_it_has_no_type(is_typed: str) -> None:
    def bare(index: int, kind: str, **fields: Any) -> bytes:
        return event("content_block_delta", index=index, delta={"type": kind, **fields} if kind else fields)

    search = block(3, "server_tool_use", id="s1", name="web_search") + bare(3, "", partial_json='{"q":') + bare(3, "", partial_json="1}")
    answer = message(
        START,
        block(0, "thinking", thinking=""),
        *[bare(0, "", thinking="hm"), bare(0, "", signature="c2ln")],
        event("content_block_start", index=1, content_block={"text": "A"}),
        *[bare(1, is_typed, text="B"), bare(1, "", citation={"url": "u"})],
        block(2, "tool_use", id="t1", name="f", input={}) + bare(2, "", partial_json='{"a":1}') + search,
        TOOL_STOP,
    )
    said = answer.choices[0].message
    assert (said.reasoning_content, said.content, calls_of(answer)) == ("hm", "AB", [("t1", "f", '{"a":1}')])
    assert said.model_extra["content_blocks"] == [
        {"index": 0, "type": "thinking", "signature": "c2ln"},
        {"index": 1, "type": "text", "citations": [{"url": "u"}]},
        {"index": 3, "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": 1}},
    ]


def test_input_that_is_an_object_is_a_calls_arguments() -> None:
    body = block(0, "tool_use", id="t1", name="f", input={}) + piece(0, "input_json_delta", partial_json={"a": 1})
    assert calls_of(message(START, body, TOOL_STOP)) == [("t1", "f", '{"a":1}')]


@pytest.mark.parametrize(
    ("events", "blocks"),
    [
        (
            [block(0, "compaction", content=""), piece(0, "compaction_delta", content="sum"), piece(0, "compaction_delta", content="mary")],
            [{"index": 0, "type": "compaction", "content": "summary"}],
        ),
        ([block(0, "text", text=""), piece(0, "unheard_of", data="x")], [{"index": 0, "type": "text", "data": "x"}]),
        ([piece(2, "unheard_of_delta", data="x")], [{"index": 2, "type": "unheard_of", "data": "x"}]),
        ([piece(2, "text_delta", text=["x"])], [{"index": 2, "type": "text", "text": ["x"]}]),
        ([piece(2, "input_json_delta", partial_json='{"a":1}')], [{"index": 2, "type": "tool_use", "input": {"a": 1}}]),
    ],
)
def test_pieces_that_nobody_understands_reach_the_caller_and_are_progress(events: list[bytes], blocks: list[dict[str, Any]]) -> None:
    parser = MessageStreamParser()
    chunks = read(parser, START, *events)
    assert parser.has_progress
    chunks += read(parser, STOP)
    assert (parser.is_done, assemble(chunks).choices[0].message.model_extra["content_blocks"]) == (True, blocks)


@pytest.mark.parametrize("fields", [{}, {"type": "text_delta"}, {"type": "text_delta", "text": ""}, {"type": "unheard_of", "data": []}])
def test_a_piece_without_anything_is_no_progress(fields: dict[str, Any]) -> None:
    parser = MessageStreamParser()
    read(parser, START, block(0, "text", text=""))
    assert parser.feed(event("content_block_delta", index=0, delta=fields)) == []
    assert not parser.has_progress


def test_each_citation_comes_once_and_the_message_has_them_all() -> None:
    parser = MessageStreamParser()
    chunks = read(parser, START, block(0, "text", text="Hi"))
    cited = [{"url": "u"}, {"url": "u"}, {"url": "v"}] + [{"url": f"u{number}"} for number in range(20_000)]
    for each in cited:
        (chunk,) = parser.feed(piece(0, "citations_delta", citation=each))
        assert further_fields(chunk.choices[0].delta) == {"content_blocks": [{"index": 0, "type": "text", "citations": [each]}]}
        chunks.append(chunk)
    more = [block(1, "text", text="!"), piece(1, "citations_delta", citation={"url": "w"})]
    said = assemble(chunks + read(parser, *more, STOP)).choices[0].message
    assert said.model_extra["content_blocks"] == [
        {"index": 0, "type": "text", "citations": cited},
        {"index": 1, "type": "text", "citations": [{"url": "w"}]},
    ]


def test_a_whole_message_has_its_signatures_and_citations_and_may_be_one_text() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    body = {"type": "message", "content": [thought, {"type": "text", "text": "Hi", "citations": [{"url": "u"}]}], "stop_reason": "end_turn"}
    said = message(json.dumps(body).encode()).choices[0].message
    assert (said.reasoning_content, said.content) == ("hm", "Hi")
    assert said.model_extra["content_blocks"] == [
        {"index": 0, "type": "thinking", "signature": "c2ln"},
        {"index": 1, "type": "text", "citations": [{"url": "u"}]},
    ]
    assert message(json.dumps({**body, "content": "Hi"}).encode()).choices[0].message.content == "Hi"
