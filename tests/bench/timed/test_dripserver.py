"""The benches' upstream streams as many tokens as a model's name says, and answers a health check."""

from __future__ import annotations

import json
import urllib.request

import pytest

from bench.timed.stream import server


@pytest.mark.parametrize("model", ["bulk-3", "drip-3", "model-3", "openai/model-3"])
def test_a_model_streams_as_many_tokens_as_its_name_says(model: str) -> None:
    with server() as port:
        body = json.dumps({"model": model, "messages": [], "stream": True}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/chat/completions", data=body) as answer:
            events = [line.removeprefix("data: ") for line in answer.read().decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]] == ["", "The", " quick", " brown", None]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_a_request_without_a_body_gets_an_empty_object() -> None:
    with server() as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        assert json.load(answer) == {}
