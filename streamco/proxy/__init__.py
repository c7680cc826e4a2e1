"""An OpenAI-compatible server in front of a client, as ``streamco proxy`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamco.proxy.app import make_app, serving
    from streamco.proxy.callers.store import add_caller
    from streamco.proxy.config import ProxyOptions

__all__ = ["ProxyOptions", "add_caller", "make_app", "serving"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "streamco.proxy.app": ("make_app", "serving"),
        "streamco.proxy.callers.store": ("add_caller",),
        "streamco.proxy.config": ("ProxyOptions",),
    },
)
