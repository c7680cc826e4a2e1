"""One server of a split model, as seen from the device: the connection to it, and the wait that it asks for when overloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from streamco.config import Timeouts
from streamco.endpoints.split.upload_meter import UploadMeter
from streamco.endpoints.verifiers.connection import VerifierAddress, VerifierConnection, connect_verifier
from streamco.errors import EndpointConnectError, EndpointError, EndpointStatusError, EndpointTimeoutError, StreamcoError
from streamco.profiles.row_costs import RowCosts
from streamco.wire.row_costs import RowCost, costs_of_table
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import SPLIT_VERSIONS, LayersMark, ServerBatches, States
from streamco.wire.verify.errors import ModelMismatchError, UnauthorisedError, VerifyProtocolError, VersionError

__all__ = ["RETRY", "MiddleServer", "explained", "final_error", "is_busy"]

RETRY = 0.2
"""Seconds between two attempts at a server that doesn't say how long to wait."""

_PING_INTERVAL = 5.0  # seconds
_BUSY = frozenset({"overloaded", "too_many_sessions"})


class MiddleServer:
    """One server and the connection to it."""

    def __init__(self, address: VerifierAddress, mark: LayersMark, timeouts: Timeouts, *, exact: bool) -> None:
        self.address = address
        self.meter = UploadMeter()
        self.not_before = 0.0  # no attempts before this time, in seconds on the loop's clock
        self.frees = 0  # how many places this device has freed so far
        self.costs: RowCosts | None = None  # as last reported; None if not connected yet
        self.load_rows = self.steady_rows = 0  # of its batches, as last reported
        self._reported: tuple[RowCost, ...] = ()
        self._mark = mark
        self._exact = exact
        self._timeouts = timeouts
        self._connection: VerifierConnection[SplitClient] | None = None
        self._lock = asyncio.Lock()

    def put_off(self, error: StreamcoError, now: float) -> None:
        """Record how long a busy server asks the device to wait."""
        asked = _asked(error)
        if asked is not None or is_busy(error):
            self.not_before = now + (RETRY if asked is None else asked)

    def forget_connection(self) -> None:
        """Forget the connection and the time of the next attempt, which belong to an event loop that is no longer running."""
        self._connection, self._lock, self.not_before = None, asyncio.Lock(), 0.0

    def free(self) -> None:
        """Record that this device has freed a place, so that the server may be tried at once."""
        self.not_before = 0.0
        self.frees += 1

    async def find(self) -> VerifierConnection[SplitClient]:
        """Return the connection; create one if there is none.

        Raises:
            EndpointError, VerifyProtocolError: connecting failed.
        """
        async with self._lock:
            if self._connection is None or self._connection.is_over:
                await self.aclose()
                client = SplitClient(SplitCodec(self._mark.width), self._mark, exact=self._exact)
                with explained(self.address.name):
                    self._connection = await connect_verifier(self.address, client, timeouts=self._timeouts, ping_interval=_PING_INTERVAL)
                assert client.welcome is not None, "a connection begins after its welcome"
                self.record(client, client.welcome.batches)
            return self._connection

    def record(self, client: SplitClient, load: ServerBatches | States) -> None:
        """Record the load that the server reports on a connection, and its costs if they have changed."""
        self.load_rows, self.steady_rows = load.load_rows, load.steady_rows
        if client.row_costs is not self._reported:
            self._reported = client.row_costs
            self.costs = costs_of_table(self._reported)

    @property
    def round_trip(self) -> float:
        """Seconds of a round trip without payload, measured with small frames or else pings; 0.0 if not measured."""
        measured, connection = self.meter.round_trip, self._connection  # it may end while another thread is here
        if measured is None and connection is not None:
            measured = connection.rtt
        return measured or 0.0

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Add the server's name and advice to the error of a failed connection."""
    try:
        yield
    except VerifyProtocolError as exc:
        exc.args = (f"{name}: {exc}{_advice(exc)}",)
        raise
    except EndpointConnectError as exc:
        exc.args = (f"{exc.args[0]}{_advice(exc)}",)  # its own message begins with the name
        raise


def _advice(error: StreamcoError) -> str:
    match error:
        case VersionError():
            return f"; version {SPLIT_VERSIONS[0]} is spoken by streamco serve --middle alone"
        case ModelMismatchError() if str(error).startswith("hello"):
            return "; the device's and the server's parts must be of one model, cut with the same --input-layers"
        case UnauthorisedError():
            return '; the key is given as token="..." in Python and with --api-key-env NAME in a command'
        case EndpointConnectError() if isinstance(error.__cause__, ConnectionRefusedError):
            return "; streamco serve --model parts/NAME.middle.gguf --middle may not be running there"
        case _:
            return ""


def is_busy(error: StreamcoError) -> bool:
    """Return True if the server is reachable but busy, so that it has no place or no time for this answer."""
    if isinstance(error, VerifyProtocolError):
        return error.code in _BUSY
    return isinstance(error, EndpointStatusError) and error.status == HTTPStatus.TOO_MANY_REQUESTS


def final_error(error: StreamcoError, max_wait: float = 0.0) -> StreamcoError:
    """Return the error for an answer that no server can continue.

    Args:
        error: the servers' last error.
        max_wait: seconds that the answer has waited for busy servers.
    """
    asked = _asked(error)
    later = "" if asked is None else f"; the server asks for {asked:g} s before the next try"
    if is_busy(error):
        text = f"expected a place at a split server within {max_wait:g} s, got none, because they are busy with other answers"
        return EndpointTimeoutError(f"{text}: {error}{later}", phase="next_token", limit=max_wait)
    return error if isinstance(error, EndpointError) else EndpointConnectError(f"expected a split server that goes on, got {error}{later}")


def _asked(error: StreamcoError) -> float | None:
    """Return how many seconds a server asks the device to wait, or None if it doesn't say."""
    return error.retry_after if isinstance(error, VerifyProtocolError | EndpointStatusError) else None
