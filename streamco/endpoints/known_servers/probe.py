"""Recognises the kind of server at a URL by what it says about itself.

``GET /v1/models`` exists everywhere; ``/props`` is specific to llama.cpp, ``/version`` to vLLM and Ollama, ``/get_model_info`` to SGLang.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from streamco.core.quantiles import equally_likely

__all__ = ["PROBED_PATHS", "STREAMCO", "ServerInfo", "identify"]

STREAMCO = "streamco"
PROBED_PATHS = ("/props", "/version", "/get_model_info", "/api/version")

_MAX_LISTED = 16  # times; a longer list is ignored
_MAX_TIMES = 10
_SHORTEST_S, _LONGEST_S = 0.001, 60.0  # values beyond these are clamped

_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "llama.cpp": "llama-server",
    "me": "llama-cpp-python",
    "library": "ollama",
    "streamco": STREAMCO,
}


class ServerInfo(Struct, frozen=True, kw_only=True):
    """What a server says about itself.

    Args:
        kind: a provider's name, or "generic" if it isn't known.
        models: ids of the models that the server offers.
        context_tokens: size of the model's context, prompt and answer together, or None if the server doesn't say.
        version: the version as the server writes it, or "".
        vocabulary: fingerprint of the server's token ids, from ``streamco serve`` or from a local model that reads a sample as the same
            ids; None if not known.
        vocabulary_size: number of these ids, or None if not known.
        media_types: content types besides JSON that the server says it accepts in requests; () if it doesn't say.
        content_mark: digest of the model's file, which shows whether ``streamco serve`` has the same model as a device; "" if not known.
        first_token_times: seconds to the first token of its latest answers, as reported by ``streamco serve``: at most ten equally likely
            values in ascending order; () if it doesn't say.
    """

    kind: str
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    version: str = ""
    vocabulary: str | None = None
    vocabulary_size: int | None = None
    media_types: tuple[str, ...] = ()
    content_mark: str = ""
    first_token_times: tuple[float, ...] = ()


def identify(models: Any, facts: Mapping[str, Any], *, model: str) -> ServerInfo:
    """Return what a server's responses say about it.

    Args:
        models: the JSON of ``/v1/models``, or None.
        facts: the JSON that ``PROBED_PATHS`` returned, by path; paths that returned none are missing.
        model: the model whose context size is reported. If the server doesn't list it, its only model is used.
    """
    entries = _read_models(models)
    chosen = next((entry for entry in entries if entry.get("id") == model), entries[0] if len(entries) == 1 else {})
    props = facts.get("/props")
    kind = _find_kind(entries, facts)
    vocabulary, size = chosen.get("vocabulary"), _read_size(chosen, "vocabulary_size")
    has_vocabulary = kind == STREAMCO and isinstance(vocabulary, str) and size is not None and size <= 1 << 32
    return ServerInfo(
        kind=kind,
        models=tuple(str(entry["id"]) for entry in entries),
        context_tokens=_read_size(props, "default_generation_settings", "n_ctx")
        or _read_size(chosen, "max_model_len")
        or _read_size(chosen, "context_length")
        or _read_size(chosen, "meta", "n_ctx")
        or _read_size(facts.get("/get_model_info"), "context_length"),
        version=str(_get(facts.get("/version"), "version") or _get(props, "build_info") or ""),
        vocabulary=vocabulary if has_vocabulary else None,
        vocabulary_size=size if has_vocabulary else None,
        media_types=_read_texts(chosen.get("media_types")) if has_vocabulary else (),
        first_token_times=_read_times(chosen.get("first_token_times")) if kind == STREAMCO else (),
        content_mark=mark if kind == STREAMCO and isinstance(mark := chosen.get("content_mark"), str) else "",
    )


def _find_kind(entries: list[dict[str, Any]], facts: Mapping[str, Any]) -> str:
    if _get(facts.get("/props"), "default_generation_settings") is not None:
        return "llama-server"
    if _get(facts.get("/get_model_info"), "model_path") is not None:
        return "sglang"
    if _get(facts.get("/api/version"), "version") is not None:
        return "ollama"
    owners = {str(entry.get("owned_by", "")).lower() for entry in entries}
    return next((kind for owner, kind in _OWNERS.items() if owner in owners), "generic")


def _read_models(models: Any) -> list[dict[str, Any]]:
    listed = models if isinstance(models, list) else _get(models, "data")
    return [entry for entry in listed if isinstance(entry, dict) and entry.get("id")] if isinstance(listed, list) else []


def _read_texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _read_times(value: Any) -> tuple[float, ...]:
    """Return the times that a server reports, without values that can't be times; none if the list is too long."""
    if not isinstance(value, list) or len(value) > _MAX_LISTED:
        return ()
    told = [each for each in value if isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < math.inf]
    times = sorted(float(min(max(each, _SHORTEST_S), _LONGEST_S)) for each in told)
    return tuple(equally_likely(times, _MAX_TIMES))


def _read_size(value: Any, *path: str) -> int | None:
    found = _get(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
