"""A client and a server of the verifier protocol with nothing but memory between them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import Hello, Opened, ServerFrame, VerifyLimits
from streamco.wire.verify.server import VerifyServer
from streamco.wire.verify.topk import TopK, quantise
from tests.support.verify_frames import make_verdict

msgpack: Any = import_module("msgpack")  # it has no types

VOCABULARY = "49152:0123456789abcdef"
SIZE = 49152
KEY = bytes(range(16))
GREEDY = Rule()
SAMPLE = Rule(RuleKind.SAMPLE, 1.0)
LIMITS = VerifyLimits(context_tokens=1000, draft_tokens=8, top_k=16, sessions=3, paths=4)


def codec(limits: VerifyLimits = LIMITS, size: int = SIZE) -> VerifyCodec:
    return VerifyCodec(size, limits)


def some_server(limits: VerifyLimits = LIMITS) -> VerifyServer:
    return VerifyServer(codec(limits), VOCABULARY, model="target")


def linked(limits: VerifyLimits = LIMITS) -> tuple[VerifyClient, VerifyServer]:
    """Both ends, after hello and welcome."""
    client, server = VerifyClient(codec(limits), VOCABULARY, token="secret"), some_server(limits)
    up(client, server)
    server.welcome()
    down(server, client)
    return client, server


def up(client: VerifyClient, server: VerifyServer) -> list[object]:
    """Deliver the client's messages; the frames that get through."""
    return [frame for message in client.take_messages() if (frame := server.receive(message)) is not None]


def down(server: VerifyServer, client: VerifyClient) -> list[ServerFrame]:
    """Deliver the server's messages; the frames that matter."""
    return [frame for message in server.take_messages() if (frame := client.receive(message)) is not None]


def opened(client: VerifyClient, server: VerifyServer, ids: tuple[int, ...] = (1, 2, 3), rule: Rule = GREEDY, top_k: int = 0) -> int:
    """A session that both sides hold."""
    number = client.open(ids, rule, top_k=top_k)
    up(client, server)
    assert server.send(Opened(number, KEY, 0))
    down(server, client)
    return number


def send_verdict(server: VerifyServer, session: int, number: int, accepted: int, token: int | None, *rows: TopK) -> bool:
    return server.send(make_verdict(session, number, accepted, token, rows=rows))


def a_row(token: int, *others: int) -> TopK:
    return quantise([(token, 0.5), *((other, 0.1) for other in others)], is_whole=True)


HELLO = Hello(1, 1, VOCABULARY, SIZE, "secret", "tests")
