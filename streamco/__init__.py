r"""Streams one answer that a small model on the user's machine and a remote endpoint generate together.

    async with streamco.Client(device="model.gguf", server=streamco.OpenAIEndpoint("gpt-4o-mini"), budget=0.3) as client:
        stream = await client.chat.completions.create(messages=[...], stream=True)
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print(f"\n\n{stream.report}")

Public names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamco import calibration as calibration
    from streamco import engines as engines
    from streamco import errors as errors
    from streamco import observers as observers
    from streamco import proxy as proxy
    from streamco import reports as reports
    from streamco import server as server
    from streamco import testing as testing
    from streamco import types as types
    from streamco import verifiers as verifiers
    from streamco.client.arguments import Message
    from streamco.client.client import Client
    from streamco.client.modes.auto import Auto
    from streamco.client.modes.race.migration import MigrationOptions
    from streamco.client.modes.race.mode import Race
    from streamco.client.modes.race.quality_gate import QualityGate
    from streamco.client.modes.speculation.mode import Speculate
    from streamco.client.modes.split.mode import Split
    from streamco.client.stream import ChatStream, TokenStream
    from streamco.client.sync_client import SyncClient
    from streamco.config import Limits, RetryPolicy, SamplingOptions, Timeouts
    from streamco.endpoints.base import Capabilities, TokenPrices
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
    from streamco.endpoints.local_server import LocalServerEndpoint
    from streamco.endpoints.openai import OpenAIEndpoint
    from streamco.endpoints.split.endpoint import SplitEndpoint
    from streamco.engines.llamacpp.bundled_model import packaged_model
    from streamco.errors import AllEndpointsFailed, ConfigError, DegradedError, EndpointError, PromptError, StreamcoError
    from streamco.policies.dispatch import Decision, DispatchPolicy
    from streamco.policies.eligibility import RequestGate

__version__ = "0.1.0"

_HOMES = {
    "streamco.client.arguments": ("Message",),
    "streamco.client.client": ("Client",),
    "streamco.client.modes.auto": ("Auto",),
    "streamco.client.modes.race.migration": ("MigrationOptions",),
    "streamco.client.modes.race.mode": ("Race",),
    "streamco.client.modes.race.quality_gate": ("QualityGate",),
    "streamco.client.modes.speculation.mode": ("Speculate",),
    "streamco.client.modes.split.mode": ("Split",),
    "streamco.client.stream": ("ChatStream", "TokenStream"),
    "streamco.client.sync_client": ("SyncClient",),
    "streamco.config": ("Limits", "RetryPolicy", "SamplingOptions", "Timeouts"),
    "streamco.endpoints.base": ("Capabilities", "TokenPrices"),
    "streamco.endpoints.device": ("DeviceEndpoint",),
    "streamco.endpoints.known_servers.anthropic": ("AnthropicEndpoint",),
    "streamco.endpoints.local_server": ("LocalServerEndpoint",),
    "streamco.endpoints.openai": ("OpenAIEndpoint",),
    "streamco.endpoints.split.endpoint": ("SplitEndpoint",),
    "streamco.engines.llamacpp.bundled_model": ("packaged_model",),
    "streamco.errors": ("AllEndpointsFailed", "ConfigError", "DegradedError", "EndpointError", "PromptError", "StreamcoError"),
    "streamco.policies.dispatch": ("Decision", "DispatchPolicy"),
    "streamco.policies.eligibility": ("RequestGate",),
}
__all__ = [
    "AllEndpointsFailed",
    "AnthropicEndpoint",
    "Auto",
    "Capabilities",
    "ChatStream",
    "Client",
    "ConfigError",
    "Decision",
    "DegradedError",
    "DeviceEndpoint",
    "DispatchPolicy",
    "EndpointError",
    "Limits",
    "LocalServerEndpoint",
    "Message",
    "MigrationOptions",
    "OpenAIEndpoint",
    "PromptError",
    "QualityGate",
    "Race",
    "RequestGate",
    "RetryPolicy",
    "SamplingOptions",
    "Speculate",
    "Split",
    "SplitEndpoint",
    "StreamcoError",
    "SyncClient",
    "Timeouts",
    "TokenPrices",
    "TokenStream",
    "__version__",
    "packaged_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    _HOMES,
    submodules=("calibration", "engines", "errors", "observers", "proxy", "reports", "server", "testing", "types", "verifiers"),
)
