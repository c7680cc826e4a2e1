"""Who goes on with an answer, with what, and what is noted of it."""

from __future__ import annotations

import pytest

from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.handover import Handover
from streamco.core.race.migration import MigrationController, MigrationPlan, Prepare, Switch
from streamco.errors import EndpointConnectError
from streamco.events import Partial
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, ToolCallDelta
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength
from streamco.testing.endpoint import text_chunk

DEAR = Terms(prompt=1e-9, completion=1e-6, setup=0.1, rate=50.0)
CHEAP = Terms(prompt=1e-9, completion=1e-8, setup=0.1, rate=50.0)


def make_controller(*, max_migrations: int = 1, **terms: Terms) -> MigrationController:
    terms = terms or {"server": DEAR, "device": CHEAP}
    lengths = RemainingLength((400,), (0.0,))
    return MigrationController(
        MigrationPlan(terms=terms, lengths=lengths, prompt_tokens=100, reader_rate=5.0, capacity=64, max_migrations=max_migrations)
    )


def make_attempts(**states: AttemptState) -> dict[str, Attempt]:
    attempts = {}
    for name, state in states.items():
        attempt = Attempt(AttemptPlan(name, None if state is AttemptState.SPARED else 0.0, continues=True, vocabulary="v"))
        attempt.state = state
        attempts[name] = attempt
    return attempts


def begun(controller: MigrationController | None = None, *, fails_over: bool = True) -> Handover:
    handover = Handover(controller, fails_over=fails_over)
    handover.add([text_chunk("a", ids=[7]), text_chunk("b", ids=[8])], 2, "v")
    return handover


def find(handover: Handover, attempts: dict[str, Attempt]) -> str | None:
    successor = handover.find_successor(attempts)
    return None if successor is None else successor.source


def test_heirs_are_those_who_have_read_then_the_racing_then_the_stand_ins_and_at_last_those_that_failed_to_read() -> None:
    attempts = make_attempts(
        writer=AttemptState.FAILED,
        unread=AttemptState.FAILED,
        first=AttemptState.SPARED,
        second=AttemptState.SPARED,
        racing=AttemptState.CANCELLED,
        reading=AttemptState.PREPARED,
    )
    attempts["unread"].read_ahead = ReadAhead(2, 102)
    order = []
    while (name := find(begun(), attempts)) is not None:
        order.append(name)
        del attempts[name]
    assert order == ["reading", "racing", "first", "second", "unread"]


def test_nobody_who_already_took_over_does_so_again() -> None:
    attempts = make_attempts(server=AttemptState.FAILED, device=AttemptState.CANCELLED)
    attempts["device"] = attempts["device"].take_over(2, 1.0)
    attempts["device"].state = AttemptState.CANCELLED
    assert find(begun(), attempts) is None


def test_without_failover_there_are_no_heirs() -> None:
    assert find(begun(make_controller(), fails_over=False), make_attempts(device=AttemptState.PREPARED)) is None


def test_half_a_tool_call_has_no_heirs_and_no_move() -> None:
    handover = begun(make_controller())
    call = ChoiceDelta(tool_calls=[ToolCallDelta(index=0, id="1")])
    handover.add([ChatCompletionChunk(choices=[ChunkChoice(delta=call)])], 1, "v")
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED)
    assert find(handover, attempts) is None
    assert handover.consider_migration(attempts["server"], attempts, buffered=99, now=1.0) is None


@pytest.mark.parametrize(
    "choice",
    [
        ChunkChoice(delta=ChoiceDelta(reasoning_content="hm")),
        ChunkChoice(finish_reason="stop"),
        ChunkChoice(delta=ChoiceDelta(content="."), finish_reason="stop"),
        ChunkChoice(delta=ChoiceDelta(content="")),
    ],
    ids=["a thought", "the end", "the last word", "nothing"],
)
def test_a_move_is_considered_only_behind_text_that_goes_on(choice: ChunkChoice) -> None:
    handover = begun(make_controller())
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED)
    handover.add([ChatCompletionChunk(choices=[choice])], 1, "v")
    assert handover.consider_migration(attempts["server"], attempts, buffered=99, now=1.0) is None
    handover.add([text_chunk("c")], 1, "v")
    assert handover.consider_migration(attempts["server"], attempts, buffered=99, now=1.0) == Switch("device")


def test_without_a_mover_nothing_is_planned() -> None:
    handover = begun()
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED)
    assert not handover.may_migrate
    assert handover.consider_migration(attempts["server"], attempts, buffered=99, now=1.0) is None
    assert handover.unread(attempts["device"], 2) == 0
    handover.record_copied(attempts["device"], tokens=9, seconds=1.0)  # is of no use to anybody
    with pytest.raises(AssertionError, match="only a controller plans migrations"):
        handover.record_migration(attempts["server"], attempts["device"], at=1.0, buffered=3.0)


def test_what_is_handed_over_and_where_is_noted() -> None:
    handover = begun(make_controller(max_migrations=1))
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED)
    assert handover.partial() == Partial(text="ab", ids=(7, 8), vocabulary="v", tokens=2, is_counted=True)
    handover.record_migration(attempts["server"], attempts["device"], at=1.5, buffered=3.6)
    assert not handover.may_migrate  # once was all
    attempts["device"].error = EndpointConnectError("cut", endpoint="device")
    handover.add([text_chunk("c", ids=[9])], 1, "v")
    handover.record_failover(attempts["device"], attempts["server"], at=2.0, buffered=0.2)
    planned, unplanned = handover.hand_overs
    assert (planned.source, planned.target, planned.position, planned.at) == ("server", "device", 2, 1.5)
    assert (planned.reason, planned.is_planned, planned.buffered) == ("cheaper", True, 4)
    assert (unplanned.source, unplanned.target, unplanned.position, unplanned.at) == ("device", "server", 3, 2.0)
    assert (unplanned.reason, unplanned.is_planned, unplanned.buffered) == ("EndpointConnectError", False, 0)
    assert handover.partial().ids == (7, 8, 9)


def test_what_a_leg_has_read_is_not_unread() -> None:
    handover = begun(make_controller())
    attempts = make_attempts(device=AttemptState.SPARED)
    assert handover.unread(attempts["device"], 2) == 102
    attempts["device"].kept = 2
    assert handover.unread(attempts["device"], 2) == 0
    assert handover.unread(attempts["device"], 9) == 7


def test_how_long_a_reading_took_is_learned_where_nothing_was_known() -> None:
    handover = begun(make_controller(server=DEAR, device=Terms(prompt=0.0, completion=0.0, pre_copy="append")))
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED)
    assert handover.consider_migration(attempts["server"], attempts, buffered=99, now=1.0) == Prepare("device")
    device = attempts["device"] = attempts["device"].prepare(1.0, ReadAhead(2, 102))
    device.state, device.kept = AttemptState.PREPARED, 2
    handover.record_copied(device, tokens=102, seconds=0.5)
    assert handover.consider_migration(attempts["server"], attempts, buffered=1, now=1.5) is None  # 5 x (0.15 + 0.1) is two tokens
    assert handover.consider_migration(attempts["server"], attempts, buffered=2, now=1.5) == Switch("device")


def test_after_a_failure_a_move_is_looked_for_anew() -> None:
    """The answer was to move to the device; now the device writes it, and it may move on from there."""
    cheapest = Terms(prompt=0.0, completion=0.0, setup=0.1, rate=50.0)
    handover = begun(make_controller(server=DEAR, device=CHEAP, spare=cheapest))
    attempts = make_attempts(server=AttemptState.WON, device=AttemptState.SPARED, spare=AttemptState.FAILED)
    assert handover.consider_migration(attempts["server"], attempts, buffered=0, now=1.0) is None  # the buffer is empty
    handover.record_failover(attempts["server"], attempts["device"], at=1.0, buffered=0.0)
    attempts["server"].state, attempts["spare"].state = AttemptState.FAILED, AttemptState.SPARED
    device = attempts["device"] = attempts["device"].take_over(2, 1.0)
    handover.add([text_chunk("c")] * 9, 9, "v")
    assert handover.consider_migration(device, attempts, buffered=9, now=2.0) == Switch("spare")
