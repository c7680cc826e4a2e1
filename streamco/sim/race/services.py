"""The services and devices of a race, packaged or recorded, and prices.

A service is described by the time to first token and the rate of each request (DiSCo section 5.1 replays traces in the same way). A
packaged service has only the quantiles of both, and each request draws them independently. A client may know the first half of a recorded
service's rows beforehand, and the second half is replayed.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from streamco.emulation.latency_replay import LatencyProfile, quantile
from streamco.emulation.profiles import load_latency
from streamco.endpoints.known_servers.providers import GENERIC, PROVIDERS, Provider
from streamco.errors import ConfigError
from streamco.profiles import DeviceSpeed, ModelShape, Prices, TTFTDistribution

__all__ = ["JITTER", "OVERHEAD", "PHONES", "PRICES", "Phone", "PackagedService", "RecordedService", "ServiceModel", "Reply", "read_rows"]
__all__ += ["price_of", "provider_of", "read_services"]

JITTER = (0.85, 0.9, 0.95, 0.97, 1.0, 1.03, 1.06, 1.12, 1.3)  # assumed, because phones throttle and share their processor
OVERHEAD = 0.02  # seconds that a prefill takes in addition to its tokens; assumed
_POINTS = 500  # samples of a packaged service's distribution that a client knows
_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb, for traces that count characters
_FALSE = {"false", "0", "none", ""}
_WORD = re.compile(r"[ -]")
_MIN_GAP = 1e-3  # seconds per token; an answer that came in one piece counts as written at this rate


class Phone(Struct, frozen=True, kw_only=True):
    """A device with its model.

    Args:
        speed: how fast it reads and writes.
        shape: shape of the model, from which the energy of a token follows, or None if not known.
    """

    speed: DeviceSpeed
    shape: ModelShape | None = None


def _phone(prefill: float, decode: float, shape: ModelShape) -> Phone:
    speed = DeviceSpeed(seconds_per_token=1.0 / prefill, overhead=OVERHEAD, decode_tokens_per_s=decode, jitter=JITTER)
    return Phone(speed=speed, shape=shape)


PHONES: Mapping[str, Phone] = {
    "pixel7-bloom-1.1b": _phone(31.32, 13.93, ModelShape(layers=24, width=1024, heads=16, ffn_width=4096, vocabulary=250_880)),
    "pixel7-bloom-560m": _phone(51.80, 20.14, ModelShape(layers=24, width=512, heads=8, ffn_width=2048, vocabulary=250_880)),
    "xiaomi14-qwen-0.5b": _phone(79.90, 21.47, ModelShape(layers=24, width=768, heads=12, ffn_width=2048, vocabulary=151_936)),
}
"""The paper's devices. Rates are from DiSCo section 5.1, and shapes from its Appendix E.2; overhead and jitter are assumed."""


def _price(prompt: float, completion: float) -> Prices:
    return Prices(prompt=prompt * 1e-6, completion=completion * 1e-6)


PRICES: Mapping[str, Prices] = {
    "deepseek-v2.5": _price(0.14, 0.28),
    "gpt-4o-mini": _price(0.15, 0.60),
    "llama-3.1-70b-hyperbolic": _price(0.40, 0.40),
    "llama-3.1-70b-amazon": _price(0.99, 0.99),
    "command": _price(1.25, 2.00),
    "gpt-4o": _price(2.50, 10.0),
    "claude-3.5-sonnet": _price(3.00, 15.0),
    "o1-preview": _price(15.0, 60.0),
    "anyscale-llama-2-70b-chat": _price(1.00, 1.00),
    "azure-gpt-3.5-turbo-0613": _price(0.50, 1.50),
    "azure-gpt-4-1106-preview": _price(10.0, 30.0),
    "bedrock-llama-2-70b-chat": _price(1.95, 2.56),
    "fireworks-llama-2-70b-chat": _price(0.90, 0.90),
    "groq-llama-2-70b-chat": _price(0.90, 0.90),  # no longer on the list, so the price of Together's 41B to 80B models
    "openai-gpt-3.5-turbo-0125": _price(0.50, 1.50),
    "openai-gpt-3.5-turbo-0613": _price(0.50, 1.50),
    "openai-gpt-4-0125-preview": _price(10.0, 30.0),
    "openai-gpt-4-1106-preview": _price(10.0, 30.0),
    "perplexity-llama-2-70b-chat": _price(0.70, 2.80),
    "replicate-llama-2-70b-chat": _price(0.65, 2.75),
    "together-llama-2-70b-chat": _price(0.90, 0.90),
}
"""Prices in US dollars. The first eight are DiSCo's Table 8 (October 2024), the others are from LiteLLM's list 1.109.1 (MIT licence)."""


def price_of(name: str) -> Prices:
    """Return the prices that ``PRICES`` lists under this name.

    Raises:
        ConfigError: the name isn't on the list.
    """
    if name not in PRICES:
        raise ConfigError(f"prices: expected one of {', '.join(sorted(PRICES))}, got {name!r}")
    return PRICES[name]


def provider_of(service: str) -> Provider:
    """Return the provider whose name a service's name begins with, or ``GENERIC``, with no known capabilities, if there is none."""
    host = _WORD.split(service, maxsplit=1)[0].lower()
    return next((provider for provider in PROVIDERS if provider.name == host), GENERIC)


class Reply(NamedTuple):
    """The behaviour of a service for one request.

    Args:
        first: seconds to its first token.
        later: seconds to its first token when it is asked to continue the answer.
        rate: tokens per second after the first.
    """

    first: float
    later: float
    rate: float


class ServiceModel(Protocol):
    """A service from which replies can be drawn."""

    @property
    def ttft(self) -> TTFTDistribution:
        """The distribution of time to first token that a client may know beforehand."""
        ...

    @property
    def burst(self) -> int:
        """Number of tokens that come together."""
        ...

    def draw(self, rng: Random) -> Reply:
        """Return the reply to one request."""
        ...


class PackagedService:
    """A service given by quantiles. All its bursts have the mean size."""

    def __init__(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self.burst = max(1, round(_mean(profile.burst_chunks)))
        self._rate = _mean(profile.burst_chunks) / max(_mean(profile.gap_s), _MIN_GAP)

    @classmethod
    def load(cls, name: str) -> PackagedService:
        """Return the service described by a packaged profile with this name, or by this profile file.

        Raises:
            ConfigError: there is no such profile.
        """
        return cls(_packaged(name) if Path(name).name == name and not name.endswith(".json") else load_latency(name))

    @property
    def ttft(self) -> TTFTDistribution:
        """The distribution of time to first token, from the quantiles."""
        return TTFTDistribution.from_samples([quantile(self.profile.ttft_s, (index + 0.5) / _POINTS) for index in range(_POINTS)])

    def draw(self, rng: Random) -> Reply:
        """Draw a reply. Its rate is drawn if the profile has a gap for each request, and is the mean otherwise."""
        profile = self.profile
        first, later = quantile(profile.ttft_s, rng.random()), quantile(profile.ttft_s, rng.random())
        if profile.gap_of == "request":
            return Reply(first, later, 1.0 / max(quantile(profile.gap_s, rng.random()), _MIN_GAP))
        return Reply(first, later, self._rate)


class RecordedService:
    """A service given by recorded requests.

    Args:
        known: (seconds to the first token, tokens per second after it) pairs that a client may know beforehand.
        rows: pairs of the same kind, from which replies are drawn.

    Raises:
        ConfigError: either is empty.
    """

    burst = 1

    def __init__(self, known: Sequence[tuple[float, float]], rows: Sequence[tuple[float, float]]) -> None:
        if not known or not rows:
            raise ConfigError(f"recorded service: expected 2 requests or more, got {len(known) + len(rows)}")
        self.known, self.rows = known, rows

    @classmethod
    def halves(cls, rows: Sequence[tuple[float, float]]) -> RecordedService:
        """Split the rows: a client may know the first half beforehand, and replies are drawn from the second half."""
        return cls(rows[: len(rows) // 2], rows[len(rows) // 2 :])

    @property
    def ttft(self) -> TTFTDistribution:
        """The distribution of time to first token in the known rows."""
        return TTFTDistribution.from_samples([ttft for ttft, _ in self.known])

    def draw(self, rng: Random) -> Reply:
        """Return a reply from two random rows: one for the start of the answer, one for its continuation."""
        (first, rate), (later, _) = rng.choice(self.rows), rng.choice(self.rows)
        return Reply(first, later, rate)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file with a header or of JSON lines (``.jsonl``), plain or gzipped (``.gz``).

    Raises:
        ConfigError: the file can't be read.
    """
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            yield from map(json.loads, file) if plain.endswith(".jsonl") else csv.DictReader(file)
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error) as error:
        raise ConfigError(f"{path}: expected rows as CSV or JSON lines, got: {error}") from error


def read_services(path: Path, by: Sequence[str] = ()) -> dict[str, list[tuple[float, float]]]:
    """Read recorded (seconds to the first token, tokens per second after it) pairs, keyed by the values of the fields ``by``, joined by
    spaces.

    A row needs ``ttft_s``. It also needs ``tokens_per_s`` (or ``tps``), or the seconds of the whole answer (``e2e_s`` or ``total_s``) and
    its tokens (``output_tokens``, or else a quarter of ``output_chars``). Rows of failed requests (``success`` is false, or the time is 0)
    are left out.

    Raises:
        ConfigError: the file can't be read, or a row lacks a field.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            if str(row.get("success", True)).lower() not in _FALSE and (ttft := float(row["ttft_s"])) > 0:
                found.setdefault(" ".join(str(row[name]) for name in by), []).append((ttft, _rate(row, ttft)))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: row {number}: expected a recorded answer, got: {error!r}") from error
    return found


def _rate(row: Mapping[str, Any], ttft: float) -> float:
    """Return tokens per second after the first token."""
    recorded = row.get("tokens_per_s") or row.get("tps")
    if recorded:
        return min(float(recorded), 1.0 / _MIN_GAP)
    tokens = int(float(row["output_tokens"])) if "output_tokens" in row else row["output_chars"] // _CHARACTERS_A_TOKEN
    seconds = float(row["e2e_s"] if "e2e_s" in row else row["total_s"]) - ttft
    return (tokens - 1) / max(seconds, tokens / 1000.0) if tokens > 1 else 1000.0


@cache
def _packaged(name: str) -> LatencyProfile:
    """Return a packaged profile, read only once, because a sweep needs the same few profiles thousands of times."""
    return load_latency(name)


def _mean(table: Sequence[float]) -> float:
    """Return the mean of a distribution given by evenly spaced quantiles, with linear interpolation."""
    return table[0] if len(table) == 1 else (sum(table) - (table[0] + table[-1]) / 2) / (len(table) - 1)
