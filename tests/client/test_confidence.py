"""What a report says of how sure the device was, with a real model."""

from __future__ import annotations

from math import exp
from statistics import fmean

import pytest

import streamco
from streamco.core.confidence import BEGINNING
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions
from tests.client.helpers import server


@pytest.fixture
def device() -> DeviceEndpoint:
    return DeviceEndpoint(streamco.packaged_model(), options=EngineOptions(context_tokens=512, threads=1, max_sequences=1))


@pytest.mark.model
async def test_the_device_says_how_sure_it_was_and_a_server_says_nothing(device: DeviceEndpoint) -> None:
    async with streamco.Client(device, server(), mode=streamco.Race(policy="device-first")) as client:
        answer = await client.chat.completions.create(
            messages=[{"role": "user", "content": "Name three rivers."}], max_tokens=24, temperature=0, logprobs=True
        )
        stream = client.stream("Name three rivers.", max_tokens=24, temperature=0)
        text = "".join([token.text async for token in stream])
    assert text == answer.choices[0].message.content
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    logarithms = [each.logprob for each in logprobs.content or ()]
    assert answer.report is not None
    for report in (stream.report, answer.report):
        parts = {part.name: part.confidence for part in report.endpoints}
        found = parts["device"]
        assert found is not None
        assert report.confidence == found
        assert found.tokens == len(logarithms)
        assert found.beginning == pytest.approx(exp(fmean(logarithms[:BEGINNING])), rel=1e-3)
        assert all(confidence is None for name, confidence in parts.items() if name != "device")
        assert "sure of its first 16 tokens" in str(report)
