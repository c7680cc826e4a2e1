"""Which endpoints have the same model, by what they say."""

from __future__ import annotations

import pytest

from streamco.endpoints.model_identity import have_same_model
from streamco.testing import ScriptedEndpoint


def endpoint(model: str, mark: str = "", kind: str = "server") -> ScriptedEndpoint:
    made = ScriptedEndpoint("e", kind=kind)  # type: ignore[arg-type]
    made.model, made.content_mark = model, mark  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5 0.5B Instruct"),
        ("smollm2_135m", "SmolLM2-135M"),
        ("llama3.2:1b", "Llama3.2-1B"),
        ("a/model-1", "b/model-1"),
    ],
)
def test_a_name_is_the_same_with_another_publisher_and_other_signs(one: str, other: str) -> None:
    assert have_same_model(endpoint(one, kind="device"), endpoint(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("starcoder2-15b", "starcoder2-1.5b"),
        ("llama3.2:1b", "llama3:21b"),
        ("gemma3:1b", "gemma:31b"),
        ("/models/7B/model-q4_0.gguf", "/models/70B/model-q4_0.gguf"),
        ("7B/model-q4_0.gguf", "70B/model-q4_0.gguf"),
        ("default", "default"),
        ("/model", "model"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_models_that_may_differ_are_not_taken_for_one(one: str, other: str) -> None:
    assert not have_same_model(endpoint(one, kind="device"), endpoint(other))


def test_a_file_is_the_same_whatever_it_is_called() -> None:
    assert have_same_model(endpoint("a", "mark", kind="device"), endpoint("b", "mark"))
    assert not have_same_model(endpoint("a", "mark", kind="device"), endpoint("b", "other"))
    assert not have_same_model(endpoint("a", kind="device"), endpoint("b"))


def test_a_model_that_the_request_names_takes_the_place_of_the_servers() -> None:
    local, remote = endpoint("a", "mark", kind="device"), endpoint("a", "mark")
    assert have_same_model(local, remote, asked="a")
    assert not have_same_model(local, remote, asked="b")
