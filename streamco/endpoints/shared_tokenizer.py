"""A server's token ids, made by a model here that has the same vocabulary and chat template.

Stock servers take ids as a whole prompt only (``/v1/completions``): to hand a chat's answer over by ids, the chat has to become ids as
well, and just those that the server's own template would give. The model here renders them. Whether it may is tried and not believed:
both sides read the same sample first, and a server that reads it into other ids is sent text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint, request_ids
from streamco.endpoints.providers import TokenizeApi
from streamco.engines.base import Engine
from streamco.engines.prompt_ids import pending_bytes
from streamco.errors import EndpointProtocolError, EngineError
from streamco.partial import Partial

__all__ = ["SAMPLE", "SharedTokenizer"]

Post = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""POSTs JSON to a path at the server's root and gives the answer's JSON."""

SAMPLE = "Hello, world!  12345 + 6.78 = ?\n\n\tdef f(x): # naïve café\n日本語, العربية, Ελληνικά, 🦎🐈\u200d⬛ e\u0301"
_CHAT = Request(
    messages=[{"role": "user", "content": SAMPLE}, {"role": "assistant", "content": "Go on."}, {"role": "user", "content": "And so on?"}]
)
_TEXT = Request(prompt=SAMPLE)
_IN_BOTH_APIS = {  # fields that mean the same in a chat and behind a prompt
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_tokens",
    "presence_penalty",
    "prefill_only",
    "priority",
    "repetition_penalty",
    "stop_token_ids",
    "user",
}


class SharedTokenizer:
    """The model here.

    Args:
        model: a device, or its engine; closing it stays its owner's business.
    """

    def __init__(self, model: DeviceEndpoint | Engine) -> None:
        self._model = model

    async def compare(self, post: Post, api: TokenizeApi, *, model: str, is_chat: bool) -> tuple[str, int] | None:
        """Fingerprint and size of the vocabulary if the server reads the sample as the model here does, else None. Loads a device.

        Args:
            ask: reaches the server.
            how: the server's way to tell what it reads.
            model: its name at the server.
            is_chat: the chat template is to be compared as well.

        Raises:
            EndpointError: the server doesn't say, or the device can't be loaded.
        """
        engine = await self._load()
        sample = _CHAT if is_chat else _TEXT
        try:
            here = await asyncio.to_thread(_read, engine, sample)
        except EngineError:
            return None  # no chat template, or one that refuses the sample: there is nothing to compare
        there = await _READERS[api](post, model, sample)
        return (engine.info.vocabulary, engine.info.vocabulary_size) if here == there else None

    async def hand_over(self, request: Request, partial: Partial, *, context_tokens: int | None) -> Request | None:
        """Return the request as a prompt of ids with the answer's beginning behind it; None: text has to do.

        Args:
            request: without its ``partial``.
            partial: the answer's beginning.
            context_tokens: of the server; it bounds an answer without a limit, as the completions API has a small one of its own.
        """
        engine = self._engine()
        if engine is None or not partial.ids or partial.vocabulary != engine.info.vocabulary or not _is_plain(request):
            return None
        try:
            return await asyncio.to_thread(_extend, engine, request, partial.ids, context_tokens)
        except EngineError:
            return None  # the template refused these messages, or the engine was closed: the server may still go on with text

    def _engine(self) -> Engine | None:
        return self._model.engine if isinstance(self._model, DeviceEndpoint) else self._model

    async def _load(self) -> Engine:
        if isinstance(self._model, DeviceEndpoint):
            await self._model.start()
        engine = self._engine()
        if engine is None:
            raise AssertionError("a device that has started has an engine")
        return engine


def _extend(engine: Engine, request: Request, ids: tuple[int, ...], context_tokens: int | None) -> Request | None:
    if pending_bytes(engine, ids):
        return None  # vLLM writes all of a prompt out that ends inside a code point
    ids_so_far = [*_read(engine, request), *ids]
    limit = request.sampling.max_tokens
    if limit is None and context_tokens is not None:
        limit = max(1, context_tokens - len(ids_so_far))
    if limit is None:
        return None
    return replace(request, messages=None, prompt=None, prompt_ids=ids_so_far, sampling=replace(request.sampling, max_tokens=limit))


def _read(engine: Engine, request: Request) -> list[int]:
    """Return a prompt's ids as servers read it: they take control tokens in a text for what they look like."""
    if request.prompt is not None:
        return engine.tokenize(request.prompt, special=True, bos=True)
    return request_ids(engine, request)


def _is_plain(request: Request) -> bool:
    """Return True if nothing is asked that only the chat API does: tools, images, a template's own options."""
    if request.extra.keys() - _IN_BOTH_APIS:
        return False
    return all(message.keys() <= {"role", "content"} and isinstance(message.get("content"), str) for message in request.messages or ())


async def _read_by_tokenize(post: Post, model: str, sample: Request) -> list[int]:
    """As vLLM: ``/tokenize`` renders messages by itself."""
    fields = {"messages": sample.messages} if sample.prompt is None else {"prompt": sample.prompt}
    return _find_ids(await post("/tokenize", {"model": model, **fields}))


async def _read_by_apply_template(post: Post, model: str, sample: Request) -> list[int]:
    """As llama.cpp's server: one path renders, another tokenises."""
    text = sample.prompt
    if text is None:
        answer = await post("/apply-template", {"model": model, "messages": sample.messages})
        text = answer.get("prompt") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise EndpointProtocolError(f"/apply-template: expected a prompt, got {str(text)[:80]!r}")
    return _find_ids(await post("/tokenize", {"content": text, "add_special": True, "parse_special": True}))


def _find_ids(answer: Any) -> list[int]:
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise EndpointProtocolError(f"/tokenize: expected a list of token ids, got {str(answer)[:80]!r}")
    return ids


_READERS: dict[TokenizeApi, Callable[[Post, str, Request], Awaitable[list[int]]]] = {
    "tokenize": _read_by_tokenize,
    "apply-template": _read_by_apply_template,
}
