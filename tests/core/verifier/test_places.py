"""Who gets the places of a full cache: greedy devices keep out nobody, and a device with one session keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamco.core.verifier.events import (
    AcceptSession,
    BatchFinished,
    DraftReceived,
    DraftVerdict,
    DropSequence,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionExtended,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import LinearStep
from tests.support.simulated_verifier import SequenceCache

STEP = LinearStep(setup=0.02, per_token=0.0005)
PLACES = 4


class World:
    """A scheduler, its engine's cache, and devices that do what they are told."""

    def __init__(self, **options: Any) -> None:
        limits = {"kv_tokens": PLACES * 200, "places": PLACES, "context_tokens": 200, "sessions_per_device": 30, **options}
        self.scheduler = VerificationScheduler(SchedulerOptions(**limits), STEP)
        self.cache = SequenceCache()
        self.now, self.batches = 0.0, 0
        self.running: RunBatch | None = None
        self.sessions: dict[str, list[str]] = {}  # by device
        self.rounds: dict[str, int] = {}

    def tell(self, event: SchedulerEvent) -> list[SchedulerCommand]:
        self.scheduler.receive(event, now=self.now)
        commands = self.scheduler.take_commands()
        for command in commands:
            match command:
                case RunBatch():
                    assert self.running is None
                    self.running = command
                    for part in command.parts:
                        self.cache.read(part)
                    assert len(self.cache.ids) <= PLACES
                case TruncateSequence(session, length):
                    self.cache.truncate(session, length)
                case DropSequence(session):
                    self.cache.drop(session)
                case ForgetSession(session):
                    self.sessions[session.split("-")[0]].remove(session)
        return commands

    def places(self, device: str) -> int:
        return sum(session.split("-")[0] == device for session in self.cache.ids)

    def open(self, device: str, tokens: int = 10) -> float | None:
        """Ask for a session; the wait if it is refused."""
        name = f"{device}-{len(self.rounds)}"
        self.rounds[name] = 0
        commands = self.tell(SessionOpened(name, device, tuple(range(tokens))))
        if AcceptSession(name) in commands:
            self.sessions.setdefault(device, []).append(name)
            return None
        return next(each.retry_after or 0.0 for each in commands if isinstance(each, RefuseSession))

    def extend(self, session: str) -> None:
        text = self.scheduler.text(session)
        if text is not None:
            self.tell(SessionExtended(session, len(text), (7,)))

    def draft(self, session: str, *, follows: bool = False) -> list[SchedulerCommand]:
        text = self.scheduler.text(session)
        if text is None:
            return []
        self.rounds[session] += 1
        draft = DraftReceived(session=session, round=self.rounds[session], base=len(text), given=(), draft=(1, 2, 3), follows=follows)
        return self.tell(draft)

    def finish(self) -> list[SchedulerCommand]:
        """The running batch ends after the time it takes."""
        running, self.running = self.running, None
        assert running is not None
        seconds = STEP(sum(len(part.ids) for part in running.parts), 0)
        self.now, self.batches = self.now + seconds, self.batches + 1
        verdicts = tuple(DraftVerdict(part.session, 0, 9) for part in running.parts if part.verify_rows)
        return self.tell(BatchFinished(running.number, verdicts, seconds))

    def settle(self) -> list[SchedulerCommand]:
        """Batches until there is nothing to do."""
        said: list[SchedulerCommand] = []
        while self.running is not None:
            said += self.finish()
        return said


def greedy_turn(world: World, device: str, what: int) -> None:
    """One thing that a greedy device does: ask for more, or keep what it has busy."""
    match what:
        case 0:
            world.open(device)
        case 1:
            for session in list(world.sessions.get(device, ())):
                world.extend(session)
        case 2:
            for session in list(world.sessions.get(device, ())):
                world.draft(session)
        case 3:
            for session in list(world.sessions.get(device, ())):
                world.draft(session, follows=True)


@given(
    st.integers(1, PLACES - 1),
    st.lists(st.tuples(st.integers(0, PLACES - 2), st.integers(0, 4)), max_size=80),
    st.lists(st.tuples(st.integers(0, PLACES - 2), st.integers(0, 4)), min_size=10, max_size=60),
)
def test_a_device_without_a_session_has_its_first_soon_whatever_greedy_ones_do(
    count: int, before: list[tuple[int, int]], beside: list[tuple[int, int]]
) -> None:
    world = World()
    for _ in range(PLACES):
        for number in range(count):
            world.open(f"greedy{number}")

    def carry_on(step: tuple[int, int]) -> None:
        number, what = step
        if what == 4 and world.running is not None:
            world.finish()
        else:
            greedy_turn(world, f"greedy{number % count}", what)

    for step in before:
        carry_on(step)
    began, batches, again = world.now, world.batches, 0
    wait = world.open("new")
    while wait is not None:
        assert world.batches - batches < 12
        until = world.now + wait
        for _ in range(3):
            carry_on(beside[again % len(beside)])
            again += 1
        while world.running is not None and world.now < until:
            world.finish()
        world.now = max(world.now, until)
        wait = world.open("new")
    assert world.now - began < 2.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=60))
@example([("b", 4), ("c", 4), ("a", 0)])
def test_while_a_device_without_a_place_waits_no_other_one_gets_the_last(steps: list[tuple[str, int]]) -> None:
    world = World(idle_after=1000.0)
    for device in "abcd":
        world.open(device)
    world.settle()
    assert world.open("new") is not None, "each has one: nobody holds more than it would"
    for device, what in steps:
        if what == 4 and world.running is not None:
            world.finish()
        elif what == 4 and world.sessions.get(device):
            world.tell(SessionClosed(world.sessions[device].pop()))
        else:
            greedy_turn(world, device, what)
        held = [world.places(device) for device in "abcd"]
        assert max(held) <= 1 or sum(held) < PLACES, "a second place only while one is left for the new device"
    assert world.open("new") is None or all(world.places(device) == 1 for device in "abcd")


def test_the_place_that_a_batch_kept_is_made_when_the_batch_ends_and_left_to_the_one_that_waits() -> None:
    world = World()
    for _ in range(PLACES):
        world.open("greedy")
    world.settle()
    for session in world.sessions["greedy"]:
        world.draft(session)
        world.draft(session, follows=True)
    world.finish()  # of the first one alone
    world.draft(world.sessions["greedy"][0], follows=True)
    assert world.running is not None
    assert len(world.running.parts) == PLACES, "all places are in the batch"
    wait = world.open("new")
    assert wait is not None
    assert wait < 0.2, "until the end of the batch"
    refused = [command for command in world.finish() if isinstance(command, RefuseDraft)]
    assert [each.reason for each in refused] == ["overloaded"]
    assert refused[0].retry_after is not None
    assert world.places("greedy") == PLACES - 1
    again = world.draft(refused[0].session)
    assert [each.reason for each in again if isinstance(each, RefuseDraft)] == ["overloaded"], "it had its turn"
    assert world.open("greedy") is not None
    assert world.open("new") is None


def test_a_session_that_lost_its_place_waits_in_turn_too() -> None:
    world = World(idle_after=1.0)
    for device in "abcd":
        world.open(device)
    world.settle()
    world.now = 2.0
    assert world.open("e") is None, "a's was silent for long"
    assert world.open("f") is None
    world.settle()
    for device in "cdef":
        world.draft(world.sessions[device][0])
    world.settle()
    for device in "ab":
        assert any(isinstance(each, RefuseDraft) for each in world.draft(world.sessions[device][0]))
    world.tell(SessionClosed(world.sessions["c"].pop()))
    assert any(isinstance(each, RefuseDraft) for each in world.draft(world.sessions["b"][0])), "a asked first"
    world.draft(world.sessions["a"][0])
    assert any(isinstance(each, SendVerdict) for each in world.settle())


def test_an_answer_in_progress_may_grow_though_others_wait_for_their_first_place() -> None:
    world = World(kv_tokens=300, context_tokens=200, idle_after=1000.0)
    world.open("one", 150)
    world.open("two", 130)
    world.settle()
    assert world.open("new", 40) is not None
    for _ in range(3):
        for device in ("one", "two"):
            assert not any(isinstance(each, RefuseDraft) for each in world.draft(world.sessions[device][0]))
        world.settle()


def test_a_device_with_several_sessions_may_not_grow_into_the_tokens_that_another_waits_for() -> None:
    world = World(kv_tokens=300, context_tokens=250, idle_after=1000.0)
    for _ in range(2):
        world.open("greedy", 145)
    world.settle()
    for session in world.sessions["greedy"]:
        world.draft(session)
    assert world.open("new", 100) is not None
    world.finish()
    assert world.places("greedy") == 1
    for _ in range(20):
        world.extend(world.sessions["greedy"][0])
        world.extend(world.sessions["greedy"][1])
    assert world.open("new", 100) is None


@pytest.mark.parametrize(("holders", "is_taken"), [(1, True), (2, True), (6, False)])
def test_a_device_without_a_session_is_remembered_before_the_many_of_another(holders: int, is_taken: bool) -> None:
    world = World(sessions=6, idle_after=0.0)
    for number in range(6):
        world.open(f"holder{number % holders}")
        world.settle()
    assert (world.open("new") is None) is is_taken
    assert sum(map(len, world.sessions.values())) == 6
    if is_taken:
        assert len(world.sessions["holder0"]) < 6 // holders
        assert world.open("holder1") is not None if holders == 2 else True


@pytest.mark.parametrize(("tokens", "is_taken"), [(180, False), (140, True)])
def test_a_session_is_forgotten_only_for_one_that_is_taken(tokens: int, is_taken: bool) -> None:
    world = World(kv_tokens=300, context_tokens=250, sessions=2, idle_after=1000.0)
    for _ in range(2):
        world.open("greedy", 145)
        world.settle()
    resting, busy = world.sessions["greedy"]
    world.draft(busy)
    assert (world.open("new", tokens) is None) is is_taken
    assert world.sessions["greedy"] == ([busy] if is_taken else [resting, busy])


def test_a_session_that_is_not_in_use_is_forgotten_before_one_of_a_device_with_more() -> None:
    world = World(sessions=5, idle_after=5.0)
    for device, count in {"idle": 2, "busy": 3}.items():
        world.now += 10.0
        for _ in range(count):
            world.open(device)
            world.settle()
    assert world.open("new") is None
    assert {device: len(names) for device, names in world.sessions.items()} == {"idle": 1, "busy": 3, "new": 1}
