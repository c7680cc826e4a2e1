"""How many bytes a link carries: a rate, and recordings."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.sim.hardware.link_capacity import PACKET, FixedRate, LinkTrace, RecordedCapacity, read_link_trace
from tests.support.data import data_path


def written(folder: Path, text: str, *, name: str = "trace.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


# A rate


def test_bytes_leave_one_behind_the_other_and_an_idle_link_has_no_memory() -> None:
    rate = FixedRate(0.008)  # 1000 bytes a second
    assert [rate.send(0.0, 500), rate.send(0.1, 1000), rate.send(9.0, 250)] == [0.5, 1.5, 9.25]


# A recording


def test_opportunities_lie_evenly_in_their_bins_and_come_again_with_every_period() -> None:
    trace = LinkTrace([2, 0, 1], 1.0)
    assert trace.period == 3.0
    assert [trace.time(number) for number in range(7)] == [0.25, 0.75, 2.5, 3.25, 3.75, 5.5, 6.25]
    assert [trace.first(at) for at in (0.0, 0.25, 0.5, 2.6, 3.0, 3.3, 301.0)] == [0, 0, 1, 3, 3, 4, 302]


def test_a_small_frame_waits_for_an_opportunity_and_those_that_wait_together_share_it() -> None:
    link = RecordedCapacity(LinkTrace([1, 1], 1.0), 0.0)
    assert [link.send(0.0, 1000), link.send(0.25, 500), link.send(0.5, 1)] == [0.5, 0.5, 1.5]


def test_what_nobody_waits_for_is_lost() -> None:
    link = RecordedCapacity(LinkTrace([1, 1], 1.0), 0.0)
    assert link.send(0.0, 100) == 0.5
    assert link.send(0.75, 100) == 1.5  # 1400 bytes of the first opportunity were free, before it came


def test_in_an_outage_everything_waits_for_its_end() -> None:
    link = RecordedCapacity(LinkTrace([1, 0, 0, 0, 2], 1.0), 0.0)
    assert [link.send(0.75, 200), link.send(1.0, 3000), link.send(4.3, 10)] == [4.25, 5.5, 5.5]


def test_a_link_may_begin_anywhere_in_a_recording() -> None:
    assert RecordedCapacity(LinkTrace([1, 0, 0], 1.0), 2.0).send(0.0, 100) == 1.5


@given(
    counts=st.lists(st.sampled_from([0, 0, 1, 2, 4]), min_size=1, max_size=5).filter(any),
    frames=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4 * PACKET)), max_size=12),
    offset=st.integers(0, 300),
)
def test_a_recording_carries_what_a_queue_served_opportunity_by_opportunity_does(
    counts: list[int], frames: list[tuple[int, int]], offset: int
) -> None:
    """Times are in 64ths of a second, which are exact."""
    sent = [(time / 64, size) for time, size in sorted(frames, key=lambda frame: frame[0])]
    link = RecordedCapacity(LinkTrace(counts, 1.0), offset / 64)
    assert [link.send(time, size) for time, size in sent] == served(counts, sent, offset / 64)


def served(counts: list[int], frames: list[tuple[float, int]], offset: float) -> list[float]:
    """When each frame has left; as Mahimahi's link does it, one opportunity after the other."""
    left, done = [size for _, size in frames], [-1.0] * len(frames)
    for second in range(10_000):
        count = counts[second % len(counts)]
        for one in range(count):
            at, space = second + (one + 0.5) / count - offset, PACKET
            for index, (since, _) in enumerate(frames):
                if since <= at and left[index] and space:
                    taken = min(left[index], space)
                    left[index] -= taken
                    space -= taken
                    done[index] = at
        if not any(left):
            return done
    raise AssertionError("expected the recording to carry everything")


# Files


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_recording_is_read_once(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, "t_ms,packets_1500B\n0,2\n20,0\n40,1\n", name=name)
    trace = read_link_trace(path)
    assert trace.period == pytest.approx(0.06)
    assert [trace.time(number) for number in range(4)] == pytest.approx([0.005, 0.015, 0.05, 0.065])
    assert read_link_trace(path) is trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected packets in bins of some width, got 0 in 0 bins"),
        ("t_ms,packets_1500B\n0,5\n", "expected packets in bins of some width, got 5 in 1 bins of 0.0 s"),
        ("t_ms,packets_1500B\n0,0\n20,0\n", "expected packets in bins of some width, got 0 in 2 bins"),
        ("t_ms,packets_1500B\n0,3\n20,-1\n", "expected packets in bins of some width"),
        ("t_ms,packets_1500B\n0,1\n20,1\n60,1\n", "expected bins of 20 ms, got t_ms 60 in row 3"),
        ("t_ms,packets\n0,1\n20,1\n", "expected whole numbers in columns t_ms and packets_1500B, got KeyError"),
        ("t_ms,packets_1500B\n0,1\n20,many\n", "expected whole numbers in columns t_ms and packets_1500B, got ValueError"),
        ("t_ms,packets_1500B\n0,1\n20\n", "expected whole numbers in columns t_ms and packets_1500B, got TypeError"),
    ],
    ids=["empty", "one bin", "no packets", "less than none", "a bin is missing", "column", "word", "short row"],
)
def test_a_file_that_is_no_recording_is_refused_by_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_link_trace(path)
    assert f"trace: {path}: {message}" in str(caught.value)


def test_a_file_that_is_not_there_or_not_gzipped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace: expected a recording that can be read, got .*no-such"):
        read_link_trace(tmp_path / "no-such.csv")
    (tmp_path / "plain.csv.gz").write_text("t_ms,packets_1500B\n0,1\n20,1\n")
    with pytest.raises(ConfigError, match="trace: expected a recording that can be read"):
        read_link_trace(tmp_path / "plain.csv.gz")


@pytest.mark.parametrize("name", ["ATT-LTE-driving_up", "TMobile-UMTS-driving_down"])
def test_a_busy_link_carries_all_of_a_recording_in_its_period(name: str) -> None:
    path = data_path("network", f"mahimahi_{name}.csv.gz")
    with gzip.open(path, "rt", newline="") as file:
        packets = sum(int(row["packets_1500B"]) for row in csv.DictReader(file))
    trace = read_link_trace(path)
    link = RecordedCapacity(trace, 0.0)
    for _ in range(packets):
        end = link.send(0.0, PACKET)
    assert trace.period - 5.0 < end <= trace.period  # it may end with an outage
    assert link.send(0.0, 1) > trace.period
