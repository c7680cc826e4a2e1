"""Requests as an OpenAI-compatible server gets them: JSON in, typed objects out, errors that say which field and why."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamco.config import SamplingOptions
from streamco.errors import RequestError

__all__ = ["ChatMessage", "ChatRequest", "CompletionRequest", "ContentPart", "StreamOptions", "decode_request"]

_Request = TypeVar("_Request", bound=Struct)
_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class StreamOptions(Struct):
    """``include_usage``: a last event with token counts and no choices."""

    include_usage: bool | None = None


class ContentPart(Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _CommonRequest(Struct, kw_only=True):
    """What chat and text completions share. None: not given (or null, which OpenAI takes for the same)."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: int | None = None
    min_p: _Share | None = None
    seed: int | None = None
    max_tokens: _Count | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    return_token_ids: bool | None = None  # as vLLM: ``token_ids`` in every choice

    @property
    def token_limit(self) -> int | None:
        """How many tokens the answer may have, None: no limit given."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with an event of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> SamplingOptions:
        """How the next token is chosen."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.token_limit,
            stop=stop,
        )


class ChatRequest(_CommonRequest, kw_only=True):
    """The body of ``POST /v1/chat/completions``. ``continue_final_message`` and ``add_generation_prompt`` as vLLM has them."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def token_limit(self) -> int | None:
        """``max_completion_tokens``, else the older ``max_tokens``."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as dicts with text content, text parts joined; keys that were not given are absent.

        Raises:
            RequestError: a content part is not text.
        """
        return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


class CompletionRequest(_CommonRequest, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or token ids; at least one.

        Raises:
            RequestError: there is none, or the list mixes kinds, or an id is negative.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise RequestError(
                f"prompt: expected text, token ids, or a list of them, got {'nothing' if prompt is None else '[]'}", param="prompt"
            )
        if all(isinstance(item, int) for item in prompt):
            return [_check_ids(prompt, "prompt")]
        if all(isinstance(item, str) for item in prompt):
            return [item for item in prompt if isinstance(item, str)]
        if all(isinstance(item, list) for item in prompt):
            return [_check_ids(item, f"prompt[{i}]") for i, item in enumerate(prompt) if isinstance(item, list)]
        kinds = ", ".join(sorted({type(item).__name__ for item in prompt}))
        raise RequestError(f"prompt: expected a list of one kind (str, int or list of int), got a mix of {kinds}", param="prompt")


def decode_request(body: bytes, kind: type[_Request]) -> _Request:
    """Decode a request body as ``ChatRequest``, ``CompletionRequest`` or a subclass of them. Unknown fields are ignored.

    Raises:
        RequestError: it is not JSON, or a field is not what it should be.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
            shown = body[:60].decode("utf-8", "replace")
            raise RequestError(f"expected a JSON object as the body, got {shown!r} ({len(body)} bytes): {malformed}") from malformed
        raise _explain(str(exc), value) from exc


def _plain_message(message: ChatMessage, where: str) -> dict[str, Any]:
    plain = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not None}
    if isinstance(message.content, list):
        plain["content"] = "".join(_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(message.content))
    return plain


def _part_text(part: ContentPart, where: str) -> str:
    if part.type not in {"text", "input_text", "output_text"} or part.text is None:
        got = f"type {part.type!r}" if part.text is not None or part.type != "text" else "a text part without text"
        raise RequestError(f"{where}: expected a part of type 'text', got {got}", param=where)
    return part.text


def _check_ids(ids: list[Any], where: str) -> list[int]:
    wrong = next((i for i, token in enumerate(ids) if token < 0), None)
    if not ids or wrong is not None:
        got = "[]" if wrong is None else f"{ids[wrong]} at {where}[{wrong}]"
        raise RequestError(f"{where}: expected token ids of at least 0, got {got}", param=where)
    return ids


def _explain(message: str, body: Any) -> RequestError:
    """Put msgspec's "Expected `int`, got `str` - at `$.n`" in this package's words, with the value where it has none."""
    what, _, path = message.partition(" - at `$")
    path = path.removesuffix("`").lstrip(".")
    what = what.replace("Object missing required field", "Expected an object with the field").replace("`", "")
    if ", got" not in what:
        what = f"{what}, got {_show(body, path)}"
    return RequestError(f"{path or 'body'}: {what[:1].lower()}{what[1:]}", param=path or None)


def _show(value: Any, path: str) -> str:
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    shown = msgspec.json.encode(value).decode()
    return shown if len(shown) <= 60 else shown[:60] + " ..."
