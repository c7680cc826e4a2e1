"""What all servers' sessions have in common: who may open and resume them, and when they end."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from streamco.core.verifier.events import (
    AcceptSession,
    DropSequence,
    ForgetSession,
    Reason,
    RefuseDraft,
    RefuseSession,
    SchedulerCommand,
    SendVerdict,
    SessionOpened,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import Alternating, LinearStep
from streamco.server.verify.hosted_sessions import HostedSession, HostedSessions, SessionStats, refusal_for
from streamco.server.verify.options import VerifyOptions
from streamco.wire.verify.errors import OverloadedError, StaleRoundError, VerifyProtocolError
from tests.support.leaks import settled

BOUNDS = SchedulerOptions(kv_tokens=64, places=4, context_tokens=16, sessions_per_device=2)


class Server:
    """A protocol end that keeps its refusals."""

    def __init__(self) -> None:
        self.refused: list[VerifyProtocolError] = []
        self.opened: list[int] = []  # numbers of sessions

    def refuse(self, error: VerifyProtocolError) -> None:
        self.refused.append(error)

    @property
    def codes(self) -> list[str]:
        return [error.code for error in self.refused]


class Device:
    """A connection."""

    def __init__(self, device: str, *, peer: str = "address", owner: str | None = None) -> None:
        self.server = Server()
        self.device, self.peer, self.owner = device, peer, owner

    def flush(self) -> None:
        pass


class Session(HostedSession[Device]):
    resumes = 0

    def drop_resume(self) -> None:
        self.resumes += 1


class Sessions(HostedSessions[Session, Device]):
    """Sessions without rounds, over a real scheduler."""

    expected = "a draft"

    def __init__(self, options: VerifyOptions | None = None, bounds: SchedulerOptions = BOUNDS) -> None:
        scheduler = VerificationScheduler(bounds, LinearStep(setup=0.01, per_token=0.001), Alternating())
        super().__init__(scheduler, options or VerifyOptions(), SessionStats())
        self.start()

    def open(self, device: Device, number: int) -> Session | None:
        if not self._may_open(device, number):
            return None
        session = Session(self._next_name(device), device.owner)
        self._add(session, device, number)
        self.emit(SessionOpened(session.name, device.device, ()))
        return session

    def resume(self, device: Device, number: int, key: bytes) -> Session | None:
        session = self._of_key(device, key)
        if session is not None:
            self._take_over(session, device, number)
        return session

    def close_session(self, device: Device, number: int) -> None:
        self._close_session(device, number)

    @property
    def counts(self) -> list[object]:
        """Connections, sessions, and those that wait to be resumed."""
        return list(self._counts().values())

    def _run_command(self, command: SchedulerCommand, now: float) -> None:
        match command:
            case AcceptSession() | RefuseSession() | ForgetSession():
                self._answer(self._sessions[command.session], command)
            case DropSequence():
                pass  # nothing was read
            case _:
                raise AssertionError(f"expected no rounds, got {command}")

    def _send_opened(self, session: Session, connection: Device) -> None:
        connection.server.opened.append(session.number)

    def _answer_verdict(self, session: Session, command: SendVerdict) -> None:
        raise AssertionError("there are no rounds")

    def _answer_refusal(self, session: Session, command: RefuseDraft) -> None:
        self._refuse_round(session, command, command.round)

    @property
    def refused(self) -> object:
        """Refusals by their reason."""
        return self.stats._totals()["refused"]

    def refuse(self, session: Session, reason: Reason) -> None:
        """Refuse a round, as the scheduler may."""
        self._answer(session, RefuseDraft(session.name, 7, reason, 2.0))


def joined(sessions: Sessions, name: str, **options: str) -> Device:
    device = Device(name, **options)
    sessions.join(device)
    return device


def opened(sessions: Sessions, device: Device, number: int) -> Session:
    session = sessions.open(device, number)
    assert session is not None
    return session


async def test_an_address_has_as_many_sessions_as_it_may_those_of_lost_connections_included() -> None:
    sessions = Sessions(VerifyOptions(peer_sessions=2))
    one, two, other = joined(sessions, "one"), joined(sessions, "two"), joined(sessions, "other", peer="elsewhere")
    opened(sessions, one, 0)
    opened(sessions, two, 0)
    sessions.leave(one)
    assert sessions.open(two, 1) is None
    assert (two.server.codes, sessions.refused) == (["overloaded"], {"address limit": 1})
    assert two.server.refused[0].retry_after == 1.0
    opened(sessions, other, 0)
    sessions.close_session(two, 0)
    opened(sessions, two, 2)
    assert sessions.counts == [2, 3, 1]


async def test_a_session_that_the_scheduler_refuses_is_gone() -> None:
    sessions = Sessions()
    device = joined(sessions, "one")
    found = [opened(sessions, device, number) for number in range(3)]
    assert (sessions.stats.opened, device.server.codes) == (2, ["too_many_sessions"])
    assert sessions.counts == [1, 2, 0]
    assert device.server.opened == [0, 1]
    assert sessions.resume(device, 3, found[2].key) is None


async def test_a_session_whose_rounds_fail_three_times_in_a_row_is_ended() -> None:
    sessions = Sessions()
    device = joined(sessions, "one")
    session = opened(sessions, device, 0)
    sessions.refuse(session, "overloaded")
    for _ in range(3):
        sessions.refuse(session, "engine failed")
    assert [(error.code, error.scope, error.retry_after) for error in device.server.refused] == [
        ("overloaded", "round", 2.0),
        ("failed", "round", 2.0),
        ("failed", "round", 2.0),
        ("failed", "session", None),
    ]
    assert sessions.counts == [1, 0, 0]


async def test_a_key_resumes_a_session_for_its_owner_alone_and_takes_it_from_the_old_connection() -> None:
    sessions = Sessions()
    old, new, stranger = (joined(sessions, name, owner=owner) for name, owner in (("old", "a"), ("new", "a"), ("stranger", "b")))
    session = opened(sessions, old, 0)
    assert sessions.resume(stranger, 0, session.key) is None
    assert sessions.resume(new, 5, bytes(16)) is None
    assert sessions.resume(new, 5, session.key) is session
    assert (old.server.codes, session.connection, session.number, session.resumes) == (["evicted"], new, 5, 1)
    sessions.close_session(old, 0)
    assert sessions.counts == [3, 1, 0], "it is the new connection's"
    sessions.leave(new)
    assert (sessions.counts, session.connection) == ([2, 1, 1], None)
    assert sessions.resume(old, 1, session.key) is session
    assert sessions.counts == [2, 1, 0]


async def test_a_session_of_a_lost_connection_is_forgotten_in_time() -> None:
    sessions = Sessions(VerifyOptions(resume_s=1))
    device, other = joined(sessions, "one"), joined(sessions, "other")
    session = opened(sessions, device, 0)
    opened(sessions, other, 0)
    sessions.leave(device)
    await asyncio.sleep(0)
    assert sessions.counts == [1, 2, 1]
    await settled(lambda: sessions.counts == [1, 1, 0])
    assert sessions.resume(other, 1, session.key) is None


async def test_a_session_that_is_forgotten_hears_why() -> None:
    sessions = Sessions(bounds=replace(BOUNDS, sessions=2, forget_after=0.2))
    one, other = joined(sessions, "one"), joined(sessions, "other")
    opened(sessions, one, 0)
    opened(sessions, one, 1)
    opened(sessions, other, 7)
    assert [str(error) for error in one.server.refused] == [
        "session 0: expected a server with room for it, got a full one, and a device with fewer sessions"
    ]
    await settled(lambda: bool(other.server.refused))
    assert [str(error) for error in other.server.refused] == ["session 7: expected a draft, got silence"]
    assert one.server.codes + other.server.codes == ["evicted"] * 3


@pytest.mark.parametrize(
    ("reason", "round_number", "kind", "text"),
    [
        ("overloaded", None, OverloadedError, "session 3: refused: overloaded"),
        ("busy", 7, StaleRoundError, "session 3, round 7: refused: busy"),
    ],
)
def test_a_refusal_has_the_protocols_error(reason: str, round_number: int | None, kind: type[VerifyProtocolError], text: str) -> None:
    error = refusal_for(reason, 3, round_number, 0.5)
    assert type(error) is kind
    assert str(error) == text
    assert (error.session, error.round_number, error.retry_after) == (3, round_number, 0.5)
