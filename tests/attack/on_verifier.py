"""Attacks on the verifier's WebSocket of ``streamco serve``: peers with or without a key, and pages in a browser."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any

import websockets

from streamco.errors import StreamcoError
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import PATH, SUBPROTOCOL, Opened, VerdictFrame, Welcome
from tests.attack.attack import Harm, Register
from tests.attack.processes import Program
from tests.server.verifying import Device

__all__ = ["VERIFIER", "attack"]

KEYS = ("--client-key-env", "RIGHT", "--client-key-env", "EVIL")
VERIFIER = ("serve", "--threads", "1", "--context", "512", "--verify-peer", "48", *KEYS)
EVIL = {"Authorization": "Bearer sk-evil"}
attack = Register("verifier")

PATIENCE = 60.0  # seconds in which an ordinary device must have had its verdict
FIRST_SESSION = 2.0  # seconds in which it must have had its first session


@asynccontextmanager
async def device(program: Program, *, token: str | None = "sk-right", **options: Any) -> AsyncIterator[Device]:
    """Connect as a device does, with the key in the hello; the welcome is awaited by the caller."""
    async with program.http.get("/v1/models", headers=program.headers) as response:
        card = (await response.json())["data"][0]
    client = VerifyClient(VerifyCodec(card["vocabulary_size"]), card["vocabulary"], token=token)
    url = f"{program.url.replace('http', 'ws', 1)}{PATH}"
    async with websockets.connect(url, **({"subprotocols": [SUBPROTOCOL], "compression": None} | options)) as socket:
        talk = Device(socket, client)
        await talk.say()
        yield talk


async def ordinary_answer(program: Program, rounds: int = 3) -> float:
    """Have a few drafts verified on a connection of one's own; return the seconds until the first verdict."""
    began = first = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE), device(program, additional_headers=program.headers, token=None) as talk:
        await talk.hear(Welcome)
        session, _ = await talk.open_patiently([1, 2, 3, 4])
        length = 4
        for number in range(rounds):
            verdict = await talk.draft(session, length, [5, 6])
            length += verdict.accepted + 1
            first = asyncio.get_running_loop().time() if number == 0 else first
    return first - began


async def first_session(program: Program) -> float:
    """Open a session on a connection of one's own; return the seconds that it takes after the welcome."""
    async with asyncio.timeout(PATIENCE), device(program, additional_headers=program.headers, token=None) as talk:
        await talk.hear(Welcome)
        began = asyncio.get_running_loop().time()
        session, _ = await talk.open_patiently([1, 2, 3, 4])
        waited = asyncio.get_running_loop().time() - began
        talk.client.close(session)
        await talk.say()
    return waited


@attack("70 wrong keys in hellos and 70 in headers, then the right one", "the right key isn't locked out")
async def wrong_keys(program: Program, size: int) -> str:
    refusals = 0
    for number in range(70):
        headers = {"Authorization": "Bearer sk-wrong"} if number % 2 else {}
        try:
            async with device(program, token="sk-wrong", additional_headers=headers) as talk:
                await talk.hear(Welcome)
            raise Harm("a wrong key was welcomed")
        except (websockets.WebSocketException, VerifyProtocolError):
            refusals += 1
    return f"{refusals} refused, then a first verdict after {await ordinary_answer(program):.2f} s"


@attack("junk from a web page with a foreign origin", "the page alone is sent away")
async def junk_of_a_page(program: Program, size: int) -> str:
    for _ in range(70):
        with suppress(websockets.WebSocketException, VerifyProtocolError):
            async with device(program, token="guess", origin="https://evil.example") as talk:
                await talk.socket.send(b"junk")
                await talk.hear(Welcome)
    async with device(program) as talk:
        await talk.hear(Welcome)
    return f"a first verdict after {await ordinary_answer(program):.2f} s"


@attack("random and damaged frames in any order", "refused; no crash; memory stays")
async def damaged_frames(program: Program, size: int) -> str:
    rng, before, sent = Random(7), program.memory(), 0
    for _ in range(20 * (1 + size)):
        with suppress(websockets.WebSocketException, VerifyProtocolError, TimeoutError):
            async with asyncio.timeout(5), device(program, token=None, additional_headers=EVIL) as talk:
                await talk.hear(Welcome)
                talk.client.open([1, 2, 3], _greedy())
                whole = list(talk.client.take_messages())
                for _ in range(15):
                    frame = bytearray(rng.choice(whole) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 80)))
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
                    await talk.socket.send(bytes(frame))
                    sent += 1
    await ordinary_answer(program)
    grown = program.memory() - before
    if grown > 200:
        raise Harm(f"{grown} MB more in memory")
    return f"{sent} frames, {grown} MB more in memory"


def _greedy() -> Any:
    from streamco.policies.acceptance import Rule

    return Rule()


@attack("frames beyond the limit, texts, ids beyond the vocabulary, no hello", "refused and closed")
async def beyond_the_limits(program: Program, size: int) -> str:
    codes = set()
    for message in (bytes(2 << 20), "text", b"\xc1", bytes([0x96, 2, 0]), b""):
        try:
            async with device(program, token=None, additional_headers=EVIL) as talk:
                await talk.hear(Welcome)
                with suppress(websockets.ConnectionClosed):
                    for _ in range(20):
                        await talk.socket.send(message)
                    while True:
                        await asyncio.wait_for(talk.socket.recv(), 5)
                codes.add(str(talk.socket.close_code))
        except websockets.InvalidStatus as error:  # after 64 faults its source is sent away
            codes.add(f"HTTP {error.response.status_code}")
    await ordinary_answer(program)
    return f"closed with {', '.join(sorted(codes))}"


@attack("a flood of connections", "beyond the limit of one address 429, others are served")
async def flood_of_connections(program: Program, size: int) -> str:
    refused = 0
    async with AsyncExitStack() as stack:
        for _ in range(80):
            try:
                await stack.enter_async_context(device(program, token="sk-evil"))
            except websockets.InvalidStatus as error:
                refused += error.response.status_code == 429
        waited = await ordinary_answer(program)
    if not refused:
        raise Harm("all 80 were taken")
    return f"{refused} of 80 got 429, a first verdict after {waited:.2f} s"


@attack("600 connections without a key, each from another web page", "a device whose header has the key is served beside them")
async def many_pages(program: Program, size: int) -> str:
    url, statuses = f"{program.url.replace('http', 'ws', 1)}{PATH}", Counter[int]()

    async def hold(number: int, stack: AsyncExitStack) -> None:
        try:
            connecting = websockets.connect(url, subprotocols=[SUBPROTOCOL], origin=f"https://{number}.example", open_timeout=60)  # type: ignore[list-item,arg-type]
            await stack.enter_async_context(connecting)
            statuses[101] += 1
        except websockets.InvalidStatus as error:
            statuses[error.response.status_code] += 1

    async with AsyncExitStack() as stack:
        for start in range(0, 600 if size else 60, 50):
            await asyncio.gather(*(hold(start + number, stack) for number in range(50)))
        waited = await ordinary_answer(program)
    if statuses[101] > 48 or not statuses[429] or set(statuses) - {101, 429}:
        raise Harm(f"{dict(statuses)}; a first verdict after {waited:.2f} s")
    return f"{statuses[101]} were taken, {statuses[429]} got 429; a first verdict after {waited:.2f} s"


@attack("a flood of opens by a peer with the key", "a second device has its session within its time-out")
async def flood_of_opens(program: Program, size: int) -> str:
    opened = 0

    async def flood(talk: Device) -> None:
        nonlocal opened
        rng = Random(3)
        with suppress(websockets.WebSocketException, VerifyProtocolError):
            while True:
                talk.client.open([rng.randrange(1000) for _ in range(200)], _greedy())
                await talk.say()
                opened += 1
                await asyncio.sleep(0.002)

    async with device(program, token="sk-evil") as talk:
        await talk.hear(Welcome)
        flooding = asyncio.create_task(flood(talk))
        listening = asyncio.create_task(_listen(talk))
        await asyncio.sleep(0.5 * (1 + size))
        waited = await ordinary_answer(program)
        for task in (flooding, listening):
            task.cancel()
        await asyncio.gather(flooding, listening, return_exceptions=True)
    return f"{opened} opens; a first verdict after {waited:.2f} s"


async def _listen(talk: Device) -> None:
    with suppress(websockets.WebSocketException, VerifyProtocolError):
        while True:
            talk.client.receive(await talk.socket.recv())


@attack("three connections that keep their sessions busy and ask for more without pause", "a device has its first session within 2 s")
async def greedy_connections(program: Program, size: int) -> str:
    stopped, sessions = asyncio.Event(), 0

    async def hold(drafts: bool) -> None:
        nonlocal sessions
        async with device(program, token="sk-evil") as talk:
            await talk.hear(Welcome)
            lengths: dict[int, int] = {}
            while not stopped.is_set():
                with suppress(VerifyProtocolError):  # refused: it asks again at once, whatever the server says
                    if len(lengths) < 60:
                        lengths[(await talk.open([8, *range(50 + len(lengths))]))[0]] = 51 + len(lengths)
                        sessions += 1
                for session, length in list(lengths.items()):
                    with suppress(StreamcoError, KeyError):  # that session is over, or has a draft
                        if drafts:
                            talk.client.draft(session, length, [4, 5, 6])
                        else:
                            talk.client.extend(session, length, [7])
                            lengths[session] += 1
                await talk.say()
                await asyncio.sleep(0.05)

    holding = [asyncio.create_task(hold(drafts=size > 0 and number == 2)) for number in range(3)]
    await asyncio.sleep(2.0 * (1 + size))
    waits = [await first_session(program) for _ in range(1 + 2 * size)]
    present = sum(not task.done() for task in holding)
    stopped.set()
    for task in holding:
        task.cancel()
    ends = await asyncio.gather(*holding, return_exceptions=True)
    if present < len(holding):
        raise Harm(f"expected all to be there, got {ends}")
    if size and max(waits) > FIRST_SESSION:
        raise Harm(f"{', '.join(f'{wait:.2f}' for wait in waits)} s")
    return f"{present} connections with {sessions} sessions; a first session after {', '.join(f'{wait:.2f}' for wait in waits)} s"


@attack("idle sessions kept alive by extends of one token", "a second device has its session within 2 s")
async def kept_alive(program: Program, size: int) -> str:
    async with device(program, token="sk-evil") as talk:
        await talk.hear(Welcome)
        lengths: dict[int, int] = {}
        for number in range(24):
            with suppress(VerifyProtocolError):
                session, _ = await asyncio.wait_for(talk.open([7, number, *range(60)]), 10)
                lengths[session] = 62
        stopped = asyncio.Event()

        async def extend() -> None:
            while not stopped.is_set():
                for session, length in lengths.items():
                    if length < 400:
                        with suppress(VerifyProtocolError, KeyError):
                            talk.client.extend(session, length, [3])
                            lengths[session] = length + 1
                with suppress(websockets.WebSocketException):
                    await talk.say()
                await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(extend()), asyncio.create_task(_listen(talk))]
        await asyncio.sleep(0.5 * (1 + size))
        waited = await first_session(program)
        stopped.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if size and waited > FIRST_SESSION:
        raise Harm(f"{len(lengths)} sessions kept; a first session after {waited:.2f} s")
    return f"{len(lengths)} sessions kept; a first session after {waited:.2f} s"


@attack("a device that makes every verdict late and never reads", "a second device has its session within its time-out")
async def late_verdicts(program: Program, size: int) -> str:
    async with device(program, token="sk-evil") as talk:
        await talk.hear(Welcome)
        sessions = []
        for number in range(8):
            with suppress(VerifyProtocolError):
                sessions.append((await asyncio.wait_for(talk.open([9, number, *range(100)]), 10))[0])
        for session in sessions:
            with suppress(VerifyProtocolError):
                talk.client.draft(session, 102, list(range(250)), given=220)
        await talk.say()
        waited = await ordinary_answer(program)
    return f"{len(sessions)} sessions with 250 tokens a round; a first verdict after {waited:.2f} s"


@attack("sessions that come and go, and cut connections, beside a working device", "the working device's rounds all come")
async def churn(program: Program, size: int) -> str:
    async def come_and_go(number: int) -> int:
        rng, turns = Random(number), 0
        for _ in range(15 * (1 + size)):
            with suppress(websockets.WebSocketException, VerifyProtocolError, TimeoutError):
                async with asyncio.timeout(20), device(program) as talk:
                    await talk.hear(Welcome)
                    session, _ = await talk.open([number, rng.randrange(1000)])
                    turns += 1
                    if rng.random() < 0.5:
                        talk.client.close(session)
                        await talk.say()
                    else:
                        talk.socket.transport.abort()
        return turns

    others = [asyncio.create_task(come_and_go(number)) for number in range(3)]
    waited = await ordinary_answer(program, rounds=10 * (1 + size))
    turns = sum(await asyncio.gather(*others))
    return f"{turns} sessions came and went; {10 * (1 + size)} rounds, the first after {waited:.2f} s"


@attack("a key of a session that is guessed, and the key of another one's connection", "not resumable")
async def guessed_session(program: Program, size: int) -> str:
    async with device(program) as talk:
        await talk.hear(Welcome)
        with suppress(VerifyProtocolError):
            await talk.resume(bytes(16), [1, 2, 3])
            raise Harm("a session that nothing had opened was resumed")
        session, opened = await talk.open_patiently([1, 2, 3])
        assert isinstance(opened, Opened)
        verdict = await talk.draft(session, 3, [4])
        assert isinstance(verdict, VerdictFrame)
    return "not_resumable"
