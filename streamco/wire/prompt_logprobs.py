"""Asks unmodified vLLM and SGLang servers for log-probabilities of a prompt's last tokens: builds requests, and reads and checks answers.

Both servers are sent the context and the draft as one prompt, and generate one token after it:

- vLLM: ``/v1/completions`` with ``prompt_logprobs``. The answer has a row for every token of the prompt, keyed by id. The prompt's own
  token is always in its row. Minus infinity is written as -9999. The server reads the whole prompt again each time (vllm#17251).
- SGLang: ``/generate`` with ``logprob_start_len`` one before the first draft token. The row at that position is always empty
  (strands-sglang#32). The tokens before it come from the server's cache.

The formats are those of vLLM 0.32 (entrypoints/openai/completion, logprobs.py) and SGLang (managers/io_struct.py, tokenizer_manager.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw, Struct

from streamco.errors import EndpointProtocolError

__all__ = ["PositionLogprobs", "PromptLogprobs", "read_sglang", "read_vllm", "sglang_request", "vllm_request"]

IMPOSSIBLE = -9999.0
"""The number that vLLM writes for the logarithm of 0."""

_ROUNDING = 1e-3  # a log-probability may exceed 0 by this much
_AS_ID = "token_id:"  # vLLM's prefix for an id in place of a text
_ID = re.compile(rf"{_AS_ID}[0-9]{{1,10}}")

_Read = TypeVar("_Read")


class PositionLogprobs(Struct, frozen=True):
    """The target's log-probabilities at one position.

    Args:
        best: the target's likeliest id.
        ids: the ids in the server's list, likeliest first. They include the prompt's own token at this position.
        logprobs: log-probabilities of ``ids`` under the model itself (temperature 1, nothing cut off). Minus infinity means probability 0.
    """

    best: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class PromptLogprobs(Struct, frozen=True):
    """Log-probabilities at each draft token's position and at the next one, where ``best`` is the token that the server generated."""

    positions: tuple[PositionLogprobs, ...]


class _Entry(Struct):
    logprob: float
    rank: int | None = None


class _ChoiceLogprobs(Struct):
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Raw] | None = None
    logprobs: _ChoiceLogprobs | None = None


class _Completion(Struct):
    choices: list[_Choice]


class _Meta(Struct):
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    input_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    input_top_logprobs: list[list[tuple[float | None, int, Any]] | None] | None = None
    output_top_logprobs: list[list[tuple[float | None, int, Any]] | None] | None = None


class _Generated(Struct):
    output_ids: list[int]
    meta_info: _Meta


_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_generated = msgspec.json.Decoder(_Generated).decode
_decode_row = msgspec.json.Decoder(dict[str, _Entry]).decode


def vllm_request(model: str, ids: Sequence[int], pending: int, top: int, *, salt: str | None = None) -> dict[str, Any]:
    """Build the request body that asks vLLM for the log-probabilities of the last ``pending`` ids.

    Args:
        model: the model's name at the server.
        ids: token ids of the context and the draft, shape (context + pending,).
        pending: number of draft tokens. 0 requests only the next token.
        top: number of ids in each row, at least 1.
        salt: only requests with the same salt find this prompt in the server's prefix cache. None lets all requests find it.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": top,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }
    if salt is not None:
        body["cache_salt"] = salt
    return {**body, "prompt_logprobs": top} if pending else body


def read_vllm(answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
    """Read vLLM's answer to ``vllm_request``.

    Raises:
        EndpointProtocolError: rows are missing or malformed, or belong to other tokens.
    """
    (choice,) = _expect_one(_decode(_decode_completion, answer).choices, "choice")
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(ids):
        _fail(f"the prompt of {len(ids)} ids that was sent", f"another of {len(choice.prompt_token_ids)}")
    rows = choice.prompt_logprobs or []
    if pending and len(rows) != len(ids):
        _fail(f"prompt_logprobs for {len(ids)} tokens", f"{len(rows)} of them")
    start = len(ids) - pending
    positions = [_read_vllm_row(rows[position], ids[position], f"row {position}") for position in range(start, len(ids))]
    (token,) = _expect_one(choice.token_ids or [], "token")
    tops = (choice.logprobs.top_logprobs if choice.logprobs else None) or [{}]
    listed = [(int(key[len(_AS_ID) :]), _finite(value)) for key, value in (tops[0] or {}).items() if _ID.fullmatch(key)]
    return PromptLogprobs((*positions, _position_after(token, listed)))


def sglang_request(ids: Sequence[int], pending: int, top: int) -> dict[str, Any]:
    """Build the request body that asks SGLang for the log-probabilities of the last ``pending`` ids; see ``vllm_request``."""
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": max(0, len(ids) - pending - 1),
        "top_logprobs_num": top,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def read_sglang(answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
    """Read SGLang's answer to ``sglang_request``.

    Raises:
        EndpointProtocolError: rows are missing or malformed, belong to other tokens, or come from the server's cache.
    """
    generated = _decode(_decode_generated, answer)
    meta = generated.meta_info
    start = len(ids) - pending
    if meta.prompt_tokens not in {None, len(ids)}:
        _fail(f"a prompt of {len(ids)} tokens", f"{meta.prompt_tokens}")
    if meta.cached_tokens is not None and meta.cached_tokens > start - 1:
        _fail(f"at most {start - 1} tokens from its cache, because rows of the others are asked for", f"{meta.cached_tokens}")
    own, tops = meta.input_token_logprobs or [], meta.input_top_logprobs or []
    if pending and (len(own) != pending + 1 or len(tops) != pending + 1):
        _fail(f"input logprobs for {pending + 1} tokens", f"{len(own)} and {len(tops)}")
    for position, entry in enumerate(own[1:] if pending else ()):
        if entry[1] != ids[start + position]:
            _fail(f"the logprob of id {ids[start + position]} at row {position + 1}", f"id {entry[1]}")
    positions = [_read_sglang_row(own[row], tops[row], f"row {row}") for row in range(1, pending + 1)]
    (token,) = _expect_one(generated.output_ids, "token")
    last = (meta.output_top_logprobs or [[]])[0] or []
    return PromptLogprobs((*positions, _position_after(token, [(entry[1], _finite(entry[0])) for entry in last])))


def _read_vllm_row(raw: Raw, token: int, where: str) -> PositionLogprobs:
    try:
        row = _decode_row(raw)
        entries = {int(key): entry for key, entry in row.items()}
    except (ValueError, TypeError) as error:
        raise EndpointProtocolError(f"{where}: expected log-probabilities by token id, got {error}") from None
    if token not in entries:
        _fail(f"id {token} itself", f"{sorted(entries)[:8]}", where)
    best = [key for key, entry in entries.items() if entry.rank == 1]
    if len(best) != 1:
        _fail("one id of rank 1", f"{len(best)}", where)
    return _position(best[0], [(key, _finite(entry.logprob)) for key, entry in entries.items()], where)


def _read_sglang_row(own: tuple[float | None, int, Any], top: list[tuple[float | None, int, Any]] | None, where: str) -> PositionLogprobs:
    if not top:
        _fail("the likeliest tokens", "none", where)
    listed = {entry[1]: _finite(entry[0]) for entry in top}
    listed.setdefault(own[1], _finite(own[0]))
    return _position(top[0][1], list(listed.items()), where)


def _position_after(token: int, listed: list[tuple[int, float]]) -> PositionLogprobs:
    """Return the log-probabilities at the position after the draft. The generated token counts as the best, even in a tie."""
    if not any(known == token for known, _ in listed):
        listed = [(token, 0.0 if not listed else max(value for _, value in listed)), *listed]
    return _position(token, listed, "the last row")


def _position(best: int, listed: list[tuple[int, float]], where: str) -> PositionLogprobs:
    if min(token for token, _ in listed) < 0:
        _fail("token ids", f"{min(token for token, _ in listed)}", where)
    for _, value in listed:
        if math.isnan(value) or value > _ROUNDING:
            _fail("logarithms of probabilities", f"{value}", where)
    listed.sort(key=lambda pair: (-pair[1], pair[0] != best))
    return PositionLogprobs(best, tuple(token for token, _ in listed), tuple(value for _, value in listed))


def _finite(value: float | None) -> float:
    """Return a log-probability. JSON has no minus infinity, so SGLang writes null instead, and vLLM writes -9999."""
    return -math.inf if value is None or value <= IMPOSSIBLE else value


def _decode(decode: Any, answer: bytes) -> Any:
    try:
        return decode(answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EndpointProtocolError(f"expected log-probabilities, got {answer[:80]!r}: {error}") from None


def _expect_one(found: list[_Read], what: str) -> list[_Read]:
    if len(found) != 1:
        _fail(f"one {what}", f"{len(found)}")
    return found


def _fail(expected: str, got: str, where: str = "scores") -> NoReturn:
    raise EndpointProtocolError(f"{where}: expected {expected}, got {got}")
