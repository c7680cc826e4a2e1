"""A split model as an endpoint: its first layers and head are on this machine, its middle layers at a server (HAT).

It is a device's endpoint with another engine: template, tokens, sampling, stop strings and text are made here. docs/split.md says what
that hides, and what it doesn't.
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
        """See ``LoopState``."""
        if self.link is not None:
            await self.link.release()


class SplitEndpoint(DeviceEndpoint):
    """The device's parts of a model, and the servers that compute its middle layers.

    Args:
        parts: common beginning of the parts' files: ``parts/NAME`` of ``parts/NAME.input.gguf`` and ``parts/NAME.head.gguf``.
        servers: URL of a split server, or several: if one is lost, the next one continues its answers.
        token: bearer token for all of them, or a function, sync or async, that is called for the token of each connection; None: none.
        name: name in reports and errors.
        options: settings of the engine; see ``SplitEngine``. ``exact`` needs servers in exact mode, too.
        states: format of the hidden states on the way. "f32" loses nothing; "f16" takes half the bytes, and with quantised weights a token
            may differ where two are nearly as likely; "i8" a quarter, and about 2 tokens in 100 differ. "auto": an answer has "f16" if the
            link is known to take longer for a prompt's row in "f32" than the server, else "f32"; in exact mode always "f32".
        drafts: how tokens are drafted, so that a trip makes several. "auto": by the draft layer for this model that is packaged or in the
            user's cache folder, if there is one; None: not at all. It changes no token.
        chunking: how a prompt is cut, so that the server computes while it is sent. "fastest": in the way with the shortest predicted time,
            perhaps in one piece; "balanced": by HAT's equation 3; "whole": in one piece; a number: in chunks of so many tokens.
        timeouts: ``connect`` until a server has taken a session, ``first_token`` until rows are answered, ``socket`` for a ping.
        patience: seconds that all servers may be out of reach before an answer fails.
        max_wait: seconds that an answer waits for servers that are there, and busy with other answers; 0: it fails at once.
        tls: certificates to trust; None: the system's.
        is_plain: allow ``ws://`` to other machines: states and token can be read on the way.

    Raises:
        ConfigError: no server, a malformed URL, or a format that doesn't exist.
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
        """Abilities of a device, except that no prompt is kept for a later request."""
        return replace(super().capabilities, pre_copy="none")

    @property
    def addresses(self) -> tuple[VerifierAddress, ...]:
        """The servers, best first."""
        return tuple(self._addresses)

    @property
    def is_exact(self) -> bool:
        """True if all states travel in 32 bits, which lose nothing. In exact mode, too, texts are those of a whole model in exact mode."""
        return self.states == "f32"

    @property
    def input_layers(self) -> int:
        """Number of layers on the device; 0: not known yet."""
        return 0 if self._link is None else self._link.mark.first_layer

    @property
    def link(self) -> ServerLink | None:
        """The connections to the servers; None before ``start``."""
        return self._link

    @property
    def traffic(self) -> SplitTraffic:
        """What went to the servers and came back so far."""
        return SplitTraffic() if self._link is None else self._link.traffic

    async def start(self) -> None:
        """Load the parts and connect to a server; idempotent.

        Raises:
            EndpointError: the parts can't be loaded, or no server can be reached.
            VerifierError: the server has other layers, or refuses this client.
        """
        await super().start()
        if self._link is not None:
            self._use(self._link)
            await self._link.connect()

    def open(self, request: Request, driver: SplitDriver | None = None) -> SplitStream:
        """Begin an answer; see ``DeviceEndpoint.open``.

        Args:
            request: the request.
            driver: runs the answer's machine, and is started; None: the stream has one of its own.
        """
        if self._link is not None:
            self._use(self._link)
        return self._begin(SplitStream(self, request, on_over=self._work.get().streams.discard, driver=driver))

    def _use(self, link: ServerLink) -> None:
        """Let the link have its connections on the running event loop."""
        use = self._link_use.get()
        if use.link is None:
            link.enter(asyncio.get_running_loop())
            use.link = link

    def figures_of(self, tally: SplitTally, tokens: int) -> SplitFigures:
        """Return what an answer has sent and received, as users see it; ``tokens`` of it were made."""
        states = "f32" if self.states == "auto" else self.states
        return tally.figures(tokens=tokens, input_layers=self.input_layers, states=states)

    def parts(self) -> tuple[SplitEngine, ServerLink]:
        """Return what the driver of an answer works with.

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
        endpoint: the model.
        request: the request.
        on_over: called when the answer has ended.
        driver: runs the answer's machine; None: one is made when the parts are loaded.
    """

    _endpoint: SplitEndpoint

    def __init__(
        self, endpoint: SplitEndpoint, request: Request, *, on_over: Callable[[DeviceStream], None], driver: SplitDriver | None = None
    ) -> None:
        super().__init__(endpoint, request, on_over=on_over)
        self._driver = driver

    @property
    def split_figures(self) -> SplitFigures:
        """What the answer has sent and received so far."""
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
    """Return the addresses with the system's certificates; reading them takes a while."""
    context = ssl.create_default_context()
    return [replace(each, tls=each.tls or context) if each.url.startswith("wss:") else each for each in addresses]
