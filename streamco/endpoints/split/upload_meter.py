"""Rate of the link to a split server, and its round trip, from the times of frames and of their answers.

An answer says how long its rows were at the server. So the moment at which they had arrived is known, except for the way down. Two frames
of which the second one was waiting when the first one arrived say how long the second one's bytes took, and the way down cancels. A frame
that was alone says it less well: the round trip must be subtracted.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.core.speculation.averages import Ewma

__all__ = ["SentFrame", "UploadMeter"]

UPLOAD_RATE = 5e6
"""Bytes per second until a rate was measured."""

_SMOOTHING = 0.3  # weight of a new measurement
_LARGE = 16_384  # bytes; a smaller frame alone says little of the rate, and is used for the round trip
_ENOUGH = 65_536  # bytes of frames after each other that make a measurement


class SentFrame(Struct, frozen=True):
    """A frame on the way.

    Args:
        at: time at which it was sent.
        size: its bytes.
        total: bytes of all frames up to its end.
        was_alone: no other frame was unanswered.
    """

    at: float
    size: int
    total: int
    was_alone: bool


class UploadMeter:
    """Measures the way to one server, over all sessions. Without a clock of its own.

    Args:
        rate: bytes per second until a rate was measured.
    """

    def __init__(self, rate: float = UPLOAD_RATE) -> None:
        self._rate = Ewma(rate, _SMOOTHING, first_weight=1.0)
        self._trip = Ewma(0.0, _SMOOTHING, first_weight=1.0)
        self._total = 0
        self._unanswered = 0
        self._bytes = 0  # of frames that came right after another one, since the last measurement
        self._seconds = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second from the device to the server."""
        return self._rate.value

    @property
    def is_rate_measured(self) -> bool:
        """True once the rate is one of this way."""
        return self._rate.is_measured

    @property
    def round_trip(self) -> float | None:
        """Seconds of a round trip without payload; None: not measured."""
        return self._trip.value if self._trip.is_measured else None

    def record_sent(self, size: int, *, now: float) -> SentFrame:
        """Count a frame of ``size`` bytes, and return it for ``record_answer``."""
        self._total += size
        self._unanswered += 1
        return SentFrame(now, size, self._total, was_alone=self._unanswered == 1)

    def record_lost(self, frames: int) -> None:
        """Count frames that get no answer."""
        self._unanswered -= frames

    def record_answer(
        self, frame: SentFrame, at_server: float, before: tuple[SentFrame, float] | None, *, now: float
    ) -> tuple[SentFrame, float]:
        """Count an answer.

        Args:
            frame: the answered frame.
            at_server: seconds that its rows were at the server.
            before: what this method returned for the answer before, of the same session; None: there was none.

        Returns:
            The frame and the time at which it had arrived, plus the way down.
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
