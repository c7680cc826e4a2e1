"""Request bodies: JSON or MessagePack as typed fields, with OpenAI's names, ranges and error texts.

Fields that OpenAI doesn't have keep the names that other servers gave them: ``top_k``, ``min_p``, ``ignore_eos`` and ``return_token_ids``
are vLLM's; ``prompt_tokens_packed``, ``continuation_tokens_packed`` and ``prefill_only`` are this server's own (docs/serve.md). Unknown
fields are ignored. Known but unsupported fields that would change the answer (``known_fields``) are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamco.config import NO_LIMIT, SamplingOptions
from streamco.engines.sampling import MAX_TOP_K, MIN_TOP_P
from streamco.server.http.errors import RequestError, invalid, unsupported
from streamco.server.http.middleware import JSON
from streamco.wire.known_fields import NEUTRAL_VALUES, is_asked
from streamco.wire.openai.logprobs import MAX_TOP_LOGPROBS
from streamco.wire.openai.msgpack_body import MSGPACK, MsgpackSizeError, decode_msgpack

__all__ = ["TOP_LOGPROBS", "ChatRequest", "CompletionRequest", "GenerateRequest", "StreamOptions", "convert", "has_messages", "parse"]

TOP_LOGPROBS = MAX_TOP_LOGPROBS
MAX_STOPS = 16  # OpenAI allows 4

T = TypeVar("T", bound="GenerateRequest")
Share = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[int, Meta(ge=NO_LIMIT)]  # and not 0


class StreamOptions(Struct):
    """The ``stream_options`` of a request."""

    include_usage: bool | None = None


class GenerateRequest(Struct, kw_only=True):
    """Fields that chat completions and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=MIN_TOP_P, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None  # -1 and 0 turn it off
    min_p: Share | None = None
    seed: int | None = None
    max_tokens: Limit | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    continuation_tokens_packed: bytes | None = None  # base64 in JSON, which msgspec decodes; bytes in MessagePack
    prefill_only: bool | None = None

    @property
    def is_streamed(self) -> bool:
        """True if the answer is sent while it is generated, as server-sent events or in MessagePack."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with a usage chunk; it always does if there is no text."""
        return bool(self.prefill_only or (self.stream_options is not None and self.stream_options.include_usage))

    @property
    def wanted_tokens(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the answer; the value is None if it isn't given, or asks for no limit (-1)."""
        return self._limit("max_tokens")

    def _limit(self, name: str) -> tuple[str, int | None]:
        limit = getattr(self, name)
        return name, None if limit == NO_LIMIT else limit

    @property
    def wanted_top(self) -> int | None:
        """Number of alternatives to send with each token, or None for no log-probabilities."""
        raise NotImplementedError

    def sampling(self, max_tokens: int) -> SamplingOptions:
        """Return the engine's sampling options, limited to ``max_tokens``."""
        top_k = None if self.top_k is None else max(0, self.top_k)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=top_k,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=stop,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple((self.logit_bias or {}).items()),
        )

    def check(self) -> None:
        """Check the fields against this server's limits.

        Raises:
            RequestError: 400, naming the field.
        """
        if self.n not in {None, 1}:
            raise invalid("n", f"expected 1, got {self.n}: this server gives one choice for each request")
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name, None) == 0:
                raise invalid(name, "expected int >= 1, or -1 for no limit, got 0")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "only valid with stream")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS:
            raise invalid("stop", f"expected at most {MAX_STOPS} strings, got {len(stops)}")
        if "" in stops:
            raise invalid("stop", "expected text, got an empty string")


class ChatRequest(GenerateRequest, kw_only=True):
    """Body of ``/v1/chat/completions``. vLLM's field ``continue_final_message`` continues the last message instead of answering it."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    response_format: dict[str, Any] | None = None

    @property
    def wanted_tokens(self) -> tuple[str, int | None]:
        """Name and value of the limit; ``max_completion_tokens`` is the newer name and takes precedence."""
        return self._limit("max_tokens" if self.max_completion_tokens is None else "max_completion_tokens")

    @property
    def wanted_top(self) -> int | None:
        """Value of ``top_logprobs`` if ``logprobs`` is set."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Check the fields; see ``GenerateRequest.check``."""
        GenerateRequest.check(self)
        if not self.messages:
            raise invalid("messages", "expected at least one message, got none")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "expected logprobs to be true with it")
        if self.response_format and self.response_format.get("type") != "text":
            raise invalid("response_format", f"expected type text, got {self.response_format.get('type')!r}")
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid("continue_final_message", "expected add_generation_prompt to be false with it")
        if self.continue_final_message and self.continuation_tokens_packed is not None:
            raise invalid("continuation_tokens_packed", "expected continue_final_message to be false with it")
        if self.continue_final_message and not isinstance(self.messages[-1].get("content"), str):
            raise invalid("continue_final_message", "expected the last message's content to be text")


class CompletionRequest(GenerateRequest, kw_only=True):
    """Body of ``/v1/completions``. Unless it is sent packed, ``prompt`` is text, token ids, or a list with one of them."""

    prompt: str | list[str | int | list[int]] | None = None
    prompt_tokens_packed: bytes | None = None
    logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def wanted_top(self) -> int | None:
        """Value of ``logprobs``, which is a number in this API."""
        return self.logprobs

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt, taken out of its list if it is in one."""
        match self.prompt:
            case str(text) | [str(text)]:
                return text
            case [list(ids)]:
                return ids
            case [int(), *_]:
                ids = [token for token in self.prompt if isinstance(token, int)]
                if len(ids) == len(self.prompt):
                    return ids
                raise invalid("prompt", "expected text or token ids, got a mixture")
        raise invalid("prompt", f"expected one prompt, got {len(self.prompt or ())}")

    def check(self) -> None:
        """Check the fields; see ``GenerateRequest.check``."""
        GenerateRequest.check(self)
        if self.prompt is None and self.prompt_tokens_packed is None:
            raise invalid("prompt", "expected a value, got none")
        if self.prompt is not None and self.prompt_tokens_packed is not None:
            raise invalid("prompt_tokens_packed", "can't be combined with a prompt")
        if self.best_of not in {None, 1}:
            raise invalid("best_of", f"expected 1, got {self.best_of}")
        for field in ("echo", "suffix"):
            if getattr(self, field):
                raise unsupported(field)


def has_messages(body: bytes) -> bool:
    """Return True if a body has messages, or if it can't be read, in which case ``parse`` raises the error."""
    try:
        return "messages" in msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def parse(body: bytes, shape: type[T], media_type: str = JSON) -> T:
    """Parse a request body into its fields, and check them.

    Raises:
        RequestError: 400, naming the field if one is at fault; 413 too many elements in the MessagePack.
    """
    if media_type == MSGPACK:
        return convert(_unpack(body), shape)
    try:
        request = msgspec.json.decode(body, type=shape)
        _refuse_unkept(msgspec.json.decode(body, type=dict[str, msgspec.Raw]), msgspec.json.decode)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(None, f"body: expected JSON, got {error}") from error
    request.check()
    return request


def convert(fields: dict[str, Any], shape: type[T]) -> T:
    """Convert decoded fields to a request, and check them.

    Raises:
        RequestError: 400, naming the field if one is at fault.
    """
    try:
        request = msgspec.convert(fields, type=shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    _refuse_unkept(fields)
    request.check()
    return request


def _refuse_unkept(fields: Mapping[str, Any], decode: Callable[[Any], Any] = lambda value: value) -> None:
    """Refuse fields that are known to ask for an answer that this server can't give. Unknown fields are ignored.

    Args:
        fields: a body's fields.
        decode: decodes their values.

    Raises:
        RequestError: 400, naming the field.
    """
    for name in sorted(fields.keys() & NEUTRAL_VALUES.keys()):
        if is_asked(name, decode(fields[name])):
            raise unsupported(name)


def _unpack(body: bytes) -> dict[str, Any]:
    try:
        return decode_msgpack(body)
    except MsgpackSizeError as error:
        raise RequestError(413, f"body: {error}") from error
    except ValueError as error:
        raise invalid(None, f"body: {error}") from error


def _explain(text: str) -> RequestError:
    """Translate ``Expected `float` <= 2.0 - at `$.temperature``` into this server's wording, with the field's name separate."""
    reason, _, path = text.replace(" - at `key` in `$", " - at `$").partition(" - at `$.")
    path = path.removesuffix("`").removesuffix("[...]")
    if missing := re.search(r"missing required field `(\w+)`", reason):
        return invalid(missing[1], "expected a value, got none")
    reason = reason.replace("`", "")
    reason = reason[:1].lower() + reason[1:]
    return invalid(path or None, reason if path else f"body: {reason}")
