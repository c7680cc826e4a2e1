"""Request bodies: what is asked for, what is left out, and that the caller's objects stay as they are."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.wire.openai.requests import build_chat_request, build_completion_request, encode_request

MESSAGES: list[dict[str, Any]] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
FULL = SamplingOptions(temperature=0.0, top_p=0.9, top_k=40, min_p=0.05, seed=7, max_tokens=16, stop=("\n", "END"))


def test_a_plain_chat_request_asks_for_a_stream_with_usage_and_nothing_else() -> None:
    body = build_chat_request(MESSAGES, model="m")
    assert body == {"messages": MESSAGES, "model": "m", "stream": True, "stream_options": {"include_usage": True}}


def test_a_plain_completion_request_takes_text_or_ids() -> None:
    assert build_completion_request("Once", model="m")["prompt"] == "Once"
    assert build_completion_request((1, 2, 3), model="m")["prompt"] == [1, 2, 3]


def test_sampling_options_that_are_set_are_sent_also_a_zero() -> None:
    body = build_chat_request(MESSAGES, model="m", sampling=FULL)
    sent = {"temperature": 0.0, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "max_tokens": 16, "stop": ["\n", "END"]}
    assert {name: body[name] for name in sent} == sent
    assert build_completion_request("x", model="m", sampling=FULL)["max_tokens"] == 16


def test_the_token_limit_goes_by_the_name_the_server_wants() -> None:
    body = build_chat_request(MESSAGES, model="m", sampling=FULL, max_tokens_field="max_completion_tokens")
    assert body["max_completion_tokens"] == 16
    assert "max_tokens" not in body


def test_a_request_without_stream_has_no_stream_options() -> None:
    body = build_chat_request(MESSAGES, model="m", stream=False, extra={"stream_options": {"include_usage": True}})
    assert body["stream"] is False
    assert "stream_options" not in body


def test_usage_is_not_asked_for_where_the_server_refuses_it() -> None:
    assert "stream_options" not in build_chat_request(MESSAGES, model="m", include_usage=False)


def test_a_missing_model_is_left_out() -> None:
    assert "model" not in build_chat_request(MESSAGES, model=None)
    assert "model" not in build_completion_request("x", model=None)


def test_extra_fields_win_except_over_stream() -> None:
    extra = {"model": "other", "temperature": 1, "tools": [], "stream": False, "stream_options": {"continuous_usage_stats": True}}
    body = build_chat_request(MESSAGES, model="m", sampling=FULL, extra=extra)
    assert (body["model"], body["temperature"], body["tools"], body["stream"]) == ("other", 1, [], True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert build_chat_request(MESSAGES, model="m", extra={"stream_options": {"include_usage": False}})["stream_options"] == {
        "include_usage": False
    }
    assert build_chat_request(MESSAGES, model="m", extra={"stream_options": None})["stream_options"] == {"include_usage": True}


def test_the_callers_objects_are_not_changed() -> None:
    messages, extra = copy.deepcopy(MESSAGES), {"stream_options": {"x": 1}, "tools": [{"type": "function"}]}
    before = copy.deepcopy((messages, extra))
    body = build_chat_request(messages, model="m", sampling=FULL, extra=extra)
    body["messages"].append("more")
    body["stream_options"]["y"] = 2
    body["n"] = 3
    assert (messages, extra) == before


def test_what_has_no_json_form_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        encode_request(build_chat_request(MESSAGES, model="m", extra={"x": object()}))


def test_a_body_is_plain_json() -> None:
    assert json.loads(encode_request(build_completion_request([1], model="m"))) == build_completion_request([1], model="m")


def test_penalties_and_biases_are_fields_of_their_own() -> None:
    sampling = SamplingOptions(frequency_penalty=0.5, presence_penalty=0, logit_bias=((5, 1), (7, -100)))
    body = build_chat_request(MESSAGES, model="m", sampling=sampling)
    assert (body["frequency_penalty"], body["presence_penalty"], body["logit_bias"]) == (0.5, 0, {"5": 1, "7": -100})


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}'])
def test_a_call_without_arguments_is_sent_back_with_an_empty_object(arguments: str) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}},
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": ""}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    (sent,) = build_chat_request([message], model="m")["messages"]
    assert [call.get("function", {}).get("arguments") for call in sent["tool_calls"]] == [arguments or "{}", None]
    assert sent["tool_calls"][1] is calls[1]
    assert message["tool_calls"] is calls
    assert calls[0]["function"]["arguments"] == arguments  # type: ignore[index]
