"""Facts that a request's own fields give."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.arguments import build_request
from streamco.client.request_facts import count_prompt, describe_request, facts_for_log, logged_field, takes_long
from streamco.endpoints.base import Capabilities, Request
from streamco.events import TextCount
from streamco.policies.eligibility import RequestFacts
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.wire.known_fields import NEUTRAL_VALUES
from tests.client.helpers import device, opened, server


def facts_of(messages: Any = "hello", **options: Any) -> Any:
    return describe_request(build_request(messages, **options), None, [])


def test_plain_text_needs_nothing_special() -> None:
    facts = facts_of("How are you?", max_tokens=9)
    assert (facts.has_images, facts.has_tools, facts.has_json_schema, facts.choices) == (False, False, False, 1)
    assert (facts.max_tokens, facts.prompt_chars) == (9, 12)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tools": [{"type": "function"}]}, "has_tools"),
        ({"functions": [{"name": "f"}]}, "has_tools"),
        ({"response_format": {"type": "json_schema"}}, "has_json_schema"),
        ({"response_format": {"type": "json_object"}}, "has_json_schema"),
        ({"response_format": {"type": ["text"]}}, "has_json_schema"),
    ],
)
def test_what_only_some_endpoints_can_do_is_found(options: dict[str, Any], name: str) -> None:
    assert getattr(facts_of(**options), name)


def test_a_response_format_of_text_is_none() -> None:
    assert not facts_of(response_format={"type": "text"}).has_json_schema


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([{"type": "image_url"}], ["content[0]: type 'image_url'"]),
        (({"type": "input_audio"},), ["content[0]: type 'input_audio'"]),
        (
            [{"type": "text", "text": "x"}, {"type": "file"}, {"type": "refusal", "refusal": "no"}],
            ["content[1]: type 'file'", "content[2]: type 'refusal'"],
        ),
        ([{"type": "input_text", "text": "x"}], ["content[0]: type 'input_text'"]),
        (
            ["a bare text", 5, None, ["x"]],
            [f"content[{n}]: {name} in place of an object" for n, name in enumerate(["a string", "a number", "null", "a list"])],
        ),
        ([{"text": "x"}, {"type": 5}], ["content[0]: no type", "content[1]: no type"]),
    ],
)
def test_parts_that_are_not_text_are_named_by_type_and_place(parts: Any, named: list[str]) -> None:
    facts = facts_of([{"role": "system", "content": "s"}, {"role": "user", "content": parts}])
    assert facts.has_images
    assert facts.other_parts == tuple(f"messages[1].{each}" for each in named)


def test_only_known_types_of_parts_may_be_logged() -> None:
    facts = facts_of([{"role": "user", "content": [{"type": "image_url"}, {"type": "my diary"}, "x"]}])
    assert facts.other_parts[1] == "messages[0].content[1]: type 'my diary'"
    assert facts_for_log(facts).other_parts == (
        "messages[0].content[0]: type 'image_url'",
        "messages[0].content[1]: a type that isn't known",
        "messages[0].content[2]: a string in place of an object",
    )


def test_a_long_type_of_a_part_is_shortened() -> None:
    (named,) = facts_of([{"role": "user", "content": [{"type": "x" * 5000}]}]).other_parts
    assert len(named) < 200


def test_the_length_is_the_devices_count_else_the_servers_else_an_estimate() -> None:
    request = build_request("x" * 400)
    assert describe_request(request, device(tokens=3), [server(tokens=4)]).prompt_tokens == 3
    assert describe_request(request, device(tokens=None), [server(tokens=4), server(tokens=5)]).prompt_tokens == 4
    assert describe_request(request, device(tokens=None), [server(), server(tokens=5)]).prompt_tokens == 105
    assert describe_request(Request(prompt_ids=[1, 2, 3]), None, []).prompt_tokens == 3
    assert describe_request(Request(prompt="y" * 40), None, []).prompt_tokens == 11


def test_a_count_is_an_endpoints_own_and_all_else_is_an_estimate() -> None:
    request = build_request("x" * 400)
    wide, narrow = server(tokens=4), server(tokens=5, name="narrow", capabilities=Capabilities(context_tokens=100))
    counted = describe_request(request, device(tokens=3), [wide, narrow])
    assert (counted.prompt_tokens, counted.is_estimated, counted.counts) == (3, False, {"device": 3, "server": 4, "narrow": 5})
    guessed = describe_request(request, device(tokens=None), [Guessing("far", []), narrow])
    assert (guessed.prompt_tokens, guessed.is_estimated, guessed.counts) == (77, True, {"narrow": 5})
    unknown = describe_request(request, None, [server()])
    assert (unknown.prompt_tokens, unknown.is_estimated, unknown.counts) == (105, True, {})
    ids = describe_request(Request(prompt_ids=[1, 2, 3]), None, [server()])
    assert (ids.prompt_tokens, ids.is_estimated) == (3, False)


def test_the_task_is_the_one_that_the_caller_named() -> None:
    assert facts_of("hello").task is None
    assert facts_of("hello", extra_headers={"X-Streamco-Task": "title"}).task == "title"


def test_messages_without_content_count_as_messages() -> None:
    assert facts_of([{"role": "assistant", "content": None, "tool_calls": []}]).prompt_tokens == 5


def test_long_prompts_are_told_from_short_ones() -> None:
    assert not takes_long(build_request("x" * 4096))
    assert takes_long(build_request("x" * 4097))
    assert takes_long(build_request([{"role": "user", "content": [{"type": "text", "text": "x" * 5000}]}]))
    assert not takes_long(Request(prompt_ids=list(range(10_000))))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 5000}}
    assert takes_long(build_request([{"role": "assistant", "content": None, "tool_calls": [call]}]))


@pytest.mark.parametrize(
    "options",
    [
        {"reasoning_effort": "low"},
        {"verbosity": "low"},
        {"web_search_options": {}},
        {"audio": {"voice": "x"}},
        {"modalities": ["text", "audio"]},
        {"prediction": {"type": "content", "content": "x"}},
        {"moderation": {"model": "m"}},
        {"extra_body": {"guided_regex": "a*"}},
    ],
)
def test_fields_that_only_a_server_keeps_to_are_found(options: dict[str, Any]) -> None:
    (name,) = options.get("extra_body", options)
    assert facts_of(**options).server_fields == (name,)


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 1, "presence_penalty": 1, "logprobs": True, "top_logprobs": 2},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"modalities": ["text"], "reasoning_effort": "none", "audio": None},
        {"extra_body": {"provider": {"order": ["x"]}, "top_k": 3, "repetition_penalty": 1, "guided_regex": None}},
    ],
)
def test_fields_that_a_device_keeps_to_or_may_ignore_are_none(options: dict[str, Any]) -> None:
    assert facts_of(**options).server_fields == ()


@pytest.mark.parametrize("name", sorted(NEUTRAL_VALUES.keys() - {"tools", "functions"}))
def test_a_value_that_asks_for_nothing_keeps_no_device_out(name: str) -> None:
    for value in NEUTRAL_VALUES[name]:
        assert facts_of(extra_body={name: value}).server_fields == ()
    assert facts_of(extra_body={name: ["asked"]}).server_fields == (name,)


@pytest.mark.parametrize(
    ("field", "logged"),
    [
        ("reasoning_effort", "reasoning_effort"),
        ("guided_regex", "guided_regex"),
        ("logit_bias (its token ids are another vocabulary's)", "logit_bias (its token ids are another vocabulary's)"),
        ("response_format: schema: #/properties/wage: expected none, got not", "a response_format that it can't follow"),
        ("my_diary", "a field that isn't known"),
        ("reasoning_effort\n", "a field that isn't known"),
    ],
)
def test_only_known_names_of_fields_may_be_logged(field: str, logged: str) -> None:
    assert logged_field(field) == logged
    facts = RequestFacts(prompt_tokens=1, server_fields=(field, field))
    assert facts_for_log(facts).server_fields == (logged,)


def test_facts_that_quote_nothing_are_logged_as_they_are() -> None:
    facts = RequestFacts(prompt_tokens=1, server_fields=("audio", "verbosity"))
    assert facts_for_log(facts) is facts


def test_a_bias_is_for_one_vocabulary() -> None:
    request = build_request("x", logit_bias={"5": 1})
    own, same, other = (Capabilities(vocabulary=name) for name in ("v", "v", "w"))
    assert describe_request(request, device(capabilities=own), []).server_fields == ()
    assert describe_request(request, device(capabilities=own), [server(capabilities=same)]).server_fields == ()
    (reason,) = describe_request(request, device(capabilities=own), [server(capabilities=other)]).server_fields
    assert reason.startswith("logit_bias")


class Guessing(ScriptedEndpoint):
    """A scripted endpoint that can't count, and estimates each prompt at 77 tokens."""

    def estimate_tokens(self, _request: Request) -> int:
        return 77


class Counting(ScriptedEndpoint):
    """A scripted endpoint that knows its model's vocabulary."""

    def count_text(self, _text: str) -> TextCount:
        return TextCount(0, "engine")


def test_a_prompt_is_counted_by_the_device_and_else_by_the_first_server_that_can() -> None:
    near = Counting("device", [], kind="device", tokens=7)
    far, farther = server(tokens=None), server(tokens=9, name="farther")
    assert count_prompt(request("Hi"), near, [far]) == TextCount(7, "engine")
    assert count_prompt(request("Hi"), None, [far, farther]) == TextCount(9, "tokenizer")
    assert count_prompt(request("Hi"), device(tokens=None), [farther]) == TextCount(9, "tokenizer")
    assert count_prompt(request("Hi"), None, [far]) is None
    guessing = Guessing("far", [])
    assert count_prompt(request("Hi"), None, [guessing, farther]) == TextCount(9, "tokenizer"), "a count goes before an estimate"
    assert count_prompt(request("Hi"), None, [far, guessing]) == TextCount(77, "estimate")


def test_a_device_counts_no_tools_that_it_cannot_use() -> None:
    near, able = Counting("device", [], kind="device", tokens=7), Capabilities(tools=True)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert count_prompt(request("Hi", tools=tools), near, [server(tokens=9)]) == TextCount(9, "tokenizer")
    assert count_prompt(request("Hi", tools=tools), near, []) is None
    assert count_prompt(request("Hi", tools=tools), device(tokens=8, capabilities=able), []) == TextCount(8, "tokenizer")


async def test_a_client_counts_with_its_endpoints_however_long_the_prompt_is() -> None:
    async with opened(device(tokens=7)) as client:
        assert await client.count_tokens(request("Hi")) == TextCount(7, "tokenizer")
        assert await client.count_tokens(request("Hi " * 5000)) == TextCount(7, "tokenizer")


def request(text: str, **options: Any) -> Request:
    return build_request(text, **options)
