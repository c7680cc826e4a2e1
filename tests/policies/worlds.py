"""Servers, devices and prompts to plan for, and what a plan does there, counted out case by case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from hypothesis import strategies as st

from streamco.policies.dispatch import Decision, Outcomes, Side
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

times = st.lists(st.floats(0.01, 20.0).map(lambda value: round(value, 3)), min_size=1, max_size=40)
prompts = st.lists(st.integers(1, 300), min_size=1, max_size=60)
budgets = st.floats(0.0, 1.0)
devices = st.builds(
    DeviceSpeed,
    seconds_per_token=st.floats(0.001, 0.2),
    overhead=st.floats(0.0, 2.0),
    jitter=st.sampled_from([(1.0,), (0.5, 1.0, 3.0), (0.9, 1.1)]),
)

PIXEL = DeviceSpeed.from_rates(31.32, 13.93)


class DispatchPolicy(Protocol):
    """What every dispatch policy has."""

    @property
    def name(self) -> str: ...

    def outcomes(self, length: int) -> Outcomes: ...

    def decide(self, length: int, rng: Random) -> Decision: ...


class World(NamedTuple):
    """One server, one device, one kind of prompts."""

    ttft: TTFTDistribution
    lengths: LengthDistribution
    device: DeviceSpeed


def lognormal_world(seed: int, *, samples: int = 60, device: DeviceSpeed = PIXEL) -> World:
    """Times around half a second with a tail, prompts around 17 tokens, as in the recorded data."""
    dice = np.random.default_rng(seed)
    prompts = np.maximum(1, dice.lognormal(2.8, 0.7, 3000)).astype(np.int64)
    return World(TTFTDistribution.from_samples(dice.lognormal(-0.7, 0.7, samples)), LengthDistribution.from_samples(prompts), device)


def expected(policy: DispatchPolicy, world: World, side: Side) -> tuple[float, float]:
    """Mean time to first token in seconds and the constrained side's share of prompt tokens, over every case there is."""
    mean = spent = 0.0
    server_times = world.ttft.times.tolist()
    shares = zip(world.lengths.lengths.tolist(), world.lengths.probabilities.tolist(), strict=True)
    for length, share in shares:
        for probability, decision in policy.outcomes(length):
            device_start, server_start = _start(decision.device_wait), _start(decision.server_wait)
            for server_time in server_times:
                for factor in world.device.jitter:
                    weight = share * probability / len(server_times) / len(world.device.jitter)
                    on_device, on_server = device_start + world.device.ttft(length) * factor, server_start + server_time
                    mean += weight * min(on_device, on_server)
                    has_started = on_server > device_start if side == "device" else on_device > server_start
                    spent += weight * length * has_started
    return mean, spent / world.lengths.mean


def _start(wait: float | None) -> float:
    return math.inf if wait is None else wait


def realised(lengths: Sequence[int], was_started: Sequence[bool], window: int = 500) -> tuple[float, float]:
    """The largest share from the ``window``-th request on, and the largest of any ``window`` consecutive requests."""
    tokens = np.concatenate(([0], np.cumsum(lengths)))
    spent = np.concatenate(([0], np.cumsum(np.where(was_started, lengths, 0))))
    total = (spent[window:] / tokens[window:]).max()
    return float(total), float(((spent[window:] - spent[:-window]) / (tokens[window:] - tokens[:-window])).max())
