"""The options of an experiment of ``kind: race``, and the devices, services, lengths and prices that they name."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from streamco.config import READING, parse_pace
from streamco.endpoints.known_servers.providers import GENERIC, Provider, find_provider
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from streamco.policies.budget_control import BURST
from streamco.policies.dispatch import Side
from streamco.policies.dispatch_device_constrained import TAIL
from streamco.policies.migration import TransferRule
from streamco.profiles import DeviceSpeed, ModelShape, Prices
from streamco.sim.experiment.scenario import Scenario
from streamco.sim.race.lengths import ALPACA, QuantileLengths, RecordedLengths, RequestLengths, read_request_lengths
from streamco.sim.race.services import (
    JITTER,
    OVERHEAD,
    PHONES,
    PRICES,
    PackagedService,
    Phone,
    RecordedService,
    ServiceModel,
    price_of,
    provider_of,
    read_services,
)
from streamco.sim.workload.workload import ArrivalOptions

__all__ = ["DeviceOptions", "PriceOptions", "RaceOptions", "RacePolicy", "RaceWorkload", "RaceWorld", "TraceOptions"]
__all__ += ["find_lengths", "find_phone", "find_prices", "find_server", "find_service"]

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
Dispatch = Literal[
    "auto",
    "disco",
    "device-constrained",
    "server-constrained",
    "proportional-wait",
    "optimal",
    "stochastic",
    "both",
    "device-first",
    "device-only",
    "server-first",
    "server-only",
]


_ALPACA = QuantileLengths(*ALPACA)  # one shared object, so that the known distributions are computed only once


class DeviceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device described by its rates.

    Args:
        prefill_tokens_per_s, decode_tokens_per_s: how fast it reads and writes.
        overhead_ms: milliseconds that a prefill takes in addition to its tokens.
        jitter: equally likely ratios of measured to expected prefill time.
        model: shape of its model, from which the energy follows, or None if costs aren't needed.
    """

    prefill_tokens_per_s: Positive
    decode_tokens_per_s: Positive
    overhead_ms: NotNegative = OVERHEAD * 1000.0
    jitter: tuple[Positive, ...] = JITTER
    model: ModelShape | None = None


class TraceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded service.

    Args:
        file: CSV or JSON lines; see ``services.read_services``.
        where: fields and the values that select the service's rows.
    """

    file: str
    where: dict[str, str] = {}


class PriceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices in US dollars per million tokens."""

    prompt: NotNegative
    completion: NotNegative
    cached_prompt: NotNegative | None = None


class RaceWorld(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoints of a race, and its reader.

    Args:
        device: a packaged phone's name, or rates.
        service: a packaged latency profile's name (or file), or a recorded trace.
        provider: the service's provider (docs/endpoints.md), which determines whether it can continue an answer; "vllm" can. With None,
            the provider is the first word in a packaged profile's name. Any other service can't continue an answer.
        requests_per_min: requests that the service accepts per minute, or None for no limit. It refuses the others with 429, and says when
            to retry.
        prices: a name in ``services.PRICES``, or prices, or None for a packaged service's prices.
        places: number of answers that the device makes at a time.
        reader_tokens_per_s: consumption rate of the virtual reader.
    """

    device: str | DeviceOptions = "xiaomi14-qwen-0.5b"
    service: str | TraceOptions = "openai-gpt-4-0125-preview"
    provider: str | None = None
    requests_per_min: Count | None = None
    prices: str | PriceOptions | None = None
    places: Count = EngineOptions().max_sequences
    reader_tokens_per_s: Positive = READING

    def __post_init__(self) -> None:
        find_phone(self.device)
        find_server(self)
        find_prices(self)
        if isinstance(self.service, str) and not _is_file(self.service):
            PackagedService.load(self.service)


class RaceWorkload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requests of a race.

    Args:
        requests: number of requests that are measured.
        warm_up: number of answers before them, from which the client only learns.
        arrivals: when requests come (docs/workloads.md); "closed" isn't allowed. With None, each comes when the one before it has ended.
        lengths: "alpaca", or a file of recorded lengths (``lengths.read_request_lengths``).
        max_tokens: maximum length of an answer, or None for no limit (128 in DiSCo Appendix E).
    """

    requests: Count = 1000
    warm_up: Annotated[int, Meta(ge=0)] = 30
    arrivals: ArrivalOptions | None = None
    lengths: str = "alpaca"
    max_tokens: Count | None = 128

    def __post_init__(self) -> None:
        if self.arrivals is not None and self.arrivals.closed is not None:
            raise ConfigError("workload: arrivals: expected poisson_per_s or azure, got closed")


class RacePolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the client.

    Args:
        dispatch: a dispatch policy's name (docs/dispatch.md); "auto" is the client's default, "disco" the paper's Algorithm 2 or 3.
        constrained: the constrained side, or None to let the costs decide (Algorithm 1).
        budget: share of prompt tokens that this side may process.
        burst: prompt tokens that may be borrowed from the budget for answers that would wait at the device; 0 for none.
        migration: how answers migrate to the cheaper side.
        min_quality: see ``streamco.MigrationOptions``. With None, answers migrate only to the server, as the device's quality isn't known.
        pace: tokens per second at the reader, "reading", "listening" or "smooth" (as they come, but evenly), or None for no pacing.
        exchange_rate: US dollars per million GFLOPs, or None for Appendix E's value for the constrained side.
        tail, tail_weight, explore: see ``streamco.Race``.
        prior: True if the client knows service, device and lengths beforehand. This is the only use of a recorded service's first half.
    """

    dispatch: Dispatch = "auto"
    constrained: Side | None = None
    budget: Share = 0.3
    burst: Annotated[int, Meta(ge=0)] = BURST
    migration: Literal["none"] | TransferRule = "none"
    min_quality: Share | None = None
    pace: float | str | None = None
    exchange_rate: NotNegative | None = None
    tail: Share = TAIL
    tail_weight: NotNegative = 0.0
    explore: Share = 0.05
    prior: bool = True

    def __post_init__(self) -> None:
        parse_pace(self.pace)


class RaceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of a race."""

    world: RaceWorld = field(default_factory=RaceWorld)
    workload: RaceWorkload = field(default_factory=RaceWorkload)
    policy: RacePolicy = field(default_factory=RacePolicy)


def find_phone(device: str | DeviceOptions) -> Phone:
    """Return the device that an experiment names or describes.

    Raises:
        ConfigError: the name isn't known.
    """
    if isinstance(device, str):
        if device not in PHONES:
            raise ConfigError(f"device: expected one of {', '.join(PHONES)}, or rates, got {device!r}")
        return PHONES[device]
    speed = DeviceSpeed.from_rates(device.prefill_tokens_per_s, device.decode_tokens_per_s, overhead=device.overhead_ms / 1000.0)
    return Phone(speed=replace(speed, jitter=device.jitter), shape=device.model)


def find_service(service: str | TraceOptions, scenario: Scenario) -> ServiceModel:
    """Return the service that an experiment names.

    Raises:
        ConfigError: the name isn't known, or the file is missing or has no such rows.
    """
    if isinstance(service, str):
        return PackagedService.load(str(scenario.locate(service)) if _is_file(service) else service)
    path = scenario.locate(service.file)
    rows = read_services(path, tuple(service.where))
    wanted = " ".join(service.where.values())
    if wanted not in rows:
        raise ConfigError(f"{path}: expected rows of one of {', '.join(sorted(rows))}, got {wanted!r}")
    return RecordedService.halves(rows[wanted])


def find_server(world: RaceWorld) -> Provider:
    """Return the service's provider.

    Raises:
        ConfigError: there is no provider with this name.
    """
    if world.provider is not None:
        return find_provider(world.provider)
    return provider_of(world.service) if isinstance(world.service, str) else GENERIC


def find_lengths(lengths: str, scenario: Scenario) -> RequestLengths:
    """Return the length distributions that an experiment names.

    Raises:
        ConfigError: the file is missing or has no lengths.
    """
    return _ALPACA if lengths == "alpaca" else RecordedLengths.halves(read_request_lengths(scenario.locate(lengths)))


def find_prices(world: RaceWorld) -> Prices | None:
    """Return the prices of the service, or None if they aren't known.

    Raises:
        ConfigError: the name isn't on the list.
    """
    match world.prices:
        case PriceOptions(prompt=prompt, completion=completion, cached_prompt=cached):
            return Prices(prompt=prompt * 1e-6, completion=completion * 1e-6, cached_prompt=None if cached is None else cached * 1e-6)
        case str(name):
            return price_of(name)
    return PRICES.get(world.service) if isinstance(world.service, str) else None


def _is_file(service: str) -> bool:
    return service.endswith(".json")
