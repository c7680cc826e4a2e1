"""Engines, each of which runs a model in its own thread. This package exports the names that programs need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamco.engines.base import EngineOptions
    from streamco.engines.llama import LlamaEngine
    from streamco.engines.llamacpp.gguf import derived
    from streamco.engines.llamacpp.model_parts import split_model
    from streamco.engines.split.drafts import DraftOptions

__all__ = ["DraftOptions", "EngineOptions", "LlamaEngine", "derived", "split_model"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "streamco.engines.base": ("EngineOptions",),
        "streamco.engines.llama": ("LlamaEngine",),
        "streamco.engines.llamacpp.gguf": ("derived",),
        "streamco.engines.llamacpp.model_parts": ("split_model",),
        "streamco.engines.split.drafts": ("DraftOptions",),
    },
)
