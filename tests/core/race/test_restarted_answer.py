"""An answer that no endpoint can continue is generated again, with the caller's consent: the race machine, called with now=."""

from __future__ import annotations

import random

import pytest

from streamco.config import ReaderPace
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.commands import CancelStream, Command, ContinueStream, DeliverTokens, FailDelivery, FinishDelivery, OpenStream
from streamco.core.race.machine import OnFailure, RaceMachine, RacePlan
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EndpointProtocolError
from streamco.events import StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.testing.endpoint import text_chunk

CUT = EndpointConnectError("cut", endpoint="server", partial="ha ha ")


def make(*attempts: AttemptPlan, on_failure: OnFailure = "restart", pace: ReaderPace = None) -> RaceMachine:
    attempts = attempts or (AttemptPlan("server", 0.0), AttemptPlan("spare", None))
    return RaceMachine(RacePlan(attempts=attempts, on_failure=on_failure, pace=pace))


def tokens(source: str, *pieces: str) -> TokensReceived:
    return TokensReceived(source, [text_chunk(text) for text in pieces], len(pieces))


def text_of(commands: list[Command]) -> str:
    chunks = [chunk for command in commands if isinstance(command, DeliverTokens) for chunk in command.chunks]
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def failed_behind(machine: RaceMachine, *pieces: str) -> list[Command]:
    machine.start(now=0.0)
    machine.receive(tokens("server", *pieces), now=0.1)
    machine.receive(StreamFailed("server", CUT), now=0.2)
    return machine.take_commands()


def test_the_reader_gets_what_is_new_and_real_repetition_stays() -> None:
    machine = make()
    assert failed_behind(machine, "ha ", "ha ")[-1] == OpenStream("spare")
    for piece in ("ha ", "ha ", "ha ", "end"):
        machine.receive(tokens("spare", piece), now=0.5)
    machine.receive(StreamEnded("spare", "stop"), now=0.6)
    commands = machine.take_commands()
    assert text_of(commands) == "ha end"
    assert commands[-1] == FinishDelivery()
    attempt = machine.attempts["spare"]
    assert (attempt.tokens, attempt.late, attempt.given) == (4, 2, 0)
    assert machine.is_over


def test_without_consent_the_error_is_raised() -> None:
    assert failed_behind(make(on_failure="migrate"), "ha ", "ha ")[-1] == FailDelivery(CUT)


def test_who_can_go_on_comes_first() -> None:
    machine = make(AttemptPlan("server", 0.0), AttemptPlan("spare", None), AttemptPlan("able", None, continues=True))
    assert isinstance(failed_behind(machine, "ha ")[-1], ContinueStream)


def test_an_answer_that_departs_is_an_error_with_all_the_text_the_reader_has() -> None:
    machine = make()
    failed_behind(machine, "ha ", "ha ")
    machine.receive(tokens("spare", "ha ", "ho "), now=0.5)
    cancel, failure = machine.take_commands()
    assert cancel == CancelStream("spare", "diverged")
    assert isinstance(failure, FailDelivery)
    assert isinstance(failure.error, AllEndpointsFailed)
    assert failure.error.partial == "ha ha "
    assert isinstance(failure.error.errors["spare"], EndpointProtocolError)
    assert not machine.is_over
    machine.receive(StreamCancelled("spare"), now=0.6)
    assert machine.is_over


def test_when_it_departs_the_next_one_is_asked() -> None:
    machine = make(AttemptPlan("server", 0.0), AttemptPlan("spare", None), AttemptPlan("third", None))
    failed_behind(machine, "ha ", "ha ")
    machine.receive(tokens("spare", "ho "), now=0.5)
    assert machine.take_commands() == [CancelStream("spare", "diverged"), OpenStream("third")]
    machine.receive(tokens("third", "ha ha ha!"), now=0.7)
    machine.receive(StreamCancelled("spare"), now=0.7)
    machine.receive(StreamEnded("third", "stop"), now=0.8)
    assert text_of(machine.take_commands()) == "ha!"
    assert machine.is_over


def test_an_answer_that_ends_too_early_is_an_error() -> None:
    machine = make()
    failed_behind(machine, "ha ", "ha ")
    machine.receive(tokens("spare", "ha "), now=0.5)
    machine.receive(StreamEnded("spare", "stop"), now=0.6)
    (failure,) = machine.take_commands()
    assert isinstance(failure, FailDelivery)
    assert machine.is_over


def test_it_may_fail_while_it_makes_what_the_reader_has() -> None:
    machine = make()
    failed_behind(machine, "ha ", "ha ")
    machine.receive(tokens("spare", "ha "), now=0.5)
    machine.receive(StreamFailed("spare", EndpointConnectError("cut too", endpoint="spare")), now=0.6)
    (failure,) = machine.take_commands()
    assert isinstance(failure, FailDelivery)
    assert isinstance(failure.error, AllEndpointsFailed)
    assert set(failure.error.errors) == {"server", "spare"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("pace", [None, 7.0, "smooth"])
def test_cut_anywhere_the_text_is_whole(seed: int, pace: ReaderPace) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice(["ha ", "ho ", "é", "🦊", "\n", "x"]) for _ in range(40))
    machine = make(pace=pace)
    cut = rng.randrange(1, len(text))
    commands = failed_behind(machine, *cut_up(rng, text[:cut]))
    for piece in cut_up(rng, text):
        machine.receive(tokens("spare", piece), now=0.5)
        commands += machine.take_commands()
    machine.receive(StreamEnded("spare", "stop"), now=0.6)
    while (deadline := machine.next_deadline()) is not None:
        machine.handle_deadline(now=deadline)
    commands += machine.take_commands()
    assert text_of(commands) == text, f"seed {seed}"
    assert commands[-1] == FinishDelivery()


def cut_up(rng: random.Random, text: str) -> list[str]:
    places = sorted(rng.sample(range(1, len(text)), k=min(len(text) - 1, 9))) if len(text) > 1 else []
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
