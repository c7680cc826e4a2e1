"""The vocabulary of ``streamco serve`` for a client without a model: the client knows each token's text, and the server reads prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct

from streamco.endpoints.base import Request
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.shared_tokenizer import find_ids
from streamco.engines.base import ModelInfo
from streamco.errors import EndpointProtocolError, EndpointTimeoutError, UsageError

__all__ = ["ServedVocabulary", "read_prompt"]


class _Tokens(Struct):
    """The response to ``GET /vocabulary``."""

    vocabulary: str
    context_tokens: int
    end_ids: frozenset[int]
    tokens: list[bytes]
    has_reasoning: bool = False


class ServedVocabulary:
    """A server's vocabulary. Implements ``TokenVocabulary``.

    Args:
        server: the server.
        answer: the JSON that it returned for ``GET /vocabulary``.

    Raises:
        EndpointProtocolError: the response isn't a vocabulary.
    """

    def __init__(self, server: OpenAIEndpoint, answer: Any) -> None:
        self._server = server
        try:
            found = msgspec.convert(answer, _Tokens)
        except msgspec.ValidationError as error:
            raise EndpointProtocolError(f"/vocabulary: expected the tokens' bytes, got {error}", endpoint=server.name) from error
        if problem := _why_unusable(found):
            raise EndpointProtocolError(f"/vocabulary: {problem}", endpoint=server.name)
        self._tokens = found.tokens
        self._info = ModelInfo(
            name=server.model,
            vocabulary_size=len(found.tokens),
            vocabulary=found.vocabulary,
            context_tokens=found.context_tokens,
            has_chat_template=False,
            parameters=0,
            layers=0,
            width=0,
            heads=0,
            ffn_width=0,
            end_ids=found.end_ids,
            has_reasoning=found.has_reasoning,
        )

    @classmethod
    async def read(cls, server: OpenAIEndpoint) -> Self:
        """Fetch the vocabulary of a server that has started.

        Raises:
            EndpointError: the server doesn't send it.
        """
        answer = await server.ask("/vocabulary")
        return await asyncio.to_thread(cls, server, answer)

    @property
    def info(self) -> ModelInfo:
        """The model's name, vocabulary, context size and end tokens; its shape isn't known."""
        return self._info

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without special tokens.

        Raises:
            EndpointProtocolError: an id is outside the vocabulary.
        """
        _check_ids("token ids", ids, len(self._tokens), self._server.name)
        return b"".join(self._tokens[token] for token in ids)


async def read_prompt(server: OpenAIEndpoint, request: Request, *, vocabulary_size: int, within: float) -> list[int]:
    """Return the ids of a request's prompt as the server itself would read it.

    Args:
        server: a ``streamco serve`` that has started.
        request: the request.
        vocabulary_size: number of ids in the server's vocabulary.
        within: time limit in seconds.

    Raises:
        EndpointError: the server doesn't respond in time, or rejects the prompt.
        EndpointProtocolError: an id is outside the vocabulary.
        UsageError: the request doesn't have exactly one of messages, prompt and prompt_ids.
    """
    fields = {"messages": request.messages, "prompt": request.prompt, "ids": request.prompt_ids}
    given = {name: value for name, value in fields.items() if value is not None}
    if len(given) != 1:
        raise UsageError(f"request: expected exactly one of messages, prompt and prompt_ids, got {len(given)}")
    if request.prompt_ids is not None:
        return list(request.prompt_ids)
    try:
        async with PeerTimeout(within):
            answer = await server.ask("/tokenize", given)
    except TimeoutError:
        text = f"/tokenize: expected the prompt's ids within {within:g} s, got none"
        raise EndpointTimeoutError(text, phase="connect", limit=within, endpoint=server.name) from None
    try:
        ids = find_ids(answer)
    except EndpointProtocolError:  # it quotes the response, which may quote the prompt
        raise EndpointProtocolError("/tokenize: expected a list of token ids, got none", endpoint=server.name) from None
    _check_ids("/tokenize", ids, vocabulary_size, server.name)
    return ids


def _check_ids(name: str, ids: Sequence[int], size: int, endpoint: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < size):
        raise EndpointProtocolError(f"{name}: expected ids from 0 to {size - 1}, got {min(ids)} to {max(ids)}", endpoint=endpoint)


def _why_unusable(told: _Tokens) -> str:
    """Return what is wrong with a vocabulary, or ""."""
    size = len(told.tokens)
    if not size:
        return "expected at least one token, got none"
    if told.context_tokens < 1:
        return f"expected a context of at least 1 token, got {told.context_tokens}"
    outside = sorted(token for token in told.end_ids if not 0 <= token < size)
    return f"expected end ids from 0 to {size - 1}, got {outside[0]}" if outside else ""
