"""Servers are distinguished by what they say about themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.endpoints.known_servers.probe import ServerInfo, identify


def listed(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(entries)}


def test_vllm_by_its_owner_and_length() -> None:
    models = listed({"id": "meta/llama", "owned_by": "vllm", "max_model_len": 8192})
    info = identify(models, {"/version": {"version": "0.32.0"}}, model="meta/llama")
    assert info == ServerInfo(kind="vllm", models=("meta/llama",), context_tokens=8192, version="0.32.0")


def test_llama_server_by_its_props() -> None:
    models = listed({"id": "smollm2", "owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}})
    props = {"default_generation_settings": {"n_ctx": 2048}, "build_info": "b6000-abc"}
    info = identify(models, {"/props": props}, model="gpt-4o-mini")
    assert info == ServerInfo(kind="llama-server", models=("smollm2",), context_tokens=2048, version="b6000-abc")


def test_sglang_by_its_model_info() -> None:
    info = identify(listed({"id": "m", "max_model_len": 4096}), {"/get_model_info": {"model_path": "/m"}}, model="m")
    assert (info.kind, info.context_tokens) == ("sglang", 4096)


def test_ollama_by_its_version() -> None:
    assert identify(listed({"id": "m", "owned_by": "library"}), {"/api/version": {"version": "0.12"}}, model="m").kind == "ollama"


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("me", "llama-cpp-python"), ("vllm", "vllm"), ("streamco", "streamco"), ("llamacpp", "llama-server"), ("acme", "generic")],
)
def test_the_owner_tells_the_kind(owner: str, kind: str) -> None:
    assert identify(listed({"id": "m", "owned_by": owner}), {}, model="m").kind == kind


def test_the_size_is_that_of_the_model_asked_for() -> None:
    models = listed({"id": "a", "max_model_len": 100}, {"id": "b", "context_length": 200})
    assert identify(models, {}, model="b").context_tokens == 200
    assert identify(models, {}, model="c").context_tokens is None


def test_streamco_serve_tells_its_vocabulary() -> None:
    card = {"id": "m", "owned_by": "streamco", "max_model_len": 512, "vocabulary": "300:0123456789abcdef", "vocabulary_size": 300}
    info = identify(listed(card), {}, model="m")
    assert info == ServerInfo(kind="streamco", models=("m",), context_tokens=512, vocabulary="300:0123456789abcdef", vocabulary_size=300)


@pytest.mark.parametrize(
    "change", [{"owned_by": "acme"}, {"vocabulary": 3}, {"vocabulary_size": None}, {"vocabulary_size": 0}, {"vocabulary_size": 1 << 33}]
)
def test_a_vocabulary_told_by_halves_or_by_others_is_left_out(change: dict[str, Any]) -> None:
    info = identify(listed({"id": "m", "owned_by": "streamco", "vocabulary": "v", "vocabulary_size": 3, **change}), {}, model="m")
    assert (info.vocabulary, info.vocabulary_size) == (None, None)


def told_times(value: Any, owner: str = "streamco") -> tuple[float, ...]:
    return identify(listed({"id": "m", "owned_by": owner, "first_token_times": value}), {}, model="m").first_token_times


def test_streamco_serve_tells_how_long_its_latest_answers_took() -> None:
    assert told_times([0.2, 0.1, 3]) == (0.1, 0.2, 3.0)
    assert told_times([]) == ()
    assert told_times([0.1], owner="acme") == ()
    assert told_times(list(range(1, 17))) == (1.0, 3.0, 5.0, 6.0, 8.0, 9.0, 11.0, 13.0, 14.0, 16.0), "ten samples at most"


@pytest.mark.parametrize("value", [None, "0.1", 0.1, {"0": 0.1}, [0.1] * 17, [0.1] * 1_000_000, [[0.1]], ["0.1"], [True], [None]], ids=type)
def test_times_in_another_form_are_left_out(value: Any) -> None:
    assert told_times(value) == ()


@given(st.lists(st.one_of(st.floats(), st.integers(), st.just(10**400), st.none(), st.text(max_size=3)), max_size=16))
def test_whatever_a_server_tells_is_at_most_ten_times_that_can_be(value: list[Any]) -> None:
    told = told_times(value)
    assert len(told) <= 10
    assert list(told) == sorted(told)
    assert all(type(each) is float and 0.001 <= each <= 60.0 for each in told)


@pytest.mark.parametrize("models", [None, [], {}, "x", {"data": None}, {"data": [1, {"no": "id"}]}, {"error": "x"}])
def test_nonsense_is_a_generic_server_without_models(models: Any) -> None:
    assert identify(models, {"/props": 3, "/version": [], "/get_model_info": None}, model="m") == ServerInfo(kind="generic")


def test_a_bare_list_of_models_is_read() -> None:
    assert identify([{"id": "a"}, {"id": "b"}], {}, model="a").models == ("a", "b")


@pytest.mark.parametrize("size", [0, -1, True, "8192", None, 1.5])
def test_a_size_that_is_none_is_left_out(size: Any) -> None:
    assert identify(listed({"id": "m", "max_model_len": size}), {}, model="m").context_tokens is None
