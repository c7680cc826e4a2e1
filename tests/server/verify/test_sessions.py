"""Sessions under connections that are cut at random, and frames of every kind at any time: nothing is lost, mixed or left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
import uvloop
import websockets

from streamco.core.verifier.options import LoadLimits
from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.serving.batching import Alternating, BatchPolicy, LinearStep, Mixed, StrictPrefill
from streamco.policies.serving.length_aware import LengthAware
from streamco.server.verify.options import VerifyOptions, VerifyPolicy
from streamco.server.verify.sessions import SessionManager, make_policy, make_scheduler
from streamco.testing.engine import FakeEngine
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import EvictedError, NotResumableError, OverloadedError, VerifierFailedError
from streamco.wire.verify.frames import ClientFrame, Close, Extend, Hello, Open, Refusal, Resume, ServerFrame, VerdictFrame
from streamco.wire.verify.server import VerifyServer
from tests.server.verifying import PROMPT, SIZE, VOCABULARY, Device, Serving, WholeText, connected, greedy_text, serving, target, write
from tests.support.leaks import holding_nothing_new, settled
from tests.support.verify_frames import make_draft, make_open

SUCCESSOR = WholeText(SIZE)


class Cut(Exception):
    """The connection was lost."""


async def hear_or_cut(device: Device, dice: Random) -> VerdictFrame:
    """A round, in the middle of which the connection may be lost."""
    await device.say()
    if dice.random() < 0.25:
        await asyncio.sleep(dice.choice([0.0, 0.001, 0.005]))
        device.socket.transport.abort()
        raise Cut
    return await device.hear(VerdictFrame)


async def answer(server: Serving, number: int, count: int) -> None:
    """Greedy, over as many connections as it takes."""
    dice = Random(f"cuts {number}")
    prompt = [dice.randrange(SIZE) for _ in range(dice.randrange(1, 40))]
    text, key, base = list(prompt), bytes(16), 0
    while len(text) < len(prompt) + count:
        try:
            async with connected(server.url) as device:
                try:
                    session, resumed = await device.resume(key, text)
                    base = resumed.base
                except NotResumableError:
                    session, opened = await device.open_patiently(text)
                    key, base = opened.key, len(text)
                while len(text) < len(prompt) + count:
                    drafted = greedy_text(SUCCESSOR, text, dice.randrange(5))
                    if drafted and dice.random() < 0.4:
                        drafted[-1] = (drafted[-1] + 1) % SIZE
                    try:
                        device.client.draft(session, base, [*text[base:], *drafted], given=len(text) - base)
                        verdict = await hear_or_cut(device, dice)
                    except (OverloadedError, VerifierFailedError) as error:
                        await asyncio.sleep(error.retry_after or 0.0)
                        continue
                    text += drafted[: verdict.accepted]
                    assert verdict.token == greedy_text(SUCCESSOR, text, 1)[0], f"device {number}"
                    text.append(verdict.token)
                    base = len(text)
        except (Cut, websockets.ConnectionClosed, EvictedError):
            continue


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("policy", ["alternating", "strict", "length-aware", "mixed"])
async def test_answers_over_connections_that_are_cut_at_random_lose_and_mix_nothing(policy: str) -> None:
    engine = target(successor=SUCCESSOR, mode="thread", held_sequences=6, context_tokens=128)
    options = VerifyOptions(policy=policy, load=LoadLimits(idle_after=0.005, draft_stretch=1e6, prefill_within=1e6))  # type: ignore[arg-type]
    async with holding_nothing_new():
        async with serving(engine, verify=options) as server:
            await asyncio.gather(*(answer(server, number, 30) for number in range(16)))
            assert server.figures["resumed"] > 16
            assert server.figures["failed_batches"] == 0
        engine.close()


async def test_random_frames_at_any_time_are_answered_and_leave_a_working_server() -> None:
    dice, codec = Random(20), VerifyCodec(SIZE)
    engine = target(successor=SUCCESSOR, mode="thread", held_sequences=4, context_tokens=64)
    keys, numbers = [bytes(16)], Counter[int]()

    def frame(number: int) -> bytes:
        """Number ``number`` of a connection, which isn't always what it should be."""
        ids = tuple(dice.randrange(SIZE) for _ in range(dice.randrange(12)))
        session, base = dice.randrange(number + 1), dice.randrange(8)
        rule = Rule(dice.choice([RuleKind.GREEDY, RuleKind.GREEDY, *RuleKind]), temperature=1.0, threshold=dice.random())
        match dice.randrange(9):
            case 0 | 1:
                return codec.encode(Open(number, rule, dice.randrange(4), 0, ids))
            case 2:
                return codec.encode(Extend(session, base, ids))
            case 3 | 4 | 5:
                return codec.encode(make_draft(session, number, base, ids, dice.randrange(len(ids) + 1)))
            case 6:
                return codec.encode(Resume(number, dice.choice(keys[-5:]), 0, prefix_hash(dice.choice([(), ids]))))
            case 7:
                return msgspec.msgpack.encode([6, session])
        whole = bytearray(codec.encode(make_draft(session, number, base, ids)))
        whole[dice.randrange(len(whole))] = dice.randrange(256)
        return bytes(whole)

    async def listen(device: Device) -> None:
        with suppress(websockets.ConnectionClosed):
            async for message in device.socket:
                assert isinstance(message, bytes)
                answered = msgspec.msgpack.decode(message)
                numbers[answered[0]] += 1
                keys.extend([answered[2]] if answered[0] == 17 else [])

    async with holding_nothing_new():
        async with serving(engine, verify=VerifyOptions(resume_s=0, faults_per_minute=10**6)) as server:
            for _ in range(40):
                async with connected(server.url) as device, asyncio.TaskGroup() as group:
                    group.create_task(listen(device))
                    with suppress(websockets.ConnectionClosed):
                        for number in range(60):
                            await device.socket.send(frame(number))
                            await asyncio.sleep(0)
                    await device.socket.close()
            await settled(lambda: not server.figures["sessions"] and not server.figures["cached_tokens"])
            async with connected(server.url) as device:
                session, _ = await device.open([1, 2, 3])
                assert (await device.draft(session, 3, [])).token == greedy_text(SUCCESSOR, [1, 2, 3], 1)[0]
            assert server.figures["failed_batches"] == 0
        engine.close()
    assert set(numbers) == {17, 18, 19, 20}


async def test_a_draft_that_is_sent_twice_is_refused_and_the_first_one_judged() -> None:
    engine, codec = target(successor=SUCCESSOR, mode="manual"), VerifyCodec(SIZE)
    prompt = tuple(range(40))
    frames: list[ClientFrame] = [
        make_open(0, ids=prompt),
        make_draft(0, 0, 40, (1,)),
        make_draft(0, 0, 40, (1,)),
        make_draft(0, 1, 40, (2,)),
    ]
    async with serving(engine) as server, connected(server.url) as device, connected(server.url) as other:
        for frame in frames:
            await device.socket.send(codec.encode(frame))
        told = [codec.decode_down(await device.socket.recv()) for _ in range(3)]  # type: ignore[arg-type]
        assert [(frame.code, frame.round_number) for frame in told if isinstance(frame, Refusal)] == [
            ("stale_round", 0),
            ("stale_round", 1),
        ]
        verdict = asyncio.create_task(device.socket.recv())
        while not verdict.done():
            engine.step()
            await asyncio.sleep(0.001)
        judged = codec.decode_down(await verdict)  # type: ignore[arg-type]
        assert isinstance(judged, VerdictFrame)
        assert judged.round_number == 0
        asked = asyncio.create_task(answer_once(other))
        while not asked.done():
            engine.step()
            await asyncio.sleep(0.001)
        assert await asked == greedy_text(SUCCESSOR, PROMPT, 1)[0]
        assert server.figures["failed_batches"] == 0


async def answer_once(device: Device) -> int | None:
    session, _ = await device.open()
    return (await device.draft(session, len(PROMPT), [])).token


async def test_a_draft_beside_one_that_is_out_is_refused_whatever_the_connection_let_through() -> None:
    engine = target(successor=SUCCESSOR, mode="manual")
    host, line = SessionManager(engine, VerifyOptions()), SomeLine()
    line.hear(Hello(1, 1, VOCABULARY.fingerprint, SIZE))
    line.server.welcome()
    host.join(line)
    for frame in (make_open(0, ids=(1, 2, 3)), make_draft(0, 0, 3, (4,))):
        host.handle(line, line.hear(frame))
    host.handle(line, make_draft(0, 1, 3, (5,)))
    refusal = line.told()[-1]
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.round_number) == ("stale_round", 1)
    while not (told := line.told()):
        engine.step()
        await asyncio.sleep(0.001)
    assert [(type(frame), frame.round_number) for frame in told if isinstance(frame, VerdictFrame)] == [(VerdictFrame, 0)]
    host.close()


async def test_a_batch_of_sessions_that_were_all_closed_is_aborted_and_the_next_one_runs() -> None:
    engine = target(successor=SUCCESSOR, mode="manual")
    host, line = SessionManager(engine, VerifyOptions()), SomeLine()
    line.hear(Hello(1, 1, VOCABULARY.fingerprint, SIZE))
    line.server.welcome()
    host.join(line)
    host.handle(line, line.hear(make_open(0, ids=(1, 2, 3))))  # a batch, which is out
    for frame in (make_open(1, ids=(4, 5)), make_draft(1, 0, 2, ()), Close(0)):
        host.handle(line, line.hear(frame))
    line.told()
    while not (told := line.told()):
        engine.step()
        await asyncio.sleep(0.001)
    assert [frame.token for frame in told if isinstance(frame, VerdictFrame)] == greedy_text(SUCCESSOR, (4, 5), 1)
    figures = host.figures()
    assert (figures["aborted_batches"], figures["cancelled_parts"], figures["failed_batches"]) == (1, 1, 0)
    assert (figures["sessions"], figures["verdicts"]) == (1, 1)
    host.close()


class SomeLine:
    """Implements ``Line`` without a socket."""

    def __init__(self) -> None:
        self.codec = VerifyCodec(SIZE)
        self.server = VerifyServer(self.codec, VOCABULARY.fingerprint)
        self.device, self.peer = "device", "address"
        self.owner: str | None = None

    def hear(self, frame: Any) -> Any:
        return self.server.receive(self.codec.encode(frame))

    def told(self) -> list[ServerFrame]:
        return [self.codec.decode_down(message) for message in self.server.take_messages()]

    def flush(self) -> None:
        """Whoever wants to know asks."""


def test_the_scheduler_bears_what_the_engine_holds() -> None:
    engine = FakeEngine(held_sequences=3, context_tokens=100)
    assert make_scheduler(engine, VerifyOptions(policy="strict")).reserved == 0


def test_the_options_name_the_batch_policy_and_a_mixed_batch_has_the_room_that_is_cheap_or_given() -> None:
    def policy(name: VerifyPolicy, room: int | None = None) -> BatchPolicy:
        return make_policy(VerifyOptions(policy=name, room=room), 512, LinearStep(setup=0.05, per_token=0.001))

    assert policy("alternating") == Alternating(batch_tokens=512)
    assert policy("strict") == StrictPrefill(batch_tokens=512)
    assert policy("length-aware") == LengthAware(batch_tokens=512, is_fair=True)
    assert policy("mixed") == Mixed(room=96), "0.146 s is within 1.8 times 0.082 s; 128 rows take longer"
    assert policy("mixed", room=200) == Mixed(room=200)
    with pytest.raises(ConfigError, match="room: expected at most the 512 rows that the engine reads at once, got 513"):
        policy("mixed", room=513)
    with pytest.raises(ConfigError, match="room: expected at most the 32 rows that the engine reads at once, got 48"):
        make_policy(VerifyOptions(policy="mixed"), 32, LinearStep(setup=0.05, per_token=0.001))


def test_on_uvloop_sessions_that_come_and_go_leave_a_working_device_alone() -> None:
    """Timers of under a millisecond, which every session sets again, are where uvloop's handles differ from asyncio's."""

    async def churn(url: str) -> None:
        async with connected(url) as device:
            for number in range(60):
                session, _ = await device.open_patiently((*PROMPT, number % SIZE))
                device.client.close(session)
                await device.say()

    async def run() -> list[int]:
        options = VerifyOptions(resume_s=0, load=LoadLimits(sessions=4, draft_stretch=1e6, prefill_within=1e6))
        async with serving(target(successor=SUCCESSOR), verify=options) as server, connected(server.url) as device:
            session, _ = await device.open_patiently(PROMPT)
            others = [asyncio.create_task(churn(server.url)) for _ in range(2)]
            text = await write(device, session, PROMPT, SUCCESSOR, 60)
            await asyncio.gather(*others)
        return text

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == greedy_text(SUCCESSOR, PROMPT, 60)
