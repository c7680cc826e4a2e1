"""The device and the verifier as a pair: found at the start, asked whether they fit, and what is known of them kept over answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from streamco.client.speculation.options import VerifierSetting
from streamco.endpoints.base import Endpoint
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.base import Verifier, VerifierFacts
from streamco.engines.base import EngineOptions
from streamco.errors import EndpointError, VerifierError
from streamco.policies.importance import LAYERS
from streamco.policies.offload import OffloadRule

if TYPE_CHECKING:
    from streamco.endpoints.openai import OpenAIEndpoint

__all__ = ["VerifierBinding", "drafting_engine_options"]

_log = logging.getLogger("streamco")


HELD_SEQUENCES = 8  # of a device that is loaded for one answer at a time: the draft and its branches, and one to spare
_ASK_AGAIN = 30.0  # seconds after which a verifier that could not be used is asked again


def drafting_engine_options(
    options: EngineOptions, budget: float, places: int = HELD_SEQUENCES, *, offload: OffloadRule = "combined"
) -> EngineOptions:
    """Return an engine's options with what drafting needs: places for drafts and, where attention chooses what is judged, its layers."""
    layers = LAYERS if budget < 1.0 and offload in {"combined", "importance"} else ()
    return replace(options, held_sequences=places, attention_layers=layers)


class VerifierBinding:
    """The verifier of a client, and whether it fits its device; shared by clients from ``with_options``.

    Args:
        setting: as for ``Client``.
        device: drafts; None: there is none.
        servers: the first may be asked to verify.

    Attributes:
        verifier: None until it is found.
        problem: why nothing can be speculated; "": it can.

    Raises:
        ConfigError: a URL that is none.
    """

    def __init__(self, setting: VerifierSetting, device: Endpoint | None, servers: Sequence[Endpoint]) -> None:
        self.verifier: Verifier | None = _make_verifier(setting)
        self.problem = "the verifier was not asked yet"
        self.server = servers[0] if servers else None
        self._device = device
        self._asking: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    @property
    def device(self) -> DeviceEndpoint:
        """Who drafts."""
        if not isinstance(self._device, DeviceEndpoint):
            raise AssertionError("somebody drafts where there is no problem")
        return self._device

    @property
    def facts(self) -> VerifierFacts:
        """What the verifier said."""
        if self.verifier is None or self.verifier.facts is None:
            raise AssertionError("a verifier without a problem has said what it can")
        return self.verifier.facts

    @property
    def rtt(self) -> float | None:
        """Of the link to the verifier, seconds; None: not measured."""
        return None if self.verifier is None else self.verifier.rtt

    @property
    def models(self) -> frozenset[str]:
        """Names that mean the verifier's model."""
        names = {self.facts.model, getattr(self.server, "model", None)}
        return frozenset(name for name in names if name)

    async def start(self) -> None:
        """Find and ask the verifier; what is wrong with it becomes ``problem``. The device was started before."""
        async with self._lock:
            if self._asked_at is None:
                await self._ask()

    def note_trouble(self, problem: str) -> None:
        """An answer showed what is wrong with the verifier: the next ones do without until it was asked again."""
        if not self.problem:
            self._note(problem)

    def look_again(self) -> None:
        """Ask a verifier once more that could not be used, if that was a while ago; answers meanwhile do without."""
        is_due = self._asked_at is not None and monotonic() - self._asked_at >= _ASK_AGAIN
        if self.problem and is_due and self._asking is None and not self._is_closed:
            self._asking = asyncio.create_task(self._ask(), name="streamco ask the verifier again")
            self._asking.add_done_callback(self._forget)

    async def aclose(self) -> None:
        """Close the verifier; idempotent."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self.verifier is not None:
            await self.verifier.aclose()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _ask(self) -> None:
        try:
            self._note(await self._find())
        except (EndpointError, VerifierError) as error:
            self._note(str(error))

    def _note(self, problem: str) -> None:
        """Said once, however often it is asked in vain."""
        is_new = self._asked_at is None or not self.problem
        self.problem, self._asked_at = problem, monotonic()
        if problem and is_new:
            _log.warning("answers are not speculated: %s", problem)

    async def _find(self) -> str:
        """Return what is wrong; "": nothing."""
        if not isinstance(self._device, DeviceEndpoint):
            return "no device" if self._device is None else f"{self._device.name} can't draft"
        if self._device.engine is None:
            return f"{self._device.name} could not be loaded"
        if self.verifier is None:
            from streamco.endpoints.openai import OpenAIEndpoint

            if not isinstance(self.server, OpenAIEndpoint):
                return "no verifier" if self.server is None else f"{self.server.name} can't verify"
            found = await _ask_server(self.server)
            if found is None or self._is_closed:
                return f"{self.server.name} can't verify"
            self.verifier = found
        await self.verifier.start(self._device.engine)
        await self.verifier.probe()
        return ""


def _make_verifier(setting: VerifierSetting) -> Verifier | None:
    if not isinstance(setting, str):
        return setting
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint

    return VerifierEndpoint(setting)


async def _ask_server(server: OpenAIEndpoint) -> Verifier | None:
    """Return the verifier behind a server's API; None: it is of another kind.

    Raises:
        EndpointError: it doesn't answer.
    """
    from streamco.endpoints.verifiers.discovery import find_verifier

    return await find_verifier(server)
