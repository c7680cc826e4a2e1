"""A scripted verifier on the loopback, which speaks the protocol of docs/verifier-protocol.md with a function in place of the model.

Each draft takes the next step from a queue; if the queue is empty, the draft is verified. There is a separate queue for opens and resumes.
All drafts and the contexts of all sessions are kept for inspection, so a test can check that both sides hold the same tokens.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from streamco.engines.sampling import candidates
from streamco.policies.acceptance import Distribution, Rule, RuleKind
from streamco.policies.drafts.tree_acceptance import verify_tree
from streamco.sim.workload.token_models import TokenModel
from streamco.testing.responses import Cut, Pause, Reset, Stall
from streamco.wire.row_costs import table_of_costs
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import NotResumableError, UnauthorisedError, UnknownSessionError, VerifyProtocolError
from streamco.wire.verify.frames import (
    PATH,
    SUBPROTOCOL,
    Close,
    Draft,
    Extend,
    Hello,
    Open,
    Opened,
    Resume,
    Resumed,
    VerdictFrame,
    VerifyLimits,
)
from streamco.wire.verify.server import VerifyServer
from streamco.wire.verify.topk import TopK, quantise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

__all__ = ["Crash", "Refuse", "ScriptedVerifier", "Send", "VerifierStep", "verify_draft"]


class Refuse(Struct, frozen=True):
    """Refuse the frame with this error. The session and round are filled in."""

    kind: type[VerifyProtocolError]
    retry_after: float | None = None  # seconds
    message: str = "scripted"
    is_about_round: bool = True  # if it answers a draft, name the round, so that the session continues


class Crash(Struct, frozen=True):
    """Reset the connection and lose every session, like a server that was killed."""


class Send(Struct, frozen=True):
    """Send these bytes as a message in place of the answer."""

    data: bytes


VerifierStep = Pause | Cut | Reset | Stall | Refuse | Crash | Send | None
"""The answer to a draft, open or resume: a delay, a lost connection, silence, a refusal, a crash, raw bytes, or None for the normal one."""


class _ServedSession(Struct):
    """The server's state of one session."""

    ids: list[int]
    rule: Rule
    top_k: int
    rng: Random


class ScriptedVerifier:
    """A scripted verifier; use it as an async context manager.

    Args:
        target: the target model, as a function from the ids so far to the probabilities of the next id.
        vocabulary: fingerprint of the vocabulary, as in ``ModelInfo``.
        vocabulary_size: number of ids, as in ``ModelInfo``.
        model: name of the target model in the welcome.
        token: bearer token that clients must send, or None if they need none.
        limits: sizes that the welcome announces, or None for the defaults.
        status: refuse every connection with this HTTP status, or None to accept connections.
        port: port to listen on, or 0 for a free one.
        tls: serve wss with this context.
        row_costs: seconds that the welcome announces for a verification, by its number of rows, or None if they aren't known.

    Attributes:
        drafts: all drafts received, in order.
        connections_total: WebSockets accepted so far.
        reason: body of the response that refuses a connection with ``status``.
    """

    def __init__(
        self,
        target: TokenModel,
        *,
        vocabulary: str,
        vocabulary_size: int,
        model: str = "scripted",
        token: str | None = None,
        limits: VerifyLimits | None = None,
        status: int | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        row_costs: Mapping[int, float] | None = None,
    ) -> None:
        self.target = target
        self.token = token
        self.status = status
        self.reason = "scripted"
        self.drafts: list[Draft] = []
        self.connections_total = 0
        self._vocabulary = vocabulary
        self._codec = VerifyCodec(vocabulary_size, limits)
        self._model = model
        self._tls = tls
        self._row_costs = table_of_costs(row_costs or {})
        self._requested_port = port
        self._steps: list[VerifierStep] = []
        self._open_steps: list[VerifierStep] = []
        self._sessions: dict[bytes, _ServedSession] = {}
        self._connections: set[_VerifierConnection] = set()
        self._server: Server | None = None

    @property
    def port(self) -> int:
        """Port that the verifier listens on."""
        assert self._server is not None, "the server is not running"
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL to pass to ``VerifierEndpoint``."""
        return f"{'ws' if self._tls is None else 'wss'}://127.0.0.1:{self.port}"

    @property
    def rules(self) -> list[Rule]:
        """The rules of the verifier's sessions, oldest first."""
        return [session.rule for session in self._sessions.values()]

    @property
    def contexts(self) -> list[list[int]]:
        """The ids of each session, oldest first."""
        return [list(session.ids) for session in self._sessions.values()]

    @property
    def connections_open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def script(self, *steps: VerifierStep) -> None:
        """Replace the queue of steps for the next drafts; later drafts are verified."""
        self._steps = list(steps)

    def script_opens(self, *steps: VerifierStep) -> None:
        """Replace the queue of steps for the next opens and resumes; later ones are accepted."""
        self._open_steps = list(steps)

    def lose_sessions(self) -> None:
        """Lose every session without telling the clients whose connections are open."""
        self._sessions.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections):
            connection.reset()

    async def start(self) -> None:
        """Listen on 127.0.0.1."""
        from websockets.asyncio.server import serve
        from websockets.typing import Subprotocol

        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self._requested_port,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            process_request=self._admit,
            max_size=self._codec.limits.frame_bytes,
            ping_interval=None,
            close_timeout=1,
            ssl=self._tls,
        )

    async def aclose(self) -> None:
        """Stop listening and reset every connection; sessions are kept."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._requested_port = next(iter(server.sockets)).getsockname()[1]
        server.close(close_connections=False)
        self.cut()
        server.close()
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        if self.status is not None:
            return socket.respond(HTTPStatus(self.status), f"{self.reason}\n")
        return None if request.path == PATH else socket.respond(HTTPStatus.NOT_FOUND, "no such path\n")

    async def _serve(self, socket: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        self.connections_total += 1
        protocol = VerifyServer(self._codec, self._vocabulary, model=self._model, row_costs=self._row_costs)
        connection = _VerifierConnection(self, socket, protocol)
        self._connections.add(connection)
        try:
            async for message in socket:
                await connection.take(message)
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)
            connection.leave()

    def _next_step(self, *, is_draft: bool) -> VerifierStep:
        steps = self._steps if is_draft else self._open_steps
        return steps.pop(0) if steps else None


class _VerifierConnection:
    """The connection of one client."""

    def __init__(self, server: ScriptedVerifier, socket: ServerConnection, protocol: VerifyServer) -> None:
        self._server = server
        self._socket = socket
        self._protocol = protocol
        self._keys: dict[int, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, message: bytes | str) -> None:
        """Handle a message."""
        frame = self._protocol.receive(message)
        match frame:
            case Hello():
                self._answer_hello(frame)
            case Open() | Resume() | Draft():
                self._start_answer(frame)
                await asyncio.sleep(0)
            case Extend():
                session = self._find(frame.session)
                if session is not None:
                    session.ids[frame.base :] = frame.ids
            case Close():
                self._server._sessions.pop(self._keys.pop(frame.session, b""), None)
        await self._send()

    def _start_answer(self, frame: Open | Resume | Draft) -> None:
        if isinstance(frame, Draft):
            self._server.drafts.append(frame)
        step = self._server._next_step(is_draft=isinstance(frame, Draft))
        if isinstance(frame, Open):
            self._begin(frame)
        task = asyncio.create_task(self._answer(frame, step))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reset(self) -> None:
        """Drop the connection without a close frame."""
        self._socket.transport.abort()

    def leave(self) -> None:
        """Cancel the pending answers of a connection that is gone."""
        for task in self._tasks:
            task.cancel()

    def _answer_hello(self, hello: Hello) -> None:
        request = self._socket.request
        given = "" if request is None else request.headers.get("Authorization", "")
        brought = hello.token if hello.token is not None else given.removeprefix("Bearer ")
        if self._server.token is not None and brought != self._server.token:
            self._protocol.refuse(UnauthorisedError("hello: expected a token of this server, got none or a different one"))
        else:
            self._protocol.welcome()

    def _begin(self, frame: Open) -> None:
        key = Random(f"{len(self._server._sessions)} {self._server.connections_total} {frame.session}").randbytes(16)
        self._keys[frame.session] = key
        self._server._sessions[key] = _ServedSession(list(frame.ids), frame.rule, frame.top_k, Random(frame.rule.seed))

    def _find(self, number: int) -> _ServedSession | None:
        session = self._server._sessions.get(self._keys.get(number, b""))
        if session is None:
            self._protocol.refuse(UnknownSessionError(f"session {number}: is not open", session=number))
        return session

    async def _answer(self, frame: Open | Resume | Draft, step: VerifierStep) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            await self._follow_step(frame, step)

    async def _follow_step(self, frame: Open | Resume | Draft, step: VerifierStep) -> None:
        match step:
            case Stall():
                return
            case Cut():
                await self._socket.close()
                return
            case Reset():
                self.reset()
                return
            case Crash():
                self._server.lose_sessions()
                self.reset()
                return
            case Send(data):
                await self._socket.send(data)
                return
            case Refuse():
                turn = frame.round_number if isinstance(frame, Draft) and step.is_about_round else None
                error = step.kind(step.message, session=frame.session, round_number=turn, retry_after=step.retry_after)
                self._protocol.refuse(error)
            case Pause(seconds):
                await asyncio.sleep(seconds)
                self._answer_frame(frame)
            case None:
                self._answer_frame(frame)
        await self._send()

    def _answer_frame(self, frame: Open | Resume | Draft) -> None:
        match frame:
            case Open():
                self._protocol.send(Opened(frame.session, self._keys[frame.session], 0))
            case Resume():
                self._resume(frame)
            case Draft():
                session = self._find(frame.session)
                if session is None:
                    return
                session.ids[frame.base :] = frame.ids[: frame.given]
                verdict = verify_draft(self._server.target, session.ids, frame, session.rule, top_k=session.top_k, rng=session.rng)
                session.ids += frame.accepted_ids(verdict.accepted)
                session.ids += [] if verdict.token is None else [verdict.token]
                self._protocol.send(verdict)
                for begun in self._protocol.take_begun_rounds():
                    self._start_answer(begun)

    def _resume(self, frame: Resume) -> None:
        session = self._server._sessions.get(frame.key)
        if session is None or (len(session.ids) >= frame.base and prefix_hash(session.ids[: frame.base]) != frame.prefix):
            self._protocol.refuse(NotResumableError("session: is not held any more", session=frame.session))
            return
        del session.ids[frame.base :]
        self._keys[frame.session] = frame.key
        self._protocol.resume(Resumed(frame.session, len(session.ids), prefix_hash(session.ids)), session.rule)

    async def _send(self) -> None:
        for message in self._protocol.take_messages():
            await self._socket.send(message)
        if self._protocol.is_closed:
            await self._socket.close(1008)


def verify_draft(
    target: TokenModel, ids: Sequence[int], draft: Draft, rule: Rule, *, top_k: int = 0, rng: Random | None = None
) -> VerdictFrame:
    """Return the target's verdict on a draft after these ids, as ``streamco serve`` would.

    Raises:
        ConfigError: the rule is ``sample``, and the draft has no rows.
    """
    pending = draft.pending
    logits = [_logits(target([*ids, *draft.accepted_ids(node)])) for node in range(len(pending) + 1)]
    drafted_from = [row.distribution() for row in draft.rows]
    target_rows = [_LogitsRow(row) for row in logits]
    result = verify_tree(rule, pending, draft.parents, drafted_from, target_rows, rng=rng or Random(rule.seed))
    scale = rule.temperature if rule.kind is RuleKind.SAMPLE else 1.0
    rows = tuple(_row(row, scale, top_k) for row in logits) if top_k else ()
    return VerdictFrame(draft.session, draft.round_number, result.accepted, result.token, 0, 0, 0, rows)


class _LogitsRow:
    """The target's logits at one position. Implements ``TargetRow``."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    @property
    def best(self) -> int:
        """The likeliest id, or the lowest one if several are equally likely."""
        return int(self._logits.argmax())

    def distribution(self, rule: Rule, /) -> Distribution:
        """Return the distribution after the rule's temperature and filters."""
        filtered = candidates(self._logits, temperature=rule.temperature, top_k=rule.top_k, top_p=rule.top_p, min_p=rule.min_p)
        return Distribution(*filtered)


def _logits(probabilities: Mapping[int, float]) -> NDArray[np.float32]:
    import numpy as np

    logits = np.full(max(probabilities) + 1, -1e4, dtype=np.float32)
    for token, share in probabilities.items():
        if share > 0:
            logits[token] = math.log(share)
    return logits


def _row(logits: NDArray[np.float32], temperature: float, count: int) -> TopK:
    ids, shares = candidates(logits, temperature=temperature)
    best = [(int(token), float(share)) for token, share in zip(ids[:count], shares[:count], strict=True) if share > 0]
    return quantise(best, is_whole=False)
