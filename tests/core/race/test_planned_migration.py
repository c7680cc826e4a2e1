"""Answers that move to a cheaper endpoint: the race machine, called directly with now=.

All endpoints would write the same ids, so whatever a move loses or repeats shows in what is delivered.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.config import ReaderPace
from streamco.core.race.attempt import AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.commands import (
    CancelStream,
    Command,
    ContinueStream,
    DeliverTokens,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PrepareStream,
)
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.errors import EndpointConnectError
from streamco.events import ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChunkChoice
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength
from streamco.testing.endpoint import text_chunk

DEAR_SERVER = Terms(prompt=1e-9, completion=1e-6, setup=0.3, rate=50.0)
SLOW_SERVER = Terms(prompt=1e-9, completion=1e-6, setup=0.3, rate=8.0)
CHEAP_SERVER = Terms(prompt=1e-9, completion=1e-8, setup=0.3, rate=50.0)
DEAR_DEVICE = Terms(prompt=1e-9, completion=1e-6, setup=0.1, per_token=0.001, rate=30.0, pre_copy="append")
CHEAP_DEVICE = Terms(prompt=1e-9, completion=1e-8, setup=0.1, per_token=0.001, rate=30.0, pre_copy="append")
NEW_DEVICE = Terms(
    prompt=1e-9, completion=1e-8, rate=30.0, pre_copy="append"
)  # its reading speed is not known, so it always reads ahead first
SLOW_DEVICE = Terms(prompt=1e-9, completion=1e-8, setup=0.1, per_token=0.01, rate=30.0, pre_copy="append")

LONG = RemainingLength((100, 400), (1.0, 0.0))


def plan_moves(terms: dict[str, Terms], **changes: Any) -> MigrationPlan:
    settings: dict[str, Any] = {"lengths": LONG, "prompt_tokens": 200, "reader_rate": 5.0, "capacity": 64, **changes}
    return MigrationPlan(terms=terms, **settings)


class Play:
    """Feeds a machine, keeps book of what it commands, and checks each command against what is at work.

    Args:
        terms: by endpoint; the first one wins, the others stand in.
        race: open all of them at once.
        can_continue: endpoints that can continue an answer; None: all.
    """

    def __init__(
        self,
        terms: dict[str, Terms],
        *,
        pace: ReaderPace = 5.0,
        max_tokens: int | None = None,
        race: bool = False,
        explore: bool = False,
        can_continue: set[str] | None = None,
        **changes: Any,
    ) -> None:
        attempts = tuple(
            AttemptPlan(name, 0.0 if race or not index else None, continues=can_continue is None or name in can_continue, vocabulary="v")
            for index, name in enumerate(terms)
        )
        migration = plan_moves(terms, max_tokens=max_tokens, **changes)
        plan = RacePlan(
            attempts=attempts, pace=pace, reader_rate=5.0, explore=explore, on_failure="migrate", max_tokens=max_tokens, migration=migration
        )
        self.machine = RaceMachine(plan)
        self.now = 0.0
        self.ids: list[int] = []
        self.made = 0  # tokens the machine took for the answer
        self.at: dict[str, int] = {}  # the next id of each endpoint
        self.working: dict[str, str] = {}  # what each endpoint does
        self.stopping: set[str] = set()
        self.failed: set[str] = set()
        self.has_left = False
        self.log: list[Command] = []
        self.ends: list[FinishDelivery | FailDelivery] = []
        self.machine.start(now=0.0)
        self._obey()

    # What happens

    def write(self, source: str, count: int = 1, *, now: float | None = None, finish: str | None = None) -> list[Command]:
        """An endpoint sends its next tokens, with ``finish`` after them in the same batch."""
        first = self.at[source]
        chunks = [text_chunk(f"{number} ", ids=[number]) for number in range(first, first + count)]
        if finish is not None:
            chunks.append(ChatCompletionChunk(choices=[ChunkChoice(finish_reason=finish)]))
        self.at[source] += count
        writer = self.machine.writer
        attempt = self.machine.attempts[source]
        is_first = writer is None and attempt.state is AttemptState.OPEN and self.machine.finished is None
        if count and (is_first or (writer == source and attempt.state is AttemptState.WON)) and not self.has_left:
            assert first == self.made, f"{source} writes from {first} where {self.made} are made"
            self.made += count
        return self._tell(TokensReceived(source, chunks, count), now)

    def end(self, source: str, *, now: float | None = None, reason: str | None = "stop") -> list[Command]:
        self._close(source)
        return self._tell(StreamEnded(source, reason), now)

    def fail(self, source: str, *, now: float | None = None) -> list[Command]:
        self.failed.add(source)
        self._close(source)
        return self._tell(StreamFailed(source, EndpointConnectError("cut", endpoint=source)), now)

    def release(self, source: str, *, now: float | None = None) -> list[Command]:
        """A cancel has taken effect."""
        assert source in self.stopping, f"{source} was not cancelled"
        self.stopping.discard(source)
        self.working.pop(source, None)
        return self._tell(StreamCancelled(source), now)

    def leave(self, *, now: float | None = None) -> list[Command]:
        self.has_left = True
        return self._tell(ReaderLeft(), now)

    def wait(self, until: float) -> list[Command]:
        """Let deadlines pass."""
        commands: list[Command] = []
        while (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.machine.handle_deadline(now=self.now)
            commands += self._obey()
        self.now = max(self.now, until)
        return commands

    def write_steadily(self, source: str, rate: float, *, until: float) -> list[Command]:
        """Tokens one by one, until something else than a delivery is commanded."""
        commands: list[Command] = []
        while self.now < until:
            at = self.now + 1.0 / rate
            commands += self.wait(at)
            commands += self.write(source, now=at)
            if any(not isinstance(command, DeliverTokens) for command in commands):
                break
        return [command for command in commands if not isinstance(command, DeliverTokens)]

    # What is commanded

    def _tell(self, event: Any, now: float | None) -> list[Command]:
        self.now = self.now if now is None else now
        self.machine.receive(event, now=self.now)
        return self._obey()

    def _close(self, source: str) -> None:
        if source not in self.stopping:
            self.working.pop(source)

    def _obey(self) -> list[Command]:
        commands = self.machine.take_commands()
        for command in commands:
            match command:
                case OpenStream(source):
                    self._begin(source, "writes", at=0)
                case ContinueStream(source, partial):
                    assert partial.tokens == self.made
                    assert partial.ids == tuple(range(self.made))
                    self._begin(source, "writes", at=self.made)
                case PrepareStream(source, partial):
                    assert partial.ids == tuple(range(self.made))
                    self._begin(source, "reads", at=self.made)
                case CancelStream(source):
                    assert source in self.working, f"{source} is cancelled but does nothing"
                    assert source not in self.stopping, f"{source} is cancelled twice"
                    self.stopping.add(source)
                case DeliverTokens():
                    assert not self.ends, "delivered after the end"
                    assert not self.has_left, "delivered after the reader left"
                    self.ids += [token for chunk in command.chunks for choice in chunk.choices for token in choice.token_ids or []]
                case FinishDelivery() | FailDelivery():
                    assert not self.ends, "ended twice"
                    self.ends.append(command)
        self.log += commands
        assert self.ids == list(range(len(self.ids)))
        return commands

    def _begin(self, source: str, work: str, *, at: int) -> None:
        assert source not in self.working, f"{source} is given work while it still {self.working[source]}"
        assert not self.has_left, "work without a reader"
        self.working[source] = work
        self.at[source] = at

    def assert_complete(self, length: int) -> None:
        """Assert that everything was delivered and no endpoint works."""
        self.wait(1e9)
        assert self.ids == list(range(length))
        assert self.ends == [FinishDelivery()]
        self.assert_over()

    def assert_over(self) -> None:
        assert self.machine.is_over
        assert not any(attempt.is_live for attempt in self.machine.attempts.values())
        assert not self.working
        assert not self.stopping
        assert self.machine.next_deadline() is None
        assert self.machine.take_commands() == []


def kinds(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


# The two rules


def test_a_target_reads_ahead_while_the_source_writes_then_what_came_meanwhile_then_takes_over() -> None:
    play = Play({"server": DEAR_SERVER, "device": SLOW_DEVICE}, pace=20.0, reader_rate=20.0)
    first = play.write("server", 1, now=0.5)
    assert kinds(first) == ["DeliverTokens", "PrepareStream"]
    assert play.machine.attempts["device"].read_ahead == ReadAhead(1, 201)
    assert play.write_steadily("server", 25.0, until=2.5) == []  # 50 tokens, of which 10 are ahead of the reader; the device still reads
    again = play.end("device", reason=None)
    assert kinds(again) == ["PrepareStream"]
    attempt = play.machine.attempts["device"]
    assert (attempt.kept, attempt.read_ahead) == (1, ReadAhead(play.made, play.made - 1))
    play.write("server", 3)
    switch = play.end("device", reason=None, now=play.now + 0.3)
    assert kinds(switch) == ["ContinueStream", "CancelStream"]
    assert switch[1] == CancelStream("server", "handed over")
    position = play.made
    play.write("server", 2)  # what it still generates is not used
    play.release("server")
    play.write("device", 5)
    play.end("device")
    play.assert_complete(position + 5)
    (hand_over,) = play.machine.hand_overs
    assert (hand_over.source, hand_over.target, hand_over.position, hand_over.is_planned) == ("server", "device", position, True)
    assert [(attempt.source, attempt.state) for attempt in play.machine.past_attempts] == [("device", AttemptState.PREPARED)] * 2
    assert play.machine.attempts["device"].takeover_position == position


def test_an_exploring_loser_is_cancelled_when_it_is_wanted_as_the_target() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE}, race=True, explore=True)
    assert play.write("server", 1, now=0.1)[-1] == CancelStream("device", "wanted")
    assert kinds(play.release("device", now=0.2)) == ["PrepareStream"]


def test_by_the_full_buffer_rule_the_target_is_asked_when_the_buffer_covers_the_change() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, rule="full-buffer")
    commands = play.write_steadily("server", 50.0, until=3.0)
    assert kinds(commands) == ["ContinueStream", "CancelStream"]
    needed = 5.0 * (0.1 + 0.001 * (200 + play.made) + 0.1)
    assert needed <= play.machine.buffered < needed + 1  # equation 6, not a token earlier or later
    play.release("server")
    play.write("device", 4)
    play.end("device")
    play.assert_complete(play.made)


@pytest.mark.parametrize(
    ("source", "target", "ahead"),
    [
        (DEAR_DEVICE, CHEAP_SERVER, False),
        (DEAR_SERVER, CHEAP_SERVER, False),
        (DEAR_DEVICE, NEW_DEVICE, True),
        (DEAR_SERVER, NEW_DEVICE, True),
    ],
    ids=["device to server", "server to server", "device to device", "server to device"],
)
def test_an_answer_moves_between_all_kinds(source: Terms, target: Terms, ahead: bool) -> None:
    play = Play({"source": source, "target": target})
    play.write("source", now=0.5)
    commands = [command for command in play.log if isinstance(command, PrepareStream)]
    assert bool(commands) is ahead
    if ahead:
        play.end("target", reason=None, now=0.6)
    moved = play.write_steadily("source", 40.0, until=3.0)
    assert kinds(moved) == ["ContinueStream", "CancelStream"]
    play.release("source")
    play.write("target", 10)
    play.end("target")
    play.assert_complete(play.made)


def test_without_a_pace_a_virtual_reader_says_how_much_is_buffered() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, pace=None, rule="full-buffer")
    play.write("server", 2, now=1.0)  # B is 5 x (0.1 + 0.202 + 0.1) = 2.01: three tokens
    assert kinds(play.write("server", 1, now=1.3)) == ["DeliverTokens"]  # 3 made, 1.5 read
    assert kinds(play.write("server", 1, now=1.4)) == ["DeliverTokens"]  # 4 made, 2 read
    assert kinds(play.write("server", 1, now=1.4)) == ["DeliverTokens", "ContinueStream", "CancelStream"]
    (hand_over,) = play.machine.hand_overs
    assert (hand_over.position, hand_over.buffered) == (5, 3)
    play.release("server")
    play.end("device")
    play.assert_complete(5)


def test_no_session_that_may_still_move_is_read_directly() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, pace=None, rule="full-buffer")
    play.write("server", 1, now=1.0)
    assert not play.machine.is_direct
    play.write("server", 9, now=1.0)
    play.release("server")
    play.write("device", 1)
    assert play.machine.is_direct


# Whether


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (CHEAP_SERVER, DEAR_DEVICE),
        (DEAR_SERVER, Terms(prompt=1.0, completion=1e-8, setup=0.1, pre_copy="append")),
        (DEAR_SERVER, Terms(prompt=0.0, completion=0.0, setup=0.1, rate=5.4, pre_copy="append")),
        (DEAR_SERVER, Terms(prompt=0.0, completion=0.0, pre_copy="none")),
    ],
    ids=["costs more", "dear to read", "slower than the reader", "nobody knows how soon it goes on"],
)
def test_a_move_that_is_not_worth_it_commands_nothing_at_all(source: Terms, target: Terms) -> None:
    play = Play({"source": source, "target": target})
    play.write("source", now=0.5)
    assert play.write_steadily("source", 50.0, until=4.0) == []
    play.end("source")
    play.assert_complete(play.made)
    assert kinds([command for command in play.log if not isinstance(command, DeliverTokens)]) == ["OpenStream", "FinishDelivery"]
    assert play.machine.attempts["target"].state is AttemptState.SPARED


def test_who_cannot_continue_is_no_target() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, can_continue={"server"})
    play.write("server", now=0.5)
    assert play.write_steadily("server", 50.0, until=3.0) == []


def test_an_answer_close_to_its_limit_stays() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, max_tokens=10, rule="full-buffer")
    assert kinds(play.write("server", 10, now=0.5)) == ["DeliverTokens"]
    play.end("server", reason="length")
    play.assert_complete(10)


def test_what_remains_at_the_limit_is_not_taken_for_what_remains_of_a_long_answer() -> None:
    """Reading 206 tokens at 2e-8 is 4.12e-6; two thirds of six of 1e-6 each are not more than that, of seven they are."""
    terms = {"server": DEAR_SERVER, "device": Terms(prompt=2e-8, completion=0.0, setup=0.1)}
    short, long = Play(terms, max_tokens=12), Play(terms, max_tokens=13)
    assert kinds(short.write("server", 6, now=0.5)) == ["DeliverTokens"]
    assert "ContinueStream" in kinds(long.write("server", 6, now=0.5))


@pytest.mark.parametrize(("most", "expected"), [(0, []), (1, ["second"]), (2, ["second", "third"])])
def test_an_answer_moves_as_often_as_it_may(most: int, expected: list[str]) -> None:
    """At first it seems to end soon, and moves to where nothing has to be paid for reading; later it is long enough for the cheapest."""
    middle = Terms(prompt=0.0, completion=5e-7, setup=0.1, rate=50.0)
    cheapest = Terms(prompt=1e-7, completion=0.0, setup=0.1, rate=50.0)
    terms = {"first": DEAR_SERVER, "second": middle, "third": cheapest}
    play = Play(terms, max_migrations=most, lengths=RemainingLength((30,), (0.0,)))
    play.write("first", 20, now=0.5)
    for _ in range(4):
        writer = play.machine.writer
        assert writer is not None
        play.write(writer, 20)
        for source in sorted(play.stopping):
            play.release(source)
    assert [hand_over.target for hand_over in play.machine.hand_overs] == expected
    assert play.machine.writer == ["first", *expected][-1]
    play.end(["first", *expected][-1])
    play.assert_complete(play.made)


# Warm caches


WARM = Terms(prompt=1e-9, cached_prompt=1e-10, completion=1e-8, setup=0.2, per_token=0.01, rate=50.0, pre_copy="warm")


def test_a_cache_that_is_warmed_for_money_is_warmed_once_and_only_where_that_pays() -> None:
    play = Play({"dear": DEAR_SERVER, "warm": WARM}, capacity=10)  # unread, the change takes 2.3 s: 12 tokens, more than will be held
    assert kinds(play.write("dear", 1, now=0.5)) == ["DeliverTokens", "PrepareStream"]
    play.at["warm"] = 900  # the token it has to make
    assert play.write("warm", 1, now=0.9) == []
    assert play.end("warm", now=1.0, reason="length") == []
    moved = play.write_steadily("dear", 50.0, until=3.0)
    assert kinds(moved) == ["ContinueStream", "CancelStream"]
    assert sum(isinstance(command, PrepareStream) for command in play.log) == 1
    play.release("dear")
    play.write("warm", 2)
    play.end("warm")
    play.assert_complete(play.made)


def test_a_cache_is_not_warmed_when_that_costs_more_than_the_tokens_it_saves() -> None:
    warm = Terms(prompt=1e-7, cached_prompt=1e-7, completion=1e-8, setup=0.2, per_token=0.01, rate=50.0, pre_copy="warm")
    play = Play({"dear": DEAR_SERVER, "warm": warm}, capacity=64)
    play.write("dear", 1, now=0.5)
    moved = play.write_steadily("dear", 50.0, until=3.0)
    assert kinds(moved) == ["ContinueStream", "CancelStream"]
    assert not any(isinstance(command, PrepareStream) for command in play.log)


# A target that fails


def test_when_the_target_fails_to_read_ahead_the_source_goes_on() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 1, now=0.5)
    assert play.fail("device", now=0.6) == []
    assert play.write_steadily("server", 50.0, until=3.0) == []
    play.end("server")
    play.assert_complete(play.made)
    assert play.machine.error is None
    assert play.machine.hand_overs == []


def test_an_endpoint_that_failed_only_in_reading_ahead_still_saves_an_answer_that_nobody_else_can() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 3, now=0.5)
    play.fail("device", now=0.6)
    assert kinds(play.fail("server", now=0.7)) == ["ContinueStream"]
    play.write("device", 2)
    play.end("device")
    play.assert_complete(5)


def test_but_whoever_has_not_failed_comes_first() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE, "spare": DEAR_SERVER})
    play.write("server", 3, now=0.5)
    play.fail("device", now=0.6)
    assert play.fail("server", now=0.7)[-1].source == "spare"  # type: ignore[union-attr]
    assert play.fail("spare", now=0.8)[-1].source == "device"  # type: ignore[union-attr]
    assert kinds(play.fail("device", now=0.9))[-1] == "FailDelivery"
    play.assert_over()


@pytest.mark.parametrize("released", ["before", "after"])
@pytest.mark.parametrize("count", [0, 3])
def test_when_the_target_fails_after_the_change_the_source_goes_on_without_loss(released: str, count: int) -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, rule="full-buffer")
    play.write_steadily("server", 50.0, until=3.0)
    assert play.machine.writer == "device"
    position = play.made
    if released == "before":
        play.release("server")
    if count:
        play.write("device", count)
    back = play.fail("device")
    if released == "after":
        assert back == []  # it is still being cancelled
        play.write("server", 2)
        back = play.release("server")
    assert next(command for command in back if isinstance(command, ContinueStream)).source == "server"
    assert play.write_steadily("server", 50.0, until=play.now + 2) == []  # once is enough
    play.end("server")
    play.assert_complete(play.made)
    assert play.made > position + count
    assert [(hand_over.target, hand_over.is_planned) for hand_over in play.machine.hand_overs] == [("device", True), ("server", False)]


def test_a_source_that_ended_while_it_was_left_can_take_the_answer_back() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, rule="full-buffer")
    play.write_steadily("server", 50.0, until=3.0)
    position = play.made
    play.end("server")  # before its cancel takes effect
    play.fail("device")
    back = play.release("server")
    assert kinds(back) == ["ContinueStream"]
    play.write("server", 2)
    play.end("server")
    play.assert_complete(position + 2)


# The same instant


@pytest.mark.parametrize("rule", ["pre-copy", "full-buffer"])
def test_a_source_whose_batch_holds_the_answers_end_is_not_left(rule: str) -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, rule=rule)
    assert kinds(play.write("server", 20, now=0.5, finish="stop")) == ["DeliverTokens"]
    play.end("server", now=0.5)
    play.assert_complete(20)


def test_a_source_that_ends_while_the_target_reads_ahead_stops_the_target() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 2, now=0.5)
    assert CancelStream("device", "not needed") in play.end("server", now=0.6)
    play.wait(10.0)
    assert not play.machine.is_over
    assert play.end("device", now=11.0, reason=None) == []  # it was done before its cancel took effect
    assert not play.machine.is_over
    play.release("device", now=11.1)
    play.assert_complete(2)


def test_a_source_that_fails_while_the_target_reads_ahead_is_replaced_by_it() -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 2, now=0.5)
    assert play.fail("server", now=0.6) == [CancelStream("device", "takes over")]
    play.wait(1.0)
    assert kinds(play.release("device", now=1.0)) == ["ContinueStream"]
    play.write("device", 2)
    play.end("device")
    play.assert_complete(4)
    (hand_over,) = play.machine.hand_overs
    assert not hand_over.is_planned


@pytest.mark.parametrize("happens", ["ends", "fails"])
def test_a_cancel_that_takes_effect_late_does_not_hit_the_endpoints_next_work(happens: str) -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 2, now=0.5)
    play.fail("server", now=0.6)
    assert (play.end("device", reason=None) if happens == "ends" else play.fail("device")) == []
    assert kinds(play.release("device", now=0.7)) == ["ContinueStream"]
    play.write("device", 2)
    assert play.machine.attempts["device"].is_live
    play.end("device")
    play.assert_complete(4)


def test_who_has_read_ahead_but_is_still_being_cancelled_is_given_nothing_new() -> None:
    """The source fails, another stand-in goes on, the target of before has finished reading: it may move there, but not yet."""
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE, "spare": DEAR_SERVER}, race=True)
    play.write("server", 2, now=0.5)  # the others have lost, and are free later
    assert play.release("spare", now=0.6) == []
    assert kinds(play.release("device", now=0.6)) == ["PrepareStream"]
    device = play.machine.attempts["device"]
    able, device.plan = device.plan, replace(device.plan, continues=False)  # so that the spare one takes over
    assert [type(command) for command in play.fail("server", now=0.7)] == [CancelStream, ContinueStream]
    device.plan = able
    assert play.end("device", now=0.8, reason=None) == []
    assert kinds(play.write("spare", 10, now=0.8)) == ["DeliverTokens"]
    assert "ContinueStream" in kinds(play.release("device", now=0.9))
    play.release("spare")
    play.end("device")
    play.assert_complete(12)


def test_reading_ahead_that_takes_far_too_long_is_given_up_for_the_change_itself() -> None:
    play = Play({"server": SLOW_SERVER, "device": CHEAP_DEVICE}, capacity=400)
    play.write("server", 1, now=0.5)
    play.write("server", 5, now=1.3)  # 0.3 s were estimated
    late = play.write("server", 5, now=1.5)
    assert [command for command in late if not isinstance(command, DeliverTokens)] == [
        CancelStream("device", "takes over"),
        CancelStream("server", "handed over"),
    ]
    play.release("server")
    assert kinds(play.release("device")) == ["ContinueStream"]
    play.write("device", 1)
    play.end("device")
    play.assert_complete(12)


def test_it_is_not_given_up_when_nothing_is_left_to_be_written() -> None:
    play = Play({"server": SLOW_SERVER, "device": CHEAP_DEVICE}, capacity=400, max_tokens=30)
    play.write("server", 1, now=0.5)
    play.write("server", 5, now=1.3)
    assert [command for command in play.write("server", 24, now=1.5) if not isinstance(command, DeliverTokens)] == []
    assert play.end("server", now=1.5, reason="length") == [CancelStream("device", "not needed")]
    play.release("device")
    play.assert_complete(30)


def awaited() -> Play:
    """The source has been stopped, the target still reads; it was given nothing else, and no endpoint writes."""
    play = Play({"server": SLOW_SERVER, "device": SLOW_DEVICE}, capacity=400)
    play.write("server", 1, now=0.5)  # 201 tokens to be read: 2.11 s
    stopped = play.write("server", 12, now=2.0)  # 0.61 s left, and 0.22 s for the 12
    assert [command for command in stopped if not isinstance(command, DeliverTokens)] == [CancelStream("server", "handed over")]
    assert (play.machine.writer, play.made) == ("device", 13)
    return play


@pytest.mark.parametrize("released", ["before", "after"])
def test_a_source_is_stopped_before_the_target_has_read_to_the_end_where_the_buffer_lasts(released: str) -> None:
    play = awaited()
    if released == "before":
        assert play.release("server", now=2.1) == []
    else:
        play.write("server", 2, now=2.1)  # it is not used
    assert kinds(play.end("device", now=2.5, reason=None)) == ["ContinueStream"]
    assert play.machine.attempts["device"].kept == 1
    if released == "after":
        play.release("server", now=2.6)
    play.write("device", 3)
    play.end("device")
    play.assert_complete(16)


def test_a_target_that_fails_while_it_is_awaited_is_asked_all_the_same_and_then_the_source() -> None:
    play = awaited()
    assert kinds(play.fail("device", now=2.2)) == ["ContinueStream"]
    assert play.fail("device", now=2.3) == []  # the source is not free yet
    assert kinds(play.release("server", now=2.4)) == ["ContinueStream"]
    play.write("server", 3)
    play.end("server")
    play.assert_complete(16)


def test_a_source_that_ends_or_fails_after_it_was_stopped_changes_nothing() -> None:
    for ends in (True, False):
        play = awaited()
        assert (play.end("server") if ends else play.fail("server")) == []
        assert play.release("server") == []
        assert kinds(play.end("device", now=2.5, reason=None)) == ["ContinueStream"]
        play.end("device")
        play.assert_complete(13)


def test_a_reader_that_leaves_while_the_target_is_awaited_ends_its_reading() -> None:
    play = awaited()
    assert play.leave(now=2.1) == [CancelStream("device", "reader left")]
    assert play.end("device", now=2.2, reason=None) == []
    play.release("device", now=2.3)
    play.release("server", now=2.3)
    play.assert_over()


# A reader that leaves


@pytest.mark.parametrize("moment", ["reading ahead", "being freed", "writing"])
def test_a_reader_that_leaves_ends_everything(moment: str) -> None:
    play = Play({"server": DEAR_SERVER, "device": NEW_DEVICE})
    play.write("server", 2, now=0.5)
    if moment == "being freed":
        play.fail("server", now=0.6)
    elif moment == "writing":
        play.end("device", now=0.6, reason=None)
        play.write("server", 9, now=0.6)
        assert play.machine.writer == "device"
    play.leave(now=0.7)
    for source in sorted(play.stopping):
        assert not play.machine.is_over
        play.release(source, now=0.8)
    play.assert_over()


def test_tokens_that_come_after_the_reader_has_left_win_nothing() -> None:
    play = Play({"server": DEAR_SERVER, "device": CHEAP_DEVICE}, race=True)
    play.leave(now=0.1)
    assert play.write("server", 3, now=0.2) == []
    assert play.machine.next_deadline() is None
    play.release("server")
    play.release("device")
    play.assert_over()


# Anything


class Walk:
    """Random endpoints, prices and moments, late cancels, and events that still come from endpoints that are being cancelled."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        names = ["first", "second", "third"][: rng.choice([2, 2, 3])]
        self.length = rng.choice([rng.randrange(1, 40), rng.randrange(40, 300)])
        self.chatty = rng.choice([1, 3, 20])
        self.speed = rng.choice([2.0, 50.0, 50.0])
        self.breaks = rng.choice([0.0, 0.0, 0.01, 0.1])
        self.leaves = rng.choice([0.0, 0.0, 0.01])
        self.reads = rng.choice([0.02, 0.2, 0.8])
        self.play = Play(
            {name: self._terms(1e-6 if not index else 1e-7) for index, name in enumerate(names)},
            pace=rng.choice([None, 3.0, 10.0, "smooth"]),
            max_tokens=rng.choice([None, None, self.length]),
            race=rng.random() < 0.4,
            explore=rng.random() < 0.2,
            can_continue={name for name in names if rng.random() < 0.95},
            lengths=RemainingLength((rng.randrange(30, 500),), (rng.choice([0.0, 0.5]),)),
            prompt_tokens=rng.choice([1, 100, 600]),
            reader_rate=rng.choice([3.0, 10.0]),
            capacity=rng.choice([8, 400]),
            rule=rng.choice(["pre-copy", "pre-copy", "full-buffer"]),
            max_migrations=rng.choice([1, 2, 5]),
        )

    def _terms(self, dearest: float) -> Terms:
        rng = self.rng
        return Terms(
            prompt=rng.choice([0.0, 1e-9, 1e-9, 1e-7]),
            completion=dearest * rng.choice([0.01, 0.1, 1.0, 1.0]),
            cached_prompt=rng.choice([None, 1e-10]),
            setup=rng.choice([None, 0.0, 0.1, 1.0]),
            per_token=rng.choice([0.0, 0.001, 0.02]),
            rate=rng.choice([None, 50.0]),
            pre_copy=rng.choice(["append", "append", "append", "warm", "none"]),
        )

    def run(self) -> None:
        for _ in range(3000):
            if self.play.machine.is_over:
                return
            self.step()
        raise AssertionError("the session does not end")

    def step(self) -> None:
        play, rng = self.play, self.rng
        deadline = play.machine.next_deadline()
        if deadline is not None and ((not play.working and not play.stopping) or rng.random() < 0.3):
            play.wait(max(deadline, play.now))
            return
        if play.stopping and rng.random() < 0.3:
            play.release(rng.choice(sorted(play.stopping)))
            return
        if not play.has_left and rng.random() < self.leaves:
            play.leave()
            return
        play.now += rng.expovariate(self.speed)
        able = sorted(name for name in play.working if not self._is_out(name))
        if able:
            self._act(rng.choice(able))

    def _is_out(self, name: str) -> bool:
        """Whether it has ended or failed already, and only its cancel is still awaited."""
        return play_state(self.play, name) in {AttemptState.ENDED, AttemptState.FAILED, AttemptState.PREPARED, AttemptState.CANCELLED}

    def _act(self, name: str) -> None:
        play, rng = self.play, self.rng
        if rng.random() < self.breaks:
            play.fail(name)
        elif play.working[name] == "reads":
            if rng.random() < self.reads:
                play.end(name, reason=None)
        elif play.at[name] >= self.length:
            play.end(name)
        else:
            count = min(rng.randint(1, self.chatty), self.length - play.at[name])
            is_last = play.at[name] + count == self.length
            play.write(name, count, finish="stop" if is_last and rng.random() < 0.5 else None)


def play_state(play: Play, name: str) -> AttemptState:
    return play.machine.attempts[name].state


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_random_moves_lose_and_repeat_nothing_and_leave_nobody_at_work(first: int) -> None:
    for seed in range(first, first + 100):
        walk = Walk(seed)
        play = walk.play
        try:
            walk.run()
            play.assert_over()
            if not play.has_left:
                (end,) = play.ends
                if isinstance(end, FinishDelivery):
                    assert play.ids == list(range(walk.length))
                else:
                    assert play.ids == list(range(play.made))
                    assert play.failed, "an answer fails only where an endpoint did"
                    assert not [
                        attempt.source for attempt in play.machine.attempts.values() if attempt.can_take_over or attempt.is_last_resort
                    ]
            opened = [command for command in play.log if isinstance(command, OpenStream | ContinueStream | PrepareStream)]
            attempts = [attempt for attempt in (*play.machine.past_attempts, *play.machine.attempts.values()) if attempt.opened is not None]
            assert len(attempts) == len(opened), "each piece of work is in the books once"
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
