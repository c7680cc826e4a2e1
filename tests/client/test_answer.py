"""An answer that is prepared and does not start."""

from __future__ import annotations

import asyncio

import pytest

from streamco.errors import StreamClosed
from tests.client.helpers import tokens_text
from tests.client.speculating import PROMPT, World
from tests.support.leaks import settled
from tests.support.modes import drafting


async def test_a_stream_closed_before_it_begins_leaves_no_draft(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        reading = asyncio.create_task(tokens_text(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await reading
        await settled(lambda: not drafting(client).binding.device._work.get().drafters)


async def test_a_client_closed_while_an_answer_is_got_ready_leaves_no_draft(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        device = drafting(client).binding.device
        reading = asyncio.create_task(tokens_text(client.stream(PROMPT, temperature=0)))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(StreamClosed):
            await reading
        assert not device._work.get().drafters
