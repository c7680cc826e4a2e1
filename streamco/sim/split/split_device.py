"""A device of a split model in virtual time: its processor, its modes and its link (HAT, section 4.1).

The device changes its mode every few requests, and its link's rates change with each request. Its answers share its processor and
link, each of which does one thing at a time. If the experiment says so, each answer has a processor and link of its own instead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random

from streamco.policies.chunking import MEMORY
from streamco.sim.hardware.link_capacity import HEADERS, SEGMENT
from streamco.sim.split.options import LinkRange, SplitDevicePool

__all__ = ["SimulatedSplitDevice", "VaryingLink", "make_devices", "wire_bytes"]

FRAME = 64  # bytes of a frame besides its states


def wire_bytes(payload: int) -> int:
    """Return the bytes on the link for a frame with this many bytes of states."""
    frame = FRAME + payload
    return frame + HEADERS * -(-frame // SEGMENT)


class VaryingLink:
    """A link whose rates are redrawn repeatedly. In each direction, bytes leave one after the other.

    Args:
        options: bounds of the rates.
        rng: random source of the rates.

    Attributes:
        up_rate, down_rate: current rates in bytes per second.
        round_trip: seconds that a round trip without payload takes.
    """

    __slots__ = ("_free", "_options", "_rng", "down_rate", "round_trip", "up_rate")

    def __init__(self, options: LinkRange, rng: Random) -> None:
        self._options = options
        self._rng = rng
        self.round_trip = options.rtt_ms / 1e3
        self._free = [0.0, 0.0]  # time at which the last byte to the device, and from it, leaves
        self.up_rate = self.down_rate = 0.0
        self.redraw()

    def redraw(self) -> None:
        """Draw new rates. Bytes that were sent before keep their rate."""
        self.up_rate = 1e6 * self._rng.uniform(*self._options.up_mb_s)
        self.down_rate = 1e6 * self._rng.uniform(*self._options.down_mb_s)

    def apart(self) -> VaryingLink:
        """Return an idle link with the current rates."""
        link = copy.copy(self)
        link._free = [0.0, 0.0]
        return link

    def delay(self, now: float, payload: int, *, is_up: bool) -> float:
        """Return the seconds from sending to arrival; see ``SimulatedLink``."""
        rate = self.up_rate if is_up else self.down_rate
        self._free[is_up] = max(now, self._free[is_up]) + wire_bytes(payload) / rate
        return self._free[is_up] + self.round_trip / 2 - now


class SimulatedSplitDevice:
    """A device that has the input layers, the draft layer and the head.

    Args:
        number: index that identifies the device.
        pool: the options of its kind.
        link: its link.
        pace_requests: requests after which it changes its mode.
        is_shared: True if its answers share processor and link.
        rng: random source of the modes.

    Attributes:
        name: its name at the server.
        link: its link.
        upload_rate, download_rate: moving averages of the link's rates, which it measures.
    """

    def __init__(self, number: int, pool: SplitDevicePool, link: VaryingLink, *, pace_requests: int, is_shared: bool, rng: Random) -> None:
        self.name = f"device{number}"
        self.link = link
        self.upload_rate, self.download_rate = link.up_rate, link.down_rate
        self._pool = pool
        self._pace_requests = pace_requests
        self._is_shared = is_shared
        self._rng = rng
        self._requests = 0
        self._pace = 1.0
        self._free = 0.0

    def begin(self) -> SimulatedSplitDevice:
        """Record that a request begins: draw new rates and, every ``pace_requests`` requests, a new mode.

        Returns:
            The device that the request uses: this one if its answers share processor and link, otherwise a copy.
        """
        if self._requests % self._pace_requests == 0:
            self._pace = self._rng.choice(self._pool.paces)
        self._requests += 1
        self.link.redraw()
        self.upload_rate = MEMORY * self.upload_rate + (1 - MEMORY) * self.link.up_rate
        self.download_rate = MEMORY * self.download_rate + (1 - MEMORY) * self.link.down_rate
        if self._is_shared:
            return self
        own = copy.copy(self)
        own.link, own._free = self.link.apart(), 0.0
        return own

    def is_busy(self, now: float) -> bool:
        """Return True if the processor is busy."""
        return self._free > now

    def occupy(self, now: float, seconds: float) -> float:
        """Use the processor for this long, after the work that it already has, and return the seconds until then."""
        self._free = max(now, self._free) + seconds
        return self._free - now

    # Seconds that its passes take in its current mode

    def input_seconds(self, rows: int = 1) -> float:
        """Return how many seconds a pass of rows through the input layers takes."""
        return self._seconds(self._pool.input_ms, self._pool.row_ms * (rows - 1))

    def head_seconds(self, rows: int = 1) -> float:
        """Return how many seconds a pass of rows through the head takes."""
        pool = self._pool
        return self._seconds(pool.head_ms, (pool.row_ms if pool.head_row_ms is None else pool.head_row_ms) * (rows - 1))

    def step_seconds(self, branches: int = 1) -> float:
        """Return how many seconds a draft step takes, through input layers, draft layer and head, for several branches at once."""
        pool = self._pool
        head = pool.head_ms if pool.draft_head_ms is None else pool.draft_head_ms
        return self._seconds(pool.input_ms, pool.draft_ms, head) * (1 + pool.branch_share * (branches - 1))

    def tree_seconds(self, rows: int) -> float:
        """Return how many seconds Medusa's heads and a pass of the tree's rows through the input layers take."""
        return self._seconds(self._pool.heads_ms) + self.input_seconds(rows)

    def _seconds(self, *milliseconds: float) -> float:
        return self._pace * sum(milliseconds) / 1e3


def make_devices(
    pools: Sequence[SplitDevicePool], link: LinkRange, *, pace_requests: int, is_shared: bool, seed: int
) -> list[SimulatedSplitDevice]:
    """Return the devices of all pools, each with its own random sources."""
    found: list[SimulatedSplitDevice] = []
    for pool in pools:
        for _ in range(pool.count):
            number = len(found)
            rates = VaryingLink(link, Random(f"{seed} link {number}"))
            found.append(
                SimulatedSplitDevice(
                    number, pool, rates, pace_requests=pace_requests, is_shared=is_shared, rng=Random(f"{seed} mode {number}")
                )
            )
    return found
