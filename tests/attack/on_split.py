"""Attacks on the WebSocket of ``streamco serve --middle``: devices that send anything, keep anything, and read nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import websockets
from numpy.typing import NDArray

from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import LayersMark, Refusal, Rows, SplitLimits, SplitOpened, SplitResume, SplitWelcome, States
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.errors import VerifyProtocolError, error_for
from streamco.wire.verify.frames import PATH, SUBPROTOCOL
from tests.attack.attack import Harm, Register
from tests.attack.processes import Program
from tests.server.split.serving_layers import SplitDevice

__all__ = ["SplitVictim", "attack", "split_server"]

EVIL = {"Authorization": "Bearer sk-evil"}
attack = Register("split")

PATIENCE = 60.0  # seconds in which an ordinary device must have had its states
GROWTH = 200  # MB more in memory that an attack may leave
PROMPT, DRAFT = 20, 4  # rows
PLACES = 16  # sessions with positions at once
ROWS = 512  # of one frame, and positions of a session
LOST = (websockets.WebSocketException, ConnectionError)


def split_server(middle: Path) -> tuple[str, ...]:
    """Return the command line of the server that is attacked."""
    limits = ("--context", str(ROWS), "--verify-peer", "48", "--threads", "1", "--row-costs", "1:0.005,64:0.05,512:0.4")
    return ("serve", "--middle", "--model", str(middle), *limits, "--client-key-env", "RIGHT", "--client-key-env", "EVIL")


def states(rows: int, width: int, seed: int) -> NDArray[np.float32]:
    """Return states of an ordinary size."""
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


class SplitVictim:
    """A split server, and what it answers an ordinary device while nothing else is asked of it.

    Attributes:
        program: the server's process.
        mark: its layers.
    """

    def __init__(self, program: Program, mark: LayersMark) -> None:
        self.program = program
        self.mark = mark
        self._expected: list[bytes] = []

    @classmethod
    async def of(cls, program: Program) -> SplitVictim:
        """Ask a fresh server for its layers and for an ordinary answer."""
        async with program.http.get("/v1/models", headers=program.headers) as response:
            card = (await response.json())["data"][0]
        victim = cls(program, LayersMark(card["source"], card["first_layer"], card["layers"], card["width"]))
        await victim.ordinary_answer()
        return victim

    async def check(self) -> str:
        """Return "" if health and an ordinary device are answered, else what happened instead."""
        if self.program.process.returncode is not None:
            return f"the process had ended with {self.program.process.returncode}: {self.program.log()[-300:]}"
        async with self.program.http.get("/health") as response:
            if response.status != 200:
                return f"health: {response.status}"
        await self.ordinary_answer()
        log = self.program.log()
        return f"a traceback in the log: {log[-300:]}" if "Traceback" in log else ""

    @asynccontextmanager
    async def device(self, *, token: str | None = "sk-evil", mark: LayersMark | None = None, **options: Any) -> AsyncIterator[SplitDevice]:
        """Connect as a device does, with the key in the hello; the welcome is awaited by the caller."""
        url = f"{self.program.url.replace('http', 'ws', 1)}{PATH}"
        client = SplitClient(SplitCodec(self.mark.width), mark or self.mark, token=token)
        async with websockets.connect(
            url, **({"subprotocols": [SUBPROTOCOL], "compression": None, "max_size": None, "close_timeout": 0.5} | options)
        ) as socket:
            device = SplitDevice(socket, client)
            await device.say()
            yield device

    @asynccontextmanager
    async def welcomed(self, **options: Any) -> AsyncIterator[SplitDevice]:
        """Connect, and await the welcome."""
        async with self.device(**options) as device:
            answer = await device.take()
            if not isinstance(answer, SplitWelcome):
                raise Harm(f"expected a welcome, got {answer}")
            yield device

    async def ordinary_answer(self, rounds: int = 3) -> float:
        """Have rows computed as a device with the right key does; return the seconds until the first states.

        Raises:
            Harm: the states are others than those of the same rows on the fresh server.
        """
        began, number = asyncio.get_running_loop().time(), 0
        headers = {"Authorization": "Bearer sk-right"}
        async with asyncio.timeout(PATIENCE), self.welcomed(token=None, additional_headers=headers) as device:
            text, session = states(PROMPT, self.mark.width, 0), await opened(device)
            first = await computed(device, session, text, PROMPT)
            waited = asyncio.get_running_loop().time() - began
            self._compare(number, first)
            for number in range(1, rounds):
                text = np.concatenate([text, states(DRAFT, self.mark.width, number)])
                self._compare(number, await computed(device, session, text, DRAFT))
        return waited

    def _compare(self, number: int, found: NDArray[np.float32]) -> None:
        if number == len(self._expected):
            self._expected.append(found.tobytes())
        if found.tobytes() != self._expected[number]:
            raise Harm(f"round {number}: other states than on the fresh server")

    async def memory_after(self, before: int) -> str:
        """Return how much memory has grown.

        Raises:
            Harm: it is too much.
        """
        grown = self.program.memory() - before
        if grown > GROWTH:
            raise Harm(f"{grown} MB more in memory")
        return f"{grown} MB more in memory"


async def opened(device: SplitDevice) -> int:
    """Open a session; ask again while the server is full."""
    while True:
        session = device.client.open()
        await device.say()
        answer = await device.take()
        if isinstance(answer, SplitOpened):
            return session
        assert isinstance(answer, Refusal), answer
        assert answer.retry_after_ms is not None, answer
        await asyncio.sleep(min(1.0, answer.retry_after_ms / 1000))


async def computed(device: SplitDevice, session: int, text: NDArray[np.float32], wanted: int) -> NDArray[np.float32]:
    """Return the states of the last rows. If the session has lost its positions, all rows are sent again."""
    start = len(text) - wanted
    while True:
        await device.send(session, start, text[start:], wanted=wanted)
        answer = await device.take()
        if isinstance(answer, States):
            return answer.states
        assert isinstance(answer, Refusal), answer
        start = 0 if answer.code == "evicted" else start
        await asyncio.sleep(min(1.0, (answer.retry_after_ms or 1) / 1000))


async def refusals(device: SplitDevice, messages: Sequence[bytes | str], seconds: float = 5.0) -> list[str]:
    """Send messages, and return the documented codes of what comes back until the connection is closed or silent."""
    codes: list[str] = []
    with suppress(*LOST):
        for message in messages:
            await device.socket.send(message)
    with suppress(TimeoutError, *LOST):
        while True:
            async with asyncio.timeout(seconds):
                frame = device.client.codec.decode_down(await device.socket.recv())
            if isinstance(frame, Refusal):
                if type(error_for(frame.code, "")) is VerifyProtocolError:
                    raise Harm(f"a code that is not documented: {frame.code}")
                codes.append(frame.code)
    return codes


def raw_rows(*fields: int | bytes) -> bytes:
    """Return a frame of rows that no codec of this package would write: session, round, position, wanted, number of the format, states."""
    return msgspec.msgpack.encode((3, *fields))


def expect(found: Sequence[str], allowed: set[str], *, at_least: int = 1) -> str:
    """Return the codes as text.

    Raises:
        Harm: there are others, or too few.
    """
    if len(found) < at_least or set(found) - allowed:
        raise Harm(f"expected at least {at_least} of {sorted(allowed)}, got {found}")
    return f"{len(found)} refused: {', '.join(sorted(set(found)))}"


@attack("70 wrong keys in hellos and 70 in headers, then the right one", "the right key isn't locked out")
async def wrong_keys(victim: SplitVictim, size: int) -> str:
    refused = 0
    for number in range(70):
        headers = {"Authorization": "Bearer sk-wrong"} if number % 2 else {}
        try:
            async with victim.device(token="sk-wrong", additional_headers=headers) as device:
                codes = await refusals(device, [])
                refused += codes == ["unauthorised"]
        except websockets.InvalidStatus as error:  # 401 for a header, 429 after 64 faults
            refused += error.response.status_code in {401, 429}
    if refused != 70:
        raise Harm(f"{70 - refused} wrong keys were not refused")
    return f"{refused} refused, then the first states after {await victim.ordinary_answer():.2f} s"


@attack("other layers, another width, another model, a device that drafts", "refused by name")
async def other_layers(victim: SplitVictim, size: int) -> str:
    codes = []
    for change in ({"source": "other"}, {"first_layer": 5}, {"layers": 3}, {"width": 8}, {"width": 1 << 20}):
        mark = msgspec.structs.replace(victim.mark, **change)
        async with victim.device(mark=mark, additional_headers=EVIL) as device:
            codes += await refusals(device, [])
    hello = msgspec.msgpack.encode((1, 1, 1, 3, 4, 5))  # of version 1
    async with victim.device(additional_headers=EVIL) as device:
        device.client.take_messages()
        codes += await refusals(device, [hello])
    return expect(codes, {"model_mismatch", "unexpected_frame", "malformed"}, at_least=6)


@attack("frames too large, too many rows, half rows, no rows, more wanted than sent, texts", "refused; memory stays")
async def wrong_sizes(victim: SplitVictim, size: int) -> str:
    before, row = victim.program.memory(), 4 * victim.mark.width
    frames: list[bytes | str] = [
        raw_rows(0, 0, 0, 1, 0, bytes(row * (ROWS + 1))),
        raw_rows(0, 1, 0, 1, 0, bytes(row - 1)),
        raw_rows(0, 2, 0, 1, 0, bytes(row + 4)),
        raw_rows(0, 3, 0, 0, 0, b""),
        raw_rows(0, 4, 0, 3, 0, bytes(row)),
        raw_rows(0, 5, 0, 1, 9, bytes(row)),
        b"\xc1",
        b"",
        b"\x97\x03\x00\x00\x00\x00\x00\xc6\xff\xff\xff\xff",  # announces 4 GB
        "text",
    ]
    codes = []
    for frame in (*frames, bytes(64 << 20)):
        async with victim.welcomed(additional_headers=EVIL) as device:
            await opened(device)
            codes += await refusals(device, [frame], 1.0) or [f"closed {device.socket.close_code}"]
    text = expect(codes, {"malformed", "too_large", "closed 1009"}, at_least=len(frames))
    return f"{text}; {await victim.memory_after(before)}"


@attack("NaN and infinity in each format, and numbers that overflow in the layers", "refused; no other session sees them")
async def not_finite(victim: SplitVictim, size: int) -> str:
    width, codes = victim.mark.width, []
    for number in (np.nan, np.inf, -np.inf):
        floats = [np.full(width, number, kind).tobytes() for kind in (np.float32, np.float16)]
        blocks = (np.array([number], np.float16).tobytes() + bytes(32)) * (width // 32)
        async with victim.welcomed(additional_headers=EVIL) as device:
            await opened(device)
            frames = [raw_rows(0, each, 0, 1, each, data) for each, data in enumerate((*floats, blocks))]
            codes += await refusals(device, frames, 1.0)
    text = expect(codes, {"malformed"}, at_least=9)
    async with victim.welcomed(additional_headers=EVIL) as device:
        session, waiting = await opened(device), asyncio.create_task(victim.ordinary_answer(10))
        for _ in range(10 * (1 + size)):
            with suppress(VerifyProtocolError):
                await device.send(session, 0, np.full((DRAFT, width), 3e38, np.float32), wanted=DRAFT)
                answer = await device.take()
                if isinstance(answer, Refusal) and answer.code not in {"failed", "evicted", "overloaded", "unknown_session"}:
                    raise Harm(f"numbers that overflow: {answer.code}")
                if session not in device.client._sessions:
                    session = await opened(device)
        return f"{text}; beside overflows the first states after {await waiting:.2f} s"


@attack("rows far above, beyond the context, before a session, with used numbers", "refused; the session goes on")
async def wrong_positions(victim: SplitVictim, size: int) -> str:
    data = bytes(4 * victim.mark.width)
    top = (1 << 32) - 1
    frames = [
        raw_rows(0, 10, 21, 1, 0, data),  # a gap
        raw_rows(0, 11, top, 1, 0, data),
        raw_rows(0, 12, ROWS, 1, 0, data),
        raw_rows(0, 0, 0, 1, 0, data),  # a round that is over
        raw_rows(7, 13, 0, 1, 0, data),  # no such session
        raw_rows(top, 13, 0, 1, 0, data),
        msgspec.msgpack.encode((2, 0, 0)),  # the number of a session that is open
        msgspec.msgpack.encode((2, 3, top)),  # more positions than there are
        msgspec.msgpack.encode((5, 1, bytes(16))),
    ]
    async with victim.welcomed(additional_headers=EVIL) as device:
        session, text = await opened(device), states(PROMPT, victim.mark.width, 3)
        before = await computed(device, session, text, PROMPT)
        codes = await refusals(device, frames, 2.0)
        device.client._sessions[session].last_round = 20
        if not np.array_equal(await computed(device, session, text, PROMPT), before):
            raise Harm("other states after refused frames")
    allowed = {"wrong_base", "context_full", "stale_round", "unknown_session", "session_number", "not_resumable"}
    return expect(codes, allowed, at_least=len(frames))


@attack("frames replayed, doubled and in another order", "refused; the session's states are those of its own rows")
async def wrong_order(victim: SplitVictim, size: int) -> str:
    width, codes, exact = victim.mark.width, list[str](), 0
    for seed in range(3 * (1 + size)):
        rng, text = Random(seed), states(4 * 8, width, seed)
        async with victim.welcomed(additional_headers=EVIL) as device:
            session = await opened(device)
            expected = await computed(device, session, text, len(text))
            chunks = [Rows(session, 1 + at, 8 * at, 8, "f32", text[8 * at : 8 * at + 8]) for at in range(4)]
            messages = [device.client.codec.encode(chunk) for chunk in chunks]
            codes += await refusals(device, rng.sample(messages * 2, 8), 1.0)
            device.client._sessions[session].last_round = 100
            exact += np.array_equal(await computed(device, session, text, len(text)), expected)
    if exact != 3 * (1 + size):
        raise Harm(f"other states in {3 * (1 + size) - exact} sessions")
    return expect(codes, {"stale_round", "wrong_base", "evicted"}, at_least=exact)


@attack("keys of sessions that are guessed, foreign, or over", "not resumable; the owner resumes")
async def foreign_keys(victim: SplitVictim, size: int) -> str:
    async with victim.welcomed(token="sk-right") as owner:
        session = owner.client.open()
        await owner.say()
        answer = await owner.take()
        assert isinstance(answer, SplitOpened), answer
        await owner.rows(session, 0, states(PROMPT, victim.mark.width, 5), wanted=1)
        await owner.lose()
    async with victim.welcomed(additional_headers=EVIL) as thief:
        keys = [answer.key, *(Random(number).randbytes(16) for number in range(100 * (1 + size)))]
        codes = await refusals(thief, [thief.client.codec.encode(SplitResume(number, key)) for number, key in enumerate(keys)], 2.0)
    text = expect(codes, {"not_resumable"}, at_least=len(keys))
    async with victim.welcomed(token="sk-right") as owner:
        _, resumed = await owner.resume(answer.key)
        if resumed.length != PROMPT:
            raise Harm(f"the owner had {PROMPT} positions, and {resumed.length} are left")
    return text


@attack("thousands of opens without rows, on one connection and on many", "a second device has its states within its time-out")
async def flood_of_opens(victim: SplitVictim, size: int) -> str:
    sent, codes = 0, list[str]()
    async with AsyncExitStack() as stack:
        for _ in range(4 * (1 + 4 * size)):
            device = await stack.enter_async_context(victim.welcomed(token="sk-evil"))
            messages = [msgspec.msgpack.encode((2, number, 0)) for number in range(200)]
            sent += len(messages)
            codes += await refusals(device, messages, 0.5)
        waited = await victim.ordinary_answer()
    text = expect(codes, {"session_limit", "overloaded", "too_many_faults"}, at_least=100)
    return f"{sent} opens, {text}; the first states after {waited:.2f} s"


@attack("devices that want every state and read none", "dropped; memory stays; others are served")
async def slow_readers(victim: SplitVictim, size: int) -> str:
    before, rounds, width = victim.program.memory(), 0, victim.mark.width
    async with AsyncExitStack() as stack:
        options = {"max_queue": 1, "additional_headers": EVIL}
        devices = [await stack.enter_async_context(victim.welcomed(**options)) for _ in range(4)]
        for device in devices:
            await device.socket.send(msgspec.msgpack.encode((2, 0, 0)))
        for number in range(15 * (1 + 2 * size)):
            for device in devices:
                with suppress(TimeoutError, *LOST):
                    async with asyncio.timeout(1):
                        await device.socket.send(raw_rows(0, number, 0, 256, 0, states(256, width, number).tobytes()))
                        rounds += 1
        waited = await victim.ordinary_answer()
        grown = await victim.memory_after(before)
    return f"{rounds} rounds of 256 states, {grown}; the first states after {waited:.2f} s"


@attack("half frames, half handshakes, a byte at a time", "they wait alone; others are served")
async def slow_writers(victim: SplitVictim, size: int) -> str:
    host, _, port = victim.program.url.removeprefix("http://").partition(":")
    frame = raw_rows(0, 0, 0, 1, 0, bytes(64 * 4 * victim.mark.width))
    async with AsyncExitStack() as stack:
        writers = []
        for _ in range(10 * (1 + size)):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(b"GET /v1/verify HTTP/1.1\r\nHost: x\r\nUpgrade: webs")
            writers.append(writer)
        for number in range(10):
            device = await stack.enter_async_context(victim.welcomed(additional_headers=EVIL))
            await opened(device)
            header = b"\x82\xff" + len(frame).to_bytes(8, "big") + bytes(4)  # binary, masked with zeros
            device.socket.transport.write(header + frame[: len(frame) * number // 10])
            writers.append(device.socket.transport)
        waiting = asyncio.create_task(victim.ordinary_answer(10))
        while not waiting.done():
            for writer in writers:
                writer.write(b"\0")
            await asyncio.sleep(0.02)
        return f"{len(writers)} connections; the first states after {await waiting:.2f} s"


@attack("a flood of connections", "beyond the limit of one address 429, others are served")
async def flood_of_connections(victim: SplitVictim, size: int) -> str:
    refused = 0
    async with AsyncExitStack() as stack:
        for _ in range(80):
            try:
                await stack.enter_async_context(victim.device(token="sk-evil"))
            except websockets.InvalidStatus as error:
                refused += error.response.status_code == 429
        waited = await victim.ordinary_answer()
    if not refused:
        raise Harm("all 80 were taken")
    return f"{refused} of 80 got 429, the first states after {waited:.2f} s"


@asynccontextmanager
async def working(*workers: Callable[[], Any]) -> AsyncIterator[None]:
    """Run workers inside the block, and cancel them at its end."""
    tasks = [asyncio.ensure_future(worker()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Harm):
                raise outcome


async def _listen(device: SplitDevice) -> None:
    with suppress(VerifyProtocolError, *LOST):
        while True:
            await device.take()


@attack("more sessions than places, each kept busy with single rows", "a second device has its states within its time-out")
async def kept_busy(victim: SplitVictim, size: int) -> str:
    row, held = states(1, victim.mark.width, 7), 0
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(victim.welcomed(additional_headers=EVIL)) for _ in range(2)]
        for device in devices:
            for _ in range(PLACES):
                device.client.open()
            await device.say()

        async def keep(device: SplitDevice) -> None:
            with suppress(VerifyProtocolError, *LOST):
                while True:
                    for session in tuple(device.client._sessions):
                        if not device.client.unanswered(session):
                            device.client.rows(session, 0, row, wanted=1, form="f32")
                    await device.say()
                    await asyncio.sleep(0.1)

        async with working(*(lambda d=d: keep(d) for d in devices), *(lambda d=d: _listen(d) for d in devices)):
            await asyncio.sleep(1 + size)
            held = sum(len(device.client._sessions) for device in devices)
            waited = await victim.ordinary_answer(5)
    return f"{held} sessions kept; the first states after {waited:.2f} s"


@attack(
    "prompts without end, in four chunks and in as many as may be unanswered",
    "a second device has its states within its time-out; memory stays",
)
async def endless_prompts(victim: SplitVictim, size: int) -> str:
    before, sent = victim.program.memory(), 0
    chunks = {count: states(ROWS // count - 1, victim.mark.width, 9) for count in (4, SplitLimits().rounds)}
    async with victim.welcomed(additional_headers=EVIL) as device:
        for _ in range(PLACES):
            device.client.open()
        await device.say()

        async def send() -> None:
            nonlocal sent
            with suppress(VerifyProtocolError, *LOST):
                while True:
                    for session in tuple(device.client._sessions):
                        if not device.client.unanswered(session):
                            count, chunk = list(chunks.items())[session % 2]
                            for number in range(count):
                                device.client.rows(session, number * len(chunk), chunk, wanted=len(chunk), form="f32")
                                sent += 1
                            await device.say()
                    await asyncio.sleep(0.02)

        async with working(send, lambda: _listen(device)):
            await asyncio.sleep(1 + 2 * size)
            waited = await victim.ordinary_answer(5)
    return f"{sent} chunks, {await victim.memory_after(before)}; the first states after {waited:.2f} s"


@attack("sessions that come and go, and connections cut in mid-chunk, beside a working device", "the working device's rounds all come")
async def churn(victim: SplitVictim, size: int) -> str:
    async def come_and_go(number: int) -> int:
        rng, turns = Random(number), 0
        for _ in range(10 * (1 + size)):
            with suppress(VerifyProtocolError, TimeoutError, *LOST):
                async with asyncio.timeout(20), victim.welcomed(additional_headers=EVIL) as device:
                    session = await opened(device)
                    await device.send(session, 0, states(rng.randrange(1, 200), victim.mark.width, number), wanted=1)
                    turns += 1
                    if rng.random() < 0.5:
                        device.client.close(session)
                        await device.say()
                    else:
                        device.socket.transport.abort()
        return turns

    others = [asyncio.create_task(come_and_go(number)) for number in range(3)]
    waited = await victim.ordinary_answer(rounds=10 * (1 + size))
    turns = sum(await asyncio.gather(*others))
    return f"{turns} sessions came and went; {10 * (1 + size)} rounds, the first after {waited:.2f} s"


@attack("random and damaged frames in any order", "refused by documented codes; memory stays")
async def damaged_frames(victim: SplitVictim, size: int) -> str:
    rng, before, codes = Random(7), victim.program.memory(), list[str]()
    forms: tuple[StateFormat, ...] = ("f32", "f16", "i8")
    for seed in range(20 * (1 + size)):
        with suppress(websockets.InvalidStatus):  # 429: too many faults
            async with victim.device(token=None, additional_headers=EVIL) as device:
                codec, rows = device.client.codec, states(rng.randrange(1, 40), victim.mark.width, seed)
                whole = [codec.encode(Rows(0, at, rng.randrange(30), 1, rng.choice(forms), rows)) for at in range(4)]
                whole += [msgspec.msgpack.encode((2, 0, 0)), msgspec.msgpack.encode((6, 0))]
                frames = []
                for _ in range(15):
                    frame = bytearray(rng.choice(whole) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 80)))
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
                    frames.append(bytes(frame[: rng.randrange(1, len(frame) + 1)] if rng.random() < 0.3 else frame))
                codes += await refusals(device, frames, 0.3)
    if not codes:
        raise Harm("nothing was refused")
    return f"{len(codes)} refused: {', '.join(sorted(set(codes)))}; {await victim.memory_after(before)}"
