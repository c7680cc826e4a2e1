"""The remote side in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
import simpy

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
from streamco.sim.single.faulty_verifier import Fault, FaultKind, FaultyLink, FaultyVerifierSession, SimulatedRemote, VerifyingServer


def counting(ids: Sequence[int]) -> Mapping[int, float]:
    return {(ids[-1] if ids else 0) + 1: 1.0}


class World:
    def __init__(self, **settings: Any) -> None:
        self.env = simpy.Environment()
        self.events: list[tuple[float, Any]] = []
        server = VerifyingServer(**{"model": counting, "step": 1.0, "prompt_time": 0.0, "connect_trips": 1.0, **settings})
        self.session = FaultyVerifierSession(self.env, server, FaultyLink(rtt=2.0), self.receive, Random(1))
        self.remote = SimulatedRemote(self.env, server, FaultyLink(rtt=2.0), self.receive, Random(1))

    def receive(self, event: Any) -> None:
        self.events.append((round(self.env.now, 6), event))

    def connect(self, *ids: int) -> None:
        self.session.run(ConnectVerifier(ids))
        self.run()

    def run(self) -> list[tuple[float, Any]]:
        self.env.run()
        events = self.events[:]
        self.events.clear()
        return events


def send(number: int, base: int, *ids: int, given: tuple[int, ...] = ()) -> SendDraft:
    return SendDraft(number, base, given, ids)


def test_a_round_takes_the_link_and_a_step_and_leaves_the_context_behind_the_verdict() -> None:
    world = World()
    world.session.run(ConnectVerifier(()))
    assert world.run() == [(2.0, VerifierConnected(0))]
    world.session.run(send(1, 0, 2, 3, 9, given=(1,)))
    assert world.run() == [(5.0, VerdictReceived(round=1, accepted=2, token=4, compute_seconds=1.0))]
    assert world.session.ids == [1, 2, 3, 4]


def test_a_slow_link_carries_bytes_in_its_time() -> None:
    assert FaultyLink(rtt=0.1, bits_per_s=800.0).seconds(50) == pytest.approx(0.55)
    assert FaultyLink(rtt=0.1).seconds(50) == 0.05


def test_the_first_verdict_waits_for_the_prompt() -> None:
    world = World(prompt_time=10.0)
    world.connect()
    world.session.run(send(1, 0, 1))
    ((at, verdict),) = world.run()
    assert at == 14.0
    assert verdict.queue_seconds == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("kind", "event", "held"),
    [
        ("draft lost", (5.5, VerifierLost()), []),
        ("verdict lost", (6.5, VerifierLost()), [1, 2]),
        ("refused", (4.0, DraftRefused(1, 2.5)), []),
        ("slow", (7.5, VerdictReceived(round=1, accepted=1, token=2, queue_seconds=2.5, compute_seconds=1.0)), [1, 2]),
        ("mute", None, []),
    ],
)
def test_every_fault_does_what_it_says(kind: FaultKind, event: tuple[float, object] | None, held: list[int]) -> None:
    world = World(faults=lambda _: Fault(kind, 2.5))
    world.connect()
    world.session.run(send(1, 0, 1))
    assert world.run() == ([] if event is None else [event])
    assert world.session.ids == held


def test_a_connection_that_is_taken_up_goes_on_from_what_both_hold() -> None:
    world = World()
    world.connect()
    world.session.run(send(1, 0, 1, 2, 9))
    world.run()
    world.session.run(ConnectVerifier((1, 2, 8)))
    assert world.run() == [(7.0, VerifierConnected(2))]
    assert world.session.ids == [1, 2]


def test_what_was_out_on_an_earlier_connection_is_lost() -> None:
    world = World()
    world.connect()
    world.session.run(send(1, 0, 1))
    world.session.run(ConnectVerifier(()))
    assert world.run() == [(4.0, VerifierConnected(0))]


def test_a_verifier_that_fails_says_so_and_nothing_more() -> None:
    world = World(verifier_fails_at=2.5)
    world.session.run(ConnectVerifier(()))
    world.env.run(until=2.2)
    world.session.run(send(1, 0, 1))
    assert [(at, type(event)) for at, event in world.run()] == [(2.0, VerifierConnected), (2.5, VerifierFailed)]


def test_what_no_verifier_would_understand_is_refused() -> None:
    world = World()
    with pytest.raises(AssertionError, match="can't take"):
        world.session.run(send(1, 0, 1))
    world.connect()
    with pytest.raises(AssertionError, match="holds 0 tokens"):
        world.session.run(send(1, 4, 1))
    world.session.run(send(1, 0, 1))
    with pytest.raises(AssertionError, match="waits for 1"):
        world.session.run(send(2, 0, 1))
    world.run()
    with pytest.raises(AssertionError, match="can't take"):
        world.session.run(send(1, 0, 1))
    world.session.run(CloseVerifier())
    with pytest.raises(AssertionError, match="closed"):
        world.session.run(ConnectVerifier(()))


def test_a_context_that_is_full_has_no_token_more() -> None:
    world = World(context=2)
    world.connect()
    world.session.run(send(1, 0, 1, 2))
    ((_, verdict),) = world.run()
    assert (verdict.accepted, verdict.token) == (2, None)


def test_a_stream_brings_a_token_a_step_to_its_end() -> None:
    world = World(end_ids=frozenset({4}))
    world.remote.run(OpenRemote(1, (1,), None))
    assert world.run() == [
        (3.0, RemoteTokensReceived(1, (2,))),
        (4.0, RemoteTokensReceived(1, (3,))),
        (5.0, RemoteEnded(1, "stop")),
    ]
    world.remote.run(OpenRemote(2, (1,), 1))
    assert [event for _, event in world.run()] == [RemoteTokensReceived(2, (2,)), RemoteEnded(2, "length")]


def test_a_stream_that_is_closed_still_brings_what_is_on_its_way() -> None:
    world = World()
    world.remote.run(OpenRemote(1, (), None))
    world.env.run(until=2.5)
    world.remote.run(CloseRemote(1))
    assert world.run() == [(3.0, RemoteTokensReceived(1, (1,)))]


def test_a_remote_side_that_is_out_fails_every_stream() -> None:
    world = World(remote_fails_at=3.5)
    world.remote.run(OpenRemote(1, (), None))
    events = world.run()
    assert [type(event) for _, event in events] == [RemoteTokensReceived, RemoteFailed, RemoteTokensReceived] or isinstance(
        events[-1][1], RemoteFailed
    )
    world.remote.run(OpenRemote(2, (), None))
    ((_, event),) = world.run()
    assert isinstance(event, RemoteFailed)
    assert event.version == 2
