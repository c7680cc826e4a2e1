"""A device of a split model: modes, link and processor."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from streamco.sim.split.options import LinkRange, SplitDevicePool
from streamco.sim.split.split_device import SimulatedSplitDevice, VaryingLink, make_devices, wire_bytes
from tests.sim.split.worlds import LINK, POOL


def test_a_frame_has_its_states_a_header_and_those_of_its_packets() -> None:
    assert wire_bytes(0) == 64 + 40
    assert wire_bytes(1396) == 1460 + 40
    assert wire_bytes(1397) == 1461 + 80


def test_bytes_leave_one_after_the_other_and_directions_do_not_wait_for_each_other() -> None:
    link = VaryingLink(LINK, Random(1))
    first = link.delay(0.0, 8000, is_up=True)
    assert first == pytest.approx(wire_bytes(8000) / 8e6 + 0.005)
    assert link.delay(0.0, 8000, is_up=True) == pytest.approx(2 * wire_bytes(8000) / 8e6 + 0.005)
    assert link.delay(0.0, 8000, is_up=False) == pytest.approx(wire_bytes(8000) / 16e6 + 0.005)


def test_rates_are_drawn_between_their_bounds_for_each_request() -> None:
    device = make_devices([POOL], LinkRange(), pace_requests=5, is_shared=True, seed=1)[0]
    rates = set()
    for _ in range(20):
        device.begin()
        assert 5e6 <= device.link.up_rate <= 1e7
        assert 1e7 <= device.link.down_rate <= 1.5e7
        rates.add(device.link.up_rate)
    assert len(rates) == 20


def test_the_mode_changes_every_five_requests() -> None:
    pool = SplitDevicePool(count=1, input_ms=1.0, head_ms=1.0, paces=(1.0, 2.0, 3.0, 4.0))
    device = make_devices([pool], LINK, pace_requests=5, is_shared=True, seed=3)[0]
    seconds = []
    for _ in range(40):
        device.begin()
        seconds.append(device.input_seconds())
    assert all(len(set(seconds[start : start + 5])) == 1 for start in range(0, 40, 5))
    assert len(set(seconds)) > 1


def test_passes_take_what_their_parts_take() -> None:
    device = SimulatedSplitDevice(0, POOL, VaryingLink(LINK, Random(1)), pace_requests=5, is_shared=True, rng=Random(1))
    assert device.input_seconds(11) == pytest.approx(0.005)
    assert device.head_seconds(3) == pytest.approx(0.0012)
    assert device.step_seconds() == pytest.approx(0.0055)
    assert device.step_seconds(3) == pytest.approx(0.0066)
    assert device.tree_seconds(8) == pytest.approx(0.003 + 0.0047)


def test_a_draft_layers_own_head_and_the_heads_rows_may_differ() -> None:
    pool = msgspec.structs.replace(POOL, draft_head_ms=0.2, head_row_ms=1.0)
    device = SimulatedSplitDevice(0, pool, VaryingLink(LINK, Random(1)), pace_requests=5, is_shared=True, rng=Random(1))
    assert device.step_seconds() == pytest.approx(0.0047)
    assert device.head_seconds(3) == pytest.approx(0.003)
    assert device.input_seconds(3) == pytest.approx(0.0042)


def test_a_shared_processor_does_one_thing_after_the_other_and_an_own_one_does_not_wait() -> None:
    shared, apart = (
        SimulatedSplitDevice(0, POOL, VaryingLink(LINK, Random(1)), pace_requests=5, is_shared=is_shared, rng=Random(1))
        for is_shared in (True, False)
    )
    for device, second in ((shared, 0.2), (apart, 0.1)):
        one, other = device.begin(), device.begin()
        assert one.occupy(0.0, 0.1) == pytest.approx(0.1)
        assert other.is_busy(0.05) == (device is shared)
        assert other.occupy(0.0, 0.1) == pytest.approx(second)
    assert not shared.is_busy(0.2)
