"""The meter of the way to a split server: over a link that is simulated, with any frames, it finds the link's rate and round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.endpoints.split.upload_meter import UPLOAD_RATE, SentFrame, UploadMeter


class Link:
    """A link to a server that computes one frame after the other. ``upload`` sends frames at once, then takes their answers."""

    def __init__(self, rate: float, trip: float) -> None:
        self.meter = UploadMeter()
        self.rate, self.trip = rate, trip
        self.now = 100.0
        self.last: tuple[SentFrame, float] | None = None

    def upload(self, sizes: list[int], *, batch: float = 0.02, merged: bool = False) -> None:
        sent = [self.meter.record_sent(size, now=self.now) for size in sizes]
        arrivals, moment = [], self.now + self.trip / 2
        for size in sizes:
            moment += size / self.rate
            arrivals.append(moment)
        free = 0.0
        for frame, arrived in zip(sent, arrivals, strict=True):
            free = (arrivals[-1] if merged else max(free, arrived)) + batch
            self.now = free + self.trip / 2
            self.last = self.meter.record_answer(frame, free - arrived, self.last, now=self.now)


def test_nothing_is_known_before_the_first_answer() -> None:
    meter = UploadMeter()
    assert (meter.rate, meter.round_trip, meter.is_rate_measured) == (UPLOAD_RATE, None, False)


@given(
    rate=st.floats(1e5, 1e8),
    trip=st.floats(0.0, 0.3),
    sizes=st.lists(st.integers(20_000, 300_000), min_size=5, max_size=20),
    is_merged=st.booleans(),
)
def test_chunks_on_the_way_together_give_the_rate_whatever_the_round_trip(
    rate: float, trip: float, sizes: list[int], *, is_merged: bool
) -> None:
    link = Link(rate, trip)
    link.upload(sizes, merged=is_merged)
    assert link.meter.is_rate_measured
    assert link.meter.rate == pytest.approx(rate, rel=1e-3)


@given(trip=st.floats(0.001, 0.3))
def test_small_frames_give_the_round_trip_and_large_ones_alone_the_rate(trip: float) -> None:
    link = Link(2e6, trip)
    link.upload([4_000])
    assert link.meter.round_trip == pytest.approx(trip + 4_000 / 2e6 - 4_000 / UPLOAD_RATE)
    for _ in range(40):
        link.upload([4_000])
        link.upload([200_000])
    assert link.meter.rate == pytest.approx(2e6, rel=0.05)
    assert link.meter.round_trip == pytest.approx(trip, abs=1e-3)


def test_a_large_frame_alone_says_nothing_while_the_round_trip_is_unknown() -> None:
    link = Link(2e6, 0.1)
    link.upload([200_000])
    assert link.meter.rate == UPLOAD_RATE


def test_a_frame_that_was_sent_after_the_one_before_had_arrived_says_nothing_of_the_bytes_between() -> None:
    link = Link(2e6, 0.1)
    link.upload([200_000])
    link.now += 5.0
    link.upload([200_000])
    assert link.meter.rate == UPLOAD_RATE, "the link rested for five seconds"


def test_bytes_of_other_sessions_between_two_frames_count() -> None:
    link = Link(1e6, 0.0)
    first = link.meter.record_sent(50_000, now=0.0)
    link.meter.record_sent(100_000, now=0.0)
    second = link.meter.record_sent(50_000, now=0.0)
    before = link.meter.record_answer(first, 0.1, None, now=0.15)
    link.meter.record_answer(second, 0.1, before, now=0.30)
    assert link.meter.rate == pytest.approx(1e6)


def test_lost_frames_are_not_waited_for() -> None:
    link = Link(2e6, 0.1)
    for _ in range(3):
        link.meter.record_sent(1000, now=1.0)
    link.meter.record_lost(3)
    link.upload([4_000])
    assert link.meter.round_trip is not None, "the frame was alone"


def test_the_rate_follows_a_link_that_becomes_slower() -> None:
    link = Link(8e6, 0.05)
    link.upload([100_000] * 8)
    assert link.meter.rate == pytest.approx(8e6, rel=1e-3)
    link.rate = 1e6
    for _ in range(4):
        link.now += 1.0
        link.upload([100_000] * 8)
    assert link.meter.rate == pytest.approx(1e6, rel=0.1)
