"""Reading a stream of named events, and what its events say together: the answer that a client would build."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk
from streamco.wire.answer_encoder import AnswerEncoder
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.sse import SSEParser

Json = dict[str, Any]


def read_named(*pieces: bytes) -> list[tuple[str, Json]]:
    """The events of a stream that arrives in these pieces; each one's data says its own type."""
    parser = SSEParser()
    found = [event for piece in pieces for event in parser.feed(piece)] + parser.close()
    events = [(event.event, json.loads(event.data)) for event in found]
    assert all(data["type"] == name for name, data in events), "each event's name is its type"
    return events


@dataclass
class Built:
    """An answer as its deltas build it: kinds and texts of the parts in their order, names and arguments of the calls."""

    parts: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def text(self, kind: str) -> str:
        return "".join(text for found, text in self.parts if found == kind)


def build_response(events: list[tuple[str, Json]]) -> Built:
    """The answer of a stream of the Responses API; each rule of its events is checked."""
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    texts: dict[int, str] = {}
    kinds: dict[int, str] = {}
    names: dict[int, str] = {}
    done: dict[int, Json] = {}
    for name, data in events:
        index = data.get("output_index", -1)
        if name == "response.output_item.added":
            assert index == len(kinds), "items begin in their order"
            kinds[index], texts[index] = data["item"]["type"], ""
            names[index] = data["item"].get("name", "")
            assert not any(data["item"].get(field) for field in ("content", "arguments")), "a new item is empty"
        elif name.endswith(".delta"):
            assert index not in done
            texts[index] += data["delta"]
        elif name.startswith("response.content_part"):
            shown = data["part"].get("text", data["part"].get("refusal"))
            assert shown == ("" if name.endswith("added") else texts[index])
        elif name == "response.output_item.done":
            done[index] = data["item"]
        elif name.endswith(".done"):
            assert texts[index] == data.get("text", data.get("arguments", data.get("refusal")))
    assert done.keys() == kinds.keys(), "each item ends"
    final = events[-1][1]["response"]
    assert final["output"] == [done[index] for index in sorted(done)]
    built = Built()
    for index, kind in sorted(kinds.items()):
        if kind == "function_call":
            built.calls.append((names[index], texts[index]))
        else:
            built.parts.append((kind, texts[index]))
    return built


def build_message(events: list[tuple[str, Json]]) -> Built:
    """The answer of a stream of the Messages API; each rule of its events is checked."""
    assert events[0][0] == "message_start"
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    blocks: dict[int, Json] = {}
    texts: dict[int, str] = {}
    over: set[int] = set()
    for name, data in events[1:-2]:
        if name == "ping":
            continue
        index = data["index"]
        if name == "content_block_start":
            assert index == len(blocks), "blocks begin in their order"
            blocks[index], texts[index] = data["content_block"], ""
            assert not any(data["content_block"].get(field) for field in ("text", "thinking", "input")), "a new block is empty"
        elif name == "content_block_delta":
            assert index not in over
            texts[index] += next(value for field, value in data["delta"].items() if field != "type")
        else:
            assert name == "content_block_stop"
            over.add(index)
    assert over == blocks.keys(), "each block ends"
    built = Built()
    for index, block in sorted(blocks.items()):
        if block["type"] == "tool_use":
            built.calls.append((block["name"], texts[index]))
        else:
            built.parts.append((block["type"], texts[index]))
    return built


def chunks_of(pieces: list[bytes]) -> list[ChatCompletionChunk]:
    """The chunks of a recorded chat stream that arrives in these pieces."""
    parser = ChatStreamParser()
    return [each for piece in pieces for each in parser.feed(piece)]


def encode_recording(encoder: AnswerEncoder, pieces: list[bytes]) -> bytes:
    """A recorded chat stream in the form of another API."""
    return b"".join([*[encoder.event(each) for each in chunks_of(pieces)], encoder.ending(None), encoder.done()])


def any_json(words: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON values, some of them made of these words."""
    return st.recursive(
        st.none() | st.booleans() | st.integers(-1, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3) | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
        max_leaves=25,
    )
