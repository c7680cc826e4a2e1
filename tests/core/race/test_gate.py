"""The quality gate in the race machine, called directly with now=."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.core.race.attempt import AttemptPlan, AttemptState
from streamco.core.race.commands import (
    CancelStream,
    Command,
    DeliverTokens,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PauseStream,
    ResumeStream,
)
from streamco.core.race.gate import GatePlan, HeldBeginning
from streamco.core.race.machine import Fatal, RaceMachine, RacePlan
from streamco.errors import EndpointConnectError, EndpointError, EndpointStatusError, EndpointTimeoutError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, StreamRetrying, TokenConfidence, TokensReceived
from streamco.openai_types import ChoiceDelta, ToolCallDelta
from streamco.testing.endpoint import text_chunk
from tests.core.race.test_machine import text_of

HELD = 4


def mean(probabilities: Sequence[float], is_complete: bool) -> float | str:
    return sum(probabilities) / len(probabilities)


def make(
    *attempts: tuple[str, float | None],
    min_score: float = 0.5,
    obstacle: str = "",
    explore: bool = False,
    fatal: Fatal = "refusals",
    tokens: int = HELD,
) -> RaceMachine:
    plan = RacePlan(
        attempts=tuple(AttemptPlan(name, wait, continues=True) for name, wait in attempts),
        gate=GatePlan(source="device", score=mean, min_score=min_score, tokens=tokens, max_wait=2.0, obstacle=obstacle),
        on_failure="migrate",
        explore=explore,
        fatal=fatal,
    )
    machine = RaceMachine(plan)
    machine.start(now=0.0)
    return machine


def said(source: str, *words: str, sure: float | None = None) -> TokensReceived:
    known = () if sure is None else tuple(TokenConfidence(sure, ends_sentence=False) for _ in words)
    return TokensReceived(source, [text_chunk(word) for word in words], len(words), known)


def held(machine: RaceMachine) -> HeldBeginning:
    assert machine.gate is not None
    return machine.gate


def unsure(*attempts: tuple[str, float | None], explore: bool = False, fatal: Fatal = "refusals") -> RaceMachine:
    """A race in which the device was unsure of its first tokens, so that the server was asked."""
    machine = make(*(attempts or (("server", None), ("device", 0.0))), explore=explore, fatal=fatal)
    machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=0.4)
    machine.take_commands()
    return machine


FAILED = EndpointConnectError("refused", endpoint="server")


def test_a_sure_device_wins_with_all_that_was_held() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.take_commands()
    for number, word in enumerate("abc"):
        machine.receive(said("device", word, sure=0.9), now=0.1 * number)
    assert machine.take_commands() == []
    machine.receive(said("device", "d", sure=0.9), now=0.4)
    assert text_of(machine.take_commands()) == "abcd"
    assert (machine.winner, held(machine).verdict) == ("device", "sure")
    assert held(machine).score == pytest.approx(0.9)
    assert machine.attempts["server"].state is AttemptState.SPARED
    machine.receive(said("device", "e", sure=0.1), now=0.5)
    assert text_of(machine.take_commands()) == "e"


def test_an_unsure_device_pauses_and_the_server_is_asked() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=0.4)
    assert machine.take_commands() == [OpenStream("server"), PauseStream("device")]
    assert (machine.winner, held(machine).asked) == (None, "server")
    assert machine.next_deadline() == pytest.approx(2.4)
    machine.receive(said("server", "S"), now=0.9)
    assert machine.take_commands() == [CancelStream("device", "lost"), DeliverTokens("server", [text_chunk("S")])]
    assert (machine.winner, held(machine).passed_because) == ("server", "")


def test_a_server_that_is_at_work_is_not_asked_twice() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=0.4)
    assert machine.take_commands() == [PauseStream("device")]
    assert held(machine).asked is None


def test_a_server_whose_wait_is_not_over_starts_now() -> None:
    machine = make(("server", 5.0), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=0.4)
    assert machine.take_commands() == [OpenStream("server"), PauseStream("device")]


def test_the_server_that_speaks_before_the_device_wins() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.receive(said("server", "S"), now=0.1)
    assert machine.winner == "server"
    assert held(machine).verdict is None


@pytest.mark.parametrize(("sure", "winner", "text"), [(0.9, "device", "ab"), (0.2, "server", "S")])
def test_when_the_server_speaks_what_is_ready_decides(sure: float, winner: str, text: str) -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", "b", sure=sure), now=0.1)
    machine.receive(said("server", "S"), now=0.2)
    assert (machine.winner, text_of(machine.take_commands())) == (winner, text)
    loser = machine.attempts["server" if winner == "device" else "device"]
    assert loser.state is AttemptState.LOST
    assert held(machine).graded_tokens == 2


def test_nothing_is_held_if_no_other_endpoint_may_be_asked() -> None:
    machine = make(("server", None), ("device", 0.0), obstacle="the budget is spent")
    machine.take_commands()
    machine.receive(said("device", "a", sure=0.1), now=0.1)
    assert text_of(machine.take_commands()) == "a"
    assert (held(machine).verdict, held(machine).passed_because) == (None, "the budget is spent")


def test_an_obstacle_is_none_for_a_server_that_the_plan_starts_anyway() -> None:
    machine = make(("server", 0.3), ("device", 0.0), obstacle="the budget is spent")
    machine.take_commands()
    machine.receive(said("device", "a", "b", "c", "d", sure=0.1), now=0.1)
    assert machine.take_commands() == [OpenStream("server"), PauseStream("device")]


@pytest.mark.parametrize("fatal", ["refusals", "none"])
@pytest.mark.parametrize("error", [FAILED, EndpointStatusError("no", status=401, endpoint="server")])
def test_the_held_answer_is_delivered_if_the_server_fails(error: EndpointError, fatal: Fatal) -> None:
    machine = unsure(fatal=fatal)
    machine.receive(StreamFailed("server", error), now=0.8)
    commands = machine.take_commands()
    assert commands[0] == ResumeStream("device")
    assert text_of(commands) == "abcd"
    assert held(machine).passed_because == "no other endpoint gave an answer"
    machine.receive(said("device", "e"), now=0.9)
    machine.receive(StreamEnded("device", "stop"), now=0.9)
    assert (text_of(commands := machine.take_commands()), commands[-1]) == ("e", FinishDelivery())


def test_a_failure_is_the_answers_if_every_failure_is() -> None:
    machine = unsure(fatal="all")
    machine.receive(StreamFailed("server", FAILED), now=0.8)
    assert [command for command in machine.take_commands() if isinstance(command, FailDelivery)] == [FailDelivery(FAILED)]


def test_the_held_answer_is_delivered_if_the_server_is_late() -> None:
    machine = unsure()
    machine.handle_deadline(now=2.3)
    assert machine.take_commands() == []
    machine.handle_deadline(now=2.4)
    commands = machine.take_commands()
    assert commands[:2] == [CancelStream("server", "late"), ResumeStream("device")]
    assert text_of(commands) == "abcd"
    assert held(machine).passed_because == "no other endpoint had begun after 2 s"


def test_a_server_that_was_asked_a_moment_before_is_not_late() -> None:
    machine = unsure(("server", 0.0), ("device", 0.0), ("other", None))
    machine.receive(StreamFailed("server", FAILED), now=2.2)
    machine.handle_deadline(now=2.4)
    stopped = [command for command in machine.take_commands() if isinstance(command, CancelStream)]
    assert stopped == [CancelStream("other", "lost")]


def test_one_that_asks_its_server_again_later_is_not_waited_for() -> None:
    machine = make(("server", 0.0), ("device", 0.0), ("other", None))
    machine.receive(said("device", "a", sure=0.2), now=0.1)
    machine.receive(StreamRetrying("server", FAILED, 30.0), now=0.2)
    machine.take_commands()
    machine.receive(said("device", "b", "c", "d", sure=0.2), now=0.4)
    assert machine.take_commands() == [OpenStream("other"), PauseStream("device")]
    assert held(machine).asked == "other"
    machine.receive(StreamFailed("other", FAILED), now=0.5)
    assert text_of(machine.take_commands()) == ""  # the server may still begin in time, for all that is known


@pytest.mark.parametrize(("wait", "text"), [(30.0, "abcd"), (1.0, "")])
def test_the_last_endpoint_is_waited_for_if_it_may_begin_in_time(wait: float, text: str) -> None:
    machine = unsure()
    machine.receive(StreamRetrying("server", FAILED, wait), now=0.8)
    assert text_of(machine.take_commands()) == text


def test_an_answer_that_is_held_waits_for_one_that_is_still_to_start() -> None:
    machine = make(("server", 1.0), ("device", 0.0), ("other", 1.0))
    machine.receive(said("device", "a", sure=0.2), now=0.1)
    machine.receive(StreamEnded("device", "stop"), now=0.2)
    machine.receive(StreamEnded("server", "stop"), now=0.3)
    machine.take_commands()
    machine.handle_deadline(now=1.0)
    assert machine.take_commands() == [OpenStream("other")]
    machine.receive(StreamFailed("other", FAILED), now=1.1)
    assert text_of(machine.take_commands()) == "a"


@pytest.mark.parametrize("fatal", ["refusals", "all"])
@pytest.mark.parametrize("error", [FAILED, EndpointStatusError("no", status=401, endpoint="server")])
def test_a_device_that_has_begun_goes_on_whatever_another_endpoint_fails_with(error: EndpointError, fatal: Fatal) -> None:
    machine = make(("server", 0.0), ("device", 0.0), fatal=fatal)
    machine.receive(said("device", "a", "b", sure=0.9), now=0.1)
    machine.receive(StreamFailed("server", error), now=0.2)
    assert machine.finished is None
    machine.receive(said("device", "c", "d", sure=0.9), now=0.3)
    assert text_of(machine.take_commands()) == "abcd"


def test_what_is_held_comes_before_the_error_if_the_whole_answers_time_is_over() -> None:
    plan = RacePlan(
        attempts=(AttemptPlan("server", None), AttemptPlan("device", 0.0)),
        gate=GatePlan(source="device", score=mean, min_score=0.5, tokens=HELD),
        is_timed=True,
    )
    machine = RaceMachine(plan)
    machine.start(now=0.0)
    machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=0.4)
    machine.take_commands()
    machine.receive(StreamFailed("server", EndpointTimeoutError("late", phase="total", limit=1.0)), now=1.0)
    commands = machine.take_commands()
    assert text_of(commands) == "abcd"
    assert any(isinstance(command, FailDelivery) for command in commands)


def test_a_broken_device_is_no_success_though_the_servers_answer_is_empty() -> None:
    machine = make(("server", 0.0), ("device", 0.0))
    machine.receive(said("device", "a", "b", sure=0.9), now=0.1)
    machine.receive(StreamFailed("device", EndpointConnectError("gone", endpoint="device")), now=0.2)
    machine.receive(StreamEnded("server", "stop"), now=0.3)
    commands = machine.take_commands()
    assert (text_of(commands), isinstance(commands[-1], FailDelivery)) == ("ab", True)


def test_output_without_tokens_takes_the_place_of_an_unsure_answer() -> None:
    machine = unsure()
    chunk = text_chunk("")
    chunk.choices[0].delta.audio = {"data": "AAAA"}
    machine.receive(TokensReceived("server", [chunk], 0), now=0.8)
    assert machine.winner == "server"


def test_the_reader_waits_no_longer_than_the_whole_answers_time_allows() -> None:
    plan = GatePlan(source="device", score=mean, min_score=0.5, tokens=HELD, max_wait=2.0, until=1.0)
    for at, patience in ((0.4, 0.6), (1.0, None)):
        machine = RaceMachine(RacePlan(attempts=(AttemptPlan("server", None), AttemptPlan("device", 0.0)), gate=plan, is_timed=True))
        machine.start(now=0.0)
        machine.receive(said("device", "a", "b", "c", "d", sure=0.2), now=at)
        if patience is not None:
            assert machine.next_deadline() == pytest.approx(at + patience)
            machine.handle_deadline(now=at + patience)
            assert held(machine).passed_because == "no other endpoint had begun after 0.6 s"
        else:
            assert held(machine).passed_because == "too little is left of the time for the whole answer"
        assert machine.winner == "device"


def test_a_second_server_is_asked_before_the_held_answer_is_delivered() -> None:
    machine = unsure(("server", None), ("device", 0.0), ("reserve", None))
    machine.receive(StreamFailed("server", FAILED), now=0.8)
    assert machine.take_commands() == [OpenStream("reserve")]
    machine.receive(StreamFailed("reserve", FAILED), now=0.9)
    assert text_of(machine.take_commands()) == "abcd"


def test_a_second_server_is_asked_while_the_first_one_asks_again() -> None:
    machine = unsure(("server", None), ("device", 0.0), ("reserve", None))
    machine.receive(StreamRetrying("server", FAILED, 1.0), now=0.8)
    assert machine.take_commands() == [OpenStream("reserve")]


def test_an_answer_that_ends_before_it_is_full_is_graded_whole() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", "b", sure=0.9), now=0.1)
    machine.receive(StreamEnded("device", "stop"), now=0.1)
    commands = machine.take_commands()
    assert (text_of(commands), commands[-1], machine.finish_reason) == ("ab", FinishDelivery(), "stop")


def test_a_whole_answer_is_kept_until_the_server_has_begun() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.take_commands()
    machine.receive(said("device", "a", sure=0.1), now=0.1)
    machine.receive(StreamEnded("device", "stop"), now=0.1)
    assert machine.take_commands() == [OpenStream("server")]
    machine.receive(StreamFailed("server", FAILED), now=0.8)
    commands = machine.take_commands()
    assert (text_of(commands), commands[-1], machine.is_over) == ("a", FinishDelivery(), True)


def test_an_empty_answer_of_the_server_is_no_answer() -> None:
    machine = unsure()
    machine.receive(StreamEnded("server", "stop"), now=0.8)
    assert text_of(machine.take_commands()) == "abcd"


def test_a_device_that_fails_behind_the_gate_leaves_the_answer_to_the_server() -> None:
    machine = unsure()
    machine.receive(StreamFailed("device", EndpointConnectError("gone", endpoint="device")), now=0.5)
    assert (machine.take_commands(), machine.next_deadline()) == ([], None)
    machine.receive(said("server", "S"), now=0.9)
    machine.receive(StreamEnded("server", "stop"), now=0.9)
    assert text_of(machine.take_commands()) == "S"


def test_what_was_held_comes_before_the_error_if_all_fail() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.receive(said("device", "a", "b", sure=0.9), now=0.1)
    machine.receive(StreamFailed("device", EndpointConnectError("gone", endpoint="device")), now=0.2)
    machine.receive(StreamFailed("server", FAILED), now=0.8)
    commands = machine.take_commands()
    assert text_of(commands) == "ab"
    assert isinstance(commands[-1], FailDelivery)
    assert (machine.winner, machine.text, machine.is_over) == ("device", "ab", True)


def test_a_device_without_probabilities_passes_after_four_tokens_and_that_is_said() -> None:
    machine = make(("server", None), ("device", 0.0), tokens=16)
    machine.receive(said("device", "a", "b", "c"), now=0.1)
    assert text_of(machine.take_commands()) == ""
    machine.receive(said("device", "d"), now=0.1)
    assert text_of(machine.take_commands()) == "abcd"
    assert (held(machine).verdict, held(machine).unscored_because) == ("not graded", "it doesn't tell how sure it is of its tokens")
    assert held(machine).is_blind


def test_a_first_token_may_lack_its_probability() -> None:
    machine = make(("server", None), ("device", 0.0))
    machine.receive(said("device", "a"), now=0.1)
    machine.receive(said("device", "b", "c", "d", sure=0.2), now=0.1)
    assert (held(machine).verdict, held(machine).graded_tokens, held(machine).is_blind) == ("unsure", 3, False)


@pytest.mark.parametrize("sure", [None, 0.9])
def test_thinking_passes_at_once_and_is_not_graded(sure: float | None) -> None:
    machine = make(("server", None), ("device", 0.0))
    thought = said("device", "hm", sure=sure)
    thought.chunks[0].choices[0].delta = ChoiceDelta(reasoning_content="hm")
    text = said("device", "a", sure=0.1)
    machine.receive(TokensReceived("device", [*thought.chunks, *text.chunks], 2, thought.confidences + text.confidences), now=0.1)
    assert text_of(machine.take_commands()) == "a"
    assert (held(machine).verdict, held(machine).unscored_because) == ("not graded", "it thinks before it answers")
    assert (held(machine).graded_tokens, held(machine).is_blind) == (0, False)


@pytest.mark.parametrize("delta", [ChoiceDelta(refusal="no"), ChoiceDelta(tool_calls=[ToolCallDelta(index=0)])])
def test_whatever_is_no_thinking_counts(delta: ChoiceDelta) -> None:
    machine = make(("server", None), ("device", 0.0))
    for _ in range(HELD):
        event = said("device", "")
        event.chunks[0].choices[0].delta = delta
        machine.receive(event, now=0.1)
    assert (held(machine).verdict, held(machine).is_blind) == ("not graded", True)


def test_a_single_token_tells_that_the_device_is_silent_if_no_more_are_held() -> None:
    machine = make(("server", None), ("device", 0.0), tokens=1)
    machine.receive(said("device", "a"), now=0.1)
    assert held(machine).is_blind


def test_a_budget_that_is_spent_is_not_overdrawn_for_a_server_that_asks_again_later() -> None:
    machine = make(("server", 0.0), ("device", 0.0), ("other", None), obstacle="the budget is spent")
    machine.receive(said("device", "a", sure=0.2), now=0.1)
    machine.attempts["server"].setback = FAILED
    machine.take_commands()
    machine.receive(said("device", "b", "c", "d", sure=0.2), now=0.4)
    assert machine.take_commands() == [PauseStream("device")]


def test_an_empty_thought_is_none() -> None:
    machine = make(("server", None), ("device", 0.0))
    thought = said("device", "")
    thought.chunks[0].choices[0].delta = ChoiceDelta(reasoning_content="\n\n")
    machine.receive(thought, now=0.1)
    machine.receive(said("device", "a", "b", "c", "d", sure=0.9), now=0.2)
    assert held(machine).verdict == "sure"


def test_a_paused_device_stops_if_the_server_wins_though_losers_are_explored() -> None:
    machine = unsure(explore=True)
    machine.receive(said("server", "S"), now=0.9)
    assert CancelStream("device", "lost") in machine.take_commands()


def test_a_reader_who_leaves_stops_both() -> None:
    machine = unsure()
    machine.receive(ReaderLeft(), now=0.5)
    assert machine.take_commands() == [CancelStream("server", "reader left"), CancelStream("device", "reader left")]
    machine.receive(StreamCancelled("server"), now=0.6)
    machine.receive(StreamCancelled("device"), now=0.6)
    assert machine.is_over


def test_the_rate_is_taken_from_before_the_pause() -> None:
    machine = make(("server", None), ("device", 0.0))
    for number, word in enumerate("abcdefgh"[:HELD]):
        machine.receive(said("device", word, sure=0.2), now=0.1 * number)
    before = machine.attempts["device"].tokens
    machine.receive(StreamFailed("server", FAILED), now=5.0)
    machine.receive(said("device", "e"), now=5.1)
    assert before == HELD
    assert machine.attempts["device"].rate is None  # too few tokens, rather than a rate with the pause in it
    assert not machine.attempts["device"].is_new


class Play:
    """A race among a server, a device behind the gate and a reserve, whose steps are drawn; it carries out the machine's commands."""

    def __init__(self, waits: tuple[float | None, float | None], *, explore: bool, obstacle: str) -> None:
        plan = RacePlan(
            attempts=(AttemptPlan("server", waits[0]), AttemptPlan("device", waits[1]), AttemptPlan("reserve", None)),
            gate=GatePlan(source="device", score=mean, min_score=0.5, tokens=HELD, max_wait=2.0, obstacle=obstacle),
            on_failure="raise",
            explore=explore,
        )
        self.machine, self.now = RaceMachine(plan), 0.0
        self.given = {"server": "", "device": "", "reserve": ""}
        self.told: list[Command] = []
        self.live: set[str] = set()
        self.paused: set[str] = set()
        self.machine.start(now=0.0)
        self._carry_out()

    def step(self, what: str, sure: float | None) -> None:
        """Do a step, if it can happen now."""
        self.now += 0.25
        source, _, change = what.partition(" ")
        if what == "deadline":
            if (due := self.machine.next_deadline()) is not None:
                self.now = max(self.now, due)
                self.machine.handle_deadline(now=self.now)
        elif source in self.live and (change or source not in self.paused) and (event := self._event(source, change, sure)) is not None:
            self.machine.receive(event, now=self.now)
        self._carry_out()

    def _event(self, source: str, change: str, sure: float | None) -> Event | None:
        if change in {"ends", "fails"}:
            self.live.discard(source)
            self.paused.discard(source)  # its end was under way when it was told to stop
            return StreamEnded(source, "stop") if change == "ends" else StreamFailed(source, EndpointConnectError("gone", endpoint=source))
        if change == "retries":
            return None if self.given[source] else StreamRetrying(source, FAILED, 1.0)
        word = f"{source[0]}{len(self.given[source])} "
        self.given[source] += word
        return said(source, word, sure=sure)

    def _carry_out(self) -> None:
        commands = self.machine.take_commands()
        self.told += commands
        for command in commands:
            if isinstance(command, OpenStream):
                assert command.source not in self.live
                self.live.add(command.source)
            elif isinstance(command, PauseStream):
                self.paused.add(command.source)
            elif isinstance(command, ResumeStream):
                self.paused.remove(command.source)
            elif isinstance(command, CancelStream):
                self.live.discard(command.source)
                self.machine.receive(StreamCancelled(command.source), now=self.now)
        if commands:
            self._carry_out()


NAMES = ("server", "device", "reserve")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("device"), st.floats(0.0, 1.0)),
        st.tuples(st.sampled_from(["server", "reserve", "server retries", "deadline"]), st.none()),
        st.tuples(st.sampled_from([f"{name} {change}" for name in NAMES for change in ("ends", "fails")]), st.none()),
    ),
    max_size=24,
)
WAITS = st.sampled_from([None, 0.0, 1.0])


@settings(max_examples=400)
@given(steps=STEPS, waits=st.tuples(WAITS, WAITS), explore=st.booleans(), obstacle=st.sampled_from(["", "spent"]))
def test_an_answer_is_one_endpoints_and_no_token_of_it_is_lost_or_told_twice(
    steps: list[tuple[str, float | None]], waits: tuple[float | None, float | None], explore: bool, obstacle: str
) -> None:
    play = Play(waits, explore=explore, obstacle=obstacle)
    for what, sure in steps:
        play.step(what, sure)
    machine, text = play.machine, text_of(play.told)
    ends = [command for command in play.told if isinstance(command, FinishDelivery | FailDelivery)]
    assert len(ends) == (machine.finished is not None)
    assert text == (play.given[machine.winner] if machine.winner is not None else "")
    assert machine.winner not in play.paused
    if (
        machine.winner is None and play.given["device"]
    ):  # it is held: the device may go on, or another endpoint is asked, or all have failed
        assert play.live or machine.next_deadline() is not None or ends
