"""The remote side of one answer in virtual time: a verifier behind a link, with faults, and a remote stream from the same model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Literal, cast

import simpy
from msgspec import Struct

from streamco.core.speculation.events import (
    CloseRemote,
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    OpenRemote,
    RemoteEnded,
    RemoteFailed,
    RemoteTokensReceived,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.errors import EndpointConnectError, VerifierError
from streamco.events import common_prefix_length
from streamco.policies.acceptance import Distribution, Rule, RuleKind, Verdict, verify
from streamco.sim.driver import call_at
from streamco.sim.workload.token_models import TokenModel, choose_token

__all__ = ["Fault", "FaultKind", "Faults", "VerifyingServer", "FaultyLink", "SimulatedRemote", "FaultyVerifierSession"]

_GREEDY, _SAMPLE = Rule(RuleKind.GREEDY), Rule(RuleKind.SAMPLE, temperature=1.0)

VerifierEvent = VerifierConnected | VerifierLost | VerifierFailed | VerdictReceived | DraftRefused
RemoteEvent = RemoteTokensReceived | RemoteEnded | RemoteFailed


class FaultyLink(Struct, frozen=True, kw_only=True):
    """A link between device and server.

    Args:
        rtt: seconds that a round trip without payload takes.
        bits_per_s: bits per second in each direction.
    """

    rtt: float = 0.06
    bits_per_s: float = math.inf

    def seconds(self, payload: int) -> float:
        """Return the seconds that a payload (in bytes) takes in one direction."""
        return self.rtt / 2.0 + 8.0 * payload / self.bits_per_s


FaultKind = Literal["draft lost", "verdict lost", "refused", "slow", "mute"]


class Fault(Struct, frozen=True):
    """The fault of one round.

    Args:
        kind: ``draft lost`` or ``verdict lost`` if it is lost along with the connection; ``refused`` if the server refuses the draft;
            ``slow`` if the verdict is late; ``mute`` if it never comes.
        seconds: for a loss, the time until it is noticed; for a refusal, the time until the draft may be sent again (below 0 if the server
            doesn't say); for a slow verdict, its delay.
    """

    kind: FaultKind
    seconds: float = 0.0


Faults = Callable[[int], Fault | None]
"""Function that returns the fault of a draft, or None if it has none, given the draft's number, counted from 0."""


class VerifyingServer(Struct, frozen=True, kw_only=True):
    """The properties of a server that verifies drafts, and also writes remote streams.

    Args:
        model: the target model, which is called with the answer's ids.
        step: seconds that a forward pass over one token or a round takes.
        read_time: additional seconds for each token that it reads or verifies.
        prompt_time: seconds to read the prompt.
        is_sampled: True if the answer is drawn, False if the likeliest tokens are taken.
        end_ids: tokens that end the text.
        context: maximum tokens of the answer, or None for no limit.
        connect_trips: number of round trips that it takes to connect.
        faults: faults of the rounds.
        remembers: True if a resumed session still has its context, False if the context is sent again from a random position.
        verifier_fails_at, remote_fails_at: seconds after which either fails, or None if it never does.
    """

    model: TokenModel
    step: float = 0.05
    read_time: float = 0.0
    prompt_time: float = 0.1
    is_sampled: bool = False
    end_ids: frozenset[int] = frozenset()
    context: int | None = None
    connect_trips: float = 2.0
    faults: Faults = lambda _: None
    remembers: bool = True
    verifier_fails_at: float | None = None
    remote_fails_at: float | None = None


class FaultyVerifierSession:
    """A verifier session that carries out the speculation machine's commands, and raises if a verifier couldn't understand one.

    Args:
        emit: called with each event when it happens.
        rng: random source for verdicts and for the part of the context that is kept.

    Attributes:
        emit: see the argument; may be replaced.
        drafts: number of drafts sent so far.
        bytes_up: bytes of the drafts' frames.
        ids: tokens of the answer in its context.
    """

    def __init__(
        self, env: simpy.Environment, server: VerifyingServer, link: FaultyLink, emit: Callable[[VerifierEvent], None], rng: Random
    ) -> None:
        self.drafts = 0
        self.bytes_up = 0
        self._env = env
        self._server = server
        self._link = link
        self.emit = emit
        self._rng = rng
        self.ids: list[int] = []
        self._connection = 0  # number of the connection; events of earlier ones are lost
        self._is_open = self._is_out = self._is_closed = False
        self._last_round = 0
        self._waiting: int | None = None
        self._ahead: list[tuple[SendDraft, float]] = []  # drafts after the pending round, and when they arrive
        self._read_at = 0.0  # time at which the prompt has been read
        self._is_read = False
        if server.verifier_fails_at is not None:
            call_at(env, server.verifier_fails_at, self._fail)

    def run(self, command: ConnectVerifier | SendDraft | CloseVerifier) -> None:
        """Start carrying out the command."""
        if self._is_closed:
            raise AssertionError(f"a session that was closed can't take {type(command).__name__}")
        match command:
            case ConnectVerifier(ids):
                self._connect(ids)
            case SendDraft():
                self._send(command)
            case CloseVerifier():
                self._is_closed = True
                self._connection += 1

    def _emit_later(self, seconds: float, event: VerifierEvent, done: Callable[[], None] = lambda: None) -> None:
        """Emit an event after this many seconds, if the connection still exists."""
        connection = self._connection

        def fire() -> None:
            if connection == self._connection:
                done()
                self.emit(event)

        call_at(self._env, max(0.0, seconds), fire)  # rounding may make it slightly negative

    def _connect(self, ids: tuple[int, ...]) -> None:
        if self._is_open or self._is_out:
            self._connection += 1
        self._is_open, self._waiting = False, None
        self._ahead.clear()
        held = common_prefix_length(self.ids, ids)
        length = held if self._server.remembers else self._rng.choice((0, held, len(ids)))
        self.ids = list(ids[:length])
        if not self._is_out:
            self._emit_later(self._server.connect_trips * self._link.rtt + 1e-9, VerifierConnected(length), self._open)

    def _open(self) -> None:
        self._is_open = True
        if not self._is_read:
            self._is_read, self._read_at = True, self._env.now + self._server.prompt_time

    def _send(self, command: SendDraft) -> None:
        payload = 20 + 2 * (len(command.given) + len(command.ids)) + 20 * len(command.rows)
        self.bytes_up += payload
        there = self._link.seconds(payload)
        if command.if_verdict is not None:
            if self._waiting != command.if_verdict.round or command.round <= self._last_round:
                raise AssertionError(f"a session that waits for {self._waiting} can't take {command}")
            self._last_round = command.round
            self._ahead.append((command, self._env.now + there))
            return
        if not self._is_open or self._waiting is not None or command.round <= self._last_round or command.base > len(self.ids):
            raise AssertionError(f"a session that holds {len(self.ids)} tokens and waits for {self._waiting} can't take {command}")
        self._last_round = command.round
        self._begin(command, there)

    def _begin(self, command: SendDraft, there: float) -> None:
        """Start a round whose draft arrives in ``there`` seconds."""
        self._waiting = command.round
        fault = self._server.faults(self.drafts)
        self.drafts += 1
        back = self._link.seconds(20)
        match fault:
            case Fault("draft lost", seconds):
                self._emit_later(there + seconds, VerifierLost(), self._lose)
            case Fault("refused", seconds):
                refusal = DraftRefused(command.round, None if seconds < 0.0 else seconds)
                self._emit_later(there + back, refusal, self._end_round)
            case _:
                self._verify(command, fault, there, back)

    def _verify(self, command: SendDraft, fault: Fault | None, there: float, back: float) -> None:
        server = self._server
        arrived = self._env.now + there
        compute = server.step + server.read_time * (len(command.given) + len(command.ids))
        queue = max(0.0, self._read_at - arrived) + (fault.seconds if fault is not None and fault.kind == "slow" else 0.0)
        verdict, context = self._verdict(command)
        event = VerdictReceived(
            round=command.round,
            accepted=verdict.accepted,
            token=None if server.context is not None and len(context) > server.context else verdict.token,
            queue_seconds=queue,
            compute_seconds=compute,
        )
        seconds = there + queue + compute
        decided = arrived + queue + compute

        def end_round() -> None:
            self.ids = context
            won = next((each for each in self._ahead if each[0].if_verdict == event.outcome), None)
            self._end_round()
            if won is not None:
                self._begin(won[0], max(decided, won[1]) - self._env.now)

        def lose() -> None:
            self.ids = context
            self._lose()

        if fault is None or fault.kind == "slow":
            self._emit_later(seconds + back, event, end_round)
        elif fault.kind == "verdict lost":
            self._emit_later(seconds + fault.seconds, VerifierLost(), lose)

    def _verdict(self, command: SendDraft) -> tuple[Verdict, list[int]]:
        """Return the verdict on a draft, and the context after it."""
        before = [*self.ids[: command.base], *command.given]
        models = [self._server.model([*before, *command.ids[:position]]) for position in range(len(command.ids) + 1)]
        rule = _SAMPLE if self._server.is_sampled else _GREEDY
        drafted_from = [_distribution(cast(Mapping[int, float], row)) for row in command.rows] if self._server.is_sampled else []
        verdict = verify(rule, command.ids, drafted_from, [_ModelRow(model) for model in models], self._rng)
        return verdict, [*before, *command.ids[: verdict.accepted], verdict.token]

    def _end_round(self) -> None:
        self._waiting = None
        self._ahead.clear()

    def _lose(self) -> None:
        self._is_open, self._waiting = False, None
        self._ahead.clear()

    def _fail(self) -> None:
        self._connection += 1
        self._is_out = True
        if not self._is_closed:
            self._is_closed = True
            self.emit(VerifierFailed(VerifierError("verifier: expected a verdict, got a failure")))


class SimulatedRemote:
    """A remote stream that carries out the speculation machine's commands.

    Args:
        emit: called with each event when it happens.
        rng: random source of its tokens.
    """

    def __init__(
        self, env: simpy.Environment, server: VerifyingServer, link: FaultyLink, emit: Callable[[RemoteEvent], None], rng: Random
    ) -> None:
        self._env = env
        self._server = server
        self._link = link
        self._emit = emit
        self._rng = rng
        self._version: int | None = None
        self._is_out = False
        self._is_read = False
        if server.remote_fails_at is not None:
            call_at(env, server.remote_fails_at, self._fail)

    def run(self, command: OpenRemote | CloseRemote) -> None:
        """Start carrying out the command."""
        match command:
            case OpenRemote(version, ids, max_tokens):
                if self._version is not None:
                    raise AssertionError(f"stream {version}: expected stream {self._version} to be closed")
                self._version = version
                server = self._server
                reading = server.read_time * len(ids) + (0.0 if self._is_read else server.prompt_time)
                self._is_read = True
                if self._is_out:
                    self._later(self._link.rtt, version, self._fail)
                else:
                    seconds = self._link.rtt / 2.0 + reading + server.step
                    self._later(seconds, version, lambda: self._write(version, list(ids), max_tokens))
            case CloseRemote(version):
                if self._version == version:
                    self._version = None

    def _later(self, seconds: float, version: int, function: Callable[[], None]) -> None:
        call_at(self._env, seconds, lambda: function() if self._version == version else None)

    def _write(self, version: int, ids: list[int], left: int | None) -> None:
        server = self._server
        token = choose_token(server.model(ids), self._rng if server.is_sampled else None)
        is_end = token in server.end_ids
        if not is_end:
            ids.append(token)
            left = None if left is None else left - 1
            self._send(RemoteTokensReceived(version, (token,)))
        if is_end or left == 0 or (server.context is not None and len(ids) > server.context):
            self._version = None
            self._send(RemoteEnded(version, "stop" if is_end else "length"))
        else:
            self._later(server.step, version, lambda: self._write(version, ids, left))

    def _send(self, event: RemoteEvent) -> None:
        """Emit an event after the link's delay, even if the stream has been closed by then."""
        call_at(self._env, self._link.rtt / 2.0, lambda: self._emit(event))

    def _fail(self) -> None:
        self._is_out = True
        version, self._version = self._version, None
        if version is not None:
            self._emit(RemoteFailed(version, EndpointConnectError("expected a stream, got a failure", endpoint="remote")))


class _ModelRow:
    """A model's row at one position, for rules with temperature 1 and no filters. Implements ``TargetRow``."""

    def __init__(self, model: Mapping[int, float]) -> None:
        self._model = model

    @property
    def best(self) -> int:
        """The likeliest id."""
        return choose_token(self._model, None)

    def distribution(self, _: Rule, /) -> Distribution:
        """Return the model's own distribution."""
        return _distribution(self._model)


def _distribution(model: Mapping[int, float]) -> Distribution:
    total = sum(model.values())
    return Distribution(list(model), [share / total for share in model.values()])
