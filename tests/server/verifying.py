"""A device for the verifier's tests: the protocol's client end over a real WebSocket, and a pair of models without weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, TypeVar

import websockets
from aiohttp import web

from streamco.core.verifier.options import LoadLimits
from streamco.engines.base import Engine, HoldingEngine
from streamco.policies.acceptance import Rule
from streamco.server.app import VERIFY, ServeOptions, make_app, make_runner
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.service import PATH, VerifyService
from streamco.sim.workload.token_models import FakeDistribution, TokenModel
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import OverloadedError
from streamco.wire.verify.frames import SUBPROTOCOL, Opened, Refusal, Resumed, ServerFrame, VerdictFrame, VerifyLimits, Welcome
from streamco.wire.verify.topk import TopK

SIZE = 64
VOCABULARY = FakeVocabulary("verified", SIZE)
PROMPT = (3, 14, 15, 9, 2, 6)
GREEDY = Rule()

T = TypeVar("T", bound=ServerFrame)


def target(seed: int = 1, **options: Any) -> FakeEngine:
    """An engine that verifies; instant unless told."""
    successor: TokenModel = options.pop("successor", None) or FakeDistribution(seed, SIZE)
    return FakeEngine(successor=successor, vocabulary=VOCABULARY, **{"context_tokens": 256} | options)


class WholeText:
    """What follows depends on every id so far."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, ids: Sequence[int]) -> dict[int, float]:
        digest = sha256(bytes(ids)).digest()
        return {digest[0] % self._size: 0.5} | {digest[1] % self._size: 0.3}


def greedy_text(successor: TokenModel, ids: Sequence[int], count: int) -> list[int]:
    """What a model writes by itself."""
    text = list(ids)
    for _ in range(count):
        shares = successor(text)
        text.append(max(shares, key=lambda token: (shares[token], -token)))
    return text[len(ids) :]


class Serving:
    """A server under test."""

    def __init__(self, url: str, service: VerifyService, runner: web.AppRunner) -> None:
        self.url = url
        self.http = url.replace("ws", "http", 1).removesuffix(PATH)
        self.service = service
        self.runner = runner

    @property
    def figures(self) -> dict[str, Any]:
        return self.service.manager.figures()


@asynccontextmanager
async def serving(engine: Engine | None = None, *, verify: VerifyOptions | None = None, **options: Any) -> AsyncIterator[Serving]:
    """A server that verifies on a free port; it takes what comes, unless told."""
    engine = engine or target()
    settings = ServeOptions(verify=verify or VerifyOptions(load=LoadLimits(draft_stretch=1e6, prefill_within=1e6)), **options)
    app = make_app(engine, settings)
    runner = make_runner(app, settings)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", settings.port).start()
        yield Serving(f"ws://127.0.0.1:{runner.addresses[0][1]}{PATH}", app[VERIFY], runner)
    finally:
        await runner.cleanup()


class Device:
    """One connection. What is heard that nobody asked for yet waits in ``heard``."""

    def __init__(self, socket: websockets.ClientConnection, client: VerifyClient) -> None:
        self.socket = socket
        self.client = client
        self.heard: list[ServerFrame] = []

    async def say(self) -> None:
        for message in self.client.take_messages():
            await self.socket.send(message)

    async def hear(self, kind: type[T]) -> T:
        """The next frame of this kind; others are kept."""
        found = next((frame for frame in self.heard if isinstance(frame, kind)), None)
        while found is None:
            async with asyncio.timeout(20):
                frame = self.client.receive(await self.socket.recv())
            if isinstance(frame, kind):
                return frame
            if isinstance(frame, Refusal) and issubclass(kind, VerdictFrame | Opened | Resumed):
                raise frame.error()
            if frame is not None:
                self.heard.append(frame)
        self.heard.remove(found)
        return found

    async def open(self, ids: Sequence[int] = PROMPT, rule: Rule = GREEDY, **options: Any) -> tuple[int, Opened]:
        number = self.client.open(ids, rule, **options)
        await self.say()
        return number, await self.hear(Opened)

    async def open_patiently(self, ids: Sequence[int], **options: Any) -> tuple[int, Opened]:
        """Come again when told to."""
        while True:
            try:
                return await self.open(ids, **options)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_after or 0.0)

    async def draft(
        self, session: int, base: int, ids: Sequence[int], *, given: int = 0, rows: Sequence[TopK] = (), parents: Sequence[int] = ()
    ) -> VerdictFrame:
        """Ask, and ask again when told to."""
        while True:
            self.client.draft(session, base, ids, given=given, rows=rows, parents=parents)
            await self.say()
            try:
                return await self.hear(VerdictFrame)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_after or 0.0)

    async def resume(self, key: bytes, ids: Sequence[int], **options: Any) -> tuple[int, Resumed]:
        number = self.client.resume(key, ids, **options)
        await self.say()
        return number, await self.hear(Resumed)

    async def refused(self) -> tuple[str, int | None, int | None]:
        refusal = await self.hear(Refusal)
        return refusal.code, refusal.session, refusal.round_number


@asynccontextmanager
async def connected(url: str, engine: HoldingEngine | FakeEngine | None = None, **options: Any) -> AsyncIterator[Device]:
    """A device that was welcomed."""
    async with connecting(url, engine, **options) as device:
        await device.hear(Welcome)
        yield device


@asynccontextmanager
async def connecting(
    url: str, engine: HoldingEngine | FakeEngine | None = None, *, token: str | None = None, **options: Any
) -> AsyncIterator[Device]:
    """A device that has said hello."""
    vocabulary, size = (VOCABULARY.fingerprint, SIZE) if engine is None else (engine.info.vocabulary, engine.info.vocabulary_size)
    client = VerifyClient(VerifyCodec(size, VerifyLimits(paths=31)), vocabulary, token=token)
    async with websockets.connect(url, **{"subprotocols": [SUBPROTOCOL], "compression": None} | options) as socket:
        device = Device(socket, client)
        await device.say()
        yield device


async def write(device: Device, session: int, ids: Sequence[int], draft: TokenModel, count: int) -> list[int]:
    """A greedy answer of ``count`` tokens, drafted by another model."""
    text = list(ids)
    while len(text) < len(ids) + count:
        drafted = greedy_text(draft, text, 4)
        verdict = await device.draft(session, len(text), drafted)
        assert verdict.token is not None
        text += [*drafted[: verdict.accepted], verdict.token]
    return text[len(ids) :][:count]
