"""Latency replay: a local answer leaves at the times a measured remote server would have sent it.

Generation runs ahead and ``LatencyReplay`` holds its pieces back. Its times are lower bounds. The first burst leaves no sooner than the
sampled time to first token after the request began. Each later burst leaves no sooner than the sampled gap after the one before. If the
model is slower than the profile, its own times show. Because generation goes on while a burst is held, the rate is the slower of the two
and not their sum.

Real servers send in bursts: one network read brings several chunks (two or three at OpenAI, some fifteen after Azure's content filter),
then nothing for a while. A gap here is the silence between bursts, and a burst leaves whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Literal

from msgspec import Struct

from streamco.engines.base import GenerationEnd, TextPiece
from streamco.errors import ConfigError

__all__ = ["LatencyProfile", "LatencyReplay", "LatencyReplays", "quantile"]


class LatencyProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured behaviour of a streaming server, as samples or evenly spaced quantiles (a sorted sample is both).

    Args:
        name: name of the measured server.
        source: origin of the measurements, and where they are published.
        license: license of the measurements.
        ttft_s: seconds from request to first text.
        gap_s: seconds of silence between two bursts.
        gap_of: ``burst``: each gap is drawn; ``request``: one gap is drawn for each request, if a trace holds only each request's mean.
        burst_chunks: number of chunks that arrive together.
        note: a remark on the figures.
        kind: ``latency``, so that profiles of different kinds are not mixed up.
    """

    name: str
    source: str
    license: str
    ttft_s: tuple[float, ...]
    gap_s: tuple[float, ...] = (0.0,)
    gap_of: Literal["burst", "request"] = "burst"
    burst_chunks: tuple[float, ...] = (1.0,)
    note: str = ""
    kind: Literal["latency"] = "latency"

    def __post_init__(self) -> None:
        for field, minimum in (("ttft_s", 0.0), ("gap_s", 0.0), ("burst_chunks", 1.0)):
            values = getattr(self, field)
            if not values or not all(math.isfinite(value) and value >= minimum for value in values):
                raise ConfigError(
                    f"latency profile {self.name}: {field}: expected one or more numbers >= {minimum:g}, got {list(values)[:5]}"
                )
            if any(left > right for left, right in pairwise(values)):
                raise ConfigError(f"latency profile {self.name}: {field}: expected ascending values")


def quantile(table: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0..1) of the distribution lies; linear between the table's evenly spaced points."""
    position = share * (len(table) - 1)
    below = min(int(position), len(table) - 1)
    above = min(below + 1, len(table) - 1)
    return table[below] + (table[above] - table[below]) * (position - below)


class LatencyReplay:
    """Holds the pieces of one answer back until they may leave. Implements ``PieceHold``.

    Args:
        profile: the latency to imitate.
        rng: random source of this request alone, so that concurrent requests don't change each other's times.
        started: time when the request came, in seconds on the caller's clock.
    """

    def __init__(self, profile: LatencyProfile, rng: Random, started: float) -> None:
        self._profile = profile
        self._rng = rng
        self._due = started + quantile(profile.ttft_s, rng.random())
        self._gap = quantile(profile.gap_s, rng.random()) if profile.gap_of == "request" else None
        self._filling: list[TextPiece] = []
        self._size = self._draw_size()
        self._bursts: deque[tuple[float, list[TextPiece]]] = deque()
        self._end: GenerationEnd | None = None
        self._held = 0
        self._was_started = False

    @property
    def held(self) -> int:
        """Number of pieces that are held back."""
        return self._held

    def push(self, pieces: Sequence[TextPiece], end: GenerationEnd | None, now: float) -> None:
        """Take over pieces from the engine; ``end`` comes with the last ones."""
        self._held += len(pieces)
        for piece in pieces:
            self._filling.append(piece)
            if len(self._filling) == self._size:
                self._close_burst(now)
        if end is not None:
            self._end = end
            if self._filling:
                self._close_burst(now)

    def due(self) -> float | None:
        """Return the time at which ``pop`` has something next; None: not before more is pushed."""
        if self._bursts:
            return self._bursts[0][0]
        if self._end is None:
            return None
        # an empty answer still takes its time, an error leaves at once
        return self._due if self._end.reason in {"stop", "length"} and not self._was_started else 0.0

    def pop(self, now: float) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return the pieces that may leave by ``now``; the end comes with or after the last piece."""
        ready: list[TextPiece] = []
        while self._bursts and self._bursts[0][0] <= now:
            ready += self._bursts.popleft()[1]
        self._held -= len(ready)
        due = self.due()
        if self._bursts or due is None or due > now:
            return ready, None
        return ready, self._end

    def _close_burst(self, now: float) -> None:
        self._bursts.append((self._due, self._filling))
        self._filling = []
        self._was_started = True
        gap = quantile(self._profile.gap_s, self._rng.random()) if self._gap is None else self._gap
        self._due = max(self._due, now) + gap
        self._size = self._draw_size()

    def _draw_size(self) -> int:
        return round(quantile(self._profile.burst_chunks, self._rng.random()))


class LatencyReplays(Struct, frozen=True):
    """The replays of a server's answers: what ``ServeOptions.hold`` expects.

    Args:
        profile: the latency to imitate.
        seed: seed of the times. Each request has a random source of its own, so that concurrent ones don't change each other's times.
    """

    profile: LatencyProfile
    seed: int = 0

    def __call__(self, number: int, arrived: float) -> LatencyReplay:
        """Return the replay of one answer.

        Args:
            number: number of the request, counted from 1.
            arrived: time when it came, in seconds on the server's clock.
        """
        return LatencyReplay(self.profile, Random(f"{self.seed}/{number}"), arrived)
