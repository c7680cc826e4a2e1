"""Sessions taken up again: on another connection, in mid-round, by whom, and when that is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import websockets

from streamco.core.verifier.options import LoadLimits
from streamco.policies.acceptance import Rule, RuleKind
from streamco.server.verify.options import VerifyOptions
from streamco.sim.workload.token_models import FakeDistribution
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.errors import NotResumableError, OverloadedError
from streamco.wire.verify.frames import Resumed
from tests.server.verifying import PROMPT, SIZE, Device, connected, greedy_text, serving, target, write
from tests.support.leaks import settled

TRUTH = FakeDistribution(1, SIZE)
OWN = greedy_text(TRUTH, PROMPT, 40)


async def lose(device: Device) -> None:
    """As a network does: without a word."""
    device.socket.transport.abort()
    await device.socket.wait_closed()


async def test_a_lost_connections_session_goes_on_where_it_was() -> None:
    async with serving(target(successor=TRUTH)) as server:
        async with connected(server.url) as device:
            session, opened = await device.open()
            verdict = await device.draft(session, 6, OWN[:4])
            await lose(device)
        async with connected(server.url) as device:
            text = [*PROMPT, *OWN[:5]]
            session, resumed = await device.resume(opened.key, text)
            assert (resumed.base, resumed.prefix, verdict.token) == (11, prefix_hash(text), OWN[4])
            assert await write(device, session, text, TRUTH, 10) == OWN[5:15]
        assert server.figures["resumed"] == 1


async def test_a_verdict_that_was_lost_is_asked_for_again() -> None:
    async with serving(target(successor=TRUTH)) as server:
        async with connected(server.url) as device:
            session, opened = await device.open()
            device.client.draft(session, 6, OWN[:3])
            await device.say()
            await settled(lambda: server.figures["verdicts"] == 1)
            await lose(device)
        async with connected(server.url) as device:
            session, resumed = await device.resume(opened.key, PROMPT)
            assert resumed.base == 6  # the server has four more and leaves them
            verdict = await device.draft(session, 6, [OWN[0], 63 - OWN[1]])
            assert (verdict.accepted, verdict.token) == (1, OWN[1])


async def test_a_device_that_holds_more_sends_what_the_server_lacks() -> None:
    async with serving(target(successor=TRUTH)) as server:
        async with connected(server.url) as device:
            _, opened = await device.open()
            await lose(device)
        async with connected(server.url) as device:
            session, resumed = await device.resume(opened.key, [*PROMPT, *OWN[:3]])
            assert resumed.base == 6
            verdict = await device.draft(session, 6, OWN[:5], given=3)
            assert (verdict.accepted, verdict.token) == (2, OWN[5])


async def test_a_round_that_is_out_is_over_before_its_session_is_resumed() -> None:
    engine = target(successor=TRUTH, mode="manual")
    async with serving(engine) as server:
        async with connected(server.url) as device:
            session, opened = await device.open()
            device.client.draft(session, 6, OWN[:3])
            await device.say()
            await settled(lambda: server.figures["batches"])
            await lose(device)
        await settled(lambda: server.figures["sessions_waiting_to_be_resumed"])
        async with connected(server.url) as device:
            device.client.resume(opened.key, [*PROMPT, *OWN[:3]])
            await device.say()
            await asyncio.sleep(0.02)
            assert server.figures["resumed"] == 0
            while not server.figures["resumed"]:
                engine.step()
                await asyncio.sleep(0.001)
            assert (await device.hear(Resumed)).base == 9


async def test_a_session_is_resumed_after_the_path_that_a_tree_s_verdict_accepted() -> None:
    engine = target(successor=TRUTH, mode="manual")
    async with serving(engine) as server:
        async with connected(server.url) as device:
            session, opened = await device.open()
            device.client.draft(session, 6, [63 - OWN[0], 1, 2, *OWN[:2]], parents=(0, 1, 2, 0, 4))  # its longest path is wrong
            await device.say()
            await settled(lambda: server.figures["batches"])
            await lose(device)
        await settled(lambda: server.figures["sessions_waiting_to_be_resumed"])
        async with connected(server.url) as device:
            text = [*PROMPT, *OWN[:3]]
            device.client.resume(opened.key, text)
            await device.say()
            while not server.figures["resumed"]:
                engine.step()
                await asyncio.sleep(0.001)
            resumed = await device.hear(Resumed)
            assert (resumed.base, resumed.prefix) == (9, prefix_hash(text))


async def test_who_has_the_key_takes_a_session_from_a_connection_that_still_seems_to_live() -> None:
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as old, connected(server.url) as new:
        session, opened = await old.open()
        number, _ = await new.resume(opened.key, PROMPT)
        assert await old.refused() == ("evicted", session, None)
        assert await write(new, number, PROMPT, TRUTH, 5) == OWN[:5]
        old.client.close(session)
        await old.say()
        await old.open()
        assert await write(new, number, [*PROMPT, *OWN[:5]], TRUTH, 5) == OWN[5:10]


async def test_other_keys_other_texts_and_closed_sessions_are_refused() -> None:
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as device:
        session, opened = await device.open()
        device.client.close(session)
        _, other = await device.open()
        for key, ids in ((bytes(16), PROMPT), (opened.key, PROMPT), (other.key, [*PROMPT[:5], 63])):
            with pytest.raises(NotResumableError):
                await device.resume(key, ids)


async def test_a_session_whose_time_is_over_is_refused() -> None:
    async with serving(target(), verify=VerifyOptions(resume_s=0)) as server:
        async with connected(server.url) as device:
            _, opened = await device.open()
            await lose(device)
        await settled(lambda: not server.figures["sessions"])
        async with connected(server.url) as device:
            with pytest.raises(NotResumableError):
                await device.resume(opened.key, PROMPT)


async def test_a_session_that_was_silent_for_too_long_is_evicted() -> None:
    async with serving(target(), verify=VerifyOptions(load=LoadLimits(forget_after=0.05))) as server, connected(server.url) as device:
        session, opened = await device.open()
        assert await device.refused() == ("evicted", session, None)
        with pytest.raises(NotResumableError):
            await device.resume(opened.key, PROMPT)


async def test_a_resumed_session_keeps_its_rule_and_its_rows() -> None:
    rule = Rule(RuleKind.THRESHOLD, threshold=0.0)
    async with serving(target(successor=TRUTH)) as server:
        async with connected(server.url) as device:
            _, opened = await device.open(rule=rule, top_k=3)
            await lose(device)
        async with connected(server.url) as device:
            session, _ = await device.resume(opened.key, PROMPT, top_k=3)
            verdict = await device.draft(session, 6, [1, 2, 3])
            assert (verdict.accepted, [len(row.ids) for row in verdict.rows]) == (3, [3, 3, 3, 3])


# A server that dies

SERVER = """
import asyncio, sys
from tests.server.test_verify_resume import TRUTH
from tests.server.verifying import serving, target
async def main():
    async with serving(target(successor=TRUTH, mode="thread", prefill_s=0.02), port=int(sys.argv[1])) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@contextlib.contextmanager
def server_process(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def answer(url: str, number: int, count: int) -> tuple[list[int], int]:
    """Greedy, whatever happens to the server; the text and how often it was begun anew."""
    prompt = [*PROMPT, number]
    text, key, begun = list(prompt), b"", 0
    while len(text) < len(prompt) + count:
        try:
            async with connected(url) as device:
                try:
                    session, resumed = await device.resume(key or bytes(16), text)
                    base = resumed.base
                except NotResumableError:
                    session, opened = await device.open(text)
                    key, base, begun = opened.key, len(text), begun + 1
                while len(text) < len(prompt) + count:
                    drafted = greedy_text(TRUTH, text, 3)
                    verdict = await device.draft(session, base, [*text[base:], *drafted], given=len(text) - base)
                    assert verdict.token is not None
                    text += [*drafted[: verdict.accepted], verdict.token]
                    base = len(text)
        except (OSError, websockets.WebSocketException, OverloadedError):
            await asyncio.sleep(0.05)
    return text[len(prompt) :][:count], begun


@pytest.mark.long
async def test_answers_go_on_behind_a_server_that_is_killed_in_mid_round() -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, url = await asyncio.to_thread(stack.enter_context, server_process())
        answers = [asyncio.create_task(answer(url, number, 60)) for number in range(4)]
        await asyncio.sleep(1.0)
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait)
        port = int(url.rpartition(":")[2].split("/")[0])
        await asyncio.to_thread(stack.enter_context, server_process(port))
        for number, (told, begun) in enumerate(await asyncio.gather(*answers)):
            assert told == greedy_text(TRUTH, [*PROMPT, number], 60)
            assert begun == 2  # the new server told them that it knows nothing
