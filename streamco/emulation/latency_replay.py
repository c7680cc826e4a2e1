"""Latency replay: sends a local answer at the times at which a measured remote server would have sent it.

The model generates at its own speed, and ``LatencyReplay`` holds its pieces back. The replay's times are lower bounds. The first burst is
sent no sooner than the sampled time to first token after the request began. Each later burst is sent no sooner than the sampled gap after
the one before. If the model is slower than the profile, its own times show. Because generation continues while a burst is held back, the
slower of the two sets the pace, and their times don't add up.

Real servers send in bursts: one network read brings several chunks (two or three at OpenAI, about fifteen after Azure's content filter),
then nothing for a while. A gap here is the silence between bursts, and each burst is sent as a whole.
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
    """The measured timing of a streaming server, as sorted samples or evenly spaced quantiles.

    Args:
        name: name of the measured server.
        source: origin of the measurements, and where they are published.
        license: license of the measurements.
        ttft_s: seconds from request to first text.
        gap_s: seconds of silence between two bursts.
        gap_of: with ``burst``, each gap is drawn; with ``request``, one per request, for traces that contain only each request's mean.
        burst_chunks: number of chunks that arrive together.
        note: a remark on the figures.
        kind: ``latency``, so that profiles of different kinds aren't mixed up.
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
    """Return the value below which ``share`` (0..1) of the distribution lies, with linear interpolation between the table's points."""
    position = share * (len(table) - 1)
    below = min(int(position), len(table) - 1)
    above = min(below + 1, len(table) - 1)
    return table[below] + (table[above] - table[below]) * (position - below)


class LatencyReplay:
    """Holds the pieces of one answer back until they may be sent. Implements ``PieceHold``.

    Args:
        profile: the latency to imitate.
        rng: a random source that only this request uses.
        started: time when the request arrived, in seconds on the caller's clock.
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
        """Return the time at which ``pop`` will next have something to return, or None if more must be pushed first."""
        if self._bursts:
            return self._bursts[0][0]
        if self._end is None:
            return None
        # an empty answer still waits for its time, but an error leaves at once
        return self._due if self._end.reason in {"stop", "length"} and not self._was_started else 0.0

    def pop(self, now: float) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return the pieces that may be sent by ``now``; the end comes with or after the last piece."""
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
    """Replays recorded latencies for a server's answers; pass it as ``ServeOptions.hold``.

    Args:
        profile: the latency to imitate.
        seed: seed for drawing the times. Each request has its own random source, so concurrent requests don't affect each other's times.
    """

    profile: LatencyProfile
    seed: int = 0

    def __call__(self, number: int, arrived: float) -> LatencyReplay:
        """Return the replay of one answer.

        Args:
            number: number of the request, counted from 1.
            arrived: time when it arrived, in seconds on the server's clock.
        """
        return LatencyReplay(self.profile, Random(f"{self.seed}/{number}"), arrived)
