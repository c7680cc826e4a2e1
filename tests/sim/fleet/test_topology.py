from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.sim.fleet.options import WorldOptions
from streamco.sim.fleet.topology import Topology, apportion, auto_topology, describe_topology
from streamco.sim.hardware.links import LinkOptions

A40 = {"model": "llama2-7b", "gpu": "a40"}
A100 = {"model": "llama2-70b", "gpu": "a100", "tensor_parallel": 4}


def world(**changes: Any) -> WorldOptions:
    usual = {"devices": 60, "servers": 4, "device_pools": [A40], "server_pools": [A100]}
    return msgspec.convert({**usual, **changes}, WorldOptions)


def sizes(topology: Topology) -> list[int]:
    counted = Counter(device.pool for device in topology.devices)
    return [counted[pool] for pool in sorted(counted)]


@given(st.integers(0, 3000), st.lists(st.floats(0.001, 10.0), min_size=1, max_size=8))
def test_parts_add_up_and_are_less_than_one_from_exact(total: int, shares: list[float]) -> None:
    parts = apportion(total, shares)
    assert sum(parts) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - total * share / sum(shares)) < 1.0 + 1e-9


def test_numbers_become_single_devices_and_servers() -> None:
    slow = {"share": 0.5, "draft_tokens_per_s": 30, "link": {"rtt_ms": 80}}
    topology = auto_topology(world(device_pools=[{"share": 0.5, **A40}, slow], link={"rtt_ms": 20}))
    assert [device.number for device in topology.devices] == list(range(60))
    assert len(topology.servers) == 4
    assert sizes(topology) == [30, 30]
    assert {device.pool for device in topology.devices[:2]} == {0, 1}
    assert {(device.pool, device.link.rtt_ms) for device in topology.devices} == {(0, 20.0), (1, 80.0)}
    assert topology == auto_topology(world(device_pools=[{"share": 0.5, **A40}, slow], link={"rtt_ms": 20}))


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([{}, {}, {}], [20, 20, 20]),
        ([{"share": 1}, {"share": 1}, {"share": 1}, {"share": 4}], [9, 9, 8, 34]),  # of equal remainders the first ones
        ([{"count": 7}, {}], [7, 53]),
        ([{"share": 0.25}, {}], [15, 45]),
        ([{"share": 3}, {}], [30, 30]),
        ([{"count": 60}], [60]),
    ],
)
def test_pools_have_their_counts_or_their_share_of_what_is_left(pools: list[dict[str, Any]], expected: list[int]) -> None:
    assert sizes(auto_topology(world(device_pools=[{**pool, **A40} for pool in pools]))) == expected


def test_every_pool_is_spread_over_all_numbers() -> None:
    topology = auto_topology(world(devices=100, device_pools=[{"share": 0.9, **A40}, {"share": 0.1, **A40}]))
    for begin in range(0, 100, 10):
        assert sum(device.pool for device in topology.devices[begin : begin + 10]) == 1


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([], "device_pools: expected one pool or more"),
        ([{"count": 61}], "expected counts of 60 in all, as devices says, got 61"),
        ([{"count": 59}], "got 59"),
    ],
)
def test_counts_that_are_not_the_worlds_are_refused(pools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        auto_topology(world(device_pools=[{**pool, **A40} for pool in pools]))


def test_who_is_there_is_told_to_people() -> None:
    topology = auto_topology(world(device_pools=[A40, {"draft_tokens_per_s": 30}], servers=1))
    assert describe_topology(topology) == "60 devices (30 llama2-7b on a40, 30 at 30 tokens/s), 1 server (llama2-70b on 4 a100)"
    assert topology.devices[0].link == LinkOptions()
