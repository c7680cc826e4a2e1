"""An answer whose endpoint fails in the middle goes on at another: the race machine, called directly with now=."""

from __future__ import annotations

import random

import pytest

from streamco.config import ReaderPace
from streamco.core.race.attempt import AttemptPlan, AttemptState
from streamco.core.race.commands import CancelStream, Command, ContinueStream, DeliverTokens, FailDelivery, FinishDelivery, OpenStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EndpointTimeoutError
from streamco.events import AbilitiesFound, Partial, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.testing.endpoint import text_chunk

CUT = EndpointConnectError("cut", endpoint="server", partial="ab")


def make(*attempts: AttemptPlan, pace: ReaderPace = None, max_tokens: int | None = None) -> RaceMachine:
    attempts = attempts or (
        AttemptPlan("server", 0.0, continues=True, vocabulary="v"),
        AttemptPlan("device", None, continues=True, vocabulary="v"),
    )
    return RaceMachine(RacePlan(attempts=attempts, pace=pace, on_failure="migrate", max_tokens=max_tokens))


def tokens(source: str, *pieces: str, first: int = 0) -> TokensReceived:
    return TokensReceived(source, [text_chunk(text, ids=[first + index]) for index, text in enumerate(pieces)], len(pieces))


def text_of(commands: list[Command]) -> str:
    chunks = [chunk for command in commands if isinstance(command, DeliverTokens) for chunk in command.chunks]
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def begun(machine: RaceMachine) -> RaceMachine:
    machine.start(now=0.0)
    machine.receive(tokens("server", "a", "b"), now=0.1)
    return machine


def test_the_other_endpoint_goes_on_from_the_last_good_token() -> None:
    machine = begun(make())
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [ContinueStream("device", Partial(text="ab", ids=(0, 1), vocabulary="v", tokens=2, is_counted=True))]
    machine.receive(tokens("device", "c"), now=0.5)
    machine.receive(StreamEnded("device", "stop"), now=0.6)
    commands = machine.take_commands()
    assert text_of(commands) == "c"
    assert commands[-1] == FinishDelivery()
    (hand_over,) = machine.hand_overs
    assert (hand_over.source, hand_over.target, hand_over.position, hand_over.reason) == ("server", "device", 2, "EndpointConnectError")
    assert machine.is_over


def test_nobody_is_asked_who_cannot_continue() -> None:
    machine = begun(make(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", None, continues=False)))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [FailDelivery(CUT)]


# An endpoint of which it is being found out whether it can continue


def unsure(wait: float | None = None) -> AttemptPlan:
    return AttemptPlan("device", wait, is_unknown=True)


def test_a_hand_over_waits_until_it_is_known_who_can_continue() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure()))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == []
    assert machine.next_deadline() == 1.2
    machine.receive(AbilitiesFound("device", continues=True, vocabulary="v"), now=0.5)
    assert machine.take_commands() == [ContinueStream("device", Partial(text="ab", tokens=2, is_counted=True))]
    assert machine.next_deadline() is None
    machine.receive(tokens("device", "c"), now=0.6)
    machine.receive(StreamEnded("device", "stop"), now=0.7)
    assert machine.take_commands()[-1] == FinishDelivery()


def test_an_endpoint_that_turns_out_to_be_unable_ends_the_wait() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure()))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.receive(AbilitiesFound("device", continues=False, vocabulary=None), now=0.5)
    assert machine.take_commands() == [FailDelivery(CUT)]


def test_the_wait_ends_after_a_second() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure()))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.handle_deadline(now=1.1)
    assert machine.take_commands() == []
    machine.handle_deadline(now=1.2)
    assert machine.take_commands() == [FailDelivery(CUT)]
    machine.receive(AbilitiesFound("device", continues=True, vocabulary=None), now=1.3)
    assert machine.take_commands() == [], "too late"


def test_the_wait_for_several_endpoints_is_one_second() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure(), AttemptPlan("third", None, is_unknown=True)))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.receive(AbilitiesFound("device", continues=False, vocabulary=None), now=0.9)
    assert (machine.take_commands(), machine.next_deadline()) == ([], 1.2)
    machine.receive(AbilitiesFound("third", continues=True, vocabulary=None), now=1.0)
    assert isinstance(machine.take_commands()[0], ContinueStream)


def test_an_endpoint_that_can_continue_for_sure_is_not_kept_waiting() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure(), AttemptPlan("third", None, continues=True)))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [ContinueStream("third", Partial(text="ab", tokens=2, is_counted=True))]


def test_what_is_held_for_the_pace_goes_on_during_the_wait() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure(), pace=1.0))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.next_deadline() == pytest.approx(1.1)
    machine.handle_deadline(now=1.1)
    assert text_of(machine.take_commands()) == "b"
    machine.handle_deadline(now=1.2)
    assert machine.take_commands() == [FailDelivery(CUT)]


def test_a_reader_that_leaves_during_the_wait_ends_it() -> None:
    machine = begun(make(AttemptPlan("server", 0.0), unsure()))
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.receive(ReaderLeft(), now=0.3)
    machine.receive(AbilitiesFound("device", continues=True, vocabulary=None), now=0.4)
    assert not [each for each in machine.take_commands() if isinstance(each, ContinueStream)]
    assert machine.is_over


def test_abilities_that_are_known_in_time_count_for_the_hand_over() -> None:
    machine = begun(make(AttemptPlan("server", 0.0, continues=True, vocabulary="v"), unsure()))
    machine.receive(AbilitiesFound("device", continues=True, vocabulary="v"), now=0.15)
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [ContinueStream("device", Partial(text="ab", ids=(0, 1), vocabulary="v", tokens=2, is_counted=True))]


def test_without_migration_the_error_is_raised() -> None:
    plan = RacePlan(attempts=(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", None, continues=True)), on_failure="raise")
    machine = begun(RaceMachine(plan))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [FailDelivery(CUT)]


def test_a_loser_that_is_being_cancelled_goes_on_once_it_is_free() -> None:
    machine = make(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", 0.0, continues=True))
    begun(machine)
    assert CancelStream("device", "lost") in machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == []
    machine.receive(StreamCancelled("device"), now=0.3)
    assert machine.take_commands() == [ContinueStream("device", Partial(text="ab", tokens=2, is_counted=True))]


def test_an_exploring_loser_is_cancelled_first() -> None:
    plan = RacePlan(
        attempts=(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", 0.0, continues=True)),
        explore=True,
        on_failure="migrate",
    )
    machine = begun(RaceMachine(plan))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [CancelStream("device", "takes over")]
    machine.receive(tokens("device", "late"), now=0.25)
    assert text_of(machine.take_commands()) == ""
    machine.receive(StreamCancelled("device"), now=0.3)
    assert machine.take_commands() == [ContinueStream("device", Partial(text="ab", tokens=2, is_counted=True))]


def test_when_the_heir_fails_too_the_next_one_goes_on_and_at_last_one_error_holds_all() -> None:
    machine = begun(make(*(AttemptPlan(name, wait, continues=True) for name, wait in (("server", 0.0), ("device", None), ("spare", None)))))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.receive(tokens("device", "c"), now=0.3)
    machine.take_commands()
    stalled = EndpointTimeoutError("stalled", phase="next_token", limit=1.0, endpoint="device")
    machine.receive(StreamFailed("device", stalled), now=0.4)
    assert machine.take_commands() == [ContinueStream("spare", Partial(text="abc", tokens=3, is_counted=True))]
    refused = EndpointConnectError("refused", endpoint="spare")
    machine.receive(StreamFailed("spare", refused), now=0.5)
    (failed,) = machine.take_commands()
    assert isinstance(failed, FailDelivery)
    assert isinstance(failed.error, AllEndpointsFailed)
    assert failed.error.errors == {"server": CUT, "device": stalled, "spare": refused}
    assert failed.error.partial == "abc"


def test_what_is_held_for_the_pace_is_handed_over_and_still_delivered_in_order() -> None:
    machine = begun(make(pace=1.0))
    machine.receive(StreamFailed("server", CUT), now=0.2)
    commands: list[Command] = machine.take_commands()
    assert commands[-1] == ContinueStream("device", Partial(text="ab", ids=(0, 1), vocabulary="v", tokens=2, is_counted=True))
    machine.receive(tokens("device", "c"), now=0.9)
    machine.receive(StreamEnded("device", "stop"), now=0.9)
    while (deadline := machine.next_deadline()) is not None:
        machine.handle_deadline(now=deadline)
    commands += machine.take_commands()
    assert text_of(commands) == "abc"
    assert isinstance(commands.pop(), FinishDelivery)


def test_an_answer_at_its_limit_is_finished_not_handed_over() -> None:
    machine = begun(make(max_tokens=2))
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    assert machine.take_commands() == [FinishDelivery()]
    assert machine.finish_reason == "length"


def test_an_estimate_of_the_limit_finishes_no_answer() -> None:
    machine = make(max_tokens=2)
    machine.start(now=0.0)
    machine.receive(TokensReceived("server", [text_chunk("ab ab ab ab")], 3), now=0.1)
    machine.take_commands()
    machine.receive(StreamFailed("server", CUT), now=0.2)
    (command,) = machine.take_commands()
    assert command == ContinueStream("device", Partial(text="ab ab ab ab", tokens=3))


def test_a_reader_that_leaves_while_the_heir_is_being_cancelled_ends_everything() -> None:
    machine = begun(make(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", 0.0, continues=True)))
    machine.receive(StreamFailed("server", CUT), now=0.2)
    machine.take_commands()
    machine.receive(ReaderLeft(), now=0.25)
    machine.receive(StreamCancelled("device"), now=0.3)
    assert machine.take_commands() == []
    assert machine.is_over


@pytest.mark.parametrize("seed", range(300))
def test_hand_overs_at_random_points_lose_and_repeat_nothing(seed: int) -> None:
    """Every endpoint would write the same words; each is cut at a random point; the next one begins where the last one stopped."""
    rng = random.Random(seed)
    words = [f"w{index} " for index in range(rng.randrange(3, 40))]
    names = [f"e{index}" for index in range(rng.randrange(2, 6))]
    attempts = [AttemptPlan(name, 0.0 if not index else None, continues=True, vocabulary="v") for index, name in enumerate(names)]
    machine = make(*attempts, pace=rng.choice([None, 3.0, "smooth"]))
    now = 0.0
    log: list[Command] = []
    at: dict[str, int] = {}
    failed = 0
    machine.start(now=now)
    while not machine.is_over:
        for command in machine.take_commands():
            log.append(command)
            if isinstance(command, OpenStream):
                at[command.source] = 0
            elif isinstance(command, ContinueStream):
                assert command.partial.text == "".join(words[: command.partial.tokens]), f"seed {seed}"
                assert command.partial.ids == tuple(range(command.partial.tokens)), f"seed {seed}"
                at[command.source] = command.partial.tokens
        live = [name for name, attempt in machine.attempts.items() if attempt.state in {AttemptState.OPEN, AttemptState.WON}]
        deadline = machine.next_deadline()
        if not live or (deadline is not None and rng.random() < 0.3):
            if deadline is None:
                break
            now = max(now, deadline)
            machine.handle_deadline(now=now)
            continue
        (name,) = live
        now += rng.random()
        if at[name] == len(words):
            machine.receive(StreamEnded(name, "stop"), now=now)
        elif at[name] and failed < len(names) - 1 and rng.random() < 0.2:
            failed += 1
            machine.receive(StreamFailed(name, EndpointConnectError("cut", endpoint=name)), now=now)
        else:
            size = rng.randrange(1, 4)
            piece = words[at[name] : at[name] + size]
            machine.receive(tokens(name, *piece, first=at[name]), now=now)
            at[name] += len(piece)
    log += machine.take_commands()
    assert text_of(log) == "".join(words), f"seed {seed}"
    assert [command for command in log if isinstance(command, FinishDelivery | FailDelivery)] == [FinishDelivery()], f"seed {seed}"
