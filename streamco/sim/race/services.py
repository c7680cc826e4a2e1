"""What a race is between: services, devices, and how long prompts and answers are; packaged, or recorded by somebody.

A service is how soon its first token came and how fast it wrote, request by request (DiSCo section 5.1 replays traces in the same way). A
packaged one has only the quantiles of both; they are drawn independently, and so is every request's place among them. Of a recorded one the
first half of the rows is what a client may know before, and the second half is what happens.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.profiles import DeviceSpeed, ModelShape, Prices, TTFTDistribution
from streamco.server.latency_replay import LatencyProfile, quantile
from streamco.server.profiles import load_latency

__all__ = ["JITTER", "OVERHEAD", "PHONES", "PRICES", "Phone", "PackagedService", "RecordedService", "ServiceModel", "Reply", "read_rows"]
__all__ += ["price_of", "read_services"]

JITTER = (0.85, 0.9, 0.95, 0.97, 1.0, 1.03, 1.06, 1.12, 1.3)  # assumed: phones throttle and share their processor
OVERHEAD = 0.02  # seconds a reading takes beside its tokens; assumed
_POINTS = 500  # of a packaged service's distribution, as a client knows it
_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb, where a trace counts characters
_FALSE = {"false", "0", "none", ""}
_LEAST = 1e-3  # seconds a token; an answer that came in one piece counts as written so fast


class Phone(Struct, frozen=True, kw_only=True):
    """A device with its model.

    Args:
        speed: of reading and writing.
        shape: what a token's energy follows from; None: not known.
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
"""The paper's devices: tokens/s of prefill and decode from DiSCo section 5.1, shapes from its Appendix E.2; overhead and jitter assumed."""


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
    "groq-llama-2-70b-chat": _price(0.90, 0.90),  # its own is not on the list any more: that of Together's 41B to 80B
    "openai-gpt-3.5-turbo-0125": _price(0.50, 1.50),
    "openai-gpt-3.5-turbo-0613": _price(0.50, 1.50),
    "openai-gpt-4-0125-preview": _price(10.0, 30.0),
    "openai-gpt-4-1106-preview": _price(10.0, 30.0),
    "perplexity-llama-2-70b-chat": _price(0.70, 2.80),
    "replicate-llama-2-70b-chat": _price(0.65, 2.75),
    "together-llama-2-70b-chat": _price(0.90, 0.90),
}
"""US dollars: the first eight are DiSCo's Table 8 (October 2024); the packaged services' are LiteLLM's list 1.109.1 (MIT licence)."""


def price_of(name: str) -> Prices:
    """Return a listed price.

    Raises:
        ConfigError: the name is not on the list.
    """
    if name not in PRICES:
        raise ConfigError(f"prices: expected one of {', '.join(sorted(PRICES))}, got {name!r}")
    return PRICES[name]


class Reply(NamedTuple):
    """How a service behaves towards one request.

    Args:
        first: seconds to its first token.
        later: the same where it is asked again, to go on with the answer.
        rate: tokens per second behind the first.
    """

    first: float
    later: float
    rate: float


class ServiceModel(Protocol):
    """A service that can be drawn from."""

    @property
    def ttft(self) -> TTFTDistribution:
        """What a client may know of its time to first token before."""
        ...

    @property
    def burst(self) -> int:
        """Tokens that come together."""
        ...

    def draw(self, rng: Random) -> Reply:
        """Return one request's fate."""
        ...


class PackagedService:
    """A service of which quantiles are known; its bursts all have the mean size, at the mean rate."""

    def __init__(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self.burst = max(1, round(_mean(profile.burst_chunks)))
        self._rate = _mean(profile.burst_chunks) / max(_mean(profile.gap_s), _LEAST)

    @classmethod
    def load(cls, name: str) -> PackagedService:
        """By the name of a packaged profile, or from a file.

        Raises:
            ConfigError: there is no such profile.
        """
        return cls(_packaged(name) if Path(name).name == name and not name.endswith(".json") else load_latency(name))

    @property
    def ttft(self) -> TTFTDistribution:
        """The quantiles."""
        return TTFTDistribution.from_samples([quantile(self.profile.ttft_s, (index + 0.5) / _POINTS) for index in range(_POINTS)])

    def draw(self, rng: Random) -> Reply:
        """Of profiles that have a gap for each request, that one's; of the others the mean."""
        profile = self.profile
        first, later = quantile(profile.ttft_s, rng.random()), quantile(profile.ttft_s, rng.random())
        if profile.gap_of == "request":
            return Reply(first, later, 1.0 / max(quantile(profile.gap_s, rng.random()), _LEAST))
        return Reply(first, later, self._rate)


class RecordedService:
    """A service whose requests were recorded, in their order.

    Args:
        known: (seconds to the first token, tokens per second behind it), what a client may know before.
        rows: the same, what happens.

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
        """Return the first half is known."""
        return cls(rows[: len(rows) // 2], rows[len(rows) // 2 :])

    @property
    def ttft(self) -> TTFTDistribution:
        """Of the first half."""
        return TTFTDistribution.from_samples([ttft for ttft, _ in self.known])

    def draw(self, rng: Random) -> Reply:
        """Two rows by chance: one that begins the answer, one that would go on with it."""
        (first, rate), (later, _) = rng.choice(self.rows), rng.choice(self.rows)
        return Reply(first, later, rate)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file with a header, or of JSON lines (``.jsonl``), either also as ``.gz``.

    Raises:
        ConfigError: it can't be read.
    """
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            yield from map(json.loads, file) if plain.endswith(".jsonl") else csv.DictReader(file)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: expected rows as CSV or JSON lines, got: {error}") from error


def read_services(path: Path, by: Sequence[str] = ()) -> dict[str, list[tuple[float, float]]]:
    """Recorded (seconds to the first token, tokens per second behind it), by the values of the fields ``by``, joined by a space.

    A row needs ``ttft_s`` and either ``tokens_per_s`` (or ``tps``), or the seconds of the whole (``e2e_s`` or ``total_s``) and its
    tokens (``output_tokens``, else a fourth of ``output_chars``). Rows that failed (``success`` is
    false, or the time 0) are left out.

    Raises:
        ConfigError: it can't be read, or a row lacks a field.
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
    """Tokens per second behind the first."""
    recorded = row.get("tokens_per_s") or row.get("tps")
    if recorded:
        return min(float(recorded), 1.0 / _LEAST)
    tokens = int(float(row["output_tokens"])) if "output_tokens" in row else row["output_chars"] // _CHARACTERS_A_TOKEN
    seconds = float(row["e2e_s"] if "e2e_s" in row else row["total_s"]) - ttft
    return (tokens - 1) / max(seconds, tokens / 1000.0) if tokens > 1 else 1000.0


@cache
def _packaged(name: str) -> LatencyProfile:
    """Return a sweep asks for the same few thousands of times."""
    return load_latency(name)


def _mean(table: Sequence[float]) -> float:
    """Of a table of evenly spaced quantiles, linear between them."""
    return table[0] if len(table) == 1 else (sum(table) - (table[0] + table[-1]) / 2) / (len(table) - 1)
