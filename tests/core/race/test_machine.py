"""The race machine, called directly with now=."""

from __future__ import annotations

import random

import pytest

from streamco.config import ReaderPace
from streamco.core.race.attempt import AttemptPlan, AttemptState
from streamco.core.race.commands import CancelStream, Command, DeliverTokens, FailDelivery, FinishDelivery, OpenStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EndpointProtocolError, EndpointStatusError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.testing.endpoint import text_chunk


def make(*attempts: tuple[str, float | None], pace: ReaderPace = None, explore: bool = False) -> RaceMachine:
    return RaceMachine(RacePlan(attempts=tuple(AttemptPlan(name, wait) for name, wait in attempts), pace=pace, explore=explore))


def tokens(source: str, *texts: str) -> TokensReceived:
    return TokensReceived(source, [text_chunk(text) for text in texts], sum(bool(text) for text in texts))


def text_of(commands: list[Command]) -> str:
    return "".join(
        choice.delta.content or ""
        for command in commands
        if isinstance(command, DeliverTokens)
        for chunk in command.chunks
        for choice in chunk.choices
    )


def state(machine: RaceMachine, source: str) -> AttemptState:
    return machine.attempts[source].state


def kinds(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_legs_without_a_wait_open_at_the_start_and_the_others_when_their_time_has_come() -> None:
    machine = make(("server", 0.0), ("device", 0.3))
    machine.start(now=10.0)
    assert machine.take_commands() == [OpenStream("server")]
    assert machine.next_deadline() == pytest.approx(10.3)
    machine.handle_deadline(now=10.2)
    assert machine.take_commands() == []
    machine.handle_deadline(now=10.3)
    assert machine.take_commands() == [OpenStream("device")]
    assert machine.next_deadline() is None


def test_the_first_content_token_wins_and_the_loser_is_cancelled() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    machine.take_commands()
    machine.receive(tokens("device", "Hi"), now=0.2)
    assert machine.take_commands() == [CancelStream("server", "lost"), DeliverTokens("device", [text_chunk("Hi")])]
    assert machine.winner == "device"
    assert state(machine, "server") is AttemptState.LOST
    machine.receive(StreamCancelled("server"), now=0.25)
    assert state(machine, "server") is AttemptState.CANCELLED
    assert machine.attempts["server"].stopped == pytest.approx(0.25)


def test_a_role_delta_does_not_win_but_is_delivered_before_the_winners_first_token() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    role = ChatCompletionChunk(id="r")
    machine.receive(TokensReceived("server", [role], 0), now=0.1)
    assert machine.winner is None
    machine.receive(tokens("server", "Hi"), now=0.2)
    assert machine.take_commands()[-1] == DeliverTokens("server", [role, text_chunk("Hi")])


def image(source: str) -> TokensReceived:
    chunk = ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta(audio={"data": "AAAA"}))])
    return TokensReceived(source, [chunk], 0)


def test_output_without_tokens_is_delivered_at_once_if_nothing_else_is_about_to_answer() -> None:
    machine = make(("server", 0.0), ("reserve", None))
    machine.start(now=0.0)
    machine.take_commands()
    event = image("server")
    machine.receive(event, now=0.1)
    assert machine.take_commands() == [DeliverTokens("server", event.chunks)]
    assert machine.winner == "server"


@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_output_without_tokens_waits_as_long_as_another_endpoint_may_write_a_token(wait: float) -> None:
    machine = make(("server", 0.0), ("device", wait))
    machine.start(now=0.0)
    machine.take_commands()
    event = image("server")
    machine.receive(event, now=0.1)
    assert (machine.winner, machine.take_commands()) == (None, [])
    machine.receive(tokens("server", "Hi"), now=0.2)
    assert text_of(commands := machine.take_commands()) == "Hi"
    assert [command.chunks[0] for command in commands if isinstance(command, DeliverTokens)] == event.chunks


def test_an_endpoint_whose_wait_was_not_over_is_spared() -> None:
    machine = make(("server", 0.0), ("device", 5.0))
    machine.start(now=0.0)
    machine.receive(tokens("server", "Hi"), now=1.0)
    assert state(machine, "device") is AttemptState.SPARED
    assert machine.next_deadline() is None


def test_late_tokens_of_the_loser_are_counted_as_waste_and_not_delivered() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    machine.receive(tokens("device", "Hi"), now=0.1)
    machine.take_commands()
    machine.receive(tokens("server", "Yo", "!"), now=0.11)
    assert machine.take_commands() == []
    assert machine.attempts["server"].tokens == 2


def test_an_exploring_session_lets_the_loser_run_to_its_first_token() -> None:
    machine = make(("server", 0.0), ("device", 0.0), explore=True)
    machine.start(now=0.0)
    machine.receive(tokens("device", "Hi"), now=0.1)
    assert not any(isinstance(command, CancelStream) for command in machine.take_commands())
    assert not machine.is_direct
    machine.receive(tokens("server", "Yo"), now=0.7)
    assert machine.take_commands() == [CancelStream("server", "explored")]
    assert machine.attempts["server"].ttft == pytest.approx(0.7)


def test_a_failure_before_the_first_token_starts_the_next_leg_at_once() -> None:
    machine = make(("server", 0.0), ("device", 3.0))
    machine.start(now=0.0)
    machine.take_commands()
    machine.receive(StreamFailed("server", EndpointConnectError("refused", endpoint="server")), now=0.01)
    assert machine.take_commands() == [OpenStream("device")]
    machine.receive(tokens("device", "Hi"), now=1.0)
    machine.receive(StreamEnded("device", "stop"), now=1.1)
    assert kinds(machine.take_commands()) == ["DeliverTokens", "FinishDelivery"]
    assert machine.error is None


def test_stand_ins_start_one_after_the_other_in_their_order() -> None:
    machine = make(("first", 0.0), ("second", None), ("third", None))
    machine.start(now=0.0)
    assert machine.take_commands() == [OpenStream("first")]
    machine.receive(StreamFailed("first", EndpointConnectError("refused")), now=0.1)
    assert machine.take_commands() == [OpenStream("second")]
    machine.receive(StreamFailed("second", EndpointConnectError("refused")), now=0.2)
    assert machine.take_commands() == [OpenStream("third")]


def test_a_plan_that_starts_nobody_still_starts_the_first_stand_in() -> None:
    machine = make(("server", None), ("device", None))
    machine.start(now=0.0)
    assert machine.take_commands() == [OpenStream("server")]


def test_when_all_fail_one_error_holds_each_ones_own() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    refused, overloaded = EndpointConnectError("refused", endpoint="server"), EndpointStatusError("busy", status=503, endpoint="device")
    machine.receive(StreamFailed("server", refused), now=0.1)
    machine.take_commands()
    machine.receive(StreamFailed("device", overloaded), now=0.2)
    (command,) = machine.take_commands()
    assert isinstance(command, FailDelivery)
    assert isinstance(command.error, AllEndpointsFailed)
    assert command.error.errors == {"server": refused, "device": overloaded}
    assert machine.is_over


def test_a_single_endpoints_error_is_raised_as_it_is() -> None:
    machine = make(("server", 0.0))
    machine.start(now=0.0)
    error = EndpointStatusError("bad key", status=401)
    machine.receive(StreamFailed("server", error), now=0.1)
    assert machine.take_commands()[-1] == FailDelivery(error)


def test_endpoints_that_could_take_no_part_are_told_when_the_others_fail() -> None:
    missing = EndpointConnectError("no such file", endpoint="device")
    machine = RaceMachine(RacePlan(attempts=(AttemptPlan("server", 0.0),), missing=(("device", missing),)))
    machine.start(now=0.0)
    error = EndpointStatusError("bad key", status=401)
    machine.receive(StreamFailed("server", error), now=0.1)
    (command,) = machine.take_commands()[-1:]
    assert isinstance(command, FailDelivery)
    assert isinstance(command.error, AllEndpointsFailed)
    assert command.error.errors == {"device": missing, "server": error}


def test_a_leg_is_told_to_stop_once() -> None:
    machine = make(("server", 0.0), ("device", 0.0), explore=True)
    machine.start(now=0.0)
    machine.receive(tokens("device", "Hi"), now=0.1)
    machine.take_commands()
    machine.receive(tokens("server", "Yo"), now=0.2)
    machine.receive(tokens("server", "!"), now=0.3)
    machine.receive(ReaderLeft(), now=0.4)
    cancels = [command for command in machine.take_commands() if isinstance(command, CancelStream)]
    assert cancels == [CancelStream("server", "explored"), CancelStream("device", "reader left")]


def test_a_winner_that_fails_delivers_what_is_buffered_before_the_error() -> None:
    machine = make(("server", 0.0), pace=1.0)
    machine.start(now=0.0)
    machine.receive(tokens("server", "a", "b", "c"), now=0.0)
    assert text_of(machine.take_commands()) == "a"
    error = EndpointProtocolError("truncated", partial="abc")
    machine.receive(StreamFailed("server", error), now=0.1)
    commands = machine.take_commands()
    assert text_of(commands) == "bc"
    assert commands[-1] == FailDelivery(error)
    assert machine.next_deadline() is None


def test_an_empty_answer_is_taken_when_nobody_else_answers() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    machine.receive(StreamEnded("server", "stop"), now=0.1)
    assert FinishDelivery() not in machine.take_commands()
    machine.receive(StreamFailed("device", EndpointConnectError("gone")), now=0.2)
    assert machine.take_commands()[-1] == FinishDelivery()
    assert machine.winner == "server"
    assert machine.finish_reason == "stop"


def test_an_empty_answer_loses_against_one_with_content() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    machine.receive(StreamEnded("server", "stop"), now=0.1)
    machine.receive(tokens("device", "Hi"), now=0.2)
    machine.receive(StreamEnded("device", "stop"), now=0.3)
    assert machine.winner == "device"
    assert machine.take_commands()[-1] == FinishDelivery()


def test_the_answer_is_finished_when_the_paced_buffer_is_empty_not_when_the_endpoint_ends() -> None:
    machine = make(("server", 0.0), pace=10.0)
    machine.start(now=0.0)
    machine.receive(tokens("server", "a", "b", "c"), now=0.0)
    machine.receive(StreamEnded("server", "stop", CompletionUsage(1, 3, 4)), now=0.0)
    machine.take_commands()
    for expected in (0.1, 0.2):
        deadline = machine.next_deadline()
        assert deadline == pytest.approx(expected)
        machine.handle_deadline(now=deadline or 0.0)
    assert kinds(machine.take_commands()) == ["DeliverTokens", "DeliverTokens", "FinishDelivery"]
    assert machine.is_over
    assert machine.attempts["server"].usage == CompletionUsage(1, 3, 4)


@pytest.mark.parametrize("pace", [None, 5.0, "smooth"])
def test_a_reader_that_leaves_stops_everything(pace: ReaderPace) -> None:
    machine = make(("server", 0.0), ("device", 0.0), ("spare", None), pace=pace)
    machine.start(now=0.0)
    machine.receive(tokens("server", "a", "b"), now=0.1)
    machine.receive(StreamCancelled("device"), now=0.2)
    machine.take_commands()
    machine.receive(ReaderLeft(), now=0.3)
    assert machine.take_commands() == [CancelStream("server", "reader left")]
    assert machine.next_deadline() is None
    assert not machine.is_over
    machine.receive(tokens("server", "c"), now=0.31)
    machine.receive(StreamCancelled("server"), now=0.32)
    assert machine.take_commands() == []
    assert machine.is_over


def test_is_direct_only_once_the_winner_is_alone_and_nothing_is_timed() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    assert not machine.is_direct
    machine.receive(tokens("server", "a"), now=0.1)
    assert not machine.is_direct
    machine.receive(StreamCancelled("device"), now=0.2)
    assert machine.is_direct


def test_events_after_the_end_change_nothing() -> None:
    machine = make(("server", 0.0))
    machine.start(now=0.0)
    machine.receive(tokens("server", "a"), now=0.1)
    machine.receive(StreamEnded("server", "stop"), now=0.2)
    machine.take_commands()
    machine.receive(StreamFailed("server", EndpointConnectError("late")), now=0.3)
    machine.receive(StreamCancelled("server"), now=0.3)
    machine.handle_deadline(now=1.0)
    assert machine.take_commands() == []
    assert state(machine, "server") is AttemptState.ENDED


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_the_reader_gets_one_endpoints_text_in_order_and_one_end(seed: int) -> None:
    rng = random.Random(seed)
    names = ["server", "device", "spare"]
    waits = [0.0, rng.choice([0.0, 0.5, None]), rng.choice([None, 0.2])]
    machine = make(*zip(names, waits, strict=True), pace=rng.choice([None, 3.0, "smooth"]), explore=rng.random() < 0.3)
    said = dict.fromkeys(names, "")
    live: set[str] = set()
    log: list[Command] = []
    now = 0.0
    machine.start(now=now)
    for _ in range(400):
        commands = machine.take_commands()
        log += commands
        for command in commands:
            if isinstance(command, OpenStream):
                live.add(command.source)
            elif isinstance(command, CancelStream):
                live.discard(command.source)
                machine.receive(StreamCancelled(command.source), now=now)
        if machine.is_over:
            break
        deadline = machine.next_deadline()
        if deadline is not None and (not live or rng.random() < 0.4):
            now = max(now, deadline)
            machine.handle_deadline(now=now)
            continue
        now += rng.random() * 0.2
        source = rng.choice(sorted(live))
        roll = rng.random()
        if roll < 0.75:
            piece = rng.choice(["a ", "b ", "c ", ""])
            said[source] += piece
            machine.receive(tokens(source, piece), now=now)
        else:
            live.discard(source)
            machine.receive(StreamEnded(source, "stop") if roll < 0.88 else StreamFailed(source, EndpointConnectError("cut")), now=now)
    log += machine.take_commands()
    ends = [command for command in log if isinstance(command, FinishDelivery | FailDelivery)]
    assert len(ends) == 1, f"seed {seed}: {log}"
    assert log.index(ends[0]) == max(i for i, c in enumerate(log) if not isinstance(c, CancelStream)), f"seed {seed}: news after the end"
    if machine.winner is not None:
        assert text_of(log) == said[machine.winner], f"seed {seed}"


@pytest.mark.parametrize("seed", range(100))
def test_the_short_way_does_what_receive_would_have_commanded(seed: int) -> None:
    rng = random.Random(seed)
    machines = [make(("server", 0.0), ("device", 0.0), pace=rng.choice([None, None, 5.0, "smooth"])) for _ in range(2)]
    machines[1] = RaceMachine(machines[0].plan)
    for machine in machines:
        machine.start(now=0.0)
    delivered: list[str] = ["", ""]
    for step in range(40):
        now = step * 0.1
        roll = rng.random()
        if roll < 0.8:
            event = tokens(rng.choice(["server", "server", "device"]), rng.choice(["a", "b", ""]))
            machines[0].receive(event, now=now)
            if machines[1].pass_on(event, now=now):
                delivered[1] += "".join(chunk.choices[0].delta.content or "" for chunk in event.chunks)
            else:
                machines[1].receive(event, now=now)
        else:
            ending: Event = StreamEnded("server", "stop") if rng.random() < 0.3 else StreamCancelled("device")
            for machine in machines:
                machine.receive(ending, now=now)
        for index, machine in enumerate(machines):
            delivered[index] += text_of(machine.take_commands())
        assert delivered[0] == delivered[1], f"seed {seed}"
        assert machines[0].next_deadline() == machines[1].next_deadline()
        assert machines[0].meter.quality() == machines[1].meter.quality()
        assert {name: (attempt.state, attempt.tokens) for name, attempt in machines[0].attempts.items()} == {
            name: (attempt.state, attempt.tokens) for name, attempt in machines[1].attempts.items()
        }


def test_tokens_that_come_when_nobody_takes_them_any_more_are_counted_apart() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.start(now=0.0)
    machine.receive(tokens("server", "a"), now=0.1)
    machine.receive(tokens("device", "x", "y"), now=0.2)  # lost, and on their way when the cancel was
    machine.receive(tokens("server", "b"), now=0.3)
    machine.receive(ReaderLeft(), now=0.4)
    machine.receive(tokens("server", "c"), now=0.5)
    assert [(attempt.tokens, attempt.late) for attempt in machine.attempts.values()] == [(3, 1), (2, 2)]
    assert machine.meter.tokens == 2
