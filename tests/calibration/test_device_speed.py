"""A device measured alone."""

from __future__ import annotations

import pytest

from streamco.calibration.device_speed import _prompts, measure_device_speed
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import EndpointError
from streamco.testing import FakeEngine


def test_no_prompt_begins_like_another_and_each_has_its_length() -> None:
    prompts = _prompts(range(50), (16, 64), 3)
    assert [len(prompt) for prompt in prompts] == [16, 64, 16, 64, 16, 64]
    assert len({prompt[0] for prompt in prompts}) == 6
    assert prompts[1][:3] == [1, 2, 3]


async def test_lengths_are_cut_to_the_context_and_progress_is_told() -> None:
    device, seen = DeviceEndpoint(FakeEngine(context_tokens=64)), list[tuple[int, int]]()
    speed = await measure_device_speed(device, turns=2, on_progress=lambda done, whole: seen.append((done, whole)))
    assert seen[-1] == (8, 8)
    assert speed.seconds_per_token >= 0
    await device.aclose()


async def test_a_device_that_fails_is_an_error() -> None:
    device = DeviceEndpoint(FakeEngine(fail_after=0))
    with pytest.raises(EndpointError):
        await measure_device_speed(device)
    await device.aclose()
