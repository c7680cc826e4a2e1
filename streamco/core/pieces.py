"""Cuts chunks of an answer into pieces and counts the tokens of each. Joined, the pieces give the chunk's text again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, further_fields, with_further, without_further

__all__ = ["MAX_TOKEN_CHARACTERS", "cut_chunk", "split_chunk", "weigh_chunk"]

# Chinese, Japanese and Korean are written without spaces, so a character with its modifiers counts as a word.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"\s*(?:[{_CJK}][\ufe00-\ufe0f\u3099\u309a]*|[^\s{_CJK}]+)(?:\s+$)?|\s+")
_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb for English text
MAX_TOKEN_CHARACTERS = 12  # nearly every single token of cl100k is shorter
_MAX_PIECES = 1024  # of one chunk: each takes some hundred bytes, and a chunk may hold a megabyte of text


def _estimate(text: str) -> int:
    return 1 if len(text) <= MAX_TOKEN_CHARACTERS else round(len(text) / _CHARACTERS_A_TOKEN)


def weigh_chunk(chunk: ChatCompletionChunk) -> int:
    """Return the length of a chunk's text in tokens, partly estimated, or 0 if there is nothing to read in it."""
    weight = 0
    for choice in chunk.choices:
        if choice.token_ids:
            weight += len(choice.token_ids)
            continue
        delta = choice.delta
        for text in (delta.content, delta.reasoning_content or delta.reasoning, delta.refusal):
            if text:
                weight += _estimate(text)
        if delta.tool_calls or delta.function_call:
            weight += 1
    return weight


def split_chunk(chunk: ChatCompletionChunk) -> list[ChatCompletionChunk]:
    """Cut a chunk of plain text at word ends and return the pieces; any other chunk is returned whole.

    Joined, the pieces have the chunk's content. If a chunk has more than 1,024 words, a piece holds several words.
    Log-probabilities and token ids belong to their text, so a chunk with them stays whole.
    """
    if len(chunk.choices) != 1:
        return [chunk]
    choice = chunk.choices[0]
    delta = choice.delta
    content, thinking = delta.content, delta.reasoning_content or delta.reasoning
    text = content or thinking
    if (
        not text
        or (content and thinking)
        or choice.logprobs is not None
        or choice.token_ids
        or delta.tool_calls
        or len(text) <= MAX_TOKEN_CHARACTERS
    ):
        return [chunk]
    words = _WORD.findall(text)
    if len(words) < 2:
        return [chunk]
    if len(words) > _MAX_PIECES:
        size = -(-len(words) // _MAX_PIECES)
        words = ["".join(words[start : start + size]) for start in range(0, len(words), size)]
    return cut_chunk(chunk, words)


def cut_chunk(chunk: ChatCompletionChunk, texts: Sequence[str]) -> list[ChatCompletionChunk]:
    """Cut a chunk of plain text into one chunk for each of these texts, which, when joined, give its content or its reasoning.

    The role and the server's additional fields go into the first piece, and the finish reason and the usage into the last one.
    """
    if len(texts) == 1:
        return [chunk]
    choice = chunk.choices[0]
    plain = without_further(chunk) or chunk
    pieces = [_piece(plain, text, is_content=bool(choice.delta.content)) for text in texts]
    pieces[0] = _with_provided(pieces[0], chunk)
    last = pieces[-1]
    end = last.choices[0]
    end.finish_reason, end.native_finish_reason = choice.finish_reason, choice.native_finish_reason
    end.stop_reason, end.matched_stop = choice.stop_reason, choice.matched_stop
    last.usage = chunk.usage
    return pieces


def _with_provided(piece: ChatCompletionChunk, chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """Return the first piece with the fields that only one piece may have: the role, and fields that only some servers send."""
    choice, source = piece.choices[0], chunk.choices[0]
    choice.delta.role, choice.delta.reasoning_details = source.delta.role, source.delta.reasoning_details
    choice.delta.channel, choice.delta.audio = source.delta.channel, source.delta.audio
    choice.content_filter_results = source.content_filter_results
    choice.delta = with_further(choice.delta, further_fields(source.delta))
    piece.choices = [with_further(choice, further_fields(source))]
    piece.obfuscation, piece.p = chunk.obfuscation, chunk.p
    piece.stream_options, piece.moderation = chunk.stream_options, chunk.moderation
    return with_further(piece, further_fields(chunk))


def _piece(chunk: ChatCompletionChunk, text: str, *, is_content: bool) -> ChatCompletionChunk:
    if is_content:
        delta = ChoiceDelta(content=text)
    else:
        name_is_long = chunk.choices[0].delta.reasoning_content is not None
        delta = ChoiceDelta(reasoning_content=text) if name_is_long else ChoiceDelta(reasoning=text)
    choice = ChunkChoice(delta=delta, index=chunk.choices[0].index)
    return replace(chunk, choices=[choice], usage=None, obfuscation=None, p=None, stream_options=None, moderation=None)
