"""Endpoints that are numbers: what comes when, what has to be read, and what was done for nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.commands import ContinueStream, OpenStream, PrepareStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.errors import ConfigError, EndpointStatusError
from streamco.events import Event, Partial, StreamEnded, StreamFailed, StreamRetrying, TokensReceived
from streamco.policies.migration import Terms
from streamco.profiles import DeviceSpeed, RemainingLength, TTFTDistribution
from streamco.sim.race.endpoints import DevicePlaces, RequestLimit, SimulatedAnswer, SimulatedDevice, SimulatedServer
from streamco.sim.race.session import Opening, SimulatedRace

ANSWER = SimulatedAnswer(prompt_tokens=20, tokens=10)
SPEED = DeviceSpeed(seconds_per_token=0.1, overhead=0.5, decode_tokens_per_s=10.0)


def device(answer: SimulatedAnswer = ANSWER, speed: DeviceSpeed = SPEED, **settings: Any) -> SimulatedDevice:
    return SimulatedDevice("device", speed, Random(1), answer, **settings)


def server(answer: SimulatedAnswer = ANSWER, ttft: Any = (0.4, 0.9), rate: float = 20.0, **settings: Any) -> SimulatedServer:
    return SimulatedServer("server", ttft, rate, Random(1), answer, **settings)


def reading(tokens: int, source: str = "device") -> PrepareStream:
    return PrepareStream(source, Partial(text="word " * tokens, tokens=tokens))


def going_on(tokens: int, source: str = "device") -> ContinueStream:
    return ContinueStream(source, Partial(text="word " * tokens, tokens=tokens))


class World:
    """Opens an endpoint's streams one after another and notes what comes."""

    def __init__(self, source: SimulatedDevice | SimulatedServer) -> None:
        self.source = source
        self.env = simpy.Environment()
        self.events: list[tuple[float, Event]] = []
        self.released: list[float] = []

    def open(self, command: Opening, *, cancel_after: float | None = None) -> World:
        self.events.clear()
        began = self.env.now
        stream = self.source.open(self.env, lambda event: self.events.append((round(self.env.now - began, 9), event)), command)
        if cancel_after is not None:
            if began + cancel_after > began:
                self.env.run(began + cancel_after)
            stream.cancel(lambda: self.released.append(round(self.env.now - began, 9)))
        self.env.run()
        return self

    @property
    def tokens(self) -> list[tuple[Any, int]]:
        return [(at, event.tokens) for at, event in self.events if isinstance(event, TokensReceived)]

    @property
    def end(self) -> tuple[float, StreamEnded]:
        at, event = self.events[-1]
        assert isinstance(event, StreamEnded)
        return at, event


# Devices


def test_a_device_reads_its_prompt_and_then_writes_steadily() -> None:
    world = World(device()).open(OpenStream("device"))
    assert world.tokens == [(pytest.approx(2.5 + token / 10), 1) for token in range(10)]
    at, end = world.end
    assert at == pytest.approx(3.4)
    assert end.finish_reason == "stop"
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (20, 10)
    assert (world.source.work.read, world.source.work.made) == (20, 10)


def test_what_a_device_has_read_and_written_it_does_not_read_again() -> None:
    source = device()
    World(source).open(reading(4))
    assert (source.kept, source.work.read) == (24, 24)
    world = World(source).open(going_on(6))
    assert world.tokens[0] == (pytest.approx(0.7), 1)  # two tokens
    assert len(world.tokens) == 4
    assert (source.kept, source.work.read, source.work.made) == (30, 26, 4)
    usage = world.end[1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (26, 24)


def test_its_last_token_is_always_read_for_what_comes_behind_it() -> None:
    source = device()
    World(source).open(reading(4))
    assert World(source).open(going_on(4)).tokens[0] == (pytest.approx(0.6), 1)


def test_reading_ahead_makes_nothing_and_ends_when_it_is_read() -> None:
    world = World(device()).open(reading(5))
    assert len(world.events) == 1
    assert world.end[0] == pytest.approx(3.0)
    assert world.end[1].finish_reason is None
    assert world.source.work.made == 0


def test_a_cancelled_reading_has_taken_its_work_and_keeps_whole_chunks() -> None:
    source = device(chunk=8, cancel_takes=0.02)
    world = World(source).open(OpenStream("device"), cancel_after=0.5 + 1.3)
    assert world.events == []
    assert world.released == [pytest.approx(1.82)]
    assert (source.work.read, source.work.made, source.kept) == (13, 0, 8)


def test_a_device_that_is_stopped_while_it_writes_keeps_what_it_wrote() -> None:
    source = device()
    world = World(source).open(OpenStream("device"), cancel_after=2.85)
    assert [at for at, _ in world.tokens] == pytest.approx([2.5, 2.6, 2.7, 2.8])
    assert (source.work.made, source.kept) == (4, 24)


def test_every_reading_strays_from_the_line_by_a_factor_of_its_own() -> None:
    speed = DeviceSpeed(seconds_per_token=0.1, decode_tokens_per_s=10.0, jitter=(0.5, 1.0, 2.0))
    rng = Random(3)
    firsts = {World(SimulatedDevice("device", speed, rng, ANSWER)).open(OpenStream("device")).tokens[0][0] for _ in range(40)}
    assert firsts == {1.0, 2.0, 4.0}


# Servers


def test_a_server_takes_its_time_whatever_the_length_and_bills_what_it_is_sent() -> None:
    source = server()
    assert World(source).open(OpenStream("server")).tokens == [(pytest.approx(0.4 + token / 20), 1) for token in range(10)]
    assert World(source).open(going_on(7, "server")).tokens == [(pytest.approx(0.9 + token / 20), 1) for token in range(3)]
    assert World(source).open(OpenStream("server")).tokens[0][0] == pytest.approx(0.4), "recorded times begin anew"
    assert (source.work.read, source.work.cached, source.work.made) == (20 + 27 + 20, 0, 23)


def test_times_may_be_drawn_from_a_distribution() -> None:
    ttft = TTFTDistribution((0.2, 0.6), (0.5, 0.0))
    firsts = [
        World(SimulatedServer("server", ttft, 20.0, Random(seed), ANSWER)).open(OpenStream("server")).tokens[0][0] for seed in range(40)
    ]
    assert set(firsts) == {0.2, 0.6}
    assert 10 <= firsts.count(0.2) <= 30


def test_a_server_goes_on_for_a_round_trip_behind_a_cancel() -> None:
    source = server(rtt=0.12)
    world = World(source).open(OpenStream("server"), cancel_after=0.47)
    assert len(world.tokens) == 2
    assert world.released == [pytest.approx(0.59)]
    assert source.work.made == 4  # at 0.40, 0.45, 0.50 and 0.55


def test_nothing_is_made_behind_the_answers_end() -> None:
    source = server(rtt=5.0)
    World(source).open(OpenStream("server"), cancel_after=0.5)
    assert source.work.made == 10


def test_a_server_that_lost_before_its_first_token_bills_the_prompt() -> None:
    source = server(rtt=0.1)
    World(source).open(OpenStream("server"), cancel_after=0.2)
    assert (source.work.read, source.work.made) == (20, 0)


def test_a_warmed_cache_takes_a_token_and_holds_what_was_read() -> None:
    source = server(pre_copy="warm")
    world = World(source).open(reading(5, "server"))
    assert world.tokens == []
    assert world.end[0] == pytest.approx(0.4)
    assert (source.work.read, source.work.cached, source.work.made) == (25, 0, 1)
    World(source).open(going_on(7, "server"))
    assert (source.work.read, source.work.cached, source.work.made) == (25 + 27, 25, 4)


# Both


@pytest.mark.parametrize("make", [device, server])
def test_an_answer_is_cut_off_where_it_is_limited(make: Any) -> None:
    world = World(make(SimulatedAnswer(prompt_tokens=20, tokens=10, max_tokens=6))).open(OpenStream("any"))
    assert len(world.tokens) == 6
    assert world.end[1].finish_reason == "length"
    assert World(make(SimulatedAnswer(prompt_tokens=20, tokens=6, max_tokens=6))).open(OpenStream("any")).end[1].finish_reason == "stop"


@pytest.mark.parametrize("make", [device, server])
@given(burst=st.integers(1, 14), tokens=st.integers(1, 40), cancel_after=st.none() | st.floats(0.0, 8.0))
def test_bursts_change_when_tokens_come_but_not_what_is_made(make: Any, burst: int, tokens: int, cancel_after: float | None) -> None:
    answer = SimulatedAnswer(prompt_tokens=20, tokens=tokens)
    single, bursts = (World(make(answer, burst=size)).open(OpenStream("any"), cancel_after=cancel_after) for size in (1, burst))
    assert bursts.source.work.made == single.source.work.made
    assert bursts.source.work.read == single.source.work.read
    assert bursts.tokens[:1] == single.tokens[:1]
    sent = [sum(count for _, count in world.tokens) for world in (bursts, single)]
    assert sent[0] <= sent[1] + 1  # sums of gaps round otherwise than their multiples, and a cancel may fall on a token
    assert cancel_after is not None or bursts.end[0] == pytest.approx(single.end[0])


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode rate"):
        device(speed=DeviceSpeed(seconds_per_token=0.1))
    with pytest.raises(ConfigError, match="rate > 0"):
        server(rate=0.0)
    with pytest.raises(ConfigError, match="times to first token"):
        server(ttft=())
    with pytest.raises(ConfigError, match="append"):
        server(pre_copy="append")
    for make in (device, server):
        with pytest.raises(ConfigError, match="burst"):
            make(burst=0)
    with pytest.raises(AssertionError, match="read ahead"):
        World(server()).open(reading(3, "server"))


def test_a_session_moves_from_one_to_the_other_and_every_token_is_counted_once() -> None:
    answer = SimulatedAnswer(prompt_tokens=20, tokens=100, max_tokens=80)
    sources: Any = {
        "server": server(answer, ttft=(0.3,), rate=40.0, rtt=0.1),
        "device": device(answer, DeviceSpeed(seconds_per_token=0.02, overhead=0.02, decode_tokens_per_s=12.0)),
    }
    terms = {
        "server": Terms(prompt=1e-6, completion=5e-6, setup=0.4, rate=40.0),
        "device": Terms(prompt=1e-7, completion=1e-7, setup=0.05, per_token=0.025, rate=12.0, pre_copy="append"),
    }
    plan = RacePlan(
        attempts=(AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", None, continues=True)),
        pace=4.8,
        max_tokens=80,
        migration=MigrationPlan(
            terms=terms, lengths=RemainingLength((100,), (0.0,)), prompt_tokens=20, reader_rate=4.8, capacity=96, max_tokens=80
        ),
    )
    env = simpy.Environment()
    machine = RaceMachine(plan)
    SimulatedRace(env, machine, sources).start()
    env.run()
    (move,) = machine.hand_overs
    assert (move.source, move.target) == ("server", "device")
    assert machine.is_over
    assert machine.finish_reason == "length"
    assert machine.meter.tokens == 80
    assert machine.meter.quality().delayed_tokens == 0
    assert sources["device"].work.made == 80 - move.position
    assert sources["server"].work.made == move.position + 4  # behind the cancel
    assert sources["device"].work.read <= 20 + move.position + 2


# Several answers at one device


class Crowd:
    """Answers of one device that begin together; ``firsts`` and ``ends`` are the times of their first tokens and ends."""

    def __init__(self, places: int, count: int, *, tokens: int = 10, cancel: dict[int, float] | None = None) -> None:
        self.env = simpy.Environment()
        self.firsts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.released: list[float] = []
        self.places = DevicePlaces(self.env, places)
        answer = SimulatedAnswer(prompt_tokens=20, tokens=tokens)
        self.sources = [device(answer, places=self.places) for _ in range(count)]
        streams = [source.open(self.env, self._note(number), OpenStream("device")) for number, source in enumerate(self.sources)]
        for number, at in (cancel or {}).items():
            self.env.run(at)
            streams[number].cancel(lambda: self.released.append(self.env.now))
        self.env.run()

    def _note(self, number: int) -> Any:
        def note(event: Event) -> None:
            if isinstance(event, TokensReceived):
                self.firsts.setdefault(number, round(self.env.now, 6))
            else:
                self.ends[number] = round(self.env.now, 6)

        return note


def test_an_answer_alone_has_the_same_times_with_places() -> None:
    alone, placed = World(device()), World(device())
    placed.source.places = DevicePlaces(placed.env, 4)  # type: ignore[union-attr]
    assert alone.open(OpenStream("device")).events == placed.open(OpenStream("device")).events


def test_a_device_reads_prompts_one_after_another() -> None:
    crowd = Crowd(4, 3)
    assert crowd.firsts == {0: 2.5, 1: 5.0, 2: 7.5}


def test_tokens_take_longer_beside_other_answers() -> None:
    crowd, alone = Crowd(4, 4, tokens=200), Crowd(4, 1, tokens=200)
    assert crowd.ends[3] - crowd.firsts[3] == pytest.approx(2.0 * (alone.ends[0] - alone.firsts[0])), "four rows cost twice one"


def test_an_answer_without_a_place_waits_for_one() -> None:
    crowd = Crowd(1, 2)
    assert crowd.firsts[1] == pytest.approx(crowd.ends[0] + 2.5)


def test_a_waiting_answer_that_is_cancelled_reads_nothing_and_holds_no_place() -> None:
    crowd = Crowd(1, 3, cancel={1: 1.0})
    assert crowd.released == [1.0]
    assert crowd.firsts[2] == pytest.approx(crowd.ends[0] + 2.5)
    assert crowd.sources[1].work.read == crowd.sources[1].work.made == 0


def test_an_answer_that_is_cancelled_while_it_reads_lets_the_next_one_read() -> None:
    crowd = Crowd(4, 2, cancel={0: 1.0})
    assert crowd.firsts == {1: pytest.approx(3.5)}
    assert (crowd.places.answers.count, crowd.places.reading.count) == (0, 0)


# A server that refuses


def refusing() -> World:
    """Return the world of a server that has taken all requests of the first minute."""
    world = World(server())
    assert isinstance(world.source, SimulatedServer)
    world.source.limit = RequestLimit(1, lambda: world.env.now)
    world.source.limit.refuse()
    return world


def test_a_limit_is_of_each_minute() -> None:
    times = [0.0, 10.0, 20.5, 59.9, 60.0, 61.0, 62.0]
    limit = RequestLimit(2, iter(times).__next__)
    assert [limit.refuse() for _ in times] == [None, None, 40, 1, None, None, 58]


def test_a_refused_request_is_sent_again_when_the_server_has_said() -> None:
    world = refusing()
    world.env.run(50.0)
    world.open(OpenStream("server"))
    at, retrying = world.events[0]
    assert isinstance(retrying, StreamRetrying)
    assert isinstance(retrying.error, EndpointStatusError)
    assert (at, retrying.wait, retrying.error.status) == (0.1, 10.0, 429)
    assert world.tokens[0] == (pytest.approx(10.5), 1)
    assert world.source.work.read == 20, "once"


def test_a_server_that_asks_for_a_long_wait_has_failed() -> None:
    world = refusing().open(OpenStream("server"))
    ((at, failed),) = world.events
    assert isinstance(failed, StreamFailed)
    assert (at, world.source.work.read) == (0.1, 0)


def test_a_refused_request_that_is_cancelled_is_not_sent_again() -> None:
    world = refusing()
    world.env.run(50.0)
    world.open(OpenStream("server"), cancel_after=1.0)
    assert [type(event) for _, event in world.events] == [StreamRetrying]
    assert world.released == [1.0]
