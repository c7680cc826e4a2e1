"""Finds out whether a server with OpenAI's API can verify drafts, and by which protocol."""

from __future__ import annotations

from msgspec.structs import replace

from streamco.config import Timeouts
from streamco.endpoints.known_servers.probe import STREAMCO
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.base import Verifier

__all__ = ["find_verifier"]


async def find_verifier(server: OpenAIEndpoint) -> Verifier | None:
    """Ask a server what it is, and return a verifier for it, or None if servers of its kind don't verify.

    Raises:
        EndpointError: the server doesn't respond.
    """
    kind = (await server.probe()).kind
    url, key = server.credentials()
    if kind == STREAMCO:
        from streamco.endpoints.verifiers.streamco import VerifierEndpoint

        is_plain = url.startswith("http:")
        return VerifierEndpoint(
            url, token=key or None, name=server.name, timeouts=_for_pings(server.timeouts), is_plain=is_plain, prices=server.prices
        )
    if kind == "vllm":
        from streamco.endpoints.verifiers.vllm import VLLMVerifier

        return VLLMVerifier(url, model=server.model, api_key=key, name=server.name, timeouts=server.timeouts)
    if kind == "sglang":
        from streamco.endpoints.verifiers.sglang import SGLangVerifier

        return SGLangVerifier(url, model=server.model, api_key=key, name=server.name, timeouts=server.timeouts)
    return None


def _for_pings(timeouts: Timeouts) -> Timeouts:
    """Return a server's time limits for its WebSocket, where ``socket`` limits the reply to a ping, which needs no computation."""
    from streamco.endpoints.verifiers.streamco import PONG_SECONDS

    return replace(timeouts, socket=PONG_SECONDS if timeouts.socket is None else min(timeouts.socket, PONG_SECONDS))
