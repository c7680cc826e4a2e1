"""OpenAI's JSON as our server writes it: read back by OpenAI's own client models and by our parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.chunks import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    Choice,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    FunctionCall,
    FunctionDelta,
    PromptTokensDetails,
    ToolCall,
    ToolCallDelta,
)
from streamco.wire.encoding import (
    DONE_EVENT,
    encode_chunk,
    encode_completion,
    encode_event,
    encode_models,
    encode_text_chunk,
    encode_text_completion,
    error_body,
)
from streamco.wire.failures import find_message, find_status
from tests.wire.events import read, text_of

USAGE = CompletionUsage(3, 4, 7)


def chunk_of(delta: ChoiceDelta, **fields: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="c", created=5, model="m", choices=[ChunkChoice(delta, **fields)])


def test_a_chunk_has_openais_fields_and_no_others() -> None:
    assert json.loads(encode_chunk(chunk_of(ChoiceDelta("Hi")))) == {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
    }


def test_the_first_and_last_deltas_look_like_openais() -> None:
    assert json.loads(encode_chunk(chunk_of(ChoiceDelta("", role="assistant"))))["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "",
    }
    last = json.loads(encode_chunk(chunk_of(ChoiceDelta(), finish_reason="stop")))["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")


def test_usage_is_null_in_every_chunk_but_the_last_where_it_was_asked_for() -> None:
    assert json.loads(encode_chunk(chunk_of(ChoiceDelta("a")), include_usage=True))["usage"] is None
    end = ChatCompletionChunk(id="c", usage=USAGE)
    for include_usage in (True, False):
        value = json.loads(encode_chunk(end, include_usage=include_usage))
        assert value["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        assert value["choices"] == []


def test_optional_fields_are_there_when_they_say_something() -> None:
    chunk = chunk_of(ChoiceDelta("a", reasoning_content="r"), token_ids=[1, 2], logprobs={"content": []})
    chunk.system_fingerprint, chunk.service_tier = "fp", "default"
    chunk.usage = CompletionUsage(1, 2, 3, PromptTokensDetails(cached_tokens=1))
    value = json.loads(encode_chunk(chunk))
    assert (value["system_fingerprint"], value["service_tier"]) == ("fp", "default")
    assert value["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert "completion_tokens_details" not in value["usage"]
    choice = value["choices"][0]
    assert (choice["token_ids"], choice["logprobs"], choice["delta"]["reasoning_content"]) == ([1, 2], {"content": []}, "r")


def test_another_object_name_is_corrected_without_changing_the_chunk() -> None:
    chunk = ChatCompletionChunk(object="chat.completion")
    assert json.loads(encode_chunk(chunk))["object"] == "chat.completion.chunk"
    assert chunk.object == "chat.completion"


@given(
    st.text(max_size=60) | st.sampled_from([',"usage":null', ',"token_ids":null}', '"tool_calls":null', '\\,"usage":null']), st.booleans()
)
def test_no_text_is_changed_by_cutting_out_empty_fields(text: str, include_usage: bool) -> None:
    call = ToolCallDelta(0, "1", "function", FunctionDelta(text, text))
    chunk = chunk_of(ChoiceDelta(text, reasoning=text, tool_calls=[call]), finish_reason=text)
    chunk.id = chunk.model = text
    value = json.loads(encode_chunk(chunk, include_usage=include_usage))
    choice = value["choices"][0]
    function = {"name": text, "arguments": text}
    assert choice["delta"] == {
        "content": text,
        "reasoning": text,
        "tool_calls": [{"index": 0, "id": "1", "type": "function", "function": function}],
    }
    assert (value["id"], value["model"], choice["finish_reason"]) == (text, text, text)
    message = ChatCompletionMessage(text, tool_calls=[ToolCall("1", FunctionCall(text, text))])
    whole = json.loads(encode_completion(ChatCompletion(text, [Choice(message)])))
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"] == function
    assert json.loads(encode_text_chunk(chunk))["choices"][0]["text"] == text


def test_a_whole_answer_has_openais_fields_and_no_others() -> None:
    completion = ChatCompletion("c", [Choice(ChatCompletionMessage("Hi"), finish_reason="stop")], 5, "m", usage=USAGE)
    assert json.loads(encode_completion(completion)) == {
        "id": "c",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "logprobs": None, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
    empty = json.loads(encode_completion(ChatCompletion("c", [Choice(ChatCompletionMessage(None))])))
    assert "usage" not in empty
    assert empty["choices"][0]["message"]["content"] is None


def test_legacy_completions_have_text_instead_of_a_message() -> None:
    head = {"id": "c", "object": "text_completion", "created": 5, "model": "m"}
    choice = {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": None}
    assert json.loads(encode_text_chunk(chunk_of(ChoiceDelta("Hi")))) == {**head, "choices": [choice]}
    assert json.loads(encode_text_chunk(chunk_of(ChoiceDelta("Hi"), token_ids=[3])))["choices"] == [{**choice, "token_ids": [3]}]
    assert json.loads(encode_text_chunk(chunk_of(ChoiceDelta()), include_usage=True)) == {
        **head,
        "choices": [{**choice, "text": ""}],
        "usage": None,
    }
    completion = ChatCompletion(
        "c", [Choice(ChatCompletionMessage("Hi"), finish_reason="length")], 5, "m", usage=USAGE, system_fingerprint="fp"
    )
    assert json.loads(encode_text_completion(completion)) == {
        **head,
        "choices": [{**choice, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "system_fingerprint": "fp",
    }


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_our_parser_reads_back_the_stream_we_write(api: str) -> None:
    encode = encode_chunk if api == "chat" else encode_text_chunk
    chunks = [
        chunk_of(ChoiceDelta("Hel\nlo")),
        chunk_of(ChoiceDelta("", None), finish_reason="stop"),
        ChatCompletionChunk(id="c", usage=USAGE),
    ]
    body = b"".join(encode_event(encode(chunk, include_usage=True)) for chunk in chunks) + DONE_EVENT
    parser, found = read(body, api=api)
    assert text_of(found) == "Hel\nlo"
    assert (parser.finish_reason, parser.usage, parser.is_done, parser.error) == ("stop", USAGE, True, None)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"), (429, "rate_limit_error")]
)
def test_errors_have_openais_shape_and_our_client_understands_them(status: int, kind: str) -> None:
    body = json.loads(error_body("n: expected 1, got 2", status=status, param="n"))
    assert body == {"error": {"message": "n: expected 1, got 2", "type": kind, "param": "n", "code": None}}
    assert (find_status(body), find_message(body)) == (status, "n: expected 1, got 2")


def test_server_errors_and_own_kinds_and_codes() -> None:
    assert json.loads(error_body("x", status=503))["error"]["type"] == "server_error"
    own = json.loads(error_body("x", status=400, kind="my_error", code="context_length_exceeded"))["error"]
    assert (own["type"], own["code"]) == ("my_error", "context_length_exceeded")
    parser, _ = read(encode_event(error_body("busy", status=503, code="503")))
    assert parser.error is not None
    assert "as status 503" in str(parser.error)


def test_the_list_of_models() -> None:
    assert json.loads(encode_models(["a", "b"], created=7)) == {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 7, "owned_by": "streamco"} for name in ("a", "b")],
    }


@pytest.mark.peer
def test_openais_own_models_accept_everything_we_write() -> None:
    from openai.types import Completion, Model
    from openai.types.chat import ChatCompletion as TheirCompletion
    from openai.types.chat import ChatCompletionChunk as TheirChunk

    call = ToolCallDelta(0, "1", "function", FunctionDelta("f", "{}"))
    chunk = chunk_of(ChoiceDelta("Hi", "assistant", tool_calls=[call]), finish_reason="tool_calls")
    assert TheirChunk.model_validate_json(encode_chunk(chunk), strict=True).choices[0].delta.content == "Hi"
    message = ChatCompletionMessage("Hi", tool_calls=[ToolCall("1", FunctionCall("f", "{}"))])
    completion = ChatCompletion("c", [Choice(message, finish_reason="stop")], 5, "m", usage=USAGE)
    assert TheirCompletion.model_validate_json(encode_completion(completion), strict=True).choices[0].message.content == "Hi"
    assert Completion.model_validate_json(encode_text_completion(completion), strict=True).choices[0].text == "Hi"
    for model in json.loads(encode_models(["a"], created=7))["data"]:
        assert Model.model_validate(model, strict=True).id == "a"
