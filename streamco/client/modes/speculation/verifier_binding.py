"""Binds a verifier to a client's device: finds it, probes it to see whether the two fit, and probes it again after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.lookup_drafter import LookupEndpoint
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.verifiers.base import TellsVocabulary, Verifier, VerifierFacts
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.pool_session import AssignedVerifier
from streamco.engines.base import Engine, EngineOptions, TokenVocabulary
from streamco.errors import EndpointError, UsageError, VerifierError
from streamco.policies.importance import LAYERS
from streamco.policies.offload import OffloadRule

if TYPE_CHECKING:
    from streamco.endpoints.openai import OpenAIEndpoint

__all__ = ["VerifierBinding", "VerifierSetting", "drafting_engine_options", "reserve_places"]

VerifierSetting = str | Verifier | Sequence[str | Verifier] | None
"""A verifier or its URL, or several that have the same model and share the answers (``VerifierPool``); None means the first server."""

_log = logging.getLogger("streamco")


HELD_SEQUENCES = 8  # token sequences that a device needs for one answer at a time: the trunk, six branches, and a spare one
_PROBE_AGAIN = 30.0  # seconds after which an unusable verifier is probed again


def drafting_engine_options(
    options: EngineOptions, budget: float, sequences: int = HELD_SEQUENCES, *, offload: OffloadRule = "combined"
) -> EngineOptions:
    """Return an engine's options with the changes that drafting needs.

    Args:
        options: the engine's options.
        budget: share of the drafted tokens that are verified, 0..1.
        sequences: number of token sequences for drafts.
        offload: filters that choose the drafts to verify. If they need attention and the budget is below 1, the engine reads it.
    """
    layers = LAYERS if budget < 1.0 and offload in {"combined", "importance"} else ()
    return replace(options, held_sequences=sequences, attention_layers=layers)


def reserve_places(device: Endpoint | None, budget: float, *, offload: OffloadRule, branches: int = HELD_SEQUENCES - 2) -> None:
    """Reserve sequences for drafts when a device's model is loaded, unless its options already do. A loaded model stays as it is.

    Args:
        device: the endpoint; nothing is reserved unless it is a ``DeviceEndpoint``, because others can't draft.
        budget: share of the drafted tokens that are verified, 0..1.
        offload: filters that choose the drafts to verify.
        branches: maximum number of a draft's branches; if it is higher than usual, the device gets more sequences.
    """

    def with_places(options: EngineOptions) -> EngineOptions:
        if options.held_sequences:
            return options
        changed = drafting_engine_options(options, budget, max(HELD_SEQUENCES, branches + 2), offload=offload)
        return replace(changed, attention_layers=options.attention_layers or changed.attention_layers)

    if isinstance(device, DeviceEndpoint):
        device.change_options(with_places)


class _Probes(LoopState):
    """The probes on one event loop."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.at: float | None = None
        self.lock = asyncio.Lock()

    async def aclose(self) -> None:
        """See ``LoopState``."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    def forget(self, task: asyncio.Task[None]) -> None:
        """Forget a background probe that is over."""
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


class VerifierBinding:
    """A client's verifier, and whether it fits the device; shared by clients from ``with_options``.

    Args:
        setting: the verifier as given to ``Speculate``.
        device: the endpoint that drafts, or None.
        is_lookup: True if drafts are looked up, in the verifier's vocabulary, so that the device doesn't have to draft.
        servers: the servers, the first of which may be a verifier.
        may_warn: True to log problems as warnings, each once.

    Attributes:
        verifier: the verifier, or None if it hasn't been found.
        server: the first server, or None.
        problem: why answers can't be speculated, or "" if they can.

    Raises:
        ConfigError: the setting isn't a valid URL.
    """

    def __init__(
        self,
        setting: VerifierSetting,
        device: Endpoint | None,
        servers: Sequence[Endpoint],
        *,
        is_lookup: bool = False,
        may_warn: bool = True,
    ) -> None:
        self.verifier: Verifier | None = _make_verifier(setting)
        self.problem = "the verifier was not probed yet"
        self.server = servers[0] if servers else None
        self._device = device
        self._lookup: LookupEndpoint | None = None
        self._is_lookup = is_lookup
        self._may_warn = may_warn
        self._probes = LoopBound(_Probes, owner="client")
        self._was_probed = False
        self._is_closed = False

    @property
    def device(self) -> DeviceEndpoint:
        """The device that drafts."""
        if not isinstance(self._device, DeviceEndpoint):
            raise AssertionError("a binding without a problem has a device")
        return self._device

    @property
    def drafter(self) -> DeviceEndpoint | LookupEndpoint:
        """The endpoint that drafts: the device, or the one that looks drafts up."""
        return self.device if self._lookup is None else self._lookup

    @property
    def vocabulary(self) -> TokenVocabulary:
        """The vocabulary that drafts are made in."""
        drafter = self.drafter
        vocabulary = drafter.vocabulary if isinstance(drafter, LookupEndpoint) else drafter.engine
        if vocabulary is None:
            raise AssertionError("a binding without a problem has a model that is loaded")
        return vocabulary

    @property
    def facts(self) -> VerifierFacts:
        """The facts that the verifier reported when it was probed; ``problem`` must be ""."""
        if self.verifier is None or self.verifier.facts is None:
            raise AssertionError("a verifier without a problem was probed")
        return self.verifier.facts

    @property
    def rtt(self) -> float | None:
        """The round-trip time to the verifier in seconds, or None if it hasn't been measured."""
        return None if self.verifier is None else self.verifier.rtt

    def assign(self) -> Verifier:
        """Return the verifier for one answer: one of several, or the only one."""
        if isinstance(self.verifier, VerifierPool):
            return AssignedVerifier(self.verifier)
        if self.verifier is None:
            raise AssertionError("a binding without a problem has a verifier")
        return self.verifier

    @property
    def models(self) -> frozenset[str]:
        """All names of the verifier's model."""
        names = {self.facts.model, getattr(self.server, "model", None)}
        return frozenset(name for name in names if name)

    async def start(self) -> None:
        """Find and probe the verifier, once per event loop; a failure is stored in ``problem``. The device must have started."""
        probes = self._probes.get()
        async with probes.lock:
            if probes.at is None:
                await self._probe()

    def record_problem(self, problem: str) -> None:
        """Record a problem that an answer had with the verifier. The next answers aren't speculated until it has been probed again.

        If there are several verifiers, the failed ones are already left out. As long as another one is free, the next answers go there.
        """
        if isinstance(self.verifier, VerifierPool) and self.verifier.is_free:
            return
        if not self.problem:
            self._set_problem(problem)

    def probe_again(self) -> None:
        """Probe an unusable verifier in the background, if the last probe was a while ago."""
        probes = self._probes.get()
        is_due = probes.at is not None and monotonic() - probes.at >= _PROBE_AGAIN
        if self.problem and is_due and probes.task is None and not self._is_closed:
            probes.task = asyncio.create_task(self._probe_again(), name="streamco probe the verifier again")
            probes.task.add_done_callback(probes.forget)

    async def aclose(self) -> None:
        """Close the verifier; idempotent."""
        self._is_closed = True
        await self._probes.aclose()
        if self.verifier is not None:
            await self.verifier.aclose()

    async def _probe(self) -> None:
        try:
            self._set_problem(await self._find())
        except (EndpointError, VerifierError) as error:
            self._set_problem(str(error))

    async def _probe_again(self) -> None:
        try:
            await self._probe()
        except UsageError as error:  # the server was restarted with a model that has another vocabulary
            self._set_problem(str(error))

    def _set_problem(self, problem: str) -> None:
        """Set ``problem``, and log it only once, however many probes fail."""
        is_new = not self._was_probed or not self.problem
        self.problem, self._was_probed = problem, True
        if (probes := self._probes.current) is not None:
            probes.at = monotonic()
        if problem and is_new and self._may_warn:
            _log.warning("answers are not speculated: %s", problem)

    async def _find(self) -> str:
        """Find and probe the verifier; return the problem, or "" if there is none."""
        if not self._is_lookup and (problem := self._why_no_device()):
            return problem
        if self.verifier is None:
            from streamco.endpoints.openai import OpenAIEndpoint

            if not isinstance(self.server, OpenAIEndpoint):
                return "no verifier" if self.server is None else f"{self.server.name} can't verify"
            found = await _find_at_server(self.server)
            if found is None or self._is_closed:
                return f"{self.server.name} can't verify"
            self.verifier = found
        lookup = await self._find_vocabulary(self.verifier) if self._is_lookup else None
        await self.verifier.start(self.vocabulary if lookup is None else lookup.vocabulary)
        self._lookup = lookup
        await self.verifier.probe()
        return ""

    def _why_no_device(self) -> str:
        """Return why the device can't draft, or "" if it can."""
        if not isinstance(self._device, DeviceEndpoint):
            return "no device" if self._device is None else f"{self._device.name} can't draft"
        if self._device.engine is None:
            return f"{self._device.name} could not be loaded"
        if not getattr(self._device.engine, "held_sequences", 0):
            return (
                f"{self._device.name}: expected an engine with EngineOptions(held_sequences=...) above 0, got one without places for drafts"
            )
        return ""

    async def _find_vocabulary(self, verifier: Verifier) -> LookupEndpoint:
        """Return the endpoint that looks drafts up, in the vocabulary that the verifier reports or else the device model's vocabulary.

        Raises:
            EndpointError: the verifier doesn't reply.
            VerifierError: there is no vocabulary to look drafts up in.
        """
        device = self._device if isinstance(self._device, DeviceEndpoint) else None
        engine = None if device is None else device.engine
        if isinstance(verifier, TellsVocabulary):
            told = None if self.server is None else self.server.capabilities.vocabulary
            if engine is None or told != engine.info.vocabulary:
                served = await verifier.read_vocabulary()
                return LookupEndpoint(served, verifier.read_prompt)
        if device is None or engine is None:
            raise VerifierError(
                f'{verifier.name}: drafter="lookup" expected a server that tells its vocabulary (streamco serve), or a device with a model '
                "of the same vocabulary, got neither"
            )
        return LookupEndpoint(engine, partial(_read_prompt, device, engine))


async def _read_prompt(device: DeviceEndpoint, engine: Engine, request: Request, _: float) -> list[int]:
    return await asyncio.to_thread(device.prompt_ids, engine, request)


def _make_verifier(setting: VerifierSetting) -> Verifier | None:
    if not isinstance(setting, str):
        return VerifierPool(setting) if isinstance(setting, Sequence) else setting
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint

    return VerifierEndpoint(setting)


async def _find_at_server(server: OpenAIEndpoint) -> Verifier | None:
    """Return the verifier at a server's address, or None if the server can't verify.

    Raises:
        EndpointError: the server doesn't reply.
    """
    from streamco.endpoints.verifiers.discovery import find_verifier

    return await find_verifier(server)
