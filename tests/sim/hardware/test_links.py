"""How long bytes take from a device to a server and back."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.sim.hardware.links import ConstantLink, LinkOptions, SimulatedLink, TcpLink, simulated_link
from streamco.testing.link_proxy import LinkDirection

ALONE = 100  # bytes of a frame that is one packet


class Scripted(Random):
    """Dice that fall as told; a packet is lost where they are below the loss."""

    def __init__(self, falls: Iterable[float]) -> None:
        super().__init__(0)
        self._falls = iter(falls)

    def random(self) -> float:
        return next(self._falls)


LOST, KEPT = 0.0, 0.9


def lossy(*falls: float, rtt_ms: float = 40.0) -> TcpLink:
    return TcpLink(LinkOptions(rtt_ms=rtt_ms, loss=0.1), Scripted(falls))


def one_way(link: SimulatedLink, *, frames: int, payload: int = ALONE) -> list[float]:
    """Delays of frames so far apart that none waits for another."""
    return [link.delay(float(number), payload, is_up=number % 2 == 0) for number in range(frames)]


# The round trip alone


def test_a_plain_link_takes_half_the_round_trip_whatever_is_sent() -> None:
    link = simulated_link(LinkOptions(rtt_ms=30.0), Random(1))
    assert isinstance(link, ConstantLink)
    assert {link.delay(now, payload, is_up=is_up) for now in (0.0, 9.0) for payload in (0, 10**9) for is_up in (False, True)} == {0.015}


@pytest.mark.parametrize("more", [{"jitter_ms": 1.0}, {"loss": 0.01}, {"up_mbps": 1.0}, {"down_mbps": 1.0}], ids=str)
def test_whatever_else_is_asked_for_is_simulated(more: dict[str, float]) -> None:
    assert isinstance(simulated_link(msgspec.convert(more, LinkOptions), Random(1)), TcpLink)


# Jitter


@pytest.mark.parametrize("jitter_ms", [0.5, 5.0, 10.0, 13.0, 17.0, 20.0])
def test_jitter_is_the_mean_deviation_of_a_one_way_delay_and_leaves_its_mean(jitter_ms: float) -> None:
    delays = one_way(simulated_link(LinkOptions(rtt_ms=40.0, jitter_ms=jitter_ms), Random(5)), frames=40_000)
    assert min(delays) >= 0.0
    assert fmean(delays) == pytest.approx(0.020, rel=0.03)
    assert fmean(abs(delay - 0.020) for delay in delays) == pytest.approx(jitter_ms / 1e3, rel=0.03)


def test_delays_are_skewed_to_the_right_of_a_floor() -> None:
    delays = sorted(one_way(simulated_link(LinkOptions(rtt_ms=40.0, jitter_ms=4.0), Random(5)), frames=20_000))
    median, floor = delays[len(delays) // 2], 0.020 - 0.004 * 1.8473  # shape 2: e^2 / 4 deviations
    assert floor < delays[0] < floor + 0.0002
    assert median < fmean(delays)
    assert delays[-1] - median > 3 * (median - delays[0])


links = st.builds(
    LinkOptions,
    rtt_ms=st.just(40.0),
    jitter_ms=st.sampled_from([0.0, 3.0, 19.0]),
    loss=st.sampled_from([0.0, 0.3]),
    up_mbps=st.sampled_from([None, 0.1]),
    down_mbps=st.sampled_from([None, 1.0]),
)
sent = st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 10_000), st.booleans()), max_size=30)


@given(options=links, frames=sent, seed=st.integers(0, 2**32))
def test_nothing_overtakes_and_the_same_dice_make_the_same_delays(
    options: LinkOptions, frames: list[tuple[float, int, bool]], seed: int
) -> None:
    link, again = TcpLink(options, Random(seed)), TcpLink(options, Random(seed))
    arrivals: dict[bool, list[float]] = {True: [], False: []}
    now = 0.0
    for gap, payload, is_up in frames:
        now += gap
        delay = link.delay(now, payload, is_up=is_up)
        assert delay == again.delay(now, payload, is_up=is_up)
        assert delay >= 0.0
        arrivals[is_up].append(now + delay)
    for times in arrivals.values():
        assert all(earlier < later for earlier, later in pairwise(times))


# Losses


def test_a_lone_packet_that_is_lost_costs_a_round_trip_and_the_least_timeout() -> None:
    assert lossy(LOST, KEPT).delay(0.0, ALONE, is_up=True) == pytest.approx(0.020 + 0.040 + 0.200)
    assert lossy(KEPT).delay(0.0, ALONE, is_up=True) == pytest.approx(0.020)


def test_a_packet_with_others_behind_it_costs_a_round_trip_and_the_last_of_many_two() -> None:
    assert lossy(KEPT, LOST, KEPT).delay(0.0, 5 * 1460, is_up=True) == pytest.approx(0.020 + 0.040)
    assert lossy(LOST, KEPT).delay(0.0, 5 * 1460, is_up=True) == pytest.approx(0.020 + 0.080)


def test_no_probe_comes_after_the_timeout() -> None:
    assert lossy(LOST, KEPT, rtt_ms=400.0).delay(0.0, 5 * 1460, is_up=True) == pytest.approx(0.2 + 0.6)  # not 0.8


def test_what_is_lost_again_costs_a_timeout_that_doubles() -> None:
    assert lossy(LOST, LOST, LOST, KEPT).delay(0.0, ALONE, is_up=True) == pytest.approx(0.020 + 0.240 + 0.240 + 0.480)


def test_in_a_stream_the_next_frame_shows_the_loss() -> None:
    link = lossy(KEPT, KEPT, LOST, KEPT)
    assert [link.delay(now, ALONE, is_up=False) for now in (0.0, 0.05)] == pytest.approx([0.020, 0.020])
    assert link.delay(0.10, ALONE, is_up=False) == pytest.approx(0.020 + 0.05 + 0.040)


def test_who_answers_frame_by_frame_is_no_stream() -> None:
    link = lossy(KEPT, KEPT, LOST, KEPT)
    link.delay(0.0, ALONE, is_up=True)
    link.delay(0.05, ALONE, is_up=False)
    assert link.delay(0.10, ALONE, is_up=True) == pytest.approx(0.020 + 0.240)


def test_what_is_behind_a_lost_packet_waits_for_it_and_the_other_direction_does_not() -> None:
    link = lossy(LOST, KEPT, KEPT, KEPT)
    first = link.delay(0.0, ALONE, is_up=True)
    assert link.delay(0.05, ALONE, is_up=False) == pytest.approx(0.020)
    assert link.delay(0.10, ALONE, is_up=True) == pytest.approx(first - 0.10)


@pytest.mark.parametrize(("packets", "share"), [(1, 0.02), (10, 1 - 0.98**10)])
def test_so_many_frames_are_late_as_have_a_packet_that_is_lost(packets: int, share: float) -> None:
    delays = one_way(simulated_link(LinkOptions(rtt_ms=40.0, loss=0.02), Random(3)), frames=20_000, payload=packets * 1460)
    assert fmean(delay > 0.021 for delay in delays) == pytest.approx(share, rel=0.15)


# Capacity


@given(frames=st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(1, 20_000)), max_size=20))
def test_a_link_with_a_rate_takes_as_long_as_the_emulated_one(frames: list[tuple[float, int]]) -> None:
    link, lane = simulated_link(LinkOptions(rtt_ms=30.0, up_mbps=8.0), Random(1)), LinkDirection(0.015, 1e6)
    now = 0.0
    for gap, payload in frames:
        now += gap
        assert now + link.delay(now, payload, is_up=True) == pytest.approx(lane.send(payload, now))
        assert link.delay(now, payload, is_up=False) == pytest.approx(0.015)  # which has no limit


def test_a_link_with_recordings_waits_in_each_direction_as_they_say(tmp_path: Path) -> None:
    (tmp_path / "up.csv").write_text("t_ms,packets_1500B\n0,0\n100,1\n")
    (tmp_path / "down.csv").write_text("t_ms,packets_1500B\n0,1\n100,0\n")
    options = LinkOptions(rtt_ms=20.0, up_trace=str(tmp_path / "up.csv"), down_trace=str(tmp_path / "down.csv"), trace_offset_s=0.0)
    link = simulated_link(options, Random(1))
    assert [link.delay(0.0, ALONE, is_up=is_up) for is_up in (True, False)] == pytest.approx([0.160, 0.060])


def test_a_link_begins_anywhere_in_its_recordings_and_at_one_place_in_both(tmp_path: Path) -> None:
    (tmp_path / "both.csv").write_text("t_ms,packets_1500B\n" + "".join(f"{100 * index},{int(index == 9)}\n" for index in range(10)))
    recording = str(tmp_path / "both.csv")
    options = LinkOptions(rtt_ms=0.0, up_trace=recording, down_trace=recording)
    both = []
    for seed in range(200):
        link = simulated_link(options, Random(seed))
        both.append((link.delay(0.0, ALONE, is_up=True), link.delay(0.0, ALONE, is_up=False)))
    assert all(up == down for up, down in both)
    assert fmean(up for up, _ in both) == pytest.approx(0.5, abs=0.08)


# Settings


def test_options_are_read_as_an_experiment_writes_them() -> None:
    options = msgspec.convert({"rtt_ms": 30, "jitter_ms": 2, "down_mbps": 50}, LinkOptions)
    assert options == LinkOptions(rtt_ms=30.0, jitter_ms=2.0, down_mbps=50.0)
    with pytest.raises(msgspec.ValidationError, match="unknown field `rtt`"):
        msgspec.convert({"rtt": 0.03}, LinkOptions)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rtt_ms": -1.0}, "rtt_ms: expected at least 0, got -1.0"),
        ({"rtt_ms": 10.0, "jitter_ms": 5.1}, "jitter_ms: expected 0 to half of rtt_ms, 5, got 5.1"),
        ({"jitter_ms": -0.1}, "jitter_ms: expected 0 to half of rtt_ms, 5, got -0.1"),
        ({"loss": 0.6}, "loss: expected a probability of 0 to 0.5, got 0.6"),
        ({"up_mbps": 0.0}, "up_mbps: expected above 0, got 0.0"),
        ({"down_mbps": 1.0, "down_trace": "a.csv"}, "expected down_mbps or down_trace, got both"),
        ({"trace_offset_s": -1.0}, "trace_offset_s: expected at least 0, got -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LinkOptions(**wrong)  # type: ignore[arg-type]
    assert str(caught.value) == f"link: {message}"
