"""The server's end: hello first, what is allowed when, what is answered, and what goes on after a fault."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.errors import EvictedError, OverloadedError, ShuttingDownError, UnauthorisedError, VerifierFailedError
from streamco.wire.verify.frames import (
    MAX_FOLLOWS,
    ClientFrame,
    Close,
    Draft,
    Extend,
    Follow,
    Hello,
    Opened,
    Refusal,
    Resume,
    Resumed,
    VerdictFrame,
    Welcome,
)
from streamco.wire.verify.server import VerifyServer
from tests.support.verify_frames import make_draft, make_open
from tests.wire.verify.peers import GREEDY, HELLO, KEY, LIMITS, SAMPLE, SIZE, VOCABULARY, a_row, codec, msgpack, send_verdict, some_server


def welcomed(rules: Iterable[RuleKind] = RuleKind) -> VerifyServer:
    server = VerifyServer(codec(), VOCABULARY, rules=frozenset(rules))
    assert server.receive(codec().encode(HELLO)) == HELLO
    server.welcome()
    server.take_messages()
    return server


def with_session(ids: tuple[int, ...] = (1, 2, 3), rule: Rule = GREEDY) -> VerifyServer:
    server = welcomed()
    deliver(server, make_open(0, rule, ids=ids))
    return server


def deliver(server: VerifyServer, *frames: ClientFrame) -> list[object]:
    return [server.receive(codec().encode(frame)) for frame in frames]


def answers(server: VerifyServer) -> list[object]:
    return [codec().decode_down(message) for message in server.take_messages()]


def refusals(server: VerifyServer) -> list[tuple[str, int | None, int | None]]:
    return [(frame.code, frame.session, frame.round_number) for frame in answers(server) if isinstance(frame, Refusal)]


# Hello


def test_a_hello_is_the_shells_to_check_and_then_welcomed() -> None:
    server = some_server()
    hello = server.receive(codec().encode(HELLO))
    assert isinstance(hello, Hello)
    assert hello.token == "secret"
    assert server.take_messages() == []
    server.welcome()
    assert answers(server) == [Welcome(1, "target", 7, LIMITS, 60, True)]


def test_a_hello_with_another_token_is_refused_by_the_shell_and_the_connection_over() -> None:
    server = some_server()
    server.receive(codec().encode(HELLO))
    server.refuse(UnauthorisedError("hello: expected a known token, got another"))
    assert refusals(server) == [("unauthorised", None, None)]
    assert server.is_closed
    assert server.receive(codec().encode(HELLO)) is None
    assert server.take_messages() == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ([2, 0, [], 0, 0, b""], "hello_expected"),
        ([99], "hello_expected"),
        ([1, 2, 5, {"all": "new"}], "unsupported_version"),
        ([1, 1, 1, "49152:ffffffffffffffff", SIZE, None, ""], "vocabulary_mismatch"),
        ([1, 1, 1, VOCABULARY, SIZE + 1, None, ""], "vocabulary_mismatch"),
    ],
)
def test_a_first_frame_that_cannot_be_welcomed_ends_the_connection(fields: list[object], code: str) -> None:
    server = some_server()
    assert server.receive(msgpack.packb(fields)) is None
    assert refusals(server) == [(code, None, None)]
    assert server.is_closed


def test_a_client_of_several_versions_gets_the_one_that_both_speak() -> None:
    server = some_server()
    assert isinstance(server.receive(msgpack.packb([1, 1, 9, VOCABULARY, SIZE, None, "later", "more"])), Hello)
    server.welcome()
    (welcome,) = answers(server)
    assert isinstance(welcome, Welcome)
    assert welcome.version == 1


def test_a_damaged_hello_is_answered_and_another_one_welcomed() -> None:
    server = some_server()
    for message in (b"", b"\xc1", "text", msgpack.packb([1, 1, 1, 5]), msgpack.packb([1, -1, 1, "", 1]), bytes(2 << 20)):
        assert server.receive(message) is None
    assert [code for code, _, _ in refusals(server)] == ["malformed"] * 5 + ["too_large"]
    assert deliver(server, HELLO) == [HELLO]


def test_nothing_may_follow_a_hello_before_its_welcome() -> None:
    server = some_server()
    deliver(server, HELLO, make_open(0))
    assert refusals(server) == [("hello_expected", None, None)]
    assert server.is_closed


def test_a_second_hello_is_left_out() -> None:
    server = with_session()
    assert deliver(server, HELLO) == [None]
    assert refusals(server) == [("unexpected", None, None)]
    assert server.sessions == (0,)


# Sessions


def test_a_session_is_opened_extended_drafted_verified_and_closed() -> None:
    server = welcomed()
    frames: list[ClientFrame] = [make_open(0, GREEDY, ids=(1, 2)), Extend(0, 2, (3,)), make_draft(0, 0, 3, (4, 5))]
    assert deliver(server, *frames) == frames
    assert server.send(Opened(0, KEY, 2))
    assert send_verdict(server, 0, 0, 1, 9)  # 1 2 3 4 9
    assert deliver(server, make_draft(0, 1, 5, (6, 7, 8), 2)) == [make_draft(0, 1, 5, (6, 7, 8), 2)]
    assert send_verdict(server, 0, 1, 1, None)  # full
    assert deliver(server, Extend(0, 8, (1,)), Close(0)) == [Extend(0, 8, (1,)), Close(0)]
    assert [type(frame) for frame in answers(server)] == [Opened, VerdictFrame, VerdictFrame]
    assert server.sessions == ()


def test_a_base_inside_the_context_cuts_it() -> None:
    server = with_session()
    deliver(server, Extend(0, 1, (9,)), Extend(0, 3, (9,)))
    assert refusals(server) == [("wrong_base", 0, None)]


def test_a_draft_beyond_the_context_is_refused_and_the_session_goes_on() -> None:
    server = with_session()
    assert deliver(server, make_draft(0, 0, 4, (1,)), make_draft(0, 1, 3, (1,))) == [None, make_draft(0, 1, 3, (1,))]
    assert refusals(server) == [("wrong_base", 0, 0)]


def test_a_round_that_is_out_has_to_end_before_the_next_one() -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (1,)), make_draft(0, 1, 3, (1,)))
    assert refusals(server) == [("stale_round", 0, 1)]
    assert send_verdict(server, 0, 0, 1, 5)
    deliver(server, make_draft(0, 0, 3, (1,)))
    assert refusals(server) == [("stale_round", 0, 0)]


@pytest.mark.parametrize("again", [make_draft(0, 0, 3, (1,)), make_draft(0, 0, 9, ()), make_draft(0, 0, 3, (1,) * 999, 999)])
def test_a_refused_draft_with_the_number_of_the_round_that_is_out_leaves_that_round_as_it_is(again: Draft) -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (1,)))
    assert deliver(server, again, make_draft(0, 1, 3, (1,))) == [None, None]
    assert [(session, number) for _, session, number in refusals(server)] == [(0, 0), (0, 1)]
    assert send_verdict(server, 0, 0, 1, 5)
    assert deliver(server, make_draft(0, 1, 5, (1,))) == [make_draft(0, 1, 5, (1,))]


def test_drafts_ahead_of_a_verdict_are_kept_up_to_a_limit_and_the_round_goes_on() -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (1,)))
    ahead = [Follow(0, number + 1, 0, 1, number, (1,), (a_row(1),)) for number in range(MAX_FOLLOWS + 1)]
    assert deliver(server, *ahead) == [None] * (MAX_FOLLOWS + 1)
    assert refusals(server) == [("too_large", 0, MAX_FOLLOWS + 1)]
    assert send_verdict(server, 0, 0, 1, 2)
    assert server.take_begun_rounds() == [make_draft(0, 3, 5, (1,))], "without the rows, which rule greedy doesn't need"
    assert server.take_begun_rounds() == []
    assert server.take_begun_rounds() == []


def test_a_draft_ahead_of_no_verdict_that_can_come_is_left_alone() -> None:
    server = with_session()
    assert deliver(server, Follow(0, 1, 0, 1, 5, (1,)), make_draft(0, 2, 3, (1,)), Follow(0, 4, 3, 1, 5, (1,))) == [
        None,
        make_draft(0, 2, 3, (1,)),
        None,
    ]
    assert refusals(server) == []
    assert send_verdict(server, 0, 2, 1, 5)
    assert server.take_begun_rounds() == []


def test_a_draft_sent_ahead_of_a_verdict_is_dropped_when_the_context_changes_after_it() -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (1,)))
    assert send_verdict(server, 0, 0, 1, 5)
    assert deliver(server, Extend(0, 3, (9,)), Follow(0, 2, 0, 1, 5, (1,))) == [Extend(0, 3, (9,)), None]
    assert refusals(server) == []


def test_a_draft_ahead_is_checked_when_it_comes() -> None:
    server = with_session()
    deliver(server, make_draft(0, 3, 3, (1,)), Follow(0, 3, 2, 1, 5, (1,)), Follow(7, 4, 3, 1, 5, (1,)))
    assert refusals(server) == [("stale_round", 0, 3), ("unknown_session", 7, None)]
    server = with_session(rule=SAMPLE)
    deliver(server, make_draft(0, 0, 3, ()), Follow(0, 1, 0, 0, 5, (1,)))
    assert refusals(server) == [("malformed", 0, 1)]


def test_a_fault_that_ends_a_session_reaches_the_shell_as_its_close() -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (1,)))
    assert deliver(server, Extend(0, 3, (1,))) == [Close(0)]
    assert refusals(server) == [("stale_round", 0, None)]
    assert not send_verdict(server, 0, 0, 1, 5)
    assert server.take_messages() == []


def test_numbers_are_never_used_again() -> None:
    server = with_session()
    deliver(server, Close(0))
    assert deliver(server, make_open(0), Resume(0, KEY, 0, KEY), make_open(1)) == [None, None, make_open(1)]
    assert refusals(server) == [("session_number", None, None)] * 2


def test_what_is_said_about_no_session_is_answered_and_a_close_is_not() -> None:
    server = welcomed()
    assert deliver(server, Close(5), Extend(5, 0, ()), make_draft(5, 2, 0, ())) == [None] * 3
    assert refusals(server) == [("unknown_session", 5, None)] * 2


def test_sessions_beyond_the_limit_are_refused() -> None:
    server = welcomed()
    deliver(server, *(make_open(number) for number in range(LIMITS.sessions + 1)))
    assert refusals(server) == [("too_many_sessions", 3, None)]
    assert server.sessions == (0, 1, 2)
    deliver(server, Close(1))
    assert deliver(server, make_open(4)) == [make_open(4)]


def test_contexts_beyond_the_limit_are_refused() -> None:
    server = welcomed()
    full = (1,) * 999
    deliver(server, make_open(0, ids=full), make_open(1, reserve=1001), make_draft(0, 0, 999, (1, 2)))
    assert refusals(server) == [("context_full", 1, None), ("context_full", 0, 0)]
    assert deliver(server, make_draft(0, 1, 999, (1,))) == [make_draft(0, 1, 999, (1,))]


def test_a_rule_or_rows_that_the_server_does_not_know_are_refused() -> None:
    server = welcomed([RuleKind.GREEDY])
    deliver(server, make_open(0, SAMPLE), make_open(1, top_k=17), make_open(2))
    assert refusals(server) == [("unsupported_rule", 0, None), ("too_large", 1, None)]
    assert server.sessions == (2,)


def test_sampling_needs_what_each_token_was_drawn_from() -> None:
    server = with_session(rule=SAMPLE)
    draft = make_draft(0, 1, 3, (4, 5), 1, (a_row(5),))
    assert deliver(server, make_draft(0, 0, 3, (4, 5), 1), draft) == [None, draft]
    assert refusals(server) == [("malformed", 0, 0)]


def test_a_draft_of_given_tokens_only_needs_no_rows() -> None:
    server = with_session(rule=SAMPLE)
    assert deliver(server, make_draft(0, 0, 3, (4,), 1)) == [make_draft(0, 0, 3, (4,), 1)]


# The shell's refusals


def test_a_refused_round_leaves_the_session_as_it_was() -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 1, (4, 5)))
    server.refuse(OverloadedError("server: expected room, got 64 waiting rounds", session=0, round_number=0, retry_after=0.25))
    (refusal,) = answers(server)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.retry_after_ms) == ("overloaded", 250)
    assert not send_verdict(server, 0, 0, 1, 5)
    assert deliver(server, make_draft(0, 1, 3, (4, 5))) == [make_draft(0, 1, 3, (4, 5))]


@pytest.mark.parametrize("kind", [EvictedError, VerifierFailedError, OverloadedError])
def test_a_refused_session_is_gone_with_its_round(kind: type[EvictedError]) -> None:
    server = with_session()
    deliver(server, make_draft(0, 0, 3, (4, 5)))
    server.refuse(kind("session 0: expected it to live, got its end", session=0))
    assert server.sessions == ()
    assert not send_verdict(server, 0, 0, 1, 5)
    assert not server.send(Opened(0, KEY, 0))


def test_shutting_down_is_the_last_word() -> None:
    server = with_session()
    server.refuse(ShuttingDownError("server: expected to go on, got told to stop"))
    server.refuse(ShuttingDownError("server: expected to go on, got told to stop"))
    assert refusals(server) == [("shutting_down", None, None)]
    assert server.is_closed
    assert server.sessions == (0,)  # for the shell to keep


# Resuming


def test_a_session_is_resumed_at_what_both_hold_and_goes_on_there() -> None:
    server = welcomed()
    resume = Resume(0, KEY, 5, prefix_hash((0, 1, 2, 3, 4)))
    assert deliver(server, resume) == [resume]
    deliver(server, make_draft(0, 0, 0, ()))
    assert refusals(server) == [("unexpected", 0, 0)]
    assert server.resume(Resumed(0, 4, prefix_hash((0, 1, 2, 3))), SAMPLE)
    deliver(server, make_draft(0, 1, 5, ()), make_draft(0, 2, 4, (7,)), make_draft(0, 3, 4, (7,), 0, (a_row(7),)))
    assert refusals(server) == [("wrong_base", 0, 1), ("malformed", 0, 2)]
    assert send_verdict(server, 0, 3, 1, 5)


def test_a_session_that_was_closed_while_being_resumed_stays_closed() -> None:
    server = welcomed()
    deliver(server, Resume(0, KEY, 5, KEY), Close(0))
    assert not server.resume(Resumed(0, 5, KEY), GREEDY)
    assert server.take_messages() == []


# Faults


def test_faults_are_answered_and_survived_until_there_are_too_many() -> None:
    server = with_session()
    for _ in range(15):
        assert server.receive(b"\xc1") is None
    assert refusals(server) == [("malformed", None, None)] * 15
    assert deliver(server, make_draft(0, 0, 3, (1,))) == [make_draft(0, 0, 3, (1,))]
    server.receive(b"\xc1")
    assert refusals(server) == [("malformed", None, None), ("too_many_faults", None, None)]
    assert server.is_closed


def test_what_a_working_client_may_run_into_is_no_fault() -> None:
    server = welcomed()
    for number in range(100):
        deliver(server, make_draft(7, number, 0, ()))
    assert not server.is_closed
    assert len(refusals(server)) == 100
