"""Recognises answers of other APIs, which come if the user gave another API's address instead of an OpenAI-compatible one.

The server works as intended, so the same request would fail in the same way again. The error names the API and says what to change. An
answer that is just not understood may be a temporary fault of the server, so it doesn't count as another API.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from streamco.errors import EndpointProtocolError

__all__ = ["OddEvents", "find_other_api", "foreign_answer"]


class OddEvents:
    """Keeps the first events that aren't chunks, for the error if an answer has nothing else."""

    def __init__(self) -> None:
        self.first: bytes | None = None  # the first event, if it has neither choices nor usage
        self.has_chunk = False  # True once an event with choices or usage has come
        self.text: bytes | None = None  # the first event that isn't JSON


class OtherApi(Struct, frozen=True):
    """An API other than OpenAI's chat completions.

    Args:
        name: the API's name, as in "the stream of ``name``".
        mark: the part of the answer that identifies the API.
        remedy: what the user should change.
    """

    name: str
    mark: str
    remedy: str


_BASE_URL = "use an OpenAI-compatible base_url"
_ANTHROPIC = f"{_BASE_URL}, such as https://api.anthropic.com/v1, or AnthropicEndpoint"
_GEMINI = f"{_BASE_URL}, such as https://generativelanguage.googleapis.com/v1beta/openai"
_OLLAMA = f"{_BASE_URL}, such as http://127.0.0.1:11434/v1"
_OPENAI = "use a base_url that ends before /chat/completions, such as https://api.openai.com/v1"
_RESPONSES = f'{_OPENAI}, or api="responses"'
_COHERE = f"{_BASE_URL}, such as https://api.cohere.ai/compatibility/v1"
_ANTHROPIC_EVENTS = ("message_start", "content_block_start", "content_block_delta", "message_delta")


def find_other_api(value: Any) -> OtherApi | None:
    """Return the API that a decoded event, line or body belongs to, or None if it is no known API."""
    if isinstance(value, list):  # Gemini streams one JSON list
        return find_other_api(value[0]) if value else None
    if not isinstance(value, dict) or "choices" in value:
        return None
    return _find_by_type(value) or _find_by_fields(value)


def _find_by_type(value: dict[str, Any]) -> OtherApi | None:
    kind, named = value.get("type"), value.get("object")
    kind = kind if isinstance(kind, str) else ""
    named = named if isinstance(named, str) else ""
    if kind in _ANTHROPIC_EVENTS:
        return OtherApi("Anthropic's messages API", f"event: {kind}", _ANTHROPIC)
    if kind == "message" and isinstance(value.get("content"), list):
        return OtherApi("Anthropic's messages API", 'type "message"', _ANTHROPIC)
    if kind.startswith("response.") and len(kind) < 80:
        return OtherApi("OpenAI's Responses API", f"event: {kind}", _RESPONSES)
    if named == "response" or isinstance(value.get("response"), dict):
        return OtherApi("OpenAI's Responses API", 'object "response"', _RESPONSES)
    if named.startswith("thread.") and len(named) < 80:
        return OtherApi("OpenAI's Assistants API", f'object "{named}"', _OPENAI)
    if kind in {"message-start", "content-start", "content-delta"}:
        return OtherApi("Cohere's chat API", f"event: {kind}", _COHERE)
    return None


def _find_by_fields(value: dict[str, Any]) -> OtherApi | None:
    if isinstance(value.get("candidates"), list):
        return OtherApi("Gemini's API", '"candidates"', _GEMINI)
    if isinstance(value.get("done"), bool):
        if isinstance(value.get("message"), dict):
            return OtherApi("Ollama's /api/chat", '"message" and "done"', _OLLAMA)
        if isinstance(value.get("response"), str):
            return OtherApi("Ollama's /api/generate", '"response" and "done"', _OLLAMA)
    if isinstance(value.get("token"), dict) and "generated_text" in value:
        return OtherApi("text-generation-inference's /generate_stream", '"token" and "generated_text"', _BASE_URL)
    if isinstance(value.get("content"), str) and isinstance(value.get("stop"), bool):
        return OtherApi("llama.cpp's /completion", '"content" and "stop"', "use a base_url that ends with /v1")
    return None


def foreign_answer(value: Any, *, form: str = "stream") -> EndpointProtocolError | None:
    """Return the error for an answer of another API, or None if the answer belongs to no known API.

    Args:
        value: a decoded event or line of a stream, or a whole body.
        form: "stream", "NDJSON stream" or "answer", for the error message.
    """
    api = find_other_api(value)
    if api is None:
        return None
    wanted = "a chat.completion" if form == "answer" else "a chat.completion.chunk stream"
    return EndpointProtocolError(f"expected {wanted}, got the {form} of {api.name} ({api.mark}); {api.remedy}", is_lasting=True)
