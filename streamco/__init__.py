"""One streamed answer, made by a small model on the user's machine and a remote endpoint together.

    async with streamco.Client(device="model.gguf", server=streamco.OpenAIEndpoint("gpt-4o-mini"), budget=0.3) as client:
        stream = await client.chat.completions.create(messages=[...], stream=True)
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="")
        print(stream.report)

Public names are loaded when they are first used: importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamco.client.chat import Answer
    from streamco.client.client import Client
    from streamco.client.race.dispatcher import DispatchOptions
    from streamco.client.race.migration import MigrationOptions
    from streamco.client.speculation.options import SpeculationOptions
    from streamco.client.stream import ChatStream, Retracted, Settled, Token, TokenStream
    from streamco.config import Limits, RetryPolicy, SamplingOptions, Timeouts
    from streamco.core.report import AnswerUsage, DispatchReport, EndpointReport, Report, SpeculationFigures
    from streamco.core.totals import EndpointTotals, Totals
    from streamco.endpoints.base import Capabilities, Endpoint, EndpointStream, Request, TokenPrices
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.endpoints.openai import OpenAIEndpoint
    from streamco.endpoints.verifiers.sglang import SGLangVerifier
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint
    from streamco.endpoints.verifiers.vllm import VLLMVerifier
    from streamco.engines.base import EngineOptions
    from streamco.errors import (
        AllEndpointsFailed,
        ConcurrentRead,
        ConfigError,
        EndpointConnectError,
        EndpointError,
        EndpointProtocolError,
        EndpointStatusError,
        EndpointTimeoutError,
        EngineError,
        StreamClosed,
        StreamcoError,
        StreamConsumed,
        UsageError,
    )
    from streamco.openai_types import ChatCompletion, ChatCompletionChunk, CompletionUsage

__version__ = "0.1.0"

_HOMES = {
    "streamco.openai_types": ("ChatCompletion", "ChatCompletionChunk", "CompletionUsage"),
    "streamco.client.chat": ("Answer",),
    "streamco.client.client": ("Client",),
    "streamco.client.race.dispatcher": ("DispatchOptions",),
    "streamco.client.race.migration": ("MigrationOptions",),
    "streamco.client.speculation.options": ("SpeculationOptions",),
    "streamco.client.stream": ("ChatStream", "Retracted", "Settled", "Token", "TokenStream"),
    "streamco.config": ("Limits", "RetryPolicy", "SamplingOptions", "Timeouts"),
    "streamco.core.report": ("AnswerUsage", "DispatchReport", "EndpointReport", "Report", "SpeculationFigures"),
    "streamco.core.totals": ("EndpointTotals", "Totals"),
    "streamco.endpoints.base": ("Capabilities", "Endpoint", "EndpointStream", "Request", "TokenPrices"),
    "streamco.endpoints.device": ("DeviceEndpoint",),
    "streamco.endpoints.openai": ("OpenAIEndpoint",),
    "streamco.endpoints.verifiers.sglang": ("SGLangVerifier",),
    "streamco.endpoints.verifiers.streamco": ("VerifierEndpoint",),
    "streamco.endpoints.verifiers.vllm": ("VLLMVerifier",),
    "streamco.engines.base": ("EngineOptions",),
    "streamco.errors": (
        "AllEndpointsFailed",
        "ConcurrentRead",
        "ConfigError",
        "EndpointConnectError",
        "EndpointError",
        "EndpointProtocolError",
        "EndpointStatusError",
        "EndpointTimeoutError",
        "EngineError",
        "StreamClosed",
        "StreamConsumed",
        "StreamcoError",
        "UsageError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AllEndpointsFailed",
    "Answer",
    "AnswerUsage",
    "Capabilities",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatStream",
    "Client",
    "CompletionUsage",
    "ConcurrentRead",
    "ConfigError",
    "DeviceEndpoint",
    "DispatchOptions",
    "DispatchReport",
    "Endpoint",
    "EndpointConnectError",
    "EndpointError",
    "EndpointProtocolError",
    "EndpointReport",
    "EndpointStatusError",
    "EndpointStream",
    "EndpointTimeoutError",
    "EndpointTotals",
    "EngineError",
    "EngineOptions",
    "Limits",
    "MigrationOptions",
    "OpenAIEndpoint",
    "Report",
    "Request",
    "Retracted",
    "RetryPolicy",
    "SGLangVerifier",
    "SamplingOptions",
    "Settled",
    "SpeculationFigures",
    "SpeculationOptions",
    "StreamClosed",
    "StreamConsumed",
    "StreamcoError",
    "Timeouts",
    "Token",
    "TokenPrices",
    "TokenStream",
    "Totals",
    "UsageError",
    "VLLMVerifier",
    "VerifierEndpoint",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'streamco' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
