"""The most that a request may cost, and what it is charged at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamco.config import SamplingOptions
from streamco.core.report_parts import EndpointReport
from streamco.endpoints.base import Request, TokenPrices
from streamco.endpoints.token_counter import TokenCounter
from streamco.proxy.callers.estimate import IMAGE_TOKENS, LEAST_IMAGE_TOKENS, PREAMBLE_TOKENS, RequestSize, charge, measure_request
from streamco.proxy.config import ProxyOptions
from streamco.proxy.requests import parse_fields
from streamco.server.http.errors import RequestError

PRICES = {"server": TokenPrices(prompt=1e-6, completion=2e-6)}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def asking(content: Any = "Hello", *, max_tokens: int | None = None, **extra: Any) -> Request:
    return Request(messages=[{"role": "user", "content": content}], sampling=SamplingOptions(max_tokens=max_tokens), extra=extra)


def size_of(content: Any = "Hello", **options: Any) -> RequestSize:
    return measure_request(asking(content, **options), answer_tokens=4096)


def function(parameters: Any, **fields: Any) -> dict[str, Any]:
    """A tool."""
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def calling(arguments: str, **fields: Any) -> Request:
    """A request with a call of a tool in its conversation."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}
    return Request(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])


def part(**figures: Any) -> EndpointReport:
    fields = {"name": "server", "kind": "server", "outcome": "won", "opened": 0.0, "cost_usd": 0.0, **figures}
    return EndpointReport(**fields)


COUNTER = TokenCounter("gpt-4o-mini")
COUNTER.load()  # the model's own vocabulary, if it is on this machine


@given(st.text(max_size=300))
def test_a_prompt_has_no_more_tokens_than_are_reserved_and_no_fewer_than_are_charged(text: str) -> None:
    size, counted = size_of(text), COUNTER.estimate(asking(text))
    assert counted is not None
    assert size.prompt >= counted
    assert size.prompt >= len(text.encode("utf-8", "surrogatepass"))
    assert size.least_prompt <= len(text.encode("utf-8", "surrogatepass")) // 5 + 8


def test_an_answer_has_the_limit_of_its_request_or_the_one_that_is_set_for_it() -> None:
    assert size_of().answer == 4096
    assert size_of(max_tokens=7).answer == 7
    assert size_of(max_tokens=7, n=3).answer == 21
    assert size_of(n=3).answer == 3 * 4096
    assert size_of(max_tokens=10**400).answer == 10**15, "a number that no float holds"


def test_an_image_counts_at_its_most_whatever_its_data_or_address() -> None:
    text = {"type": "text", "text": "What is it?"}
    plain, with_images = size_of([text]), size_of([text, IMAGE, IMAGE])
    assert 0 < with_images.prompt - plain.prompt - 2 * IMAGE_TOKENS < 100
    assert 0 <= with_images.least_prompt - plain.least_prompt - 2 * LEAST_IMAGE_TOKENS < 100, "a server may bill as few as that"


@pytest.mark.parametrize(
    "hidden",
    [
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "x" * 50_000}}]}]},
        {"messages": [{"role": "user", "content": "", "name": "x" * 50_000}]},
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": "x" * 50_000}]},
        {"messages": [{"role": "user", "content": ["x" * 50_000]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": {"deep": ["x" * 50_000]}}]}]},
        {"messages": [{"role": "user", "content": [{**IMAGE, "text": "x" * 50_000}]}]},
        {"messages": [{"role": "user", "content": "Hi"}], "extra": {"tools": [function({"x" * 50_000: 1})]}},
        {"messages": [{"role": "user", "content": "Hi"}], "extra": {"documents": [{"text": "x" * 50_000}]}},
        {"messages": [{"role": "user", "content": "Hi"}], "extra": {"response_format": {"schema": {"enum": ["x" * 50_000]}}}},
        {"prompt": "x" * 50_000},
    ],
)
def test_text_counts_wherever_it_is_hidden(hidden: dict[str, Any]) -> None:
    size = measure_request(Request(**hidden), answer_tokens=1)
    assert size.prompt >= 50_000
    assert size.least_prompt >= 10_000


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"service_tier": "priority"}, "service_tier"),
        ({"service_tier": ["priority"]}, "service_tier"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"models": ["openai/o1-pro"]}, "models"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": ["function"]}]}, "tools"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"max_new_tokens": 10**6}, "max_new_tokens"),
        ({"n_predict": -1}, "n_predict"),
        ({"best_of": 20}, "best_of"),
        ({"chat_template": "{% for i in range(99999) %}x{% endfor %}"}, "chat_template"),
        ({"extra_body": {"n": 9}}, "extra_body"),
        ({"chat_template_kwargs": {"chat_template": "{% for i in range(99999) %}x{% endfor %}"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": ["x"]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"date_string": {}}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": ["chat_template"]}, "chat_template_kwargs"),
        ({"tools": [{**function({}), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, "tools"),
        ({"tools": [function({}, cache_control={"ttl": "1h"})]}, "tools"),
        ({"tools": [function({}, defer_loading=True)]}, "tools"),
        ({"functions": [{"name": "f", "cache_control": {}}]}, "functions"),
        ({"functions": {"name": "f"}}, "functions"),
    ],
)
def test_what_costs_more_than_its_tokens_is_refused_by_name(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected .* a budget can't be kept") as caught:
        size_of(**extra)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, field, "unsupported_parameter")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
        {"role": "user", "content": [{"type": ["image_url"]}]},
        {"role": "user", "content": [["text"]]},
        {"role": "user", "content": {"type": "file"}},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "user", "content": "Look", "images": ["x"]},
        {"role": ["tool"], "content": "Hi", "cache_control": {"ttl": "1h"}},
    ],
)
def test_contents_of_unknown_cost_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"^messages: expected text, images and tool calls"):
        measure_request(Request(messages=[message]), answer_tokens=1)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, "no cache_control in it"),
        ({"tool_calls": [{"id": "c", "cache_control": {}}]}, "no cache_control in it"),
        ({"tool_calls": [{"id": "c", "function": {"name": "f", "cache_control": {}}}]}, "no cache_control in it"),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "data:application/pdf;base64,AAAA"}}]},
            "images whose address begins with",
        ),
        ({"content": [{"type": "image_url", "image_url": " data:image/png;base64,AAAA"}]}, "images whose address begins with"),
        ({"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}, "images whose address begins with"),
        ({"content": [{"type": "image_url", "image_url": {"url": 5}}]}, "images whose address begins with"),
        ({"content": [{"type": "text", "text": "x", "image_url": "gs://bucket/book.pdf"}]}, "images whose address begins with"),
        ({"content": [{"type": "image_url", "image_url": {"url": "https://a/b", "format": "application/pdf"}}]}, "no format in it"),
    ],
)
def test_what_gateways_bill_in_their_own_way_is_refused_in_messages(message: dict[str, Any], expected: str) -> None:
    with pytest.raises(RequestError, match=f"^messages: expected {expected}"):
        measure_request(Request(messages=[{"role": "user", **message}]), answer_tokens=1)


@pytest.mark.parametrize("address", ["https://a/b.png", "HTTP://a/b", "data:image/webp;base64,AAAA"])
@pytest.mark.parametrize("has_detail", [False, True])
def test_usual_addresses_of_images_are_taken(address: str, has_detail: bool) -> None:
    image: Any = {"url": address, "detail": "high"} if has_detail else address
    assert size_of([{"type": "image_url", "image_url": image}]).prompt > IMAGE_TOKENS


@pytest.mark.parametrize("field", ["tools", "response_format", "documents", "guided_json"])
@pytest.mark.parametrize(
    "value", [[[]] * 20_000, [{}] * 20_000, [""] * 20_000, ["\x01" * 9000], ["\u00e9" * 9000], {"\\" * 9000: [0] * 9}, [1e15] * 99]
)
def test_the_json_that_a_server_makes_of_an_object_is_no_longer_than_what_is_reserved(field: str, value: Any) -> None:
    sent = [function(value)] if field == "tools" else {"schema": value}
    size = size_of(**{field: sent})
    for indent in (None, 1):
        assert size.prompt > len(json.dumps(sent, indent=indent)) + PREAMBLE_TOKENS


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
@example(value=[float("inf"), float("-inf"), float("nan")])
def test_any_json_is_no_longer_than_what_is_reserved(value: Any) -> None:
    plain = size_of(metadata=None).prompt
    assert size_of(metadata=value).prompt - plain >= len(json.dumps(value, indent=1)) - len("null")


@pytest.mark.parametrize(
    "arguments", ["[" + "1e15," * 999 + "0]", "[" + "[]," * 999 + "NaN]", '{"a":"' + "\u00e9\\n" * 999 + '"}', "\x01" * 999]
)
def test_arguments_of_calls_count_as_the_longer_of_text_and_json(arguments: str) -> None:
    most = measure_request(calling(arguments), answer_tokens=1).prompt
    assert most > len(json.dumps(arguments))
    if arguments.startswith("["):
        assert most > len(json.dumps(json.loads(arguments), indent=1))


def test_a_text_that_is_shown_as_it_is_counts_its_bytes_and_a_result_of_a_tool_its_json() -> None:
    text = '"\n' * 1000
    for content in (text, [{"type": "text", "text": text}]):
        assert 2000 < size_of(content).prompt < 2300
        result = Request(messages=[{"role": "tool", "tool_call_id": "c", "content": content}])
        assert 4000 < measure_request(result, answer_tokens=1).prompt < 4300


def test_what_a_server_computes_for_each_token_of_an_answer_is_reserved() -> None:
    assert measure_request(asking(max_tokens=7), answer_tokens=1, computed=8).answer == 56


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto", "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 3, "user": "u", "store": False},
        {"reasoning_effort": "high", "verbosity": "low", "service_tier": "flex", "modalities": ["text"]},
        {"repetition_penalty": 1.1, "stop_token_ids": [1], "chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"reasoning_effort": "low", "thinking": True, "thinking_budget": 9}, "functions": [{"name": "f"}]},
    ],
)
def test_usual_fields_are_taken(extra: dict[str, Any]) -> None:
    assert size_of(**extra).answer == 4096


def test_a_deep_value_is_measured_without_recursion() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    assert size_of(metadata={"deep": deep}).prompt > 0


def test_the_dearest_server_sets_the_cost() -> None:
    size = RequestSize(prompt=1000, answer=100)
    cheap, dear = TokenPrices(prompt=1e-6, completion=1e-6), TokenPrices(prompt=5e-7, completion=1e-5)
    assert size.cost_at_most([cheap, dear]) == 1_500_000
    assert size.cost_at_most([TokenPrices(prompt=0.0, completion=0.0)]) == size.cost_at_most([]) == 0


def test_an_answer_is_charged_what_its_report_says() -> None:
    parts = [part(cost_usd=16e-6), part(name="device", kind="device", cost_usd=None), part(name="second", opened=None, cost_usd=None)]
    assert charge(parts, RequestSize(prompt=9, answer=9), PRICES, reserved=1) == 16_000
    assert charge([], None, PRICES, reserved=5) == 0


def test_a_prompt_that_no_server_counted_costs_at_least_what_its_text_shows() -> None:
    size = RequestSize(prompt=50_000, answer=1, least_prompt=10_000)
    left = part(outcome="lost", is_estimated=True, prompt_tokens=3, cost_usd=3e-6)
    assert charge([left], size, PRICES, reserved=0) == 10_000_000
    counted = part(prompt_tokens=3, cost_usd=3e-6)
    assert charge([counted], size, PRICES, reserved=0) == 3_000
    assert charge([left], None, PRICES, reserved=0) == 3_000


def test_an_estimate_lowers_nothing_that_was_reserved() -> None:
    guessed, counted = part(is_estimated=True, cost_usd=3e-6), part(name="second", cost_usd=2e-6)
    assert charge([guessed], None, PRICES, reserved=9_000) == 9_000
    assert charge([guessed, counted], None, PRICES, reserved=4_000) == 5_000, "the larger of both"
    assert charge([counted], None, PRICES, reserved=9_000) == 2_000
    billed = part(is_estimated=True, cost_usd=3e-6, cost_source="server")
    assert charge([billed], None, PRICES, reserved=9_000) == 3_000, "its own bill"
    lost = part(name="third", is_estimated=True, cost_usd=3e-6, outcome="lost")
    assert charge([lost, counted], None, PRICES, reserved=9_000) == 5_000, "it was stopped at once"
    near = part(name="device", kind="device", is_estimated=True, cost_usd=None)
    assert charge([near, counted], None, PRICES, reserved=9_000) == 2_000, "a device costs no money"


def test_a_cost_that_is_not_known_is_what_was_reserved() -> None:
    parts = [part(cost_usd=None), part(name="second", cost_usd=2e-6)]
    assert charge(parts, None, PRICES, reserved=9_000) == 9_000
    assert charge(parts, None, PRICES, reserved=1_000) == 2_000


NAMES = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "image_url",
        "tool_calls",
        "n",
        "max_tokens",
        "tools",
        "service_tier",
        "modalities",
        "model",
        "stop",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


@given(
    messages=st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=3),
    fields=st.dictionaries(NAMES | st.text(max_size=9), JSON, max_size=4),
)
def test_whatever_a_caller_sends_is_measured_or_refused(messages: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    size, status = None, 0
    try:
        parsed = parse_fields({**fields, "messages": [{"role": "user", **message} for message in messages]}, ProxyOptions())
        size = measure_request(parsed.request, answer_tokens=4096)
    except RequestError as refusal:
        status = refusal.status
    if size is None:
        assert status in {400, 404}
        return
    assert size.prompt >= size.least_prompt
    assert size.answer >= 1
    assert size.cost_at_most([TokenPrices(prompt=1e-6, completion=1e-6)]) > 0
