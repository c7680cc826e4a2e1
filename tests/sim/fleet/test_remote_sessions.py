import simpy

from streamco.core.speculation.events import (
    CloseRemote,
    CloseVerifier,
    ConnectVerifier,
    OpenRemote,
    RemoteEnded,
    RemoteTokensReceived,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierLost,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.sim.fleet.recorded_answer import RecordedAnswer
from streamco.sim.fleet.remote_sessions import SimulatedRemoteStream, SimulatedVerifierSession, Traffic
from streamco.sim.fleet.target_server import TargetServer
from streamco.sim.hardware.links import ConstantLink
from tests.sim.fleets import OPEN, RTT, STEP, flat, requests


class Parts:
    def __init__(self, options: SchedulerOptions = OPEN) -> None:
        self.env = simpy.Environment()
        self.server = TargetServer(self.env, flat, options)
        self.traffic = Traffic()
        self.answer = RecordedAnswer(requests(1, tokens=6)[0])
        self.events: list[tuple[float, object]] = []
        self.verdicts: list[object] = []

    def receive(self, event: object) -> None:
        self.events.append((round(self.env.now, 6), event))

    def session(self, device: str = "d", answer: RecordedAnswer | None = None) -> SimulatedVerifierSession:
        return SimulatedVerifierSession(
            self.env,
            self.server,
            ConstantLink(RTT),
            traffic=self.traffic,
            device=device,
            answer=answer or self.answer,
            emit=self.receive,
            on_verdict=self.verdicts.append,
        )

    def remote(self) -> SimulatedRemoteStream:
        return SimulatedRemoteStream(self.env, self.server, ConstantLink(RTT), traffic=self.traffic, answer=self.answer, emit=self.receive)


def test_the_first_draft_goes_with_the_opening_and_its_verdict_comes_behind_the_prompt() -> None:
    parts = Parts()
    session = parts.session()
    session.run(ConnectVerifier(()))
    parts.env.run(until=0.001)
    assert parts.events == [(0.0, VerifierConnected(0))]
    session.run(SendDraft(1, 0, (), (parts.answer.right(0), 5)))
    parts.env.run(until=1.0)
    time, verdict = parts.events[1]
    assert isinstance(verdict, VerdictReceived)
    assert (verdict.accepted, verdict.token) == (1, parts.answer.right(1))
    assert RTT + 2 * STEP <= time <= 0.002 + RTT + 2 * STEP
    assert len(parts.verdicts) == 1
    session.run(CloseVerifier())
    parts.env.run(until=2.0)
    assert parts.server.sessions == 0
    assert parts.traffic.frames == 5
    assert parts.traffic.bytes_up > parts.traffic.bytes_down


def test_a_session_that_is_refused_is_lost_and_opened_again_when_the_server_said() -> None:
    parts = Parts(SchedulerOptions(kv_tokens=100, places=1, context_tokens=100, idle_after=0.5, min_retry=0.05))
    parts.session("other", RecordedAnswer(requests(2, tokens=6)[1])).run(ConnectVerifier(()))
    parts.env.run(until=0.3)
    parts.events.clear()
    session = parts.session()
    session.run(ConnectVerifier(()))
    parts.env.run(until=0.4)
    assert [type(event) for _, event in parts.events] == [VerifierConnected, VerifierLost]
    lost = parts.events[-1][1]
    assert isinstance(lost, VerifierLost)
    assert lost.retry_after is not None
    assert lost.retry_after > 0.0
    session.run(ConnectVerifier(()))
    parts.env.run(until=3.0)
    assert isinstance(parts.events[-1][1], VerifierConnected)
    assert parts.events[-1][0] > 0.5


def test_a_stream_comes_token_by_token_and_ends_with_the_text() -> None:
    parts = Parts()
    parts.remote().run(OpenRemote(1, (), None))
    parts.env.run()
    times = [time for time, _ in parts.events]
    assert times == [round(RTT + STEP * (position + 1), 6) for position in range(6)]
    assert [event.ids for _, event in parts.events if isinstance(event, RemoteTokensReceived)] == [
        (parts.answer.right(position),) for position in range(5)
    ]
    assert parts.events[-1][1] == RemoteEnded(1, "stop")


def test_a_stream_that_was_closed_before_it_arrived_is_never_begun() -> None:
    parts = Parts()
    remote = parts.remote()
    remote.run(OpenRemote(1, (), None))
    remote.run(CloseRemote(1))
    parts.env.run()
    assert parts.events == []
    assert parts.server.made == 0
