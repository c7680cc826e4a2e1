"""The remote side of an answer in a simulated fleet: a verifier session and a remote stream at a target server, over the device's link."""

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

_FRAME = 20  # bytes of a greedy draft or verdict without its tokens; see bench/timed/verify_wire.py
_TOKEN = 2  # additional bytes for each token


class Traffic:
    """The traffic of one request on the link.

    Attributes:
        bytes_up, bytes_down: bytes of the frames in each direction.
        delay: total seconds that frames were in transit.
        frames: number of frames.
    """

    __slots__ = ("bytes_down", "bytes_up", "delay", "frames")

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = self.frames = 0
        self.delay = 0.0


class _LinkedPeer:
    """Base class for the peers at the other end of a link, which delays the frames in both directions."""

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
    """A verifier session for one answer.

    Args:
        server: the server that verifies.
        device: name of the device that drafts.
        answer: the answer being drafted.
        emit: called with each event at the device.
        on_verdict: called with each verdict when the server sends it.
        token_bytes: bytes of a drafted token.
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
        self._retry_at = 0.0
        self._name = ""
        self._current_round: int | None = None  # the round that the server verifies
        self._last_verdict: ExpectedVerdict | None = None  # the server's last verdict, if no draft has followed it
        self._ahead: list[tuple[ExpectedVerdict, DraftReceived]] = []
        self._is_closed = False

    def run(self, command: ConnectVerifier | SendDraft | CloseVerifier) -> None:
        """Start carrying out the command."""
        match command:
            case ConnectVerifier(ids):
                self._open(ids)
            case SendDraft(number, base, given, ids, if_verdict=if_verdict, parents=parents):
                start = self._base + base
                draft = DraftReceived(session=self._name, round=number, base=start, given=given, draft=ids, parents=parents)
                payload = _FRAME + _TOKEN * len(given) + round(self._token_bytes * len(ids))
                self._send(payload, lambda: self._arrive(draft, if_verdict), is_up=True)
            case CloseVerifier():
                self._close()

    def _arrive(self, draft: DraftReceived, if_verdict: ExpectedVerdict | None) -> None:
        """Receive a draft at the server, where a draft that was sent in advance waits for the previous verdict (``wire.verify``)."""
        if if_verdict is None:
            self._current_round, self._last_verdict, self._ahead = draft.round, None, []
            self._server.receive(draft)
        elif if_verdict.round == self._current_round:
            self._ahead.append((if_verdict, draft))
        elif if_verdict == self._last_verdict:
            self._arrive(draft, None)

    def _decide(self, answer: SendVerdict | RefuseDraft) -> None:
        """End the round that the server has verified or refused, and start the draft that was sent in advance for this verdict."""
        ahead, self._ahead, self._current_round = self._ahead, [], None
        self._last_verdict = None
        if isinstance(answer, SendVerdict) and answer.verdict.token is not None:
            self._last_verdict = ExpectedVerdict(answer.round, answer.verdict.accepted, answer.verdict.token)
        next_draft = next((draft for if_verdict, draft in ahead if if_verdict == self._last_verdict), None)
        if next_draft is not None:
            call_at(self._env, 0.0, lambda: self._arrive(next_draft, None))

    def _open(self, ids: tuple[int, ...]) -> None:
        """Open a session. The first session is used before the server has answered, as in ``endpoints.verifiers``."""
        is_first = not self._openings
        if not is_first and not self._is_closed:
            self._close()
        self._openings += 1
        self._is_closed = False
        self._current_round, self._last_verdict, self._ahead = None, None, []
        name = self._name = f"{self._answer.request.number}-{self._openings}"
        event = SessionOpened(name, self._device, prompt_ids(self._base) + ids)

        def emit(answer: SessionAnswer) -> None:
            if isinstance(answer, SendVerdict):
                self._on_verdict(answer)
            if isinstance(answer, SendVerdict | RefuseDraft) and name == self._name:
                self._decide(answer)
            self._send(_FRAME, lambda: self._receive(name, ids, is_first, answer), is_up=False)

        def open_at_server() -> None:
            if not self._is_closed and name == self._name:
                self._send(_FRAME + _TOKEN * len(event.ids), lambda: self._server.open(event, self._answer, emit), is_up=True)

        if is_first:
            open_at_server()
            call_at(self._env, 0.0, lambda: None if self._is_closed else self._emit(VerifierConnected(len(ids))))
        else:
            call_at(self._env, max(0.0, self._retry_at - self._env.now), open_at_server)

    def _close(self) -> None:
        self._is_closed = True
        name = self._name
        self._send(_FRAME, lambda: self._server.close(name), is_up=True)

    def _receive(self, name: str, ids: tuple[int, ...], is_first: bool, answer: SessionAnswer) -> None:
        if self._is_closed or name != self._name:
            return
        match answer:
            case AcceptSession():
                if not is_first:
                    self._emit(VerifierConnected(len(ids)))
            case RefuseSession(retry_after=retry_after):
                if retry_after is None:
                    raise AssertionError(f"{name}: expected a session that fits the server, got the refusal {answer.reason!r}")
                self._retry_at = self._env.now + retry_after
                if is_first:  # the machine is using it already
                    self._emit(VerifierLost(retry_after))
                else:
                    self._open(ids)
            case SendVerdict():
                self._emit(
                    VerdictReceived(
                        round=answer.round,
                        accepted=answer.verdict.accepted,
                        token=answer.verdict.token,
                        queue_depth=min(1.0, answer.depth / FULL_QUEUE),
                        queue_seconds=answer.queued,
                        compute_seconds=answer.compute,
                    )
                )
            case RefuseDraft():
                self._emit(DraftRefused(answer.round, answer.retry_after))
            case ForgetSession():
                self._emit(VerifierLost())


class SimulatedRemoteStream(_LinkedPeer):
    """The remote stream of one answer.

    Args:
        server: the server that writes.
        answer: the answer that it writes.
        emit: called with each event at the device.

    Attributes:
        made: tokens that the server wrote, including those that were never delivered.
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
        """Start carrying out the command."""
        match command:
            case OpenRemote(version, ids):
                stream = PlainStream(self._answer, len(ids), lambda position: self._emit_token(version, position))
                self._streams[version] = stream
                payload = _FRAME + _TOKEN * (self._answer.request.prompt_tokens + len(ids))
                self._send(payload, lambda: self._begin(version, stream), is_up=True)
            case CloseRemote(version):
                stopped = self._streams.pop(version, None)
                if stopped is not None:
                    self._send(_FRAME, lambda: self._server.stop(stopped), is_up=True)

    def _begin(self, version: int, stream: PlainStream) -> None:
        if version in self._streams:  # otherwise it was closed while the request was on its way
            self._server.stream(stream)

    def _emit_token(self, version: int, position: int) -> None:
        self.made += 1
        is_last = position + 1 >= self._answer.tokens
        token = self._answer.right(position)

        def arrive() -> None:
            if is_last:
                self._streams.pop(version, None)
                self._emit(RemoteEnded(version, "stop"))
            else:
                self._emit(RemoteTokensReceived(version, (token,)))

        self._send(_FRAME + _TOKEN, arrive, is_up=False)
