"""The capacity of a link in virtual time: a fixed rate, or the times at which a recorded link could send.

Sent bytes queue: they leave one after the other, and none are dropped. Recordings are in the style of Mahimahi ("Mahimahi: Accurate
Record-and-Replay for HTTP", Netravali et al., USENIX ATC 2015): the bytes that are waiting at an opportunity share its 1500 bytes, and an
opportunity is lost if no bytes are waiting.
"""

from __future__ import annotations

import csv
import gzip
import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["HEADERS", "PACKET", "SEGMENT", "FixedRate", "RecordedCapacity", "LinkTrace", "read_link_trace"]

SEGMENT = 1460  # bytes of a packet without headers
HEADERS = 40  # bytes of IPv4 and TCP headers
PACKET = SEGMENT + HEADERS  # bytes of a packet as counted in a trace


class FixedRate:
    """A capacity of a fixed number of bytes per second.

    Args:
        mbps: megabits per second.
    """

    __slots__ = ("_bytes_per_s", "_free")

    def __init__(self, mbps: float) -> None:
        self._bytes_per_s = mbps * 1e6 / 8.0
        self._free = 0.0  # time at which the last earlier byte leaves

    def send(self, now: float, size: int) -> float:
        """Return the time at which the last of ``size`` bytes leaves."""
        self._free = max(now, self._free) + size / self._bytes_per_s
        return self._free


class LinkTrace:
    """A recorded link: opportunities to send a packet of 1500 bytes, evenly spaced in their bins and repeated forever.

    Args:
        counts: number of opportunities in each bin.
        width: seconds in a bin.
        source: name of the trace in errors.

    Attributes:
        period: seconds after which it repeats.

    Raises:
        ConfigError: there are no opportunities.
    """

    def __init__(self, counts: Sequence[int], width: float, *, source: str = "trace") -> None:
        if min(counts, default=0) < 0 or not sum(counts) or not width > 0.0:
            raise ConfigError(f"{source}: expected packets in bins of some width, got {sum(counts)} in {len(counts)} bins of {width} s")
        self.period = len(counts) * width
        indices = ((index, one, count) for index, count in enumerate(counts) for one in range(count))
        self._times = array("d", ((index + (one + 0.5) / count) * width for index, one, count in indices))

    def first(self, at: float) -> int:
        """Return the number of the first opportunity at ``at`` seconds or later, counted over all repetitions."""
        rounds, rest = divmod(at, self.period)
        return int(rounds) * len(self._times) + bisect_left(self._times, rest)

    def time(self, number: int) -> float:
        """Return the time of an opportunity in seconds, by its number."""
        rounds, index = divmod(number, len(self._times))
        return rounds * self.period + self._times[index]


@cache
def read_link_trace(path: Path) -> LinkTrace:
    """Return a recording. Its file is read only once for all links.

    Raises:
        ConfigError: there is no such file, or it isn't a recording.
    """
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            rows = [(int(row["t_ms"]), int(row["packets_1500B"])) for row in csv.DictReader(file)]
    except OSError as error:
        raise ConfigError(f"trace: expected a recording that can be read, got {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"trace: {path}: expected whole numbers in columns t_ms and packets_1500B, got {error!r}") from error
    width = rows[1][0] - rows[0][0] if len(rows) > 1 else 0
    for number, (time, _) in enumerate(rows):
        if time != rows[0][0] + number * width:
            raise ConfigError(f"trace: {path}: expected bins of {width} ms, got t_ms {time} in row {number + 1}")
    return LinkTrace([count for _, count in rows], width / 1e3, source=f"trace: {path}")


class RecordedCapacity:
    """The capacity of a recorded link, which starts at some position in the recording.

    Bytes that arrived in time for an opportunity can use the rest of it, but later bytes can't.

    Args:
        offset: position of time 0 in the recording, in seconds.
    """

    __slots__ = ("_left", "_number", "_offset", "_sent", "_trace")

    def __init__(self, trace: LinkTrace, offset: float) -> None:
        self._trace = trace
        self._offset = offset
        self._number = -1  # number of the opportunity used last
        self._sent = -math.inf  # time of that opportunity
        self._left = 0  # bytes that it can still take

    def send(self, now: float, size: int) -> float:
        """Return the time at which the last of ``size`` bytes leaves."""
        if now > self._sent:
            self._number = max(self._number, self._trace.first(now + self._offset) - 1)
            self._left = 0
        packets = -(-(size - self._left) // PACKET)  # 0 if everything fits in the rest of the opportunity
        self._left += packets * PACKET - size
        self._number += packets
        if packets:
            self._sent = self._trace.time(self._number) - self._offset
        return self._sent
