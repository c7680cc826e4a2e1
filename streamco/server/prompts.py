"""Prompts: turns a request's messages, text or ids into tokens for the engine, within the server's limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from streamco.engines.base import Engine, GenerationRequest
from streamco.engines.llamacpp.reasoning import ReasoningSplitter, closed_prompt, opens_reasoning
from streamco.engines.prompt_ids import answer_ids, chat_ids, pending_bytes, prompt_ids
from streamco.errors import EngineError
from streamco.server.http.errors import RequestError, invalid
from streamco.server.options import ServeOptions
from streamco.server.requests import ChatRequest, CompletionRequest
from streamco.wire.token_frames import TokenCodec, TokenFrameError, TokenVocabularyError

__all__ = ["build_generation", "encode_vocabulary", "prompt_ids", "reasoning_splitter", "render", "request_tokens", "unpack_ids"]

_MARK = "\ue000"  # replaces the text of a message to be continued while the template runs; a private-use character
# Long prompts wait for each other but not for short ones. If its sender disconnects, a waiting prompt leaves the queue.
_tokenizers = ThreadPoolExecutor(2, thread_name_prefix="streamco-tokenize")
INLINE_BYTES = 4096  # tokenising more takes over a millisecond, so it is done in a thread

ApiRequest = ChatRequest | CompletionRequest


async def build_generation(
    engine: Engine, request: ApiRequest, options: ServeOptions, body_bytes: int, *, owner: str | None = None
) -> GenerationRequest:
    """Return the request to pass to the engine. ``owner`` is the name of the caller's API key, if each key has its own prefix cache.

    Raises:
        RequestError: 400, naming the field that can't be served.
    """
    ids = await request_tokens(engine, request, body_bytes)
    field = "messages" if isinstance(request, ChatRequest) else "prompt"
    top = request.wanted_top
    for token in request.logit_bias or ():
        if not 0 <= token < engine.info.vocabulary_size:
            raise invalid("logit_bias", f"expected token ids from 0 to {engine.info.vocabulary_size - 1}, got {token}")
    return GenerationRequest(
        prompt_ids=ids,
        sampling=request.sampling(_limit(engine, request, options, field, len(ids))),
        top=0 if top is None else max(1, top),  # with 0, the drawn token would have no probability
        ignore_eos=bool(request.ignore_eos),
        prefill_only=bool(request.prefill_only),
        owner=owner,
        pending_bytes=pending_bytes(engine, ids),
    )


def encode_vocabulary(engine: Engine) -> bytes:
    """Return the JSON that tells a client each token's bytes. This takes a moment, so call it in a thread."""
    info = engine.info
    return msgspec.json.encode(
        {
            "vocabulary": info.vocabulary,
            "context_tokens": info.context_tokens,
            "end_ids": sorted(info.end_ids),
            "has_reasoning": info.has_reasoning,
            "tokens": [engine.detokenize([token]) for token in range(info.vocabulary_size)],
        }
    )


def reasoning_splitter(engine: Engine, request: ApiRequest, ids: Sequence[int]) -> ReasoningSplitter | None:
    """Return the object that separates the answer's reasoning from its content, or None if it is all content.

    Args:
        engine: the engine.
        request: the request. An answer that has begun continues with its content, and the completions API has no reasoning.
        ids: ids of its prompt.
    """
    if not engine.info.has_reasoning or not isinstance(request, ChatRequest):
        return None
    if request.continue_final_message or request.continuation_tokens_packed is not None:
        return None
    return ReasoningSplitter(is_open=opens_reasoning(engine, ids))


async def request_tokens(engine: Engine, request: ApiRequest, body_bytes: int) -> list[int]:
    """Return the token ids of ``tokenize_request``, which runs in a thread if the body is long.

    Raises:
        RequestError: see ``tokenize_request``.
    """
    if body_bytes <= INLINE_BYTES:
        return tokenize_request(engine, request)
    return await asyncio.get_running_loop().run_in_executor(_tokenizers, tokenize_request, engine, request)


def _limit(engine: Engine, request: ApiRequest, options: ServeOptions, field: str, length: int) -> int:
    """Return the number of completion tokens for this request: as many as requested, if they fit in the context."""
    context = engine.info.context_tokens
    limit = min(context - 1, options.max_prompt_tokens or context)
    if length > limit:
        raise invalid(field, f"expected at most {limit} tokens (the context is {context}), got {length}", code="context_length_exceeded")
    name, wanted = request.wanted_tokens
    if wanted is not None and options.max_tokens is not None and wanted > options.max_tokens:
        raise invalid(name, f"expected at most {options.max_tokens}, got {wanted}")
    return min(wanted or context, options.max_tokens or context, context - length)


def tokenize_request(engine: Engine, request: ApiRequest) -> list[int]:
    """Return the token ids of a request's prompt and of the beginning of its answer, if there is one. Thread-safe.

    Control tokens in the text of ``prompt`` are recognised, as in llama-server and vLLM, because its caller writes the template. In
    messages they are plain text.

    Raises:
        RequestError: 400 there are no tokens, ids aren't in the vocabulary, a frame can't be read, or the model's chat template refuses the
            messages.
    """
    ids = _chat_ids(engine, request) if isinstance(request, ChatRequest) else _text_ids(engine, request)
    if request.continuation_tokens_packed is not None:
        begun = closed_prompt(engine, ids) if isinstance(request, ChatRequest) else ids  # the ids belong to the content
        ids = begun + unpack_ids(engine, "continuation_tokens_packed", request.continuation_tokens_packed)
    return _checked(engine, ids)


def _chat_ids(engine: Engine, request: ChatRequest) -> list[int]:
    try:
        ids = chat_ids(engine, request.messages, lambda messages: render(engine, request, messages))
    except EngineError as error:
        raise RequestError(400, str(error), param="messages") from error
    return ids + answer_ids(engine, request.messages[-1]["content"]) if request.continue_final_message else ids


def _text_ids(engine: Engine, request: CompletionRequest) -> list[int]:
    if request.prompt_tokens_packed is not None:
        return unpack_ids(engine, "prompt_tokens_packed", request.prompt_tokens_packed)
    prompt = request.single_prompt
    return prompt_ids(engine, prompt, special=True) if isinstance(prompt, str) else prompt


def _checked(engine: Engine, ids: list[int]) -> list[int]:
    size = engine.info.vocabulary_size
    if not ids:
        raise invalid("prompt", "expected at least one token, got none")
    if min(ids) < 0 or max(ids) >= size:
        raise invalid("prompt", f"expected ids from 0 to {size - 1}, got {min(ids)} to {max(ids)}")
    return ids


def render(engine: Engine, request: ChatRequest, messages: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return a request's messages as the chat template's text, without the content of a message to be continued.

    Args:
        engine: the engine, whose template is used.
        request: the request.
        messages: the messages to render instead of the request's, if any.

    Raises:
        RequestError: 400 the template refuses the messages, or leaves out the one to be continued.
    """
    messages = request.messages if messages is None else messages
    try:
        if not request.continue_final_message:
            return engine.apply_template(messages, add_generation_prompt=request.add_generation_prompt is not False)
        return _render_open(engine, messages)
    except EngineError as error:
        raise RequestError(400, str(error), param="messages") from error


def _render_open(engine: Engine, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the template's text up to the last message's content. Many templates trim contents, but a partial answer must not change."""
    last = {**messages[-1], "content": _MARK}
    text, found, _ = engine.apply_template([*messages[:-1], last], add_generation_prompt=False).rpartition(_MARK)
    if not found:
        raise RequestError(400, "continue_final_message: expected the chat template to show the last message, got none of it")
    return text


def unpack_ids(engine: Engine, field: str, frame: bytes) -> list[int]:
    """Return the ids of one frame.

    Args:
        engine: the engine, to whose vocabulary the ids must belong.
        field: field of the request, for errors.
        frame: bytes as made by ``TokenCodec.encode``.

    Raises:
        RequestError: 400, naming the field: it isn't a frame, is damaged, or has another vocabulary (code ``vocabulary_mismatch``).
    """
    try:
        return TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size).decode(frame)
    except TokenVocabularyError as error:
        raise invalid(field, str(error), code="vocabulary_mismatch") from error
    except TokenFrameError as error:
        raise invalid(field, str(error)) from error
