"""What a speculator's commands reach in a world of many: a session and a stream at a target server, each behind the device's link."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from streamco.core.speculation.events import (
    CloseRemote,
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    ExpectedVerdict,
    OpenRemote,
    RemoteEnded,
    RemoteTokensReceived,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierLost,
)
from streamco.core.verifier.events import (
    FULL_QUEUE,
    AcceptSession,
    DraftReceived,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    SendVerdict,
    SessionOpened,
)
from streamco.sim.driver import call_at
from streamco.sim.fleet.recorded_answer import RecordedAnswer, prompt_ids
from streamco.sim.fleet.target_server import PlainStream, SessionAnswer, TargetServer
from streamco.sim.hardware.links import SimulatedLink

__all__ = ["SimulatedRemoteStream", "SimulatedVerifierSession", "Traffic"]

_FRAME = 20  # bytes of a greedy draft or verdict without its tokens: bench/verify_wire.py
_TOKEN = 2  # bytes more for each


class Traffic:
    """What a request put on the link.

    Attributes:
        bytes_up, bytes_down: of frames. delay: seconds that they were under way in all. frames: how many.
    """

    __slots__ = ("bytes_down", "bytes_up", "delay", "frames")

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = self.frames = 0
        self.delay = 0.0


class _LinkedPeer:
    """Somebody behind a link: what is said to either side is under way for a while."""

    def __init__(self, env: simpy.Environment, link: SimulatedLink, traffic: Traffic) -> None:
        self._env = env
        self._link = link
        self._traffic = traffic

    def _send(self, payload: int, function: Callable[[], None], *, is_up: bool) -> None:
        delay = self._link.delay(self._env.now, payload, is_up=is_up)
        traffic = self._traffic
        traffic.frames += 1
        traffic.delay += delay
        if is_up:
            traffic.bytes_up += payload
        else:
            traffic.bytes_down += payload
        call_at(self._env, delay, function)


class SimulatedVerifierSession(_LinkedPeer):
    """A verifier's session of one answer.

    Args:
        server: that judges.
        device: who asks.
        answer: what is asked about.
        emit: is told what comes of it.
        on_verdict: is told the verdicts when they are sent.
        token_bytes: of a drafted token.
    """

    def __init__(
        self,
        env: simpy.Environment,
        server: TargetServer,
        link: SimulatedLink,
        *,
        traffic: Traffic,
        device: str,
        answer: RecordedAnswer,
        emit: Callable[[VerifierConnected | VerifierLost | VerdictReceived | DraftRefused], None],
        on_verdict: Callable[[SendVerdict], None],
        token_bytes: float = _TOKEN,
    ) -> None:
        super().__init__(env, link, traffic)
        self._token_bytes = token_bytes
        self._on_verdict = on_verdict
        self._server = server
        self._device = device
        self._answer = answer
        self._emit = emit
        self._base = answer.request.prompt_tokens
        self._openings = 0
        self._not_before = 0.0
        self._name = ""
        self._there: int | None = None  # the round that the server decides
        self._said: ExpectedVerdict | None = None  # its last verdict, if nothing came behind it
        self._ahead: list[tuple[ExpectedVerdict, DraftReceived]] = []
        self._is_closed = False

    def run(self, command: ConnectVerifier | SendDraft | CloseVerifier) -> None:
        """Begin what is asked."""
        match command:
            case ConnectVerifier(ids):
                self._open(ids)
            case SendDraft(number, base, given, ids, if_verdict=if_verdict):
                draft = DraftReceived(session=self._name, round=number, base=self._base + base, given=given, draft=ids)
                payload = _FRAME + _TOKEN * len(given) + round(self._token_bytes * len(ids))
                self._send(payload, lambda: self._arrive(draft, if_verdict), is_up=True)
            case CloseVerifier():
                self._close()

    def _arrive(self, draft: DraftReceived, behind: ExpectedVerdict | None) -> None:
        """At the server, where a draft that was sent ahead waits for its verdict (``wire.verify_sessions``)."""
        if behind is None:
            self._there, self._said, self._ahead = draft.round, None, []
            self._server.receive(draft)
        elif behind.round == self._there:
            self._ahead.append((behind, draft))
        elif behind == self._said:
            self._arrive(draft, None)

    def _decide(self, said: SendVerdict | RefuseDraft) -> None:
        """The server has decided the round that was there."""
        ahead, self._ahead, self._there = self._ahead, [], None
        self._said = None
        if isinstance(said, SendVerdict) and said.token is not None:
            self._said = ExpectedVerdict(said.round, said.accepted, said.token)
        won = next((draft for behind, draft in ahead if behind == self._said), None)
        if won is not None:
            call_at(self._env, 0.0, lambda: self._arrive(won, None))

    def _open(self, ids: tuple[int, ...]) -> None:
        """The first time the session is used before the server has answered, as ``endpoints.verify_session`` does."""
        is_first = not self._openings
        if not is_first and not self._is_closed:
            self._close()
        self._openings += 1
        self._is_closed = False
        self._there, self._said, self._ahead = None, None, []
        name = self._name = f"{self._answer.request.number}-{self._openings}"
        event = SessionOpened(name, self._device, prompt_ids(self._base) + ids)

        def listen(said: SessionAnswer) -> None:
            if isinstance(said, SendVerdict):
                self._on_verdict(said)
            if isinstance(said, SendVerdict | RefuseDraft) and name == self._name:
                self._decide(said)
            self._send(_FRAME, lambda: self._hear(name, ids, is_first, said), is_up=False)

        def ask() -> None:
            if not self._is_closed and name == self._name:
                self._send(_FRAME + _TOKEN * len(event.ids), lambda: self._server.open(event, self._answer, listen), is_up=True)

        if is_first:
            ask()
            call_at(self._env, 0.0, lambda: None if self._is_closed else self._emit(VerifierConnected(len(ids))))
        else:
            call_at(self._env, max(0.0, self._not_before - self._env.now), ask)

    def _close(self) -> None:
        self._is_closed = True
        name = self._name
        self._send(_FRAME, lambda: self._server.close(name), is_up=True)

    def _hear(self, name: str, ids: tuple[int, ...], is_first: bool, said: SessionAnswer) -> None:
        if self._is_closed or name != self._name:
            return
        match said:
            case AcceptSession():
                if not is_first:
                    self._emit(VerifierConnected(len(ids)))
            case RefuseSession(retry_after=retry_after):
                if retry_after is None:
                    raise AssertionError(f"{name}: expected a session that fits the server, got the refusal {said.reason!r}")
                self._not_before = self._env.now + retry_after
                if is_first:  # it was used already
                    self._emit(VerifierLost(retry_after))
                else:
                    self._open(ids)
            case SendVerdict():
                self._emit(
                    VerdictReceived(
                        round=said.round,
                        accepted=said.accepted,
                        token=said.token,
                        queue_depth=min(1.0, said.depth / FULL_QUEUE),
                        queue_seconds=said.queued,
                        compute_seconds=said.compute,
                    )
                )
            case RefuseDraft():
                self._emit(DraftRefused(said.round, said.retry_after))
            case ForgetSession():
                self._emit(VerifierLost())


class SimulatedRemoteStream(_LinkedPeer):
    """The target streaming one answer alone.

    Args:
        server: that writes.
        answer: what.
        emit: is told what comes.

    Attributes:
        made: tokens the server wrote for it, those nobody got included.
    """

    def __init__(
        self,
        env: simpy.Environment,
        server: TargetServer,
        link: SimulatedLink,
        *,
        traffic: Traffic,
        answer: RecordedAnswer,
        emit: Callable[[RemoteTokensReceived | RemoteEnded], None],
    ) -> None:
        super().__init__(env, link, traffic)
        self.made = 0
        self._server = server
        self._answer = answer
        self._emit = emit
        self._streams: dict[int, PlainStream] = {}

    def run(self, command: OpenRemote | CloseRemote) -> None:
        """Begin what is asked."""
        match command:
            case OpenRemote(version, ids):
                stream = PlainStream(self._answer, len(ids), lambda place: self._tell(version, place))
                self._streams[version] = stream
                payload = _FRAME + _TOKEN * (self._answer.request.prompt_tokens + len(ids))
                self._send(payload, lambda: self._begin(version, stream), is_up=True)
            case CloseRemote(version):
                stopped = self._streams.pop(version, None)
                if stopped is not None:
                    self._send(_FRAME, lambda: self._server.stop(stopped), is_up=True)

    def _begin(self, version: int, stream: PlainStream) -> None:
        if version in self._streams:  # otherwise it was closed on its way
            self._server.stream(stream)

    def _tell(self, version: int, place: int) -> None:
        self.made += 1
        is_last = place + 1 >= self._answer.tokens
        token = self._answer.right(place)

        def arrive() -> None:
            if is_last:
                self._streams.pop(version, None)
                self._emit(RemoteEnded(version, "stop"))
            else:
                self._emit(RemoteTokensReceived(version, (token,)))

        self._send(_FRAME + _TOKEN, arrive, is_up=False)
