"""Measures the upload rate and the round trip of the link to a split server, from the times of frames and their replies.

A reply says how long its rows spent at the server. Subtracting that from the reply's time gives the time when the rows arrived there, plus
the download time. If a second frame was already waiting on the link when the first one arrived, the difference between the two results
shows how long the second frame's bytes took, and the download time cancels out. The result from a single frame is less precise, because
the round trip must be subtracted.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.core.speculation.averages import Ewma

__all__ = ["SentFrame", "UploadMeter"]

UPLOAD_RATE = 5e6
"""Bytes per second before a rate has been measured."""

_SMOOTHING = 0.3  # weight of a new measurement
_LARGE = 16_384  # bytes; a smaller single frame says little about the rate, and is used for the round trip
_ENOUGH = 65_536  # bytes of consecutive frames that make up a measurement


class SentFrame(Struct, frozen=True):
    """A frame that was sent.

    Args:
        at: time when it was sent.
        size: its size in bytes.
        total: bytes of all frames up to the end of this one.
        was_alone: True if no other frame was waiting for a reply.
    """

    at: float
    size: int
    total: int
    was_alone: bool


class UploadMeter:
    """Measures the link to one server, over all sessions. The caller passes in the time.

    Args:
        rate: bytes per second before a rate has been measured.
    """

    def __init__(self, rate: float = UPLOAD_RATE) -> None:
        self._rate = Ewma(rate, _SMOOTHING, first_weight=1.0)
        self._trip = Ewma(0.0, _SMOOTHING, first_weight=1.0)
        self._total = 0
        self._unanswered = 0
        self._bytes = 0  # bytes of frames that came right after another one, since the last measurement
        self._seconds = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second from the device to the server."""
        return self._rate.value

    @property
    def is_rate_measured(self) -> bool:
        """True once the rate was measured on this link."""
        return self._rate.is_measured

    @property
    def round_trip(self) -> float | None:
        """Seconds of a round trip without payload, or None if not measured."""
        return self._trip.value if self._trip.is_measured else None

    def record_sent(self, size: int, *, now: float) -> SentFrame:
        """Record that a frame of ``size`` bytes was sent, and return it for ``record_answer``."""
        self._total += size
        self._unanswered += 1
        return SentFrame(now, size, self._total, was_alone=self._unanswered == 1)

    def record_lost(self, frames: int) -> None:
        """Record that this many frames will get no reply."""
        self._unanswered -= frames

    def record_answer(
        self, frame: SentFrame, at_server: float, before: tuple[SentFrame, float] | None, *, now: float
    ) -> tuple[SentFrame, float]:
        """Record the reply to a frame.

        Args:
            frame: the frame that it replies to.
            at_server: seconds that its rows were at the server.
            before: what this method returned for the previous reply of the same session, or None.

        Returns:
            The frame, and the time when it arrived at the server plus the download time.
        """
        self._unanswered -= 1
        arrived = now - at_server
        if before is not None and frame.at <= before[1] - (self.round_trip or 0.0):
            self._add(frame.total - before[0].total, arrived - before[1])
        elif frame.was_alone and frame.size < _LARGE:
            self._trip.record(max(0.0, arrived - frame.at - frame.size / self.rate))
        elif frame.was_alone and self.round_trip is not None:
            self._record_rate(frame.size, arrived - frame.at - self.round_trip)
        return frame, arrived

    def _add(self, size: int, seconds: float) -> None:
        self._bytes += size
        self._seconds += seconds
        if self._bytes >= _ENOUGH:
            self._record_rate(self._bytes, self._seconds)
            self._bytes, self._seconds = 0, 0.0

    def _record_rate(self, size: int, seconds: float) -> None:
        if seconds > 0:
            self._rate.record(size / seconds)
