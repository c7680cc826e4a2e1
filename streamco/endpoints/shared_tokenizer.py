"""Computes a server's token ids with a local model that has the same vocabulary and chat template.

Unmodified servers accept ids only as a whole prompt (``/v1/completions``). So if a chat's answer is handed over as ids, the chat must
become ids as well, and exactly the ids that the server's own template would produce. The local model computes them, but only after a test:
both sides read the same sample, and if the server reads it as different ids, it is sent text instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.known_servers.providers import TokenizeApi
from streamco.engines.base import Engine
from streamco.engines.prompt_ids import pending_bytes
from streamco.errors import EndpointProtocolError, EngineError
from streamco.events import Partial

__all__ = ["SAMPLE", "SharedTokenizer", "find_ids"]

Post = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""POSTs JSON to a path below the server's root and returns the response's JSON."""

SAMPLE = "Hello, world!  12345 + 6.78 = ?\n\n\tdef f(x): # naïve café\n日本語, العربية, Ελληνικά, 🦎🐈\u200d⬛ e\u0301"
_CHAT = Request(
    messages=[{"role": "user", "content": SAMPLE}, {"role": "assistant", "content": "Go on."}, {"role": "user", "content": "And so on?"}]
)
_TEXT = Request(prompt=SAMPLE)
_IN_BOTH_APIS = {  # fields that mean the same in the chat and the completions API
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
    """A local model that tokenises for a server.

    Args:
        model: a device, or its engine; its owner closes it.
    """

    def __init__(self, model: DeviceEndpoint | Engine) -> None:
        self._model = model

    async def compare(self, post: Post, api: TokenizeApi, *, model: str, is_chat: bool) -> tuple[str, int] | None:
        """Return the vocabulary's fingerprint and size if the server and the local model tokenise the sample identically, else None.

        Loads the device.

        Args:
            post: sends a request to the server.
            api: the server's API that returns the ids of a prompt.
            model: the model's name at the server.
            is_chat: True to compare the chat template as well.

        Raises:
            EndpointError: the server doesn't return its ids, or the device can't be loaded.
        """
        engine = await self._load()
        sample = _CHAT if is_chat else _TEXT
        try:
            here = await asyncio.to_thread(_read, engine, sample)
        except EngineError:
            return None  # there is no chat template, or it rejects the sample: nothing to compare
        there = await _READERS[api](post, model, sample)
        return (engine.info.vocabulary, engine.info.vocabulary_size) if here == there else None

    async def hand_over(self, request: Request, partial: Partial, *, context_tokens: int | None) -> Request | None:
        """Return the request as a prompt of ids followed by the answer's beginning, or None if text must be sent instead.

        Args:
            request: the request without its ``partial``.
            partial: the answer's beginning.
            context_tokens: size of the server's context, or None if not known. An answer without a limit may fill it, because the
                completions API's default limit is small.
        """
        engine = self._engine()
        if engine is None or not partial.ids or partial.vocabulary != engine.info.vocabulary or not _is_plain(request):
            return None
        try:
            return await asyncio.to_thread(_extend, engine, request, partial.ids, context_tokens)
        except EngineError:
            return None  # the template rejected these messages, or the engine was closed; the server may still continue text

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
        return None  # vLLM repeats a prompt that ends inside a code point
    whole_prompt = [*_read(engine, request), *ids]
    limit = request.sampling.max_tokens
    if limit is None and context_tokens is not None:
        limit = max(1, context_tokens - len(whole_prompt))
    if limit is None:
        return None
    return replace(request, messages=None, prompt=None, prompt_ids=whole_prompt, sampling=replace(request.sampling, max_tokens=limit))


def _read(engine: Engine, request: Request) -> list[int]:
    """Return a prompt's ids as servers read it: control tokens in a text are treated as control tokens."""
    if request.prompt is not None:
        return engine.tokenize(request.prompt, special=True, bos=True)
    return request_ids(engine, request)


def _is_plain(request: Request) -> bool:
    """Return True if the request needs nothing that only the chat API has, such as tools, images or template options."""
    if request.extra.keys() - _IN_BOTH_APIS:
        return False
    return all(message.keys() <= {"role", "content"} and isinstance(message.get("content"), str) for message in request.messages or ())


async def _read_by_tokenize(post: Post, model: str, sample: Request) -> list[int]:
    """Return the sample's ids from vLLM's ``/tokenize``, which also renders messages."""
    fields = {"messages": sample.messages} if sample.prompt is None else {"prompt": sample.prompt}
    return find_ids(await post("/tokenize", {"model": model, **fields}))


async def _read_by_apply_template(post: Post, model: str, sample: Request) -> list[int]:
    """Return the sample's ids from llama.cpp's server, where one path renders messages and another one tokenises the text."""
    text = sample.prompt
    if text is None:
        answer = await post("/apply-template", {"model": model, "messages": sample.messages})
        text = answer.get("prompt") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise EndpointProtocolError(f"/apply-template: expected a prompt, got {str(text)[:80]!r}")
    return find_ids(await post("/tokenize", {"content": text, "add_special": True, "parse_special": True}))


def find_ids(answer: Any) -> list[int]:
    """Return the ids in a response to ``/tokenize``."""
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise EndpointProtocolError(f"/tokenize: expected a list of token ids, got {str(answer)[:80]!r}")
    return ids


_READERS: dict[TokenizeApi, Callable[[Post, str, Request], Awaitable[list[int]]]] = {
    "tokenize": _read_by_tokenize,
    "apply-template": _read_by_apply_template,
}
