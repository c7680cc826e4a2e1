"""The endpoint for a split model: its first layers and head run on this machine, its middle layers on a server (HAT).

It is a device endpoint with another engine: the template, tokens, sampling, stop strings and text are processed on this machine.
docs/split.md says what that hides from the server and what it doesn't.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from streamco.config import Timeouts
from streamco.core.report_parts import SplitFigures
from streamco.endpoints.address import Url
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint, DeviceStream
from streamco.endpoints.network.credentials import ApiKey, ServerKey
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.split.driver import SplitDriver
from streamco.endpoints.split.link import ServerLink
from streamco.endpoints.verifiers.connection import VerifierAddress
from streamco.endpoints.verifiers.streamco import PONG_SECONDS, verifier_url
from streamco.engines.base import Engine, EngineOptions, Generation, GenerationRequest
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.drafts import DraftOptions
from streamco.engines.split.engine import SplitEngine
from streamco.engines.split.tally import SplitTally, SplitTraffic
from streamco.errors import ConfigError, EngineError
from streamco.policies.chunking import Chunking, check_chunking
from streamco.wire.tensors import StateFormat

__all__ = ["SplitEndpoint", "SplitStream"]

_TIMEOUTS = Timeouts(socket=PONG_SECONDS)


class _LinkUse(LoopState):
    """The link on one event loop."""

    def __init__(self) -> None:
        self.link: ServerLink | None = None

    async def aclose(self) -> None:
        """End the link's sessions and connections; see ``LoopState``."""
        if self.link is not None:
            await self.link.release()


class SplitEndpoint(DeviceEndpoint):
    """The device's parts of a model, and the servers that compute its middle layers.

    Args:
        parts: common prefix of the parts' files: ``parts/NAME`` for ``parts/NAME.input.gguf`` and ``parts/NAME.head.gguf``.
        servers: URL of a split server, or a list of them. If one is lost, the next one continues its answers.
        token: bearer token for all of them, or a sync or async function that returns the token for each connection, or None.
        name: name in reports and errors.
        options: settings of the engine; see ``SplitEngine``. ``exact`` requires servers in exact mode, too.
        states: format in which hidden states are sent. "f32" is lossless; "f16" takes half the bytes, and with quantised weights a token
            may differ where two are about equally likely; "i8" takes a quarter, and about 2 tokens in 100 differ. "auto" is "f16" for
            answers that begin while sending a prompt row in "f32" is known to take longer than computing it at the server, and "f32" for
            all others; in exact mode it is always "f32".
        drafts: how tokens are drafted, so that a round trip yields several. "auto" uses the draft layer for this model from the package or
            the user's cache folder, if there is one. None makes no drafts. Drafts never change the tokens.
        chunking: how a prompt is cut into chunks, so that the server computes while it is being sent. "fastest" minimises the
            predicted time, perhaps with a single chunk; "balanced" follows HAT's equation 3; "whole" doesn't cut the prompt; a number is
            the number of tokens per chunk.
        timeouts: ``connect`` until a server has accepted a session, ``first_token`` until it replies to rows, ``socket`` for a ping.
        patience: seconds that all servers may be unreachable before an answer fails.
        max_wait: seconds that an answer waits for servers that are busy with other answers; with 0 it fails at once.
        tls: certificates to trust, by default the system's.
        is_plain: True to allow ``ws://`` to other machines; others on the network can then read the states and the token.

    Raises:
        ConfigError: there is no server, a URL is malformed, or a format doesn't exist.
    """

    def __init__(
        self,
        parts: str | Path,
        servers: Url | Sequence[Url],
        *,
        token: ApiKey | None = None,
        name: str = "split",
        options: EngineOptions | None = None,
        states: StateFormat | Literal["auto"] = "auto",
        drafts: DraftOptions | Literal["auto"] | None = "auto",
        chunking: Chunking = "fastest",
        timeouts: Timeouts = _TIMEOUTS,
        patience: float = 5.0,
        max_wait: float = 45.0,
        tls: ssl.SSLContext | None = None,
        is_plain: bool = False,
    ) -> None:
        super().__init__(parts, name=name, options=options)
        urls = list(servers) if isinstance(servers, Sequence) and not isinstance(servers, str) else [servers]
        if not urls:
            raise ConfigError("split: expected the URL of a server, got none")
        if states not in {"auto", "f32", "f16", "i8"}:
            raise ConfigError(f'split: states: expected "auto", "f32", "f16" or "i8", got {states!r}')
        check_chunking(chunking)
        for label, seconds in (("patience", patience), ("max_wait", max_wait)):
            if not seconds >= 0:
                raise ConfigError(f"split: {label}: expected at least 0 s, got {seconds}")
        self.states: StateFormat | Literal["auto"] = "f32" if states == "auto" and self._options.exact else states
        self._chunking: Chunking = chunking
        self._parts = parts
        self._drafts: DraftOptions | Literal["auto"] | None = drafts
        key = ServerKey(token, setting="token")
        self._addresses = [_address(url, key, tls, is_plain=is_plain) for url in urls]
        self._limits = timeouts
        self._patience, self._max_wait = patience, max_wait
        self._link: ServerLink | None = None
        self._link_use = LoopBound(_LinkUse, owner=name)

    @property
    def capabilities(self) -> Capabilities:
        """The same capabilities as a device's, except that prompts aren't kept for later requests."""
        return replace(super().capabilities, pre_copy="none")

    @property
    def addresses(self) -> tuple[VerifierAddress, ...]:
        """The servers, best first."""
        return tuple(self._addresses)

    @property
    def is_exact(self) -> bool:
        """True if all states are sent in 32 bits, without loss. In exact mode, answers are then the same as the whole model's."""
        return self.states == "f32"

    @property
    def input_layers(self) -> int:
        """Number of layers on the device, or 0 if not known yet."""
        return 0 if self._link is None else self._link.mark.first_layer

    @property
    def link(self) -> ServerLink | None:
        """The connections to the servers, or None before ``start``."""
        return self._link

    @property
    def traffic(self) -> SplitTraffic:
        """The data sent to the servers and back so far."""
        return SplitTraffic() if self._link is None else self._link.traffic

    async def start(self) -> None:
        """Load the parts and connect to a server; idempotent.

        Raises:
            EndpointError: the parts can't be loaded, or no server can be reached.
            VerifierError: the server has different layers, or refuses this client.
        """
        await super().start()
        if self._link is not None:
            self._use(self._link)
            await self._link.connect()

    def open(self, request: Request, driver: SplitDriver | None = None) -> SplitStream:
        """Begin an answer; see ``DeviceEndpoint.open``.

        Args:
            request: the request.
            driver: runs the answer's machine, and must be started; None lets the stream create one.
        """
        if self._link is not None:
            self._use(self._link)
        return self._begin(SplitStream(self, request, on_over=self._work.get().streams.discard, driver=driver))

    def _use(self, link: ServerLink) -> None:
        """Have the link use the running event loop for its connections."""
        use = self._link_use.get()
        if use.link is None:
            link.enter(asyncio.get_running_loop())
            use.link = link

    def figures_of(self, tally: SplitTally, tokens: int) -> SplitFigures:
        """Return the figures for a report on what an answer of ``tokens`` tokens has sent and received."""
        states = "f32" if self.states == "auto" else self.states
        return tally.figures(tokens=tokens, input_layers=self.input_layers, states=states)

    def parts(self) -> tuple[SplitEngine, ServerLink]:
        """Return the engine and the link, for the driver of an answer.

        Raises:
            EngineError: the parts aren't loaded.
        """
        engine, link = self.engine, self._link
        if not isinstance(engine, SplitEngine) or link is None:
            raise EngineError("split: expected loaded parts, got none", endpoint=self.name)
        return engine, link

    async def _load(self) -> Engine:
        self._event_loop = asyncio.get_running_loop()
        if any(address.url.startswith("wss:") for address in self._addresses):
            self._addresses = await asyncio.to_thread(_trusting, self._addresses)
        return await super()._load()

    def _load_file(self) -> Engine:
        return SplitEngine(self._parts, self._make_link, self._options, drafts=self._drafts)

    def _make_link(self, info: PartInfo, _context_tokens: int) -> ServerLink:
        self._link = ServerLink(
            self._addresses,
            info,
            loop=self._event_loop,
            form=self.states,
            timeouts=self._limits,
            patience=self._patience,
            max_wait=self._max_wait,
            exact=self._options.exact,
            chunking=self._chunking,
        )
        return self._link

    async def aclose(self) -> None:
        """Cancel the answers, free the parts and close the connections; idempotent."""
        await super().aclose()
        if self._link is not None:
            self._link.is_closed = True
        await self._link_use.aclose()


class SplitStream(DeviceStream):
    """One answer of a split model.

    Args:
        endpoint: the split model's endpoint.
        request: the request.
        on_over: called when the answer has ended.
        driver: runs the answer's machine; None creates one when the parts are loaded.
    """

    _endpoint: SplitEndpoint

    def __init__(
        self, endpoint: SplitEndpoint, request: Request, *, on_over: Callable[[DeviceStream], None], driver: SplitDriver | None = None
    ) -> None:
        super().__init__(endpoint, request, on_over=on_over)
        self._driver = driver

    @property
    def split_figures(self) -> SplitFigures:
        """Figures on what the answer has sent and received so far."""
        driver = self._driver
        return self._endpoint.figures_of(SplitTally(), 0) if driver is None else self._endpoint.figures_of(driver.tally, driver.made)

    def _join(self, engine: Engine) -> None:
        if self._driver is None:
            self._driver = SplitDriver(*self._endpoint.parts())
            self._driver.start()

    def _generate(self, engine: Engine, request: GenerationRequest) -> Generation:
        assert self._driver is not None, "it was made before"
        return self._driver.submit(request, self._wake)

    def _close(self) -> None:
        super()._close()
        if self._driver is not None:
            self._driver.end()


def _address(url: Url, token: ServerKey, tls: ssl.SSLContext | None, *, is_plain: bool) -> VerifierAddress:
    full, name = verifier_url(url, is_plain=is_plain)
    return VerifierAddress(full, name, token, tls)


def _trusting(addresses: Sequence[VerifierAddress]) -> list[VerifierAddress]:
    """Return the addresses with the system's certificates filled in; reading these takes a while."""
    context = ssl.create_default_context()
    return [replace(each, tls=each.tls or context) if each.url.startswith("wss:") else each for each in addresses]
