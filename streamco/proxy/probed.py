"""A server that is asked at the start what it is."""

from __future__ import annotations

import logging

from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointError

__all__ = ["ProbedEndpoint"]

_log = logging.getLogger("streamco.proxy")


class ProbedEndpoint(OpenAIEndpoint):
    """Takes its dialect, capabilities and context from what the server says of itself; one that doesn't answer is used all the same."""

    async def start(self) -> None:
        """See ``OpenAIEndpoint.start``; waits for the server's answers, at most the connect limit."""
        await super().start()
        try:
            info = await self.probe()
        except EndpointError as error:
            _log.warning("server not probed: %s", error)
        else:
            _log.info("%s is %s, context %s", self.name, info.kind, info.context_tokens or "not known")
