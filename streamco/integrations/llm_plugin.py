"""The entry point for ``llm``, separate from the models, so that an ``llm`` that is too old for them keeps working without them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import llm

__all__ = ["register_models"]

_log = logging.getLogger("streamco")


@llm.hookimpl
def register_models(register: Callable[[Any, Any], None]) -> None:
    """Register the model ``streamco``, for programs with and without an event loop."""
    if find_spec("llm.parts") is None:
        _log.warning("the model streamco needs llm 0.32 or newer, got %s, and is left out", version("llm"))
        return
    from streamco.integrations.llm import AsyncLLMModel, LLMModel

    register(LLMModel(), AsyncLLMModel())
