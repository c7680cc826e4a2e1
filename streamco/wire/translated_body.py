"""Helpers shared by all translations of chat requests into the request bodies of other APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamco.config import SamplingOptions

__all__ = ["further_fields", "joined_text", "logit_bias_field", "sampling_fields"]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty")
_DROPPED = ("stream", "stream_options")  # these APIs always end a stream with usage


def sampling_fields(sampling: SamplingOptions) -> dict[str, Any]:
    """Return the sampling options that have the same name in every API. Options that are None are left out."""
    return {name: value for name in _SAMPLING if (value := getattr(sampling, name)) is not None}


def logit_bias_field(sampling: SamplingOptions) -> dict[str, Any]:
    """Return a dict with the field ``logit_bias``, or {} if no biases are set."""
    return {"logit_bias": {str(token): bias for token, bias in sampling.logit_bias}} if sampling.logit_bias else {}


def further_fields(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a new dict of a chat request's additional fields, without those that are None or mean nothing in other APIs."""
    return {name: value for name, value in (extra or {}).items() if value is not None and name not in _DROPPED}


def joined_text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts.

    Raises:
        ValueError: a part isn't text.
    """
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content:
        if part.get("type") != "text":
            raise ValueError(f"messages: expected parts of type text in this message, got {part.get('type')!r}")
        texts.append(str(part.get("text", "")))
    return "".join(texts)
