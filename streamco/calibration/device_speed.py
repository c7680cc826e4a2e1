"""Measures a device alone: how fast it reads prompts of several lengths, and how fast it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from streamco.calibration.measure import GREEDY, measure_remote_step
from streamco.calibration.prompts import PROMPTS
from streamco.core.race.estimators import DeviceFit
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import EngineError
from streamco.events import StreamEnded, TokensReceived
from streamco.profiles import DeviceSpeed

__all__ = ["measure_device_speed"]

LENGTHS = (16, 64, 192, 384)  # tokens of the prompts that are timed
TURNS = 3  # prompts of each length
DECODED = 48  # tokens that are written for the rate


async def measure_device_speed(
    device: DeviceEndpoint,
    *,
    texts: Sequence[str] = PROMPTS,
    lengths: Sequence[int] = LENGTHS,
    turns: int = TURNS,
    on_progress: Callable[[int, int], None] = lambda done, whole: None,
) -> DeviceSpeed:
    """Measure a device's speed: its time to first token as a linear function of the prompt's length, and its decode rate.

    The lengths take turns, so that other load on the machine affects all of them.

    Args:
        device: a device whose model is in this process; this function starts it, and the caller closes it.
        texts: texts that the prompts are made from.
        lengths: prompt lengths in tokens; a length that doesn't fit into the device's context is shortened.
        turns: number of prompts of each length.
        on_progress: called with the number of prompts measured so far and the number of all prompts.

    Raises:
        EndpointError: the device failed.
    """
    await device.start()
    engine = device.engine
    if engine is None:
        raise EngineError(f"{device.name}: expected a model in this process, got none")
    ids = device.prompt_ids(engine, Request(prompt="\n".join(texts)))
    most = engine.info.context_tokens - DECODED
    prompts = _prompts(ids, [min(length, most) for length in lengths], turns)
    line = DeviceFit()
    for number, prompt in enumerate(prompts, start=1):
        line.observe(len(prompt), await _first_token(device, prompt))
        on_progress(number, len(prompts))
    step = await measure_remote_step(device, prompts[0], tokens=DECODED)
    speed = line.estimate()
    if speed is None:
        raise AssertionError("every prompt was observed")
    return replace(speed, decode_tokens_per_s=1 / step if step else None)


def _prompts(ids: Sequence[int], lengths: Sequence[int], turns: int) -> list[list[int]]:
    """Return prompts that begin at different tokens, because an engine would still have a common prefix in memory."""
    prompts = []
    for turn in range(turns):
        for place, length in enumerate(lengths):
            begin = (turn * len(lengths) + place) % len(ids)
            turned = [*ids[begin:], *ids[:begin]]
            prompts.append((turned * (length // len(turned) + 1))[:length])
    return prompts


async def _first_token(device: DeviceEndpoint, prompt: Sequence[int]) -> float:
    """Return the seconds until the first token after a prompt."""
    loop = asyncio.get_running_loop()
    sampling = replace(GREEDY, max_tokens=1)
    began = loop.time()
    stream = device.open(Request(prompt_ids=list(prompt), sampling=sampling, extra={"ignore_eos": True}))
    try:
        while not (isinstance(event := await stream.receive(), TokensReceived) and event.tokens):
            if isinstance(event, StreamEnded):
                raise EngineError(f"{device.name}: expected a token after a prompt of {len(prompt)}, got none")
        return loop.time() - began
    finally:
        await stream.cancel()
