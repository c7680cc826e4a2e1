"""The client's end: what may be sent when, answers that are over, and verifiers that break the protocol."""

from __future__ import annotations

import pytest

from streamco.errors import UsageError
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.errors import (
    FrameSizeError,
    MalformedFrameError,
    OverloadedError,
    ShuttingDownError,
    UnexpectedFrameError,
    VersionError,
)
from streamco.wire.verify.frames import (
    MAX_FOLLOWS,
    Close,
    Extend,
    Hello,
    Open,
    Opened,
    Refusal,
    Resume,
    Resumed,
    ServerFrame,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)
from tests.support.verify_frames import make_draft, make_verdict
from tests.wire.verify.peers import GREEDY, KEY, LIMITS, SAMPLE, VOCABULARY, a_row, codec, down, linked, msgpack, opened, send_verdict, up

WELCOME = Welcome(1, "target", 7, LIMITS, 60, True)


def hear(client: VerifyClient, frame: ServerFrame) -> ServerFrame | None:
    return client.receive(codec(VerifyLimits()).encode(frame))


def sent(client: VerifyClient) -> list[object]:
    return [codec(VerifyLimits()).decode_up(message) for message in client.take_messages()]


def welcomed() -> VerifyClient:
    client = VerifyClient(codec(), VOCABULARY)
    assert hear(client, WELCOME) == WELCOME
    client.take_messages()
    return client


def drafting(ids: tuple[int, ...] = (4, 5), top_k: int = 0) -> VerifyClient:
    """A client whose session 0 of three tokens has round 0 out."""
    client = welcomed()
    client.open((1, 2, 3), GREEDY, top_k=top_k)
    client.draft(0, 3, ids)
    client.take_messages()
    return client


# Both ends


def test_an_answer_is_made_round_by_round() -> None:
    client, server = linked()
    session = opened(client, server)
    assert client.draft(session, 3, (4, 5, 6, 7)) == 0
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5, 6, 7))]
    send_verdict(server, session, 0, 2, 9)
    assert down(server, client) == [make_verdict(session, 0, 2, 9)]
    assert client.length(session) == 6
    client.extend(session, 6, (10, 11))
    client.draft(session, 8, (12, 13), given=1)
    assert up(client, server) == [Extend(session, 6, (10, 11)), make_draft(session, 1, 8, (12, 13), 1)]
    send_verdict(server, session, 1, 1, 20)
    down(server, client)
    assert client.length(session) == 11
    client.close(session)
    client.close(session)
    assert up(client, server) == [Close(session)]


def test_a_draft_sent_ahead_is_a_round_when_its_verdict_comes() -> None:
    client, server = linked()
    session = opened(client, server)
    client.draft(session, 3, (4, 5))
    assert client.follow(session, 2, 9, (10, 11)) == 1
    assert client.follow(session, 0, 7, (12,)) == 2
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5))], "the server keeps the others"
    send_verdict(server, session, 0, 2, 9)
    assert server.take_begun_rounds() == [make_draft(session, 1, 6, (10, 11))]
    assert down(server, client) == [make_verdict(session, 0, 2, 9)]
    assert client.pending_round(session) == 1
    send_verdict(server, session, 1, 1, 20)
    assert down(server, client) == [make_verdict(session, 1, 1, 20)]
    assert (client.pending_round(session), client.length(session)) == (None, 8)
    client.draft(session, 8, (1,))
    assert up(client, server) == [make_draft(session, 3, 8, (1,))]


def test_drafts_sent_ahead_of_another_verdict_are_forgotten_on_both_sides() -> None:
    client, server = linked()
    session = opened(client, server)
    client.draft(session, 3, (4, 5))
    client.follow(session, 2, 9, (10, 11))
    up(client, server)
    send_verdict(server, session, 0, 1, 9)
    assert server.take_begun_rounds() == []
    down(server, client)
    assert client.pending_round(session) is None
    client.draft(session, 5, (6,))
    assert up(client, server) == [make_draft(session, 2, 5, (6,))]


def test_a_draft_sent_ahead_while_its_verdict_is_on_the_way_is_verified_at_once() -> None:
    client, server = linked()
    session = opened(client, server)
    client.draft(session, 3, (4, 5))
    up(client, server)
    send_verdict(server, session, 0, 2, 9)
    client.follow(session, 0, 9, (8,))
    client.follow(session, 2, 9, (10, 11))
    assert up(client, server) == [make_draft(session, 2, 6, (10, 11))]
    down(server, client)
    assert client.pending_round(session) == 2


def test_a_refused_round_takes_with_it_what_was_sent_ahead_of_its_verdict() -> None:
    client, server = linked()
    session = opened(client, server)
    client.draft(session, 3, (4, 5))
    client.follow(session, 2, 9, (10, 11))
    up(client, server)
    server.refuse(OverloadedError("server: expected room, got none", session=session, round_number=0))
    client.follow(session, 0, 9, (12,))
    assert up(client, server) == []
    down(server, client)
    assert client.pending_round(session) is None
    client.draft(session, 3, (4, 5))
    assert up(client, server) == [make_draft(session, 3, 3, (4, 5))]
    send_verdict(server, session, 3, 2, 9)
    down(server, client)
    assert client.pending_round(session) is None, "they expected a verdict on the round that was refused"


def test_a_draft_that_the_context_has_no_room_for_is_refused_when_its_turn_comes() -> None:
    client, server = linked()
    session = opened(client, server, tuple(range(990)))
    client.draft(session, 990, (4, 5))
    client.follow(session, 2, 9, (1,) * 8)
    up(client, server)
    send_verdict(server, session, 0, 2, 9)
    assert server.take_begun_rounds() == []
    verdict, refusal = down(server, client)
    assert verdict == make_verdict(session, 0, 2, 9)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.round_number) == ("context_full", 1)
    assert client.pending_round(session) is None


def test_a_draft_is_sent_ahead_of_a_verdict_that_can_come_and_of_each_but_once() -> None:
    client, server = linked()
    session = opened(client, server)
    with pytest.raises(UsageError, match="expected a pending round"):
        client.follow(session, 0, 9, (1,))
    client.draft(session, 3, (4, 5))
    with pytest.raises(UsageError, match="at least 3 tokens"):
        client.follow(session, 3, 9, (1,))
    client.follow(session, 1, 9, (1,))
    with pytest.raises(UsageError, match="a different verdict"):
        client.follow(session, 1, 9, (2,))
    for token in range(MAX_FOLLOWS - 1):
        client.follow(session, 0, token, (1,))
    with pytest.raises(UsageError, match=f"the limit is {MAX_FOLLOWS} drafts ahead"):
        client.follow(session, 2, 9, (1,))
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5))]
    assert server.take_messages() == []


def test_a_draft_may_follow_its_open_at_once() -> None:
    client, server = linked()
    session = client.open((1, 2), SAMPLE, top_k=4, reserve=99)
    client.draft(session, 2, (3,), rows=(a_row(3),))
    assert up(client, server) == [Open(session, SAMPLE, 4, 99, (1, 2)), make_draft(session, 0, 2, (3,), 0, (a_row(3),))]
    assert server.send(Opened(session, KEY, 0))
    send_verdict(server, session, 0, 1, 4, a_row(3, 1), a_row(4))
    assert [type(frame) for frame in down(server, client)] == [Opened, VerdictFrame]


def test_sessions_of_one_connection_do_not_know_each_other() -> None:
    client, server = linked()
    first, second = opened(client, server, (1,)), opened(client, server, (1, 2, 3, 4))
    client.draft(first, 1, (5,))
    client.draft(second, 4, (6,))
    up(client, server)
    send_verdict(server, second, 0, 1, 7)
    send_verdict(server, first, 0, 0, 8)
    assert down(server, client) == [make_verdict(second, 0, 1, 7), make_verdict(first, 0, 0, 8)]
    assert (client.length(first), client.length(second)) == (2, 6)


def test_a_lost_connection_is_taken_up_on_another_at_what_the_server_holds() -> None:
    ids = (1, 2, 3, 4, 5)
    client, server = linked()
    session = client.resume(KEY, ids)
    assert up(client, server) == [Resume(session, KEY, 5, prefix_hash(ids))]
    with pytest.raises(UsageError, match="expected a resumed session"):
        client.extend(session, 0, ())
    assert server.resume(Resumed(session, 3, prefix_hash(ids[:3])), GREEDY)
    assert down(server, client) == [Resumed(session, 3, prefix_hash(ids[:3]))]
    client.draft(session, 3, (4, 5, 6), given=2)
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5, 6), 2)]


# What may be sent


def test_a_hello_is_the_first_word_and_the_only_one_before_the_welcome() -> None:
    client = VerifyClient(codec(), VOCABULARY, token="secret")
    assert sent(client) == [Hello(1, 1, VOCABULARY, 49152, "secret", "streamco")]
    with pytest.raises(UsageError, match="welcomed connection, got one that is not welcomed yet"):
        client.open((), GREEDY)
    with pytest.raises(UsageError, match="welcomed connection, got one that is not welcomed yet"):
        client.resume(KEY, ())


def test_calls_out_of_order_are_the_callers_fault_and_say_nothing() -> None:
    client = drafting()
    with pytest.raises(UsageError, match="expected no pending round, got round 0"):
        client.draft(0, 3, (1,))
    with pytest.raises(UsageError, match="expected no pending round"):
        client.extend(0, 3, (1,))
    with pytest.raises(UsageError, match="session 7: is not open"):
        client.draft(7, 0, ())
    with pytest.raises(UsageError, match="session 7: is not open"):
        client.extend(7, 0, ())
    hear(client, make_verdict(0, 0, 2, 9))
    with pytest.raises(UsageError, match="a base of 0 to 6, got 7"):
        client.draft(0, 7, ())
    assert sent(client) == []


def test_what_the_server_would_refuse_for_its_size_is_not_sent() -> None:
    client = VerifyClient(codec(), VOCABULARY)
    hear(client, Welcome(1, "small", 7, VerifyLimits(draft_tokens=2, context_tokens=10), 60, True))
    assert client.limits.draft_tokens == 2
    client.take_messages()
    client.open((1, 2), GREEDY)
    with pytest.raises(FrameSizeError, match="at most 2 ids to verify"):
        client.draft(0, 2, (1, 2, 3))
    with pytest.raises(FrameSizeError, match="at most 10, got 11"):
        client.open((1,) * 11, GREEDY)
    assert client.draft(0, 2, (1, 2)) == 0
    assert client.open((), GREEDY) == 1  # what was not sent took no number


# What is over


def test_verdicts_on_rounds_and_sessions_that_are_over_are_dropped() -> None:
    client = drafting()
    assert hear(client, make_verdict(0, 7, 0, 9)) is None
    assert hear(client, make_verdict(3, 0, 0, 9)) is None
    hear(client, make_verdict(0, 0, 0, 9))
    assert hear(client, make_verdict(0, 0, 0, 9)) is None
    client.close(0)
    assert hear(client, Opened(0, KEY, 0)) is None
    assert hear(client, Resumed(0, 0, KEY)) is None


def test_a_refused_round_can_be_tried_again_under_the_next_number() -> None:
    client = drafting()
    refusal = Refusal.of(OverloadedError("later", session=0, round_number=0, retry_after=1.0))
    assert hear(client, refusal) == refusal
    assert client.length(0) == 3
    assert client.draft(0, 3, (4, 5)) == 1


def test_a_refusal_of_an_older_round_leaves_the_present_one_alone() -> None:
    client = drafting()
    hear(client, make_verdict(0, 0, 2, 9))
    client.draft(0, 6, (4, 5))
    assert hear(client, Refusal("overloaded", "x", 0, 0)) is None
    assert hear(client, Refusal("stale_round", "x", 0, 9)) is None
    assert hear(client, Refusal("overloaded", "x", 3, 0)) is None
    assert hear(client, make_verdict(0, 1, 1, 9)) is not None
    assert hear(client, Refusal("overloaded", "x", 0, 1)) is None


def test_a_refused_session_is_gone_and_a_refused_frame_changes_nothing() -> None:
    client = drafting()
    hear(client, Refusal("malformed", "x"))
    assert client.length(0) == 3
    hear(client, Refusal("not_even_known", "x", 0))
    with pytest.raises(UsageError):
        client.length(0)


def test_a_fatal_refusal_ends_the_connection() -> None:
    client = drafting()
    hear(client, Refusal.of(ShuttingDownError("bye")))
    assert client.is_closed
    assert hear(client, WELCOME) is None
    with pytest.raises(UsageError, match="closed"):
        client.open((), GREEDY)


def test_a_refusal_may_come_in_place_of_a_welcome() -> None:
    client = VerifyClient(codec(), VOCABULARY)
    refusal = hear(client, Refusal("unauthorised", "no"))
    assert isinstance(refusal, Refusal)
    assert client.is_closed


def test_a_server_that_holds_other_tokens_is_no_place_to_resume() -> None:
    client, server = linked()
    session = client.resume(KEY, (1, 2, 3))
    up(client, server)
    server.resume(Resumed(session, 2, prefix_hash((1, 9))), GREEDY)
    (refusal,) = down(server, client)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.session) == ("not_resumable", session)
    assert up(client, server) == [Close(session)]
    assert not client.is_closed


# Verifiers that can't be believed


@pytest.mark.parametrize("frame", [make_verdict(0, 0, 0, 1), Opened(0, KEY, 0), Resumed(0, 0, KEY)])
def test_nothing_comes_before_the_welcome(frame: ServerFrame) -> None:
    client = VerifyClient(codec(), VOCABULARY)
    with pytest.raises(UnexpectedFrameError, match="welcome first"):
        hear(client, frame)
    assert client.is_closed


def test_a_version_that_was_not_offered_is_none() -> None:
    with pytest.raises(VersionError, match="from 1 to 1, got 2"):
        hear(VerifyClient(codec(), VOCABULARY), Welcome(2, "m", 7, LIMITS, 0, True))


@pytest.mark.parametrize(
    ("frame", "top_k"),
    [
        (make_verdict(0, 0, 3, 9), 0),
        (make_verdict(0, 0, 1, 5), 0),
        (make_verdict(0, 0, 1, None), 0),
        (make_verdict(0, 0, 2, 9, rows=(a_row(1),)), 0),
        (make_verdict(0, 0, 2, 9), 4),
        (make_verdict(0, 0, 2, 9, rows=(a_row(1, 2, 3, 4, 5),) * 3), 4),
    ],
)
def test_a_verdict_that_is_none_ends_the_connection(frame: VerdictFrame, top_k: int) -> None:
    client = drafting(top_k=top_k)
    with pytest.raises(MalformedFrameError):
        hear(client, frame)
    assert client.is_closed


def test_answers_are_given_once() -> None:
    client = drafting()
    hear(client, Opened(0, KEY, 0))
    with pytest.raises(UnexpectedFrameError, match="opened, but it was open"):
        hear(client, Opened(0, KEY, 0))
    with pytest.raises(UnexpectedFrameError, match="one per connection"):
        hear(welcomed(), WELCOME)
    with pytest.raises(UnexpectedFrameError, match="one resumption, of 0 tokens at most"):
        hear(drafting(), Resumed(0, 0, prefix_hash(())))
    client = welcomed()
    client.resume(KEY, (1, 2))
    with pytest.raises(UnexpectedFrameError, match="of 2 tokens at most, got one of 3"):
        hear(client, Resumed(0, 3, KEY))
    client = welcomed()
    client.resume(KEY, (1, 2))
    with pytest.raises(UnexpectedFrameError, match="opened, but it was open"):
        hear(client, Opened(0, KEY, 0))


@pytest.mark.parametrize("message", [b"", b"\xc1", "text", b"\x92\x06\x00", bytes(2 << 20)])
def test_bytes_that_are_no_frame_end_the_connection(message: bytes | str) -> None:
    client = drafting()
    with pytest.raises((MalformedFrameError, FrameSizeError)):
        client.receive(message)
    assert client.is_closed
    client.close(0)
    assert client.take_messages() == []


def test_both_ends_know_what_a_tree_left_of_the_context() -> None:
    client, server = linked()
    session = opened(client, server)
    client.draft(session, 3, (4, 5, 6), parents=(0, 1, 0))
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5, 6), parents=(0, 1, 0))]
    ahead = client.follow(session, 3, 9, (10, 11), parents=(0, 0))
    up(client, server)
    send_verdict(server, session, 0, 3, 9)  # 6, and then 9
    down(server, client)
    assert client.length(session) == 5
    assert client.pending_round(session) == ahead
    assert server.take_begun_rounds() == [make_draft(session, ahead, 5, (10, 11), parents=(0, 0))]


def test_a_server_of_chains_alone_announces_none_and_a_client_keeps_to_it() -> None:
    client, server = linked(VerifyLimits(context_tokens=1000, draft_tokens=8))
    session = opened(client, server)
    assert client.limits.paths == 1
    with pytest.raises(FrameSizeError, match="at most 1 paths"):
        client.draft(session, 3, (4, 5), parents=(0, 0))
    client.draft(session, 3, (4, 5))
    assert up(client, server) == [make_draft(session, 0, 3, (4, 5))]


def test_a_welcome_of_before_trees_means_chains_alone() -> None:
    client = VerifyClient(codec(), VOCABULARY)
    client.receive(msgpack.packb([16, 1, "m", 7, [1 << 20, 1000, 8, 16, 3], 60, True]))
    assert client.limits.paths == 1
