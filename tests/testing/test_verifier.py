"""The scripted verifier: it speaks the protocol, verifies as the target would, and follows its script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import Crash, Cut, Pause, Refuse, Reset, ScriptedVerifier, Send, Stall
from streamco.testing.verifier import VerifierStep, verify_draft
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import OverloadedError
from streamco.wire.verify.frames import SUBPROTOCOL, Opened, Refusal, Resumed, ServerFrame, VerdictFrame, Welcome
from streamco.wire.verify.topk import quantise
from tests.support.verify_frames import make_draft, make_verdict

SIZE = 1000
VOCABULARY = "1000:0123456789abcdef"


def target(ids: Sequence[int]) -> Mapping[int, float]:
    """After an id comes the next higher one, mostly."""
    return {ids[-1] + 1: 0.75, ids[-1]: 0.25}


class Peer:
    """A client of the protocol on a WebSocket."""

    def __init__(self, socket: ClientConnection, token: str | None) -> None:
        self.socket = socket
        self.client = VerifyClient(VerifyCodec(SIZE), VOCABULARY, token=token)

    async def send(self) -> None:
        for message in self.client.take_messages():
            await self.socket.send(message)

    async def receive(self) -> ServerFrame:
        await self.send()
        while True:
            message = await self.socket.recv()
            if (frame := self.client.receive(message)) is not None:
                return frame

    async def open(self, ids: Sequence[int], rule: Rule | None = None, *, top_k: int = 0) -> int:
        number = self.client.open(ids, rule or Rule(), top_k=top_k)
        assert isinstance(await self.receive(), Opened)
        return number


@asynccontextmanager
async def peer(server: ScriptedVerifier, token: str | None = None) -> AsyncIterator[Peer]:
    async with connect(server.url + "/v1/verify", subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None) as socket:
        yield Peer(socket, token)


@asynccontextmanager
async def welcomed(server: ScriptedVerifier) -> AsyncIterator[Peer]:
    async with peer(server) as client:
        assert isinstance(await client.receive(), Welcome)
        yield client


def scripted(*, token: str | None = None, status: int | None = None) -> ScriptedVerifier:
    return ScriptedVerifier(target, vocabulary=VOCABULARY, vocabulary_size=SIZE, token=token, status=status)


async def test_a_draft_is_verified_and_both_sides_hold_the_same_context() -> None:
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1, 2, 3])
        device.client.draft(session, 3, [4, 5, 9, 10], given=1)
        verdict = await device.receive()
        assert isinstance(verdict, VerdictFrame)
        assert (verdict.accepted, verdict.token) == (1, 6)
        assert server.contexts == [[1, 2, 3, 4, 5, 6]]
        assert device.client.length(session) == 6
        device.client.extend(session, 4, [7])
        device.client.draft(session, 5, [8])
        assert isinstance(await device.receive(), VerdictFrame)
        assert server.contexts == [[1, 2, 3, 4, 7, 8, 9]]
        assert [draft.ids for draft in server.drafts] == [(4, 5, 9, 10), (8,)]
        assert server.rules == [Rule()]
        device.client.close(session)
        await device.open([1])
        assert server.contexts == [[1]]


async def test_a_draft_sent_ahead_is_verified_after_the_verdict_it_expects() -> None:
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1])
        device.client.draft(session, 1, [2])
        device.client.follow(session, 1, 3, [4, 6])
        first, second = await device.receive(), await device.receive()
        assert isinstance(first, VerdictFrame)
        assert isinstance(second, VerdictFrame)
        assert [(each.round_number, each.accepted, each.token) for each in (first, second)] == [(0, 1, 3), (1, 1, 5)]
        assert server.contexts == [[1, 2, 3, 4, 5]]


async def test_steps_are_taken_in_order_and_later_drafts_are_verified() -> None:
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1])
        server.script(Refuse(OverloadedError, retry_after=0.25), Pause(0.01), None)
        device.client.draft(session, 1, [2])
        refusal = await device.receive()
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.retry_after_ms, refusal.session, refusal.round_number) == ("overloaded", 250, session, 0)
        for _ in range(3):
            device.client.draft(session, 1, [2])
            assert isinstance(await device.receive(), VerdictFrame)


async def test_a_refusal_that_is_not_about_the_round_ends_the_session() -> None:
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1])
        server.script(Refuse(OverloadedError, is_about_round=False))
        device.client.draft(session, 1, [2])
        refusal = await device.receive()
        assert isinstance(refusal, Refusal)
        assert (refusal.session, refusal.round_number) == (session, None)
        server.script_opens(Refuse(OverloadedError))
        device.client.open([1], Rule())
        assert isinstance(await device.receive(), Refusal)


@pytest.mark.parametrize("step", [Cut(), Reset(), Crash()], ids=["cut", "reset", "crash"])
async def test_connections_are_lost_and_only_a_crash_loses_sessions(step: VerifierStep) -> None:
    async with scripted() as server:
        async with welcomed(server) as device:
            session = device.client.open([1, 2], Rule())
            opened = await device.receive()
            assert isinstance(opened, Opened)
            server.script(step)
            device.client.draft(session, 2, [3])
            with pytest.raises(ConnectionClosed):
                await device.receive()
        async with welcomed(server) as device:
            device.client.resume(opened.key, [1, 2])
            frame = await device.receive()
        if isinstance(step, Crash):
            assert isinstance(frame, Refusal)
            assert frame.code == "not_resumable"
        else:
            assert isinstance(frame, Resumed)
            assert (frame.base, server.contexts) == (2, [[1, 2]])
        assert server.connections_total == 2


async def test_raw_bytes_take_the_place_of_an_answer_and_a_stall_that_of_any() -> None:
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1])
        server.script(Send(b"\xff"))
        device.client.draft(session, 1, [2])
        await device.send()
        assert await device.socket.recv() == b"\xff"
    async with scripted() as server, welcomed(server) as device:
        session = await device.open([1])
        server.script(Stall())
        device.client.draft(session, 1, [2])
        await device.send()
        other = await device.open([5])
        assert other != session, "the connection is served all the same"


async def test_a_token_is_asked_for() -> None:
    async with scripted(token="secret") as server:
        async with peer(server, "secret") as device:
            assert isinstance(await device.receive(), Welcome)
        async with peer(server, "other") as device:
            refusal = await device.receive()
            assert isinstance(refusal, Refusal)
            assert refusal.code == "unauthorised"


async def test_an_http_status_takes_the_place_of_the_protocol() -> None:
    async with scripted(status=429) as server:
        with pytest.raises(InvalidStatus, match="429"):
            async with peer(server):
                pass
        assert server.connections_total == 0


async def test_a_restarted_server_has_its_port_and_its_sessions() -> None:
    async with scripted() as server:
        port = server.port
        async with welcomed(server) as device:
            await device.open([1])
            await server.aclose()
            with pytest.raises(ConnectionClosed):
                await device.receive()
        assert server.connections_open == 0
        await server.start()
        assert (server.port, server.contexts) == (port, [[1]])
        server.lose_sessions()
        assert server.contexts == []


def test_each_rule_accepts_what_it_should() -> None:
    draft = make_draft(0, 0, 1, (2, 2, 9))
    assert verify_draft(target, [1], draft, Rule()) == make_verdict(0, 0, 1, 3)
    lenient = verify_draft(target, [1], draft, Rule(RuleKind.THRESHOLD, threshold=0.3), top_k=2)
    assert (lenient.accepted, lenient.token) == (2, 3)
    assert [row.ids for row in lenient.rows] == [(2, 1), (3, 2), (3, 2), (10, 9)]


def test_sampling_needs_rows_and_keeps_what_the_target_has_too() -> None:
    rule = Rule(RuleKind.SAMPLE, 1.0, seed=1)
    with pytest.raises(ConfigError, match="a distribution for each of 1 draft tokens"):
        verify_draft(target, [1], make_draft(0, 0, 1, (2,)), rule)
    certain = tuple(quantise([(token, 1.0)], is_whole=True) for token in (50,))
    assert verify_draft(target, [1], make_draft(0, 0, 1, (50,), rows=certain), rule).accepted == 0
    row = quantise([(2, 0.75), (1, 0.25)], is_whole=True)
    assert verify_draft(target, [1], make_draft(0, 0, 1, (2,), rows=(row,)), rule).accepted == 1
