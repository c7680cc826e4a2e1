"""Links between devices and servers in virtual time, which return the delay of each frame.

Connections behave like TCP's: each direction has its own state, and no frame overtakes another. The delay in a direction is the sum of

- the queue (``link_capacity``): bytes, including headers, leave one after the other, as in ``testing.link_proxy``;
- half the round trip, with jitter. The delay has a gamma distribution of shape 2, shifted so that its mean is half the round trip, because
  one-way delays on the internet are skewed to the right of a floor. If the jitter is so large that the floor would be below 0, the floor is
  0 and the shape is smaller. If a frame would overtake another, it waits, so jitter has less effect when many frames are sent;
- losses. If a lost packet is followed by other packets of its frame, the loss is noticed, and the packet is sent again a round trip later
  (fast retransmit). The loss of a frame's last packet is noticed by a timer: the tail loss probe of RFC 8985, 7.2, after two round trips.
  For a lone packet, such as a draft or a verdict, the RFC adds the longest time for which an acknowledgement may be held back, 200 ms in
  Linux. The probe waits no longer than the retransmission timeout, which in Linux is the round trip and at least 200 ms. So the loss of a
  lone packet costs a round trip and 200 ms, unless the same side keeps sending and the next frame reveals the gap. If one side sends two
  frames in a row, we assume that it is streaming and will go on at the same pace. A packet that is sent again may be lost again, and then
  the timeout doubles (RFC 6298, 5.5).

Slow start isn't modelled, because frames are smaller than the ten packets that it begins with. Nor is the sender slowed down by losses.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Protocol

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.hardware.link_capacity import HEADERS, SEGMENT, FixedRate, RecordedCapacity, read_link_trace

__all__ = ["ConstantLink", "LinkOptions", "SimulatedLink", "TcpLink", "simulated_link"]

MIN_TIMEOUT = 0.2  # seconds that Linux adds to the round trip, and to the probe of a lone packet
APART = 1e-9  # minimum seconds from one arrival to the next, so that no frame overtakes another because of rounding
_SHAPE = 2.0  # shape of the gamma distribution


class LinkOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a link.

    Args:
        rtt_ms: mean milliseconds of a round trip without payload.
        jitter_ms: mean deviation of a one-way delay from its mean, in milliseconds; at most half of ``rtt_ms``.
        loss: probability that a packet is lost, up to 0.5.
        up_mbps, down_mbps: megabits per second from the device, and to it, or None for no limit.
        up_trace, down_trace: instead of a rate, a recording like Mahimahi's: a CSV file, plain or gzipped, with the columns ``t_ms`` (equal
            bins) and ``packets_1500B`` (packets that could be sent in the bin). It is repeated from its beginning.
        trace_offset_s: second of the recordings at which the link begins, or None for a random one, so that devices don't fade together.
    """

    rtt_ms: float = 10.0  # the typical case in DSD 5.1
    jitter_ms: float = 0.0
    loss: float = 0.0
    up_mbps: float | None = None
    down_mbps: float | None = None
    up_trace: str | None = None
    down_trace: str | None = None
    trace_offset_s: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.rtt_ms < math.inf:
            raise ConfigError(f"link: rtt_ms: expected at least 0, got {self.rtt_ms}")
        if not 0.0 <= self.jitter_ms <= self.rtt_ms / 2.0:
            raise ConfigError(f"link: jitter_ms: expected 0 to half of rtt_ms, {self.rtt_ms / 2.0:g}, got {self.jitter_ms}")
        if not 0.0 <= self.loss <= 0.5:
            raise ConfigError(f"link: loss: expected a probability of 0 to 0.5, got {self.loss}")
        for way, mbps, trace in (("up", self.up_mbps, self.up_trace), ("down", self.down_mbps, self.down_trace)):
            if mbps is not None and not mbps > 0.0:
                raise ConfigError(f"link: {way}_mbps: expected above 0, got {mbps}")
            if mbps is not None and trace is not None:
                raise ConfigError(f"link: expected {way}_mbps or {way}_trace, got both")
        if self.trace_offset_s is not None and not 0.0 <= self.trace_offset_s < math.inf:
            raise ConfigError(f"link: trace_offset_s: expected at least 0, got {self.trace_offset_s}")


class SimulatedLink(Protocol):
    """The delays of one connection. Its methods are called in order of time."""

    def delay(self, now: float, payload: int, *, is_up: bool) -> float:
        """Return the seconds from sending to arrival.

        Args:
            now: time of sending, in seconds.
            payload: number of bytes.
            is_up: True from the device to the server.
        """
        ...


def simulated_link(options: LinkOptions, rng: Random) -> SimulatedLink:
    """Return the simplest link that supports the options.

    Args:
        options: options of the link.
        rng: random source for jitter, losses and the start of a recording.

    Raises:
        ConfigError: a recording can't be read.
    """
    if options == LinkOptions(rtt_ms=options.rtt_ms, trace_offset_s=options.trace_offset_s):
        return ConstantLink(options.rtt_ms / 1e3)
    return TcpLink(options, rng)


class ConstantLink:
    """A link with a constant delay of half the round trip.

    Args:
        rtt: seconds that a round trip takes.
    """

    __slots__ = ("_half",)

    def __init__(self, rtt: float) -> None:
        self._half = rtt / 2.0

    def delay(self, now: float, payload: int, *, is_up: bool) -> float:
        """Return the delay; see ``SimulatedLink``."""
        return self._half


class TcpLink:
    """A link that supports all options; for the arguments see ``simulated_link``."""

    __slots__ = ("_down", "_since", "_up", "_was_up")

    def __init__(self, options: LinkOptions, rng: Random) -> None:
        traces = [None if path is None else read_link_trace(Path(path)) for path in (options.up_trace, options.down_trace)]
        period = max((trace.period for trace in traces if trace is not None), default=0.0)
        offset = options.trace_offset_s
        if offset is None and period:
            offset = rng.uniform(0.0, period)  # the same for both directions, which were recorded together
        self._up, self._down = (
            _Direction(
                options, rng, RecordedCapacity(trace, offset or 0.0) if trace is not None else None if mbps is None else FixedRate(mbps)
            )
            for trace, mbps in zip(traces, (options.up_mbps, options.down_mbps), strict=True)
        )
        self._was_up: bool | None = None
        self._since = 0.0

    def delay(self, now: float, payload: int, *, is_up: bool) -> float:
        """Return the delay; see ``SimulatedLink``."""
        pace = now - self._since if is_up is self._was_up and now > self._since else math.inf  # seconds until the next frame of a stream
        self._was_up, self._since = is_up, now
        return (self._up if is_up else self._down).delay(now, payload, pace)


class _Direction:
    """One direction of a link. If ``queue`` is None, all bytes leave at once."""

    __slots__ = ("_floor", "_last", "_lone", "_loss", "_probe", "_queue", "_rng", "_rtt", "_scale", "_shape", "_timeout")

    def __init__(self, options: LinkOptions, rng: Random, queue: FixedRate | RecordedCapacity | None) -> None:
        rtt, jitter = options.rtt_ms / 1e3, options.jitter_ms / 1e3
        self._rtt = rtt
        self._floor, self._shape, self._scale = _gamma(rtt / 2.0, jitter)
        self._loss = options.loss
        self._rng = rng
        self._queue = queue
        self._timeout = rtt + max(MIN_TIMEOUT, 4.0 * math.sqrt(2.0) * jitter)  # both delays of a round trip deviate
        self._probe, self._lone = min(2.0 * rtt, self._timeout), min(2.0 * rtt + MIN_TIMEOUT, self._timeout)
        self._last = -APART  # time at which the previous frame arrives

    def delay(self, now: float, payload: int, pace: float) -> float:
        """Return the delay.

        Args:
            now: seconds since the simulation began.
            payload: bytes of the frame, without the packets' headers.
            pace: if this frame is part of a stream, the seconds until the stream's next frame; otherwise inf.
        """
        packets = -(-payload // SEGMENT) or 1
        arrival = self._floor + (now if self._queue is None else self._queue.send(now, payload + HEADERS * packets))
        if self._scale:
            arrival += self._rng.gammavariate(self._shape, self._scale)
        if self._loss:
            arrival += self._loss_delay(packets, pace)
        self._last = max(arrival, self._last + APART)
        return self._last - now

    def _loss_delay(self, packets: int, pace: float) -> float:
        """Return the additional seconds for losses and retransmissions."""
        rng, loss = self._rng, self._loss
        if rng.random() < loss:  # the last packet
            seconds = min(self._lone if packets == 1 else self._probe, pace + self._rtt)
        elif packets > 1 and rng.random() < 1.0 - (1.0 - loss) ** (packets - 1):
            seconds = self._rtt
        else:
            return 0.0
        timeout = self._timeout
        while rng.random() < loss:
            seconds += timeout
            timeout *= 2.0
        return seconds


def _gamma(mean: float, deviation: float) -> tuple[float, float, float]:
    """Return the floor, shape and scale of a gamma distribution with this mean and mean deviation (seconds); scale 0 means no deviation."""
    if not deviation:
        return mean, _SHAPE, 0.0
    if deviation <= mean * _relative(_SHAPE):
        scale = deviation / (_SHAPE * _relative(_SHAPE))
        return mean - _SHAPE * scale, _SHAPE, scale
    low, high = 0.1, _SHAPE  # the floor is 0; the smaller the shape, the larger the deviation
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (middle, high) if _relative(middle) * mean > deviation else (low, middle)
    return 0.0, high, mean / high


def _relative(shape: float) -> float:
    """Return the mean deviation of a gamma distribution as a share of its mean: 2 k^k e^-k / k!"""
    return 2.0 * math.pow(shape, shape) * math.exp(-shape) / math.gamma(shape + 1.0)
