"""Measured behaviour as data: the server's time to first token, the device's speed, lengths of prompts and answers, and costs.

Policies make their plans from these distributions. A ``Profile`` groups them and is stored as JSON; its callers read and write the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.profiles.distributions import LengthDistribution, RemainingLength, TTFTDistribution
from streamco.profiles.pair_profile import PairProfile
from streamco.profiles.rated_answer import RatedAnswer

__all__ = ["DeviceSpeed", "Link", "ModelShape", "PROFILE_VERSION", "Prices", "Profile"]

PROFILE_VERSION = 1


class DeviceSpeed(Struct, frozen=True, kw_only=True):
    """A device's time to first token: k l + c (DiSCo section 4.2), times a factor for its jitter around that line.

    Args:
        seconds_per_token: prefill time of a token (k).
        overhead: seconds that don't depend on length (c).
        decode_tokens_per_s: decode rate, or None if it isn't known.
        jitter: equally likely ratios of measured to predicted time; (1.0,) for times that are always on the line.
    """

    seconds_per_token: float
    overhead: float = 0.0
    decode_tokens_per_s: float | None = None
    jitter: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not (_is_number(self.seconds_per_token) and _is_number(self.overhead)):
            raise ConfigError(
                f"device speed: expected seconds per token >= 0 and overhead >= 0 s, got {self.seconds_per_token!r} and {self.overhead!r}"
            )
        if self.decode_tokens_per_s is not None and not (_is_number(self.decode_tokens_per_s) and self.decode_tokens_per_s > 0):
            raise ConfigError(f"device speed: expected decode tokens per second > 0, got {self.decode_tokens_per_s!r}")
        if not self.jitter or not all(_is_number(factor) and factor > 0 for factor in self.jitter):
            raise ConfigError(f"device speed: expected one or more jitter factors > 0, got {list(self.jitter)[:5]}")

    @classmethod
    def from_rates(cls, prefill_tokens_per_s: float, decode_tokens_per_s: float | None = None, *, overhead: float = 0.0) -> DeviceSpeed:
        """Return the speed for the two rates that benchmarks print (tokens per second); ``overhead`` is in seconds.

        Raises:
            ConfigError: a rate isn't above zero.
        """
        if not (_is_number(prefill_tokens_per_s) and prefill_tokens_per_s > 0):
            raise ConfigError(f"device speed: expected prefill tokens per second > 0, got {prefill_tokens_per_s!r}")
        return cls(seconds_per_token=1.0 / prefill_tokens_per_s, overhead=overhead, decode_tokens_per_s=decode_tokens_per_s)

    def ttft(self, tokens: int) -> float:
        """Return the seconds to the first token of a prompt of ``tokens``, without jitter."""
        return self.seconds_per_token * tokens + self.overhead


class Link(Struct, frozen=True, kw_only=True):
    """The network link between device and server."""

    rtt: float  # seconds
    bytes_per_s: float | None = None  # from device to server, or None if not known


class Prices(Struct, frozen=True, kw_only=True):
    """A server's prices in US dollars per token."""

    prompt: float
    completion: float
    cached_prompt: float | None = None  # None for the same as ``prompt``

    def __post_init__(self) -> None:
        for field in ("prompt", "completion", "cached_prompt"):
            value = getattr(self, field)
            if not (_is_number(value) or (value is None and field == "cached_prompt")):
                raise ConfigError(f"prices: {field}: expected US dollars per token >= 0, got {value!r}")


class ModelShape(Struct, frozen=True, kw_only=True):
    """The dimensions of a transformer that determine its FLOPs (DiSCo Appendix E.2)."""

    layers: int
    width: int  # d_model
    ffn_width: int
    vocabulary: int  # tokens
    heads: int = 1

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if getattr(self, field) < 1:
                raise ConfigError(f"model shape: {field}: expected >= 1, got {getattr(self, field)!r}")


class Profile(Struct, frozen=True, kw_only=True):
    """The figures of one user's device, server and prompts; a figure is None if it isn't known.

    Args:
        name: name of the setup that it describes.
        server_ttft: time to first token of the server.
        server_tokens_per_s: decode rate of the server.
        device: speed of the device.
        lengths: prompt lengths, in tokens.
        answers: answer lengths, in tokens.
        prices: prices of the server.
        shape: dimensions of the device's model.
        link: network link between the two.
        pair: figures of the device's model as a draft model for the server's.
        quality: measured quality by endpoint name, 0 or more, all on one scale; empty if it isn't known.
        ratings: figures of the answers that somebody has rated, without texts, oldest first.
        note: remarks for a reader of the figures.
        version: version of this format.
    """

    name: str = ""
    server_ttft: TTFTDistribution | None = None
    server_tokens_per_s: float | None = None
    device: DeviceSpeed | None = None
    lengths: LengthDistribution | None = None
    answers: RemainingLength | None = None
    prices: Prices | None = None
    shape: ModelShape | None = None
    link: Link | None = None
    pair: PairProfile | None = None
    quality: dict[str, float] = {}
    ratings: tuple[RatedAnswer, ...] = ()
    note: str = ""
    version: int = PROFILE_VERSION

    def __post_init__(self) -> None:
        check_quality(self.quality, where="profile: quality")

    def to_json(self, *, former: bytes | None = None) -> bytes:
        """Return the profile as indented UTF-8 JSON; ``from_json`` returns an equal profile.

        Args:
            former: JSON of the profile that this one replaces, if any. Fields that only a later version of the package knows are kept.
        """
        plain = msgspec.to_builtins(self, enc_hook=_to_plain)
        return msgspec.json.format(msgspec.json.encode(plain | _unknown_fields(former)), indent=1) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str, *, where: str = "profile") -> Profile:
        """Return the profile in JSON data.

        Args:
            data: JSON text.
            where: name of the data for error messages, such as the file's name.

        Raises:
            ConfigError: the data isn't JSON or isn't a profile, or has a version that this release doesn't know.
        """
        try:
            version = msgspec.json.decode(data, type=_Versioned).version
            if version != PROFILE_VERSION:
                raise ConfigError(f"{where}: expected profile version {PROFILE_VERSION}, got {version}")
            return msgspec.json.decode(data, type=cls, dec_hook=_from_plain)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{where}: expected a profile in JSON, got: {error}") from error


class _Versioned(Struct):
    version: int


def _unknown_fields(data: bytes | None) -> dict[str, Any]:
    """Return the fields of a profile in JSON that this version of the package doesn't know, or {} if the data isn't a profile."""
    try:
        fields = {} if data is None else msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if fields.get("version") != PROFILE_VERSION:
        return {}
    return {name: value for name, value in fields.items() if name not in Profile.__struct_fields__}


class _Curve(Struct):
    times: list[float]
    survival: list[float]


class _Counts(Struct):
    lengths: list[int]
    counts: list[float]


def _to_plain(value: Any) -> Any:
    match value:
        case TTFTDistribution():
            return _Curve(value.times.tolist(), value.survival.tolist())
        case LengthDistribution():
            return _Counts(value.lengths.tolist(), value.counts.tolist())
    raise NotImplementedError(f"expected part of a profile, got {type(value).__name__}")


def _from_plain(kind: Any, value: Any) -> Any:
    try:
        if kind is TTFTDistribution:
            curve = msgspec.convert(value, _Curve)
            return TTFTDistribution(curve.times, curve.survival)
        if kind is LengthDistribution:
            table = msgspec.convert(value, _Counts)
            return LengthDistribution(table.lengths, table.counts)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # the decoder adds the place in the data to any error but its own kind
    raise NotImplementedError(f"expected part of a profile, got {kind}")


def check_quality(quality: Mapping[str, float], *, where: str) -> None:
    """Refuse qualities that aren't finite numbers of 0 or more.

    Raises:
        ConfigError: a value isn't such a number.
    """
    for name, value in quality.items():
        if not _is_number(value):
            raise ConfigError(f"{where}: {name}: expected a number of 0 or more, got {value!r}")


def _is_number(value: object) -> bool:
    """Return True for a finite number of 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
