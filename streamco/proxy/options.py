"""Settings of the proxy's server; who answers is the client's matter."""

from __future__ import annotations

from streamco.server.options import ListenOptions

__all__ = ["MODEL", "ProxyOptions"]

MODEL = "streamco"  # the model's name that means: whoever is fastest


class ProxyOptions(ListenOptions, frozen=True, kw_only=True):
    """How the proxy listens, what it refuses, and the names it knows."""

    models: tuple[str, ...] = ()  # names of the client's own models: asking for one of them is asking for whoever is fastest
    raw_prompts: bool = False  # /v1/completions: the prompt as it is; False: as a user's message, which every endpoint understands alike
    max_body_bytes: int = 16 << 20  # images travel inside requests
