"""One scheduler, two drivers: the server's host, with the protocol's two ends and an engine before it, and SimPy command the same.

Times are multiples of a power of two, so that neither clock rounds, and drawn so finely that no two things happen at once, where the order
would be the clock's affair. What an engine finds in its memory of what another session has read is told to neither scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol

import pytest
import simpy
from msgspec.structs import replace

from streamco.core.verifier.events import (
    AcceptSession,
    BatchFinished,
    DraftReceived,
    DraftVerdict,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionOpened,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.acceptance import Rule
from streamco.policies.serving.batching import Alternating, BatchPolicy, FirstCome, StrictPrefill
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.sessions import SessionManager
from streamco.sim.driver import call_at
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.testing.virtual_clock import run_in_virtual_time
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import Hello, Opened, Refusal, VerdictFrame, Welcome
from streamco.wire.verify.server import VerifyServer
from tests.support.simulated_verifier import SimulatedVerifier

SIZE = 4096
VOCABULARY = FakeVocabulary("contract", SIZE)
TICK = 2.0**-30  # seconds
LONGEST = 40.0  # seconds that devices talk
CONTEXT = 256

Log = list[tuple[float, SchedulerEvent | None, list[SchedulerCommand]]]
Said = AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession


def seconds(dice: Random, least: float, most: float) -> float:
    return round(dice.uniform(least, most) / TICK) * TICK


def follow(ids: Sequence[int]) -> int:
    """The target's next token."""
    return (31 * sum(ids[-3:]) + 17 * len(ids)) % (SIZE - 1)


class Logged(VerificationScheduler):
    """Writes down what it is told and says."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.options, scenario.step, scenario.policy)
        self.log: Log = []
        self.batch: RunBatch | None = None  # the last
        self._event: SchedulerEvent | None = None
        self._now = 0.0

    def start(self, *, now: float) -> None:
        super().start(now=now)
        self._event, self._now = None, now

    def receive(self, event: SchedulerEvent, *, now: float) -> None:
        event = replace(event, found=0) if isinstance(event, BatchFinished) else event
        self._event, self._now = event, now
        super().receive(event, now=now)

    def handle_deadline(self, *, now: float) -> None:
        self._event, self._now = None, now
        super().handle_deadline(now=now)

    def take_commands(self) -> list[SchedulerCommand]:
        commands = super().take_commands()
        if commands or self._event is not None:
            self.log.append((self._now, self._event, commands))
        self._event = None
        for command in commands:
            if isinstance(command, RunBatch):
                self.batch = command
        return commands


class Scenario:
    """A server that bears much or little, and devices that ask, wait, fall silent, leave, and come again."""

    def __init__(self, seed: int) -> None:
        dice = Random(seed)
        self.seed = seed
        self.devices = dice.choice([1, 3, 8])
        places = dice.choice([2, 4, 16])
        self.options = SchedulerOptions(
            kv_tokens=dice.choice([CONTEXT, 3 * CONTEXT, 16 * CONTEXT]),
            places=places,
            context_tokens=CONTEXT,
            sessions=dice.choice([3, 64]),
            sessions_per_device=dice.choice([1, 2]),
            idle_after=dice.choice([0.125, 4.0]),
            forget_after=dice.choice([1.0, 8.0]),
            prefill_within=dice.choice([0.25, 10.0]),
            late_stretch=dice.choice([1.25, 4.0]),
            late_grace=0.03125,
            draft_stretch=dice.choice([4.0, 16.0]),
        )
        policies: list[BatchPolicy] = [Alternating(batch_tokens=64), StrictPrefill(batch_tokens=128), FirstCome(batch_tokens=64)]
        self.policy = dice.choice(policies)
        self._setup, self._each = seconds(dice, 0.01, 0.08), seconds(dice, 0.0001, 0.004)

    def step(self, tokens: int, context: int) -> float:
        return self._setup + self._each * tokens

    def live(self) -> Log:
        return run_in_virtual_time(self._serve())

    async def _serve(self) -> Log:
        world = LiveWorld(self)
        await asyncio.sleep(2 * LONGEST)
        world.close()
        return world.scheduler.log

    def simulated(self) -> Log:
        world = SimulatedWorld(self)
        world.env.run(2 * LONGEST)
        return world.scheduler.log


class World(Protocol):
    """What a device needs of either world."""

    @property
    def now(self) -> float: ...
    def after(self, delay: float, function: Callable[[], None]) -> None: ...
    def open(self, device: Device, ids: tuple[int, ...]) -> Any: ...
    def draft(self, device: Device, session: Any, base: int, given: tuple[int, ...], draft: tuple[int, ...]) -> None: ...
    def close_session(self, device: Device, session: Any) -> None: ...


class Device:
    """Opens sessions and asks for verdicts; ids are of one session each."""

    def __init__(self, world: World, scenario: Scenario, number: int) -> None:
        self.number = number
        self.delay = seconds(Random(f"{scenario.seed} delay {number}"), 0.001, 0.06)
        self._world = world
        self._dice = Random(f"{scenario.seed} {number}")
        self._opened = 0
        self._session: Any = None
        self._text: list[int] = []
        self._out: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
        world.after(seconds(self._dice, 0.0, 2.0), self._open)

    def _open(self) -> None:
        if self._world.now > LONGEST:
            return
        self._opened += 1
        start = (self._opened * 37 + self.number * 501) % SIZE
        self._text = [(start + place * place) % (SIZE - 1) for place in range(self._dice.choice([1, 7, 40, 150]))]
        self._session = self._world.open(self, tuple(self._text))
        if self._dice.random() < 0.5:
            self._draft()  # its answer isn't waited for
        else:
            self._out = None

    def _draft(self) -> None:
        session, text = self._session, self._text
        if session is None or self._world.now > LONGEST:
            return
        if len(text) > CONTEXT - 20 or self._dice.random() < 0.08:
            self._world.close_session(self, session)
            self._session = None
            self._world.after(seconds(self._dice, 0.0, 3.0), self._open)
            return
        base = len(text) - self._dice.choice([0, 0, 0, min(3, len(text) - 1)])
        given = [self._dice.randrange(SIZE) for _ in range(self._dice.choice([0, 0, 2, 9]))]
        draft: list[int] = []
        for _ in range(self._dice.randrange(6)):
            right = follow([*text[:base], *given, *draft])
            draft.append(right if self._dice.random() < 0.8 else (right + 1) % SIZE)
        self._out = base, tuple(given), tuple(draft)
        self._world.draft(self, session, *self._out)

    def _soon(self) -> None:
        silence = 10.0 if self._dice.random() < 0.05 else 0.3
        session = self._session
        self._world.after(seconds(self._dice, 0.001, silence), lambda: self._draft() if session is self._session else None)

    # What it is told

    def opened(self, session: Any) -> None:
        if session == self._session and self._out is None:
            self._soon()

    def judged(self, session: Any, accepted: int, token: int | None) -> None:
        if session != self._session:
            return
        assert self._out is not None
        base, given, draft = self._out
        self._text = [*self._text[:base], *given, *draft[:accepted], *(() if token is None else (token,))]
        self._soon()

    def refused(self, session: Any) -> None:
        """Its draft."""
        if session == self._session:
            self._soon()

    def lost(self, session: Any) -> None:
        """The session, or it was never opened."""
        if session == self._session:
            self._session = None
            self._world.after(seconds(self._dice, 0.1, 2.0), self._open)


class TimedEngine(FakeEngine):
    """Does what it is asked together when ``wait`` says that it took so long."""

    def __init__(self, wait: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(
            vocabulary=VOCABULARY, successor=lambda ids: {follow(ids): 1.0}, mode="manual", held_sequences=64, context_tokens=CONTEXT
        )
        self._wait = wait

    @contextmanager
    def together(self) -> Any:
        with super().together():
            yield
        self._wait(self.step)


class Line:
    """A device's connection: the protocol's two ends, half a round trip apart."""

    def __init__(self, world: LiveWorld, device: Device) -> None:
        self.device = f"device{device.number}"
        self.peer = "there"
        self.owner: str | None = None
        self.server = VerifyServer(VerifyCodec(SIZE), VOCABULARY.fingerprint)
        self.client = VerifyClient(VerifyCodec(SIZE), VOCABULARY.fingerprint)
        self._world = world
        self._owner = device
        self._up: deque[list[bytes]] = deque()
        self._down: deque[list[bytes]] = deque()
        assert isinstance(self.server.receive(self.client.take_messages()[0]), Hello)
        self.server.welcome()
        assert isinstance(self.client.receive(self.server.take_messages()[0]), Welcome)

    def say(self) -> None:
        """What the client has to say comes to the host, in order: an event loop promises none of what is due at one time."""
        self._up.append(self.client.take_messages())
        self._world.after(self._owner.delay, self._arrive)

    def _arrive(self) -> None:
        for message in self._up.popleft():
            frame = self.server.receive(message)
            if frame is not None:
                assert not isinstance(frame, Hello)
                self._world.host.handle(self, frame)
            self.flush()

    def flush(self) -> None:
        self._down.append(self.server.take_messages())
        self._world.after(self._owner.delay, self._come_back)

    def _come_back(self) -> None:
        for message in self._down.popleft():
            self._hear(message)

    def _hear(self, message: bytes) -> None:
        device = self._owner
        match self.client.receive(message):
            case Opened(session):
                device.opened(session)
            case VerdictFrame(session, _, accepted, token):
                device.judged(session, accepted, token)
            case Refusal(session=session, round_number=None):
                device.lost(session)
            case Refusal(session=session):
                device.refused(session)


class LiveWorld:
    """A host in virtual time."""

    def __init__(self, scenario: Scenario) -> None:
        self._loop = asyncio.get_running_loop()
        self.scheduler = Logged(scenario)
        engine = TimedEngine(lambda done: self.after(self._batch_seconds(scenario), done))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamco.server.verify.sessions.make_scheduler", lambda engine, options: self.scheduler)
            self.host = SessionManager(engine, VerifyOptions())
        self._lines = {}
        for number in range(scenario.devices):
            device = Device(self, scenario, number)
            self._lines[number] = line = Line(self, device)
            self.host.join(line)

    def _batch_seconds(self, scenario: Scenario) -> float:
        batch = self.scheduler.batch
        assert batch is not None
        return scenario.step(sum(len(part.ids) for part in batch.parts), 0)

    @property
    def now(self) -> float:
        return self._loop.time()

    def after(self, delay: float, function: Callable[[], None]) -> None:
        self._loop.call_at(self._loop.time() + delay, function)

    def open(self, device: Device, ids: tuple[int, ...]) -> int:
        line = self._lines[device.number]
        number = line.client.open(ids, Rule())
        line.say()
        return number

    def draft(self, device: Device, session: int, base: int, given: tuple[int, ...], draft: tuple[int, ...]) -> None:
        line = self._lines[device.number]
        line.client.draft(session, base, (*given, *draft), given=len(given))
        line.say()

    def close_session(self, device: Device, session: int) -> None:
        line = self._lines[device.number]
        line.client.close(session)
        line.say()

    def close(self) -> None:
        self.host.close()


class Session:
    """One in the simulated world."""

    def __init__(self) -> None:
        self.name = ""
        self.rounds = 0
        self.is_over = False  # at the server, or on its way there


class SimulatedWorld:
    """A verifier in SimPy, and what the host does for it: names, and silence about sessions that are over."""

    def __init__(self, scenario: Scenario) -> None:
        self.env = simpy.Environment()
        self.scheduler = Logged(scenario)
        self._verifier = SimulatedVerifier(self.env, self.scheduler, scenario.step, judge)
        self._opened = 0
        for number in range(scenario.devices):
            Device(self, scenario, number)

    @property
    def now(self) -> float:
        return self.env.now

    def after(self, delay: float, function: Callable[[], None]) -> None:
        call_at(self.env, delay, function)

    def open(self, device: Device, ids: tuple[int, ...]) -> Session:
        session = Session()

        def hear(said: Said) -> None:
            session.is_over = session.is_over or isinstance(said, RefuseSession | ForgetSession)
            self.after(device.delay, lambda: self._tell(device, session, said))

        def arrive() -> None:
            self._opened += 1
            session.name = f"device{device.number}-{self._opened}"
            self._verifier.receive(SessionOpened(session.name, f"device{device.number}", ids), hear)

        self.after(device.delay, arrive)
        return session

    def _tell(self, device: Device, session: Session, said: Said) -> None:
        match said:
            case AcceptSession():
                device.opened(session)
            case SendVerdict(verdict=DraftVerdict(_, accepted, token)):
                device.judged(session, accepted, token)
            case RefuseDraft():
                device.refused(session)
            case RefuseSession() | ForgetSession():
                device.lost(session)

    def draft(self, device: Device, session: Session, base: int, given: tuple[int, ...], draft: tuple[int, ...]) -> None:
        def arrive() -> None:
            if not session.is_over:
                session.rounds += 1
                name, number = session.name, session.rounds
                self._verifier.receive(DraftReceived(session=name, round=number, base=base, given=given, draft=draft))

        self.after(device.delay, arrive)

    def close_session(self, device: Device, session: Session) -> None:
        def arrive() -> None:
            if not session.is_over:
                session.is_over = True
                self._verifier.receive(SessionClosed(session.name))

        self.after(device.delay, arrive)


def judge(ids: tuple[int, ...], draft: tuple[int, ...]) -> tuple[int, int]:
    accepted = 0
    while accepted < len(draft) and draft[accepted] == follow([*ids, *draft[:accepted]]):
        accepted += 1
    return accepted, follow([*ids, *draft[:accepted]])


def told(log: Log) -> list[tuple[float, SchedulerEvent | None, list[SchedulerCommand]]]:
    """Steps at which something was commanded."""
    return [entry for entry in log if entry[2]]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(40))
def test_both_drivers_tell_the_scheduler_the_same_and_it_commands_the_same(seed: int) -> None:
    scenario = Scenario(seed)
    ours, theirs = told(scenario.live()), told(scenario.simulated())
    for mine, other in zip(ours, theirs, strict=False):
        assert mine == other, f"seed {seed}"
    assert len(ours) == len(theirs), f"seed {seed}"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_recorded_live_log_replays(seed: int) -> None:
    scenario = Scenario(seed)
    scheduler = VerificationScheduler(scenario.options, scenario.step, scenario.policy)
    scheduler.start(now=0.0)
    for now, event, commands in scenario.live():
        if event is None:
            scheduler.handle_deadline(now=now)
        else:
            scheduler.receive(event, now=now)
        assert scheduler.take_commands() == commands, f"seed {seed} at {now}"


@pytest.mark.long
def test_the_scenarios_meet_everything_that_a_scheduler_says() -> None:
    logs = [Scenario(seed).simulated() for seed in range(40)]
    said = Counter(type(command).__name__ for log in logs for _, _, commands in log for command in commands)
    kinds = ("AcceptSession", "RefuseSession", "SendVerdict", "RefuseDraft", "RunBatch", "TruncateSequence", "DropSequence")
    assert all(said[kind] > 20 for kind in (*kinds, "ForgetSession")), said
