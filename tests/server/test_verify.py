"""Drafts verified over real sockets: what a device says, what it is answered, and what is refused."""

from __future__ import annotations

from streamco.testing.sequences import FakeDistribution
from tests.server.verifying import PROMPT, SIZE, connected, greedy_text, serving, target, write


async def test_greedy_verdicts_give_the_targets_own_answer() -> None:
    truth, draft = FakeDistribution(1, SIZE), FakeDistribution(1, SIZE, noise=1.0)
    async with serving(target(successor=truth)) as server, connected(server.url) as device:
        session, opened = await device.open()
        assert len(opened.key) == 16
        assert await write(device, session, PROMPT, draft, 60) == greedy_text(truth, PROMPT, 60)
